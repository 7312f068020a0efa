"""Drafters' config.json in every dialect: one reading, and an error that names the field for everything else."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radiance_jax.errors import ModelError
from radiance_jax.models.draft.registry import is_drafter, read_drafter
from radiance_jax.models.draft.tensors import canonical, check_shapes
from radiance_jax.models.partition import partition

GOLDEN = Path(__file__).parent.parent / "golden" / "draft"
CONFIGS = {path.parent.name: json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*/config.json"))}
SLIDING, FULL = "sliding_attention", "full_attention"
MIXED = {"layer_types": [SLIDING, FULL], "sliding_window": 9, "use_sliding_window": True}


def raw(name: str, nested: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A published config.json with other fields; None removes one."""
    config = {k: v for k, v in (copy.deepcopy(CONFIGS[name]) | changes).items() if v is not None}
    block = {k: v for k, v in (config.get("dflash_config", {}) | (nested or {})).items() if v is not None}
    return config | ({"dflash_config": block} if block else {})


def read(name: str, nested: dict[str, Any] | None = None, **changes: Any):
    return read_drafter(raw(name, nested, **changes))


@pytest.mark.parametrize("name, family, drafts, depth, shifted, taps, window, causal", [
    ("dflash_zlab", "DFlash", 4, 4, False, (1, 4), None, (False, False)),
    ("dflash_specforge", "DFlash", 5, 5, False, (1, 3), None, (True, False)),
    ("dflash_speculators", "DFlash", 4, 3, False, (1, 4), 7, (True, True)),
    ("dflash_modelopt", "DFlash", 4, 4, False, (1, 4), 7, (False, False)),
    ("dflash_deepspec", "DSpark", 4, 4, True, (-1, 4), None, (False, False)),
    ("dflash2_zlab", "DFlash2", 5, 5, False, (1, 4), 7, (False, False)),
    ("dflash2_modelopt", "DFlash2", 4, 4, False, (1, 4), None, (True, True)),
    ("dspark_deepspec_rnn", "DSpark", 4, 4, True, (-1, 4), None, (False, False)),
    ("dspark_specforge", "DSpark", 4, 4, True, (1, 4), None, (False, False)),
    ("dspark_speculators", "DSpark", 4, 4, True, (1, 4), None, (False, False)),
    ("dspark_modelopt", "DSpark", 4, 4, True, (1, 4), None, (False, False))])
def test_every_dialect_comes_out_in_one_form(name, family, drafts, depth, shifted, taps, window, causal):
    drafter = read(name)
    assert (drafter.name, drafter.block, drafter.depth, drafter.taps, drafter.window) == (family, drafts, depth, taps, window)
    assert drafter.config.shifted == shifted and drafter.config.causal == causal
    assert is_drafter(CONFIGS[name]) and hash(drafter) == hash(read(name))


@pytest.mark.parametrize("layers, count, taps", [
    (36, 5, [1, 9, 17, 25, 33]), (32, 5, [1, 8, 15, 22, 29]), (64, 5, [1, 16, 31, 46, 61]), (16, 5, [1, 4, 7, 10, 13]),
    (64, 10, [1, 8, 14, 21, 28, 34, 41, 48, 54, 61]), (24, 5, [1, 6, 11, 16, 21]), (30, 1, [15])])
def test_taps_that_are_not_named_are_those_of_the_published_drafters(layers, count, taps):
    drafter = read("dflash_zlab", {"target_layer_ids": None}, num_target_layers=layers, num_hidden_layers=count, layer_types=None)
    assert list(drafter.taps) == taps


def test_taps_by_inputs_are_one_less_and_may_not_contradict_taps_by_outputs():
    assert read("dflash_zlab", {"target_layer_ids": None}, eagle_aux_hidden_state_layer_ids=[0, 3]).taps == (-1, 2)
    assert read("dflash_zlab", eagle_aux_hidden_state_layer_ids=[2, 5]).taps == (1, 4)
    with pytest.raises(ModelError, match=r"must be target_layer_ids \+ 1, \[2, 5\]: both are given"):
        read("dflash_zlab", eagle_aux_hidden_state_layer_ids=[1, 4])


