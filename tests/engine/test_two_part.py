"""The GPU's step, in two programs over the Mosaic kernels, run by an interpreter on the CPU. Kernels take about a second each
here, so that models are tiny and steps few."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from radiance_jax.config import EngineConfig
from radiance_jax.container.source import open_model
from radiance_jax.engine.choices import CPU_TILES
from radiance_jax.engine.device import Device
from radiance_jax.engine.draft_programs import DraftPrograms, lower_observe, lower_propose
from radiance_jax.engine.drafting import Drafting
from radiance_jax.engine.engine import Engine
from radiance_jax.engine.hooks import Hooks
from radiance_jax.engine.kernels import kernels_for, model_obstacle
from radiance_jax.engine.kinds import FULL, GREEDY, PLAIN, Need, choose, draw_steps
from radiance_jax.engine.request import SamplingParams
from radiance_jax.engine.results import DRAFTS, PROPOSER
from radiance_jax.engine.state import DECODE, Capacity, admission_size, pack_admission, pack_plan, unpack_results
from radiance_jax.engine.state import NEURAL as NEURAL_DRAFTS
from radiance_jax.engine.steps import Programs, StepShape, lower_admission, lower_step
from radiance_jax.engine.two_part import head_params, lower_draw, lower_forward, returned_specs
from radiance_jax.mesh import make_mesh
from radiance_jax.models import llama
from radiance_jax.models.config import parse_config
from radiance_jax.models.draft.backbone import BlockDrafter
from radiance_jax.models.load import load_params, place_params
from radiance_jax.models.partition import partition
from tests import tiny_model
from radiance_jax.spec import evidence
from tests.engine.conftest import Harness
from tests.exactness.neural import NEURAL, random_tensors, read_drafter

INTERPRET = plgpu.InterpretGPUParams()
# Every product is over an odd multiple of 64, so that tiles of all row counts take 64 a stage: the interpreter sums a stage by
# itself, where a GPU goes on in the same accumulator.
SIZES = dict(hidden_size=192, num_attention_heads=3, num_key_value_heads=1, head_dim=64, intermediate_size=48)
TOKENS = np.random.default_rng(0).integers(3, tiny_model.VOCAB, 19).tolist()  # over a page


def device(folder, layers: int, kernels: bool, rows: tuple[int, ...], kinds: tuple[str, ...] = (GREEDY,),
           drafter: BlockDrafter | None = None) -> Device:
    """A device of these programs alone, of a model in bf16; by kernels in the interpreter, or as a CPU runs it. `drafter`: with
    random weights."""
    model = open_model(tiny_model.make(folder, num_hidden_layers=layers, **SIZES))
    config = parse_config(model.config)
    cut, mesh, dtype = partition(config, 1, 64 if kernels else 1), make_mesh(1), jnp.bfloat16
    capacity = Capacity(slots=2, length=64, rows=rows[-1], pages=9, page_size=16, depth=3)
    specs, cache = llama.param_specs(config, cut, dtype), llama.cache_spec(config, cut, capacity.pages, 16, dtype)
    caches, how = (cache,) * layers, kernels_for(config, INTERPRET)
    tiles, steps, draws, observe, draft, drafting, returned = None if kernels else CPU_TILES, {}, {}, {}, {}, None, {}
    if drafter is not None:
        drafting = Drafting(drafter=drafter, config=config, cut=cut, depth=3, length=64, slot_tiles=None, row_tiles=tiles)
        read = random_tensors(drafter)
        draft = {"draft_params": place_params(drafter.param_specs(cut, dtype), lambda path: drafter.fuse(read, cut, path), mesh),
                 "draft_cache_specs": drafter.cache_specs(cut, 2, 64, dtype)}
    for r in rows:
        shape = StepShape(rows=r, tiles=tiles, head_tile=4, segment=4, block_pages=1, ngram_longest=4,
                          ngram_shortest=2, lookup=3, drafting=drafting)
        if not kernels:
            steps[r] = lower_step(config, cut, capacity, shape, mesh, specs, caches).compile()
            continue
        assert model_obstacle(config, cut, 16) is None
        steps[r] = lower_forward(config, cut, capacity, shape, how, mesh, specs, caches).compile()
        returned[r] = drawn, taps = returned_specs(config, capacity, shape, dtype)
        if drafting is not None:
            observe[r] = lower_observe(drafting, capacity, drawn.turn, taps, mesh, dtype).compile()
        for kind in kinds:
            key = (r, draw_steps(r)[0], kind)
            draws[key] = lower_draw(config, cut, capacity, how, *key, mesh, specs).compile()
    admit = lower_admission(capacity, cut.vocab_size, mesh, admission_size(capacity)).compile()
    drafts = DraftPrograms(lower_propose(drafting, capacity, 0.0, mesh, head_params(specs), dtype).compile(), observe) if observe else None
    return Device(mesh=mesh, params=load_params(config, cut, model, mesh, dtype), capacity=capacity,
                  programs=Programs(steps=steps, admit=admit, draws=draws, drafts=drafts, returned=returned),
                  cache_specs=caches,
                  padded_vocab=cut.vocab_size, **draft)


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Logprobs of a few nats, that came through layers of bf16 in two ways."""
    assert np.abs(ours - theirs).mean() < 0.05 and np.abs(ours - theirs).max() < 0.3, (ours, theirs)


