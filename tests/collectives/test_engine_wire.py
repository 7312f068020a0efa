"""An engine on a lossy wire: it says so, answers, and its logprobs are near those of the exact one, not equal."""

import numpy as np
import pytest

from radiance_jax.config import EngineConfig
from radiance_jax.llm import LLM
from tests import tiny_model

OPTIONS = dict(dtype="bf16", max_model_len=64, max_num_seqs=1, max_num_batched_tokens=2, page_size=16, compile_cache=False)


def scores(model: str, lines: list[str], **options) -> np.ndarray:
    """Logprobs of a prompt's own tokens."""
    with LLM(model, log=lines.append, **OPTIONS, **options) as llm:
        answer = llm.generate([[5, 9, 70, 3, 8, 21, 33, 40]], llm.default_params(
            temperature=0.0, max_tokens=2, prompt_logprobs=0, ignore_eos=True))[0]
        assert len(answer.outputs[0].token_ids) == 2
        return np.array([each.logprob for each in answer.prompt_logprobs[1:]])


@pytest.mark.long
@pytest.mark.parametrize(("tp", "form"), [(2, "wht6"), (3, "tiered"), (4, "tiered")])
def test_an_engine_on_a_lossy_wire(tmp_path, tp, form):
    model, lossy_says, exact_says = str(tiny_model.make(tmp_path / "tiny")), [], []
    lossy = scores(model, lossy_says, mesh=f"tp={tp}", tp_wire="wht6", tp_wire_min_kb=0)
    exact = scores(model, exact_says, mesh=f"tp={tp}", bit_exact="off")
    assert 0 < np.abs(lossy - exact).max() < 0.5
    assert any(line.startswith("bit-exact: OFF") and line.endswith("(a lossy wire)") for line in lossy_says)
    assert any(f"wire: wht6 ({form}" in line and "on and off may differ" in line for line in lossy_says)
    assert any(line.startswith("wire: exact; sums in rank order") for line in exact_says)


def test_the_configuration_names_the_wire():
    shown = " ".join(EngineConfig(mesh="tp=2", tp_wire="wht6").describe().split())
    assert "tp_wire=wht6 tp_wire_min_kb=128" in shown
