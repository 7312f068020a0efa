"""The circumstances of `bench exactness`, axis by axis. A new one is one more function in `RUNS`."""

import queue
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax

from radiance_jax.bench import exactness_process, forced
from radiance_jax.bench.config import numbers
from radiance_jax.bench.exactness import ExactnessConfig
from radiance_jax.bench.exactness_asks import Ask, OutOfTime, Told, check, differences
from radiance_jax.bench.exactness_parts import share
from radiance_jax.bench.exactness_run import Run
from radiance_jax.bench.record import log
from radiance_jax.engine.choices import choose
from radiance_jax.engine.engine import Engine
from radiance_jax.engine.request import SamplingParams
from radiance_jax.engine.scheduler import Plan
from radiance_jax.errors import RadianceError

PATTERN = (3, 0, 16, 1)


def measure(config: ExactnessConfig, result: dict[str, Any], save: Callable[[], None], until: float | None) -> None:
    """Runs the axes asked for, and fills `result`; `save` is called whenever there is more in it."""
    asked = config.asked()
    result |= {"complete": False, "missing": list(asked), "asked": asked, "covered": {}, "axes": [], "unfinished": [],
               "compiles_after_warmup": 0}
    run = Run(config, save, until)
    try:
        result |= {"bit_exact": run.engine.exact, "manifest": run.manifest,
                   "engine": asdict(run.chosen) | {"tiles": run.engine._tiles, "capacity": asdict(run.engine.capacity)},
                   "requests": [{"prompt": each.name, "way": each.way, "prompt_tokens": len(each.ids)} for each in run.asks]}
        save()
        run.learn()
        for name in asked:
            check(until)
            run.outcomes = result["unfinished"] = []
            RUNS[name](run)
            result["axes"] += [{key: value for key, value in each.items() if key != "part"} for each in run.outcomes]
            result["covered"][name], result["unfinished"] = [config.part], []
            result["missing"].remove(name)
            result["complete"] = not result["missing"]
            save()
    except OutOfTime as end:
        result["stopped"] = f"{end}"
    finally:
        result["compiles_after_warmup"] = run.engine.stats().compiles_after_warmup
        run.engine.close()
        save()


# ---- axes ----


def again(run: Run) -> None:
    """The same once more: what an engine did before leaves no trace."""
    start = time.monotonic()
    run.compare("again", "alone, undrafted", run.few, run.ask(run.few, 1, max_draft_tokens=0), start)


def crowd(run: Run) -> None:
    for drafts in (0, None):
        start, before = time.monotonic(), run.engine.stats().steps
        told = run.ask(run.asks, run.crowd, max_draft_tokens=drafts)
        steps = run.engine.stats().steps - before
        run.compare("crowd", f"{run.crowd} at once, " + ("undrafted" if drafts == 0 else "lookup"), run.asks, told, start,
                    lambda a: a["steps"] < a["tokens"], steps=steps, tokens=sum(len(each.ids) for each in told))


def lookup(run: Run) -> None:
    start = time.monotonic()
    run.compare("lookup", "alone", run.asks, run.ask(run.asks, 1), start,
                lambda a: a["draft_tokens"] > 0)


def policy(run: Run) -> None:
    """Depths that a policy chooses anew for each step: as deep as pays, and at random."""
    from radiance_jax.spec.policies import adaptive

    planner, chance = run.engine._planner, random.Random(run.config.seed)
    rules, seen = planner.rules, set()

    def anything(bids, *_):
        return [tuple(chance.randint(0, cap) for cap in bid.caps) for bid in bids]

    for name, policy in (("adaptive", adaptive), ("random", anything)):
        def choose(*bargain, policy=policy):
            plan = policy(*bargain)
            seen.update(plan)
            return plan

        start = time.monotonic()
        seen.clear()
        planner.rules = replace(rules, policy=choose)
        try:
            told = run.ask(run.asks, run.crowd, draft_window="adaptive")
        finally:
            planner.rules = rules
        run.compare("policy", f"{run.crowd} at once, depths {name}", run.asks, told, start,
                    lambda a: a["different_depths"] > 1, different_depths=len(seen))


def chunks(run: Run) -> None:
    scheduler = run.engine._scheduler
    for rows in numbers("chunks", run.config.chunks):
        start, before, whole = time.monotonic(), run.engine.stats().steps, scheduler.budget
        scheduler.budget = min(rows, whole)
        try:
            told = run.ask(run.asks, 1, max_draft_tokens=0)
        finally:
            scheduler.budget = whole
        several = sum(len(each.ids) > rows for each in run.asks)
        prefills = run.engine.stats().steps - before - sum(len(each.steps) - 1 for each in told)
        run.compare("chunks", f"prompts in chunks of {rows}", run.asks, told, start,
                    lambda a: a["prefill_steps"] >= len(run.asks) + a["prompts_in_several_chunks"],
                    prefill_steps=prefills, prompts_in_several_chunks=several)


