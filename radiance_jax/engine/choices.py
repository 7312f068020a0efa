"""What start-up decides from configuration, platform and the model's sizes, before anything is loaded."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from radiance_jax.config import EngineConfig
from radiance_jax.engine.drafting import Drafting
from radiance_jax.engine.kernels import GPUS, compute_capability, machine_obstacle
from radiance_jax.engine.kinds import row_steps
from radiance_jax.engine.state import Capacity
from radiance_jax.engine.steps import StepShape
from radiance_jax.errors import UserError
from radiance_jax.models.config import ModelConfig
from radiance_jax.models.rows import Heights
from radiance_jax.spec.drafter import Drafter
from radiance_jax.spec.planner import NEVER, Rules
from radiance_jax.wire import Wire

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
                            f"once; got {most}. Use --drafter off for deeper drafts by prompt lookup alone.",
                            param="num_speculative_tokens")
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


def row_counts(capacity: Capacity, chosen: Choices) -> tuple[int, ...]:
    """Of the step programs, ascending: one for all on a CPU with exactness."""
    if chosen.kernels:
        return row_steps(capacity.rows)
    return (capacity.rows,) if chosen.tiles else row_buckets(capacity.rows, chosen.platform, chosen.dtype)


def step_shapes(config: EngineConfig, chosen: Choices, counts: tuple[int, ...], drafting: Drafting | None,
                wire: Wire) -> list[StepShape]:
    """One for each row count."""
    return [StepShape(
        rows=rows, tiles=chosen.tiles, head_tile=CPU_HEAD_TILE, segment=CPU_SEGMENT if chosen.tiles else min(rows, GPU_SEGMENT),
        block_pages=1 if chosen.tiles or chosen.platform == "cpu" else 8, ngram_longest=config.spec_ngram_max,
        ngram_shortest=config.spec_ngram_min, lookup=chosen.lookup, drafting=drafting, p_min=p_min_of(config), wire=wire)
        for rows in counts]


def p_min_of(config: EngineConfig) -> float:
    """`auto`: no floor, the adaptive window prices every draft."""
    return 0.0 if config.draft_p_min == "auto" else config.draft_p_min


def rules_of(config: EngineConfig, chosen: Choices, drafter: Drafter | None) -> Rules:
    """What the settings say of drafting. `auto`: no short block."""
    return Rules(depth=chosen.depth, longest=config.spec_ngram_max, shortest=config.spec_ngram_min, lookup=chosen.lookup,
                 as_planned=chosen.tiles is None, neural=drafter is not None, p_min=p_min_of(config),
                 short_from=config.draft_short_from if isinstance(config.draft_short_from, int) else NEVER)


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


def exactness_line(config: EngineConfig, chosen: Choices) -> str:
    """Whether the promise is kept, for the start-up log."""
    if chosen.exact:
        return "bit-exact: on; ids and logprobs do not depend on drafting, batch mates, chunking or capacity"
    why = " (a lossy wire)" if config.wire.name != "exact" else f". {chosen.obstacle}" if chosen.obstacle else ""
    return f"bit-exact: OFF; drafting and batch mates may change roundings, and with them now and then a token{why}"


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
