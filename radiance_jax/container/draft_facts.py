"""What `info` says of a drafter: in a container, in a folder of its own, or from its config.json alone."""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radiance_jax.container.config_only import holds_no_weights, implied
from radiance_jax.container.drafter import DraftCheckpoint, open_drafter
from radiance_jax.container.safetensors_file import TensorInfo
from radiance_jax.container.source import json_object, read_companion
from radiance_jax.models.config import ARCHITECTURES as TARGETS

if TYPE_CHECKING:
    from radiance_jax.models.draft.backbone import BlockDrafter

_PARTS = (("fc.", "taps"), ("embed_tokens", "embedding"), ("mask_embedding", "embedding"), ("lm_head", "head"), ("d2t", "head"),
          ("candidate_selector", "selector"), ("markov_head", "markov"), ("confidence_head", "confidence"),
          ("_conv.", "convolution"), ("norm", "norms"), (".self_attn.", "attention"), (".mlp.", "mlp"))


def part_of(name: str) -> str:
    """The part of a drafter that a tensor belongs to."""
    return next((part for word, part in _PARTS if word in name), "other")


def facts(drafter: "BlockDrafter", tensors: Mapping[str, TensorInfo], target_parameters: int | None) -> dict[str, Any]:
    """Plain values: parameters counted, sizes in bytes, `share` of the target's parameters, the most that a sequence's keys
    and values take where every layer has a window."""
    c, parameters = drafter.config, Counter()
    for name, info in tensors.items():
        parameters[part_of(name)] += info.size
    total = sum(parameters.values())
    kv = {"bf16": c.kv_bytes_per_token(2), "f32": c.kv_bytes_per_token(4)}
    return {
        "family": drafter.name, "architecture": c.architecture, "drafts": drafter.block, "depth": drafter.depth,
        "block_size": c.block_size, "slots": "next position" if c.shifted else "own position", "taps": list(c.taps),
        "mask_token_id": c.mask_id, "num_layers": c.num_layers, "width": c.width, "ff_width": c.ff_width,
        "num_heads": c.num_heads, "num_kv_heads": c.num_kv_heads, "head_size": c.head_size,
        "vocab_size": c.vocab_size, "head_vocab_size": c.head_vocab,
        "rope": {"kind": c.rope.kind, "theta": c.rope.theta, "factor": c.rope.factor}, "window": drafter.window,
        "windows": list(c.windows), "causal": list(c.causal), "borrows": [
            what for what, own in (("embedding", c.own_embed), ("head", c.own_head)) if not own],
        "kv_bytes_per_token": kv,
        "kv_bytes_at_most": None if drafter.window is None else {
            kind: sum(window * size // c.num_layers for window in c.windows) for kind, size in kv.items()},
        "parameters": {"total": total, "parts": dict(sorted(parameters.items(), key=lambda item: -item[1]))},
        "bytes": sum(info.nbytes for info in tensors.values()),
        "share": total / target_parameters if target_parameters else None}


def of_checkpoint(checkpoint: DraftCheckpoint, target_parameters: int | None = None) -> dict[str, Any]:
    return facts(checkpoint.drafter, checkpoint.tensors, target_parameters) | {"source": checkpoint.description}


def of_folder(path: Path) -> dict[str, Any] | None:
    """Facts of a drafter's own folder, with weights or without; None for a folder of anything else."""
    file = path / "config.json"
    raw = json_object(read_companion(file), str(file)) if os.path.isfile(file) else {}
    names = raw.get("architectures")
    if not raw or (isinstance(names, list) and len(names) == 1 and names[0] in TARGETS):
        return None  # no need to import the networks
    from radiance_jax.models.draft.registry import is_drafter, read_drafter

    if not is_drafter(raw):
        return None
    if not holds_no_weights(path):
        return of_checkpoint(open_drafter(path))
    drafter = read_drafter(raw, str(file))
    return facts(drafter, implied(drafter.shapes(), raw), None) | {"source": f"{path.resolve().name}/config.json, no weights"}


def rows(said: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same for people: name and text."""
    kv, most, share = said["kv_bytes_per_token"], said["kv_bytes_at_most"], said["share"]
    taps = ", ".join("the embedding" if tap < 0 else str(tap) for tap in said["taps"])
    reach = ("no bound" if most is None else
             f"at most {most['bf16']:,} in bf16 a sequence: its window is {said['window']:,} positions")
    parts = ", ".join(f"{part} {count:,}" for part, count in said["parameters"]["parts"].items())
    of_target = f", {share:.1%} of the target's" if share else ""
    borrows = f"; borrows its {' and '.join(said['borrows'])}" if said["borrows"] else ""
    return [
        ("drafter", f"{said['family']} ({said['architecture']}): {said['drafts']} drafts from blocks of {said['block_size']}, "
                    f"{said['depth']} verified unless told otherwise"),
        ("  shape", f"{said['num_layers']} layers, width {said['width']}, feed-forward {said['ff_width']}; "
                    f"{said['num_heads']} query / {said['num_kv_heads']} key-value heads of {said['head_size']}"),
        ("  reads", f"the target behind layers {taps}{borrows}"),
        ("  parameters", f"{said['parameters']['total']:,}{of_target} ({parts})"),
        ("  KV cache", f"{kv['bf16']:,} bytes per token in bf16, {kv['f32']:,} in f32; {reach}"),
        ("  source", said["source"])]
