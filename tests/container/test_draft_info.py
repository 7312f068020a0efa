"""`info` on drafters: in a container, in their own folder, and from a config.json alone."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from radiance_jax.container.conversion import convert
from radiance_jax.info import main
from radiance_jax.mesh import ArraySpec
from radiance_jax.models.draft.registry import read_drafter
from radiance_jax.models.partition import partition
from tests.tiny_model import CONFIG, make

GOLDEN = Path(__file__).parent.parent / "golden" / "draft"
# z-lab's DFlash2 for Qwen3.8-27B, whose file holds 1,924.40 M parameters.
QWEN_27B = {
    "architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 17408,
    "num_hidden_layers": 5, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 248320,
    "max_position_embeddings": 262144, "rope_parameters": {"rope_type": "default", "rope_theta": 1e7}, "num_target_layers": 64,
    "is_causal": False, "layer_types": ["sliding_attention"] * 5, "sliding_window": 2048, "use_sliding_window": True,
    "dflash_config": {"block_size": 8, "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16,
                      "mask_token_id": 248070, "target_layer_ids": [5, 19, 33, 47, 61]}}


def described(folder: Path, raw: dict, capsys) -> dict:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(raw))
    assert main([str(folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_config_alone_implies_the_published_count_and_cache(tmp_path, capsys):
    facts = described(tmp_path / "d2", QWEN_27B, capsys)["drafter"]
    assert facts["parameters"]["total"] == 1_924_404_480
    assert facts["parameters"]["parts"] == {
        "mlp": 1_336_934_400, "attention": 262_144_000, "taps": 131_072_000, "selector": 2 * 248_320 * 256 + 256 * 5120,
        "convolution": 10 * (2 * 2 * 5120 + 1280 * 5120), "norms": 62_720}
    assert facts["kv_bytes_per_token"]["bf16"] == 20_480 and facts["kv_bytes_at_most"]["bf16"] == 2048 * 20_480
    assert (facts["drafts"], facts["depth"], facts["window"], facts["causal"]) == (7, 7, 2048, [False] * 5)
    wide = described(tmp_path / "wide", QWEN_27B | {"sliding_window": 8192}, capsys)["drafter"]
    assert wide["kv_bytes_at_most"]["bf16"] == 160 << 20
    plain = {key: value for key, value in QWEN_27B.items() if "sliding" not in key and key != "layer_types"}
    ours = {"architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 16, 31, 46, 61]}}
    full = described(tmp_path / "full", plain | ours, capsys)
    assert full["drafter"]["parameters"]["total"] == 1_336_934_400 + 262_144_000 + 131_072_000 + 62_720
    assert full["drafter"]["kv_bytes_at_most"] is None and full["drafter"]["drafts"] == 15
    assert main([str(tmp_path / "d2")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1,924,404,480" in out and "20,480 bytes per token" in out and "2,048 positions" in out


def test_the_arrays_on_the_device_are_those_of_the_file():
    """At one rank this shape needs no padding: as many values are laid out as the file holds; at four, copies alone are more."""
    drafter = read_drafter(QWEN_27B)
    c = drafter.config

    def values(tp: int) -> int:
        cut = partition(c, tp)
        return sum(spec.nbytes // 2 for spec in jax.tree.leaves(
            drafter.param_specs(cut, jnp.bfloat16), is_leaf=lambda leaf: isinstance(leaf, ArraySpec)))

    assert values(1) == values(4) == 1_924_404_480
    rings = drafter.cache_specs(partition(c, 4), 3, 100_000, jnp.bfloat16)
    assert sum(ring.nbytes for ring in rings) == 3 * 2048 * c.kv_bytes_per_token(2)


def test_a_targets_config_alone_is_counted_like_its_weights(tmp_path, capsys):
    whole = make(tmp_path / "whole")
    assert main([str(whole), "--json"]) == 0
    counted = json.loads(capsys.readouterr().out)
    implied = described(tmp_path / "config", CONFIG, capsys)
    assert implied["parameters"]["total"] == counted["parameters"]["total"] and implied["format"] == "config.json alone"
    assert implied["kv_bytes_per_token"] == counted["kv_bytes_per_token"] and implied["precision"] == "bf16"


def test_a_container_says_what_drafts_in_it_and_how_large_that_is(tmp_path, capsys):
    target = make(tmp_path / "target", hidden_size=32, vocab_size=101, num_hidden_layers=6, num_attention_heads=4,
                  num_key_value_heads=2, head_dim=8, intermediate_size=40)
    rad = convert(target, tmp_path / "m.rad", draft_path=GOLDEN / "dspark_specforge").path
    assert main([str(rad), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    drafter = facts["drafter"]
    assert drafter["family"] == "DSpark" and drafter["borrows"] == ["embedding", "head"] and drafter["taps"] == [1, 4]
    assert drafter["parameters"]["total"] == facts["parameters"]["draft"] == facts["parameters"]["blocks"]["draft"]["parameters"]
    assert drafter["share"] == pytest.approx(facts["parameters"]["draft"] / facts["parameters"]["total"])
    assert main([str(rad)]) == 0
    assert f"{drafter['share']:.1%} of the target's" in " ".join(capsys.readouterr().out.split())
    assert main([str(GOLDEN / "dspark_specforge"), "--json"]) == 0  # its folder by itself
    own = json.loads(capsys.readouterr().out)["drafter"]
    assert own["parameters"] == drafter["parameters"] and own["share"] is None


def test_a_config_of_nothing_known_is_one_error(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"architectures": ["OtherModel"]}')
    assert main([str(tmp_path)]) == 2
    assert "architectures" in capsys.readouterr().err
