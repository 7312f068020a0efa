"""The `.rad` container: round trips, damage, and headers that lie."""

import json
import struct
import time
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from radiance_jax.container import rad_writer
from radiance_jax.container.conversion import convert
from radiance_jax.container.rad import NO_SUM, SUM_FIELD, checksum, open_rad, unsummed
from radiance_jax.container.rad_writer import RadWriter
from radiance_jax.container.safetensors_file import open_safetensors
from radiance_jax.errors import ModelError, UserError


@pytest.fixture
def rad(hf_folder, tmp_path):
    return convert(hf_folder(), tmp_path / "tiny.rad").path


def header_of(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length]), data[8 + length:]


def with_header(path, header, data, *, text=None):
    text = text if text is not None else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_weights_and_files_come_back_bit_for_bit(hf_folder, tmp_path):
    folder = hf_folder()
    source = open_safetensors(folder / "model.safetensors")
    model = open_rad(convert(folder, tmp_path / "out.rad").path)
    assert model.tensors.keys() == source.tensors.keys()
    for name in model.tensors:
        got = model.read(name)
        assert got.dtype == ml_dtypes.bfloat16 and got.base is not None and not got.flags.writeable
        assert got.ctypes.data % got.dtype.itemsize == 0
        assert np.array_equal(got.view(np.uint16), source.read(name).view(np.uint16))
    for name in model.files:
        assert model.file(name) == (folder / name).read_bytes()
    assert model.config["hidden_size"] == 64 and model.precision == "bf16"
    assert model.metadata["architecture"] == "LlamaForCausalLM"
    assert model.file("no such file") is None
    model.verify()


def test_the_safetensors_library_reads_it(rad):
    with safe_open(rad, "numpy") as file:
        assert set(file.keys()) == set(open_rad(rad).entries)
        assert file.metadata()["format"] == "rad"
        assert np.array_equal(file.get_tensor("file/config.json"),
                              np.frombuffer(open_rad(rad).file("config.json"), np.uint8))


def test_equal_input_gives_equal_bytes_and_fingerprint(hf_folder, tmp_path):
    folder = hf_folder()
    one, two = (convert(folder, tmp_path / f"{i}.rad").path for i in range(2))
    assert one.read_bytes() == two.read_bytes()
    assert open_rad(one).fingerprint == open_rad(two).fingerprint
    other = convert(folder, tmp_path / "f32.rad", "f32").path
    assert open_rad(other).fingerprint != open_rad(one).fingerprint


def test_every_truncation_is_named_at_once(rad, tmp_path):
    data = rad.read_bytes()
    cuts = [0, 1, 7, 8, 9, *range(16, len(data), 997), len(data) - 1]
    for cut in cuts:
        (tmp_path / "cut.rad").write_bytes(data[:cut])
        with pytest.raises(ModelError):
            open_rad(tmp_path / "cut.rad")
    (tmp_path / "cut.rad").write_bytes(data + b"x")
    with pytest.raises(ModelError, match="file has"):
        open_rad(tmp_path / "cut.rad")


def test_a_flipped_bit_in_the_header_is_found_on_opening(rad, tmp_path):
    data = rad.read_bytes()
    length = 8 + struct.unpack("<Q", data[:8])[0]
    for at in [*range(8), *range(8, length, 41)]:
        bad = bytearray(data)
        bad[at] ^= 1 << at % 8
        (tmp_path / "bad.rad").write_bytes(bad)
        with pytest.raises(ModelError):
            open_rad(tmp_path / "bad.rad")


def test_a_flipped_bit_in_the_data_is_found_by_verify_and_named(rad, tmp_path):
    data, model = rad.read_bytes(), open_rad(rad)
    for name in ("model.norm.weight", "model.layers.1.mlp.down_proj.weight", "file/tokenizer.json"):
        bad = bytearray(data)
        bad[model.entries[name].start + 5] ^= 4
        (tmp_path / "bad.rad").write_bytes(bad)
        with pytest.raises(ModelError, match=name) as caught:
            open_rad(tmp_path / "bad.rad").verify()
        assert caught.value.param == name


NORM = "model.norm.weight"


@pytest.mark.parametrize("change, field", [
    (lambda h: h[NORM].update(shape=[2**40, 2**40]), NORM),
    (lambda h: h[NORM].update(shape=[2**62]), NORM),
    (lambda h: h[NORM].update(shape=[-64]), NORM),
    (lambda h: h[NORM].update(shape=[64.0]), NORM),
    (lambda h: h[NORM].update(shape=[1] * 9), NORM),
    (lambda h: h[NORM].update(shape="64"), NORM),
    (lambda h: h[NORM].update(dtype="F31"), NORM),
    (lambda h: h[NORM].update(dtype=["BF16"]), NORM),
    (lambda h: h[NORM].update(data_offsets=[0, 128]), None),
    (lambda h: h[NORM].update(data_offsets=[128, 0]), NORM),
    (lambda h: h[NORM].update(data_offsets=[2**62, 2**62 + 128]), NORM),
    (lambda h: h[NORM].update(data_offsets=[0]), NORM),
    (lambda h: h[NORM].update(more=1), NORM),
    (lambda h: h.update({NORM: 7}), NORM),
    (lambda h: h.update(__metadata__=[]), "__metadata__"),
    (lambda h: h["__metadata__"].update(config={}), "__metadata__"),
    (lambda h: h["__metadata__"].update(format="pt"), "format"),
    (lambda h: h["__metadata__"].update(format_version="99"), "format_version"),
    (lambda h: h["__metadata__"].pop("header_checksum"), "header_checksum"),
])
def test_a_lying_header_is_refused_by_field_without_allocating(rad, change, field):
    header, data = header_of(rad)
    change(header)
    with_header(rad, header, data)
    tracemalloc.start()
    began = time.monotonic()
    with pytest.raises(ModelError) as caught:
        open_rad(rad)
    assert time.monotonic() - began < 1
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert field is None or caught.value.param == field
    assert str(rad) in str(caught.value)


