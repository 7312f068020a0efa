"""Models by their hub id, as in `serve org/name`: fetched with `huggingface_hub`, where that package is installed.

The package is an optional extra; it keeps its own cache (`HF_HOME`), resumes broken downloads, and serves what it has
when there is no network.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

from radiance_jax.container.huggingface import INDEX
from radiance_jax.container.source import COMPANIONS
from radiance_jax.errors import UserError

# One spelling of the weights: many repositories hold them again as pytorch_model.bin, consolidated.safetensors or GGUF.
PATTERNS = (*COMPANIONS, "model*.safetensors", INDEX)
INSTALL = "pip install 'radiance-jax[hub]'"

_ID = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})(?:@([A-Za-z0-9][A-Za-z0-9._/-]{0,99}))?")
_FILE_ENDINGS = (".gguf", ".rad", ".safetensors", ".bin")

Fetch = Callable[[str, str | None, tuple[str, ...]], str]  # id, revision, patterns of file names -> folder

# By the names of huggingface_hub's errors and of their bases, the most special first, so that nothing is imported for it.
_REMEDIES = (
    ("GatedRepoError", "its owner asks for consent: accept the terms on its page and log in with `hf auth login`"),
    ("RevisionNotFoundError", "it has no such revision: check what stands after the @"),
    ("RepositoryNotFoundError", "the hub knows no such model, or it is private: check the spelling, or `hf auth login`"),
    ("LocalEntryNotFoundError", "the hub cannot be reached and the model is not in the local cache: take it by `hf download "
     + "{id}` on a machine with network, copy the folder here and pass its path"),
    ("OfflineModeIsEnabled", "HF_HUB_OFFLINE is set and the model is not in the local cache: unset it, or pass a folder"),
    ("HfHubHTTPError", "the hub answered with an error: try again later"),
    ("TransportError", "the hub cannot be reached: check the network, or pass a folder"),
    ("OSError", "check the network and the space on the disk of HF_HOME, or pass a folder"),
)


def hub_id(model: str) -> tuple[str, str | None] | None:
    """Id and revision of a model argument that names no file here, or None.

    In:  "Qwen/Qwen3-0.6B"    Out: ("Qwen/Qwen3-0.6B", None)
    In:  "./Qwen3-0.6B"       Out: None
    """
    match = _ID.fullmatch(model)
    if match is None or ".." in model or model.endswith(_FILE_ENDINGS) or os.path.exists(model):
        return None
    return match[1], match[2]


def fetch_snapshot(repo: str, revision: str | None, patterns: tuple[str, ...]) -> str:
    """Downloads what is not in the hub's cache yet and returns the folder. Raises whatever `huggingface_hub` raises."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UserError(f"{repo!r} is no file or folder here, and models are fetched from the hub only where "
                        f"huggingface_hub is installed: {INSTALL}, or pass the path of a model", param="model") from None
    return snapshot_download(repo, revision=revision, allow_patterns=list(patterns))


def locate_model(model: str, fetch: Fetch = fetch_snapshot, log: Callable[[str], None] = lambda line: None) -> Path:
    """The path of a model argument: a path as it is, a hub id as the folder that it is fetched to.

    Raises `UserError` with the remedy where it cannot be had.
    """
    found = hub_id(model)
    if found is None:
        return Path(model)
    repo, revision = found
    log(f"hub: fetching {model} (only what is not in the cache yet)")
    try:
        return Path(fetch(repo, revision, PATTERNS))
    except UserError:
        raise
    except Exception as error:  # whatever a download can raise: the remedy depends on its kind
        kinds = [kind.__name__ for kind in type(error).__mro__]
        remedy = next((text for name, text in _REMEDIES if name in kinds), "pass the path of a model instead")
        said = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise UserError(f"{model!r} is no file or folder here, and it cannot be had from the hub: "
                        f"{remedy.format(id=repo)} ({type(error).__name__}: {said[:200]})", param="model") from error
