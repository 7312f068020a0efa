"""From a configuration to a warm device: the decisions of start-up, each said in one log line."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from radiance_jax.config import EngineConfig
from radiance_jax.container.default_model import NAME as DEFAULT_NAME
from radiance_jax.container.default_model import ensure_default_model
from radiance_jax.container.source import open_model
from radiance_jax.engine.compile import CompileGuard, compile_all, use_persistent_cache
from radiance_jax.engine.device import Device
from radiance_jax.engine.hooks import Hooks
from radiance_jax.engine.state import Capacity, admission_size
from radiance_jax.engine.steps import Programs, StepShape, lower_admission, lower_step
from radiance_jax.errors import UserError
from radiance_jax.mesh import make_mesh, parse_mesh
from radiance_jax.models import llama
from radiance_jax.models.config import ModelConfig, parse_config
from radiance_jax.models.load import load_params
from radiance_jax.models.partition import Partition, partition
from radiance_jax.text.chat import ChatTemplate
from radiance_jax.text.tokenizer import Tokenizer

# Measured on a 2-core CPU (docs/measurements/cpu_tile.json): in bf16 a step of one tile of 4 rows takes 0.73 of the time of
# a tile of 8, and two tiles of 4 take no more than one of 8. Drafts that fill the tile of their anchor are nearly free.
CPU_TILE, CPU_DEPTH, GPU_DEPTH = 4, 3, 7
CPU_ROWS, GPU_ROWS = 64, 512
CPU_PAGE, GPU_PAGE = 128, 64
DTYPES = {"bf16": jnp.bfloat16, "f32": jnp.float32}


@dataclass(frozen=True, kw_only=True)
class Built:
    name: str
    model_config: ModelConfig
    capacity: Capacity
    device: Device
    guard: CompileGuard
    tokenizer: Tokenizer
    chat: ChatTemplate
    defaults: dict[str, Any]
    eos: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What start-up decided from configuration and platform."""

    platform: str
    dtype: str
    exact: bool
    tile: int | None
    depth: int


def choose(config: EngineConfig, platform: str) -> Choices:
    cpu = platform == "cpu"
    if config.bit_exact == "on" and not cpu:
        raise UserError(f"bit_exact=on cannot be kept on platform {platform!r}: XLA picks another matrix product for other "
                        "row counts, and this version has no row-invariant kernels for it. Use --bit-exact off.",
                        param="bit_exact")
    exact = cpu and config.bit_exact != "off"
    window, most = config.spec_ngram, config.num_speculative_tokens
    if window is None:
        window = (CPU_DEPTH if cpu else GPU_DEPTH) if most == "auto" else most
    return Choices(platform=platform, dtype="bf16" if config.dtype == "auto" else config.dtype, exact=exact,
                   tile=(config.row_tile or CPU_TILE) if exact else None, depth=window if most == "auto" else min(window, most))


