"""`bench exactness` in parts: what belongs together is added up, and nothing counts twice or unseen."""

import json
import os

import pytest

from radiance_jax.bench import __main__ as bench
from radiance_jax.bench import exactness_asks, exactness_driver, exactness_oracles, exactness_parts, record
from radiance_jax.bench.exactness_asks import Ask
from radiance_jax.errors import RadianceError, UserError


def outcome(axis="crowd", cases=4, differences=(), proven=True, seconds=1.0, **activity):
    return {"axis": axis, "circumstance": "8 at once", "cases": cases, "differences": list(differences),
            "activity": activity or {"accepted": 3}, "proven": proven, "seconds": seconds}


def part(name="1/2", axes=("crowd",), outcomes=None, **changes):
    return {"manifest": {"model": "m"}, "versions": {"jax": "1"},
            "configuration": {"prompts": 4, "part": name, "axes": ",".join(axes)},
            "asked": list(axes), "covered": {axis: [name] for axis in axes}, "unfinished": [], "missing": [], "complete": True,
            "axes": [outcome(axis) for axis in axes] if outcomes is None else outcomes, "bit_exact": True,
            "requests": [{"prompt": f"p{name}", "way": "greedy"}], "compiles_after_warmup": 0, "seconds": 2.0} | changes


def test_parts_of_an_axis_are_added_up():
    found = {"prompt": "p", "way": "greedy", "what": "ids", "first_at": 0}
    made = exactness_parts.merge([
        part("1/2", outcomes=[outcome(accepted=3, longest_run=5, seconds=1.0)]),
        part("2/2", outcomes=[outcome(accepted=4, longest_run=4, seconds=9.0, differences=[found], proven=False)], seconds=9.5)])
    assert made["axes"] == [outcome(cases=8, accepted=7, longest_run=5, seconds=9.0, differences=[found], proven=False)]
    assert made["complete"] and made["missing"] == [] and made["covered"] == {"crowd": ["1/2", "2/2"]}
    assert [each["prompt"] for each in made["requests"]] == ["p1/2", "p2/2"] and made["seconds"] == 9.5
    assert "part" not in made["configuration"]


def test_other_axes_stand_side_by_side_however_they_were_divided():
    soak = part("1/1", ("soak",))
    made = exactness_parts.merge([part("2/2"), soak, part("1/2")])
    assert made["complete"] and [each["axis"] for each in made["axes"]] == ["crowd", "soak"]
    again = exactness_parts.merge([exactness_parts.merge([part("1/2"), soak]), part("2/2")])
    assert again["axes"] == made["axes"] and again["covered"] == made["covered"] and again["complete"]


@pytest.mark.parametrize("records", [[part("1/2")], [part("1/2"), part("2/3")], [part("1/3"), part("3/3")]])
def test_a_missing_part_is_said(records):
    made = exactness_parts.merge(records)
    assert not made["complete"] and made["missing"] == ["crowd"]


def test_a_cut_axis_counts_only_until_it_is_run_again():
    cut = outcome("depth", differences=[{"prompt": "p"}]) | {"part": "2/2"}
    first = part("1/2", ("crowd", "depth"))
    second = part("2/2", ("crowd", "depth"), outcomes=[outcome()], covered={"crowd": ["2/2"]}, unfinished=[cut],
                  stopped="out of time")
    made = exactness_parts.merge([first, second])
    assert made["missing"] == ["depth"] and made["unfinished"] == [cut] and made["stopped"] == "out of time"
    whole = exactness_parts.merge([made, part("2/2", ("depth",))])
    assert whole["complete"] and whole["unfinished"] == [] and "stopped" not in whole
    assert sum(each["cases"] for each in whole["axes"]) == 16


@pytest.mark.parametrize(("other", "says"), [
    (part("1/2"), "part 1/2 of axis crowd is in two"), (part("2/2", manifest={"model": "n"}), "differ in model"),
    (part("2/2", versions={"jax": "2"}), "one versions; these differ in jax"),
    (part("2/2", configuration={"prompts": 8}), "one configuration; these differ in prompts")])
def test_what_does_not_belong_together_is_refused(other, says):
    with pytest.raises(UserError, match=says):
        exactness_parts.merge([part("1/2"), other])


