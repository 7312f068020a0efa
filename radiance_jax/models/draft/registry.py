"""Which family drafts, by config.json. A new family is one file and one line of `FAMILIES`."""

from collections.abc import Iterable
from typing import Any

from radiance_jax.models.draft.backbone import BlockDrafter
from radiance_jax.models.draft.config import read_backbone
from radiance_jax.models.draft.dflash import DFlash
from radiance_jax.models.draft.dflash2 import FIELDS as DFLASH2_FIELDS
from radiance_jax.models.draft.dflash2 import DFlash2
from radiance_jax.models.draft.dspark import DSpark
from radiance_jax.models.draft.options import Options

FAMILIES: dict[str, tuple[type[BlockDrafter], tuple[str, ...]]] = {  # kind -> class, architectures in config.json
    "dflash": (DFlash, ("DFlashDraftModel", "DFlashSpeculator")),
    "dflash2": (DFlash2, ("DFlash2DraftModel", "DFlash2Speculator")),
    "dspark": (DSpark, ("DSparkDraftModel", "DSparkSpeculator", "Qwen3DSparkModel")),
}
ARCHITECTURES = {name: kind for kind, (_, names) in FAMILIES.items() for name in names}


def is_drafter(raw: Any) -> bool:
    """Whether a config.json describes a drafter that is served here."""
    names = raw.get("architectures") if isinstance(raw, dict) else None
    return isinstance(names, list) and len(names) == 1 and isinstance(names[0], str) and names[0] in ARCHITECTURES


def read_drafter(raw: Any, where: str = "config.json", tensors: Iterable[str] | None = None) -> BlockDrafter:
    """The drafter that a config.json of any published dialect describes. With the canonical names of its file's `tensors`
    also what it holds of its own; without, what the dialect usually holds. Raises `ModelError` naming the field at fault."""
    options = Options(raw, where)
    names = options.top.get("architectures")
    if not is_drafter(raw):
        raise options.top.fail("architectures", f"a list with one of {', '.join(ARCHITECTURES)}",
                               "Other drafters are not served by this version.")
    family, _ = FAMILIES[_kind(options, names[0])]
    drafter = family.read(options, read_backbone(options, names[0], family.shifted))
    return drafter if tensors is None else drafter.holding(tensors, where)


def _kind(options: Options, architecture: str) -> str:
    """ModelOpt calls everything DFlashDraftModel and says in `projector_type` what it is; the fields of DFlash2 mean DFlash2,
    as without them its tensors would be of no use."""
    kind = ARCHITECTURES[architecture]
    if options.get("projector_type") is not None:
        said = options.word("projector_type", tuple(FAMILIES), advice="Other drafters are not served by this version.")
        kind = said if kind == "dflash" else kind
    if kind == "dflash" and any(options.get(key) is not None for key in DFLASH2_FIELDS):
        return "dflash2"
    return kind
