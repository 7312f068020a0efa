"""The memory plan: what it counts, what it decides, what it refuses."""

import re
from dataclasses import replace

import jax.numpy as jnp
import pytest

from radiance_jax.config import EngineConfig
from radiance_jax.engine.memory import (
    CPU_SHARE,
    DEVICE_SHARE,
    Memory,
    page_bytes,
    plan_memory,
    rank_bytes,
    readable,
    step_workspace,
    visible_memory,
    weight_bytes,
)
from radiance_jax.engine.state import Capacity
from radiance_jax.errors import UserError
from radiance_jax.models import llama
from radiance_jax.models.config import parse_config
from radiance_jax.models.partition import partition
from tests.exactness.neural import toy_drafter

GIB = 2**30
RAW = {"architectures": ["LlamaForCausalLM"], "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3,
       "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152, "tie_word_embeddings": True,
       "max_position_embeddings": 8192}
SMALL = parse_config(RAW)


def plan(options=None, model=SMALL, tp=1, memory=None, tile=(32, 4), drafter=None, **memory_options):
    config = EngineConfig(**options or {})
    length = config.max_model_len or model.max_position
    wanted = Capacity(slots=config.max_num_seqs, length=length, rows=64, budget=64, pages=1, page_size=config.page_size or 128, depth=3)
    memory = memory or Memory(total=24 * GIB, name="host memory", ranks=tp, **memory_options)
    return plan_memory(config, model, partition(model, tp), wanted, tile, jnp.bfloat16, memory, drafter)


def device(total, **more):
    return Memory(total=total, **more)


def test_the_default_model_on_a_host_gets_every_slot_its_full_length():
    made = plan()
    assert (made.share, made.capacity.length, made.capacity.pages - 1) == (CPU_SHARE, 8192, 8 * 64)
    assert made.weights == 2 * 134515008 and made.page == 128 * 2 * 30 * 3 * 64 * 2
    assert made.total == made.weights + made.workspace + made.state + made.pool <= made.allowed == 12 * GIB
    text = "\n".join(made.table())
    for part in ("24.00 GiB of host memory", "weights", "256.6 MiB", "drafter", "none", "step workspace", "estimated",
                 "device state", "512 pages of 128 tokens: 65536 tokens, or 8.0 sequences of full length", "together"):
        assert part in text
    assert "as compiled" in "\n".join(made.with_compiled(5 << 20).table())
    assert made.with_compiled(5 << 20).workspace == 5 << 20 and made.with_compiled(None) is made


def test_figures_are_those_of_the_arrays():
    for tp in (1, 2, 4):
        cut = partition(SMALL, tp)
        assert weight_bytes(SMALL, cut, jnp.bfloat16) == rank_bytes(llama.param_specs(SMALL, cut, jnp.bfloat16), tp)
        spec = llama.cache_spec(SMALL, cut, 7, 16, jnp.bfloat16)
        assert 7 * page_bytes(SMALL, cut, 16, jnp.bfloat16) == spec.nbytes // tp * SMALL.num_layers


