"""The policy simulator: what the drafting policies are held to, on answers and prices made up for it."""

import json
from dataclasses import replace

import pytest

from radiance_jax.bench import policy, policy_traces
from radiance_jax.bench.door import WRONG_CONFIGURATION
from radiance_jax.bench.__main__ import main
from radiance_jax.bench.policy_replay import replay
from radiance_jax.spec.planner import Rules
from radiance_jax.spec.policies import POLICIES

TRACES = policy_traces.made_up(2, 160, seed=3)
RULES = Rules(depth=15, longest=4, shortest=2, as_planned=False)


def rate(name: str, prices: str, kind: str, live: int = 1, **changes) -> float:
    rules = replace(RULES, policy=POLICIES[name])
    mine = [each for each in TRACES if each.set == kind]
    return replay(mine, policy_traces.prices(prices, None, live * 16 + 1), rules, live=live, **changes).rate


@pytest.mark.parametrize("live", (1, 2))
def test_where_rows_are_dear_automatic_keeps_what_fixed_loses(live):
    """Fixed 15 loses more than half of the speed without drafts; automatic at most three hundredths."""
    off = rate("off", "dear", "chatter", live)
    assert rate("fixed", "dear", "chatter", live) < 0.5 * off
    assert rate("adaptive", "dear", "chatter", live) >= 0.97 * off


@pytest.mark.parametrize("prices", ("dear", "knee", "flat"))
@pytest.mark.parametrize("kind", ("chatter", "copy", "turn"))
def test_automatic_is_nearly_the_best_constant_depth_or_better(prices, kind):
    best = max([rate("off", prices, kind), *(rate("fixed", prices, kind, cap=cap) for cap in (1, 3, 7, 15))])
    assert rate("adaptive", prices, kind) >= 0.95 * best


def test_prices_need_not_be_known_beforehand():
    prices = policy_traces.prices("dear", None, 17)
    for kind in ("chatter", "copy"):
        mine = [each for each in policy_traces.made_up(1, 400, seed=4) if each.set == kind]
        known, unknown = (replay(mine, prices, RULES, live=1, known=known).rate for known in (True, False))
        assert unknown >= 0.8 * known


def test_depths_do_not_flap():
    """A decision stands for several steps even where depths are all but equally good, and whether to draft at all for many."""
    for kind in ("chatter", "copy"):
        mine = [each for each in policy_traces.made_up(1, 500, seed=1) if each.set == kind]
        for prices in ("dear", "knee"):
            decisions = replay(mine, policy_traces.prices(prices, None, 20), RULES, live=1).decisions[10:-15]
            changes = sum(a != b for a, b in zip(decisions, decisions[1:], strict=False))
            switches = sum((max(a) > 0) != (max(b) > 0) for a, b in zip(decisions, decisions[1:], strict=False))
            assert changes <= 0.3 * len(decisions) and switches <= 0.02 * len(decisions), (kind, prices, changes, len(decisions))


def test_equal_histories_give_equal_decisions():
    one, two = (replay(TRACES, policy_traces.prices("knee", None, 65), RULES, live=4) for _ in range(2))
    assert one == two and len(set(one.decisions)) > 5


def test_a_simulated_answer_has_all_its_tokens_under_every_policy():
    for name in POLICIES:
        outcome = replay(TRACES, policy_traces.prices("flat", None, 65), Rules(
            depth=15, longest=4, shortest=2, as_planned=False, policy=POLICIES[name]), live=4)
        assert outcome.tokens == sum(len(each.answer) - 1 for each in TRACES)  # the first comes with the prompt
        assert outcome.accepted <= outcome.drafted and (outcome.drafted == 0) == (name == "off")


def test_the_command_replays_what_speed_recorded(tmp_path, capsys):
    file, out = tmp_path / "traces.jsonl", tmp_path / "out.json"
    policy_traces.write(str(file), {"seconds": {"2": 0.05, "8": 0.1, "16": 0.2}, "as_planned": True,
                                    "charge": [2, 2, 2, 8, 8, 8, 8, 8, 8, *[16] * 8]}, TRACES[:4])
    assert main(["policy", "--traces", str(file), "--depth", "7", "--sequences", "1,2", "--policies", "off,fixed:2,fixed,adaptive",
                 "--out", str(out)]) == 0
    cells = json.loads(out.read_text())["cells"]
    assert [(cell["set"], cell["live"]) for cell in cells] == [(kind, live) for kind in ("chatter", "copy", "turn") for live in (1, 2)]
    for cell in cells:
        assert cell["prices"] == "recorded" and cell["policies"]["off"]["tokens_per_s"] >= 19.9
        assert cell["policies"]["adaptive"]["over_best_constant"] > 0.9
    assert "over best constant" in capsys.readouterr().out


@pytest.mark.parametrize(("flags", "says"), (
    (["--policies", "adaptve"], "did you mean 'adaptive'"), (["--policies", "fixed:x"], "fixed:3"),
    (["--prices", "cheap"], "recorded, dear"), (["--prices", "recorded"], "--traces"),
    (["--traces", "none.jsonl"], "cannot read"), (["--spec-ngram-min", "9"], "at most spec_ngram_max")))
def test_wrong_flags_are_told(flags, says, capsys):
    assert policy.main(flags) == WRONG_CONFIGURATION
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("text", ("", "nonsense", '{"set": "a"}', '{"set": "a", "id": 1, "prompt_ids": [], "answer_ids": [1]}'))
def test_a_file_that_is_no_trace_is_told(text, tmp_path, capsys):
    (tmp_path / "t.jsonl").write_text(text)
    assert policy.main(["--traces", str(tmp_path / "t.jsonl")]) == WRONG_CONFIGURATION
    assert "t.jsonl" in capsys.readouterr().err
