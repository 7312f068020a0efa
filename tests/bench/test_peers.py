"""`bench peers` with a process that speaks as transformers' does, a server that is not ours, and an engine of fixed answers."""

import importlib.util
import json
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from radiance_jax.bench import __main__ as bench
from radiance_jax.bench import engines, measure, peer_answers, peers
from radiance_jax.bench.figures import Answer as OurAnswer
from radiance_jax.bench.figures import Pass
from radiance_jax.bench.peer_answers import Answer, Transformers, TransformersMode
from radiance_jax.bench.prompt_sets import Prompt
from radiance_jax.engine.request import RequestStats
from radiance_jax.errors import RadianceError
from tests import tiny_model
from tests.bench.test_http_bench import Other, other  # noqa: F401 - a fixture

PROCESS = """
import json, sys
print(json.dumps({"transformers": "0", "argv": sys.argv[1:]}), flush=True)
for line in sys.stdin:
    task = json.loads(line)
    if task["mode"] == "dynamic":
        sys.exit("out of memory, say")
    first = 2 if task["mode"] == "lookup" else 1
    if task["mode"] == "gone":
        break
    answers = [{"ids": [ids[0]] * task["max_tokens"], "seconds": 0.4, "first_s": 0.1, "first_tokens": first}
               for ids in task["prompts"]]
    print(json.dumps({"answers": answers}), flush=True)
"""


@pytest.fixture
def process(tmp_path, monkeypatch):
    script = tmp_path / "peer_transformers.py"
    script.write_text(PROCESS)
    monkeypatch.setattr(peer_answers, "TRANSFORMERS", script)


@pytest.fixture
def engine(monkeypatch):
    """Our two modes answer a prompt with its first id; `off` takes twice as long."""
    def serve(engine, prompts, params, *, live, round):
        assert live == 1 and params.logprobs is None and params.ignore_eos
        stats = [RequestStats(arrival=0.0, first_token=0.1 * engine.slow, finished=0.2 * engine.slow) for _ in prompts]
        return Pass(round=round, answers=tuple(
            OurAnswer(prompt=each.id, ids=(each.ids[0],) * params.max_tokens, bits=(), stats=stat)
            for each, stat in zip(prompts, stats, strict=True)))

    @contextmanager
    def modes(config, _, log):
        tokenizer = SimpleNamespace(decode=lambda ids: "".join(f"t{i}" for i in range(len(ids))))
        yield [SimpleNamespace(name=name, facts={"mode": name}, max_draft_tokens=None, window=None,
                               engine=SimpleNamespace(slow=slow, tokenizer=tokenizer)) for name, slow in (("off", 2), ("on", 1))]

    monkeypatch.setattr(measure, "serve", serve)
    monkeypatch.setattr(engines, "modes", modes)
    monkeypatch.setattr(engines, "prepare", lambda config, prompts: (
        [Prompt(set=each.set, id=each.id, text=each.text, ids=(len(each.text), 7)) for each in prompts], config))


@pytest.fixture
def flags(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"prompt": "three"}\n')
    return ["peers", str(tiny_model.make(tmp_path / "model")), "--prompts", str(prompts), "--rounds", "2", "--max-tokens", "9"]


def test_everyone_answers_the_same_prompts_in_turn(process, engine, other, flags, tmp_path, capsys):  # noqa: F811
    out = tmp_path / "peers.json"
    assert bench.main([*flags, "--peers", "static,lookup", "--url", f"theirs={other}", "--api-key=secret",
                       "--out", str(out)]) == 0
    result, shown = json.loads(out.read_text()), capsys.readouterr()
    assert "secret" not in out.read_text() and "secret" not in shown.err
    names = ["radiance_jax on", "radiance_jax off", "transformers static", "transformers lookup", "theirs"]
    cells = {cell["who"]: cell for cell in result["cells"]}
    assert list(cells) == names == list(result["who"])
    assert result["who"]["theirs"] == {"url": other, "model": "other"}
    assert result["who"]["transformers static"]["argv"][-6:] == ["--dtype", "bf16", "--device", "auto", "--lookup-tokens", "10"]
    for cell in cells.values():
        assert (cell["answers"], cell["tokens"], cell["agreement"]["equal"]) == (4, 36, 4)
    assert cells["radiance_jax on"]["overall_tokens_per_s"] == pytest.approx(9 / 0.2)
    assert cells["radiance_jax on"]["decode_tokens_per_s"] == pytest.approx(8 / 0.1)
    assert cells["transformers static"]["decode_tokens_per_s"] == pytest.approx(8 / 0.3, rel=1e-4)
    assert cells["transformers lookup"]["decode_tokens_per_s"] == pytest.approx(7 / 0.3, rel=1e-4)
    ratios = [cells[name]["longer_than_first"]["ratio"] for name in names[:4]]
    assert ratios == pytest.approx([1, 2, 2, 2])
    assert all(name in shown.out for name in names) and "4/4" in shown.out


