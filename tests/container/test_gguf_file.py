"""GGUF files: the model that comes out, and files that are damaged or lie."""

import json
import random
import struct
import time
import tracemalloc
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radiance_jax.container import gguf_source
from radiance_jax.container.gguf_header import read_gguf_header
from radiance_jax.container.source import open_model
from radiance_jax.errors import ModelError
from radiance_jax.text.tokenizer import Tokenizer
from tiny_models import CONFIG, TOKENS, make_weights


def test_f32_weights_come_back_bit_for_bit_with_the_permutation_undone(gguf_file):
    model, weights = open_model(gguf_file(Kind.F32)), make_weights()
    assert model.format == "gguf" and model.tensors.keys() == weights.keys()
    for name, weight in weights.items():
        assert np.array_equal(model.read(name), weight), name
        assert model.tensors[name].shape == weight.shape


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_1, Kind.F16, Kind.BF16])
def test_quantised_weights_are_those_of_the_gguf_package(gguf_file, kind):
    model = open_model(gguf_file(kind))
    for name, weight in make_weights().items():
        if weight.ndim > 1:
            assert np.array_equal(model.read(name), dequantize(quantize(weight, kind), kind)), name
    assert kind.name in model.precision


def test_the_configuration_is_rebuilt(gguf_file):
    model = open_model(gguf_file())
    assert {key: model.config[key] for key in CONFIG} == CONFIG
    assert json.loads(model.file("config.json")) == model.config
    assert json.loads(model.file("generation_config.json")) == {
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    assert model.description == "tiny (GGUF file tiny.gguf)"


def test_rope_scaling_metadata_is_carried_over(gguf_file):
    yarn = open_model(gguf_file(name="yarn.gguf", metadata={
        "llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 64}))
    assert yarn.config["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    frequency = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    smooth = np.clip((8192 * frequency / (2 * np.pi) - 1) / 3, 0, 1)
    factors = (1 / ((1 - smooth) / 8 + smooth)).astype(np.float32)
    # Head size 16 has no wavelength beyond 8192, so the largest factor is not 8: as such a file cannot be told apart
    # from another parametrisation, it has to be refused; theta 5e5 as in Llama 3 has such wavelengths.
    frequency = 500000.0 ** (-np.arange(0, 16, 2) / 16)
    smooth = np.clip((8192 * frequency / (2 * np.pi) - 1) / 3, 0, 1)
    llama3 = (1 / ((1 - smooth) / 8 + smooth)).astype(np.float32)
    model = open_model(gguf_file(name="l3.gguf", config={"rope_theta": 500000.0}, extra={"rope_freqs.weight": llama3}))
    assert model.config["rope_scaling"] == {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    assert "rope_freqs.weight" not in model.tensors
    with pytest.raises(ModelError, match="rope_freqs.weight"):
        open_model(gguf_file(name="odd.gguf", extra={"rope_freqs.weight": factors * np.float32(1.5) + 1}))


def test_digits_are_split_one_by_one_though_the_vocabulary_has_12(gguf_file):
    tokenizer = Tokenizer.from_model(open_model(gguf_file()))
    assert [tokenizer.token_string(i) for i in tokenizer.encode("the 12")] == ["t", "he", " ", "1", "2"]
    assert tokenizer.encode("a<|im_end|>")[-1] == 2 and tokenizer.special_ids == {0, 1, 2}


def test_qwen2_pretokenizer_normalises_and_adds_bos_when_asked(gguf_file):
    tokenizer = Tokenizer.from_model(open_model(gguf_file(metadata={
        "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.add_bos_token": True})))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")
    assert tokenizer.encode("12")[0] == 1 and len(tokenizer.encode("12")) == 3
    assert tokenizer.encode("12", add_special_tokens=False) == tokenizer.encode("12")[1:]


@pytest.mark.parametrize("metadata, field", [
    ({"llama.block_count": 2**31 - 2}, "num_hidden_layers"),
    ({"llama.block_count": 0}, "llama.block_count"),
    ({"llama.embedding_length": None}, "llama.embedding_length"),
    ({"llama.attention.head_count": "many"}, "llama.attention.head_count"),
    ({"llama.attention.key_length": "x"}, "llama.rope.dimension_count"),
    ({"llama.rope.dimension_count": 8}, "llama.rope.dimension_count"),
    ({"llama.expert_count": 8}, "llama.expert_count"),
    ({"split.count": 3}, "split.count"),
    ({"llama.feed_forward_length": 128}, "model.layers.0.mlp.gate_proj.weight"),
    ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "rope_type"),
    ({"llama.rope.scaling.type": "linear"}, "llama.rope.scaling.factor"),
    ({"tokenizer.ggml.eos_token_id": 2**31}, "tokenizer.ggml.eos_token_id"),
    ({"general.alignment": 24}, "general.alignment"),
])
def test_metadata_that_does_not_fit_is_named(gguf_file, metadata, field):
    with pytest.raises(ModelError) as caught:
        open_model(gguf_file(metadata=metadata))
    assert caught.value.param == field


@pytest.mark.parametrize("metadata, field", [
    ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model"),
    ({"tokenizer.ggml.pre": "llama-bpe"}, "tokenizer.ggml.pre"),
    ({"tokenizer.ggml.merges": ["x nowhere"]}, "tokenizer.ggml.merges"),
    ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges"),
    ({"tokenizer.ggml.token_type": [1, 2]}, "tokenizer.ggml.token_type"),
    ({"tokenizer.ggml.tokens": ["a"] * len(TOKENS)}, "tokenizer.ggml.tokens"),
])
def test_a_tokenizer_that_cannot_be_rebuilt_is_named(gguf_file, metadata, field):
    with pytest.raises(ModelError) as caught:
        open_model(gguf_file(metadata=metadata)).file("tokenizer.json")
    assert caught.value.param == field


def test_other_architectures_and_unknown_tensors_are_refused(gguf_file):
    path = gguf_file(extra={"blk.0.attn_sinks.weight": np.ones(32, np.float32)})
    with pytest.raises(ModelError, match="attn_sinks"):
        open_model(path)
    data = gguf_file(name="b.gguf").read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0qwen9")
    path.write_bytes(data)
    with pytest.raises(ModelError, match="general.architecture"):
        open_model(path)


def raw_gguf(path, *, tensors=0, entries=0, body=b"", version=3):
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + body)
    return path


def entry(key, kind, body):
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + body


@pytest.mark.parametrize("arguments, field", [
    ({"version": 1}, "version"),
    ({"version": 3 << 24}, "version"),  # big-endian
    ({"entries": 2**60}, "kv_count"),
    ({"tensors": 2**60}, "tensor_count"),
    ({"entries": 1, "body": struct.pack("<Q", 2**62) + b"x" * 64}, "metadata entry 0"),
    ({"entries": 1, "body": entry(b"k", 9, struct.pack("<IQ", 0, 2**60)) + b"x" * 64}, "k"),  # array of bytes
    ({"entries": 1, "body": entry(b"k", 9, struct.pack("<IQ", 8, 2**60)) + b"x" * 64}, "k"),  # array of strings
    ({"entries": 1, "body": entry(b"k", 9, struct.pack("<IQ", 9, 1)) + b"x" * 64}, "k"),  # array of arrays
    ({"entries": 1, "body": entry(b"k", 8, struct.pack("<Q", 2**63)) + b"x" * 64}, "k"),
    ({"entries": 1, "body": entry(b"k", 8, struct.pack("<Q", 2) + b"\xff\xff")}, "k"),
    ({"entries": 1, "body": entry(b"k", 77, b"x" * 64)}, "k"),
    ({"entries": 2, "body": entry(b"k", 0, b"x") + entry(b"k", 0, b"x") + bytes(32)}, "k"),
    ({"tensors": 1, "body": struct.pack("<Q1sI", 1, b"t", 2**31) + bytes(64)}, "t"),
    ({"tensors": 1, "body": struct.pack("<Q1sIQQIQ", 1, b"t", 2, 2**40, 2**40, 0, 0) + bytes(64)}, "t"),
    ({"tensors": 1, "body": struct.pack("<Q1sIQIQ", 1, b"t", 1, 0, 0, 0) + bytes(64)}, "t"),
    ({"tensors": 1, "body": struct.pack("<Q1sIQIQ", 1, b"t", 1, 16, 2, 0) + bytes(64)}, "t"),  # half a Q4_0 block
    ({"tensors": 1, "body": struct.pack("<Q1sIQIQ", 1, b"t", 1, 4, 999, 0) + bytes(64)}, "t"),
    ({"tensors": 1, "body": struct.pack("<Q1sIQIQ", 1, b"t", 1, 4, 0, 2**63) + bytes(64)}, "t"),
    ({"tensors": 1, "body": struct.pack("<Q1sIQIQ", 1, b"t", 1, 4, 0, 7) + bytes(64)}, "t"),
    ({"tensors": 2, "body": b"".join(struct.pack("<Q1sIQIQ", 1, n, 1, 4, 0, 0) for n in (b"a", b"b")) + bytes(96)},
     "b"),
])
def test_lying_counts_and_sizes_are_refused_without_allocating(tmp_path, arguments, field):
    path = raw_gguf(tmp_path / "bad.gguf", **arguments)
    tracemalloc.start()
    began = time.monotonic()
    with pytest.raises(ModelError) as caught:
        open_model(path)
    assert time.monotonic() - began < 2  # the first case imports gguf
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()
    assert caught.value.param == field


def test_truncated_and_flipped_files_never_fail_in_another_way(gguf_file, tmp_path):
    data, rng, bad = gguf_file().read_bytes(), random.Random(0), tmp_path / "bad.gguf"
    for cut in [4, 5, 23, 24, *range(25, len(data), 1531)]:
        bad.write_bytes(data[:cut])
        with pytest.raises(ModelError):
            open_model(bad)
    header = data.index(b"output_norm.weight") + 40
    refused = 0
    for _ in range(400):
        flipped = bytearray(data)
        flipped[rng.randrange(header)] ^= 1 << rng.randrange(8)
        bad.write_bytes(flipped)
        try:
            model = open_model(bad)
            model.read("model.norm.weight")
            model.file("tokenizer.json")
        except ModelError:
            refused += 1
    assert refused > 200


def valid_blocks(kind: Kind, weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Random bytes that are blocks of `kind` for a matrix: all but the f16 scales is drawn from every byte there is."""
    block, size = GGML_QUANT_SIZES[kind]
    count = weight.size // block
    raw = rng.integers(0, 256, (count, size), np.uint8)
    for at in {Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,)}[kind]:
        raw[:, at:at + 2] = rng.normal(0, 0.01, (count, 1)).astype(np.float16).view(np.uint8)
    return raw.reshape(weight.shape[0], -1)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K])
def test_every_format_equals_the_gguf_packages_own_dequantisation(gguf_file, kind):
    # Qwen2, whose rows are stored as they are; rows of 256, as K-quants need.
    config = {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 16,
              "num_key_value_heads": 8, "num_hidden_layers": 1}
    rng, stored = np.random.default_rng(0), []

    def blocks(weight):
        stored.append(valid_blocks(kind, weight, rng) if "_K" in kind.name else quantize(weight, kind))
        return stored[-1]

    model = open_model(gguf_file(kind, config=config, blocks=blocks))
    names = [name for name, weight in make_weights(CONFIG | config).items() if weight.ndim == 2]
    if kind != Kind.F32:  # the fixture stores f32 as it is
        assert len(stored) == len(names)
    for name, raw in zip(names, stored or [make_weights(CONFIG | config)[name] for name in names], strict=True):
        value, want = model.read(name), dequantize(raw, kind)
        assert value.dtype == np.float32 and np.array_equal(value.view(np.uint32), want.astype(np.float32).view(np.uint32)), name
        assert np.isfinite(value).all() and value.std() > 1e-4
    assert model.precision == ("F32" if kind == Kind.F32 else " + ".join(sorted({kind.name, "F32"})))


@pytest.mark.parametrize(("architecture", "changes"), [
    ("Qwen2ForCausalLM", {}), ("Qwen3ForCausalLM", {"head_dim": 32})])
def test_qwen_files_have_their_biases_and_norms_and_no_permutation(gguf_file, architecture, changes):
    config = CONFIG | {"architectures": [architecture]} | changes
    family = architecture.removesuffix("ForCausalLM").lower()
    model = open_model(gguf_file(Kind.F32, config=config, metadata={f"{family}.attention.key_length": config["head_dim"]}))
    weights = make_weights(config)
    assert model.tensors.keys() == weights.keys()
    assert any("q_proj.bias" in name or "q_norm" in name for name in weights)
    for name, weight in weights.items():
        assert np.array_equal(model.read(name), weight), name
    assert {key: model.config[key] for key in config if key != "model_type"} | {"model_type": family} == config | {
        "model_type": family}


def test_a_sliding_window_shorter_than_the_context_is_refused(gguf_file):
    assert open_model(gguf_file(metadata={"llama.attention.sliding_window": 256}))
    with pytest.raises(ModelError) as caught:
        open_model(gguf_file(name="b.gguf", metadata={"llama.attention.sliding_window": 255}))
    assert caught.value.param == "llama.attention.sliding_window"


scalars = st.one_of(st.booleans(), st.integers(-2**63, 2**64 - 1), st.integers(0, 300), st.floats(), st.text(max_size=8),
                    st.sampled_from(["llama", "qwen2", "qwen3", "yarn", "linear", "none", "gpt2"]))
values = st.one_of(scalars, st.lists(st.integers(0, 300), max_size=4), st.lists(st.text(max_size=4), max_size=4))
HYPERPARAMETERS = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon", "attention.sliding_window",
    "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor",
    "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast", "expert_count")
TOKENIZER = (
    "model", "pre", "tokens", "token_type", "merges", "bos_token_id", "eos_token_id", "eot_token_id", "padding_token_id",
    "unknown_token_id", "add_bos_token")
KEYS = ("general.architecture", "general.name", "split.count", "tokenizer.chat_template",
        *(f"llama.{key}" for key in HYPERPARAMETERS), *(f"tokenizer.ggml.{key}" for key in TOKENIZER))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=4))
def test_whatever_the_metadata_holds_only_a_model_error_comes_of_it(gguf_file, tmp_path, changes):
    path = tmp_path / "tiny.gguf"
    whole = read_gguf_header(path if path.exists() else gguf_file())
    with mock.patch.object(gguf_source, "read_gguf_header", lambda path: replace(whole, metadata=whole.metadata | changes)):
        try:
            model = open_model(path)
            for name in (*model.files, "tokenizer.json"):
                model.file(name)
            assert model.description and model.read("model.norm.weight").size
        except ModelError as error:
            assert error.param is not None
