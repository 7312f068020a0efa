"""A record of `bench spec` from answers made up by hand: two sets, two temperatures, the drafter's modes and those without."""

from radiance_jax.bench.figures import Answer, Pass
from radiance_jax.bench.spec_figures import Counted, Turn
from radiance_jax.engine.request import RequestStats

MODES = ("off-fast f32", "off", "lookup", "drafter", "both", "drafter:fixed")
SPEED = {"off-fast f32": 1.25, "off": 1.0, "lookup": 1.5, "drafter": 2.0, "both": 2.5, "drafter:fixed": 1.75}  # tokens a second
LENGTH = {"lookup": 2, "drafter": 3, "both": 4, "drafter:fixed": 4}  # tokens a verify step
TOKENS = 13


def answer(prompt: str, seconds: float, length: int = 1, ids: tuple[int, ...] = tuple(range(TOKENS))) -> Answer:
    steps = (len(ids) - 1) // length
    stats = RequestStats(
        prompt_tokens=5, completion_tokens=len(ids), num_decode_steps=steps, arrival=0.0, first_token=1.0, finished=1.0 + seconds,
        **({} if length == 1 else {
            "num_spec_steps": steps, "num_draft_tokens": 4 * steps, "num_accepted_draft_tokens": (length - 1) * steps,
            "acceptance_histogram": {length - 1: steps}}))
    return Answer(prompt=prompt, ids=ids, bits=tuple(float(i).hex() for i in ids), stats=stats)


def counted(length: int, steps: int) -> Counted:
    """As an engine counts steps that each accepted length - 1 of 4 drafts."""
    if length == 1:
        return Counted(by_proposer={}, steps={1: (steps, steps * 0.01)})
    return Counted(reached=tuple(steps if i < length else 0 for i in range(4)),
                   accepted=tuple(steps if i < length - 1 else 0 for i in range(4)),
                   by_proposer={"neural": (4 * steps, (length - 1) * steps)}, steps={5: (steps, steps * 0.0125)})


def turns(factor: dict[str, float], live: int = 1) -> list[Turn]:
    """`factor`: how much faster each set is answered in all modes that draft; two prompts each."""
    made = []
    for temperature in (0.0, 1.0):
        for name, times in factor.items():
            for number in range(2):
                for mode in MODES:
                    length = LENGTH.get(mode, 1)
                    seconds = (TOKENS - 1) / (SPEED[mode] * (times if length > 1 else 1.0))
                    done = Pass(round=0, answers=(answer(f"{name}-{number}", seconds, length),))
                    made.append(Turn(set=name, temperature=temperature, live=live, mode=mode, done=done,
                                     counted=counted(length, (TOKENS - 1) // length)))
    return made


def record(made: list[Turn], bit_exact: bool = True) -> dict:
    from radiance_jax.bench.spec import figures_of

    facts = {"dtype": "f32", "exact": bit_exact, "depth": 4, "lookup": 4}
    result = {
        "date": "2026-01-02T03:04:05+00:00", "command": "python -m radiance_jax.bench spec m.rad", "model": "a <b> model",
        "machine": {"device": "a device", "devices": 1, "cpu": "a processor", "cores": 2, "cores_busy_with_others": 0.25},
        "versions": {"jax": "0.11.2"}, "drafter": None, "bit_exact": bit_exact, "engines": {mode: facts for mode in MODES},
        "measured": {"units": 8, "of": 10, "ended": "by --limit-minutes 5"}}
    return figures_of(result, made, seed=0)
