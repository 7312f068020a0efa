"""From a configuration to a warm device: the decisions of start-up, each said in one log line."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from radiance_jax.config import EngineConfig, known_defaults
from radiance_jax.container.default_model import NAME as DEFAULT_NAME
from radiance_jax.container.default_model import model_file
from radiance_jax.container.drafter import check_fits, drafter_of
from radiance_jax.container.hub import hub_id
from radiance_jax.container.source import Source, json_object, open_model
from radiance_jax.engine import prices
from radiance_jax.engine.check import heights_agree, programs_agree
from radiance_jax.engine.compile import CompileGuard, compile_all, use_persistent_cache
from radiance_jax.engine.device import Device
from radiance_jax.engine.drafting import CPU_SLOT_TILES, Drafting
from radiance_jax.engine.hooks import NO_HOOKS, Hooks
from radiance_jax.engine.kernels import (
    FF_MULTIPLE,
    GPUS,
    HOPPER,
    compute_capability,
    kernels_for,
    machine_obstacle,
    model_obstacle,
    partials_bytes,
)
from radiance_jax.engine.kinds import row_steps
from radiance_jax.engine.ladder import Ladder, programs_of
from radiance_jax.engine.memory import compiled_workspace, plan_memory, visible_memory
from radiance_jax.engine.request import MAX_STOP_TOKENS, SamplingParams
from radiance_jax.engine.state import STOPS, Capacity
from radiance_jax.engine.shelf import Shelf
from radiance_jax.engine.steps import StepShape
from radiance_jax.errors import ModelError, UserError
from radiance_jax.mesh import make_mesh, with_remote
from radiance_jax.models import llama
from radiance_jax.models.config import ModelConfig, parse_config
from radiance_jax.models.fields import Fields, token_ids
from radiance_jax.models.load import load_params, place_params
from radiance_jax.models.partition import Partition, partition
from radiance_jax.models.rows import Heights
from radiance_jax.spec.cost import CostTable
from radiance_jax.spec.drafter import Drafter
from radiance_jax.spec.planner import NEVER, Rules
from radiance_jax.text.chat import ChatTemplate, read_template
from radiance_jax.text.tokenizer import Tokenizer
from radiance_jax.wire import describe as describe_wire

# (height, least rows that take one more such tile), tallest first. Chosen on a 2-core CPU in bf16, where a step of one tile
# costs more the taller it is, but far less than in proportion (docs/measurements/cpu_tile.json): low tiles serve the lone
# sequence, drafts that fill up a tile of 8 are cheap, and tall ones read prompts.
CPU_TILES = ((32, 17), (8, 3), (2, 1))
CPU_HEAD_TILE, CPU_ONE_TILE, CPU_SEGMENT, GPU_SEGMENT = 4, 4, 4, 8
CPU_DEPTH, GPU_DEPTH = 7, 7
CPU_ROWS, GPU_ROWS = 64, 512
CPU_PAGE, GPU_PAGE = 128, 64
DTYPES = {"bf16": jnp.bfloat16, "f32": jnp.float32}


@dataclass(frozen=True, kw_only=True)
class Built:
    name: str
    model_config: ModelConfig
    capacity: Capacity
    tiles: Heights | None
    exact: bool
    kept: int  # programs that were compiled before this start
    device: Device
    guard: CompileGuard
    tokenizer: Tokenizer
    chat: ChatTemplate
    defaults: dict[str, Any]
    eos: tuple[int, ...]
    rules: Rules
    cost: CostTable
    drafting_cost: CostTable  # of steps in which a neural drafter runs
    cost_file: Path | None


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What start-up decided from configuration and platform."""

    platform: str
    dtype: str
    exact: bool
    tiles: Heights | None
    depth: int  # K: drafts a step verifies, at most
    lookup: int  # of which prompt lookup may propose
    kernels: bool  # whether rows go through the row-invariant GPU kernels
    obstacle: str | None = None  # why exactness was wished for (or left to us) and is not kept


