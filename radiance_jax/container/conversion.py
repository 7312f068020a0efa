"""Converting any readable model to `.rad`, one tensor in memory at a time."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from radiance_jax.container.drafter import DraftCheckpoint, check_fits, copied, drafter_of, open_drafter
from radiance_jax.container.rad_writer import RadWriter
from radiance_jax.container.safetensors_file import DTYPES
from radiance_jax.container.source import COMPANIONS, Source, open_model
from radiance_jax.container.weights import DRAFT_PREFIX
from radiance_jax.errors import ModelError, UserError
from radiance_jax.models.config import parse_config

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
            overwrite: bool = False, description: str | None = None, draft_path: Path | str | None = None) -> Converted:
    """Writes the model at `source_path` (any format `open_model` reads) to `out_path` with weights in `dtype`, and with it
    the drafter in the folder `draft_path`, or else the one that the source holds already.

    Holds one tensor in memory at a time; `out_path` appears whole or not at all, and equal input gives equal bytes.
    Raises `UserError` for a bad argument or a full disk, `ModelError` for a source that cannot be served.
    """
    if dtype not in PRECISIONS:
        raise UserError(f"dtype must be one of {', '.join(PRECISIONS)}; got {dtype!r}", param="dtype")
    began, out = time.monotonic(), Path(out_path)
    if out.suffix != ".rad":
        raise UserError(f"the output must end in .rad; got {out}", param="out")
    if os.path.isdir(out):
        raise UserError(f"the output must be a file; {out} is a folder", param="out")
    if os.path.exists(out) and not overwrite:  # also checked by the writer; here before the source is hashed
        raise UserError(f"{out} must not exist yet; remove it or ask to overwrite it (--force)", param="out")
    source, target = open_model(source_path), PRECISIONS[dtype]
    drafter = drafter_of(source) if draft_path is None else open_drafter(draft_path)
    if drafter is not None:
        check_fits(str(draft_path or source.path), drafter.drafter, parse_config(source.config))
        if drafter.drafter.config.mapped:
            drafter.drafter.head_ids(drafter.read)
    files = {name: data for name in COMPANIONS if (data := source.file(name))}
    if "tokenizer.json" not in files:
        raise ModelError(f"{source.path}: a model must come with its tokenizer.json, and there is none",
                         param="tokenizer.json")
    weights = {name: (info.shape, target) for name, info in source.tensors.items() if not name.startswith(DRAFT_PREFIX)}
    weights |= _draft_weights(drafter, source, target)
    total = sum(math.prod(shape) * stored.itemsize for shape, stored in weights.values())
    done = 0
    origin = {"description": description or source.description, "format": source.format,
              "precision": source.precision, "sha256": source.source_hashes()}
    draft = None if drafter is None else {
        "config": drafter.raw, "source": {"description": drafter.description, "sha256": dict(drafter.sha256)}}
    try:
        with RadWriter(out, weights=weights, files=files, config=source.config, precision=dtype, source=origin,
                       overwrite=overwrite, draft=draft) as writer:
            for name in writer.names:
                if progress:
                    progress(name, done, total)
                drafted = name.startswith(DRAFT_PREFIX)
                array = drafter.read(name.removeprefix(DRAFT_PREFIX)) if drafted else source.read(name)
                stored = weights[name][1]
                writer.add(name, np.asarray(array, stored))
                done += array.size * stored.itemsize
    except OSError as error:
        raise UserError(f"{out}: must be writable with {total} bytes free; {error.strerror or error}. Nothing was "
                        "left behind.", param="out") from error
    if progress:
        progress("", done, total)
    return Converted(path=out, nbytes=writer.nbytes, tensors=len(weights), seconds=time.monotonic() - began)


def _draft_weights(drafter: DraftCheckpoint | None, source: Source,
                   target: np.dtype) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shapes and types of what is stored of the drafter: its copies of the target's ends are not."""
    if drafter is None:
        return {}
    left_out = copied(drafter, source, target)
    return {DRAFT_PREFIX + name: (info.shape, DTYPES["I32"] if name == "d2t" else target)
            for name, info in drafter.tensors.items() if name not in left_out}
