"""The device side of the engine: parameters, caches, state and programs, behind three calls."""

import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from radiance_jax.engine.draft_programs import anybody_drafts, proposal_spec
from radiance_jax.engine.kinds import GREEDY, Need, choose, need_of
from radiance_jax.engine.request import SamplingParams
from radiance_jax.engine.scheduler import Plan
from radiance_jax.engine.sequence import Sequence
from radiance_jax.engine.state import DECODE, PREFILL, Capacity, Results, pack_admission, pack_plan, state_specs, unpack_results
from radiance_jax.engine.steps import Programs
from radiance_jax.engine.two_part import head_params
from radiance_jax.mesh import ArraySpec, zeros_of
from radiance_jax.spec import evidence


@dataclass(frozen=True)
class Pending:
    """A step that was sent. `tops` are the device's top ids and logprobs [R, 20], fetched only if someone wants them."""

    plan: Plan
    rows: int
    sent_at: float
    packed: jax.Array
    tops: tuple[jax.Array, jax.Array]


class Device:
    def __init__(self, *, mesh: Mesh, params: Any, capacity: Capacity, programs: Programs, cache_specs: tuple[ArraySpec, ...],
                 padded_vocab: int, knobs: Any = (), draft_params: Any = (), draft_cache_specs: Any = ()):
        """`draft_params`, `draft_cache_specs`: a drafter's, where there is one."""
        self.capacity = capacity
        self._programs = programs
        self._params, self._head, self._draft_params = params, head_params(params), draft_params
        self._caches, self._state, self._draft_cache = (
            zeros_of(specs, mesh) for specs in (cache_specs, state_specs(capacity, padded_vocab), draft_cache_specs))
        self._whole = NamedSharding(mesh, PartitionSpec())
        self._no_drafts, self._proposed = (
            () if programs.drafts is None else zeros_of(proposal_spec(capacity), mesh) for _ in range(2))
        self._returned = {rows: zeros_of(specs, mesh) for rows, specs in programs.returned.items()}
        self.turn(knobs)

    def turn(self, knobs: Any) -> None:
        """Gives the knobs of `Hooks` other values, from the next step on."""
        self._knobs = jax.tree.map(lambda x: jax.device_put(x, self._whole), knobs)

    def admit(self, sequence: Sequence) -> None:
        packed = pack_admission(
            self.capacity, slot=sequence.slot, pages=sequence.pages, tokens=sequence.tokens, prompt=len(sequence.prompt),
            limit=sequence.limit, params=sequence.params, seed=sequence.seed, choice=sequence.choice, stops=sequence.stops)
        self._state = self._programs.admit(self._state, jax.device_put(packed, self._whole))

    def send(self, plan: Plan) -> Pending:
        """Starts a step and returns at once."""
        packed = pack_plan(self.capacity, [(e.slot, e.mode, e.chunk, e.packed_depths) for e in plan.entries], plan.pages)
        keys = choose(self._programs, need_of(plan))
        results, tops = self._start(*keys, packed)
        results.copy_to_host_async()
        return Pending(plan, keys[0], time.monotonic(), results, tops)

    def _start(self, rows: int, draws: tuple[int, int, str] | None, packed: np.ndarray) -> tuple[jax.Array, Any]:
        """One step by the programs of these keys: its results and its top ids and logprobs, still on the device."""
        plan, step = jax.device_put(packed, self._whole), self._programs.steps[rows]
        if draws is None:
            self._caches, self._state, results, tops, self._draft_cache = step(
                self._params, self._caches, self._state, plan, self._knobs, self._draft_params, self._draft_cache)
        else:
            proposed = self._propose(packed, plan)
            self._caches, self._state, drawn, taps = step(
                self._params, self._caches, self._state, plan, self._knobs, proposed, self._returned[rows])
            self._returned[rows] = drawn, taps
            self._state, results, tops = self._programs.draws[draws](self._head, self._state, drawn)
            if self._programs.drafts is not None:
                self._draft_cache = self._programs.drafts.observe[rows](
                    self._draft_params, self._draft_cache, taps, drawn.turn, self._state.computed)
        return results, tops

    def _propose(self, packed: np.ndarray, plan: jax.Array) -> Any:
        """A drafter's proposals for a step in more programs than one; `()` where there is no drafter."""
        if self._programs.drafts is None:
            return ()
        return self._run_drafter(plan) if anybody_drafts(self.capacity, packed) else self._no_drafts

    def _run_drafter(self, plan: jax.Array) -> Any:
        self._proposed = self._programs.drafts.propose(
            self._draft_params, self._draft_cache, self._head, self._state, plan, self._proposed)
        return self._proposed

    def read(self, pending: Pending) -> tuple[Results, np.ndarray | None, np.ndarray | None]:
        """Waits for a step; top ids and logprobs come along if one of its sequences wants them."""
        results = unpack_results(self.capacity, np.asarray(pending.packed))
        if any(entry.sequence.wants_top for entry in pending.plan.entries):
            return results, np.asarray(pending.tops[0]), np.asarray(pending.tops[1])
        return results, None, None

    def warm_up(self) -> None:
        """Runs every program once: an empty admission, then empty plans."""
        empty = pack_admission(self.capacity, slot=0, pages=[], tokens=[], prompt=0, limit=0, params=SamplingParams(), seed=0,
                               choice=0, stops=[])
        self._state = self._programs.admit(self._state, jax.device_put(empty, self._whole))
        for keys in [(key[0], key) for key in self._programs.draws] or [(rows, None) for rows in self._programs.steps]:
            np.asarray(self._start(*keys, pack_plan(self.capacity, [], []))[0])
        if self._programs.drafts is not None:
            plan = jax.device_put(pack_plan(self.capacity, [], []), self._whole)
            jax.block_until_ready(self._run_drafter(plan))

    @property
    def drafter_apart(self) -> bool:
        """Whether a drafter proposes in a program of its own, which a step may leave out."""
        return self._programs.drafts is not None

    def time_decode(self, drafts: list[int], with_drafter: bool = False) -> float:
        """Seconds of a step in which slot i verifies `drafts[i]` drafts, from sending to reading. For use before the first
        request, like `score`: sequences of a text that repeats itself are put into the slots, over pages of any content.
        A drafter in a program of its own runs if asked for."""
        period = self.capacity.depth + 1
        tokens = [3 + i % period for i in range(2 * period + 2)]
        need = -(-(len(tokens) + period) // self.capacity.page_size)
        for slot in range(len(drafts)):
            pages = [1 + (slot * need + i) % max(self.capacity.pages - 1, 1) for i in range(need)]
            packed = pack_admission(
                self.capacity, slot=slot, pages=pages, tokens=tokens, prompt=len(tokens), limit=self.capacity.length, seed=0,
                params=SamplingParams(temperature=0.0), choice=0, stops=[], computed=len(tokens) - 1)
            self._state = self._programs.admit(self._state, jax.device_put(packed, self._whole))
        jax.block_until_ready(self._state.length)
        rows = len(drafts) + sum(drafts)
        keys = choose(self._programs, Need(rows=rows, draws=rows, kind=GREEDY))
        allow = evidence.lookup_only if self.drafter_apart and not with_drafter else evidence.alike
        plan = pack_plan(self.capacity, [(slot, DECODE, 0, evidence.pack(allow(depth))) for slot, depth in enumerate(drafts)], [])
        start = time.monotonic()
        np.asarray(self._start(*keys, plan)[0])
        return time.monotonic() - start

    def score(self, tokens: list[int], chunks: list[int]) -> np.ndarray:
        """f32 logprobs of the tokens after the first, and of one drawn behind them, prefilled in these chunks. For use
        before the first request: it takes slot 0 and the first pages."""
        return self.read_through(tokens, chunks)[1]

    def read_through(self, tokens: list[int], chunks: list[int], rows: int = 1, kind: str = GREEDY,
                     temperature: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """As `score`, in programs of at least `rows` rows whose draws are of this kind. Returns the tokens drawn at every place
        too, int32, with seed 0."""
        need = -(-len(tokens) // self.capacity.page_size)
        packed = pack_admission(
            self.capacity, slot=0, pages=range(1, 1 + need), tokens=tokens, prompt=len(tokens), limit=len(tokens) + 1,
            params=SamplingParams(temperature=temperature, prompt_logprobs=0), seed=0, choice=0, stops=[])
        self._state = self._programs.admit(self._state, jax.device_put(packed, self._whole))
        drawn, scores = [], []
        for chunk in chunks:
            keys = choose(self._programs, Need(rows=max(chunk, rows), draws=chunk, kind=kind))
            results, _ = self._start(*keys, pack_plan(self.capacity, [(0, PREFILL, chunk, 0)], []))
            read = unpack_results(self.capacity, np.asarray(results))
            drawn.append(read.tokens[:chunk])
            scores.append(read.logprobs[:chunk])
        return np.concatenate(drawn), np.concatenate(scores)