def choose(config: EngineConfig, platform: str, drafter: Drafter | None = None, capability: str | None = None) -> Choices:
    """What can be said before the model's sizes are looked at. `capability`: of the GPU (default: the first visible one's)."""
    cpu, dtype = platform == "cpu", "bf16" if config.dtype == "auto" else config.dtype
    exact = config.bit_exact != "off" and config.wire.name == "exact"
    window, most = config.spec_ngram, config.num_speculative_tokens
    if drafter is not None:
        if most == "auto":
            most = drafter.depth
        if most > drafter.block:
            raise UserError(f"num_speculative_tokens must be at most {drafter.block}, which is what {drafter.name} proposes at "
                            f"once; got {most}. Use --drafter off for deeper drafts by prompt lookup alone.", param="num_speculative_tokens")
    if window is None:
        window = (CPU_DEPTH if cpu else GPU_DEPTH) if most == "auto" else most
    lookup = window if most == "auto" else min(window, most)
    tiles = None if not (cpu and exact) else ((config.row_tile, 1),) if config.row_tile else CPU_TILES
    chosen = Choices(platform=platform, dtype=dtype, exact=exact, tiles=tiles, kernels=exact and not cpu,
                     depth=lookup if drafter is None else most, lookup=lookup)
    if chosen.kernels:
        capability = capability or (compute_capability() if platform in GPUS else None)
        return without_exactness(config, chosen, machine_obstacle(platform, capability, dtype))
    return chosen


def without_exactness(config: EngineConfig, chosen: Choices, obstacle: str | None) -> Choices:
    """What is left of the choices where there is an obstacle. Raises `UserError` where exactness was demanded."""
    if obstacle is None:
        return chosen
    if config.bit_exact == "on":
        raise UserError(f"bit_exact=on cannot be kept: {obstacle}. Use --bit-exact off.", param="bit_exact")
    return replace(chosen, exact=False, kernels=False, tiles=None, obstacle=obstacle)


