"""The command lines: what they refuse, what they show, and one run of each on a tiny model."""

import itertools
import json
import sys
from types import SimpleNamespace

import pytest

from radiance_jax.bench import __main__ as bench
from radiance_jax.bench import measure as measuring
from radiance_jax.bench import record, speed, speed_report, tile
from radiance_jax.bench.config import TileConfig
from radiance_jax.bench.figures import Answer, Pass
from radiance_jax.engine.choices import CPU_TILES
from radiance_jax.engine.state import DECODE, PREFILL, Capacity
from tests import tiny_model

ENGINE = ["--dtype", "f32", "--max-num-batched-tokens", "2", "--max-num-seqs", "2", "--page-size", "16",
          "--row-tile", "2"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(tiny_model.make(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return ["--cache-dir", str(tmp_path_factory.mktemp("cache"))]


@pytest.mark.parametrize(("argv", "says"), [
    ([], "name a benchmark"), (["sped"], "unknown benchmark 'sped' (did you mean 'speed'?)"),
    (["speed", "--mode", "on"], "did you mean '--modes'"), (["speed", "--modes", "on,of"], "got 'of' (did you mean 'off'?)"),
    (["speed", "--modes", "on,on"], "none twice"), (["speed", "--sequences", "1,x"], "sequences must be whole numbers"),
    (["speed", "--sequences", "0"], "at least 1"), (["speed", "--sets", "copi"], "did you mean 'copy'"),
    (["speed", "--fast-dtypes", "fp8"], "fast_dtypes are bf16, f32"), (["speed", "--max-tokens", "1"], "at least 2"),
    (["speed", "--peer-models", "a.gguf"], "go together"), (["speed", "--num-speculative-tokens", "0"], "off-fast,off"),
    (["speed", "--peer-models", "a.gguf", "--peer-llama-cpp", "/nowhere/python"], "no such file: /nowhere/python"),
    (["speed", "--prompts", "/nowhere"], "cannot read"), (["speed", "--out", "/nowhere/x.json"], "folder that can be written"),
    (["wires", "--mesh", "tp=1"], "at least 2 devices"), (["wires", "--forms", "psum,twoshot"], "did you mean 'two-shot'"),
    (["wires", "--chain", "8,4"], "the smaller first"), (["wires", "--sizes", "0"], "at least 1"),
    (["wires", "--picture", "/nowhere/x.png"], "folder that can be written"), (["perplexity", "--widths", "2,8"], "got 8"),
    (["tile", "--tiles", "two"], "tiles must be whole numbers"), (["tile", "--tile-dtypes", "f16"], "tile_dtypes are")])
def test_wrong_commands_are_refused_in_one_line(capsys, argv, says):
    assert bench.main(argv) == 2
    assert says in next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))


def test_help_lists_the_benchmarks(capsys):
    assert bench.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in bench.BENCHMARKS)


def test_each_mode_follows_each_other_equally_often():
    assert ["".join(speed.turn("abc", i)) for i in range(7)] == ["abc", "cba", "bca", "acb", "cab", "bac", "abc"]
    for modes in ("ab", "abc", "abcd"):
        turns = ["".join(speed.turn(modes, i)) for i in range(2 * len(modes))]
        for x, y in itertools.combinations(modes, 2):
            assert sum(each.index(x) < each.index(y) for each in turns) == len(modes)
            assert sum(x + y in each for each in turns) == sum(y + x in each for each in turns)
        assert all(sum(each[0] == x for each in turns) == 2 for x in modes)
    assert speed.turn([], 3) == []