def test_merge_from_the_command_line(tmp_path, capsys):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    record.write(str(paths[0]), part("1/2"))
    record.write(str(paths[1]), part("2/2"))
    out = tmp_path / "out.json"
    both = ",".join(map(str, paths))
    assert bench.main(["exactness", "--merge", both, "--out", str(out)]) == 0
    assert json.loads(out.read_text())["complete"] and "8 answers compared, 0 differ" in capsys.readouterr().out
    assert bench.main(["exactness", "--merge", str(paths[0])]) == 1
    assert "missing, in whole or in part: crowd" in capsys.readouterr().err
    record.write(str(paths[1]), part("2/2", outcomes=[outcome(differences=[{"prompt": "p"}])]))
    assert bench.main(["exactness", "--merge", both]) == 1
    paths[1].write_text("{}")
    assert bench.main(["exactness", "--merge", both]) == 2
    assert "keys are missing" in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "says"), [
    (["--part", "0/2"], "part must be like 3/8"), (["--part", "3/2"], "part must be"), (["--part", "x"], "part must be"),
    (["--axes", "soak"], "needs --soak N"), (["--processes", "2", "--part", "1/2"], "leave part and cores out"),
    (["--processes", "999", "--prompts", "999"], "at most the cores"), (["--cores", "9999"], "cores must be some of"),
    (["--limit-minutes", "-1"], "limit_minutes must be")])
def test_wrong_divisions_are_refused(capsys, argv, says):
    assert bench.main(["exactness", *argv]) == 2
    assert says in capsys.readouterr().err


def test_shares():
    assert [exactness_parts.share(10, (i, 4)) for i in (1, 2, 3, 4)] == [3, 3, 2, 2]
    assert exactness_driver.shares([0, 1, 4, 5, 6], 2) == [[0, 1], [4, 5]]


ASK = Ask(name="a", ids=(1, 2), seed=0, way="greedy", max_tokens=2)


def test_oracles_are_found_again_by_request_and_manifest(tmp_path):
    store = exactness_oracles.Oracles(str(tmp_path / "oracles.json"), {"model": "m", "jax": "1"})
    assert store.read() == {}
    store.add([ASK], [{"ids": [7, 8]}])
    other = exactness_oracles.Oracles(str(store.path), {"model": "m", "jax": "1"})
    other.add([ASK], [{"ids": [7, 8]}])
    assert other.read() == {exactness_oracles.name_of(ASK): {"ids": [7, 8]}}
    with pytest.raises(RadianceError, match="two processes gave two answers"):
        other.add([ASK], [{"ids": [7, 9]}])
    with pytest.raises(UserError, match="of another manifest: jax is '1' there and '2' here"):
        exactness_oracles.Oracles(str(store.path), {"model": "m", "jax": "2"}).read()
    store.path.write_text("[]")
    with pytest.raises(UserError, match="must be a file written by --oracles"):
        store.read()


def test_names_of_requests_differ_in_whatever_an_answer_depends_on():
    changes = ({}, {"ids": (1, 3)}, {"seed": 1}, {"way": "temperature 1"}, {"max_tokens": 3})
    names = {exactness_oracles.name_of(Ask(**vars(ASK) | change)) for change in changes}
    assert len(names) == len(changes) and exactness_oracles.name_of(Ask(**vars(ASK) | {"name": "b"})) in names


def test_a_record_is_never_half_written(tmp_path):
    path = tmp_path / "out.json"
    record.write(str(path), {"old": 1})
    with pytest.raises(TypeError):
        record.write(str(path), {"new": object()})
    assert json.loads(path.read_text()) == {"old": 1}
    assert not os.path.exists(f"{path}.tmp")


def test_time_that_is_up_ends_the_answers():
    class Engine:
        aborted = ()

        def submit(self, ids, params, put):
            from radiance_jax.engine.request import Delta
            put(Delta(token_ids=(1,)))
            return 5

        def abort(self, sequence):
            self.aborted += (sequence,)

    engine = Engine()
    with pytest.raises(exactness_asks.OutOfTime):
        exactness_asks.ask_all(engine, [ASK], 1, 0.0)
    assert engine.aborted == (5,)
