"""A drafter from its folder into a container, and from there into an engine that drafts with it."""

import json
from unittest.mock import patch

import numpy as np
import pytest
from safetensors.numpy import save_file

from radiance_jax.config import EngineConfig
from radiance_jax.container.conversion import convert
from radiance_jax.engine.engine import Engine
from radiance_jax.errors import ModelError, UserError
from radiance_jax.models.draft import registry
from tests.engine.conftest import Harness
from tests.exactness import neural, targets
from tests.spec.toy_drafter import Toy

DEPTH, TOKENS = 7, 33


class Enough(Exception):
    """Start-up has said what the test wants to hear."""


@pytest.fixture(scope="module", autouse=True)
def the_toys_line_in_the_registry():
    with patch.dict(registry.FAMILIES, {"toy": (Toy, ("ToyDrafter",))}), \
            patch.dict(registry.ARCHITECTURES, {"ToyDrafter": "toy"}):
        yield


@pytest.fixture(scope="module")
def container(tmp_path_factory):
    """The script target with a toy that knows the script."""
    folder = tmp_path_factory.mktemp("draft")
    target, drafter = targets.make(folder / "target", "untied", scripted=True), folder / "toy"
    drafter.mkdir()
    (drafter / "config.json").write_text(json.dumps(neural.toy_config(block=DEPTH)))
    tensors = neural.toy("observed")
    save_file({name: np.ascontiguousarray(tensors(name)) for name in ("carry.weight", "read.weight", "norm.weight")},
              drafter / "model.safetensors")
    return convert(target, folder / "model.rad", "f32", draft_path=drafter).path


def start(container, lines, until=None, **options) -> Engine:
    def log(line: str) -> None:
        lines.append(line)
        if until is not None and line.startswith(until):
            raise Enough

    config = EngineConfig(model=str(container), dtype="f32", max_model_len=128, max_num_seqs=2, max_num_batched_tokens=32,
                          page_size=16, compile_cache=False, row_tile=4, **options)
    return Engine.load(config, log)


def test_a_container_drafts_with_the_drafter_that_was_merged_into_it(container):
    lines = []
    engine = start(container, lines, draft_window="fixed")
    try:
        one = Harness(engine)
        drafted = one.ask((5, 9, 30), max_tokens=TOKENS, temperature=0.0, ignore_eos=True, logprobs=3)
        alone = one.ask((5, 9, 30), max_tokens=TOKENS, temperature=0.0, ignore_eos=True, logprobs=3, max_draft_tokens=0)
        assert drafted.record() == alone.record()
        assert drafted.ids == tuple(targets.script(30, TOKENS))
        assert drafted.stats.acceptance_histogram == {DEPTH: (TOKENS - 1) // (DEPTH + 1)}
        assert engine.stats().by_proposer == {"neural": (28, 28)}
    finally:
        engine.close()
    text = "\n".join(lines)
    assert f"drafting: Toy, {DEPTH} tokens of at most {DEPTH}; it reads the target behind layers 1 and looks at" in text
    assert "prompt lookup" in text and "its bits are those of a server without drafts" in text and "drafter's keys" in text


@pytest.mark.slow
def test_so_it_does_where_a_program_serves_one_number_of_rows(container):
    """As on a GPU: every slot proposes and every row is observed at once, without a loop or a branch."""
    engine = start(container, [], bit_exact="off", draft_window="fixed", spec_ngram=0)
    try:
        asked = [((5, 9, 30 + i) * 7, {"max_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True}) for i in range(5)]
        for (prompt, _), answer in zip(asked, Harness(engine).ask_all(asked), strict=True):
            assert answer.ids == tuple(targets.script(prompt[-1], TOKENS))
            assert answer.stats.acceptance_histogram == {DEPTH: (TOKENS - 1) // (DEPTH + 1)}
    finally:
        engine.close()


def test_without_drafting_the_drafter_is_not_loaded(container):
    lines = []
    with pytest.raises(Enough):
        start(container, lines, until="bit-exact", num_speculative_tokens=0)
    assert "drafting: off; Toy, the drafter in the model's file, is not loaded" in lines


def test_more_drafts_than_a_proposal_holds_are_refused(container):
    with pytest.raises(UserError, match=f"must be at most {DEPTH}, which is what Toy proposes at once; got {DEPTH + 1}"):
        start(container, [], num_speculative_tokens=DEPTH + 1)


def test_a_drafter_of_another_target_is_refused_when_a_container_is_opened(container, monkeypatch):
    from radiance_jax.container import rad

    opened = rad.open_rad(container)
    other = opened.draft_config | {"num_target_layers": 9, "target_layer_ids": [1]}
    monkeypatch.setattr(rad.RadFile, "draft_config", property(lambda self: other, lambda self, value: None), raising=False)
    with pytest.raises(ModelError, match="the number of layers it counts must be the target's 2; got 9"):
        start(container, [])
