"""Prompts made from templates of our own: questions, lists, translation, and work on the target's own earlier answers.

The last kind needs no text from elsewhere: the target first writes articles, and is then asked to summarise them, to answer
questions about them, to rewrite, copy and translate them. Everything here is a function of the files in the package.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("prompt_data")
OWN = "radiance_jax"  # the name of this source
SENTENCES = {"German": 900, "French": 300, "Spanish": 300, "Italian": 200, "English": 900}
# Prompts per article that ask for work on it. Retrieval and summarisation have long prompts, so drafts have much to copy.
PER_ARTICLE = {"summarisation": 1.0, "rag": 1.4, "rewriting": 0.5, "copying": 0.4, "extraction": 0.4, "translation": 0.2}
OTHER_DOCUMENTS = 0.4  # share of retrieval prompts with another article beside the one asked about
TURNS = 0.12  # share of first turns that get a second one
EDITS = 0.8  # share of functions that come with a request to change them


@dataclass(frozen=True, kw_only=True)
class Template:
    """A prompt that is complete as it stands."""

    task: str
    text: str


@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """A prompt about the answers to other prompts. `{passage}` in `text` stands for the answers to `parents`; if `turn`,
    `text` is instead said after the answer of its one parent, in the same conversation."""

    task: str
    text: str
    parents: tuple[int, ...]
    turn: bool = False


@cache
def _own() -> dict[str, Any]:
    return json.loads((FOLDER / "templates.json").read_text(encoding="utf-8"))


def plain() -> Iterator[Template]:
    """All prompts that need nothing else."""
    own, chance = _own(), random.Random("plain")
    for pool, forms in own["question_forms"].items():
        for thing in own[pool]:
            for form in forms:
                yield Template(task="qa" if pool != "topics" else "chat", text=form.format(x=thing))
    for topic in own["topics"]:
        for form in chance.sample(own["list_forms"], 2):
            yield Template(task="chat", text=form.format(x=topic, n=chance.choice((3, 5, 7, 10))))
    for index in range(350):
        low, numbers = chance.randrange(1, 90), [chance.randrange(2, 500) for _ in range(chance.randrange(4, 9))]
        yield Template(task="maths", text=own["number_forms"][index % len(own["number_forms"])].format(
            a=low, b=low + chance.randrange(10, 60), c=chance.randrange(2, 13), d=chance.randrange(8, 16),
            numbers=", ".join(map(str, numbers))))
    yield from _translations(own, chance)


def _translations(own: dict[str, Any], chance: random.Random) -> Iterator[Template]:
    others = [name for name in own["languages"] if name != "English"]
    for language, count in SENTENCES.items():
        for _ in range(count):
            target = chance.choices(others, (6, 2, 2, 1))[0] if language == "English" else "English"
            text = " ".join(_sentence(own["languages"][language], chance) for _ in range(chance.choice((1, 1, 1, 2, 3))))
            # Half of them name the task in the shortest way, the others in any.
            form = own["translation_forms"][0] if chance.random() < 0.5 else chance.choice(own["translation_forms"][1:])
            yield Template(task="translation", text=form.format(a=language, b=target, x=text))


def _sentence(parts: dict[str, list[str]], chance: random.Random) -> str:
    return f"{chance.choice(parts['subjects'])} {chance.choice(parts['predicates'])}, {chance.choice(parts['ends'])}."


def articles() -> Iterator[Template]:
    """Prompts for which the target writes the passages that other prompts work on."""
    own, chance = _own(), random.Random("articles")
    things = [*own["topics"], *own["people"], *own["places"], *own["events"], *own["things"],
              *(f"the {animal}" for animal in own["animals"])]
    for thing in things:
        for form in chance.sample(own["article_forms"], 4):
            yield Template(task="article", text=form.format(x=thing))


def edits(code: Sequence[str]) -> Iterator[tuple[int, Template]]:
    """(index of the code, request to change it)."""
    own, chance = _own(), random.Random("edits")
    for index, text in enumerate(code):
        if chance.random() < EDITS:
            yield index, Template(task="editing", text=f"{chance.choice(own['edits'])}\n\n```python\n{text}\n```")


def passages(articles: Sequence[int], same_side: Callable[[int, int], bool]) -> Iterator[FollowUp]:
    """Prompts about the answers to the prompts `articles` (indexes). Documents of one prompt are all on one side of the
    split: `same_side(a, b)`."""
    own, chance = _own(), random.Random("passages")
    for place, article in enumerate(articles):
        for task, rate in PER_ARTICLE.items():
            for _ in range(int(rate) + (chance.random() < rate % 1)):
                form = chance.choice(own["passage_forms"][task])
                question = chance.choice(own["passage_questions"])
                form = form.replace("{question}", question).replace("{question_lower}", question[0].lower() + question[1:])
                parents = [article]
                if task == "rag" and chance.random() < OTHER_DOCUMENTS and place:
                    other = articles[place - 1]  # near in order, so that its answer is there by then
                    if same_side(article, other):
                        parents = [article, other] if chance.random() < 0.5 else [other, article]
                yield FollowUp(task=task, text=form, parents=tuple(parents))


def turns(first: Sequence[tuple[int, str]]) -> Iterator[FollowUp]:
    """Second turns, said after the answers to some of the prompts `first` (index, task)."""
    own, chance = _own(), random.Random("turns")
    pools = {"coding": own["coding_turns"], "completion": own["coding_turns"], "editing": own["coding_turns"],
             "maths": own["maths_turns"]}
    for index, task in first:
        if chance.random() < TURNS:
            yield FollowUp(task="second turn", text=chance.choice(pools.get(task, own["turns"])), parents=(index,), turn=True)