def _forced(run: Run, axis: str, circumstance: str, pattern: Sequence[int], live: int, **changes: Any) -> None:
    start = time.monotonic()
    depth = min(changes.get("max_draft_tokens") or run.chosen.depth, run.chosen.depth)
    with run.proposing(pattern):
        told = run.ask(run.asks, live, **changes)
    as_forced = sum(each.steps[1:] == forced.steps_of(pattern, len(each.ids), depth) for each in told)
    run.compare(axis, circumstance, run.asks, told, start,
                lambda a: a["draft_tokens"] > 0 and (live > 1 or a["answers_in_forced_steps"] == len(told)),
                answers_in_forced_steps=as_forced)


def rejected(run: Run) -> None:
    _forced(run, "rejected", "alone, every draft refused", (0,), 1, max_draft_tokens=min(3, run.chosen.depth))
    _forced(run, "rejected", f"{run.crowd} at once, every draft refused", (0,), run.crowd)


def accepted(run: Run) -> None:
    _forced(run, "accepted", "alone, every draft accepted", (run.chosen.depth,), 1)
    _forced(run, "accepted", f"{run.crowd} at once, every draft accepted", (run.chosen.depth,), run.crowd)


def pattern(run: Run) -> None:
    _forced(run, "pattern", f"alone, accepting {PATTERN} in turn", PATTERN, 1)


def depth(run: Run) -> None:
    """Every depth with drafts that are right, over a few of the prompts."""
    for most in run.config.depth_list():
        if most > run.chosen.depth:
            continue
        start = time.monotonic()
        with run.proposing((run.chosen.depth,)):
            told = run.ask(run.few, 1, max_draft_tokens=most)
        run.compare("depth", f"{most} drafts a step", run.few, told, start, lambda a, most=most: a["longest_run"] == min(
            most + 1, run.config.max_tokens - 1), longest_run=max(max(each.steps[1:], default=1) for each in told))


def preempted(run: Run) -> None:
    """The youngest is sent away before every fifth step."""
    scheduler, start = run.engine._scheduler, time.monotonic()
    plan, count, before = scheduler.plan, iter(range(10**9)), scheduler.preemptions

    def planned() -> Plan:
        if next(count) % 5 == 4 and scheduler.running:
            scheduler._preempt(scheduler.running[-1])
        return plan()

    scheduler.plan = planned
    live = min(3, len(run.few))
    try:
        told = run.ask(run.few, live)
    finally:
        del scheduler.plan
    run.compare("preempted", f"{live} at once, one sent away every 5 steps", run.few, told, start,
                lambda a: a["preemptions"] > 0, preemptions=scheduler.preemptions - before)


def echo(run: Run) -> None:
    """Reading question and answer together gives the logprobs of decoding."""
    start, found = time.monotonic(), []
    for ask in run.few:
        bits, box = run.oracle[ask.seed]["logprob bits"], []
        ids = (*ask.ids, *run.oracle[ask.seed]["ids"][:-1])
        check(run.until)
        told = _wait(run.engine, ids, SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, ignore_eos=True), box)
        read = [score.logprob.hex() for score in told[len(ask.ids):]]
        at = next((i for i, (a, b) in enumerate(zip(read, bits[:-1], strict=True)) if a != b), None)
        if at is not None:
            found.append({"prompt": ask.name, "way": ask.way, "what": "prompt logprob bits", "first_at": at})
    run.add("echo", "answers read as prompts", len(run.few), found,
            {"prompt_logprobs": len(run.few) * (run.config.max_tokens - 1)}, True, start)


def _wait(engine: Engine, ids: Sequence[int], params: SamplingParams, scores: list) -> list:
    news: queue.SimpleQueue = queue.SimpleQueue()
    engine.submit(ids, params, news.put)
    while True:
        delta = news.get()
        scores += delta.prompt_logprobs or ()
        if delta.finish_reason == "error":
            raise RadianceError(delta.error or "the engine failed on this request")
        if delta.finish_reason:
            return scores


def capacity(run: Run) -> None:
    """Engines of other sizes: sequences, rows, pool, draft depth."""
    for slots in numbers("sequences", run.config.sequences):
        check(run.until)
        start = time.monotonic()
        options = replace(run.options, max_num_seqs=slots, num_speculative_tokens="auto", kv_pages=None,
                          max_num_batched_tokens=None if slots > 1 else 16)
        depth = choose(options, jax.default_backend(), run.drafter).depth
        engine = Engine.load(options, log, forced.hooks(len(run.everything), run.config.max_tokens + 1, depth))
        try:
            engine._device.turn(run.proposals((2, 0, depth), depth))
            told = run.ask(run.asks, min(slots, 2 * run.config.crowd), engine)
            run.compare("capacity", f"--max-num-seqs {slots}, {engine.capacity.rows} rows, drafts of {depth}", run.asks, told,
                        start, lambda a, engine=engine: 0 < a["accepted"] < a["draft_tokens"] and engine._tiles == run.engine._tiles,
                        pages=engine.capacity.pages - 1)
        finally:
            engine.close()


