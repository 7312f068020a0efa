"""Names and shapes of a block drafter's tensors: the canonical ones, and the spellings of every dialect. No jax here."""

import re
from collections.abc import Iterable, Mapping

from radiance_jax.errors import ModelError
from radiance_jax.models.draft.config import DraftConfig

_PREFIXES = ("model.", "dflash_module.", "logit_head.")
_UNUSED = re.compile(r"t2d|verifier_norm\.weight|verifier_lm_head\.weight|(.*\.)?rotary_emb\.inv_freq")
_RENAMES = (  # one spelling in place of another, whole names
    (re.compile(r"midlayer\.(.*)"), r"layers.0.\1"),
    (re.compile(r"(candidate_selector\.\w+_codebook)\.weight"), r"\1"),
    (re.compile(r"((?:markov_w[12]|gate_proj|joint_proj)\..*)"), r"markov_head.\1"),
    (re.compile(r"confidence_proj\.(.*)"), r"confidence_head.proj.\1"),
)


def canonical(name: str) -> str | None:
    """The name a tensor has in a container, without the `draft.` in front; None for one that no computation needs.

    In:  "logit_head.markov_head.markov_w1.weight"    Out: "markov_head.markov_w1.weight"
    In:  "model.layers.3.mlp.up_proj.weight"          Out: "layers.3.mlp.up_proj.weight"
    """
    while name.startswith(_PREFIXES):
        name = name.split(".", 1)[1]
    if _UNUSED.fullmatch(name):
        return None
    for pattern, other in _RENAMES:
        name = pattern.sub(other, name) if pattern.fullmatch(name) else name
    return name


def canonical_names(names: Iterable[str], where: str) -> dict[str, str]:
    """Canonical name to the file's own. Raises `ModelError` where two tensors are the same one under two names."""
    found: dict[str, str] = {}
    for name in names:
        known = canonical(name)
        if known is None:
            continue
        if known in found:
            raise ModelError(f"{where}: {found[known]} and {name} are the same tensor, {known}, under two names; "
                             "there must be one", param=name)
        found[known] = name
    return found


def backbone_shapes(c: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Name to shape, [out, in], of the tensors that every family has, under their canonical names."""
    d, h, q, kv = c.width, c.head_size, c.num_heads * c.head_size, c.num_kv_heads * c.head_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (d, len(c.taps) * c.target_width), "hidden_norm.weight": (d,), "norm.weight": (d,)}
    for i in range(c.num_layers):
        p = f"layers.{i}."
        shapes |= {
            p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,),
            p + "self_attn.q_proj.weight": (q, d), p + "self_attn.k_proj.weight": (kv, d),
            p + "self_attn.v_proj.weight": (kv, d), p + "self_attn.o_proj.weight": (d, q),
            p + "self_attn.q_norm.weight": (h,), p + "self_attn.k_norm.weight": (h,),
            p + "mlp.gate_proj.weight": (c.ff_width, d), p + "mlp.up_proj.weight": (c.ff_width, d),
            p + "mlp.down_proj.weight": (d, c.ff_width)}
        if c.attention_bias:
            shapes |= {p + "self_attn.q_proj.bias": (q,), p + "self_attn.k_proj.bias": (kv,),
                       p + "self_attn.v_proj.bias": (kv,), p + "self_attn.o_proj.bias": (d,)}
    if c.own_embed:
        shapes["embed_tokens.weight"] = (c.vocab_size, d)
    if c.own_head:
        shapes["lm_head.weight"] = (c.head_vocab, d)
    if c.mapped:
        shapes["d2t"] = (c.head_vocab,)
    if c.own_mask:
        shapes["mask_embedding"] = (d,)
    return shapes


def check_shapes(where: str, family: str, expected: Mapping[str, tuple[int, ...]], given: Mapping[str, tuple[int, ...]]) -> None:
    """Raises `ModelError` naming the tensors that are missing, unknown or misshapen."""
    problems = [f"missing: {name} {list(shape)}" for name, shape in expected.items() if name not in given]
    problems += [f"unknown: {name} {list(shape)}" for name, shape in given.items() if name not in expected]
    problems += [f"{name} must have shape {list(shape)}; got {list(given[name])}" for name, shape in expected.items()
                 if name in given and given[name] != shape]
    if problems:
        more = f" (and {len(problems) - 8} more)" if len(problems) > 8 else ""
        raise ModelError(f"{where}: the tensors must be those of {family} as its config.json describes it; "
                         + "; ".join(problems[:8]) + more, param=problems[0].split()[1 if ": " in problems[0] else 0])
