"""The two programs of a run: one step, and how many drafts of every place in held-out answers would be accepted."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from radiance_jax.models.draft.backbone import BlockDrafter
from radiance_jax.spec.drafter import Noise
from radiance_jax.training import target as target_
from radiance_jax.training.blocks import (
    ALONE,
    Batch,
    Blocks,
    block_states,
    blocks_at,
    choose_anchors,
    contexts,
    shared_ends,
)
from radiance_jax.training.config import TrainConfig
from radiance_jax.training.kept import Kept
from radiance_jax.training.objectives.base import Objective, Part, Terms
from radiance_jax.training.sharding import BATCH, by_batch, whole
from radiance_jax.training.target import Target

DTYPES = {"bf16": jnp.bfloat16, "f32": jnp.float32}


@struct.dataclass
class TrainState:
    """`step` int32: steps done; `masters`: the drafter's parameters, f32; `moments`: the optimiser's."""

    step: Any
    masters: Any
    moments: Any


@dataclass(frozen=True, kw_only=True)
class Programs:
    """What is traced. Pure functions of their arguments; `compiled_step` and `compiled_matches` are jit over the mesh."""

    config: TrainConfig
    target: Target
    drafter: BlockDrafter
    objective: Objective
    mesh: Mesh

    @property
    def optimiser(self) -> optax.GradientTransformation:
        c = self.config
        return optax.chain(optax.clip_by_global_norm(c.clip), optax.scale_by_adam(c.beta1, c.beta2),
                           optax.add_decayed_weights(c.weight_decay))

    def rate(self, step: jax.Array, total: jax.Array) -> jax.Array:
        """Linear rise, then half a cosine down to `floor` of the highest rate at `total` steps."""
        c = self.config
        warm = jnp.maximum(c.warmup * total, 1.0)
        gone = jnp.clip((step - warm) / jnp.maximum(total - warm, 1.0), 0.0, 1.0)
        fall = c.floor + (1 - c.floor) * 0.5 * (1 + jnp.cos(jnp.pi * gone))
        return c.rate * jnp.minimum((step + 1) / warm, fall)

    def step(self, state: TrainState, target_params: Any, kept: Kept | tuple[()], batch: Batch,
             total: jax.Array) -> tuple[TrainState, Terms]:
        """One step of `total`. A loss or gradient that is not finite changes nothing but the count; `finite` says so. `kept`: the
        target's states, where they are kept."""
        key = jax.random.fold_in(jax.random.key(self.config.seed), state.step)
        taps, last = kept.states(batch) if kept else target_.states(target_params, self.target, batch.tokens)
        blocks = blocks_at(batch, *choose_anchors(key, batch, self.config.anchors), self.drafter.block)

        value, parts, hit, slope = self.loss_and_slope(state.masters, target_params, taps, last, blocks)
        norm = optax.tree.norm(slope)
        finite = jnp.isfinite(value) & jnp.isfinite(norm)
        update, moments = self.optimiser.update(slope, state.moments, state.masters)
        rate = self.rate(state.step, total)
        masters = jax.tree.map(lambda w, u: w - rate * u, state.masters, update)
        keep = lambda new, old: jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)  # noqa: E731
        new = TrainState(step=state.step + 1, masters=keep(masters, state.masters), moments=keep(moments, state.moments))
        run = jnp.cumprod(hit & blocks.live, axis=-1)
        reached = jnp.concatenate([jnp.ones_like(run[..., :1]), run[..., :-1]], axis=-1) * blocks.live
        return new, {"loss": value, "norm": norm, "rate": rate, "finite": finite, "reached": reached.sum((0, 1)),
                     "accepted": run.sum((0, 1)), "tokens": batch.length.sum(), **{f"loss_{k}": v for k, v in parts.items()}}

    def loss_and_slope(self, masters: Any, target_params: Any, taps: jax.Array, last: jax.Array,
                       blocks: Blocks) -> tuple[jax.Array, Terms, jax.Array, Any]:
        """The loss, what is logged beside it, `hit` [B, A, N], and the gradient of the masters.

        Logits are made for some anchors of all sequences at a time, and their way back follows at once: it ends at the
        drafter's states, and goes on from there when all parts are done.
        """
        dtype, shape = DTYPES[self.config.dtype], blocks.labels.shape
        shared = shared_ends(target_params, self.target)
        cast = lambda tree: jax.tree.map(lambda w: w.astype(dtype), tree)  # noqa: E731
        states, back = jax.vjp(lambda masters: block_states(self.drafter, cast(masters), shared, taps, blocks), masters)
        given = {"labels": blocks.labels, "before": blocks.before, "live": blocks.live}
        if self.objective.wants_target:  # the law of the token at a place is the target's behind the place before
            place = jnp.minimum(blocks.position[..., None] + jnp.arange(self.drafter.block), last.shape[1] - 1)
            rows = jnp.take_along_axis(last, place.reshape(place.shape[0], -1, 1), axis=1)
            given["law"] = rows.reshape(*place.shape, -1)

        def part(masters: Any, states: jax.Array, given: dict[str, jax.Array]) -> tuple[jax.Array, tuple[Terms, jax.Array]]:
            flat = {name: x.reshape(-1, *x.shape[3:]) for name, x in given.items()}
            logits = target_.logits(target_params, self.target, flat["law"]) if "law" in flat else None
            terms = self.objective.terms(Part(
                drafter=self.drafter, params=cast(masters), masters=masters, shared=shared, labels=flat["labels"],
                states=states.reshape(-1, states.shape[-1]), before=flat["before"], target_logits=logits))
            terms = {name: x.reshape(given["labels"].shape) for name, x in terms.items()}
            loss, beside = self.objective.loss(terms, given["live"], blocks.live)
            return loss, ({"loss": loss, **beside}, terms["hit"])

        def one(slope: Any, given: tuple) -> tuple[Any, tuple]:
            (slope_here, of_states), found = jax.grad(part, argnums=(0, 1), has_aux=True)(masters, *given)
            return jax.tree.map(jnp.add, slope, slope_here), (*found, of_states)

        count = part_of(blocks.position.shape, self.drafter.block, self.config.chunk_rows * self.mesh.shape[BATCH])
        split = jax.tree.map(lambda x: self._parts(x, count), (states, given))
        slope, (values, hit, of_states) = lax.scan(one, jax.tree.map(jnp.zeros_like, masters), split)
        (through_states,) = back(jnp.moveaxis(of_states, 0, 1).reshape(states.shape))
        values = jax.tree.map(lambda x: x.sum(0), values)
        return (values.pop("loss"), values, jnp.moveaxis(hit, 0, 1).reshape(shape), jax.tree.map(jnp.add, slope, through_states))

    def _parts(self, x: jax.Array, count: int) -> jax.Array:
        """[B, A, ...] to [A / count, B, count, ...]: a part has some blocks of every sequence, so that all devices work on it."""
        x = jnp.moveaxis(x.reshape(x.shape[0], -1, count, *x.shape[2:]), 1, 0)
        return lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(None, BATCH)))

    def matches(self, masters: Any, target_params: Any, batch: Batch) -> jax.Array:
        """int32 [B, T]: of the drafts that `propose` makes at temperature 0 with the anchor there, how many the answer begins
        with. Places that are no anchors mean nothing."""
        dtype, drafter = DTYPES[self.config.dtype], self.drafter
        params, shared = jax.tree.map(lambda w: w.astype(dtype), masters), shared_ends(target_params, self.target)
        taps, _ = target_.states(target_params, self.target, batch.tokens)
        cache, (sequences, length) = contexts(drafter, params, taps), batch.tokens.shape
        count = part_of(batch.tokens.shape, drafter.block, self.config.chunk_rows * self.mesh.shape[BATCH])

        def part(first: jax.Array) -> jax.Array:
            position = jnp.broadcast_to(first + jnp.arange(count), (sequences, count))
            blocks = blocks_at(batch, position, jnp.ones(position.shape, bool), drafter.block)
            anchor = blocks.before[..., 0].reshape(-1)
            cold = Noise(temperature=jnp.zeros(anchor.shape), gumbel=lambda k, ids: jnp.zeros((anchor.shape[0], ids.shape[-1])))
            made = drafter.propose(params, shared, cache, anchor, position.reshape(-1), jnp.ones(anchor.shape, bool), cold, ALONE)
            right = (made.tokens.reshape(blocks.labels.shape) == blocks.labels) & blocks.live
            return jnp.cumprod(right, axis=-1).sum(-1)

        found = lax.map(part, jnp.arange(0, length, count))
        return jnp.moveaxis(found, 0, 1).reshape(sequences, length)

    # Compiled: one program each, whatever the batch.

    def compiled_step(self, states: TrainState) -> Any:
        """`step` with the state given up, placed as `states` (shardings) says."""
        return jax.jit(self.step, donate_argnums=0, out_shardings=(states, whole(self.mesh)),
                       in_shardings=(states, None, None, by_batch(self.mesh), whole(self.mesh)))

    def compiled_matches(self) -> Any:
        return jax.jit(self.matches, out_shardings=whole(self.mesh), in_shardings=(None, None, by_batch(self.mesh)))


def part_of(blocks: tuple[int, int], drafts: int, rows: int) -> int:
    """The most blocks of a sequence, a divisor of how many there are, so that those of all sequences have at most so many rows.

    In:  (64 sequences, 32 blocks), 8 drafts, 4096 rows    Out: 8
    """
    sequences, count = blocks
    return max(n for n in range(1, count + 1) if count % n == 0 and (n == 1 or n * sequences * drafts <= rows))
