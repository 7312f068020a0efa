"""Converting any readable model to `.rad`, one tensor in memory at a time."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from radiance_jax.container.rad_writer import RadWriter
from radiance_jax.container.safetensors_file import DTYPES
from radiance_jax.container.source import COMPANIONS, open_model
from radiance_jax.errors import ModelError, UserError

PRECISIONS = {"bf16": DTYPES["BF16"], "f32": DTYPES["F32"]}

Progress = Callable[[str, int, int], None]  # tensor, bytes written before it, bytes in all


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What a conversion wrote: size of the file in bytes, number of weights, wall seconds."""

    path: Path
    nbytes: int
    tensors: int
    seconds: float


def convert(source_path: Path | str, out_path: Path | str, dtype: str = "bf16", progress: Progress | None = None, *,
            overwrite: bool = False, description: str | None = None) -> Converted:
    """Writes the model at `source_path` (any format `open_model` reads) to `out_path` with weights in `dtype`.

    Holds one tensor in memory at a time; `out_path` appears whole or not at all, and equal input gives equal bytes.
    Raises `UserError` for a bad argument or a full disk, `ModelError` for a source that cannot be served.
    """
    if dtype not in PRECISIONS:
        raise UserError(f"dtype must be one of {', '.join(PRECISIONS)}; got {dtype!r}", param="dtype")
    began, out = time.monotonic(), Path(out_path)
    if out.suffix != ".rad":
        raise UserError(f"the output must end in .rad; got {out}", param="out")
    if out.exists() and not overwrite:  # also checked by the writer; here before the source is hashed
        raise UserError(f"{out} must not exist yet; remove it or ask to overwrite it (--force)", param="out")
    source, target = open_model(source_path), PRECISIONS[dtype]
    files = {name: data for name in COMPANIONS if (data := source.file(name))}
    if "tokenizer.json" not in files:
        raise ModelError(f"{source.path}: a model must come with its tokenizer.json, and there is none",
                         param="tokenizer.json")
    weights = {name: (info.shape, target) for name, info in source.tensors.items()}
    total = sum(info.size for info in source.tensors.values()) * target.itemsize
    done = 0
    origin = {"description": description or source.description, "format": source.format,
              "precision": source.precision, "sha256": source.source_hashes()}
    try:
        with RadWriter(out, weights=weights, files=files, config=source.config, precision=dtype, source=origin,
                       overwrite=overwrite) as writer:
            for name in writer.names:
                if progress:
                    progress(name, done, total)
                array = source.read(name)
                writer.add(name, np.asarray(array, target))
                done += array.size * target.itemsize
    except OSError as error:
        raise UserError(f"{out}: must be writable with {total} bytes free; {error.strerror or error}. Nothing was "
                        "left behind.", param="out") from error
    if progress:
        progress("", done, total)
    return Converted(path=out, nbytes=writer.nbytes, tensors=len(weights), seconds=time.monotonic() - began)
