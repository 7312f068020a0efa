"""The package's prompts and the user's own."""

import json

import pytest

from radiance_jax.bench import prompt_sets
from radiance_jax.bench.config import SpeedConfig
from radiance_jax.errors import UserError


def test_the_sets_of_the_package_come_with_their_licences():
    prompts = prompt_sets.load(SpeedConfig())
    assert {name: sum(each.set == name for each in prompts) for name in ("ordinary", "copy")} == {"ordinary": 12, "copy": 12}
    assert all("```python" in each.text for each in prompts if each.set == "copy")
    assert {"LICENSE-EditEval", "LICENSE-Spec-Bench"} <= {path.name for path in prompt_sets.FOLDER.iterdir()}
    assert len(prompt_sets.load(SpeedConfig(sets="copy", limit=3))) == 3


def test_each_task_is_a_set_and_prompts_may_be_repeated():
    prompts = prompt_sets.load(SpeedConfig(sets="tasks", limit=2, repeat=3))
    assert [each.set for each in prompts[:12:2]] == ["multi-turn", "translation", "summarisation", "qa", "maths", "rag"]
    assert len(prompts) == 6 * 2 * 3 and len({(each.set, each.id) for each in prompts}) == len(prompts)
    assert [each.id for each in prompts if each.set == "qa"][::2] == ["Spec-Bench/321", "Spec-Bench/321#2", "Spec-Bench/321#3"]


@pytest.fixture
def file(tmp_path):
    def write(*lines: str) -> str:
        (tmp_path / "own.jsonl").write_text("\n".join(lines) + "\n")
        return str(tmp_path / "own.jsonl")
    return write


def test_own_prompts_are_text_or_ids(file):
    path = file('{"prompt": "hi"}', "", '{"prompt_ids": [3, 4], "set": "b", "id": "x"}')
    first, second = prompt_sets.load(SpeedConfig(prompts=path))
    assert (first.set, first.id, first.text, second.set, second.id, second.ids) == ("own", "1", "hi", "b", "x", (3, 4))

    class Tokenizer:
        def encode(self, text, add_special_tokens):
            return [len(text), int(add_special_tokens)]

    class Chat:
        def render(self, messages, add_generation_prompt):
            return f"<{messages[0]['content']}>"

    assert [each.ids for each in prompt_sets.encode([first, second], Tokenizer(), Chat())] == [(4, 0), (3, 4)]
    assert prompt_sets.encode([first], Tokenizer(), None)[0].ids == (2, 1)


@pytest.mark.parametrize(("lines", "says"), [
    ([""], "at least one prompt"), (["{"], "prompt 1: not JSON"), (["[]"], "must be an object"),
    (['{"promt": "x"}'], "did you mean 'prompt'"), (['{"prompt": "x", "prompt_ids": [1]}'], "either prompt or prompt_ids"),
    (['{"prompt": ""}'], "either prompt or prompt_ids"), (['{"prompt_ids": [true]}'], "list of token ids"),
    (['{"prompt": "x", "id": "a"}', '{"prompt": "y", "id": "a"}'], "its own id")])
def test_wrong_files(file, lines, says):
    with pytest.raises(UserError, match=says):
        prompt_sets.load(SpeedConfig(prompts=file(*lines)))


def test_a_missing_file():
    with pytest.raises(UserError, match="cannot read --prompts /nowhere"):
        prompt_sets.load(SpeedConfig(prompts="/nowhere"))


def test_every_line_of_the_package_is_one_object():
    for path in prompt_sets.FOLDER.glob("*.jsonl"):
        assert all(set(json.loads(line)) - {"set"} == {"id", "prompt"} for line in path.read_text(encoding="utf-8").splitlines())
