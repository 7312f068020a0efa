"""`python -m radiance_jax.info [MODEL]`: what a model file or a drafter's folder holds, from its header alone, unless `--verify`
asks for all of it.

A folder with a config.json and no weights is described by what the configuration implies.
"""

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from radiance_jax.container import draft_facts
from radiance_jax.container.config_only import ConfigOnly, holds_no_weights
from radiance_jax.container.default_model import default_cache_dir, default_model_path
from radiance_jax.container.drafter import drafter_of
from radiance_jax.container.rad import RadFile
from radiance_jax.container.source import Source, eos_token_ids, open_model
from radiance_jax.container.weights import BLOCKS, block_of, layer_of
from radiance_jax.errors import UserError
from radiance_jax.models.config import parse_config


def describe(source: Source) -> dict[str, Any]:
    """Everything `info` shows, as plain values: parameters counted, sizes in bytes, context in tokens."""
    config = parse_config(source.config)
    parameters, nbytes, per_layer = Counter(), Counter(), Counter()
    for name, info in source.tensors.items():
        block = block_of(name)
        parameters[block] += info.size
        nbytes[block] += info.nbytes
        if layer_of(name) == 0:
            per_layer[block] += info.size
    files = set(source.files)
    drafter, total = drafter_of(source), sum(parameters.values()) - parameters["draft"]
    template = "chat_template.jinja" in files or b'"chat_template"' in (source.file("tokenizer_config.json") or b"")
    return {
        "path": str(source.path), "format": source.format, "architecture": config.architecture,
        "precision": source.precision, "source": source.description,
        # Other formats would have to read all their bytes for these two.
        "source_sha256": source.source_hashes() if source.format == "rad" else {},
        "fingerprint": source.fingerprint if source.format == "rad" else None,
        "file_bytes": _file_bytes(source.path), "context_length": config.max_position,
        "vocab_size": config.vocab_size, "width": config.width, "ff_width": config.ff_width,
        "num_layers": config.num_layers, "num_heads": config.num_heads, "num_kv_heads": config.num_kv_heads,
        "head_size": config.head_size, "tied_head": config.tied_head,
        "rope": {"kind": config.rope.kind, "theta": config.rope.theta, "factor": config.rope.factor},
        "kv_bytes_per_token": {"bf16": config.kv_bytes_per_token(2), "f32": config.kv_bytes_per_token(4)},
        "eos_token_ids": list(eos_token_ids(source)),
        "tokenizer": "tokenizer.json" in files, "chat_template": template, "files": sorted(files),
        "parameters": {
            "total": total, "draft": parameters["draft"],
            "per_layer": sum(per_layer.values()),
            "blocks": {block: {"parameters": parameters[block], "per_layer": per_layer[block],
                               "bytes": nbytes[block]} for block in BLOCKS if parameters[block] or block == "head"}},
        "drafter": None if drafter is None else draft_facts.of_checkpoint(drafter, total),
    }


def _file_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120)


def _show(facts: dict[str, Any]) -> None:
    from rich.text import Text

    console = _console()
    heads = f"{facts['num_heads']} query / {facts['num_kv_heads']} key-value, of {facts['head_size']}"
    rope, kv = facts["rope"], facts["kv_bytes_per_token"]
    scaling = "" if rope["kind"] == "default" else f", {rope['kind']} x{rope['factor']:g}"
    rows = [
        ("architecture", facts["architecture"]),
        ("shape", f"{facts['num_layers']} layers, width {facts['width']}, feed-forward {facts['ff_width']}"),
        ("heads", heads),
        ("vocabulary", f"{facts['vocab_size']:,}{', head tied with the embedding' if facts['tied_head'] else ''}"),
        ("context", f"{facts['context_length']:,} tokens, rope theta {rope['theta']:g}{scaling}"),
        ("precision", facts["precision"]),
        ("file", f"{facts['file_bytes']:,} bytes ({facts['format']})"),
        ("KV cache", f"{kv['bf16']:,} bytes per token in bf16, {kv['f32']:,} in f32"),
        ("tokenizer", f"{_yes(facts['tokenizer'])}, chat template {_yes(facts['chat_template'])}, "
                      f"EOS {', '.join(map(str, facts['eos_token_ids'])) or 'none'}"),
        ("source", facts["source"]),
        *(("sha256", f"{digest}  {name}") for name, digest in facts["source_sha256"].items()),
    ]
    if facts["fingerprint"]:
        rows.append(("fingerprint", facts["fingerprint"]))
    if facts["drafter"]:
        rows += draft_facts.rows(facts["drafter"])
    console.print(Text(facts["path"], style="bold"), soft_wrap=True)
    _show_rows(console, rows)
    console.print(_parameter_table(facts), highlight=False)