@pytest.mark.parametrize("text", [
    b'{"a":1,"a":2}', b"[]", b"{", b'{"a":' + b"[" * 100_000, b'{"a":' + b"9" * 100_000 + b"}", b"\xff\xfe",
    b'{"a":"\xff"}', b'{"a":NaN}'])
def test_a_header_that_is_no_good_json_is_refused(tmp_path, text):
    with pytest.raises(ModelError):
        open_safetensors(with_header(tmp_path / "bad.safetensors", None, b"", text=text))


@pytest.mark.parametrize("length", [0, 1, 2**20, 2**40, 2**64 - 1])
def test_a_lying_header_length_is_refused(tmp_path, length):
    path = tmp_path / "bad.rad"
    path.write_bytes(struct.pack("<Q", length) + b"{}      ")
    with pytest.raises(ModelError, match="header length"):
        open_rad(path)


def test_a_hole_between_tensors_is_refused(tmp_path):
    header = {"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
              "b": {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]}}
    with pytest.raises(ModelError, match="hole"):
        open_safetensors(with_header(tmp_path / "x.safetensors", header, bytes(12)))


def writer(path, **changes):
    arguments = {"weights": {"w": ((2, 3), np.dtype(np.float32))}, "files": {"config.json": b"{}"},
                 "config": {"architectures": ["LlamaForCausalLM"]}, "precision": "f32", "source": {}}
    return RadWriter(path, **arguments | changes)


def test_a_failed_write_leaves_nothing_and_keeps_what_was_there(tmp_path, monkeypatch):
    out = tmp_path / "m.rad"
    out.write_bytes(b"old")
    for failure in (KeyboardInterrupt(), OSError(28, "No space left on device"), SystemExit(1)):
        with pytest.raises(type(failure)), writer(out, overwrite=True):
            raise failure
    with pytest.raises(ValueError, match="never added"), writer(out, overwrite=True):
        pass
    with pytest.raises(ValueError, match="announced"), writer(out, overwrite=True) as broken:
        broken.add("w", np.zeros((3, 2), np.float32))
    monkeypatch.setattr(rad_writer.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(OSError), writer(out, overwrite=True) as broken:
        broken.add("w", np.zeros((2, 3), np.float32))
    assert [p.name for p in tmp_path.iterdir()] == ["m.rad"] and out.read_bytes() == b"old"


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path):
    out = tmp_path / "m.rad"
    with pytest.raises(UserError, match="meanwhile"), writer(out) as late:
        late.add("w", np.zeros((2, 3), np.float32))
        out.write_bytes(b"theirs")
    assert out.read_bytes() == b"theirs" and len(list(tmp_path.iterdir())) == 1


def test_names_of_any_alphabet_and_empty_files_survive(tmp_path):
    with writer(tmp_path / "m.rad", files={"имя \"x\".json": "é".encode(), "empty": b""}) as out:
        out.add("w", np.ones((2, 3), np.float32))
    file = open_safetensors(tmp_path / "m.rad")
    assert file.read("file/имя \"x\".json").tobytes() == "é".encode()
    assert file.read("file/empty").shape == (0,)


@pytest.mark.parametrize("hashes", [5, ["a"], {"config.json": 7}])
def test_a_header_whose_checksum_is_right_and_whose_hashes_are_none(rad, hashes):
    header, data = header_of(rad)
    header["__metadata__"] |= {"source": json.dumps({"sha256": hashes}), "header_checksum": NO_SUM}
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.replace(SUM_FIELD + NO_SUM.encode(), SUM_FIELD + checksum(unsummed(text)).encode())
    with pytest.raises(ModelError, match="'source' must give sha256") as caught:
        open_rad(with_header(rad, None, data, text=text))
    assert caught.value.param == "source"


def test_a_name_twice_among_many_is_found_at_once(tmp_path):
    names = [f"n{i}" for i in range(30_000)]
    text = "{" + ",".join(f'"{name}":{{}}' for name in [*names, names[-1]]) + "}"
    started = time.monotonic()
    with pytest.raises(ModelError, match="'n29999' comes twice"):
        open_safetensors(with_header(tmp_path / "twice.safetensors", None, b"", text=text.encode()))
    assert time.monotonic() - started < 2
