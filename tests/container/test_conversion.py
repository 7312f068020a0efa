"""`python -m radiance_jax.convert`: what it writes, and that it writes all or nothing."""

import os
import signal
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from radiance_jax.container import conversion, huggingface
from radiance_jax.container.conversion import convert
from radiance_jax.container.rad import open_rad
from radiance_jax.container.rad_writer import RadWriter
from radiance_jax.container.source import open_model
from radiance_jax.convert import main
from radiance_jax.errors import ModelError, UserError
from tiny_models import CONFIG, make_weights


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("dtype, numpy_type", [("bf16", ml_dtypes.bfloat16), ("f32", np.float32)])
def test_every_format_converts_to_the_same_weights(hf_folder, gguf_file, tmp_path, dtype, numpy_type):
    weights = make_weights()
    from gguf import GGMLQuantizationType
    for index, path in enumerate((hf_folder(weights=weights), hf_folder(shards=3, name="s"),
                                  gguf_file(GGMLQuantizationType.F32))):
        rad = open_model(convert(path, tmp_path / f"{index}.rad", dtype).path)
        assert rad.format == "rad" and rad.precision == dtype
        for name, weight in weights.items():
            want = weight if index != 1 else weight.astype(ml_dtypes.bfloat16)
            assert np.array_equal(rad.read(name), want.astype(numpy_type)), name
        rad.verify()
        again = open_model(convert(rad.path, tmp_path / f"{index}b.rad", dtype).path)
        assert np.array_equal(again.read("model.norm.weight"), rad.read("model.norm.weight"))
        assert again.file("tokenizer.json") == rad.file("tokenizer.json")


@pytest.mark.parametrize("family", ("Qwen2", "Qwen3"))
def test_qwen_folders_and_files_convert_to_the_same_weights(hf_folder, gguf_file, tmp_path, family):
    from gguf import GGMLQuantizationType
    config = {"architectures": [f"{family}ForCausalLM"], "model_type": family.lower()}
    folder = hf_folder(config=config, weights=make_weights(CONFIG | config))
    file = gguf_file(GGMLQuantizationType.F32, config=config)
    one, two = (open_model(convert(path, tmp_path / f"{i}.rad", "f32").path) for i, path in enumerate((folder, file)))
    assert one.config["architectures"] == two.config["architectures"] == config["architectures"]
    assert one.tensors.keys() == two.tensors.keys() == make_weights(CONFIG | config).keys()
    for name in one.tensors:
        assert np.array_equal(one.read(name), two.read(name)), name


def test_source_hashes_are_those_of_the_files(hf_folder, tmp_path):
    folder = hf_folder(shards=2)
    rad = open_rad(convert(folder, tmp_path / "m.rad").path)
    assert rad.source_hashes() == open_model(folder).source_hashes()
    assert set(rad.source_hashes()) == set(names(folder)) - {"model.safetensors.index.json"}


def test_the_command_reports_bytes_tensors_and_seconds_and_refuses_to_overwrite(hf_folder, tmp_path):
    folder, out = hf_folder(), tmp_path / "out" / "m.rad"
    def run(*more):
        return subprocess.run([sys.executable, "-m", "radiance_jax.convert", folder, out, *more],
                              capture_output=True, text=True, check=False)
    done = run("--dtype", "f32")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{out}: {out.stat().st_size} bytes, 20 tensors, ")
    before = out.read_bytes()
    done = run()
    assert done.returncode == 2 and "--force" in done.stderr and "Traceback" not in done.stderr
    assert out.read_bytes() == before
    assert run("--force").returncode == 0 and open_rad(out).precision == "bf16"
    done = run("--force", "--draft-model", "somewhere")
    assert done.returncode == 2 and "somewhere" in done.stderr and "folder" in done.stderr


def test_bad_arguments_are_named(hf_folder, tmp_path):
    folder = hf_folder()
    for out, dtype, param in ((tmp_path / "m.bin", "bf16", "out"), (tmp_path / "m.rad", "fp8", "dtype")):
        with pytest.raises(UserError) as caught:
            convert(folder, out, dtype)
        assert caught.value.param == param
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="tokenizer.json"):
        convert(folder, tmp_path / "m.rad")


@pytest.mark.parametrize("status, interrupt", [
    (130, lambda: (_ for _ in ()).throw(KeyboardInterrupt)),
    (143, lambda: os.kill(os.getpid(), signal.SIGTERM)),
    (2, lambda: (_ for _ in ()).throw(OSError(28, "No space left on device")))])
def test_an_interrupted_conversion_leaves_nothing(hf_folder, tmp_path, monkeypatch, status, interrupt, capsys):
    folder, out, reads = hf_folder(), tmp_path / "out", []
    read = huggingface.HuggingFaceSource.read

    def interrupted(self, name):
        reads.append(name)
        if len(reads) == 5:
            assert len(names(out)) == 1  # the temporary file is there
            interrupt()
        return read(self, name)

    monkeypatch.setattr(huggingface.HuggingFaceSource, "read", interrupted)
    try:
        code = main([str(folder), str(out / "m.rad")])
    except SystemExit as exit:
        code = exit.code
    assert code == status and names(out) == []


def test_one_tensor_at_a_time(hf_folder, tmp_path, monkeypatch):
    """Never two reads without a write between them."""
    events = []
    for owner, method in ((huggingface.HuggingFaceSource, "read"), (RadWriter, "add")):
        original = getattr(owner, method)
        monkeypatch.setattr(owner, method, lambda self, *a, _m=method, _f=original: (
            events.append(_m), _f(self, *a))[1])
    conversion.convert(hf_folder(), tmp_path / "m.rad")
    weights = events[:events.index("add") + 1] + events[2:40]
    assert weights == ["read", "add"] * 20


def test_container_and_text_never_import_jax_or_torch():
    code = ("import sys, radiance_jax.convert, radiance_jax.info, radiance_jax.container.default_model, "
            "radiance_jax.text.output, radiance_jax.text.chat; "
            "sys.exit(' '.join(m for m in ('jax', 'torch', 'transformers', 'gguf') if m in sys.modules) or None)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
