"""The engine: one thread that plans, sends, reads and tells, always one step ahead of what it has read."""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence as Ids
from typing import Any


from radiance_jax.config import EngineConfig
from radiance_jax.engine import prices
from radiance_jax.engine.build import Built, build
from radiance_jax.engine.device import Pending
from radiance_jax.engine.hooks import NO_HOOKS, Hooks
from radiance_jax.engine.request import MAX_STOP_TOKENS, Delta, RequestStats, SamplingParams
from radiance_jax.engine.results import ACCEPTED, DRAFTS, EMITTED, PROPOSER, Reader
from radiance_jax.engine.scheduler import Entry, Scheduler
from radiance_jax.engine.sequence import Sequence
from radiance_jax.engine.state import NEURAL, PREFILL, STOPS, Results
from radiance_jax.engine.stats import EngineStats
from radiance_jax.errors import CapacityError, UserError
from radiance_jax.models.rows import rows_computed
from radiance_jax.spec import evidence
from radiance_jax.spec.evidence import Depths
from radiance_jax.spec.planner import Planner, Want
from radiance_jax.text.output import TextStream

log = logging.getLogger("radiance_jax.engine")


class Engine:
    """Thread-safe front: `submit`, `abort`, `stats`, `close`. Make one with `Engine.load`."""

    def __init__(self, built: Built, config: EngineConfig, max_queue: int | None = None):
        self.config = config
        self.model_name: str = built.name
        self.max_model_len: int = built.capacity.length
        self.tokenizer, self.chat, self.defaults = built.tokenizer, built.chat, built.defaults
        self.capacity, self.model_config = built.capacity, built.model_config
        self._device, self._guard = built.device, built.guard
        self._eos = built.eos
        self._planner, self._cost_file = Planner(built.rules, built.cost, built.drafting_cost), built.cost_file
        self._scheduler = Scheduler(built.capacity, self._choose)
        self._stats = EngineStats()
        self._reader = Reader(self._stats)
        self._max_queue = max_queue
        self.exact: bool = built.exact  # whether bit-exactness is kept
        self._kept = built.kept
        self._tiles = built.tiles  # None: a step costs all rows of its program
        self._seeds = random.Random(config.seed)
        self._inbox: deque[Callable[[], None]] = deque()
        self._news = threading.Condition()
        self._sequences: dict[int, Sequence] = {}
        self._next_id = 0
        self._closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="radiance-engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(cls, config: EngineConfig, log: Callable[[str], None] = print, hooks: Hooks = NO_HOOKS) -> "Engine":
        """Opens the model, builds mesh and programs, warms up. Blocks until the engine is ready."""
        return cls(build(config, log, hooks), config, getattr(config, "max_queue", None))

    # ---- called from any thread ----

    def submit(self, prompt_ids: Ids[int], params: SamplingParams, on_delta: Callable[[Delta], None], *, choice: int = 0) -> int:
        """Queues one answer and returns its id. `on_delta` is called from the engine's thread, never after a
        delta with a finish reason; if it raises, this answer ends and the others go on. Raises `UserError` for a
        request that cannot be served, `CapacityError` when full.

        A request without a seed gets the next number of a stream that `config.seed` starts: the same requests in the
        same order give the same answers, but such an answer depends on what came before it. Give a seed to have one
        that does not.
        """
        prompt = tuple(int(token) for token in prompt_ids)
        limit = self._check(prompt, params)
        eos = () if params.ignore_eos else self._eos
        stops = tuple(dict.fromkeys((*eos, *params.stop_token_ids)))[:STOPS]
        with self._news:
            if self._failure is not None or self._closing:
                raise CapacityError("the engine has stopped; start it again")
            waiting = len(self._scheduler.waiting) + len(self._inbox)
            if self._max_queue is not None and waiting >= self._max_queue + len(self._scheduler.free_slots):
                raise CapacityError(f"{waiting} requests are waiting, as many as max_queue allows; try again later")
            seed = params.seed if params.seed is not None else self._seeds.getrandbits(63)
            sequence = Sequence(
                id=self._next_id, prompt=prompt, params=params, choice=choice, seed=seed % 2**64, stops=stops, limit=limit,
                stream=TextStream(self.tokenizer, params.stop, min_tokens=params.min_tokens), on_delta=on_delta,
                stats=RequestStats(prompt_tokens=len(prompt), arrival=time.monotonic()), tokens=list(prompt))
            self._next_id += 1
            self._sequences[sequence.id] = sequence
            self._inbox.append(lambda: self._scheduler.add(sequence))
            self._news.notify()
        return sequence.id

    def abort(self, sequence_id: int) -> None:
        """Ends an answer; its pages are free as soon as the engine's thread hears of it."""
        with self._news:
            self._inbox.append(lambda: self._end(sequence_id, "abort"))
            self._news.notify()

    def stats(self) -> EngineStats:
        return self._stats.snapshot()

    def healthy(self) -> bool:
        return self._failure is None and self._thread.is_alive()

    def close(self) -> None:
        """Aborts what runs and ends the thread. Safe to call twice."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join()
        self._guard.close()
        if self._cost_file is not None:
            try:
                prices.save(self._cost_file, self._planner.cost, self._planner.drafting_cost)
            except OSError as error:
                log.warning("the prices of steps could not be kept: %s", error)

    def _check(self, prompt: tuple[int, ...], params: SamplingParams) -> int:
        """The most tokens the sequence may hold."""
        vocab, longest = self.model_config.vocab_size, self.max_model_len
        if not prompt:
            raise UserError("prompt must hold at least one token; got none", param="prompt")
        ids = {"stop_token_ids": params.stop_token_ids, "logit_bias": [token for token, _ in params.logit_bias]}
        for name, values in ids.items():
            if not all(isinstance(token, int) and 0 <= token < vocab for token in values):
                raise UserError(f"{name} must name token ids from 0 to {vocab - 1}; got {list(values)[:8]}", param=name)
        if len(self._eos) + len(params.stop_token_ids) > STOPS:
            raise UserError(f"stop_token_ids must be at most {MAX_STOP_TOKENS}", param="stop_token_ids")
        if len(prompt) + (params.max_tokens or 1) > longest:
            wanted = f" and max_tokens {params.max_tokens}" if params.max_tokens else ""
            error = UserError(f"prompt and answer must fit the context of {longest} tokens; got a prompt of {len(prompt)} "
                              f"tokens{wanted}. Shorten the prompt or ask for fewer tokens.", param="prompt")
            error.code = "context_length_exceeded"
            raise error
        if not all(0 <= token < vocab for token in prompt):  # after the length: a hostile prompt may be long
            raise UserError(f"prompt token ids must be from 0 to {vocab - 1}", param="prompt")
        return min(len(prompt) + params.max_tokens, longest) if params.max_tokens else longest

    # ---- the engine's thread ----

    def _cap(self, sequence: Sequence, most: int) -> int:
        asked = sequence.params.max_draft_tokens
        return most if asked is None else min(asked, most)

    def _choose(self, wants: list[tuple[Sequence, int]], prompts: int) -> list[Depths]:
        """The drafting policy's word for the next step; where nothing may be drafted it is not asked (nor told)."""
        if not self.capacity.depth:
            return [evidence.alike(0)] * len(wants)
        return self._planner.plan(
            [Want(sequence.id, self._cap(sequence, most), (sequence.params.draft_window or self.config.draft_window) == "fixed")
             for sequence, most in wants], prompts)

    def _learn(self, entry: Entry, results: Results) -> None:
        """Tells the drafting policy what a sequence's part of a step came to."""
        if not self.capacity.depth:
            return
        sequence, slot = entry.sequence, results.slot_rows[entry.slot]
        tokens = sequence.tokens if self._cap(sequence, self.capacity.depth) else []
        if entry.mode == PREFILL:
            self._planner.read(sequence.id, tokens[:entry.first + entry.chunk])
        if slot[EMITTED] and entry.mode == PREFILL:
            self._planner.drawn(sequence.id, tokens)
        elif slot[EMITTED]:
            deferred = self._planner.verified(
                sequence.id, tokens, entry.depths, self._cap(sequence, entry.cap), slot[DRAFTS],
                min(slot[ACCEPTED], slot[EMITTED]), neural=slot[PROPOSER] == NEURAL, judged=slot[EMITTED])
            sequence.stats.num_deferred_proposals += deferred

    def _run(self) -> None:
        self._guard.watch_this_thread()
        try:
            self._loop()
        except BaseException as failure:  # noqa: BLE001 - every listener must hear of it, whatever it is
            with self._news:
                self._failure = failure
            log.error("the engine failed; every answer under way ends with an error, and no more are taken")
            for sequence in list(self._sequences.values()):
                self._reader.end(sequence, "error", f"the engine failed: {failure}")
            self._sequences.clear()
            self._stats.running = self._stats.waiting = 0
            raise

    def _loop(self) -> None:
        flying: deque[Pending] = deque()
        read_at = 0.0
        while True:
            with self._news:
                while not (self._inbox or flying or self._closing or not self._scheduler.idle()):
                    self._news.wait()
                    read_at = 0.0  # nobody asked for anything: the device does not wait for the host
                orders, closing = list(self._inbox), self._closing
                self._inbox.clear()
            for order in orders:
                order()
            if closing:
                for sequence_id in list(self._sequences):
                    self._end(sequence_id, "abort")
            plan = self._scheduler.plan()
            for sequence in plan.admitted:
                self._device.admit(sequence)
            if plan.entries:
                flying.append(self._device.send(plan))
            if flying and (len(flying) > 1 or not plan.entries):
                read_at = self._read(flying.popleft(), read_at)
            self._update_gauges()
            self._guard.check()
            if closing and not flying:
                return

    def _read(self, pending: Pending, last: float) -> float:
        """Reads the oldest step in flight. Returns the time it was there, from which the next one is clocked; `last` is that
        of the step before, 0 if the engine was idle since."""
        begun = max(last, pending.sent_at)
        results, top_ids, tops = self._device.read(pending)
        now = time.monotonic()
        live = self._live_rows(pending, results)
        computed = pending.rows if self._tiles is None else rows_computed(live, self._tiles)
        self._stats.record_step(computed, now - begun)
        self._stats.host_gap_seconds += max(pending.sent_at - last, 0.0) if last else 0.0
        for entry in pending.plan.entries:
            self._scheduler.settle(entry)
            if entry.sequence.finished:
                continue
            news = self._reader.apply(entry, results, top_ids, tops)
            self._learn(entry, results)
            if news is not None and self._reader.deliver(entry.sequence, news):
                self._forget(entry.sequence)
        prompts = sum(entry.chunk for entry in pending.plan.entries if entry.mode == PREFILL)
        rows = pending.rows if self._tiles is None else live
        if self.capacity.depth:
            self._planner.stepped(rows, now - begun, prompts)
        elif not prompts:
            self._planner.cost.observe(rows, now - begun)
        return now

    def _live_rows(self, pending: Pending, results: Results) -> int:
        live = 0
        for entry in pending.plan.entries:
            slot = results.slot_rows[entry.slot]
            if entry.mode == PREFILL:
                live += entry.chunk
            elif slot[EMITTED]:  # else it had ended the step before, which the host did not know yet
                live += 1 + slot[DRAFTS]
        return live

    def _end(self, sequence_id: int, reason: str) -> None:
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._reader.end(sequence, reason)
            self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        self._scheduler.release(sequence)
        self._planner.forget(sequence.id)
        self._sequences.pop(sequence.id, None)
        if not self._sequences:
            self._check_idle()

    def _check_idle(self) -> None:
        """No sequence is left, so every page must be free. Pages that are not are a fault of ours that costs room but
        changes no answer: it is logged and counted, the pages are taken back, and service goes on (tests fail)."""
        lost = self._scheduler.reclaim()
        if lost:
            log.error("%d of %d key/value pages were still in use with no sequence left; they are free again. This is "
                      "a fault in radiance_jax: please report it with the lines above", lost, self._scheduler.pool.total)
            self._stats.leaked_pages += lost
            if self._guard.strict:
                raise AssertionError(f"{lost} pages leaked")

    def _update_gauges(self) -> None:
        stats, scheduler = self._stats, self._scheduler
        stats.running, stats.waiting = len(scheduler.running), len(scheduler.waiting)
        stats.kv_usage = scheduler.pool.used / max(scheduler.pool.total, 1)
        stats.preemptions = scheduler.preemptions
        stats.compiles_after_warmup = self._guard.count
        counts = self._planner.counts
        stats.deferred_proposals, stats.draft_probes = counts.deferred, counts.probes
        stats.chosen_depth, stats.reached_per_position = dict(counts.chosen), list(counts.reached)
        stats.draft_regret, stats.draft_rate = counts.regret(), counts.rate()
        stats.constant_depth_rate = counts.constant_rates()

    def prices(self) -> dict[str, Any]:
        """What steps cost, as measured: seconds by rows charged, the row count each count is filed under, and whether rows
        are paid when planned (else when live)."""
        cost = self._planner.cost
        return {"seconds": {str(rows): seconds for rows, seconds in cost.measured().items()}, "charge": list(cost.charge),
                "as_planned": self._planner.rules.as_planned}

    def info(self) -> dict[str, Any]:
        """Facts a benchmark records beside its figures."""
        return {"model": self.model_name, "mesh": self.config.mesh, "capacity": self.capacity, "programs_kept": self._kept}
