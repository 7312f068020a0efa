"""`LLM`, `generate` and `serve` over the fake engine."""

import sys
import types

import pytest
from fake_engine import SECRET, FakeEngine

from radiance_jax import generate, serve
from radiance_jax.engine.request import SamplingParams
from radiance_jax.errors import ModelError, UserError
from radiance_jax.llm import LLM


@pytest.fixture
def engine(monkeypatch) -> FakeEngine:
    """What `Engine.load` returns in this test; `loaded_with` is the configuration it got."""
    fake = FakeEngine()

    class Engine:
        @classmethod
        def load(cls, config, log=print):
            if config.model == "missing.rad":
                raise ModelError("no such file: missing.rad")
            fake.loaded_with = config
            return fake

    module = types.ModuleType("radiance_jax.engine.engine")
    module.Engine = Engine
    monkeypatch.setitem(sys.modules, "radiance_jax.engine.engine", module)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    return fake


def test_generate_takes_every_prompt_form_and_keeps_order(engine):
    with LLM("m.rad", max_num_seqs=4) as llm:
        one = llm.generate("ab", SamplingParams(max_tokens=3))
        assert [each.outputs[0].text for each in one] == ["the"]
        assert (one[0].prompt, one[0].prompt_token_ids) == ("ab", [97, 98])
        assert one[0].outputs[0].token_ids == list(b"the") and one[0].outputs[0].finish_reason == "length"
        assert one[0].outputs[0].stats.completion_tokens == 3 and one[0].outputs[0].logprobs is None
        many = llm.generate([[97], [98, 99]], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=5)], n=2)
        assert [[output.text for output in each.outputs] for each in many] == [["t"] * 2, ["the q"] * 2]
        assert many[1].prompt is None and [output.index for output in many[1].outputs] == [0, 1]
    assert engine.closed and engine.loaded_with.max_num_seqs == 4
    assert [choice for *_, choice in engine.submitted] == [0, 0, 1, 0, 1]


def test_chat_renders_one_conversation_or_many(engine):
    llm = LLM()
    talk = [{"role": "user", "content": "x"}]
    params = SamplingParams(max_tokens=2, logprobs=1)
    assert llm.chat(talk, params)[0].prompt == "<user>x<assistant>"
    two = llm.chat([talk, talk], params, add_generation_prompt=False)
    assert [each.prompt for each in two] == ["<user>x"] * 2
    assert [each.token_id for each in two[0].outputs[0].logprobs] == list(b"th")


def test_prompt_logprobs_and_defaults(engine):
    llm = LLM()
    result = llm.generate("abc", llm.default_params(max_tokens=1, prompt_logprobs=0))[0]
    assert [each and each.token_id for each in result.prompt_logprobs] == [None, 98, 99]
    assert engine.submitted[0][1].top_p == 0.9


def test_wrong_python_arguments_are_refused(engine):
    with pytest.raises(UserError, match="did you mean 'max_num_seqs'"):
        LLM(max_num_sequences=3)
    with pytest.raises(UserError, match="radiance_jax.convert"):
        LLM(draft_model="x")
    with pytest.raises(UserError, match="max_num_seqs must be a whole number"):
        LLM(max_num_seqs="3")
    llm = LLM()
    for call in (lambda: llm.generate([97, 98]), lambda: llm.generate([None]), lambda: llm.generate("a", n=0),
                 lambda: llm.generate(["a"], [SamplingParams()] * 2), lambda: llm.chat([])):
        with pytest.raises(UserError):
            call()


def test_a_refused_prompt_leaves_none_running(engine):
    llm = LLM()
    with pytest.raises(UserError, match="context"):
        llm.generate(["a", "b" * 600], SamplingParams(max_tokens=400))
    assert engine.aborted == {1}


def test_generate_prints_the_answer_alone_on_stdout(engine, capsys):
    assert generate.main(["m.rad", "--chat", "hi", "--system", "s", "--max-tokens", "9", "--stop", "zzz"]) == 0
    out, err = capsys.readouterr()
    assert out == "the quick\n"
    assert "9 tokens in" in err and "2.00 tokens per verify over 4 steps, 4 of 4 drafts accepted" in err
    prompt, params, _ = engine.submitted[0]
    assert bytes(prompt) == b"<system>s<user>hi<assistant>"
    assert (params.seed, params.top_p, params.stop) == (0, 0.9, ("zzz",))


def test_generate_runs_to_the_end_of_the_script(engine, capsys):
    assert generate.main(["--prompt", "a", "--max-tokens", "500", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == (SECRET * 40)[:500] + "\n"


@pytest.mark.parametrize(("arguments", "says"), [
    ([], "either --prompt or --chat"), (["--prompt", "a", "--chat", "b"], "either --prompt or --chat"),
    (["--prompt", "a", "--system", "b"], "--system goes with --chat"),
    (["missing.rad", "--prompt", "a"], "no such file"), (["--prompt", "a", "--max-tokens", "0"], "max_tokens must be"),
    (["--prompt", "a", "--top-p", "0"], "top_p must be"), (["--prompt", "a", "--max-tokens", "600"], "context is 512")])
def test_generate_says_what_is_wrong_in_one_line(engine, capsys, arguments, says):
    assert generate.main(arguments) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ") and says in last


def test_serve_refuses_before_it_listens(engine, capsys):
    assert serve.main(["--port", "99999"]) == 2
    assert "port must be a whole number from 0 to 65535" in capsys.readouterr().err


def test_a_model_without_a_chat_template_is_said_to_have_none(engine, capsys):
    engine.chat = None
    assert generate.main(["--chat", "hi"]) == 2
    assert "this model has none; use --prompt, or give one by --chat-template" in capsys.readouterr().err.splitlines()[-1]
    with pytest.raises(UserError, match="has none; use generate"):
        LLM().chat([{"role": "user", "content": "x"}])
