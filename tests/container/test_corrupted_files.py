"""Two hundred damaged model files, through the functions behind `info` and `serve`: a clear error, or the model whole.

Bits flipped, ends cut off, bytes put in, and headers that lie about sizes, offsets, types and counts. Whatever is not
refused must load; nothing else than `UserError` (of which `ModelError` is one) may come out, quickly and without
allocating what the header claims.
"""

import random
import resource
import struct
import time
from collections import Counter
from pathlib import Path

import pytest

from radiance_jax.container.conversion import convert
from radiance_jax.container.source import open_model
from radiance_jax.errors import UserError
from radiance_jax.info import describe
from radiance_jax.mesh import make_mesh
from radiance_jax.models.config import parse_config
from radiance_jax.models.load import load_params
from radiance_jax.models.partition import partition
from radiance_jax.text.chat import ChatTemplate
from radiance_jax.text.tokenizer import Tokenizer

SECONDS, BYTES = 10, 512 << 20  # what one damaged file may take
HUGE = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1)


def use(path: Path) -> None:
    """Everything `info` and a starting engine ask of a model file."""
    import jax.numpy as jnp

    describe(open_model(path))
    model = open_model(path)
    config = parse_config(model.config)
    ChatTemplate.from_model(model, Tokenizer.from_model(model))
    load_params(config, partition(config, 1), model, make_mesh(1), jnp.float32)


def flipped(rng: random.Random, raw: bytearray, end: int) -> bytearray:
    for _ in range(rng.choice((1, 1, 2, 8))):
        raw[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return raw


def number(rng: random.Random, raw: bytearray, end: int) -> bytearray:
    """A count, size or offset that is not true, at any place of the header, aligned or not."""
    at = rng.randrange(max(end - 8, 1))
    raw[at:at + 8] = struct.pack("<Q", rng.choice(HUGE))
    return raw


def digits(rng: random.Random, raw: bytearray, end: int) -> bytearray:
    """Digits of a JSON header changed; of a binary one, bytes that look like digits."""
    places = [at for at in range(min(end, len(raw))) if 48 <= raw[at] <= 57]
    for at in rng.sample(places, min(len(places), rng.choice((1, 3)))):
        raw[at] = rng.choice(b"0123456789-e.")
    return raw


def damage(rng: random.Random, raw: bytes, header: int) -> bytes:
    kind, out = rng.randrange(8), bytearray(raw)
    if kind == 0:
        return bytes(out[:rng.randrange(len(out))])
    if kind == 1:
        return bytes(out[:rng.randrange(header)])
    if kind == 2:
        at = rng.randrange(header)
        return bytes(out[:at] + rng.randbytes(rng.choice((1, 7, 64))) + out[at:])
    if kind == 3:
        out[:8 if rng.random() < 0.5 else 24] = rng.randbytes(8 if rng.random() < 0.5 else 24)
        return bytes(out)
    if kind == 4:
        return bytes(number(rng, out, header))
    if kind == 5:
        return bytes(digits(rng, out, header))
    return bytes(flipped(rng, out, header if kind == 6 else len(out)))


def header_size(path: Path, raw: bytes) -> int:
    """Bytes before the weights."""
    if path.suffix == ".gguf":
        return raw.rindex(b"ffn_") if b"ffn_" in raw else len(raw) // 4
    return 8 + struct.unpack("<Q", raw[:8])[0]


@pytest.fixture
def originals(hf_folder, gguf_file, tmp_path) -> dict[str, Path]:
    folder = hf_folder()
    rad = tmp_path / "tiny.rad"
    convert(folder, rad)
    return {"rad": rad, "gguf": gguf_file(), "safetensors": folder / "model.safetensors", "config": folder / "config.json",
            "tokenizer": folder / "tokenizer.json"}


SHARES = {"rad": 70, "gguf": 70, "safetensors": 40, "config": 10, "tokenizer": 10}


@pytest.mark.parametrize("kind", SHARES)
@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_damaged_files_end_in_a_clear_error_or_load(originals, kind, times):
    path = originals[kind]
    place = path.parent if kind in ("safetensors", "config", "tokenizer") else path
    raw, seen = path.read_bytes(), Counter()
    use(place)
    header = len(raw) if path.suffix == ".json" else header_size(path, raw)
    for seed in range(SHARES[kind] * times):
        rng = random.Random(f"{kind} {seed}")
        path.write_bytes(damage(rng, raw, header))
        started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            use(place)
            seen["loaded"] += 1
        except UserError as error:
            assert str(error).strip(), seed
            seen[type(error).__name__] += 1
        except Exception as error:
            raise AssertionError(f"{kind}, seed {seed}: {type(error).__name__}: {error}") from error
        assert time.monotonic() - started < SECONDS, (kind, seed)
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < BYTES, (kind, seed)
    print(kind, dict(seen))
    assert seen["ModelError"] + seen["UserError"] > SHARES[kind] * times // 3
