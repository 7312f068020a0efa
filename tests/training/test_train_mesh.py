"""A step on four devices is a step on one, but for the order of sums."""

import jax
import numpy as np
import pytest

from radiance_jax.training.sharding import VOCAB
from radiance_jax.training.trainer import Subject, Trainer
from tests.training import training_script

STEPS = 3


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    return training_script.make(tmp_path_factory.mktemp("script"), 60)


def trained(script, out, mesh: str, family: str):
    config = training_script.config(*script, out, mesh=mesh, family=family, chunk_rows=32)
    trainer = Trainer.of(Subject.of(config, lambda line: None), lambda line: None)
    state, batches, losses = trainer.first_state(), trainer.batches(), []
    for _ in range(STEPS):
        state, numbers = trainer.step(state, next(batches), 8)
        losses.append(float(numbers["loss"]))
    return trainer, state, losses, trainer.look(state).report()


@pytest.mark.parametrize("family", (pytest.param("dflash2", marks=pytest.mark.long), pytest.param("dspark", marks=pytest.mark.slow)))
def test_devices_along_batch_and_vocabulary_change_nothing_but_roundings(script, tmp_path, family):
    one, alone, losses, look = trained(script, tmp_path, "dp=1,tp=1", family)
    four, cut, their_losses, their_look = trained(script, tmp_path, "dp=2,tp=2", family)
    np.testing.assert_allclose(their_losses, losses, rtol=1e-4)
    ours, theirs = one.tensors(alone), four.tensors(cut)
    for name in ours:
        np.testing.assert_allclose(theirs[name], ours[name], atol=2e-4, rtol=1e-2, err_msg=name)
    assert their_look["tokens"] == look["tokens"]
    table = cut.masters["bias" if family == "dspark" else "successors"]
    assert table.sharding.spec[0] == VOCAB and {s.data.shape[0] for s in table.addressable_shards} == {table.shape[0] // 2}
    assert all(len(leaf.sharding.device_set) == 4 for leaf in jax.tree.leaves(cut))
    assert {s.data.shape[0] for s in four.target_params["embed"].addressable_shards} == {four.target_params["embed"].shape[0] // 2}
