"""Every rank holds the same bits, whatever the size of a sum. (Axis 12.)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from radiance_jax import collectives
from radiance_jax.mesh import TENSOR_AXIS, make_mesh
from tests.exactness.lab import Difference
from tests.exactness.requests import ALL

SIZES = (1, 7, 64, 1000, 4097)


def check_sums(tp: int) -> None:
    """Both forms of the all-reduce against a sum in rank order, on each rank."""
    mesh, chance = make_mesh(tp), np.random.default_rng(tp)
    whole = jax.P(TENSOR_AXIS)
    for size in SIZES:
        parts = chance.standard_normal((tp, size)).astype(np.float32)
        expected = parts[0]
        for part in parts[1:]:
            expected = expected + part
        for form in (collectives.one_shot, collectives.two_shot):
            run = jax.jit(jax.shard_map(lambda x, form=form: form(x[0], TENSOR_AXIS)[None], mesh=mesh, in_specs=whole,
                                        out_specs=whole, check_vma=False))
            for rank, found in enumerate(np.asarray(run(jnp.asarray(parts)))):
                if found.tobytes() != expected.tobytes():
                    raise Difference(f"{form.__name__} of {size} values on rank {rank} of {tp}")


@pytest.mark.parametrize("tp", (2, 3, 4))
def test_every_form_of_a_sum_is_the_sum_in_rank_order(tp):
    check_sums(tp)


def test_every_rank_holds_the_same_state(lab):
    """History, lengths, counts: what was accepted was accepted everywhere."""
    for each in ALL:
        lab.drafting("pattern", each)
    answers = lab.ask_all(ALL, max_draft_tokens=5)
    assert sum(answer.stats.num_accepted_draft_tokens for answer in answers) > 0
    lab.idle()
    for path, leaf in jax.tree_util.tree_leaves_with_path(lab.built.device._state):
        shards = [np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards]
        assert len(shards) == lab.config.mesh_size
        if len(set(shards)) > 1:
            raise Difference(f"ranks differ in {jax.tree_util.keystr(path)}")
