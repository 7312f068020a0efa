"""From a configuration to a warm device: the stages of start-up, each said in the log."""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from radiance_jax.config import EngineConfig, known_defaults
from radiance_jax.container.default_model import NAME as DEFAULT_NAME
from radiance_jax.container.default_model import model_file
from radiance_jax.container.drafter import check_fits, drafter_of
from radiance_jax.container.hub import hub_id
from radiance_jax.container.source import Source, json_object, open_model
from radiance_jax.engine import prices
from radiance_jax.engine.check import heights_agree, programs_agree
from radiance_jax.engine.choices import (
    CPU_HEAD_TILE,
    CPU_ONE_TILE,
    DTYPES,
    GPU_PAGE,
    Choices,
    choose,
    drafting_lines,
    exactness_line,
    largest_step,
    row_counts,
    rules_of,
    step_shapes,
    without_exactness,
)
from radiance_jax.engine.compile import CompileGuard, compile_all, use_persistent_cache
from radiance_jax.engine.device import Device
from radiance_jax.engine.drafting import CPU_SLOT_TILES, Drafting
from radiance_jax.engine.hooks import NO_HOOKS, Hooks
from radiance_jax.engine.kernels import FF_MULTIPLE, GPUS, HOPPER, Kernels, kernels_for, model_obstacle, partials_bytes
from radiance_jax.engine.ladder import Ladder, programs_of
from radiance_jax.engine.memory import compiled_workspace, plan_memory, rank_bytes, visible_memory
from radiance_jax.engine.request import MAX_STOP_TOKENS, SamplingParams
from radiance_jax.engine.shelf import Shelf
from radiance_jax.engine.state import STOPS, Capacity
from radiance_jax.engine.steps import Programs
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
from radiance_jax.spec.planner import Rules
from radiance_jax.text.chat import ChatTemplate, read_template
from radiance_jax.text.tokenizer import Tokenizer
from radiance_jax.wire import describe as describe_wire


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
class Opened:
    """A model's file as far as it is read before weights."""

    name: str
    source: Source
    settings: ModelConfig
    drafter: Drafter | None
    draft_tensors: Callable[[str], Any] | None
    tokenizer: Tokenizer
    chat: ChatTemplate
    defaults: dict[str, Any]
    eos: tuple[int, ...]