def test_a_peer_that_dies_is_named_with_its_last_words(process, engine, flags, capsys):
    assert bench.main([*flags, "--peers", "dynamic"]) == 1
    assert "ended with status 1:\nout of memory, say" in capsys.readouterr().err


def test_a_peer_that_ended_between_two_tasks_is_still_closed(process):
    made = Transformers(sys.executable, "m")
    for _ in range(2):  # the second task finds nobody to read it
        with pytest.raises(RadianceError, match="ended with status 0"):
            made.ask({"mode": "gone", "prompts": [[1]]})
    made.close()


def test_a_file_that_is_no_program_is_refused(process, engine, flags, tmp_path, capsys):
    (tmp_path / "python").write_text("")
    assert bench.main([*flags, "--peers", "static", "--peer-python", str(tmp_path / "python")]) == 2
    assert "peer_python must be a Python that can be started" in capsys.readouterr().err


def test_a_server_that_ends_early_has_no_ratio(engine, other, flags, monkeypatch, capsys):  # noqa: F811
    def short(self, kind, raw):
        usage = json.dumps({"choices": [], "usage": {"completion_tokens": 3}})
        whole = raw.replace(b"data: [DONE]", f"data: {usage}\n\ndata: [DONE]".encode())
        answer(self, kind, whole)

    answer = Other.answer
    monkeypatch.setattr(Other, "answer", short)
    assert bench.main([*flags, "--url", f"theirs={other}"]) == 1
    assert "theirs gave 3 tokens on prompt 1 where" in (said := capsys.readouterr().err) and "ignore_eos" in said


def test_a_server_without_a_model_is_refused(engine, other, flags, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr(Other, "do_GET", lambda self: self.answer("application/json", b'{"data": []}'))
    for command in (flags, ["http"]):
        assert bench.main([*command, "--url", f"theirs={other}"]) == 2
        assert "must name a model" in capsys.readouterr().err


def test_other_answers_are_counted(process):
    tokenizer = SimpleNamespace(decode=lambda ids: "text")
    first = [Answer(prompt="a", tokens=3, seconds=1, first_seconds=0.5, ids=(1, 2, 3)),
             Answer(prompt="b", tokens=3, seconds=1, first_seconds=0.5, ids=(1, 2, 3))]
    others = [Answer(prompt="a", tokens=3, seconds=1, first_seconds=0.5, ids=(1, 2, 3)),
              Answer(prompt="b", tokens=3, seconds=1, first_seconds=0.5, ids=(1, 9, 3))]
    assert peers.agreement(first, others, tokenizer) == {"equal": 1, "of": 2, "mean_tokens_before_the_first_difference": 2.0}
    texts = [Answer(prompt=name, tokens=3, seconds=1, first_seconds=0.5, text=text)
             for name, text in (("a", "text"), ("b", "other"))]
    assert peers.agreement(first, texts, tokenizer) == {"equal": 1, "of": 2, "mean_tokens_before_the_first_difference": None}


def test_a_process_serves_several_modes_and_ends(process, tmp_path):
    made = Transformers(sys.executable, "m")
    prompt = Prompt(set="s", id="1", ids=(5, 6))
    for mode, first in (("static", 1), ("lookup", 2)):
        answer = TransformersMode(made, mode).answer([prompt], 4)[0]
        assert (answer.ids, answer.first_tokens, answer.prompt) == ((5, 5, 5, 5), first, "1")
    made.close()


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="this Python has torch")
def test_a_python_without_torch_is_refused_with_what_to_do(engine, flags, capsys):
    assert bench.main([*flags, "--peers", "static"]) == 1
    said = capsys.readouterr().err
    assert "must have torch, transformers and safetensors" in said and "--peer-python" in said


@pytest.mark.parametrize(("more", "says"), [
    ([], "--peers static,lookup"), (["--peers", "statik"], "did you mean 'static'"), (["--url", "x"], "must read like http://"),
    (["--peers", "static", "--peer-python", "/nowhere/python"], "no such file: /nowhere/python"),
    (["--peers", "static", "--modes", "of"], "did you mean 'off'"), (["--url", "http://127.0.0.1:9"], "must answer with JSON")])
def test_wrong_flags_are_refused_in_one_line(flags, capsys, more, says):
    assert bench.main([*flags, *more]) == 2
    assert says in next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))


def test_token_ids_are_no_prompts_for_a_server(flags, tmp_path, capsys):
    (tmp_path / "prompts.jsonl").write_text('{"prompt_ids": [1, 2]}\n')
    assert bench.main([*flags, "--url", "http://127.0.0.1:9"]) == 2
    assert "must hold user messages" in capsys.readouterr().err