def largest_step(config: EngineConfig, model: ModelConfig, chosen: Choices) -> Capacity:
    """Sizes that do not depend on memory: slots, rows, page size, and the longest context wanted. No pages yet."""
    cpu = chosen.platform == "cpu"
    length = config.max_model_len or model.max_position
    if length > model.max_position:
        raise UserError(f"max_model_len must be at most the model's context of {model.max_position}; got {length}",
                        param="max_model_len")
    rows = config.max_num_batched_tokens or (CPU_ROWS if cpu else GPU_ROWS)
    budget = rows = max(rows, config.max_num_seqs)
    if chosen.tiles:  # whole tiles, and two at least: a single tile compiles to other code than a loop of them
        tallest = chosen.tiles[0][0]
        rows = max(-(-rows // tallest), 2) * tallest
    if chosen.kernels:
        rows = row_steps(rows)[-1]
    return Capacity(slots=config.max_num_seqs, length=length, rows=rows, budget=budget, pages=1, depth=chosen.depth,
                    page_size=config.page_size or (CPU_PAGE if cpu else GPU_PAGE))


def build(config: EngineConfig, log: Callable[[str], None], hooks: Hooks = NO_HOOKS) -> Built:
    """Opens, decides, loads, compiles and warms up. Raises `UserError` for what cannot be served."""
    platform = jax.default_backend() if hooks.interpret is None else GPUS[0]
    capability = None if hooks.interpret is None else HOPPER
    chosen = choose(config, platform, capability=capability)
    mesh = make_mesh(config.mesh_size)
    cache_dir = Path(config.cache_dir or Path.home() / ".cache" / "radiance_jax")
    path = model_file(config.model, cache_dir, chosen.dtype, log)
    model = open_model(path)
    settings = parse_config(model.config)
    drafter, draft_tensors = hooks.drafter or container_drafter(model, settings, config.drafter)
    chosen = choose(config, platform, drafter, capability)
    cut = partition(settings, mesh.size, FF_MULTIPLE if chosen.kernels else 1)
    if chosen.kernels:
        chosen = without_exactness(config, chosen, model_obstacle(settings, cut, config.page_size or GPU_PAGE))
        cut = cut if chosen.kernels else partition(settings, mesh.size)
    kernels = kernels_for(settings, hooks.interpret) if chosen.kernels else None
    said = drafting_lines(config, chosen, drafter, config.max_model_len or settings.max_position)
    if chosen.depth == 0:
        drafter = None
    tokenizer = Tokenizer.from_model(model)
    chat = ChatTemplate.from_model(model, tokenizer, config.chat_template and read_template(config.chat_template))
    defaults = generation_defaults(model)
    eos = eos_ids(settings, defaults)
    name = getattr(config, "served_model_name", None) or model_name(config.model, path)
    log(f"model: {name}, {settings.architecture}, {settings.num_layers} layers, width {settings.width}, "
        f"vocabulary {settings.vocab_size}, {chosen.dtype}")
    log(f"mesh: tp={mesh.size} on {platform} ({mesh.devices.flat[0].device_kind})" + _padding(settings, cut))
    dtype = DTYPES[chosen.dtype]
    plan = plan_memory(config, settings, cut, largest_step(config, settings, chosen),
                       (chosen.tiles[0][0], CPU_HEAD_TILE) if chosen.tiles else None, dtype,
                       visible_memory(jax.default_backend(), mesh.size), drafter,
                       None if kernels is None else lambda capacity: partials_bytes(settings, cut, capacity, kernels))
    capacity = plan.capacity
    if config.max_model_len is None and capacity.length < settings.max_position:
        log(f"context: {capacity.length} of the model's {settings.max_position} tokens, as many as the key/value pool holds")
    for line in said:
        log(line)
    log("bit-exact: on; ids and logprobs do not depend on drafting, batch mates, chunking or capacity" if chosen.exact else
        "bit-exact: OFF; drafting and batch mates may change roundings, and with them now and then a token"
        + (" (a lossy wire)" if config.wire.name != "exact" else f". {chosen.obstacle}" if chosen.obstacle else ""))
    if kernels is not None:
        log(f"kernels: row-invariant, splits of {kernels.split} positions")
    wire = with_remote(config.wire, mesh)
    buckets = (row_steps(capacity.rows) if kernels is not None else (capacity.rows,) if chosen.tiles else
               row_buckets(capacity.rows, platform, chosen.dtype))
    if mesh.size > 1:
        log(describe_wire(wire, mesh.size, settings.width, buckets))

    specs = llama.param_specs(settings, cut, dtype)
    cache = llama.cache_spec(settings, cut, capacity.pages, capacity.page_size, dtype)
    started = time.monotonic()
    drafting = None if drafter is None else Drafting(
        drafter=drafter, config=settings, cut=cut, depth=capacity.depth, length=capacity.length, row_tiles=chosen.tiles,
        slot_tiles=CPU_SLOT_TILES if chosen.tiles else None)
    shapes = [StepShape(rows=rows, tiles=chosen.tiles, head_tile=CPU_HEAD_TILE,
                        segment=CPU_SEGMENT if chosen.tiles else min(rows, GPU_SEGMENT),
                        block_pages=1 if chosen.tiles or platform == "cpu" else 8,
                        ngram_longest=config.spec_ngram_max, ngram_shortest=config.spec_ngram_min, lookup=chosen.lookup,
                        drafting=drafting, p_min=p_min_of(config), wire=wire) for rows in buckets]
    caches = (cache,) * settings.num_layers
    ladder = Ladder(model=settings, cut=cut, capacity=capacity, shapes=shapes, kernels=kernels, mesh=mesh, params=specs,
                    caches=caches, hooks=hooks)
    shelf = Shelf(cache_dir, ladder.described(), mesh) if config.compile_cache and hooks is NO_HOOKS else None
    if config.compile_cache and shelf is None:
        use_persistent_cache(cache_dir / "compiled")
    programs = programs_of(compile_all(ladder.programs(), threads=min(os.cpu_count() or 1, 8), shelf=shelf))
    kept = shelf.found if shelf else 0
    log(f"programs: {sum(map(len, programs.groups))} step and 1 admission, "
        f"{kept} of them kept from before, ready in {time.monotonic() - started:.1f} s")
    plan = plan.with_compiled(compiled_workspace(*programs.groups))
    for line in plan.table():
        log(line)
    started = time.monotonic()
    params, draft = load_params(settings, cut, model, mesh, dtype), {}
    if drafter is not None:
        specs = drafter.param_specs(cut, dtype)
        draft = {"draft_params": place_params(specs, lambda path: drafter.fuse(draft_tensors, cut, path), mesh),
                 "draft_cache_specs": drafter.cache_specs(cut, capacity.slots, capacity.length, dtype)}
    log(f"weights: loaded in {time.monotonic() - started:.1f} s")
    device = Device(mesh=mesh, params=params, capacity=capacity, programs=programs,
                    cache_specs=caches, padded_vocab=cut.vocab_size, knobs=hooks.knobs,
                    **draft)
    device.warm_up()
    if chosen.tiles and len(chosen.tiles) > 1:
        names = ", ".join(str(height) for height, _ in chosen.tiles)
        if not heights_agree(device, settings.vocab_size, min(capacity.length - 1, capacity.rows), chosen.tiles):
            log(f"check: tiles of {names} rows do NOT give the same bits on this machine; "
                f"starting again with tiles of {CPU_ONE_TILE}")
            return build(replace(config, row_tile=CPU_ONE_TILE), log, hooks)
        log(f"check: a row has the same bits in tiles of {names} rows on this machine")
    if kernels is not None and kernels.interpret is None:
        names = ", ".join(map(str, buckets))
        started = time.monotonic()
        if not programs_agree(device, settings.vocab_size, capacity.length - 1, buckets):
            found = f"programs of {names} rows do not give the same bits on this machine"
            without_exactness(config, chosen, found)
            log(f"check: {found}; starting again without bit-exactness")
            return build(replace(config, bit_exact="off"), log, hooks)
        log(f"check: a row has the same bits in programs of {names} rows on this machine ({time.monotonic() - started:.1f} s)")
    no_prices = partial(prices.table, capacity, chosen.tiles, CPU_HEAD_TILE, tuple(programs.steps))
    cost, drafting_cost = no_prices(), no_prices()
    cost_file = prices.place(cache_dir, mesh, {
        "name": name, "model": settings, "dtype": chosen.dtype, "tiles": chosen.tiles, "capacity": capacity,
        "steps": list(programs.steps), "drafter": drafter, "wire": wire, "kernels": kernels}) if config.compile_cache else None
    if capacity.depth and config.draft_window == "adaptive":
        started = time.monotonic()
        found = cost_file is not None and cost.load(cost_file) and prices.hold(cost, device, capacity)
        if not found:
            cost = no_prices()
            prices.measure(cost, device, capacity)
            if device.drafter_apart:
                prices.measure(drafting_cost, device, capacity, with_drafter=True)
            if cost_file is not None:  # of another hour as well
                prices.beside(cost_file).unlink(missing_ok=True)
        elif drafter is not None:  # until such steps were taken, they count as costing what others do
            drafting_cost.load(prices.beside(cost_file))
        log(prices.line(cost, found, time.monotonic() - started))
    return Built(name=name, model_config=settings, capacity=capacity, tiles=chosen.tiles, exact=chosen.exact, kept=kept, device=device,
                 guard=CompileGuard(), tokenizer=tokenizer, chat=chat, defaults=defaults, eos=eos,
                 rules=rules_of(config, chosen, drafter), cost=cost, drafting_cost=drafting_cost,
                 cost_file=cost_file)


def p_min_of(config: EngineConfig) -> float:
    """`auto`: no floor, the adaptive window prices every draft."""
    return 0.0 if config.draft_p_min == "auto" else config.draft_p_min


def rules_of(config: EngineConfig, chosen: Choices, drafter: Drafter | None) -> Rules:
    """What the settings say of drafting. `auto`: no short block."""
    return Rules(depth=chosen.depth, longest=config.spec_ngram_max, shortest=config.spec_ngram_min, lookup=chosen.lookup,
                 as_planned=chosen.tiles is None, neural=drafter is not None, p_min=p_min_of(config),
                 short_from=config.draft_short_from if isinstance(config.draft_short_from, int) else NEVER)


def container_drafter(model: Source, settings: ModelConfig,
                      wanted: str = "auto") -> tuple[Drafter, Callable[[str], Any]] | tuple[None, None]:
    """The drafter in the model's file and its tensors by name; none if it is `off`. Raises `ModelError` where it does not fit
    the target."""
    found = drafter_of(model) if wanted == "auto" else None
    if found is None:
        return None, None
    check_fits(str(model.path), found.drafter, settings)
    return found.drafter, found.read


def drafting_lines(config: EngineConfig, chosen: Choices, drafter: Drafter | None, length: int) -> list[str]:
    """Who proposes, how much, and from what: for the start-up log."""
    if chosen.depth == 0:
        return ["drafting: off" + (f"; {drafter.name}, the drafter in the model's file, is not loaded" if drafter else "")]
    grams = f"({config.spec_ngram_min} to {config.spec_ngram_max}-grams)"
    if drafter is None:
        return [f"drafting: prompt lookup, up to {chosen.depth} tokens {grams}, {config.draft_window} window"]
    names = ", ".join("the embedding" if tap < 0 else str(tap) for tap in drafter.taps)
    reach = f"the last {drafter.window} positions" if (drafter.window or length) < length else "the whole context"
    return [
        f"drafting: {drafter.name}, {chosen.depth} tokens of at most {drafter.block}; it reads the target behind layers {names} "
        f"and looks at {reach}; {config.draft_window} window",
        "  beside it: "
        + (f"prompt lookup, up to {chosen.lookup} tokens {grams}, where a copy promises more" if chosen.lookup else "nothing"),
        "  a drafter only proposes: every token is the target's own draw, and its bits are those of a server without drafts"
        if chosen.exact else "  a drafter only proposes: every token is the target's own draw"]


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


def model_name(model: str | None, path: Path) -> str:
    """What the model is called where the user gives it no name: a hub id as typed, a folder's name, a file's stem."""
    if model is None:
        return DEFAULT_NAME
    return model if hub_id(model) else path.resolve().name if path.is_dir() else path.stem


def generation_defaults(model: Any) -> dict[str, Any]:
    """generation_config.json, {} where there is none. Raises `ModelError` where its sampling settings are no good."""
    defaults = json_object(model.file("generation_config.json"), "generation_config.json")
    try:
        SamplingParams(**known_defaults(defaults))
    except UserError as error:
        raise ModelError(f"generation_config.json: {error}", param=error.param) from None
    return defaults


def eos_ids(settings: ModelConfig, defaults: dict[str, Any]) -> tuple[int, ...]:
    """Ids that end an answer: those of generation_config.json, else of config.json."""
    own = token_ids(Fields(defaults, "generation_config.json"), "eos_token_id", settings.vocab_size)
    ids = own or settings.eos_token_ids
    if len(ids) > STOPS - MAX_STOP_TOKENS:
        raise ModelError(f"eos_token_id must hold at most {STOPS - MAX_STOP_TOKENS} ids; got {len(ids)}", param="eos_token_id")
    return ids


def _padding(settings: ModelConfig, cut: Partition) -> str:
    what = cut.padding(settings)
    return f"; {what} (zero-padded, exact)" if what else ""