@pytest.mark.slow
def test_a_step_by_kernels_is_that_of_a_cpu_but_for_rounding(tmp_path):
    ours = device(tmp_path, 1, True, (8,)).score(TOKENS[:8], [8])
    close(ours, device(tmp_path, 1, False, (64,)).score(TOKENS[:8], [8]))


@pytest.mark.slow
def test_a_drafter_keeps_and_proposes_beside_kernels_what_it_does_in_one_program(tmp_path):
    """Its context comes from the taps of the embedding and of a layer."""
    shape = NEURAL["dflash"] | {"hidden_size": SIZES["hidden_size"], "num_target_layers": 1, "target_layer_ids": [0, -1]}
    both = [device(tmp_path, 1, kernels, (rows,), drafter=read_drafter(shape)) for kernels, rows in ((True, 8), (False, 64))]
    seen = []
    for one in both:
        one.warm_up()
        one.score(TOKENS[:8], [5, 3])
        context = [np.asarray(leaf, np.float32)[0] for leaf in jax.tree.leaves(one._draft_cache)]
        packed = pack_admission(one.capacity, slot=0, pages=[1], tokens=TOKENS[:8], prompt=8, limit=64, seed=0, choice=0, stops=[],
                                params=SamplingParams(temperature=0.0), computed=7)
        one._state = one._programs.admit(one._state, packed)
        plan = pack_plan(one.capacity, [(0, DECODE, 0, evidence.pack((0, 0, 0, 3)))], [])
        results, _ = one._start(*choose(one._programs, Need(rows=4, draws=4, kind=GREEDY)), plan)
        slot = unpack_results(one.capacity, np.asarray(results)).slots[0]
        assert (slot[DRAFTS], slot[PROPOSER]) == (3, NEURAL_DRAFTS)
        seen.append(context)
    for ours, theirs in zip(*seen, strict=True):
        assert np.abs(theirs).max() > 0.5 and np.abs(ours - theirs).max() < 0.1 * np.abs(theirs).max()


@pytest.mark.long
def test_row_counts_chunks_and_kinds_change_no_bit(tmp_path):
    both = device(tmp_path, 2, True, (8, 128), (GREEDY, PLAIN, FULL))
    close(both.score(TOKENS, [19]), device(tmp_path, 2, False, (64,)).score(TOKENS, [19]))
    for temperature, kinds in ((0.0, (GREEDY, FULL)), (1.0, (PLAIN, FULL))):
        ids, scores = both.read_through(TOKENS, [19], 128, kinds[0], temperature)
        for rows, chunks, kind in ((8, [8, 8, 3], kinds[0]), (8, [1, 8, 8, 2], kinds[1])):
            again = both.read_through(TOKENS, chunks, rows, kind, temperature)
            assert again[0].tolist() == ids.tolist() and again[1].tobytes() == scores.tobytes()


def _scripted(state, knobs, drafts, count):
    """Proposes what `knobs["answer"]` holds from the next place of the answer on."""
    at = (state.length - state.prompt)[:, None] + jnp.arange(drafts.shape[1])
    known = jnp.minimum(at, knobs["answer"].shape[0] - 1)
    return knobs["answer"][known], jnp.where(knobs["answer"][0] < 0, 0, jnp.full_like(count, drafts.shape[1]))


@pytest.mark.long
def test_an_engine_answers_the_same_with_and_without_drafts_alone_and_in_company(tmp_path):
    path = tiny_model.make(tmp_path / "model", **SIZES | dict(num_hidden_layers=1))
    config = EngineConfig(model=str(path), dtype="bf16", bit_exact="on", max_model_len=64, max_num_seqs=2, page_size=16,
                          max_num_batched_tokens=8, num_speculative_tokens=3, cache_dir=str(tmp_path), compile_cache=False)
    none, lines = np.full(8, -1, np.int32), []
    hooks = Hooks(knobs={"answer": none}, propose=_scripted, interpret=INTERPRET)
    engine = Harness(Engine.load(config, lines.append, hooks))
    try:
        assert engine.engine.exact and any(line.startswith("kernels: ") for line in lines)
        params = dict(max_tokens=8, logprobs=0, ignore_eos=True)
        for kind in (dict(temperature=0.0), dict(temperature=1.0, seed=5)):
            engine.engine._device.turn({"answer": none})
            off = engine.ask(TOKENS[:9], **params, **kind)
            script = np.array(off.ids, np.int32)
            script[5] = (script[5] + 1) % tiny_model.VOCAB  # one that is refused
            engine.engine._device.turn({"answer": script})
            alone = engine.ask(TOKENS[:9], **params, **kind)
            mate = (TOKENS[3:10], params | dict(temperature=0.7, seed=1, logprobs=2))
            crowd = engine.ask_all([(TOKENS[:9], params | kind), mate])
            assert off.record() == alone.record() == crowd[0].record()
            assert 0 < alone.stats.num_accepted_draft_tokens < alone.stats.num_draft_tokens and not off.stats.num_draft_tokens
        assert engine.engine.stats().compiles_after_warmup == 0
    finally:
        engine.engine.close()
