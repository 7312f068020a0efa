"""Overfits a small DFlash drafter on what a toy target says, and writes it as its publisher would.

    python -m tests.models.draft_overfit FOLDER        # some minutes; FOLDER/target and FOLDER/drafter

The target is random and speaks at temperature 1 with a seed, so there is nothing to learn but those very texts: whatever is
read wrongly at serving then shows as lost acceptance. One layer sees four positions, so that a row more or less counts, the
other the whole text, so that distances do. Plain Adam on the cross-entropy of every slot.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from radiance_jax import LLM, collectives
from radiance_jax.container.source import open_model
from radiance_jax.mesh import TENSOR_AXIS, ArraySpec, make_mesh, zeros
from radiance_jax.models import llama
from radiance_jax.models.config import parse_config
from radiance_jax.models.draft.backbone import BlockDrafter
from radiance_jax.models.draft.registry import read_drafter
from radiance_jax.models.load import load_params
from radiance_jax.models.partition import Partition, partition
from radiance_jax.models.rows import Rows, Tiles
from radiance_jax.pallas.paged_attention import AttentionShape, make_segments, paged_attention
from radiance_jax.spec.drafter import Noise, Shared, Surroundings
from tests import tiny_model

TEXTS, PROMPT, LENGTH = 8, 8, 64  # tokens of a text, its prompt included
LAYERS, TAPS, MASK = 5, (1, 3), 150
STEPS, ANCHORS, RATE = 240, 128, 4e-3
SAMPLING = {"temperature": 1.0, "seed": 11}
TARGET = {"num_hidden_layers": LAYERS}
CONFIG = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": tiny_model.VOCAB,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "rope_theta": 1e4, "num_target_layers": LAYERS, "block_size": 6,
    "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "use_sliding_window": True, "is_causal": False,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(TAPS)}}
ALONE = Surroundings(tp=1, reduce=lambda x: x, gather=lambda x: x, rank=lambda: 0, branches=False)


@dataclass(frozen=True)
class Lesson:
    """Texts int32 [B, T] that a target says, the states [B, T, L + 1, D] behind its embedding and each layer, and its ends."""

    ids: np.ndarray
    streams: np.ndarray
    embed: np.ndarray
    cut: Partition

    def taps(self, layers: tuple[int, ...]) -> jax.Array:
        return jnp.asarray(self.streams[:, :, [layer + 1 for layer in layers]])

    def shared(self) -> Shared:
        table = jnp.asarray(self.embed)
        real = jnp.arange(len(table)) < tiny_model.VOCAB
        return Shared(embed=lambda ids: table[ids], head=lambda x: jnp.where(real, x @ table.T, -jnp.inf))


def prompts() -> list[list[int]]:
    return np.random.default_rng(3).integers(3, MASK, (TEXTS, PROMPT)).tolist()


def speak(model: Path, **options: Any) -> list[Any]:
    """What a model says to the prompts: one `CompletionOutput` each."""
    with LLM(model, dtype="f32", max_model_len=128, max_num_seqs=TEXTS, log=lambda line: None, **options) as llm:
        params = llm.default_params(**SAMPLING, max_tokens=LENGTH - PROMPT, ignore_eos=True)
        return [answer.outputs[0] for answer in llm.generate(prompts(), params)]


def lesson(target: Path) -> Lesson:
    said = speak(target, num_speculative_tokens=0)
    ids = np.array([prompt + answer.token_ids for prompt, answer in zip(prompts(), said, strict=True)], np.int32)
    model = open_model(target)
    config = parse_config(model.config)
    cut, mesh = partition(config, 1), make_mesh(1)
    params = load_params(config, cut, model, mesh, jnp.float32)
    cache = llama.cache_spec(config, cut, TEXTS, LENGTH, jnp.float32)
    tables = jnp.arange(TEXTS, dtype=jnp.int32)[:, None]
    position, slot = jnp.tile(jnp.arange(LENGTH), TEXTS), jnp.repeat(jnp.arange(TEXTS), LENGTH)
    rows = Rows(jnp.asarray(ids.reshape(-1)), position, slot, position)
    segments = make_segments(jnp.arange(TEXTS) * LENGTH, jnp.full(TEXTS, LENGTH), jnp.zeros(TEXTS, jnp.int32), 8,
                             TEXTS * LENGTH // 8 + TEXTS)

    def run(params, caches):
        around = llama.Surroundings(
            tiles=Tiles(((TEXTS * LENGTH, 1),)), reduce=lambda x: collectives.all_reduce(x, TENSOR_AXIS),
            attend=lambda q, c: paged_attention(q, c, tables, segments, AttentionShape(height=8)), rank=lambda: 0,
            reduce_add=lambda x, residual, bias: collectives.all_reduce_add(x, residual, TENSOR_AXIS, bias=bias))
        return jnp.stack(llama.forward(params, config, cut, rows, caches, around, tuple(range(-1, LAYERS)))[2], axis=1)

    streams = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False))(
        params, (zeros(cache, mesh),) * LAYERS)
    return Lesson(ids, np.asarray(streams).reshape(TEXTS, LENGTH, LAYERS + 1, -1), np.asarray(params["embed"]), cut)


def observed(drafter: BlockDrafter, params: Any, taught: Lesson, taps: jax.Array) -> tuple[jax.Array, ...]:
    """The cache with all positions of all texts in it, one slot a text: rings as long as the texts, for anchors anywhere."""
    shapes = [(TEXTS, LENGTH, *spec.shape[2:]) for spec in drafter.cache_specs(taught.cut, TEXTS, LENGTH, np.float32)]
    slot, position = jnp.repeat(jnp.arange(TEXTS), LENGTH), jnp.tile(jnp.arange(LENGTH), TEXTS)
    return drafter.observe(params, tuple(map(jnp.zeros, shapes)), taps.reshape(-1, *taps.shape[2:]), slot,
                           position, jnp.ones(TEXTS * LENGTH, bool), ALONE)


def fresh(shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {name: np.ones(shape, np.float32) if len(shape) == 1 else
            (rng.standard_normal(shape) * shape[1] ** -0.5).astype(np.float32) for name, shape in shapes.items()}


def fit(taught: Lesson, steps: int = STEPS, log: Callable[[str], None] = print) -> dict[str, np.ndarray]:
    """The tensors of a drafter that has learnt the texts."""
    drafter = read_drafter(CONFIG)
    tensors, taps, ids = fresh(drafter.shapes(), np.random.default_rng(5)), taught.taps(TAPS), jnp.asarray(taught.ids)
    is_spec = lambda leaf: isinstance(leaf, ArraySpec)  # noqa: E731

    def params_of(tensors: dict[str, jax.Array]) -> Any:
        """`fuse` is of NumPy and at tp 1 of nothing but concatenations: the same by jax, so that gradients reach the tensors."""
        paths, tree = jax.tree_util.tree_flatten_with_path(drafter.param_specs(taught.cut, np.float32), is_leaf=is_spec)
        named = []
        for path, spec in paths:
            *place, name = (getattr(k, "key", getattr(k, "idx", None)) for k in path)
            at = f"layers.{place[1]}." if place else ""
            parts = {"fc": ("fc",), "context_norm": ("hidden_norm",), "norm": ("norm",), "attention_norm": ("input_layernorm",),
                     "mlp_norm": ("post_attention_layernorm",), "q_norm": ("self_attn.q_norm",), "k_norm": ("self_attn.k_norm",),
                     "q": ("self_attn.q_proj",), "kv": ("self_attn.k_proj", "self_attn.v_proj"), "out": ("self_attn.o_proj",),
                     "gate_up": ("mlp.gate_proj", "mlp.up_proj"), "down": ("mlp.down_proj",)}[name]
            named.append(jnp.concatenate([tensors[f"{at}{part}.weight"] for part in parts]).reshape(spec.shape))
        return jax.tree_util.tree_unflatten(tree, named)

    def loss(tensors, text, position):
        params = params_of(tensors)
        rings = tuple(ring[text] for ring in observed(drafter, params, taught, taps))
        states = drafter.states(params, taught.shared(), rings, ids[text, position], position, ALONE)
        logits, _ = drafter.logits(params, taught.shared(), states, ALONE)
        ahead = position[:, None] + 1 + jnp.arange(drafter.block)
        right = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[text[:, None], jnp.minimum(ahead, LENGTH - 1)][..., None], -1)
        return -jnp.where(ahead < LENGTH, right[..., 0], 0).sum() / (ahead < LENGTH).sum()

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(tensors, mean, square, text, position, rate, count):
        value, slope = jax.value_and_grad(loss)(tensors, text, position)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, slope)
        square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, square, slope)
        tensors = jax.tree.map(lambda w, m, v: w - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.99**count)) + 1e-8),
                               tensors, mean, square)
        return tensors, mean, square, value

    rng = np.random.default_rng(7)
    mean, square = (jax.tree.map(jnp.zeros_like, tensors) for _ in range(2))
    for count in range(1, steps + 1):
        rate = RATE * min(count / 40, (steps + 1 - count) / steps * 1.2, 1.0)
        tensors, mean, square, value = step(tensors, mean, square, rng.integers(0, TEXTS, ANCHORS),
                                            rng.integers(PROMPT - 1, LENGTH - 1, ANCHORS), rate, float(count))
        if count % 50 == 0:
            log(f"step {count}: loss {float(value):.3f}")
    return {name: np.asarray(value) for name, value in tensors.items()}


def accepted(drafter: BlockDrafter, tensors: dict[str, np.ndarray], taught: Lesson,
             layers: tuple[int, ...] | None = None) -> float:
    """Drafts that agree with the texts before the first that does not: the mean over all anchors, of at most five."""
    taps, ids = taught.taps(layers or drafter.taps), taught.ids
    text, position = (x.reshape(-1) for x in np.mgrid[0:TEXTS, PROMPT:LENGTH - 6])
    paths, tree = jax.tree_util.tree_flatten_with_path(drafter.param_specs(taught.cut, np.float32),
                                                       is_leaf=lambda leaf: isinstance(leaf, ArraySpec))
    keys = [tuple(getattr(k, "key", getattr(k, "idx", None)) for k in path) for path, _ in paths]
    params = jax.tree_util.tree_unflatten(tree, [jnp.asarray(drafter.fuse(tensors.__getitem__, taught.cut, key)) for key in keys])

    @jax.jit
    def drafts(params):
        rings = tuple(ring[text] for ring in observed(drafter, params, taught, taps))
        cold = Noise(temperature=jnp.zeros(len(text)), gumbel=lambda k, ids: jnp.zeros((len(text), ids.shape[-1])))
        return drafter.propose(params, taught.shared(), rings, jnp.asarray(ids[text, position]), jnp.asarray(position),
                               jnp.ones(len(text), bool), cold, ALONE).tokens

    right = np.asarray(drafts(params))[:, :5] == ids[text[:, None], position[:, None] + 1 + np.arange(5)]
    return float(np.cumprod(right, axis=1).sum(1).mean())


def save(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def main() -> None:
    folder = Path(sys.argv[1])
    taught = lesson(tiny_model.make(folder / "target", **TARGET))
    tensors = fit(taught)
    save(folder / "drafter", tensors)
    print(f"accepted: {accepted(read_drafter(CONFIG), tensors, taught):.2f} of 5")


if __name__ == "__main__":
    main()