def test_a_drafters_weights_and_keys_are_counted():
    toy, without = toy_drafter(tap=29, width=576, block=3), plan(memory=device(24 * GIB), tile=None)
    made = plan(memory=device(24 * GIB), tile=None, drafter=toy)
    assert made.drafter == 2 * (2 * 576 * 576 + 576) and made.draft_cache == 8 * 2 * 576 * 2 and made.window == 2
    assert made.total - made.workspace == without.total - without.workspace + made.drafter + made.draft_cache
    assert made.workspace > without.workspace
    text = "\n".join(made.table())
    assert "drafter's keys" in text and "8 sequences of up to 2 positions" in text
    assert "drafter's keys" not in "\n".join(without.table())
    with pytest.raises(UserError, match=r"weights 256.6 MiB \+ drafter 1.3 MiB \+ drafter's keys"):
        plan(memory=device(GIB // 4), tile=None, drafter=toy)


def test_devices_of_a_host_share_its_memory_and_gpus_have_their_own():
    one, four = plan(), plan(tp=4)
    assert four.state == 4 * one.state and four.capacity == one.capacity
    assert one.weights < four.weights < 1.5 * one.weights  # padding, and the norms on every rank
    cut = plan(tp=4, memory=device(40 * GIB))
    assert cut.share == DEVICE_SHARE and cut.weights == four.weights // 4


def test_the_share_decides_the_pool():
    tight = plan({"gpu_memory_utilization": 0.9, "max_model_len": 4096}, memory=device(GIB * 3 // 4))
    assert tight.capacity.length == 4096
    assert 32 < tight.capacity.pages - 1 < 8 * 32
    assert tight.total <= tight.allowed < tight.total + tight.page
    used = plan({"gpu_memory_utilization": 0.9, "max_model_len": 4096}, memory=device(GIB * 3 // 4, used=GIB // 8))
    assert used.capacity.pages < tight.capacity.pages and used.total <= used.allowed
    assert "others" in "\n".join(used.table())


def test_a_context_nobody_asked_for_shrinks_to_what_fits():
    made = plan(memory=device(400 << 20))
    assert made.capacity.length < 8192 and made.capacity.length % 128 == 0
    assert made.total <= made.allowed < made.total + 2 * made.page
    pages = plan({"kv_pages": 10})
    assert (pages.capacity.length, pages.capacity.pages) == (1280, 11)
    assert plan({"kv_pages": 10, "max_model_len": 1200}).capacity.length == 1200


def test_a_small_host_keeps_its_pool_to_an_eighth_unless_told_otherwise():
    cautious = plan(memory=Memory(total=8 * GIB, name="host memory"))
    assert cautious.pool <= GIB + cautious.page and cautious.capacity.length == 8192
    told = plan({"gpu_memory_utilization": 0.5}, memory=Memory(total=8 * GIB, name="host memory"))
    assert told.pool > 1.3 * GIB and told.total <= told.allowed
    asked = plan({"max_model_len": 8192}, memory=Memory(total=GIB, name="host memory"))
    assert asked.capacity.pages - 1 == 64


def arithmetic(text: str) -> tuple[float, float, float]:
    """The sum of the parts, the sum as said, and the limit, in MiB."""
    sizes = [float(number) * {"MiB": 1, "GiB": 1024, "TiB": 1024**2}[unit]
             for number, unit in re.findall(r"([0-9.]+) (MiB|GiB|TiB)", text)]
    return sum(sizes[:-3]), sizes[-3], sizes[-1]


@pytest.mark.parametrize(("options", "memory", "param"), [
    ({}, device(200 << 20), "gpu_memory_utilization"),
    ({"gpu_memory_utilization": 0.01}, device(16 * GIB), "gpu_memory_utilization"),
    ({"max_model_len": 8192}, device(400 << 20), "max_model_len"),
    ({"kv_pages": 10**9}, device(16 * GIB), "kv_pages"),
    ({"kv_pages": 5000}, Memory(total=24 * GIB, name="host memory"), "kv_pages"),
    ({"max_num_seqs": 4096}, device(GIB), "gpu_memory_utilization"),
    ({}, device(16 * GIB, used=16 * GIB), "gpu_memory_utilization"),
    ({"page_size": 10**12}, device(16 * GIB), "gpu_memory_utilization"),
])
def test_what_does_not_fit_is_refused_with_the_arithmetic(options, memory, param):
    with pytest.raises(UserError) as caught:
        plan(options, memory=memory)
    text = str(caught.value)
    assert caught.value.param == param and "does not fit" in text and "--gpu-memory-utilization" in text
    parts, total, limit = arithmetic(text)
    assert parts == pytest.approx(total, rel=0.02) and total >= limit


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim",
                                   "max_position_embeddings"])
def test_sizes_that_no_memory_holds_are_refused_without_building_anything(field):
    model = parse_config(RAW | {field: 2**31 - 2 - (2**31 - 2) % 9})
    if field == "max_position_embeddings":
        assert plan(model=model).capacity.length < 2**20
        return
    with pytest.raises(UserError, match="does not fit"):
        plan(model=model)


def test_a_compiled_workspace_larger_than_guessed_is_refused_only_where_memory_ends():
    made = plan({"gpu_memory_utilization": 0.5}, memory=device(4 * GIB))
    assert made.with_compiled(GIB).total > made.allowed
    with pytest.raises(UserError, match="does not fit"):
        made.with_compiled(3 * GIB)


def test_the_machine_has_memory():
    host = visible_memory("cpu", 4)
    assert host.ranks == 4 and host.shared and 2**28 < host.total < 2**50


def test_sizes_are_readable():
    assert [readable(n) for n in (0, 2**20, 3 * GIB, 5 * 2**40)] == ["0.0 MiB", "1.0 MiB", "3.00 GiB", "5.00 TiB"]


def test_an_engine_logs_its_table_and_the_guess_covers_what_was_compiled(config, tmp_path):
    from radiance_jax.engine.engine import Engine

    lines = []
    engine = Engine.load(config(cache_dir=str(tmp_path)), lines.append)
    try:
        text = "\n".join(lines)
        assert "step workspace" in text and "as compiled" in text and "4 sequences of up to 256 tokens" in text
        found = float(re.search(r"step workspace +([0-9.]+) MiB", text)[1])
        model = engine.model_config
        guess = step_workspace(model, partition(model, 1), engine.capacity, (32, 4))
        assert found <= guess / 2**20 + 0.1
    finally:
        engine.close()


def test_a_model_larger_than_the_machine_is_refused_before_anything_is_compiled(tiny, tmp_path):
    """A real file of the size it claims: three terabytes of zeros that take no room on the disk."""
    import json
    import shutil
    import struct

    from radiance_jax.engine.build import build
    from radiance_jax.models.tensors import tensor_shapes

    folder = tmp_path / "giant"
    shutil.copytree(tiny, folder)
    raw = json.loads((folder / "config.json").read_text()) | {"hidden_size": 2**17, "intermediate_size": 2**21}
    (folder / "config.json").write_text(json.dumps(raw))
    header, at = {}, 0
    for name, shape in tensor_shapes(parse_config(raw)).items():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    assert at > 2**40 and (folder / "model.safetensors").stat().st_blocks * 512 < 2**20
    with pytest.raises(UserError, match="does not fit: weights 3"):
        build(EngineConfig(model=str(folder), cache_dir=str(tmp_path)), lambda line: None)
    assert not (tmp_path / "compiled").exists()


def test_the_plan_is_pure():
    assert plan() == plan() and replace(plan(), workspace=0).total < plan().total