def _show_rows(console: Any, rows: list[tuple[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    summary = Table.grid(padding=(0, 2))
    summary.add_column(style="bold")
    summary.add_column(overflow="fold")
    for key, value in rows:
        summary.add_row(key, Text(str(value)))  # Text: names in files are not markup
    console.print(summary, highlight=False)


def _yes(present: bool) -> str:
    return "present" if present else "absent"


def _parameter_table(facts: dict[str, Any]) -> Any:
    from rich import box
    from rich.table import Table

    counted = facts["parameters"]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("block")
    for name in ("parameters", "share", "per layer", "bytes", "bits each"):
        table.add_column(name, justify="right")
    everything = counted["total"] + counted["draft"]

    def row(name: str, count: int, per_layer: int, nbytes: int, style: str = "") -> None:
        table.add_row(name, f"{count:,}", f"{count / everything:.1%}", f"{per_layer:,}" if per_layer else "",
                      f"{nbytes:,}", f"{nbytes * 8 / count:.2f}", style=style)

    for block, values in counted["blocks"].items():
        if values["parameters"]:
            row(block, values["parameters"], values["per_layer"], values["bytes"])
        else:
            table.add_row(block, "tied", "", "", "", "")
    table.add_section()
    row("total", everything, counted["per_layer"], sum(v["bytes"] for v in counted["blocks"].values()), "bold")
    return table


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit status: 0, or 2 for an error the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m radiance_jax.info", description=__doc__)
    parser.add_argument("model", nargs="?", help=".rad file, Hugging Face folder or .gguf file (the default model)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--verify", action="store_true", help="read every byte of a .rad and hold it against its checksums")
    options = parser.parse_args(arguments)
    try:
        path = Path(_default_model() if options.model is None else options.model)
        drafter = draft_facts.of_folder(path)
        if drafter is None:
            source = ConfigOnly(path) if holds_no_weights(path) else open_model(path)
            facts = describe(source)
        if options.verify:
            _verify(path, None if drafter is not None else source)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if drafter is not None:
        if options.json:
            print(json.dumps({"path": str(path), "drafter": drafter}, indent=2))
        else:
            _show_rows(_console(), [("path", str(path)), *draft_facts.rows(drafter)])
    elif options.json:
        print(json.dumps(facts, indent=2))
    else:
        _show(facts)
    return 0


def _verify(path: Path, source: Source | None) -> None:
    if not isinstance(source, RadFile):
        raise UserError(f"--verify needs a .rad file, which holds checksums; {path} is none", param="verify")
    source.verify()
    print(f"{path}: all {len(source.entries)} tensors and files are as their checksums say", file=sys.stderr)


def _default_model() -> Path:
    cache = default_cache_dir(os.environ)
    paths = [default_model_path(cache, dtype) for dtype in ("bf16", "f32")]
    for path in paths:
        if os.path.exists(path):
            return path
    raise UserError(f"the default model is not in the cache yet ({paths[0]} is not there): name a model, or start "
                    "the server or generate once, which fetches it", param="model")


if __name__ == "__main__":
    sys.exit(main())
