"""Every kernel lowers for a Hopper GPU on a machine without one: for an abstract H200, with the plain CPU package of jax."""

import jax
import jax.numpy as jnp
import pytest

from radiance_jax.engine.kernels import kernels_for, model_obstacle
from radiance_jax.engine.kinds import KINDS
from radiance_jax.engine.state import Capacity
from radiance_jax.engine.steps import StepShape
from radiance_jax.engine.two_part import lower_draw, lower_forward
from radiance_jax.mesh import make_mesh
from radiance_jax.models import llama
from radiance_jax.models.config import parse_config
from radiance_jax.models.partition import partition

pytestmark = pytest.mark.long

SHAPES = {
    "default": dict(hidden_size=576, num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536, vocab_size=49152),
    "8B": dict(hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, intermediate_size=12288, vocab_size=151936),
    "qwen3": dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=1024, num_attention_heads=16,
                  num_key_value_heads=8, head_dim=128, intermediate_size=3072, vocab_size=151936),
}


def on_an_h200():
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))


@pytest.mark.parametrize("name, rows", (("default", 8), ("default", 512), ("8B", 64), ("qwen3", 128)))
def test_both_parts_of_a_step_lower(name, rows):
    raw = dict(architectures=["LlamaForCausalLM"], model_type="llama", num_hidden_layers=1, tie_word_embeddings=True,
               max_position_embeddings=4096, rms_norm_eps=1e-5) | SHAPES[name]
    model = parse_config(raw)
    cut = partition(model, 1, 64)
    assert model_obstacle(model, cut, 64) is None
    capacity = Capacity(slots=8, length=4096, rows=512, pages=65, page_size=64, depth=7)
    shape = StepShape(rows=rows, tiles=None, head_tile=4, segment=8, block_pages=1, ngram_longest=4, ngram_shortest=2,
                      lookup=7)
    specs, kernels = llama.param_specs(model, cut, jnp.bfloat16), kernels_for(model)
    caches = (llama.cache_spec(model, cut, capacity.pages, 64, jnp.bfloat16),)
    mesh = make_mesh(1)
    with on_an_h200():
        forward = lower_forward(model, cut, capacity, shape, kernels, mesh, specs, caches, platforms=("cuda",)).as_text()
        draws = [lower_draw(model, cut, capacity, kernels, rows, min(rows, 64), kind, mesh, specs, platforms=("cuda",)).as_text()
                 for kind in KINDS]
    assert forward.count("mosaic_gpu") >= 9
    assert all(text.count("mosaic_gpu") >= 2 for text in draws)
    assert "stablehlo.while" not in forward + draws[0] + draws[1] and "stablehlo.case" not in forward + "".join(draws)
