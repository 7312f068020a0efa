"""Requests of every kind, each with a seed of its own."""

import numpy as np

from tests.exactness.lab import VOCAB, Request

TOKENS = 20


def prompt(seed: int, length: int = 21, repeats: int = 3) -> tuple[int, ...]:
    """Random ids that repeat, so that lookup has something to find."""
    ids = np.random.default_rng(seed).integers(3, VOCAB, -(-length // repeats)).tolist() * repeats
    return tuple(ids[:length])


def request(seed: int, length: int = 21, **params) -> Request:
    base = dict(temperature=0.0, max_tokens=TOKENS, logprobs=20, ignore_eos=True)
    return Request(prompt(seed, length), base | params | {"seed": seed})


GREEDY, WARM = request(0), request(1, temperature=0.8)
SAMPLED = (
    request(2, 15, temperature=0.7), request(3, 16, temperature=1.0, top_k=5),
    request(4, 17, temperature=1.5, top_p=0.8), request(5, 31, temperature=1.0, min_p=0.05))
ADJUSTED = (
    request(6, 32, repetition_penalty=1.3),
    request(7, 33, temperature=0.9, presence_penalty=0.7, frequency_penalty=0.5),
    request(8, 47, logit_bias=((17, 4.0), (20, -100.0), (31, 2.5))),
    request(9, 48, temperature=1.0, min_tokens=12, stop_token_ids=(4, 15, 28, 41, 67, 90, 111, 140), ignore_eos=False))
ALL = (GREEDY, WARM, *SAMPLED, *ADJUSTED)
LONG = (request(10, 90), request(11, 90, temperature=0.9, frequency_penalty=0.3, prompt_logprobs=5))
