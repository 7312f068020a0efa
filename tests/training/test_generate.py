"""The generate stage: every prompt answered once at each temperature by the model itself, whatever kills it on the way."""

import json
import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from radiance_jax.errors import RadianceError, UserError
from radiance_jax.llm import LLM
from radiance_jax.training import conversations, generate
from radiance_jax.training.dataset import Answers, Manifest, SourceInfo
from radiance_jax.training.dataset_writer import AnswersWriter
from radiance_jax.training.generate import AnswersConfig, Run, degrees
from radiance_jax.training.prompts import Prompt
from tests import tiny_model

VOCAB = 1000


class WordEngine:
    """Answers with numbers that depend on the prompt's ids and the seed alone, in any order, from its own thread. Ids are
    lengths of words; `die_after` answers it stops for good. `heard` are (ids, params) of all requests."""

    max_model_len = 64
    chat = None

    def __init__(self, seed: int = 0, die_after: int | None = None, ends: str = "stop"):
        self.heard, self.aborted, self.tokens, self.ends = [], [], 0, ends
        self._pending, self._news, self._chance = [], threading.Condition(), random.Random(seed)
        self._die_after, self._closing = die_after, False
        self.tokenizer = SimpleNamespace(
            encode=lambda text, add_special_tokens: [len(word) % VOCAB for word in text.split()],
            decode=lambda ids, skip_special_tokens: " ".join("x" * (i % 20 + 1) for i in ids))
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, ids, params, on_delta):
        with self._news:
            self.heard.append((tuple(ids), params))
            self._pending.append((tuple(ids), params, on_delta))
            self._news.notify()
            return len(self.heard)

    def abort(self, sequence):
        self.aborted.append(sequence)

    def stats(self):
        return SimpleNamespace(generation_tokens=self.tokens, prompt_tokens=0, steps=0)

    def _work(self):
        done = 0
        while True:
            with self._news:
                while not self._pending and not self._closing:
                    self._news.wait()
                if self._closing:
                    return
                ids, params, on_delta = self._pending.pop(self._chance.randrange(len(self._pending)))
            reason = "error" if done == self._die_after else self.ends
            done += 1
            answer = answer_to(ids, params.seed, params.max_tokens)
            self.tokens += len(answer)
            for token in answer:
                on_delta(SimpleNamespace(token_ids=(token,), finish_reason=None, error=None))
            on_delta(SimpleNamespace(token_ids=(), finish_reason=reason, error="the engine failed: planted"))

    def close(self):
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join()


def answer_to(ids, seed, most):
    chance = random.Random(f"{ids} {seed}")
    return [chance.randrange(VOCAB) for _ in range(chance.randrange(1, most + 1))]


def some_prompts(count: int = 40) -> tuple[Prompt, ...]:
    """Every fourth is about an earlier answer, every eighth is a second turn, one is about two answers."""
    made: list[Prompt] = []
    for number in range(count):
        parents, turn = ((number - 3,), number % 8 == 7) if number % 4 == 3 else ((), False)
        parents = (0, 1) if number == 11 else parents
        text = "tell " + "y" * number + (" {passage}" if parents and not turn else "")
        made.append(Prompt(source="maths" if number % 2 else "chat", text=text, prompt_hash=number, parents=parents, turn=turn))
    return tuple(made)


def manifest(**changes) -> Manifest:
    return Manifest(**{"target": "target-1", "target_description": "", "vocab_size": VOCAB, "sampling": {},
                       "sources": (SourceInfo(name="maths", licence="MIT"), SourceInfo(name="chat", licence="MIT"))} | changes)


def run(folder, prompts, engine, **options) -> Run:
    config = AnswersConfig(out=str(folder), **{"max_tokens": 12, "max_num_seqs": 3} | options)
    made = Run(engine, config, prompts, AnswersWriter(folder, manifest()))
    try:
        made.go()
    finally:
        engine.close()
    return made


def by_number(folder) -> dict:
    return {each.number: each for each in Answers.open(folder, "all")}


