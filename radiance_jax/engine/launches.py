"""How a step's kernels get onto a GPU: as one graph, or one by one.

One by one a kernel starts while the one before it drains and has its weights on the way when its rows are ready
(`pallas/mosaic.py`); between the nodes of a graph XLA keeps no such overlap. But each launch takes the host some
microseconds, which a graph does not. So a step whose weights take longer to read than its launches take the host is
launched one by one (an 8B model's on an H200: `bench step --launches graph` and `alone` measure either), a small model's as
a graph. No bit depends on it.
"""

from typing import Any

from radiance_jax.engine.memory import rank_bytes

LAUNCH = 10e-6  # seconds of the host for each kernel, as measured there
BANDWIDTH = 4.2e12  # bytes/s that weights are read at
LAYER = 9  # kernels
ONE_BY_ONE = {"xla_gpu_graph_min_graph_size": 1_000_000}


def one_by_one(layers: int, weight_bytes: float) -> bool:
    """`weight_bytes`: those that a step reads on one device."""
    return weight_bytes / BANDWIDTH > LAUNCH * LAYER * layers


def weight_bytes(specs: Any, tp: int) -> int:
    """Bytes of weights that a step reads on one rank, of the parameters' specs: all but an embedding that is looked up alone."""
    return rank_bytes({name: part for name, part in specs.items() if name != "embed" or "head" not in specs}, tp)


def compiler_options(layers: int, weight_bytes: float) -> dict[str, int]:
    """For `jax.jit` of a step's kernels, on a GPU."""
    return ONE_BY_ONE if one_by_one(layers, weight_bytes) else {}