def test_a_nested_field_wins_over_one_at_the_top():
    assert read("dflash_zlab", {"block_size": 3}, block_size=9).block == 2
    assert read("dflash_zlab", {"block_size": None}, block_size=None).block == 15  # what both published loaders assume


def test_the_slot_convention_is_the_familys_unless_the_file_says_otherwise():
    assert read("dflash_zlab", {"sample_from_anchor": True}).block == 5
    assert read("dspark_modelopt", {"sample_from_anchor": False}).block == 3  # over shift_label
    assert read("dspark_modelopt", {"shift_label": False}).config.shifted is False
    with pytest.raises(ModelError, match="sample_from_anchor must be true where markov_head_type is rnn"):
        read("dspark_deepspec_rnn", sample_from_anchor=False)


@pytest.mark.parametrize("changes, nested, windows, causal", [
    (MIXED, {}, (9, None), (True, False)), (MIXED | {"is_causal": False}, {}, (9, None), (False, False)),
    (MIXED, {"causal": True}, (9, None), (True, True)),
    (MIXED | {"is_causal": False}, {"causal": True}, (9, None), (False, False)),
    (MIXED | {"sliding_window_non_causal": True}, {}, (9, None), (False, False)),
    (MIXED | {"use_sliding_window": None}, {}, (9, None), (True, False)),
    (MIXED | {"layer_types": None, "max_window_layers": 1}, {}, (None, 9), (False, True)),
    ({"layer_types": None}, {"use_swa": True, "swa_window_size": 5}, (5, 5), (False, False)),
    ({}, {"use_swa": True, "swa_window_size": 5}, (5, 5), (False, False)),
    ({"layer_types": [FULL, FULL], "sliding_window": 9}, {}, (None, None), (False, False))])
def test_windows_and_causality_by_layer(changes, nested, windows, causal):
    config = read("dflash_zlab", nested, **changes).config
    assert (config.windows, config.causal) == (windows, causal)


def test_the_fields_of_a_family_decide_where_the_architecture_does_not():
    plain = {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 4, "selector_top_k": 3}
    assert read("dflash_zlab", plain).name == "DFlash2"
    assert read("dflash_zlab", {"projector_type": "dspark", "markov_rank": 4}).kind == "vanilla"
    with pytest.raises(ModelError, match="projector_type must be one of dflash, dflash2, dspark; got 'domino'"):
        read("dflash_zlab", {"projector_type": "domino"})


