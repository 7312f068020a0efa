"""Engines of other sizes give the same answers; so does an engine started anew. (Axes 4 and 11; capacity.)"""

import jax
import pytest

from tests.exactness.conftest import KIND
from tests.exactness.lab import Lab
from tests.exactness.requests import ALL, LONG

SIZES = {  # pairwise by design: each differs from the laboratory's own engine and from the others in everything
    "small": dict(max_num_seqs=1, max_num_batched_tokens=8, num_speculative_tokens=0, max_model_len=144, kv_pages=9),
    "middling": dict(max_num_seqs=5, max_num_batched_tokens=20, num_speculative_tokens=4, max_model_len=200,
                     kv_pages=40),
    "large": dict(max_num_seqs=32, max_num_batched_tokens=160, num_speculative_tokens=16, max_model_len=512),
}


def compare(base: Lab, other: Lab) -> None:
    assert other.built.tiles == base.built.tiles, "tiles belong to the manifest: they must not depend on sizes"
    other.oracles = base.oracles
    requests = [*ALL, *LONG]
    for each in requests:
        base.oracle(each)
    for each in requests[::2]:
        other.check(each, other.ask(each, max_draft_tokens=0), "alone in an engine of another size")
    if other.depth:
        for each in requests:
            other.drafting("pattern", each)
    answers = other.ask_all(requests)
    for each, answer in zip(requests, answers, strict=True):
        other.check(each, answer, "in a crowd in an engine of another size")
    assert not other.depth or sum(answer.stats.num_accepted_draft_tokens for answer in answers) > 0


@pytest.mark.parametrize("size", (*(pytest.param(size, marks=pytest.mark.slow) for size in ("small", "large")),
                                  pytest.param("middling", marks=pytest.mark.long)))
def test_capacity_changes_no_bit(labs, folder, size):
    other = Lab.open(KIND[1], 1, folder, **SIZES[size])
    try:
        compare(labs(1), other)
    finally:
        other.close()


def test_a_restart_from_a_warm_compile_cache(labs, folder):
    base, hits = labs(1), []

    def hear(event: str, **_) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            hits.append(event)

    jax.monitoring.register_event_listener(hear)
    try:
        other = Lab.open(KIND[1], 1, folder)
    finally:
        jax.monitoring.unregister_event_listener(hear)
    try:
        assert len(hits) >= 2, "step and admission came from the cache"
        compare(base, other)
    finally:
        other.close()
