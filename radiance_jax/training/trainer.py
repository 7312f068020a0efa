"""One run's parts, made once: target, drafter, data, compiled programs; and what can be done with them."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from radiance_jax.container.default_model import model_file
from radiance_jax.container.source import Source, open_model
from radiance_jax.errors import UserError
from radiance_jax.mesh import is_spec
from radiance_jax.models.config import ModelConfig, parse_config
from radiance_jax.models.draft.backbone import BlockDrafter
from radiance_jax.models.draft.registry import read_drafter
from radiance_jax.models.partition import Partition, partition
from radiance_jax.training import kept as kept_
from radiance_jax.training import parameters, target
from radiance_jax.training.blocks import Batch
from radiance_jax.training.config import TrainConfig
from radiance_jax.training.dataset import Answers, target_fingerprint
from radiance_jax.training.description import describe
from radiance_jax.training.held_out import HeldOut, Walks
from radiance_jax.training.objectives import objective_of
from radiance_jax.training.pipeline import Batches, Padded, check_batch, on_mesh, padded_batches, share_of, usable
from radiance_jax.training.programs import DTYPES, Programs, TrainState
from radiance_jax.training.sharding import place, training_mesh, trees, whole

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is trained and for which target: all that is known before a weight is read."""

    config: TrainConfig
    path: Path
    source: Source
    model: ModelConfig
    cut: Partition
    raw: dict[str, Any]  # the drafter's config.json
    drafter: BlockDrafter

    @classmethod
    def of(cls, config: TrainConfig, log: Log) -> Self:
        """Raises `UserError` for a target or a drafter that cannot be."""
        cache = Path(config.cache_dir or Path.home() / ".cache" / "radiance_jax")
        path = model_file(config.model, cache, config.dtype, log)
        source = open_model(path)
        model = parse_config(source.config)
        raw = describe(config, model, source.config)
        drafter = read_drafter(raw, "the drafter").holding(["mask_embedding"] if config.mask_id is None else [], "the drafter")
        if config.family == "dspark":  # the confidence has a bias: it is trained and published
            drafter = replace(drafter, confidence_bias=drafter.confident)
        return cls(config=config, path=path, source=source, model=model, cut=partition(model, 1), raw=raw, drafter=drafter)


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """`compiled_step(state, target_params, kept, batch, total)`, `compiled_matches(masters, target_params, batch)`."""

    subject: Subject
    programs: Programs
    mesh: Mesh
    target_params: Any
    kept: Any  # `Kept`, or () where states are computed in every step
    rows: Padded
    held_out: Padded
    shardings: TrainState
    compiled_step: Any
    compiled_matches: Any

    @classmethod
    def of(cls, subject: Subject, log: Log) -> Self:
        """Reads answers and weights, compiles. Raises `UserError` for answers that are another target's or too few."""
        config, drafter = subject.config, subject.drafter
        said = target_fingerprint(subject.source)
        answers = {split: Answers.open(config.data, split, target=said) for split in ("train", "held_out")}
        fit = usable(answers["train"], config.length)
        chosen = share_of(fit, config.share)
        look = np.random.default_rng(0).permutation(usable(answers["held_out"], config.length))[:config.eval_answers]
        if not len(look):
            raise UserError(f"data must have held-out answers that begin within length={config.length}; {config.data} has none",
                            param="data")
        rows = Padded(answers["train"], chosen, config.length)
        check_batch(rows, config)  # before minutes of compiling
        count = len(answers["train"])
        log(f"data: {len(rows)} of {count} training answers ({count - len(fit)} begin too late for length={config.length}), "
            f"{len(look)} held-out ones of {config.data}")
        mesh, dtype = training_mesh(*config.axes), DTYPES[config.dtype]
        kind = target.attention_for(mesh.devices.flat[0].platform, dtype, subject.model.head_size, log)
        described = target.Target(config=subject.model, cut=subject.cut, taps=drafter.taps, attention=kind)
        params = target.load(subject.model, subject.cut, subject.source, mesh, dtype)
        programs = Programs(config=config, target=described, drafter=drafter, objective=objective_of(config), mesh=mesh)
        shardings = _shardings(programs, subject.cut)
        like = _abstract(programs, subject.cut, shardings)
        batch = on_mesh(_empty(config, config.batch // jax.process_count()), mesh)
        kept: Any = ()
        if config.states == "kept":
            kept = kept_.abstract(rows, described, dtype)
            kept_.check_room(kept, mesh)
        step = programs.compiled_step(shardings).lower(like, params, kept, batch, place(np.float32(1), whole(mesh))).compile()
        matches = programs.compiled_matches().lower(like.masters, params, batch).compile()
        if kept:
            began = time.monotonic()
            kept = kept_.fill(rows, params, described, mesh, kept, config.batch)
            log(f"states: {kept.rows.shape[0]} tokens, {kept.rows.nbytes / 2**30:.1f} GiB, kept in "
                f"{time.monotonic() - began:.1f} s")
        return cls(subject=subject, programs=programs, mesh=mesh, target_params=params, kept=kept, rows=rows,
                   held_out=Padded(answers["held_out"], look, config.length), shardings=shardings, compiled_step=step,
                   compiled_matches=matches)

    @property
    def config(self) -> TrainConfig:
        return self.subject.config

    @property
    def abstract(self) -> TrainState:
        return _abstract(self.programs, self.subject.cut, self.shardings)

    def first_state(self) -> TrainState:
        tensors = parameters.first_tensors(self.subject.drafter, self.config.seed)
        masters = jax.tree.map(place, parameters.fused(self.subject.drafter, self.subject.cut, tensors.__getitem__),
                               self.shardings.masters)
        moments = jax.jit(self.programs.optimiser.init, out_shardings=self.shardings.moments)(masters)
        return TrainState(step=place(np.int32(0), whole(self.mesh)), masters=masters, moments=moments)

    def batches(self) -> Batches:
        return Batches(self.rows, self.config)

    def step(self, state: TrainState, batch: Batch, total: int) -> tuple[TrainState, dict[str, jax.Array]]:
        return self.compiled_step(state, self.target_params, self.kept, on_mesh(batch, self.mesh), self._total(total))

    def _total(self, total: int) -> jax.Array:
        return place(np.float32(total), whole(self.mesh))

    def look(self, state: TrainState) -> HeldOut:
        """The held-out answers, walked."""
        share = self.config.batch // jax.process_count()
        mine = slice(jax.process_index() * share, (jax.process_index() + 1) * share)
        walked = []
        for batch in padded_batches(self.held_out, self.config.batch):
            part = jax.tree.map(lambda x: x[mine], batch)
            found = np.asarray(self.compiled_matches(state.masters, self.target_params, on_mesh(part, self.mesh)))
            for row, index in enumerate(batch.index):
                if index >= 0:
                    answer = self.held_out.answers[int(index)]
                    walked.append((Walks.of(found[row], int(batch.answer_start[row]), int(batch.length[row]),
                                            self.subject.drafter.block), answer.source, answer.temperature))
        return HeldOut.of(walked)

    def tensors(self, state: TrainState) -> parameters.Tensors:
        """The drafter's tensors by canonical name, f32, on the host."""
        if math.prod(self.mesh.shape.values()) > 1:
            state = state.replace(masters=jax.jit(lambda x: x, out_shardings=whole(self.mesh))(state.masters))
        return parameters.unfused(self.subject.drafter, self.subject.cut, jax.device_get(state.masters))


def _shardings(programs: Programs, cut: Partition) -> TrainState:
    """Masters by their specs; moments like the masters they belong to."""
    specs = programs.drafter.param_specs(cut, np.float32)
    masters = trees(specs, programs.mesh)
    like = jax.eval_shape(programs.optimiser.init, _struct(specs))
    flat, tree = jax.tree.flatten(masters)
    one = jax.tree.structure(_struct(specs))

    def of(part: Any) -> Any:
        return jax.tree.unflatten(tree, flat) if jax.tree.structure(part) == one else whole(programs.mesh)

    moments = jax.tree.map(of, like, is_leaf=lambda part: jax.tree.structure(part) == one)
    return TrainState(step=whole(programs.mesh), masters=masters, moments=moments)


def _abstract(programs: Programs, cut: Partition, shardings: TrainState) -> TrainState:
    masters = _struct(programs.drafter.param_specs(cut, np.float32))
    shapes = TrainState(step=jax.ShapeDtypeStruct((), jnp.int32), masters=masters,
                        moments=jax.eval_shape(programs.optimiser.init, masters))
    return jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), shapes, shardings)


def _struct(specs: Any) -> Any:
    return jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, jnp.float32), specs, is_leaf=is_spec)


def _empty(config: TrainConfig, batch: int) -> Batch:
    one = np.zeros(batch, np.int32)
    return Batch(tokens=np.zeros((batch, config.length), np.int32), answer_start=one, length=one, index=one)
