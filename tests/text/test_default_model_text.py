"""The default model's own tokenizer and template. Slow: fetches the model (92 MB) if the cache lacks it."""

import json
import os
import random

import pytest

from radiance_jax.container.default_model import default_cache_dir, ensure_default_model
from radiance_jax.container.source import eos_token_ids, open_model
from radiance_jax.container.weights import DRAFT_PREFIX
from radiance_jax.text.chat import ChatTemplate
from radiance_jax.text.output import TextStream
from radiance_jax.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

# Prompt ids on which transformers and llama.cpp agree.
FRANCE = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2,
          198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
ANSWER = [504, 3575, 282, 4649, 314, 7042, 30, 2]


@pytest.fixture(scope="module")
def model():
    return open_model(ensure_default_model(default_cache_dir(os.environ), "bf16"))


@pytest.fixture(scope="module")
def tokenizer(model):
    return Tokenizer.from_model(model)


def test_the_prompt_is_that_of_the_reference_engines(model, tokenizer):
    text = ChatTemplate.from_model(model, tokenizer).render([
        {"role": "user", "content": "What is the capital of France?"}])
    assert tokenizer.encode(text, add_special_tokens=False) == FRANCE
    assert tokenizer.decode(ANSWER) == "The capital of France is Paris."
    assert eos_token_ids(model) == (2,) and tokenizer.vocab_size == model.config["vocab_size"] == 49152


def test_digits_are_single_tokens(tokenizer):
    assert tokenizer.encode("20260731") == [tokenizer.encode(digit)[0] for digit in "20260731"]


def test_streams_of_random_tokens_join_to_the_whole_text(tokenizer):
    rng = random.Random(0)
    for _ in range(20):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(500)]
        stream = TextStream(tokenizer)
        assert "".join(stream.push([i])[0] for i in ids) + stream.finish() == tokenizer.decode(ids)
    for text in ("日本語のテキスト", "😀👩‍👩‍👧‍👦🏳️‍🌈", "naïve Ünïcödé", "हिन्दी", "한국어"):
        ids, stream = tokenizer.encode(text), TextStream(tokenizer)
        shown = [stream.push([i])[0] for i in ids]
        assert "".join(shown) == text and not any("\ufffd" in piece for piece in shown)


def test_the_file_is_whole(model):
    model.verify()
    drafter = [name for name in model.tensors if name.startswith(DRAFT_PREFIX)]
    assert model.config["num_hidden_layers"] == 30 and len(model.tensors) - len(drafter) == 272 and drafter
    assert json.loads(model.file("generation_config.json"))["eos_token_id"] == 2