# Of a fresh process: what it finds from before it (JAX's compile cache, the engine's kept programs), and whether drafts are
# forced. Where they are not, the policy may leave all of them alone.
STATES = (("compile cache empty", True), ("compile cache warm", True), ("no programs kept", False), ("programs kept", False))


def process(run: Run) -> None:
    """Fresh processes without compiled programs, and ones that find them."""
    with tempfile.TemporaryDirectory() as folder:
        for state, forced_ in STATES:
            start = time.monotonic()
            options = replace(run.options, cache_dir=folder)
            exactness_process.write(
                Path(folder), options, run.few, run.config.crowd, run.proposals(PATTERN, run.chosen.depth), forced_)
            left = None if run.until is None else max(run.until - time.monotonic(), 0.0)
            try:
                done = subprocess.run([sys.executable, "-m", exactness_process.__name__, folder], stdout=subprocess.PIPE,
                                      text=True, check=False, timeout=left)
            except subprocess.TimeoutExpired:
                check(run.until)
                raise
            if done.returncode:
                raise RadianceError(f"a fresh process ended with status {done.returncode}")
            answer = exactness_process.read(done.stdout)
            found = differences(run.few, answer["records"], [run.oracle[each.seed] for each in run.few])
            activity = {key: answer[key] for key in ("compile_cache_hits", "programs_kept", "draft_tokens", "accepted")}
            if forced_:
                as_said = (activity["compile_cache_hits"] > 0) == (state == "compile cache warm") and activity["accepted"] > 0
            else:
                as_said = (activity["programs_kept"] > 0) == (state == "programs kept")
            run.add("process", f"fresh process, {state}", len(run.few), found, activity, as_said, start)


def soak(run: Run) -> None:
    """Requests come at random and some leave before they are done; those that stay equal their oracles, the others begin
    like them. Half of them get lookup's proposals, half get forced ones."""
    count, start = share(run.config.soak, run.part), time.monotonic()
    chance = random.Random(f"{run.config.seed} {run.config.part}")
    drafts = accepted = aborted = done = 0
    knobs = run.proposals(PATTERN, run.chosen.depth)
    knobs["count"][::4] = knobs["count"][1::4] = forced.LOOKUP  # seeds go prompt by prompt, two ways each
    run.engine._device.turn(knobs)
    found: list[dict[str, Any]] = []
    running: dict[int, tuple[Ask, Told, int | None]] = {}
    news: queue.SimpleQueue = queue.SimpleQueue()
    while done < count:
        while len(running) < run.config.crowd and len(running) + done < count:
            ask = chance.choice(run.asks)
            leaves = chance.randrange(1, ask.max_tokens) if chance.random() < 0.2 else None
            box: list[int] = []
            number = run.engine.submit(ask.ids, ask.params(max_draft_tokens=chance.choice((None, 0, 1, 3, 8))),
                                       lambda delta, box=box: news.put((box, delta)))
            box.append(number)
            running[number] = ask, Told(), leaves
            if chance.random() < 0.5:
                break  # the next one comes a little later
        box, delta = news.get()
        check(run.until)
        while not box:
            time.sleep(1e-4)
        ask, told, leaves = running[box[0]]
        told.hear(delta)
        if leaves is not None and len(told.ids) >= leaves and delta.finish_reason is None:
            run.engine.abort(box[0])
            running[box[0]] = ask, told, None
        if delta.finish_reason is not None:
            del running[box[0]]
            done += 1
            aborted += delta.finish_reason == "abort"
            drafts, accepted = drafts + told.stats.num_draft_tokens, accepted + told.stats.num_accepted_draft_tokens
            found += differences([ask], [told.record()], [run.oracle[ask.seed]], whole=delta.finish_reason != "abort")
            if done % 100 == 0:
                log(f"soak: {done} of {count}, {len(found)} differ")
    run.engine._device.turn(run.hooks.knobs)
    run.add("soak", f"{run.config.crowd} live, coming and leaving at random", count, found,
            {"requests": count, "aborted": aborted, "draft_tokens": drafts, "accepted": accepted},
            aborted > 0 and accepted > 0, start)


RUNS: dict[str, Callable[[Run], None]] = {
    "again": again, "crowd": crowd, "lookup": lookup, "policy": policy, "chunks": chunks, "rejected": rejected,
    "accepted": accepted, "pattern": pattern, "depth": depth, "preempted": preempted, "echo": echo, "capacity": capacity,
    "process": process, "soak": soak}
