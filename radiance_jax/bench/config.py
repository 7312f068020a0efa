"""The flags of the benchmarks: the engine's own, and what to measure."""

from dataclasses import dataclass, fields
from typing import Any

from radiance_jax.config import EngineConfig
from radiance_jax.errors import UserError, nearest
from radiance_jax.settings import setting

BENCH = "benchmark"
FAST, OFF, ON = "off-fast", "off", "on"
MODES = (FAST, OFF, ON)
SETS = ("ordinary", "copy", "tasks")
FIXED, SERVED = "fixed", "served"
DTYPES = ("bf16", "f32")


def words(name: str, text: str, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    """`"on,off"` to `("on", "off")`; every word one of `known`, none twice."""
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts or len(set(parts)) < len(parts):
        raise UserError(f"{name} must be names separated by commas, none twice; got {text!r}", param=name)
    for part in parts:
        if known and part not in known:
            raise UserError(f"{name} are {', '.join(known)}; got {part!r}{nearest(part, known)}", param=name)
    return parts


def numbers(name: str, text: str) -> tuple[int, ...]:
    """`"1,8"` to `(1, 8)`; each at least 1, none twice."""
    parts = words(name, text)
    if not all(part.isascii() and part.isdigit() and int(part) >= 1 for part in parts):
        raise UserError(f"{name} must be whole numbers, at least 1, separated by commas; got {text!r}", param=name)
    return tuple(int(part) for part in parts)


def engine_values(config: EngineConfig) -> dict[str, Any]:
    """The engine's part of a benchmark's configuration."""
    return {item.name: getattr(config, item.name) for item in fields(EngineConfig)}


@dataclass(frozen=True, kw_only=True)
class SpeedConfig(EngineConfig):
    """What `bench speed` measures, and how often."""

    modes: str = setting(str, ",".join(MODES), "off-fast: not bit-exact, no drafting; off, on: the engine as configured, "
                         "without and with drafting; fixed, fixed:N: the same engine, always drafting all or N tokens", BENCH)
    fast_dtypes: str | None = setting(str, None, "dtypes in which off-fast is tried (default: bf16,f32 on a CPU, else the "
                                      "engine's)", BENCH)
    sequences: str = setting(str, "1,8", "answers live at once; 1: one after the other", BENCH)
    sets: str = setting(str, "ordinary,copy", "prompt sets of this package; tasks: Spec-Bench, a set for each task", BENCH)
    prompts: str | None = setting(str, None, "JSON lines of your own instead: prompt (a user message) or prompt_ids, and "
                                  "set, id if you like (default: those of --sets)", BENCH)
    repeat: int = setting(int, 1, "times each prompt is in its set, for more answers live than a set has prompts", BENCH, low=1)
    limit: int | None = setting(int, None, "prompts of each set, at most (default: all)", BENCH, low=1)
    max_tokens: int = setting(int, 64, "tokens of every answer; the end token is ignored", BENCH, low=2)
    rounds: int = setting(int, 3, "times everything is measured", BENCH, low=1)
    peer_llama_cpp: str | None = setting(str, None, "a Python that has llama-cpp-python (default: no peer)", BENCH)
    peer_models: str | None = setting(str, None, "GGUF files for it, separated by commas (default: no peer)", BENCH)
    peer_threads: int | None = setting(int, None, "its threads (default: the cores of this machine)", BENCH, low=1)
    trace_out: str | None = setting(str, None, "file of answers and prices of steps for `bench policy` (default: none)", BENCH)
    out: str | None = setting(str, None, "JSON file to write (default: none)", BENCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        for mode in words("modes", self.modes):
            name, colon, cap = mode.partition(":")
            if colon and not (name == FIXED and cap.isascii() and cap.isdigit() and int(cap) > 0):
                raise UserError(f"a mode's cap must read like fixed:3; got {mode!r}", param="modes")
            words("modes", name, (*MODES, FIXED))
        words("sets", self.sets, SETS)
        numbers("sequences", self.sequences)
        if self.fast_dtypes is not None:
            words("fast_dtypes", self.fast_dtypes, DTYPES)
        if (self.peer_llama_cpp is None) != (self.peer_models is None):
            raise UserError("peer_llama_cpp and peer_models go together: a Python with llama-cpp-python, and the models "
                            "it is to load", param="peer_models")
        if ON in words("modes", self.modes) and self.num_speculative_tokens == 0:
            raise UserError("num_speculative_tokens must be more than 0 for mode 'on'; leave it out, or give --modes "
                            "off-fast,off", param="num_speculative_tokens")


@dataclass(frozen=True, kw_only=True)
class TileConfig(EngineConfig):
    """What `bench tile` measures."""

    tiles: str = setting(str, "served,2,4,8,16", "row tiles of bit-exact engines; served: the heights that are served", BENCH)
    tile_dtypes: str = setting(str, "bf16", "dtypes of the bit-exact engines", BENCH)
    fast_dtypes: str = setting(str, ",".join(DTYPES), "dtypes of the engines that are not bit-exact", BENCH)
    rows: str = setting(str, "1,4,8,16", "sequences that decode together, one row each", BENCH)
    context: int = setting(int, 100, "tokens before the first decode step", BENCH, low=2)
    steps: int = setting(int, 10, "decode steps measured at a time", BENCH, low=1)
    rounds: int = setting(int, 3, "times everything is measured", BENCH, low=1)
    out: str | None = setting(str, None, "JSON file to write (default: none)", BENCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers("rows", self.rows)
        self.heights()
        for name in ("tile_dtypes", "fast_dtypes"):
            words(name, getattr(self, name), DTYPES)

    def heights(self) -> tuple[int | None, ...]:
        """None: as served."""
        named = words("tiles", self.tiles)
        return tuple(None if each == SERVED else numbers("tiles", each)[0] for each in named)
