"""Whole runs of a tiny drafter: gone on with after a kill they end at the same bits; what is not finite stops them."""

import json
import time

import jax
import numpy as np
import pytest

from radiance_jax.errors import UserError
from radiance_jax.training import run as run_
from radiance_jax.training.blocks import choose_anchors
from radiance_jax.training.pipeline import Batches, Padded, on_mesh, share_of, usable
from radiance_jax.training.trainer import Subject, Trainer
from tests.training import training_script


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    return training_script.make(tmp_path_factory.mktemp("script"), 120)


@pytest.fixture(scope="module")
def trainer(script, tmp_path_factory):
    """Compiled once for all tests here."""
    return Trainer.of(Subject.of(training_script.config(*script, tmp_path_factory.mktemp("none"), family="dflash"), quiet), quiet)


def run(trainer, out, *, resume=False, stop_after=None):
    out.mkdir(exist_ok=True)
    made = run_.start(trainer, out, resume, None, quiet)
    made.stop_after = stop_after
    try:
        made.go()
    finally:
        made.journal.close()
        made.checkpoints.close()
    return made


def bits(made) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(made.state)]


def test_a_run_that_was_killed_ends_at_the_same_bits(trainer, tmp_path):
    """Killed behind step 5; the last checkpoint is of step 3."""
    whole = run(trainer, tmp_path / "whole")
    run(trainer, tmp_path / "killed", stop_after=5)
    again = run(trainer, tmp_path / "killed", resume=True)
    assert whole.step == again.step == 8 and bits(whole) == bits(again)
    assert whole.last == again.last and whole.first == again.first and whole.tokens == again.tokens
    assert run_.best_facts(tmp_path / "whole") == run_.best_facts(tmp_path / "killed")
    lines = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [2, 4, 6, 8]
    assert [line["step"] for line in lines if "held_out" in line] == [0, 4, 8]


def drafts_agree(trainer) -> None:
    """What a step says was accepted is what the walk of `propose` would have accepted at the same anchors."""
    state, batches = trainer.first_state(), trainer.batches()
    for _ in range(60):
        state, _ = trainer.step(state, next(batches), 60)
    batch = next(batches)
    matches = np.asarray(trainer.compiled_matches(state.masters, trainer.target_params, on_mesh(batch, trainer.mesh)))
    key = jax.random.fold_in(jax.random.key(trainer.config.seed), state.step)
    position, real = choose_anchors(key, batch, trainer.config.anchors)
    found = np.take_along_axis(matches, np.asarray(position), axis=1)[np.asarray(real)]
    _, numbers = trainer.step(state, batch, 60)
    drafts = trainer.subject.drafter.block
    assert numbers["accepted"].tolist() == [int((found > k).sum()) for k in range(drafts)]
    assert 0 < found.sum() < found.size * drafts


def test_a_step_counts_as_accepted_what_a_walk_accepts(trainer):
    drafts_agree(trainer)


@pytest.mark.slow
@pytest.mark.parametrize("changes", ({"family": "dflash2"}, {"family": "dspark", "markov": "rnn"},
                                     {"family": "dspark", "markov": "gated", "causal": True, "window": 6}), ids=str)
def test_so_it_does_where_a_draft_depends_on_the_one_before(script, tmp_path, changes):
    drafts_agree(Trainer.of(Subject.of(training_script.config(*script, tmp_path, chunk_rows=32, **changes), quiet), quiet))


@pytest.mark.slow
def test_states_that_are_kept_are_those_that_are_computed_in_every_step(script, trainer, tmp_path):
    """Memory and time change, the sums but for rounding do not."""
    config = training_script.config(*script, tmp_path, family="dflash", states="kept", chunk_rows=10**6)
    lines: list[str] = []
    kept = Trainer.of(Subject.of(config, lines.append), lines.append)
    assert any(line.startswith("states: ") for line in lines)
    state, other, batches = kept.first_state(), trainer.first_state(), trainer.batches()
    for _ in range(4):
        batch = next(batches)
        state, numbers = kept.step(state, batch, 8)
        other, expected = trainer.step(other, batch, 8)
        assert numbers["accepted"].tolist() == expected["accepted"].tolist()
        np.testing.assert_allclose(numbers["loss"], expected["loss"], rtol=1e-4)
    for ours, theirs in zip(jax.tree.leaves(state.masters), jax.tree.leaves(other.masters), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-5)


