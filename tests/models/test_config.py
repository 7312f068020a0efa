"""config.json to `ModelConfig`: the families, and files that lie."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from radiance_jax.errors import ModelError
from radiance_jax.models.config import ModelConfig, RopeConfig, parse_config
from radiance_jax.models.fields import Fields
from radiance_jax.models.layers import rotary_frequencies
from radiance_jax.models.partition import partition
from radiance_jax.models.tensors import tensor_shapes

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 151, "max_position_embeddings": 256}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False, "sliding_window": 131072,
                 "max_window_layers": 2, "layer_types": ["full_attention"] * 2}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}


def features(config: ModelConfig) -> tuple:
    return config.attention_bias, config.output_bias, config.mlp_bias, config.qk_norm, config.head_size


def test_the_families_differ_in_biases_norms_and_head_size():
    assert features(parse_config(LLAMA)) == (False, False, False, False, 16)
    assert features(parse_config(LLAMA | {"attention_bias": True, "mlp_bias": True})) == (True, True, True, False, 16)
    assert features(parse_config(QWEN2)) == (True, False, False, False, 16)
    assert features(parse_config(QWEN3)) == (False, False, False, True, 32)
    assert parse_config({k: v for k, v in QWEN3.items() if k != "head_dim"}).head_size == 128
    extra = tensor_shapes(parse_config(QWEN3)).keys() - tensor_shapes(parse_config(LLAMA)).keys()
    assert extra == {f"model.layers.{i}.self_attn.{x}_norm.weight" for i in (0, 1) for x in "qk"}
    extra = tensor_shapes(parse_config(QWEN2)).keys() - tensor_shapes(parse_config(LLAMA)).keys()
    assert extra == {f"model.layers.{i}.self_attn.{x}_proj.bias" for i in (0, 1) for x in "qkv"}


def test_both_spellings_of_rope_say_the_same():
    old = parse_config(LLAMA | {"rope_theta": 500000.0, "rope_scaling": {k if k != "rope_type" else "type": v for k, v in
                                                                        LLAMA3.items()}})
    new = parse_config(LLAMA | {"rope_parameters": LLAMA3 | {"rope_theta": 500000}})
    assert old.rope == new.rope and old.rope.kind == "llama3" and old.rope.theta == 5e5
    assert parse_config(LLAMA | {"rope_theta": None, "rope_scaling": None}).rope == RopeConfig()
    yarn = {"rope_type": "yarn", "factor": 4, "attention_factor": None}
    assert parse_config(LLAMA | {"rope_scaling": yarn}).rope == RopeConfig(kind="yarn", factor=4.0, original_max_position=256)


@pytest.mark.parametrize(("changes", "field"), [
    ({"architectures": None}, "architectures"), ({"architectures": "LlamaForCausalLM"}, "architectures"),
    ({"architectures": ["Qwen2MoeForCausalLM"]}, "architectures"), ({"architectures": {"0": 1}}, "architectures"),
    ({"hidden_size": 0}, "hidden_size"), ({"hidden_size": -64}, "hidden_size"), ({"hidden_size": 64.0}, "hidden_size"),
    ({"hidden_size": True}, "hidden_size"), ({"hidden_size": "64"}, "hidden_size"), ({"hidden_size": 2**31}, "hidden_size"),
    ({"hidden_size": 10**5000}, "hidden_size"), ({"hidden_size": None}, "hidden_size"),
    ({"num_attention_heads": 0}, "num_attention_heads"), ({"num_attention_heads": 5}, "num_key_value_heads"),
    ({"num_key_value_heads": 3}, "num_key_value_heads"), ({"num_key_value_heads": 8}, "num_key_value_heads"),
    ({"hidden_size": 66}, "head_dim"), ({"hidden_size": 2}, "head_dim"), ({"head_dim": 15}, "head_dim"),
    ({"head_dim": -2}, "head_dim"), ({"head_dim": [16]}, "head_dim"),
    ({"vocab_size": 0}, "vocab_size"), ({"intermediate_size": "x"}, "intermediate_size"),
    ({"max_position_embeddings": 1}, "max_position_embeddings"), ({"hidden_act": "gelu"}, "hidden_act"),
    ({"hidden_act": 3}, "hidden_act"),
    ({"rms_norm_eps": math.nan}, "rms_norm_eps"), ({"rms_norm_eps": math.inf}, "rms_norm_eps"),
    ({"rms_norm_eps": 0}, "rms_norm_eps"), ({"rms_norm_eps": -1e-5}, "rms_norm_eps"), ({"rms_norm_eps": "1e-5"}, "rms_norm_eps"),
    ({"rms_norm_eps": [1]}, "rms_norm_eps"), ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
    ({"rope_theta": -1e4}, "rope_theta"), ({"rope_theta": 0}, "rope_theta"), ({"rope_theta": math.nan}, "rope_theta"),
    ({"rope_theta": "1e4"}, "rope_theta"), ({"rope_theta": False}, "rope_theta"),
    ({"rope_parameters": {"rope_theta": -1}}, "rope_theta"), ({"rope_scaling": "yarn"}, "rope_scaling"),
    ({"rope_scaling": ["yarn"]}, "rope_scaling"), ({"rope_scaling": {"type": "longrope"}}, "type"),
    ({"rope_scaling": {"rope_type": 7}}, "rope_type"), ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor"),
    ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor"),
    ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "high_freq_factor"),
    ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": None}}, "original_max_position_embeddings"),
    ({"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 0}}, "beta_fast"),
    ({"rope_scaling": {"type": "yarn", "factor": 2, "truncate": 1}}, "truncate"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "full_attention"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"), ({"attention_bias": 1}, "attention_bias"),
    ({"mlp_bias": []}, "mlp_bias"), ({"use_sliding_window": True}, "use_sliding_window"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"), ({"layer_types": 3}, "layer_types"),
    ({"eos_token_id": 151}, "eos_token_id"), ({"eos_token_id": [2, -1]}, "eos_token_id"),
    ({"eos_token_id": "2"}, "eos_token_id"), ({"eos_token_id": [[2]]}, "eos_token_id"), ({"eos_token_id": True}, "eos_token_id"),
    ({"bos_token_id": 10**9}, "bos_token_id"),
])
def test_a_field_that_lies_is_named(changes, field):
    for family in (LLAMA, QWEN2):
        with pytest.raises(ModelError) as caught:
            parse_config(family | changes)
        if not (family is QWEN2 and field in ("attention_bias", "mlp_bias")):
            assert caught.value.param == field and field in str(caught.value) and len(str(caught.value)) < 400
        if family is LLAMA and field in ("attention_bias", "mlp_bias"):
            break


def test_what_is_no_object_is_refused():
    for raw in (None, [], "x", 3, float("nan")):
        with pytest.raises(ModelError, match="JSON object"):
            parse_config(raw)
        if raw is not None:
            with pytest.raises(ModelError):
                Fields({"a": raw}).block("a")


numbers = st.one_of(st.integers(), st.integers(1, 4096), st.floats(), st.sampled_from([0, 1, 2, 2**31 - 1, 2**31, 10**400]))
plain = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8),
                  st.sampled_from(["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "silu", "yarn", "llama3",
                                   "linear", "default", "full_attention"]))
junk = st.recursive(plain, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner,
                                                                                              max_size=3)), max_leaves=6)
rope_keys = ("rope_type", "type", "factor", "rope_theta", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
             "attention_factor", "mscale", "mscale_all_dim", "truncate", "original_max_position_embeddings",
             "partial_rotary_factor")
sensible = {
    "rope_type": st.sampled_from(["default", "linear", "llama3", "yarn"]), "factor": st.floats(1, 1e6),
    "rope_theta": st.floats(1.001, 1e20), "original_max_position_embeddings": st.integers(1, 2**31 - 1),
    "low_freq_factor": st.floats(1e-3, 10), "high_freq_factor": st.floats(1e-3, 1e6), "beta_fast": st.floats(1e-3, 1e6),
    "beta_slow": st.floats(1e-3, 1e6), "truncate": st.booleans()}
ropes = st.one_of(junk, st.dictionaries(st.sampled_from(rope_keys), junk, max_size=5),
                  st.fixed_dictionaries(sensible, optional={"attention_factor": st.floats(1e-3, 1e3), "mscale": st.floats(0, 9),
                                                            "mscale_all_dim": st.floats(0, 9)}))
KEYS = (*LLAMA, "head_dim", "hidden_act", "rms_norm_eps", "rope_theta", "partial_rotary_factor", "tie_word_embeddings",
        "attention_bias", "mlp_bias", "use_sliding_window", "layer_types", "eos_token_id", "bos_token_id")


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([LLAMA, QWEN2, QWEN3]), st.dictionaries(st.sampled_from(KEYS), junk, max_size=4),
       st.dictionaries(st.sampled_from(["rope_parameters", "rope_scaling"]), ropes, max_size=2))
@example(LLAMA, {}, {"rope_scaling": {"rope_type": "yarn", "factor": 1e6, "rope_theta": 1.001, "beta_fast": 1e-3}})
def test_whatever_the_fields_hold_only_a_model_error_comes_of_it(family, changes, rope):
    try:
        config = parse_config(family | changes | rope)
    except ModelError as error:
        assert error.param is not None
        return
    cut = partition(config, 4)
    assert cut.local_heads > 0 and cut.vocab_size >= config.vocab_size
    if config.head_size <= 4096:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            frequencies, factor = rotary_frequencies(config.rope, config.head_size)
        assert np.isfinite(frequencies).all() and math.isfinite(factor) and factor > 0
