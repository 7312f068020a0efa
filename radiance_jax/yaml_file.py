"""YAML of configuration files, with every fault as one error: unreadable, not YAML, not a mapping, a key given twice."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from radiance_jax.errors import UserError


class _Loader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} is given twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path, where: str) -> dict[str, Any]:
    """The `name: value` lines of a file, by key as it is written; `where` names the file in errors. Raises `UserError` with the
    param `config`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path, or no UTF-8
        raise UserError(f"cannot read {where}: {error}", param="config") from None
    raw = parse_yaml(text, where, "config")
    raw = {} if raw is None else raw
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise UserError(f"{where} must hold `name: value` lines", param="config")
    if len({field_name(key) for key in raw}) < len(raw):
        raise UserError(f"{where} gives a key twice, with a dash and with an underscore", param="config")
    return raw


def field_name(key: str) -> str:
    """A key as the field is called: `max-num-seqs` is max_num_seqs."""
    return key.strip().replace("-", "_")


def parse_yaml(text: str, where: str, param: str) -> Any:
    """One YAML value. Raises `UserError`."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date or number that is none
        raise UserError(f"{where} is not valid YAML: {error}", param=param) from None