def test_every_prompt_is_answered_once_at_each_temperature(tmp_path):
    prompts, engine = some_prompts(), WordEngine()
    run(tmp_path, prompts, engine)
    found = by_number(tmp_path)
    assert sorted(found) == list(range(2 * len(prompts)))
    for number, answer in found.items():
        prompt, ids = prompts[number % len(prompts)], tuple(answer.ids[:answer.answer_start].tolist())
        assert answer.ids[answer.answer_start:].tolist() == answer_to(ids, number, 12)
        assert (answer.source, answer.prompt_hash) == (prompt.source, prompt.prompt_hash)
    assert {found[n].temperature + found[n + len(prompts)].temperature for n in range(len(prompts))} == {np.float32(0.7).item()}
    assert {each.temperature for each in found.values()} == {0.0, np.float32(0.7).item()}
    assert all(params.logprobs is None and params.max_draft_tokens == 0 for _, params in engine.heard)


def test_prompts_about_answers_hold_them(tmp_path):
    prompts, engine = some_prompts(), WordEngine()
    run(tmp_path, prompts, engine)
    found, encode, decode = by_number(tmp_path), engine.tokenizer.encode, engine.tokenizer.decode
    for epoch in (0, 1):
        for index, prompt in enumerate(prompts):
            texts = [decode(found[epoch * len(prompts) + p].ids[found[epoch * len(prompts) + p].answer_start:].tolist(), True)
                     for p in prompt.parents]
            before = f"{prompts[prompt.parents[0]].text} {texts[0]} " if prompt.turn else ""
            wanted = before + prompt.text.replace("{passage}", " ".join(texts))
            if prompt.turn and prompts[prompt.parents[0]].parents:
                continue  # of a conversation about a passage the first turn's own text is shown
            answer = found[epoch * len(prompts) + index]
            assert answer.ids[:answer.answer_start].tolist() == encode(wanted, False), index


@pytest.mark.parametrize("die_after", [0, 1, 17, 50])
def test_a_run_that_dies_goes_on_to_the_same_answers(tmp_path, die_after):
    prompts = some_prompts()
    with pytest.raises(RadianceError, match="planted"):
        run(tmp_path / "a", prompts, WordEngine(seed=1, die_after=die_after))
    engine = WordEngine(seed=2)
    run(tmp_path / "a", prompts, engine)
    assert len(engine.heard) <= 2 * len(prompts) - die_after  # what was saved is not done again
    run(tmp_path / "b", prompts, WordEngine(seed=3))
    a, b = by_number(tmp_path / "a"), by_number(tmp_path / "b")
    assert sorted(a) == sorted(b) and all(a[n].ids.tolist() == b[n].ids.tolist() for n in a)
    idle = WordEngine()
    run(tmp_path / "a", prompts, idle)
    assert not idle.heard


def test_limits_stop_a_run_without_loss(tmp_path):
    prompts = some_prompts(400)
    engine = WordEngine()
    run(tmp_path, prompts, engine, limit_tokens=100)
    first = by_number(tmp_path)
    assert 5 < len(first) < 400 and len(engine.aborted) > 0
    assert sum(len(each.ids) - each.answer_start for each in first.values()) >= 100  # what was finished then is there
    run(tmp_path, prompts, WordEngine(), limit_minutes=0.001)
    assert set(first) <= set(by_number(tmp_path))


def test_prompts_too_long_are_left_out_with_those_about_their_answers(tmp_path):
    prompts = (Prompt(source="chat", text="z " * 60, prompt_hash=1),
               Prompt(source="chat", text="about {passage}", prompt_hash=2, parents=(0,)),
               Prompt(source="chat", text="fine", prompt_hash=3))
    made = run(tmp_path, prompts, WordEngine(), temperatures="0")
    assert sorted(by_number(tmp_path)) == [2] and made._left_out == {0, 1}


