"""Three hundred mixed requests, sixteen at a time, over a pool too small for them, while clients leave at random.

Every answer that was finished must be the one the same request gets alone and without drafting; what a client read
before it left must be the beginning of that.
"""

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODIES, TIMES, CONCURRENCY = 100, 3, 16
FLAGS = ("--max-num-seqs", "8", "--page-size", "4", "--kv-pages", "72", "--max-model-len", "256")


@dataclass
class Ask:
    """One request. `leave` is how many events (streamed) or seconds (whole) the client stays; None: to the end."""

    number: int
    path: str
    body: dict[str, Any]
    leave: float | None = None


def words(rng: random.Random, count: int) -> str:
    """Half of them said twice, so that prompt lookup finds something."""
    first = [f"w{rng.randrange(3, 151)}" for _ in range(-(-count // 2))]
    return " ".join((first + first)[:count])


def make_body(rng: random.Random) -> tuple[str, dict[str, Any]]:
    chat, prompt = rng.random() < 0.5, words(rng, rng.choice((1, 3, 10, 30, 60, 100)))
    body: dict[str, Any] = {"max_tokens": rng.choice((1, 2, 8, 24, 48, 100)), "ignore_eos": rng.random() < 0.8,
                            "return_token_ids": True, "temperature": 0}
    if rng.random() < 0.5:
        body |= {"temperature": rng.choice((0.2, 0.7, 1.2)), "seed": rng.randrange(2**63)}
        body |= rng.choice(({}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.05}, {"top_k": 20, "top_p": 0.9}))
    if rng.random() < 0.3:
        body |= {"presence_penalty": 0.6, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
    if rng.random() < 0.2:
        body["logit_bias"] = {str(rng.randrange(3, 151)): rng.choice((-100, 3))}
    if rng.random() < 0.25:
        body["stop"] = [f"w{rng.randrange(3, 151)}", f"w{rng.randrange(1, 10)}"]
    if rng.random() < 0.15:
        body |= {"stop_token_ids": [rng.randrange(3, 151) for _ in range(6)], "min_tokens": min(4, body["max_tokens"])}
    if rng.random() < 0.15:
        body["n"] = 2
    logprobs = rng.choice((None, 0, 2, 5))
    if chat:
        body["messages"] = [{"role": "user", "content": prompt}]
        body |= {} if logprobs is None else {"logprobs": True, "top_logprobs": logprobs}
    else:
        body["prompt"] = prompt
        body |= {} if logprobs is None else {"logprobs": logprobs}
        body |= {"echo": True} if rng.random() < 0.3 else {}
    return CHAT if chat else TEXT, body


def make_asks() -> list[Ask]:
    rng = random.Random(7)
    kinds = [make_body(rng) for _ in range(BODIES)]
    asks = []
    for number in list(range(BODIES)) * TIMES:
        path, body = kinds[number]
        stream, leaves = rng.random() < 0.5, rng.random() < 0.2
        extra = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        leave = None if not leaves else rng.randrange(1, 12) if stream else rng.choice((0.01, 0.05, 0.2))
        asks.append(Ask(number, path, body | extra, leave))
    rng.shuffle(asks)
    return asks


@dataclass
class Told:
    """What came back: by choice, the text, ids, logprobs and how it ended; and the usage if it came to that."""

    choices: dict[int, dict[str, Any]]
    usage: dict[str, int] | None = None

    def add(self, choice: dict[str, Any]) -> None:
        mine = self.choices.setdefault(choice["index"], {"text": "", "ids": [], "logprobs": {}, "end": None})
        mine["text"] += choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""
        mine["ids"] += choice.get("token_ids", [])
        for name, values in (choice["logprobs"] or {}).items():
            mine["logprobs"].setdefault(name, []).extend(values or [])
        if choice["finish_reason"] is not None:
            mine["end"] = (choice["finish_reason"], choice["stop_reason"])

    def finish(self, usage: dict[str, Any]) -> "Told":
        self.usage = {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
        return self


def whole(response: httpx.Response) -> Told:
    assert response.status_code == 200, response.text
    answer, told = response.json(), Told({})
    for choice in answer["choices"]:
        told.add(choice)
    return told.finish(answer["usage"])


async def streamed(client: httpx.AsyncClient, ask: Ask) -> Told:
    told, events = Told({}), 0
    async with client.stream("POST", ask.path, json=ask.body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line:
                continue
            if line == "data: [DONE]":
                return told
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            for choice in event["choices"]:
                told.add(choice)
            if event["usage"]:
                told.finish(event["usage"])
            events += 1
            if ask.leave is not None and events >= ask.leave:
                return told
    raise AssertionError("a stream ended without [DONE]")


async def answer(client: httpx.AsyncClient, ask: Ask) -> Told | None:
    """None where the client left before anything came."""
    if ask.body.get("stream"):
        return await streamed(client, ask)
    try:
        return whole(await asyncio.wait_for(client.post(ask.path, json=ask.body), ask.leave))
    except TimeoutError:
        return None


async def all_answers(url: str, asks: list[Ask]) -> list[Told | None]:
    waiting, told = list(enumerate(asks)), [None] * len(asks)

    async def worker(client: httpx.AsyncClient) -> None:
        while waiting:
            place, ask = waiting.pop(0)
            told[place] = await answer(client, ask)

    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        await asyncio.gather(*(worker(client) for _ in range(CONCURRENCY)))
    return told


def beginning(part: dict[int, dict], alone: dict[int, dict]) -> bool:
    return all(alone[index]["ids"][:len(mine["ids"])] == mine["ids"] and alone[index]["text"].startswith(mine["text"])
               for index, mine in part.items())


@pytest.mark.timeout(300)
def test_every_answer_under_load_is_the_one_given_alone(launch_real):
    server, asks = launch_real(*FLAGS), make_asks()
    alone: dict[int, Told] = {}
    for ask in sorted(asks, key=lambda each: each.number):
        if ask.number not in alone:
            plain = {name: value for name, value in ask.body.items() if name not in ("stream", "stream_options")}
            alone[ask.number] = whole(server.http.post(ask.path, json=plain | {"speculative": {"enabled": False}}))
    before = server.metric("vllm:num_preemptions_total")  # of requests with n=2
    told = asyncio.run(all_answers(server.url, asks))
    finished = left = 0
    for ask, got in zip(asks, told, strict=True):
        if got is None or got.usage is None:
            assert ask.leave is not None
            assert got is None or beginning(got.choices, alone[ask.number].choices), ask
            left += 1
            continue
        finished += 1
        assert got == alone[ask.number], ask
    assert finished >= 240 and left >= 20, (finished, left)
    for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        server.wait_metric(gauge + "{", 0)
    preempted = server.metric("vllm:num_preemptions_total") - before
    print(f"finished {finished}, left {left}, preemptions {preempted:.0f}, accepted drafts "
          f"{server.metric('vllm:spec_decode_num_accepted_tokens_total'):.0f}")
    assert preempted > 0
    assert server.metric("vllm:spec_decode_num_accepted_tokens_total") > 0
    for never in ("compiles_after_warmup", "leaked_pages", "listener_errors"):
        assert server.metric(f"radiance:{never}_total") == 0, never
    lines = server.http.get("/metrics").text.splitlines()
    reasons = {line.split('finished_reason="')[1].split('"')[0] for line in lines
               if line.startswith("vllm:request_success_total{")}
    assert "error" not in reasons and "abort" in reasons
