"""Programs kept on disk: a second start lowers none of them and answers with the same bits; what is damaged is made again."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from radiance_jax.config import EngineConfig
from radiance_jax.engine import shelf as shelf_module
from radiance_jax.engine.compile import compile_all, use_persistent_cache
from radiance_jax.engine.device import Device
from radiance_jax.engine.engine import Engine
from radiance_jax.engine.shelf import Shelf
from radiance_jax.mesh import make_mesh
from tests.engine.conftest import Harness

LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
ASKED = dict(temperature=0.8, seed=7, max_tokens=24, logprobs=5, ignore_eos=True)


@pytest.fixture(scope="module", autouse=True)
def no_other_cache():
    """Engines of other tests in this process may have turned JAX's on."""
    caching = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_compilation_cache_dir", caching)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def config(tiny, tmp_path_factory):
    return EngineConfig(model=str(tiny), mesh="tp=2", max_num_seqs=2, max_model_len=64, max_num_batched_tokens=8,
                        page_size=16, row_tile=4, cache_dir=str(tmp_path_factory.mktemp("cache")))


def start(config):
    """How many programs were kept from before, how many modules were lowered, and the bits of an answer."""
    said, lowered = [], []

    def hear(event: str, seconds: float, **_) -> None:
        if event == LOWERED:
            lowered.append(event)

    jax.clear_caches()  # as in a fresh process: what this one has traced does not count
    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        engine = Engine.load(config, said.append)
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)
    try:
        record = Harness(engine).ask((3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1), **ASKED).record()
    finally:
        engine.close()
    line = next(line for line in said if "kept from before" in line)
    return int(line.split(" of them kept from before")[0].split()[-1]), len(lowered), record


def files(config):
    folder = os.path.join(config.cache_dir, "programs")
    return sorted(os.path.join(folder, name) for name in os.listdir(folder))


def programs(config):
    return [path for path in files(config) if path.endswith(".program")]


@pytest.fixture(scope="module")
def first(config):
    return start(config)


def test_a_second_start_takes_all_programs_from_the_shelf_and_answers_the_same(config, first):
    found, lowered, record = start(config)
    assert first[0] == 0 and found == len(programs(config)) == 2, "one step, one admission"
    assert lowered <= first[1] - 2, "neither was lowered again"
    assert record == first[2]


@pytest.mark.parametrize("damage", (None, *(pytest.param(each, marks=pytest.mark.slow) for each in (b"", b"not a pickle"))))
def test_a_damaged_program_is_compiled_again_and_written_over(config, first, damage):
    step = max(programs(config), key=os.path.getsize)
    content = open(step, "rb").read()
    with open(step, "wb") as file:
        file.write(content[:len(content) // 2] if damage is None else damage)
    found, _, record = start(config)
    assert found == 1 and record == first[2]
    assert start(config)[::2] == (2, first[2])


def test_a_damaged_index_leads_to_programs_by_their_content(config, first):
    (index,) = [path for path in files(config) if path.endswith(".index")]
    with open(index, "w") as file:
        file.write("{")
    found, lowered, record = start(config)
    assert found == 2 and record == first[2] and lowered >= 2, "as after an edit of the source: lowered, not compiled"
    assert start(config)[1] < lowered


def test_what_came_out_of_another_cache_is_not_written_down(tmp_path):
    """Such an executable would load, and fail when it runs."""
    def shelved(folder):
        jax.clear_caches()
        program = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y) @ y, x)).lower(np.eye(8, dtype=np.float32))
        return shelf_with(tmp_path / folder, "ladder", program)

    caching = jax.config.jax_compilation_cache_dir
    try:
        use_persistent_cache(tmp_path / "compiled")
        compilation_cache.reset_cache()
        assert not shelved("first") and shelved("first"), "compiled, and written down"
        assert not shelved("second") and not shelved("second"), "found by JAX"
    finally:
        jax.config.update("jax_compilation_cache_dir", caching)
        compilation_cache.reset_cache()


def test_programs_that_load_and_do_not_run_are_thrown_away(config, first, tmp_path, monkeypatch):
    own = replace(config, cache_dir=str(tmp_path))
    shutil.copytree(os.path.join(config.cache_dir, "programs"), tmp_path / "programs")
    runs, said = iter((False, True)), []
    monkeypatch.setattr(Device, "warm_up", lambda self, warm_up=Device.warm_up: warm_up(self) if next(runs) else fail())
    engine = Engine.load(own, said.append)
    try:
        assert Harness(engine).ask((3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1), **ASKED).record() == first[2]
    finally:
        engine.close()
    assert any("do not run (INTERNAL: no such function); starting again without them" in line for line in said)
    assert not list((tmp_path / "programs").glob("*.program"))