def build(config: EngineConfig, log: Callable[[str], None], hooks: Hooks = NO_HOOKS) -> Built:
    """Opens, decides, loads, compiles and warms up. Raises `UserError` for what cannot be served."""
    platform = jax.default_backend() if hooks.interpret is None else GPUS[0]
    capability = None if hooks.interpret is None else HOPPER
    mesh, cache_dir = make_mesh(config.mesh_size), Path(config.cache_dir or Path.home() / ".cache" / "radiance_jax")
    model = _open(config, cache_dir, choose(config, platform, capability=capability).dtype, hooks, log)
    settings, drafter = model.settings, model.drafter
    chosen = choose(config, platform, drafter, capability)
    cut = partition(settings, mesh.size, FF_MULTIPLE if chosen.kernels else 1)
    if chosen.kernels:
        chosen = without_exactness(config, chosen, model_obstacle(settings, cut, config.page_size or GPU_PAGE))
        cut = cut if chosen.kernels else partition(settings, mesh.size)
    kernels, dtype = kernels_for(settings, hooks.interpret) if chosen.kernels else None, DTYPES[chosen.dtype]
    said = drafting_lines(config, chosen, drafter, config.max_model_len or settings.max_position)
    drafter = drafter if chosen.depth else None
    log(f"model: {model.name}, {settings.architecture}, {settings.num_layers} layers, width {settings.width}, "
        f"vocabulary {settings.vocab_size}, {chosen.dtype}")
    log(f"mesh: tp={mesh.size} on {platform} ({mesh.devices.flat[0].device_kind})" + _padding(settings, cut))
    plan = plan_memory(config, settings, cut, largest_step(config, settings, chosen),
                       (chosen.tiles[0][0], CPU_HEAD_TILE) if chosen.tiles else None, dtype,
                       visible_memory(jax.default_backend(), mesh.size), drafter,
                       None if kernels is None else lambda capacity: partials_bytes(settings, cut, capacity, kernels))
    capacity = plan.capacity
    if config.max_model_len is None and capacity.length < settings.max_position:
        log(f"context: {capacity.length} of the model's {settings.max_position} tokens, as many as the key/value pool holds")
    for line in said:
        log(line)
    log(exactness_line(config, chosen))
    if kernels is not None:
        log(f"kernels: row-invariant, {kernels.described()}")
    counts, wire = row_counts(capacity, chosen), with_remote(config.wire, mesh)
    if mesh.size > 1:
        log(describe_wire(wire, mesh.size, settings.width, counts))

    drafting = None if drafter is None else Drafting(
        drafter=drafter, config=settings, cut=cut, depth=capacity.depth, length=capacity.length, row_tiles=chosen.tiles,
        slot_tiles=CPU_SLOT_TILES if chosen.tiles else None)
    ladder = Ladder(
        model=settings, cut=cut, capacity=capacity, shapes=step_shapes(config, chosen, counts, drafting, wire), kernels=kernels,
        mesh=mesh, params=llama.param_specs(settings, cut, dtype), hooks=hooks,
        caches=(llama.cache_spec(settings, cut, capacity.pages, capacity.page_size, dtype),) * settings.num_layers)
    weights = _beside(_weights, model, ladder, drafter, dtype)  # they go to the devices while programs are compiled
    programs, shelf = _programs(config, ladder, cache_dir, log)
    params, draft, seconds = weights.result()
    workspace = compiled_workspace(*programs.groups)
    if workspace is not None:  # what forward passes take back is kept between steps, for every number of rows
        workspace += rank_bytes(programs.returned, mesh.size)
    for line in plan.with_compiled(workspace).table():
        log(line)
    log(f"weights: loaded in {seconds:.1f} s")
    device = Device(mesh=mesh, params=params, capacity=capacity, programs=programs, cache_specs=ladder.caches,
                    padded_vocab=cut.vocab_size, knobs=hooks.knobs, **draft)
    other = _warm(config, device, shelf, log) or _checked(config, chosen, device, settings.vocab_size, counts, kernels, log)
    if other is not None:
        del device, params, draft, weights  # what they hold must be free before it is asked for again
        return build(other, log, hooks)
    cost_file = prices.place(cache_dir, mesh, {
        "name": model.name, "model": settings, "dtype": chosen.dtype, "tiles": chosen.tiles, "capacity": capacity,
        "steps": list(programs.steps), "drafter": drafter, "wire": wire, "kernels": kernels}) if config.compile_cache else None
    cost, drafting_cost = _prices(config, chosen, device, tuple(programs.steps), cost_file, log)
    return Built(
        name=model.name, model_config=settings, capacity=capacity, tiles=chosen.tiles, exact=chosen.exact,
        kept=shelf.found if shelf else 0, device=device, guard=CompileGuard(), tokenizer=model.tokenizer, chat=model.chat,
        defaults=model.defaults, eos=model.eos, rules=rules_of(config, chosen, drafter), cost=cost, drafting_cost=drafting_cost,
        cost_file=cost_file)


def _open(config: EngineConfig, cache_dir: Path, dtype: str, hooks: Hooks, log: Callable[[str], None]) -> Opened:
    path = model_file(config.model, cache_dir, dtype, log)
    source = open_model(path)
    settings, defaults = parse_config(source.config), generation_defaults(source)
    drafter, draft_tensors = hooks.drafter or container_drafter(source, settings, config.drafter)
    tokenizer = Tokenizer.from_model(source)
    return Opened(
        name=getattr(config, "served_model_name", None) or model_name(config.model, path), source=source, settings=settings,
        drafter=drafter, draft_tensors=draft_tensors, tokenizer=tokenizer, defaults=defaults, eos=eos_ids(settings, defaults),
        chat=ChatTemplate.from_model(source, tokenizer, config.chat_template and read_template(config.chat_template)))


def _programs(config: EngineConfig, ladder: Ladder, cache_dir: Path, log: Callable[[str], None]) -> tuple[Programs, Shelf | None]:
    """The ladder's programs, and the shelf from which some may have come."""
    started = time.monotonic()
    shelf = Shelf(cache_dir, ladder.described(), ladder.mesh) if config.compile_cache and ladder.hooks is NO_HOOKS else None
    if config.compile_cache and shelf is None:
        use_persistent_cache(cache_dir / "compiled")
    compiled = compile_all(ladder.programs(), threads=min(os.cpu_count() or 1, 8), shelf=shelf, log=log)
    programs = programs_of(compiled, ladder.returned())
    kept = shelf.found if shelf else 0
    log(f"programs: {sum(map(len, programs.groups))} step and 1 admission, {kept} of them kept from before, ready in "
        f"{time.monotonic() - started:.1f} s")
    return programs, shelf


def _warm(config: EngineConfig, device: Device, shelf: Shelf | None, log: Callable[[str], None]) -> EngineConfig | None:
    """Runs every program once. The configuration to start again with, where programs were loaded that do not run."""
    try:
        device.warm_up()
        return None
    except jax.errors.JaxRuntimeError as error:
        if shelf is None or not shelf.found or "RESOURCE_EXHAUSTED" in str(error):
            raise
        log(f"programs: those kept from before do not run ({str(error).splitlines()[0][:200]}); starting again without them")
        shelf.forget()
        return replace(config, compile_cache=False)


