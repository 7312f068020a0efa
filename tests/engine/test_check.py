"""The start-up check of tile heights, and how rows are counted in tiles."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from radiance_jax.config import EngineConfig
from radiance_jax.engine import build as build_module
from radiance_jax.engine.check import heights_agree
from radiance_jax.engine.choices import CPU_ONE_TILE, CPU_TILES, choose
from radiance_jax.errors import UserError
from radiance_jax.models.layers import rms_norm
from radiance_jax.models.rows import Tiles, rows_computed


class Machine:
    """Scores that depend on the tokens alone, or also on the height of the tiles by one last bit."""

    def __init__(self, wrong_height: int | None = None):
        self.wrong_height = wrong_height
        self.asked: list[list[int]] = []

    def score(self, tokens: list[int], chunks: list[int]) -> np.ndarray:
        self.asked.append(chunks)
        assert sum(chunks) == len(tokens)
        scores = np.array(tokens, np.float32) / 7
        if chunks[0] == self.wrong_height:
            scores[-1] = np.nextafter(scores[-1], np.float32(np.inf))
        return scores


def test_machines_that_agree_pass_and_every_height_is_tried():
    machine = Machine()
    assert heights_agree(machine, 100, 64, CPU_TILES)
    assert [chunks[0] for chunks in machine.asked] == [40, 32, 8, 2, 1]
    assert len(set(machine.asked[-1])) > 5, "rows change their places"


@pytest.mark.parametrize("height", (40, 32, 8, 2, 1))
def test_one_bit_in_one_row_at_one_height_is_found(height):
    assert not heights_agree(Machine(height), 100, 64, CPU_TILES)


def checked(tiles, wrong_height, **settings):
    """The configuration to start again with, and what was said."""
    config, said = EngineConfig(**settings), []
    chosen = replace(choose(config, "cpu"), tiles=tiles)
    machine = Machine(wrong_height)
    machine.capacity = SimpleNamespace(length=65, rows=64)
    return build_module._checked(config, chosen, machine, 100, (64,), None, said.append), said[-1]


def test_heights_that_differ_are_left_for_one_and_one_that_differs_in_itself_for_none():
    again, said = checked(CPU_TILES, 8)
    assert again.row_tile == CPU_ONE_TILE and again.bit_exact == "auto" and "do NOT give the same bits" in said
    again, said = checked(((4, 1),), 1, row_tile=4)
    assert (again.row_tile, again.bit_exact) == (None, "off") and "without bit-exactness" in said
    with pytest.raises(UserError, match="tiles of 4 rows do not give the same bits"):
        checked(((4, 1),), 1, row_tile=4, bit_exact="on")
    again, said = checked(((4, 1),), None, row_tile=4)
    assert again is None and "has the same bits in tiles of 4 rows" in said


@jax.jit
def marks_of(rows):
    tiles = Tiles(CPU_TILES, rows)
    return tiles.walk(lambda tile, marks: tiles.put(marks, tiles.take(marks, tile) + 1, tile), jnp.zeros(64, jnp.int32))


def test_every_row_is_in_one_tile_and_no_tile_ends_behind_the_last_row_of_a_step():
    for rows in range(65):
        done = rows_computed(rows, CPU_TILES)
        assert rows <= done <= 64
        assert np.asarray(marks_of(jnp.int32(rows))).tolist() == [1] * done + [0] * (64 - done)


@pytest.mark.parametrize("width", (64, 576, 2048))
def test_a_norm_gives_a_row_the_same_bits_in_a_tile_of_any_height(width):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((64, width)), jnp.float32)
    weight = jnp.asarray(rng.standard_normal(width), jnp.float32)

    def through(height: int) -> np.ndarray:
        tiles = Tiles(((height, 1),), jnp.int32(64))
        walk = lambda x, w: tiles.walk(lambda t, y: tiles.put(y, rms_norm(tiles.take(x, t), w, 1e-5), t), jnp.zeros_like(x))  # noqa: E731
        return np.asarray(jax.jit(walk)(x, weight)).view(np.uint32)

    assert all(np.array_equal(through(32), through(height)) for height in (2, 4, 8))
