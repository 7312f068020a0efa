"""The configuration of a training run: the keys of its YAML file and of `--set`. No jax here."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from radiance_jax.config import parse_mesh
from radiance_jax.errors import UserError, nearest
from radiance_jax.settings import Config, setting
from radiance_jax.yaml_file import field_name, parse_yaml, read_yaml

MODEL, DATA, DRAFTER, OBJECTIVE, OPTIMISER, RUN = "target", "data", "drafter", "objective", "optimiser", "run"
FAMILIES = ("dflash", "dflash2", "dspark")
OBJECTIVES = {"dflash": "dflash", "dpace": "dflash", "dflash2": "dflash2", "dspark": "dspark"}  # objective -> family
MESH_AXES = ("dp", "tp")
USED_BY = {  # keys that not every family or objective uses
    "rank": ("dflash2", "dspark"), "candidates": ("dflash2",), "conv_reach": ("dflash2",), "conv_group": ("dflash2",),
    "markov": ("dspark",), "confidence": ("dspark",), "smoothing": ("dpace",), "candidate_weight": ("dflash2",),
    "ce_weight": ("dspark",), "l1_weight": ("dspark",), "confidence_weight": ("dspark",)}
FREE_ON_RESUME = ("limit_minutes", "log_every", "cache_dir", "out", "rad")  # what changes no weight


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """Everything a run is made of. None: chosen from the target, or by the family."""

    model: str | None = setting(str, None, "the target: a .rad file, a model folder, a GGUF file or a hub id (default: the "
                                "default model)", MODEL)
    dtype: Literal["bf16", "f32"] = setting(str, "bf16", "dtype of all products; masters are f32", MODEL, choices=("bf16", "f32"),
                                            synonyms={"bfloat16": "bf16", "float32": "f32"})
    mesh: str = setting(str, "dp=1,tp=1", "devices by axis: dp cuts the batch, tp the vocabulary", MODEL)
    cache_dir: str | None = setting(str, None, "folder of converted models and compiled programs", MODEL)

    data: str | None = setting(str, None, "folder of the target's answers", DATA)
    share: float = setting(float, 1.0, "part of the training answers that is used", DATA, low=1e-6, high=1.0)
    length: int = setting(int, 512, "tokens of a sequence; longer ones are cut", DATA, low=8)
    batch: int = setting(int, 64, "sequences of a step", DATA, low=1)
    anchors: int = setting(int, 32, "blocks that are drafted in each sequence, at random places; at most length", DATA, low=1)

    states: Literal["recomputed", "kept"] = setting(
        str, "recomputed", "the target's states: computed in every step, or once and kept on the device", DATA,
        choices=("recomputed", "kept"))

    family: Literal["dflash", "dflash2", "dspark"] = setting(str, "dspark", "the drafter's network", DRAFTER, choices=FAMILIES)
    layers: int = setting(int, 2, "layers of the drafter", DRAFTER, low=1, high=256)
    block_size: int = setting(int, 8, "inputs of a block, the anchor included", DRAFTER, low=2, high=64)
    taps: tuple[int, ...] = setting(int, (), "layers of the target whose outputs are read, -1 the embedding's (default: five, "
                                    "evenly)", DRAFTER, many=True, low=-1)
    ff_width: int | None = setting(int, None, "feed-forward width (default: the target's)", DRAFTER, low=1)
    num_heads: int | None = setting(int, None, "query heads (default: the target's)", DRAFTER, low=1)
    num_kv_heads: int | None = setting(int, None, "key/value heads (default: the target's)", DRAFTER, low=1)
    head_size: int | None = setting(int, None, "size of a head (default: the target's)", DRAFTER, low=2)
    window: int | None = setting(int, None, "positions that attention reaches back (default: all)", DRAFTER, low=1)
    causal: bool = setting(bool, False, "a slot does not see the slots behind it", DRAFTER)
    mask_id: int | None = setting(int, None, "token that fills a block (default: a vector that is learnt)", DRAFTER, low=0)
    rank: int = setting(int, 32, "columns of the tables over the vocabulary (DFlash2's selector, DSpark's bias)", DRAFTER, low=1)
    candidates: int = setting(int, 16, "DFlash2: candidates of a slot", DRAFTER, low=1)
    conv_reach: int = setting(int, 2, "DFlash2: rows that a convolution sees", DRAFTER, low=1)
    conv_group: int = setting(int, 16, "DFlash2: channels that share a kernel", DRAFTER, low=1)
    markov: Literal["vanilla", "gated", "rnn"] = setting(str, "vanilla", "DSpark: kind of the bias", DRAFTER,
                                                         choices=("vanilla", "gated", "rnn"))
    confidence: bool = setting(bool, True, "DSpark: whether it says how sure it is", DRAFTER)

    objective: Literal["dflash", "dpace", "dflash2", "dspark"] | None = setting(
        str, None, "what is minimised (default: the family's own)", OBJECTIVE, choices=tuple(OBJECTIVES))
    gamma: float | None = setting(float, None, "slots over which a slot's weight falls by e (default: 4, from blocks of 9 on 7)",
                                  OBJECTIVE, low=1e-3)
    smoothing: float = setting(float, 0.5, "D-PACE: share of certainty in a slot's probability", OBJECTIVE, low=0.0, high=1.0)
    candidate_weight: float = setting(float, 1.0, "DFlash2: weight of the choice among candidates", OBJECTIVE, low=0.0)
    ce_weight: float = setting(float, 0.1, "DSpark: weight of the cross-entropy", OBJECTIVE, low=0.0)
    l1_weight: float = setting(float, 0.9, "DSpark: weight of the distance to the target's law", OBJECTIVE, low=0.0)
    confidence_weight: float = setting(float, 1.0, "DSpark: weight of the confidence's own loss", OBJECTIVE, low=0.0)

    rate: float = setting(float, 1e-3, "highest learning rate", OPTIMISER, low=0.0)
    warmup: float = setting(float, 0.04, "part of the steps in which the rate rises", OPTIMISER, low=0.0, high=1.0)
    floor: float = setting(float, 0.02, "the rate at the end, of the highest", OPTIMISER, low=0.0, high=1.0)
    weight_decay: float = setting(float, 0.0, "AdamW's decay", OPTIMISER, low=0.0)
    beta1: float = setting(float, 0.9, "AdamW's memory of the mean", OPTIMISER, low=0.0, high=1.0)
    beta2: float = setting(float, 0.98, "AdamW's memory of the square", OPTIMISER, low=0.0, high=1.0)
    clip: float = setting(float, 1.0, "longest gradient", OPTIMISER, low=1e-9)

    steps: int | None = setting(int, None, "steps of the run (default: what limit_minutes holds)", RUN, low=1)
    limit_minutes: float | None = setting(float, None, "wall time from start to written drafter", RUN, low=0.05)
    seed: int = setting(int, 0, "of the first weights, the order of answers and the anchors", RUN, low=0, high=2**31 - 1)
    eval_every: int = setting(int, 500, "steps between looks at the held-out answers", RUN, low=1)
    eval_answers: int = setting(int, 256, "held-out answers looked at", RUN, low=1)
    save_every: int = setting(int, 500, "steps between checkpoints", RUN, low=1)
    log_every: int = setting(int, 20, "steps between lines of the log", RUN, low=1)
    chunk_rows: int = setting(int, 4096, "rows of logits that are in memory at once, on each device along dp", RUN, low=1)
    out: str = setting(str, "runs/drafter", "folder of log, checkpoints and drafter", RUN)
    rad: str | None = setting(str, None, "the target with the drafter in it, a .rad file to write at the end", RUN)

    def __post_init__(self) -> None:
        if self.taps is None:
            object.__setattr__(self, "taps", ())
        super().__post_init__()
        sizes = parse_mesh(self.mesh, MESH_AXES)
        if self.data is None:
            raise UserError("data must be given: the folder of answers that python -m radiance_jax.training.generate writes; got "
                            "nothing", param="data")
        if self.steps is None and self.limit_minutes is None:
            raise UserError("steps or limit_minutes must be given; got neither", param="steps")
        if self.objective is None:
            object.__setattr__(self, "objective", self.family)
        elif OBJECTIVES[self.objective] != self.family:
            able = [name for name, family in OBJECTIVES.items() if family == self.family]
            raise UserError(f"objective must be one of {', '.join(able)} for the family {self.family}; got {self.objective!r}",
                            param="objective")
        if self.gamma is None:
            object.__setattr__(self, "gamma", 4.0 if self.block_size <= 8 else 7.0)
        if self.batch % sizes.get("dp", 1):
            raise UserError(f"batch must be a multiple of dp={sizes['dp']} in mesh; got {self.batch}", param="batch")
        if self.block_size >= self.length:
            raise UserError(f"length must be more than block_size ({self.block_size}); got {self.length}", param="length")
        if self.anchors > self.length:
            raise UserError(f"anchors must be at most length ({self.length}), a block has a place of its own; got {self.anchors}",
                            param="anchors")
        if self.rad is not None and not self.rad.endswith(".rad"):
            raise UserError(f"rad must end in .rad; got {self.rad!r}", param="rad")
        if len(set(self.taps)) < len(self.taps):
            raise UserError(f"taps must name each layer once; got {list(self.taps)}", param="taps")

    @property
    def axes(self) -> tuple[int, int]:
        """Devices along dp and tp."""
        sizes = parse_mesh(self.mesh, MESH_AXES)
        return sizes.get("dp", 1), sizes.get("tp", 1)

    def unused(self) -> list[str]:
        """Keys that were set and change nothing, because another family or objective uses them."""
        defaults = {item.name: item.default for item in fields(self)}
        return [name for name, users in USED_BY.items()
                if getattr(self, name) != defaults[name] and not {self.family, self.objective} & set(users)]

    def values(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}


def read_config(path: str | Path, changes: Sequence[str] = ()) -> TrainConfig:
    """The configuration in a YAML file, with `key=value` changes over it. Raises `UserError` naming the key at fault."""
    values = {field_name(key): value for key, value in read_yaml(path, str(path)).items()}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise UserError(f"--set must read like rate=0.001; got {change!r}", param="set")
        values[field_name(name)] = parse_yaml(text, f"the value of --set {change}", name)
    known = [item.name for item in fields(TrainConfig)]
    for name in values:
        if name not in known:
            raise UserError(f"{path}: unknown key {name!r}{nearest(name, known)}", param=name)
    numbers = {item.name for item in fields(TrainConfig) if item.metadata["setting"].type is float}
    for name in numbers & values.keys():  # YAML reads 1e-3, which has no dot, as text
        try:
            values[name] = float(values[name]) if isinstance(values[name], str) else values[name]
        except ValueError:
            pass  # refused below, with what came
    return TrainConfig(**values)


def check_resumed(before: dict[str, Any], now: TrainConfig, where: str) -> None:
    """Raises `UserError` where a run would go on as another one, or is one of another version."""
    try:
        values = TrainConfig.of(**before).values()
    except UserError as error:
        raise UserError(f"the run in {where} has a configuration that this version does not take: {error}. Go on with it in the "
                        "version that began it, or start a new run in another folder.", param="resume") from None
    for name, value in now.values().items():
        if name not in FREE_ON_RESUME and values[name] != value:
            raise UserError(f"{name} must be {values[name]!r}, as it was when the run in {where} began; got {value!r}. Start a "
                            "new run in another folder, or take the value back.", param=name)
