"""Qwen2 and Qwen3 through the whole engine: drafting changes no bit of them either."""

import pytest

from radiance_jax.config import EngineConfig
from radiance_jax.engine.engine import Engine
from tests import tiny_model
from tests.engine.conftest import Harness
from tests.engine.test_exact import GREEDY, SEEDED, prompt


@pytest.mark.parametrize(("family", "tp", "tile"), [  # tiles of one height compile sooner
    ("Qwen3", 1, 4), pytest.param("Qwen2", 4, None, marks=pytest.mark.slow), pytest.param("Qwen3", 4, None, marks=pytest.mark.slow)])
def test_drafting_changes_no_bit_of_a_family(tmp_path, family, tp, tile):
    folder = tiny_model.make(tmp_path / "model", architectures=[f"{family}ForCausalLM"], model_type=family.lower())
    one = Harness(Engine.load(EngineConfig(
        model=str(folder), cache_dir=str(tmp_path), dtype="f32", max_model_len=128, max_num_seqs=2, page_size=16,
        max_num_batched_tokens=16, num_speculative_tokens=7, draft_window="fixed", mesh=f"tp={tp}", row_tile=tile), lambda line: None))
    try:
        accepted = 0
        for params in (GREEDY, SEEDED):
            on, off = one.ask(prompt(1), **params), one.ask(prompt(1), **params, max_draft_tokens=0)
            assert on.record() == off.record()
            accepted += on.stats.num_accepted_draft_tokens
        assert accepted > 0
    finally:
        one.engine.close()
