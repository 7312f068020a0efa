"""`python -m radiance_jax.info`: what it counts."""

import json
import shutil

import pytest

from radiance_jax.container import default_model
from radiance_jax.container.conversion import convert
from radiance_jax.container.source import open_model
from radiance_jax.info import describe, main


def test_every_format_is_described_alike(hf_folder, gguf_file, tmp_path, capsys):
    folder = hf_folder()
    rad = convert(folder, tmp_path / "m.rad").path
    for path in (folder, gguf_file(), rad):
        assert main([str(path), "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        blocks = facts["parameters"]["blocks"]
        assert {name: values["parameters"] for name, values in blocks.items()} == {
            "embedding": 263 * 64, "attention": 2 * (2 * 64 * 64 + 2 * 32 * 64), "mlp": 2 * 3 * 96 * 64,
            "norms": 5 * 64, "head": 0}
        assert facts["parameters"]["total"] == sum(v["parameters"] for v in blocks.values())
        assert facts["parameters"]["per_layer"] == 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64 + 2 * 64
        assert facts["kv_bytes_per_token"] == {"bf16": 2 * 2 * 2 * 16 * 2, "f32": 2 * 2 * 2 * 16 * 4}
        assert facts["context_length"] == 256 and facts["tokenizer"] and facts["chat_template"]
        assert main([str(path)]) == 0
        out = capsys.readouterr().out
        assert "embedding" in out and "tied" in out and "bytes per token" in out


def test_weights_are_not_read(hf_folder, monkeypatch):
    from radiance_jax.container.huggingface import HuggingFaceSource
    monkeypatch.setattr(HuggingFaceSource, "read", lambda *a: pytest.fail("a weight was read"))
    monkeypatch.setattr(HuggingFaceSource, "source_hashes", lambda *a: pytest.fail("a file was hashed"))
    assert describe(open_model(hf_folder()))["precision"] == "bf16"


def test_an_untied_head_is_counted(hf_folder):
    facts = describe(open_model(hf_folder(config={"tie_word_embeddings": False})))
    assert facts["parameters"]["blocks"]["head"]["parameters"] == 263 * 64


def test_without_a_name_it_describes_the_default_model_in_the_cache(hf_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RADIANCE_CACHE", str(tmp_path / "cache"))
    assert main([]) == 2
    assert "not in the cache yet" in capsys.readouterr().err
    (tmp_path / "cache").mkdir()
    rad = convert(hf_folder(), tmp_path / "m.rad").path
    shutil.copy(rad, default_model.default_model_path(tmp_path / "cache"))
    assert main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == open_model(rad).fingerprint


def test_an_error_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.startswith("error: a model must be")


def test_verify_finds_a_damaged_weight_that_the_header_does_not_show(hf_folder, tmp_path, capsys):
    rad = convert(hf_folder(), tmp_path / "m.rad").path
    assert main([str(rad), "--verify", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["format"] == "rad" and "as their checksums say" in said.err
    info = open_model(rad).tensors["model.layers.1.mlp.up_proj.weight"]
    raw = bytearray(rad.read_bytes())
    raw[info.start + 5] ^= 1
    rad.write_bytes(raw)
    assert main([str(rad)]) == 0
    capsys.readouterr()
    assert main([str(rad), "--verify"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "damaged: model.layers.1.mlp.up_proj.weight. Convert or copy" in said.err


def test_verify_needs_a_file_with_checksums(hf_folder, capsys):
    assert main([str(hf_folder()), "--verify"]) == 2
    assert "--verify needs a .rad file" in capsys.readouterr().err
