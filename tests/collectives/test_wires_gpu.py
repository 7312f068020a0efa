"""Device-to-device writes. The first test compiles for machines of two and four H200 without having one, but needs the CUDA
plugin (`jax-cuda13-plugin`, `jax-cuda13-pjrt`, `nvidia-cuda-nvcc`, `nvidia-nvvm`); the second runs on two GPUs or more:

    JAX_PLATFORMS=cpu python -m pytest -m gpu tests/collectives -k compiles
    JAX_PLATFORMS=cuda,cpu python -m pytest -m gpu tests/collectives -k bits
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec as P

from radiance_jax.bench import __main__ as bench
from radiance_jax.collectives import remote
from radiance_jax.mesh import TENSOR_AXIS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]
TARGET = Path(__file__).parents[1] / "data" / "h200_target_config.txt"  # as an H200 machine reports itself


@pytest.mark.parametrize("ranks", (2, 4))
@pytest.mark.parametrize(("size", "dtype"), [
    (4096, jnp.bfloat16), (577, jnp.bfloat16), (300_000, jnp.bfloat16), (5000, jnp.float32)])
def test_the_remote_write_kernel_compiles_without_a_gpu(ranks, size, dtype):
    machine = topologies.get_topology_desc(platform="cuda", target_config=TARGET.read_text(), topology=f"1x1x{ranks}")
    mesh = topologies.make_mesh(machine, (ranks,), (TENSOR_AXIS,))
    message = jax.ShapeDtypeStruct((ranks, size), dtype, sharding=NamedSharding(mesh, P(TENSOR_AXIS)))
    for run in (lambda x, r: remote.one_shot(x[0], TENSOR_AXIS)[None],
                lambda x, r: remote.one_shot(x[0], TENSOR_AXIS, r[0])[None]):
        step = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=P(TENSOR_AXIS), out_specs=P(TENSOR_AXIS), check_vma=False))
        text = step.lower(message, message).compile().as_text()
        assert "mosaic_gpu" in text and "collective" in text
        assert "multimem" not in text and "nvshmem" not in text


def test_all_forms_give_the_promised_bits_on_this_machine(tmp_path):
    assert jax.default_backend() == "gpu" and jax.device_count() > 1, "this test is for a machine with several GPUs"
    out, mesh = tmp_path / "wires.json", f"tp={jax.device_count()}"
    assert bench.main(["wires", "--mesh", mesh, "--sizes", "8,128", "--no-activations", "--out", str(out)]) == 0
    forms = {each["form"] for each in json.loads(out.read_text())["bits"]}
    assert {"one-shot", "two-shot", "remote", "remote+add"} <= forms