@pytest.mark.parametrize("name, nested, changes, words", [
    ("dflash_zlab", {}, {"architectures": ["DominoDraftModel"]}, "architectures must be a list with one of DFlashDraftModel"),
    ("dflash_zlab", {}, {"quantization_config": {"bits": 4}}, "quantization_config must be absent"),
    ("dflash_zlab", {"attention_sink_bias": True}, {}, "attention_sink_bias must be false or absent"),
    ("dspark_specforge", {"attention_mode": "mla"}, {}, "attention_mode must be gqa or mha or absent"),
    ("dflash_zlab", {"mask_token_id": 101}, {}, r"mask_token_id must be below vocab_size (101); got 101"),
    ("dflash_zlab", {"block_size": 1}, {}, "block_size must be a whole number from 2"),
    ("dflash_zlab", {"target_layer_ids": None}, {"num_target_layers": None}, "must be given, or num_target_layers"),
    ("dflash_zlab", {}, {"layer_types": [FULL]}, "layer_types must be a list of 2"),
    ("dflash_zlab", {}, {"layer_types": [SLIDING] * 2, "use_sliding_window": False}, "use_sliding_window must be true"),
    ("dflash_zlab", {}, MIXED | {"sliding_window": None}, "sliding_window must be a whole number"),
    ("dflash_zlab", {}, {"rope_scaling": {"rope_type": "longrope"}}, "rope_type must be one of"),
    ("dflash_speculators", {}, {"draft_vocab_size": 102}, r"draft_vocab_size must be at most vocab_size (101)"),
    ("dflash_speculators", {}, {"speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]}}, "from 1 to 4"),
    ("dflash2_zlab", {"conv_group_size": 5}, {}, r"conv_group_size must be a divisor of hidden_size (32)"),
    ("dflash2_zlab", {"conv_kernel_size": 7}, {}, r"conv_kernel_size must be at most block_size (6)"),
    ("dflash2_zlab", {"selector_rank": None}, {}, "selector_rank must be a whole number"),
    ("dspark_modelopt", {"markov_head_type": "lstm"}, {}, "markov_head_type must be one of vanilla, gated, rnn"),
    ("dspark_deepspec_vanilla", {}, {"markov_rank": 0}, "with_markov must be false where markov_rank is 0")])
def test_what_cannot_be_served_is_named(name, nested, changes, words):
    with pytest.raises(ModelError) as caught:
        read(name, nested, **changes)
    assert words in str(caught.value)


JUNK: tuple[Any, ...] = (None, -1, 0, 10**400, 1e400, float("nan"), True, "x", [], [[]], ["x", 1], {}, {"rope_type": []}, [-2],
                         [2**40])


@pytest.mark.parametrize("name", ("dflash_speculators", "dflash2_zlab", "dspark_specforge", "dspark_deepspec_rnn"))
def test_whatever_stands_in_a_field_it_is_read_or_named(name: str):
    blocks = [(), *((key,) for key, value in CONFIGS[name].items() if isinstance(value, dict))]
    failed = 0
    for path in blocks:
        keys = CONFIGS[name]
        for step in path:
            keys = keys[step]
        for key in (*keys, "sliding_window_non_causal", "shift_label", "causal", "speculators_config", "dspark_config"):
            for junk in JUNK:
                config = copy.deepcopy(CONFIGS[name])
                block = config
                for step in path:
                    block = block[step]
                block[key] = junk
                try:
                    read_drafter(config).shapes()
                except ModelError as error:
                    failed += 1
                    assert error.param, error
    assert failed > 100
    for config in JUNK:
        with pytest.raises(ModelError):
            read_drafter(config)


def test_names_of_every_dialect_become_one():
    for name, known in (
            ("logit_head.markov_head.markov_w1.weight", "markov_head.markov_w1.weight"), ("model.fc.weight", "fc.weight"),
            ("midlayer.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"), ("confidence_proj.bias", "confidence_head.proj.bias"),
            ("candidate_selector.predecessor_codebook.weight", "candidate_selector.predecessor_codebook"),
            ("gate_proj.weight", "markov_head.gate_proj.weight"),
            ("layers.1.mlp.gate_proj.weight", "layers.1.mlp.gate_proj.weight"),
            ("t2d", None), ("rotary_emb.inv_freq", None), ("verifier_norm.weight", None)):
        assert canonical(name) == known


def test_a_table_that_leads_out_of_the_vocabulary_is_named():
    drafter = read("dflash_speculators")
    with pytest.raises(ModelError, match=r"below vocab_size \(101\); got 38 to 101"):
        drafter.fuse(lambda name: np.full(64, 38), partition(drafter.config, 1), ("head_ids",))


def test_a_drafter_without_a_mask_is_named():
    with pytest.raises(ModelError, match="mask_token_id must be given"):
        read_drafter(raw("dflash_zlab", {"mask_token_id": None}), tensors=["fc.weight"])
    learned = read_drafter(raw("dflash_zlab", {"mask_token_id": None}), tensors=["mask_embedding"])
    assert learned.shapes()["mask_embedding"] == (32,)
    check_shapes("x", "DFlash", learned.shapes(), learned.shapes())
