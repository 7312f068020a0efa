"""From answers on disk to batches on the mesh: a grain pipeline, the same for the same seed, to be taken up at any batch.

Each process reads its own share of the answers and of the batch. grain is imported here alone.
"""

from collections.abc import Iterator
from typing import Any

import grain
import jax
import numpy as np
from jax.sharding import Mesh

from radiance_jax.errors import UserError
from radiance_jax.training.blocks import Batch
from radiance_jax.training.config import TrainConfig
from radiance_jax.training.dataset import Answers
from radiance_jax.training.sharding import by_batch

LEAST = 2  # tokens of an answer that are needed: the anchor and one to predict
THREADS, AHEAD = 2, 16


def usable(answers: Answers, length: int) -> np.ndarray:
    """Indices of the answers that have something to learn from within `length` tokens."""
    begins = answers.lengths - answers.answer_lengths
    return np.flatnonzero(np.minimum(answers.lengths, length) - begins >= LEAST)


def share_of(indices: np.ndarray, share: float) -> np.ndarray:
    """A part of the indices, in order. A smaller share is a part of every larger one, whatever the seed of the run."""
    shuffled = np.random.default_rng(0).permutation(indices)
    return np.sort(shuffled[:max(round(share * len(indices)), 1)])


class Padded:
    """The chosen answers as rows of a batch: a source of records for grain."""

    def __init__(self, answers: Answers, chosen: np.ndarray, length: int):
        self.answers, self.chosen, self.length = answers, chosen, length

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def kept_lengths(self) -> np.ndarray:
        """Tokens of each chosen answer that are used."""
        return np.minimum(self.answers.lengths[self.chosen], self.length)

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        index = int(self.chosen[number])
        answer = self.answers[index]
        ids = answer.ids[:self.length]
        return {"tokens": np.pad(ids, (0, self.length - len(ids))).astype(np.int32), "length": np.int32(len(ids)),
                "answer_start": np.int32(answer.answer_start), "index": np.int32(index)}


def check_batch(rows: Padded, config: TrainConfig) -> None:
    """Raises `UserError` where no batch can be made."""
    processes = jax.process_count()
    if config.batch % processes:
        raise UserError(f"batch must be a multiple of the {processes} processes; got {config.batch}", param="batch")
    if len(rows) < config.batch:
        raise UserError(f"there must be at least as many training answers as a batch has sequences, {config.batch}; there "
                        f"are {len(rows)} that can be used. Generate more, or take a smaller batch.", param="batch")


class Batches:
    """Batches without end, `Batch` of host arrays each: this process's part. `state`, after a batch was taken, leads to the
    next one."""

    def __init__(self, rows: Padded, config: TrainConfig):
        check_batch(rows, config)
        processes, batch = jax.process_count(), config.batch // jax.process_count()
        data = grain.MapDataset.source(rows).seed(config.seed).shuffle()[jax.process_index()::processes].repeat()
        data = data.batch(batch, drop_remainder=True)
        self._iterator = iter(data.to_iter_dataset(grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=AHEAD)))

    def __next__(self) -> Batch:
        return Batch(**next(self._iterator))

    @property
    def state(self) -> dict[str, Any]:
        return self._iterator.get_state()

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._iterator.set_state(state)


def on_mesh(batch: Batch, mesh: Mesh) -> Batch:
    """This process's rows as its part of the global batch."""
    sharding = by_batch(mesh)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), batch)


def padded_batches(rows: Padded, batch: int) -> Iterator[Batch]:
    """All rows in order, once, on every process whole; the last batch is filled with empty rows."""
    for first in range(0, len(rows), batch):
        found = [rows[i] for i in range(first, min(first + batch, len(rows)))]
        empty = {name: np.zeros_like(value) for name, value in found[0].items()} | {"index": np.int32(-1)}
        found += [empty] * (batch - len(found))
        yield Batch(**{name: np.stack([row[name] for row in found]) for name in empty})
