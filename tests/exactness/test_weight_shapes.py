"""A row's products have the same bits in tiles of every height, for each weight shape of the default model."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from radiance_jax.engine.choices import CPU_HEAD_TILE, CPU_ONE_TILE, CPU_TILES
from radiance_jax.models.config import parse_config
from radiance_jax.models.layers import product
from radiance_jax.models.llama import param_specs
from radiance_jax.models.partition import partition
from radiance_jax.models.rows import Tiles

DEFAULT = {  # SmolLM2-135M-Instruct
    "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
    "num_key_value_heads": 3, "num_hidden_layers": 1, "vocab_size": 49152, "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5}
ROWS = 64
HEIGHTS = (CPU_TILES, ((CPU_ONE_TILE, 1),), ((CPU_HEAD_TILE, 1),))


def shapes(tp: int) -> set[tuple[int, int]]:
    """[out, in] of every product of one rank."""
    settings = parse_config(DEFAULT)
    specs = param_specs(settings, partition(settings, tp), np.float32)
    local = {spec.shape[1:] for name, spec in specs["layers"][0].items() if len(spec.shape) == 3}
    return local | {(specs["embed"].shape[0] // tp, specs["embed"].shape[1])}


def check(tp: int, dtype) -> None:
    chance = np.random.default_rng(tp)
    for out, width in sorted(shapes(tp)):
        weight = jnp.asarray(chance.standard_normal((out, width), np.float32) * width**-0.5, dtype)
        mine = chance.standard_normal(width, np.float32)

        @partial(jax.jit, static_argnums=3)
        def run(x, weight, rows, heights):
            tiles = Tiles(heights, rows)
            return tiles.walk(lambda tile, y: tiles.put(y, product(tiles.take(x, tile), weight), tile),
                              jnp.zeros((ROWS, weight.shape[0]), jnp.float32))

        seen = set()
        for heights in dict.fromkeys(HEIGHTS):
            for rows in (1, 2, 3, 8, 9, 33, 45, 64):
                x = chance.standard_normal((ROWS, width), np.float32) * 3
                places = [0, rows // 2, rows - 1]
                x[places] = mine
                made = np.asarray(run(jnp.asarray(x, dtype), weight, rows, heights))
                seen |= {made[place].tobytes() for place in places}
        assert len(seen) == 1, f"[{out}, {width}] {dtype.__name__} at tp {tp}"


@pytest.mark.parametrize("dtype", (jnp.bfloat16, pytest.param(jnp.float32, marks=pytest.mark.slow)), ids=("bf16", "f32"))
def test_a_row_is_its_own_in_every_product_of_the_default_model(dtype):
    check(1, dtype)


@pytest.mark.long
@pytest.mark.parametrize("dtype", (jnp.bfloat16, jnp.float32), ids=("bf16", "f32"))
@pytest.mark.parametrize("tp", (2, 3, 4, 8))
def test_a_row_is_its_own_in_every_product_of_a_rank(tp, dtype):
    check(tp, dtype)