def plan_capacity(config: EngineConfig, model: ModelConfig, cut: Partition, chosen: Choices, log: Callable[[str], None]) -> Capacity:
    cpu = chosen.platform == "cpu"
    length = config.max_model_len or model.max_position
    if length > model.max_position:
        raise UserError(f"max_model_len must be at most the model's context of {model.max_position}; got {length}", param="max_model_len")
    rows = config.max_num_batched_tokens or (CPU_ROWS if cpu else GPU_ROWS)
    rows = max(rows, config.max_num_seqs)
    if chosen.tile:  # a single tile compiles to other code than a loop of them
        rows = max(-(-rows // chosen.tile), 2) * chosen.tile
    page = config.page_size or (CPU_PAGE if cpu else GPU_PAGE)
    full = -(-length // page)
    pages = config.kv_pages or _auto_pages(config, model, cut, chosen, page, full)
    if pages < full:
        if config.kv_pages and config.max_model_len:
            raise UserError(f"kv_pages must hold one sequence of max_model_len {length}: {full} pages of {page}; got {pages}", param="kv_pages")
        length, full = pages * page, pages
        log(f"context: {length} tokens, as many as the key/value pool of {pages} pages holds")
    return Capacity(slots=config.max_num_seqs, length=length, rows=rows, pages=pages + 1, page_size=page, depth=chosen.depth)


def _auto_pages(config: EngineConfig, model: ModelConfig, cut: Partition, chosen: Choices, page: int, full: int) -> int:
    """Enough for every sequence at full length, within an eighth of host memory or half of a device's."""
    per_page = page * 2 * model.num_layers * cut.kv_heads * model.head_size * jnp.dtype(DTYPES[chosen.dtype]).itemsize
    stats = None if chosen.platform == "cpu" else jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        budget = (stats["bytes_limit"] - stats.get("bytes_in_use", 0)) // 2 * cut.tp
    else:
        budget = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8
    return max(min(config.max_num_seqs * full, budget // per_page), 2)


def build(config: EngineConfig, log: Callable[[str], None], hooks: Hooks = Hooks()) -> Built:
    """Opens, decides, loads, compiles and warms up. Raises `UserError` for what cannot be served."""
    platform = jax.default_backend()
    chosen = choose(config, platform)
    mesh = make_mesh(parse_mesh(config.mesh))
    cache_dir = Path(config.cache_dir or Path.home() / ".cache" / "radiance_jax")
    path = Path(config.model) if config.model else ensure_default_model(cache_dir, chosen.dtype)
    model = open_model(path)
    settings = parse_config(model.config)
    cut = partition(settings, mesh.size)
    tokenizer = Tokenizer.from_model(model)
    chat = ChatTemplate.from_model(model, tokenizer)
    name = getattr(config, "served_model_name", None) or (path.stem if config.model else DEFAULT_NAME)
    log(f"model: {name}, {settings.architecture}, {settings.num_layers} layers, width {settings.width}, vocabulary {settings.vocab_size}, {chosen.dtype}")
    log(f"mesh: tp={mesh.size} on {platform} ({mesh.devices.flat[0].device_kind})" + _padding(settings, cut))
    capacity = plan_capacity(config, settings, cut, chosen, log)
    log(f"drafting: prompt lookup, up to {capacity.depth} tokens ({config.spec_ngram_min} to {config.spec_ngram_max}-grams)"
        if capacity.depth else "drafting: off")
    log("bit-exact: on; ids and logprobs do not depend on drafting, batch mates, chunking or capacity" if chosen.exact else
        "bit-exact: OFF; drafting and batch mates may change roundings, and with them now and then a token"
        + ("" if platform == "cpu" else f" (not yet to be had on {platform})"))

    dtype = DTYPES[chosen.dtype]
    specs = llama.param_specs(settings, cut, dtype)
    cache = llama.cache_spec(settings, cut, capacity.pages, capacity.page_size, dtype)
    log(f"key/value pool: {capacity.pages - 1} pages of {capacity.page_size} tokens, "
        f"{(capacity.pages - 1) * capacity.page_size} tokens, {cache.nbytes * settings.num_layers / 2**20:.0f} MiB; "
        f"{capacity.slots} sequences of up to {capacity.length}")
    if config.compile_cache:
        use_persistent_cache(cache_dir / "compiled")
    started = time.monotonic()
    lowered: dict[Any, Any] = {"admit": lower_admission(capacity, cut.vocab_size, mesh, admission_size(capacity))}
    for rows in row_buckets(capacity.rows, platform, chosen.dtype) if chosen.tile is None else (capacity.rows,):
        shape = StepShape(rows=rows, tile=chosen.tile, segment=chosen.tile or min(rows, 8),
                          block_pages=1 if chosen.tile or platform == "cpu" else 8,
                          ngram_longest=config.spec_ngram_max, ngram_shortest=config.spec_ngram_min)
        lowered[rows] = lower_step(settings, cut, capacity, shape, mesh, specs, (cache,) * settings.num_layers, hooks)
    compiled = compile_all(lowered, threads=min(os.cpu_count() or 1, 8))
    log(f"programs: {len(compiled) - 1} step and 1 admission, compiled in {time.monotonic() - started:.1f} s")
    started = time.monotonic()
    params = load_params(settings, cut, model, mesh, dtype)
    log(f"weights: loaded in {time.monotonic() - started:.1f} s")
    programs = Programs(steps={rows: compiled[rows] for rows in sorted(k for k in compiled if k != "admit")}, admit=compiled["admit"])
    device = Device(mesh=mesh, params=params, capacity=capacity, programs=programs,
                    cache_specs=(cache,) * settings.num_layers, padded_vocab=cut.vocab_size, knobs=hooks.knobs)
    device.warm_up()
    defaults = generation_defaults(model)
    return Built(name=name, model_config=settings, capacity=capacity, device=device, guard=CompileGuard(), tokenizer=tokenizer,
                 chat=chat, defaults=defaults, eos=eos_ids(settings, defaults))


def row_buckets(most: int, platform: str, dtype: str) -> tuple[int, ...]:
    """Row counts of the step programs where there is one program per count, ascending, the last one `most`.

    On a GPU 16 rows cost what one costs, so there are few and the least is 8: a lone sequence then runs the very
    same program with and without drafts. A CPU's one-row bf16 product is ten times slower than its two-row one.

    In:  most 96, "cpu", "bf16"    Out: (2, 4, 8, 16, 32, 64, 96)
    """
    least, factor = (8, 4) if platform != "cpu" else (2 if dtype == "bf16" else 1, 2)
    sizes = []
    while least < most:
        sizes.append(least)
        least *= factor
    return (*sizes, most)


def generation_defaults(model: Any) -> dict[str, Any]:
    import json

    raw = model.file("generation_config.json")
    return dict(json.loads(raw)) if raw else {}


def eos_ids(settings: ModelConfig, defaults: dict[str, Any]) -> tuple[int, ...]:
    """Ids that end an answer: those of generation_config.json, else of config.json."""
    eos = defaults.get("eos_token_id")
    if eos is None:
        return settings.eos_token_ids
    return tuple(eos) if isinstance(eos, list) else (eos,)


def _padding(settings: ModelConfig, cut: Partition) -> str:
    if (cut.heads, cut.kv_heads) == (settings.num_heads, settings.num_kv_heads):
        return ""
    return f"; heads {settings.num_heads}/{settings.num_kv_heads} served as {cut.heads}/{cut.kv_heads} (zero-padded, exact)"