def test_what_is_not_finite_stops_the_run_and_names_the_answers(trainer, tmp_path):
    class Poisoned(Trainer):
        """Weights that are not finite from step 3 on, as from a rate too high."""

        def step(self, state, batch, total):
            if int(state.step) == 2:
                state = state.replace(masters=jax.tree.map(lambda w: w * np.float32(np.inf), state.masters))
                self.given.append(batch)
            return super().step(state, batch, total)

    poisoned = Poisoned(**vars(trainer))
    object.__setattr__(poisoned, "given", [])
    with pytest.raises(run_.TrainingFailed, match="not finite in step 3"):
        run(poisoned, tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "not_finite-0.json").read_text())
    assert facts["answers"] == poisoned.given[0].index.tolist()
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "not_finite-0.npz")["tokens"], poisoned.given[0].tokens)


def test_batches_are_the_same_again_and_go_on_where_they_were_left(trainer):
    def some(batches, count):
        return [next(batches).index.tolist() for _ in range(count)]

    first, second = trainer.batches(), trainer.batches()
    assert (order := some(first, 40)) == some(second, 40)
    third = trainer.batches()
    third.state = {"next_index": 7}
    assert some(third, 33) == order[7:]
    epoch = len(trainer.rows) // 4
    assert len({i for batch in order[:epoch] for i in batch}) == 4 * epoch  # each answer once before any comes again
    assert order[:epoch] != order[epoch:2 * epoch]


def test_processes_share_an_epoch(trainer, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    seen = []
    for process in range(2):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        batches = Batches(trainer.rows, trainer.config)
        seen.append({int(i) for _ in range(len(trainer.rows) // 4) for i in next(batches).index})
    assert not seen[0] & seen[1] and len(seen[0] | seen[1]) == len(trainer.rows) // 4 * 4


def test_shares_are_nested_and_answers_too_short_to_learn_from_are_left_out(trainer):
    indices = np.arange(500)
    tenth, third = share_of(indices, 0.1), share_of(indices, 0.3)
    assert len(tenth) == 50 and len(third) == 150 and set(tenth) < set(third) and sorted(third) == list(third)
    answers = trainer.rows.answers
    assert len(usable(answers, training_script.PROMPT + 2)) == len(answers) and not len(usable(answers, training_script.PROMPT + 1))
    row = Padded(answers, np.arange(len(answers)), 9)[3]
    assert row["length"] == 9 and row["tokens"].tolist() == answers[3].ids[:9].tolist()


def test_a_folder_with_a_run_is_not_written_over(script, tmp_path):
    config = training_script.config(*script, tmp_path / "out", family="dflash")
    with pytest.raises(UserError, match="needs a run to go on with"):
        run_.prepare(config, True)
    run_.begin(config, run_.prepare(config, False))
    with pytest.raises(UserError, match="holds one. Go on with it by --resume"):
        run_.prepare(config, False)
    assert run_.prepare(config, True) == tmp_path / "out"


def test_what_is_refused_leaves_no_run_behind(script, tmp_path):
    """Answers that are not there, or too few: the mended command is a new run in the same folder."""
    target, answers = script
    for changes, must in (({"data": str(tmp_path / "nowhere")}, "must be a folder of answers"),
                          ({"batch": 500}, "at least as many training answers as a batch")):
        config = training_script.config(target, answers, tmp_path / "out", family="dflash", **changes)
        with pytest.raises(UserError, match=must):
            run_.train(config, resume=False, command="", log=quiet, began=time.monotonic())
    config = training_script.config(target, answers, tmp_path / "out", family="dflash")
    assert run_.prepare(config, False) == tmp_path / "out" and not list((tmp_path / "out").iterdir())


def test_a_checkpoint_between_two_lines_of_the_log_holds_the_seconds_of_its_steps(trainer, tmp_path):
    """Step 3 is saved, step 2 was the last line: the tokens of three steps, and the time of three."""
    killed = run(trainer, tmp_path / "out", stop_after=3)
    saved = run_.Checkpoints(tmp_path / "out" / "checkpoints")
    facts = saved.restore(trainer.abstract)[1]
    saved.close()
    assert facts["step"] == 3 and facts["tokens"] == killed.tokens and facts["seconds"] > killed.seconds > 0


def test_time_that_is_up_ends_a_run(trainer, tmp_path):
    began = time.monotonic()
    pace = run_.Pace(deadline=began + 60, step_seconds=0.1, look_seconds=1.0)
    assert 250 < pace.steps(10) < (60 - pace.reserve) / 0.2 and not pace.time_is_up
    assert run_.Pace(deadline=began + 4, step_seconds=0.1, look_seconds=1.0).time_is_up
