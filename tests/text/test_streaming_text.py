"""The incremental detokeniser, stop strings, and both together."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radiance_jax.text.detokenize import IncrementalDetokenizer
from radiance_jax.text.output import TextStream
from radiance_jax.text.stop import StopChecker
from tiny_tokenizers import FAMILIES, byte_level

NAMES = sorted(FAMILIES)


def pieces(items, cuts):
    """`items` cut at the positions `cuts`."""
    edges = [0, *sorted(c % (len(items) + 1) for c in cuts), len(items)]
    return [items[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(NAMES), st.lists(st.integers(0, 10**6), max_size=40), st.lists(st.integers(0, 100), max_size=6),
       st.booleans())
def test_pieces_join_to_the_whole_text(name, raw, cuts, skip):
    tokenizer = FAMILIES[name]
    ids = [i % (tokenizer.vocab_size + 3) for i in raw]  # a few beyond the vocabulary
    stream = IncrementalDetokenizer(tokenizer, skip)
    text = "".join(stream.push(part) for part in pieces(ids, cuts)) + stream.finish()
    assert text == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["llama 2", "gemma"]), st.lists(st.one_of(
    st.sampled_from([0x20, 0x41, 0xE6, 0x97, 0xA5, 0xF0, 0x9F, 0x98, 0x80]).map(lambda byte: byte + 3),
    st.integers(0, 268)), max_size=30), st.booleans())
def test_runs_of_byte_tokens_join_to_the_whole_text(name, ids, skip):
    tokenizer = FAMILIES[name]
    stream = IncrementalDetokenizer(tokenizer, skip)
    assert "".join(stream.push([i]) for i in ids) + stream.finish() == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("name", ["byte level", "gemma"])
def test_a_character_over_several_tokens_comes_whole(name):
    tokenizer = FAMILIES[name]
    letters = {"byte level": lambda b: next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == b),
               "gemma": lambda b: tokenizer.token_id(f"<0x{b[0]:02X}>")}[name]
    for character in "é日😀":
        stream = IncrementalDetokenizer(tokenizer)
        ids = [letters(bytes([byte])) for byte in character.encode()]
        seen = [stream.push([i]) for i in ids]
        assert "\ufffd" not in "".join(seen) and "".join(seen) in ("", character)
        assert "".join(seen) + stream.finish() == character
        cut = IncrementalDetokenizer(tokenizer)
        assert cut.push(ids[:-1]) == "" and cut.finish() == tokenizer.decode(ids[:-1]) != ""


@pytest.mark.parametrize("name", NAMES)
def test_work_is_a_constant_number_of_tokens_for_each_token(name, monkeypatch):
    tokenizer, decoded = FAMILIES[name], []
    original = type(tokenizer).decode
    monkeypatch.setattr(type(tokenizer), "decode", lambda self, ids, **more: (
        decoded.append(len(ids)), original(self, ids, **more))[1])
    stream = IncrementalDetokenizer(tokenizer)
    for index in range(3000):
        stream.push([index * 7919 % tokenizer.vocab_size])
    stream.finish()
    assert sum(decoded) <= 4 * 3000


def first_match(text, stops):
    """Oracle: character by character, the stop string complete first, the longest at a tie."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[:end - len(stop)], stop
    return text, None


@settings(max_examples=300, deadline=None)
@given(st.text("ab\n", max_size=30), st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4),
       st.lists(st.integers(0, 100), max_size=8))
def test_stops_are_found_however_the_text_is_cut(text, stops, cuts):
    checker, shown, found = StopChecker(stops), "", None
    want, want_stop = first_match(text, stops)
    for piece in pieces(text, cuts):
        out, found = checker.push(piece)
        shown += out
        assert want.startswith(shown)
        # Nothing is held back that could not begin a stop string.
        held = checker._held
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
    assert (shown + checker.flush(), found) == (want, want_stop)


def test_after_a_stop_nothing_comes():
    checker = StopChecker(["stop"])
    assert checker.push("a st") == ("a ", None) and checker.push("op b") == ("", "stop")
    assert checker.push("more") == ("", "stop") and checker.flush() == ""


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level()


def test_a_run_of_accepted_tokens_ends_at_the_token_that_completes_the_stop(tokenizer):
    ids = [tokenizer.encode(c)[0] for c in "one two three"]
    stream = TextStream(tokenizer, ["two", "never"])
    assert stream.push(ids[:6]) == ("one ", 6, None)
    assert stream.push(ids[6:]) == ("", 1, "two")
    assert stream.stop_string == "two" and stream.push(ids) == ("", 0, "two") and stream.finish() == ""


def test_a_token_that_runs_past_the_stop_is_kept_and_its_rest_is_not_shown(tokenizer):
    the = tokenizer.token_id("Ġthe")
    assert TextStream(tokenizer, [" t"]).push([the, the]) == ("", 1, " t")
    assert TextStream(tokenizer, ["e t"]).push([the, the, the]) == (" th", 2, "e t")


def test_a_stop_inside_a_split_character_waits_for_it(tokenizer):
    ids = tokenizer.encode("x😀y")
    stream = TextStream(tokenizer, ["😀"])
    assert stream.push(ids) == ("x", len(ids) - 1, "😀")


def test_the_first_min_tokens_are_exempt(tokenizer):
    ids = [tokenizer.encode(c)[0] for c in "abab"]
    assert TextStream(tokenizer, ["b"], min_tokens=2).push(ids) == ("aba", 4, "b")
    assert TextStream(tokenizer, ["b"]).push(ids) == ("a", 2, "b")


def test_finishing_gives_what_was_held_back(tokenizer):
    stream = TextStream(tokenizer, ["abc"])
    assert stream.push([tokenizer.encode(c)[0] for c in "xab"]) == ("x", 3, None)
    assert stream.finish() == "ab" and stream.stop_string is None
    stream = TextStream(tokenizer, ["b\ufffd"])
    half = tokenizer.encode("😀")[:1]
    assert stream.push([tokenizer.encode("b")[0], *half]) == ("", 2, None)
    assert stream.finish() == "" and stream.stop_string == "b\ufffd"


def test_special_tokens_give_no_text_unless_asked(tokenizer):
    a = tokenizer.encode("a")[0]
    assert TextStream(tokenizer).push([1, a, 2]) == ("a", 3, None)
    assert TextStream(tokenizer, ["<|im"], skip_special_tokens=False).push([a, 2]) == ("a", 2, "<|im")


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(NAMES), st.lists(st.integers(0, 10**6), max_size=30), st.lists(st.integers(0, 100), max_size=6),
       st.lists(st.sampled_from(["a", "b.", "he", " t", "\ufffd", "the t", "12"]), max_size=3))
def test_how_tokens_are_grouped_changes_nothing(name, raw, cuts, stops):
    tokenizer = FAMILIES[name]
    ids = [i % tokenizer.vocab_size for i in raw]

    def run(parts):
        stream, text, kept = TextStream(tokenizer, stops), "", 0
        for part in parts:
            new, count, _ = stream.push(part)
            text, kept = text + new, kept + count
        return text + stream.finish(), kept, stream.stop_string

    assert run(pieces(ids, cuts)) == run([[i] for i in ids]) == run([ids])
    assert run([ids])[0] == first_match(tokenizer.decode(ids), stops)[0]
