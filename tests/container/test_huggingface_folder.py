"""Hugging Face folders: single and sharded, and what is wrong with the others."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from radiance_jax.container.source import eos_token_ids, open_model
from radiance_jax.errors import ModelError
from tiny_models import make_weights


def edit_json(path, **changes):
    value = json.loads(path.read_text())
    value.update(changes)
    path.write_text(json.dumps(value))


def test_shards_read_like_one_file(hf_folder):
    one, three = open_model(hf_folder()), open_model(hf_folder(shards=3, name="sharded"))
    assert one.format == three.format == "huggingface" and one.precision == "bf16"
    assert one.tensors.keys() == three.tensors.keys()
    for name in one.tensors:
        assert np.array_equal(one.read(name), three.read(name)) and one.tensors[name].shape == three.read(name).shape
    assert one.fingerprint != three.fingerprint and one.fingerprint.startswith("hf-")
    assert eos_token_ids(one) == (2, 0)
    with pytest.raises(ModelError, match="no weight is called"):
        one.read("nope")


def test_a_tied_head_needs_no_lm_head_and_ignores_a_copy(hf_folder):
    weights = make_weights()
    assert "lm_head.weight" not in open_model(hf_folder(weights=weights)).tensors
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    model = open_model(hf_folder(weights=weights, name="copy"))
    assert "lm_head.weight" not in model.tensors and len(model.tensors) == len(weights) - 2


def test_an_untied_head_is_required(hf_folder):
    with pytest.raises(ModelError, match="missing: lm_head.weight"):
        open_model(hf_folder(config={"tie_word_embeddings": False}, weights=make_weights()))
    assert "lm_head.weight" in open_model(hf_folder(config={"tie_word_embeddings": False}, name="untied")).tensors


@pytest.mark.parametrize("config, field", [
    ({"architectures": ["BertModel"]}, "architectures"),
    ({"architectures": "LlamaForCausalLM"}, "architectures"),
    ({"hidden_size": 0}, "hidden_size"),
    ({"hidden_size": "64"}, "hidden_size"),
    ({"num_hidden_layers": 2**30}, "num_hidden_layers"),
    ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight"),
    ({"intermediate_size": 97}, "model.layers.0.mlp.gate_proj.weight"),
    ({"rope_scaling": "yarn"}, "rope_scaling"),
    ({"rms_norm_eps": [1]}, "rms_norm_eps"),
    ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
])
def test_a_configuration_that_does_not_fit_is_named(hf_folder, config, field):
    folder = hf_folder()
    edit_json(folder / "config.json", **config)
    with pytest.raises(ModelError) as caught:
        open_model(folder)
    assert caught.value.param == field


def test_missing_and_unknown_tensors_are_named(hf_folder):
    weights = make_weights()
    gone = weights.pop("model.layers.1.mlp.up_proj.weight")
    with pytest.raises(ModelError, match="missing: model.layers.1.mlp.up_proj.weight"):
        open_model(hf_folder(weights=weights))
    weights |= {"model.layers.1.mlp.up_proj.weight": gone, "model.layers.1.mlp.side.weight": gone}
    with pytest.raises(ModelError, match="unknown: model.layers.1.mlp.side.weight"):
        open_model(hf_folder(weights=weights, name="more"))


@pytest.mark.parametrize("target", ["../evil.safetensors", "/etc/passwd", "a/b.safetensors", "..", "x\\y.safetensors",
                                    "model.bin", ".hidden.safetensors", 7, None, ["a"]])
def test_an_index_cannot_point_outside_its_folder(hf_folder, target, tmp_path):
    folder = hf_folder(shards=2)
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "evil.safetensors")
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    edit_json(index, weight_map=weight_map | {"model.norm.weight": target})
    with pytest.raises(ModelError, match="plain name") as caught:
        open_model(folder)
    assert caught.value.param == "model.norm.weight"


def test_shards_and_index_must_agree(hf_folder):
    folder = hf_folder(shards=2)
    index, shard = folder / "model.safetensors.index.json", "model-00002-of-00002.safetensors"
    weight_map = json.loads(index.read_text())["weight_map"]
    extra = folder / "model-00003-of-00003.safetensors"
    extra.write_bytes((folder / shard).read_bytes())
    with pytest.raises(ModelError, match="does not name: model-00003-of-00003"):
        open_model(folder)
    extra.unlink()
    edit_json(index, weight_map={n: s for n, s in weight_map.items() if n != "model.norm.weight"})
    with pytest.raises(ModelError, match="does not list for it: model.norm.weight"):
        open_model(folder)
    edit_json(index, weight_map=weight_map | {"ghost": shard})
    with pytest.raises(ModelError, match="lacks tensors that the index lists for it: ghost"):
        open_model(folder)
    edit_json(index, weight_map=weight_map)
    (folder / shard).unlink()
    with pytest.raises(ModelError, match=f"missing: {shard}"):
        open_model(folder)


def test_a_folder_without_a_model_says_what_is_missing(tmp_path, hf_folder):
    with pytest.raises(ModelError, match="config.json"):
        open_model(tmp_path)
    folder = hf_folder()
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="model.safetensors.index.json"):
        open_model(folder)
    (folder / "config.json").write_text("{nonsense")
    with pytest.raises(ModelError, match="valid JSON"):
        open_model(folder)
    (tmp_path / "text.txt").write_text("hello, this is no model")
    for path in (tmp_path / "text.txt", tmp_path / "absent"):
        with pytest.raises(ModelError, match="a Hugging Face folder or a .gguf file"):
            open_model(path)