@pytest.mark.parametrize("modes", ["off,on,fixed:2", pytest.param("off-fast,off,on,fixed:2", marks=pytest.mark.slow)])
def test_speed_measures_every_cell_and_keeps_bits(tiny, cache, tmp_path, capsys, modes):
    own = tmp_path / "own.jsonl"
    own.write_text("".join(json.dumps({"prompt_ids": [5 + i, 6, 7, 5 + i, 6, 7, 5 + i]}) + "\n" for i in range(3)))
    out = tmp_path / "speed.json"
    argv = [tiny, "--prompts", str(own), "--sequences", "1,2", "--rounds", "2", "--max-tokens", "12", "--fast-dtypes", "f32",
            "--modes", modes, "--out", str(out), "--trace-out", str(tmp_path / "traces.jsonl"), "--peer-llama-cpp", sys.executable,
            "--peer-models", tiny + "/config.json", *ENGINE, *cache]
    speed_peer = {"decode_tokens_per_s": 5.0, "overall_tokens_per_s": 4.0, "cpu_share": 0.5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("radiance_jax.bench.llama_cpp.LlamaCpp.run", lambda *_: {"model": "m.gguf", **speed_peer})
        assert bench.main(["speed", *argv]) == 0
    table, fast = capsys.readouterr().out, ["off-fast f32"] if "fast" in modes else []
    assert all(each in table for each in fast) and "all equal (bit-exact: on)" in table and "(busy machine)" in table
    result = json.loads(out.read_text())
    assert result["bit_exact"] and not result["differences"] and len(result["peers"]) == 4
    assert result["command"].startswith("python -m radiance_jax.bench speed ") and result["versions"]["jax"]
    assert [(each["set"], each["live"]) for each in result["cells"]] == [("own", 1), ("own", 2)]
    for cell in result["cells"]:
        assert list(cell["modes"]) == [*fast, "off", "on", "fixed:2"] and cell["fastest_off"] in [*fast, "off"]
        for name, mode in cell["modes"].items():
            identity = mode["identity"]
            assert identity["completion_tokens"] == mode["tokens"] == 3 * 2 * 12
            assert identity["committed"] + identity["requests"] - identity["cut"] == identity["completion_tokens"]
            assert 0 <= identity["cut"] <= identity["requests"]
            assert mode["draft_tokens"] > 0 if name == "fixed:2" else name == "on" or not mode["draft_tokens"]
        assert list(cell["ratios"]) == [f"on/{each}" for each in [*fast, "off", "fixed:2"]]
        rounds = cell["ratios"]["on/off"]
        assert len(rounds["overall_by_round"]) == 2
        assert rounds["overall_ratio_ci95"][0] <= rounds["overall_ratio"] <= rounds["overall_ratio_ci95"][1]
        assert all(cell["ids_as_off_fast"][each]["prompts"] == 3 for each in fast)


    capsys.readouterr()
    assert bench.main(["policy", "--traces", str(tmp_path / "traces.jsonl"), "--sequences", "1", "--depth", "3"]) == 0
    assert "Policies, prices: recorded" in capsys.readouterr().out


def test_a_broken_promise_is_status_1_and_names_the_prompt(tiny, cache, tmp_path, capsys, monkeypatch):
    out, true = tmp_path / "speed.json", measuring.serve

    def serve(engine, prompts, params, **options) -> Pass:
        done = true(engine, prompts, params, **options)
        if params.max_draft_tokens == 0:
            return done
        return Pass(round=done.round, answers=tuple(Answer(
            prompt=each.prompt, ids=(*each.ids[:-1], each.ids[-1] + (each.prompt == "Spec-Bench/91")), bits=each.bits,
            stats=each.stats) for each in done.answers))

    monkeypatch.setattr(measuring, "serve", serve)
    argv = [tiny, "--sets", "ordinary", "--limit", "2", "--sequences", "1", "--rounds", "1", "--max-tokens", "4",
            "--modes", "off,on", "--out", str(out), *ENGINE, *cache]
    assert bench.main(["speed", *argv]) == 1
    assert "bit-exact was not kept: prompt Spec-Bench/91 of ordinary: ids in on, 1 live" in capsys.readouterr().err
    assert [each["prompt"] for each in json.loads(out.read_text())["differences"]] == ["Spec-Bench/91"]


def test_too_few_prompts_and_too_long_ones_are_refused(tiny, cache, capsys):
    assert bench.main(["speed", tiny, "--limit", "2", *ENGINE, *cache]) == 2
    assert "sequences must be at most the prompts of every set; got 8, and 2 in 'ordinary'" in capsys.readouterr().err
    assert bench.main(["speed", tiny, "--max-tokens", "512", *ENGINE, *cache]) == 2
    assert "must fit the context of 512 tokens" in capsys.readouterr().err


TILE = ["--tiles", "4,served", "--tile-dtypes", "f32", "--fast-dtypes", "f32", "--rows", "1,2", "--context", "40", "--steps", "2",
        "--rounds", "2", "--max-num-batched-tokens", "16", "--page-size", "16"]


@pytest.mark.slow
def test_tile_measures_every_engine(tiny, cache, tmp_path, capsys):
    out = tmp_path / "tile.json"
    assert bench.main(["tile", tiny, "--out", str(out), *TILE, *cache]) == 0
    assert "f32, tile 4" in capsys.readouterr().out
    exact, served, fast = json.loads(out.read_text())["steps"]
    assert [(each["row_tile"], each["bit_exact"]) for each in (exact, served, fast)] == [(4, True), (None, True), (None, False)]
    assert [len(each["heights"]) for each in (exact, served, fast)] == [1, len(CPU_TILES), 0]
    for each in (exact, served, fast):
        assert set(each["decode_ms"]) == {"1", "2"} and each["prefill_tokens_per_s"] > 0
        assert each["over_fastest_off"]["1"] == pytest.approx(each["over_one_row"]["1"], rel=1e-3)
        assert each["compiles_after_warmup"] == 0
    assert fast["over_fastest_off"] == {"1": 1.0, "2": 1.0}


class FakeDevice:
    """Keeps the plans it is sent, as (mode, chunk, first, last) of each entry."""

    def __init__(self):
        self.admitted, self.plans = [], []

    def admit(self, sequence):
        self.admitted.append(sequence)

    def send(self, plan):
        self.plans.append([(each.slot, each.mode, each.chunk, each.first, each.last) for each in plan.entries])

    def read(self, pending):
        pass


def test_tile_prefills_whole_prompts_in_full_steps_then_decodes():
    device = FakeDevice()
    capacity = Capacity(slots=2, length=32, rows=16, pages=9, page_size=8, depth=0)
    subject = tile.Subject(name="s", dtype="f32", tile=4, exact=True, built=SimpleNamespace(
        device=device, capacity=capacity, guard=SimpleNamespace(count=0), tiles=((4, 1),)))
    tile.visit(subject, rows=2, context=20, steps=3)
    assert device.plans[:3] == [[(0, PREFILL, 16, 0, False)], [(0, PREFILL, 4, 16, True), (1, PREFILL, 12, 0, False)],
                                [(1, PREFILL, 8, 12, True)]]
    assert device.plans[3:] == [[(0, DECODE, 0, 0, False), (1, DECODE, 0, 0, False)]] * 4  # the first is not timed
    assert [each.pages for each in device.admitted] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    figures = tile.figures_of(subject)
    assert len(subject.decode[2]) == 3 and [tokens for tokens, _ in subject.prefill] == [16, 16]  # full steps alone
    assert figures["decode_ms"]["2"] >= figures["decode_least_ms"]["2"] > 0


def test_a_tile_is_compared_with_the_fastest_of_the_others():
    steps = [{"bit_exact": True, "decode_ms": {"1": 30.0, "8": 60.0}}, {"bit_exact": False, "decode_ms": {"1": 20.0, "8": 60.0}},
             {"bit_exact": False, "decode_ms": {"1": 15.0, "8": 80.0}}]
    tile.compare(steps)
    assert steps[0]["over_fastest_off"] == {"1": 2.0, "8": 1.0} and steps[0]["over_one_row"] == {"1": 2.0, "8": 4.0}


def test_tile_engines_differ_in_tile_and_dtype_alone():
    named = dict(tile.variants(TileConfig(tiles="2,4", tile_dtypes="bf16")))
    assert list(named) == ["bf16, tile 2", "bf16, tile 4", "bf16, not bit-exact", "f32, not bit-exact"]
    assert {each.max_model_len for each in named.values()} == {112} and {each.max_num_seqs for each in named.values()} == {16}


def test_tables_show_blanks_where_nothing_was_drafted():
    mode = {"decode_tokens_per_s": 1.0, "stream_tokens_per_s": 1.0, "overall_tokens_per_s": 1.0, "ttft_median_s": 0.0125,
            "tokens_per_verify": None, "accepted_per_draft_plus_1": None, "accepted_draft_tokens": 0, "draft_tokens": 0}
    cell = {"set": "s", "live": 1, "fastest_off": "off", "modes": {"off": mode}, "ratios": {}}
    assert speed_report.speed_rows([cell]) == [("s", "1", "off *", "1.0", "1.0", "1.0", "12", "", "", "")]
    assert speed_report.ratio_rows([cell]) == []


def test_records_name_no_folders_of_this_machine():
    assert record.command("p", ["/home/me/m.rad", "--out=/home/me/r.json", "--merge", "/a/b,c/d", "--url=A=http://h/v1"]) == (
        "p m.rad --out=r.json --merge b,c/d --url=A=http://h/v1")


def test_records_are_rounded_json(tmp_path):
    record.write(str(tmp_path / "r.json"), {"a": [1.23456789, (2, None)], "b": True})
    assert json.loads((tmp_path / "r.json").read_text()) == {"a": [1.23457, [2, None]], "b": True}