def fail():
    raise jax.errors.JaxRuntimeError("INTERNAL: no such function\nand more")


@pytest.mark.slow
def test_other_sizes_are_other_programs(config, first):
    assert start(replace(config, max_num_seqs=3))[0] == 0


@pytest.mark.slow
def test_without_a_compile_cache_nothing_is_kept(config, first, tmp_path):
    said = []
    Engine.load(replace(config, cache_dir=str(tmp_path), compile_cache=False), said.append).close()
    assert any("0 of them kept" in line for line in said) and not (tmp_path / "programs").exists()


def shelf_with(folder, name, program=None):
    """What a start with this ladder finds; where it finds nothing it compiles `program`."""
    with ThreadPoolExecutor() as pool, Shelf(folder, name, make_mesh(1)) as shelf:
        found = shelf.take_all([("step",)], pool)
        if not found and program is not None:
            shelf.compile(("step",), program)
            shelf.settle()
        return found


def test_the_programs_used_last_stay(tmp_path, monkeypatch):
    def lowered(number):
        return jax.jit(lambda x: x + number).lower(jax.ShapeDtypeStruct((), "float32"))

    for number in range(3):
        assert not shelf_with(tmp_path, f"ladder {number}", lowered(number))
        for path in (tmp_path / "programs").iterdir():
            if path.stat().st_mtime > 1e6:
                os.utime(path, (number, number))
    (program,) = shelf_with(tmp_path, "ladder 0").values()  # used now
    assert float(program(np.float32(1))) == 1.0
    sizes = [path.stat().st_size for path in (tmp_path / "programs").glob("*.program")]
    monkeypatch.setattr(shelf_module, "LIMIT", 2.5 * max(sizes))
    assert not shelf_with(tmp_path, "ladder 3", lowered(3))
    assert [bool(shelf_with(tmp_path, f"ladder {number}")) for number in range(4)] == [True, False, False, True]


def test_a_bit_that_fell_over_is_noticed(tmp_path):
    """Damaged code may load all the same."""
    program = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((), "float32"))
    assert not shelf_with(tmp_path, "ladder", program) and shelf_with(tmp_path, "ladder")
    (file,) = (tmp_path / "programs").glob("*.program")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert not shelf_with(tmp_path, "ladder")


def test_the_same_operations_on_arguments_of_other_names_are_another_program(tmp_path):
    """As after an edit that renames a tensor: the lowered text is the same."""
    for name in ("before", "after"):
        lowered = jax.jit(lambda x, name=name: x[name] + 1).lower({name: jax.ShapeDtypeStruct((), "float32")})
        assert not shelf_with(tmp_path, f"ladder {name}", lowered)
        (program,) = shelf_with(tmp_path, f"ladder {name}").values()
        assert float(program({name: np.float32(1)})) == 2.0


def test_a_setting_of_jax_is_part_of_what_programs_are_found_by(tmp_path):
    program = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((), "float32"))
    assert not shelf_with(tmp_path, "ladder", program) and shelf_with(tmp_path, "ladder")
    with jax.default_matmul_precision("highest"):
        assert not shelf_with(tmp_path, "ladder")
    assert shelf_with(tmp_path, "ladder")


def test_a_disk_that_takes_nothing_costs_nothing_but_time(tmp_path):
    (tmp_path / "programs").write_text("in the place of the folder")
    assert not shelf_with(tmp_path, "ladder", jax.jit(lambda x: x + 1).lower(1.0))
    assert not shelf_with(tmp_path, "ladder")
    said, program = [], jax.jit(lambda x: x + 1)
    compile_all([(("step",), lambda: program.lower(1.0))], 1, Shelf(tmp_path, "ladder", make_mesh(1)), said.append)
    assert "cannot be kept" in said[-1] and "cache_dir" in said[-1]


def test_an_address_in_a_description_is_refused(tmp_path):
    with pytest.raises(ValueError, match="only its address"):
        Shelf(tmp_path, repr(object()), make_mesh(1))