def test_the_engine_is_kept_full_and_not_flooded(tmp_path):
    live, most = 0, 0
    engine = WordEngine()
    submit = engine.submit

    def count(ids, params, on_delta):
        nonlocal live, most

        def hear(delta):
            nonlocal live
            live -= delta.finish_reason is not None
            on_delta(delta)
        live += 1
        most = max(most, live)
        return submit(ids, params, hear)
    engine.submit = count
    run(tmp_path, some_prompts(600), engine, max_num_seqs=5)
    assert 5 < most <= 5 + generate.QUEUED


def test_answers_that_end_otherwise_are_errors(tmp_path):
    with pytest.raises(RadianceError):
        run(tmp_path, some_prompts(), WordEngine(ends="abort"))


def test_conversations_are_what_a_user_would_have_sent():
    first = Prompt(source="chat", text="What is rain?", prompt_hash=0)
    assert conversations.messages(first, []) == [{"role": "user", "content": "What is rain?"}]
    turn = Prompt(source="chat", text="Why?", prompt_hash=0, parents=(0,), turn=True)
    assert conversations.messages(turn, [" Water. "], first) == [
        {"role": "user", "content": "What is rain?"}, {"role": "assistant", "content": "Water."},
        {"role": "user", "content": "Why?"}]
    about = Prompt(source="chat", text="Read: {passage}\nSay", prompt_hash=0, parents=(0, 1))
    long = "A sentence. " * 200
    said = conversations.messages(about, [long, "{passage} B"])[0]["content"]
    assert said.startswith("Read: A sentence.") and said.endswith("A sentence.\n{passage} B\nSay") and len(said) < 1200
    assert conversations.cut("One. Two. Three.", 11) == "One. Two." and conversations.cut("abcdef", 3) == "abc"


def test_wrong_options_say_what_to_do(tmp_path):
    assert degrees("0, 0.7") == (0.0, 0.7)
    for text in ("", "a", "0,0", "-1", "3"):
        with pytest.raises(UserError, match="temperatures must be numbers from 0 to 2"):
            degrees(text)
    with pytest.raises(UserError, match="less than max_model_len"):
        AnswersConfig(out="x", max_tokens=1024)
    with pytest.raises(UserError, match="not both"):
        AnswersConfig(out="x", sources="a", prompts="b")
    assert generate.main([]) == 2
    assert AnswersConfig(out="x").engine()["max_num_batched_tokens"] == 512
    assert AnswersConfig(out="x", max_num_seqs=4).engine()["max_num_batched_tokens"] is None
    assert AnswersConfig(out="x", num_speculative_tokens="auto").engine()["num_speculative_tokens"] == 0


def test_the_command_makes_what_the_model_answers(tmp_path, monkeypatch):
    """The whole of it on a real engine, which is then asked for the same answers by the Python door, one at a time."""
    class Kept(LLM):
        """Stays open when the stage is through with it: a second engine would take as long to compile as the first."""

        def __exit__(self, *_):
            kept.append(self)

    kept: list[LLM] = []
    monkeypatch.setattr(generate, "LLM", Kept)
    model = tiny_model.make(tmp_path / "model", eos_token_id=5)
    lines = [{"prompt": " ".join(f"w{(number * 7 + i) % 100 + 10}" for i in range(number + 1))} for number in range(6)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    flags = [str(model), "--out", str(tmp_path / "out"), "--prompts", str(tmp_path / "own.jsonl"), "--max-tokens", "9",
             "--sequences", "4", "--max-model-len", "64", "--max-num-batched-tokens", "64", "--dtype", "f32"]
    assert generate.main(flags) == 0
    found = by_number(tmp_path / "out")
    assert sorted(found) == list(range(12)) and len({each.temperature for each in found.values()}) == 2
    for number, answer in found.items():
        ids = kept[0].engine.tokenizer.encode(lines[number % 6]["prompt"] + " ", add_special_tokens=False)
        params = kept[0].default_params(temperature=round(answer.temperature, 3), max_tokens=9, seed=number)
        wanted = kept[0].generate([ids], params)[0].outputs[0].token_ids
        assert answer.ids[:answer.answer_start].tolist() == ids and answer.ids[answer.answer_start:].tolist() == wanted
    kept[0].close()
