"""Which programs the host takes for a step, and where the GPU kernels are taken at all. No device is used."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from radiance_jax.config import EngineConfig
from radiance_jax.engine.choices import choose, largest_step, without_exactness
from radiance_jax.engine.check import programs_agree
from radiance_jax.engine.kernels import kernels_for, model_obstacle, segments_of
from radiance_jax.engine.kinds import FULL, GREEDY, KINDS, PLAIN, Need, draw_steps, kind_of, need_of, row_steps
from radiance_jax.engine.kinds import choose as programs_of
from radiance_jax.engine.launches import compiler_options, one_by_one, weight_bytes
from radiance_jax.engine.request import SamplingParams
from radiance_jax.engine.scheduler import Entry, Plan
from radiance_jax.engine.state import DECODE, PREFILL, Capacity
from radiance_jax.errors import UserError
from radiance_jax.mesh import ArraySpec
from radiance_jax.models.config import parse_config
from radiance_jax.models.partition import partition

RAW = {"architectures": ["LlamaForCausalLM"], "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3,
       "intermediate_size": 1500, "num_hidden_layers": 2, "vocab_size": 49152, "tie_word_embeddings": True,
       "max_position_embeddings": 8192}


def model(**changes):
    return parse_config(RAW | changes)


@pytest.mark.parametrize("params, kind", (
    (dict(temperature=0.0), GREEDY), (dict(temperature=0.0, top_k=5, top_p=0.5, min_p=0.1), GREEDY), (dict(), PLAIN),
    (dict(temperature=0.0, logprobs=0, prompt_logprobs=0), GREEDY), (dict(temperature=0.7, seed=1), PLAIN), (dict(top_k=5), FULL),
    (dict(top_p=0.9), FULL), (dict(min_p=0.1), FULL), (dict(temperature=0.0, logprobs=1), FULL), (dict(prompt_logprobs=2), FULL),
    (dict(temperature=0.0, presence_penalty=1.0), FULL), (dict(frequency_penalty=-1.0), FULL),
    (dict(repetition_penalty=0.9), FULL), (dict(min_tokens=1), FULL), (dict(logit_bias=((3, 1.0),)), FULL), (dict(top_k=-1), PLAIN)), ids=str)
def test_a_request_takes_the_leanest_kind_that_holds_what_it_needs(params, kind):
    one = SamplingParams(**params)
    assert kind_of([one]) == kind
    assert kind_of([SamplingParams(temperature=0.0), one]) == kind_of([one, SamplingParams(temperature=0.0)]) == kind
    assert kind_of([one, SamplingParams(logprobs=3)]) == FULL


def entry(mode, **fields):
    params = SamplingParams(temperature=0.0, prompt_logprobs=fields.pop("prompt_logprobs", None))
    return Entry(SimpleNamespace(params=params), 0, mode, **fields)


def test_draws_are_counted_so_that_none_can_be_missing():
    plan = Plan(entries=[entry(DECODE, depth=5), entry(PREFILL, chunk=40), entry(PREFILL, chunk=9, last=True),
                         entry(PREFILL, chunk=7, prompt_logprobs=0)])
    assert need_of(plan) == Need(rows=6 + 40 + 9 + 7, draws=6 + 0 + 1 + 7, kind=GREEDY)


def test_row_counts_are_such_as_the_kernels_take():
    assert row_steps(512) == (8, 32, 64, 128, 512) and row_steps(1) == (8,) and row_steps(8) == (8,)
    for most in range(1, 9000, 7):
        sizes = row_steps(most)
        assert list(sizes) == sorted(set(sizes)) and sizes[-1] >= most
        assert all(size % (8 if size <= 64 else 128) == 0 for size in sizes)


def test_a_step_takes_the_least_programs_that_hold_it():
    rows = row_steps(512)
    programs = SimpleNamespace(steps=dict.fromkeys(rows),
                               draws=dict.fromkeys((r, d, kind) for r in rows for d in draw_steps(r) for kind in KINDS))
    for need in (Need(rows=r, draws=d, kind=kind) for r in (1, 8, 9, 64, 65, 300, 512) for d in (0, 1, r) for kind in KINDS):
        step, draw = programs_of(programs, need)
        assert step >= need.rows and draw in programs.draws and draw[0] == step and draw[1] >= need.draws and draw[2] == need.kind
    assert programs_of(programs, Need(rows=300, draws=2, kind=GREEDY)) == (512, (512, 64, GREEDY))
    assert programs_of(SimpleNamespace(steps={64: None}, draws={}), Need(rows=3, draws=2, kind=GREEDY)) == (64, None)


def test_a_hopper_gpu_keeps_the_promise_in_bf16():
    chosen = choose(EngineConfig(bit_exact="on"), "gpu", capability="9.0")
    assert chosen.exact and chosen.kernels and chosen.tiles is None and chosen.obstacle is None
    assert choose(EngineConfig(bit_exact="auto"), "gpu", capability="9.0") == chosen
    off = choose(EngineConfig(bit_exact="off"), "gpu", capability="9.0")
    assert not (off.exact or off.kernels) and off.obstacle is None
    cpu = choose(EngineConfig(), "cpu")
    assert cpu.exact and not cpu.kernels and cpu.tiles
    assert largest_step(EngineConfig(max_num_batched_tokens=100), model(), chosen).rows == 128


@pytest.mark.parametrize("options, platform, capability, why", (
    (dict(), "gpu", "8.0", "Hopper"), (dict(), "cuda", "10.0", "Hopper"), (dict(dtype="f32"), "gpu", "9.0", "bf16"),
    (dict(), "tpu", None, "row-invariant")))
def test_what_cannot_be_kept_is_refused_on_demand_and_else_said(options, platform, capability, why):
    with pytest.raises(UserError, match=why):
        choose(EngineConfig(bit_exact="on", **options), platform, capability=capability)
    chosen = choose(EngineConfig(**options), platform, capability=capability)
    assert not (chosen.exact or chosen.kernels) and why in chosen.obstacle


@pytest.mark.parametrize("changes, page, why", (
    (dict(head_dim=24), 64, "multiple of 64"), (dict(head_dim=272), 64, "at most 256"),
    (dict(num_attention_heads=63, num_key_value_heads=1, head_dim=64), 64, "64 heads"),
    (dict(hidden_size=600, head_dim=64), 64, "the width"),
    (dict(), 128, "divides 64"), (dict(), 48, "divides 64")))
def test_models_the_kernels_cannot_take_are_named(changes, page, why):
    settings = model(**changes)
    obstacle = model_obstacle(settings, partition(settings, 1, 64), page)
    assert why in obstacle
    chosen = choose(EngineConfig(bit_exact="on"), "gpu", capability="9.0")
    with pytest.raises(UserError, match="bit_exact=on"):
        without_exactness(EngineConfig(bit_exact="on"), chosen, obstacle)
    assert not without_exactness(EngineConfig(), chosen, obstacle).exact


def test_a_feed_forward_width_is_padded_to_what_the_kernels_take():
    for tp in (1, 2, 4):
        assert model_obstacle(model(), partition(model(), tp, 64), 64) is None or tp > 1
        assert partition(model(), tp, 64).local_ff % 64 == 0
    assert "feed-forward" in model_obstacle(model(), partition(model(), 1), 64)


def test_splits_follow_from_the_model_alone():
    sizes = Capacity(slots=8, length=4096, rows=512, pages=9, page_size=64, depth=7)
    for changes, split, fine, most, said in (
            ({}, 256, 1024, 10, "splits of 256 positions, 512 beyond 1,024, two lanes"),
            ({"max_position_embeddings": 65536}, 256, 1024, 10, "splits of 256 positions, 512 beyond 1,024, two lanes"),
            ({"max_position_embeddings": 131072}, 512, 2048, 6, "splits of 512 positions, 1,024 beyond 2,048, two lanes"),
            ({"max_position_embeddings": 131072, "head_dim": 256}, 1024, None, 4, "splits of 1,024 positions, no lanes")):
        kernels = kernels_for(model(**changes))
        how, short = kernels.attention(sizes), kernels.attention(replace(sizes, length=100))
        assert (how.split, how.fine, how.most, kernels.described()) == (split, fine, most, said)
        assert replace(how, most=1) == short


def test_kernels_are_launched_one_by_one_where_weights_take_longer_than_launches():
    table = ArraySpec((1000, 10), np.dtype(np.float16), ("vocab", None))
    rest = {"layers": [{"up": ArraySpec((10, 10), np.dtype(np.float16), ("ff", None))}] * 2}
    assert weight_bytes({"embed": table, **rest}, 1) == 20400  # the head is the embedding
    assert weight_bytes({"embed": table, "head": table, **rest}, 2) == 10200  # the embedding is looked up
    assert not one_by_one(30, 2.7e8) and compiler_options(30, 2.7e8) == {}
    assert one_by_one(36, 1.5e10) and compiler_options(36, 1.5e10)
    assert not one_by_one(36, 1.5e10 / 8), "eight devices read it in no time"


def test_segments_are_enough_for_any_step():
    settings = model()
    rng = np.random.default_rng(0)
    for slots in (1, 8, 64):
        for rows in (8, 64, 512):
            height, most = segments_of(settings, partition(settings, 1), Capacity(
                slots=slots, length=4096, rows=512, pages=9, page_size=64, depth=7), rows)
            for _ in range(100):
                counts = np.bincount(rng.integers(0, rng.integers(1, slots + 1), rows), minlength=slots)
                assert sum(-(-count // height) for count in counts) <= most


class Machine:
    """Draws and scores that depend on the tokens alone, or also on the program by one last bit."""

    def __init__(self, wrong: tuple[int, str, float] | None = None, rows: tuple[int, ...] = (8, 64, 512)):
        self.wrong, self.rows, self.seen = wrong, rows, set()

    def read_through(self, tokens, chunks, rows, kind, temperature):
        assert sum(chunks) == len(tokens) and max(chunks) <= rows and rows in self.rows
        self.seen.add((rows, kind, temperature))
        scores = np.array(tokens, np.float32) / 7 - temperature
        if (rows, kind, temperature) == self.wrong:
            scores[-1] = np.nextafter(scores[-1], np.float32(np.inf))
        return np.array(tokens, np.int32), scores


def test_every_program_is_compared_before_the_first_request():
    machine = Machine()
    assert programs_agree(machine, 100, 1000, machine.rows)
    ways = {(rows, kind, heat) for rows in machine.rows for heat, kinds in ((0.0, KINDS), (1.0, KINDS[1:])) for kind in kinds}
    assert machine.seen == ways
    assert all(not programs_agree(Machine(wrong), 100, 1000, machine.rows) for wrong in sorted(ways))