def _beside(work: Callable[..., Any], *arguments: Any) -> Future:
    """Does it on a thread that keeps nobody from leaving: an interrupt does not wait for gigabytes to be read."""
    future: Future = Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="radiance-weights", daemon=True).start()
    return future


def _weights(model: Opened, ladder: Ladder, drafter: Drafter | None, dtype: Any) -> tuple[Any, dict[str, Any], float]:
    """The target's parameters, what `Device` needs of a drafter, and the seconds that took."""
    started, cut, mesh, capacity = time.monotonic(), ladder.cut, ladder.mesh, ladder.capacity
    params, draft = load_params(model.settings, cut, model.source, mesh, dtype), {}
    if drafter is not None:
        draft = {"draft_params": place_params(drafter.param_specs(cut, dtype),
                                              lambda path: drafter.fuse(model.draft_tensors, cut, path), mesh),
                 "draft_cache_specs": drafter.cache_specs(cut, capacity.slots, capacity.length, dtype)}
    return params, draft, time.monotonic() - started


def _checked(config: EngineConfig, chosen: Choices, device: Device, vocab_size: int, counts: tuple[int, ...],
             kernels: Kernels | None, log: Callable[[str], None]) -> EngineConfig | None:
    """None if rows have the same bits in all tiles or programs on this machine; else the configuration to start again with."""
    capacity, started = device.capacity, time.monotonic()
    if chosen.tiles:
        names = ", ".join(str(height) for height, _ in chosen.tiles)
        if heights_agree(device, vocab_size, min(capacity.length - 1, capacity.rows), chosen.tiles):
            log(f"check: a row has the same bits in tiles of {names} rows on this machine")
        elif len(chosen.tiles) > 1:
            log(f"check: tiles of {names} rows do NOT give the same bits on this machine; "
                f"starting again with tiles of {CPU_ONE_TILE}")
            return replace(config, row_tile=CPU_ONE_TILE)
        else:
            return _without_exactness(config, chosen, f"tiles of {names} rows do not give the same bits on this machine", log)
    if kernels is not None and kernels.interpret is None:
        names = ", ".join(map(str, counts))
        if not programs_agree(device, vocab_size, capacity.length - 1, counts):
            return _without_exactness(config, chosen, f"programs of {names} rows do not give the same bits on this machine", log)
        log(f"check: a row has the same bits in programs of {names} rows on this machine ({time.monotonic() - started:.1f} s)")
    return None


def _without_exactness(config: EngineConfig, chosen: Choices, found: str, log: Callable[[str], None]) -> EngineConfig:
    """Raises `UserError` where exactness was demanded."""
    without_exactness(config, chosen, found)
    log(f"check: {found}; starting again without bit-exactness")
    return replace(config, bit_exact="off", row_tile=None)


def _prices(config: EngineConfig, chosen: Choices, device: Device, counts: tuple[int, ...], file: Path | None,
            log: Callable[[str], None]) -> tuple[CostTable, CostTable]:
    """What steps cost without and with a neural drafter: kept in `file` from before, or measured now."""
    none = partial(prices.tables, device.capacity, chosen.tiles, CPU_HEAD_TILE, counts)
    cost, drafting_cost = none()
    if not device.capacity.depth or config.draft_window != "adaptive":
        return cost, drafting_cost
    started = time.monotonic()
    found = file is not None and cost.load(file) and prices.hold(cost, device, device.capacity)
    if found:
        drafting_cost.load(prices.beside(file))  # if there are none, they count as costing what others do until they are taken
    else:
        cost, drafting_cost = none()
        prices.measure(cost, device, device.capacity)
        if device.drafter_apart:
            prices.measure(drafting_cost, device, device.capacity, with_drafter=True)
        if file is not None:  # of another hour as well
            prices.beside(file).unlink(missing_ok=True)
    log(prices.line(cost, found, time.monotonic() - started))
    return cost, drafting_cost


def container_drafter(model: Source, settings: ModelConfig,
                      wanted: str = "auto") -> tuple[Drafter, Callable[[str], Any]] | tuple[None, None]:
    """The drafter in the model's file and its tensors by name; none if it is `off`. Raises `ModelError` where it does not fit
    the target."""
    found = drafter_of(model) if wanted == "auto" else None
    if found is None:
        return None, None
    check_fits(str(model.path), found.drafter, settings)
    return found.drafter, found.read


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
