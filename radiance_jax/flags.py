"""Command line and YAML file to a frozen configuration. Used by the doors alone."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from typing import Any

from radiance_jax.config import GenerateConfig, ServeConfig
from radiance_jax.container import default_model
from radiance_jax.errors import UserError, nearest
from radiance_jax.settings import PROMPT, SAMPLING, SERVER, Config, Setting, draft_model_error, rule_of
from radiance_jax.yaml_file import field_name, read_yaml

FILE_SCHEMAS: tuple[type[Config], ...] = (ServeConfig, GenerateConfig)  # one file may feed every door
MESH_ALIASES = ("tensor_parallel_size", "tp")
SPECULATIVE_CONFIG = {  # names inside vLLM's --speculative-config
    "num_speculative_tokens": "num_speculative_tokens",
    "prompt_lookup_max": "spec_ngram_max",
    "prompt_lookup_min": "spec_ngram_min",
}


class Parser(argparse.ArgumentParser):
    """Raises `UserError` instead of leaving the process."""

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """Values of the flags given. A flag that does not exist is refused with the nearest that does."""
        options, rest = self.parse_known_args(argv)
        known = [option for action in self._actions for option in action.option_strings]
        for word in rest:
            if word.startswith("-") and word != "-":
                name = word.split("=")[0]
                raise UserError(f"unknown flag {name}{nearest(name, known)}; --help lists them all", param=name)
            raise UserError(f"unexpected argument {word!r}; one model is all that can stand here", param="model")
        return vars(options)

    def error(self, message: str) -> Any:
        raise UserError(message)


def _reader(rule: Setting, name: str) -> Any:
    """Text of a flag to a value; ranges are checked later, by the dataclass."""
    def read(text: str) -> Any:
        if rule.type is str or text in rule.words:
            return text
        try:
            return rule.type(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{name} must be {rule.must()}; got {text!r}") from None
    return read


def _show(item: Field) -> str:
    rule = rule_of(item)
    if item.default is None and "default" not in rule.help and rule.group not in (PROMPT, SERVER):
        return " (default: the model's)" if rule.group == SAMPLING else " (default: decided at start-up)"
    if item.default is None or item.default == ():
        return ""
    value = ("yes" if item.default else "no") if isinstance(item.default, bool) else item.default
    return f" (default: {value})"


def build_parser(schema: type[Config], prog: str, description: str) -> Parser:
    """Flags of every field of `schema`, grouped as the fields say; unset flags are absent from the result."""
    parser = Parser(prog=prog, description=description, usage="%(prog)s [MODEL] [flags]",
                    allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("model_positional", nargs="?", metavar="MODEL", help="the same as --model")
    parser.add_argument("--config", metavar="FILE", help="YAML file whose keys are these flags; flags win over it")
    groups: dict[str, Any] = {}
    for item in fields(schema):
        rule = rule_of(item)
        group = groups.setdefault(rule.group, None) or parser.add_argument_group(rule.group)
        groups[rule.group] = group
        flag, text = "--" + item.name.replace("_", "-"), (rule.help + _show(item)).replace("%", "%%")
        if rule.type is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
            continue
        metavar = {int: "N", float: "X", str: "TEXT"}[rule.type]
        group.add_argument(flag, *rule.flags, dest=item.name, type=_reader(rule, item.name), help=text,
                           metavar="{" + ",".join(rule.choices) + "}" if rule.choices else metavar,
                           action="append" if rule.many else "store")
        if item.name == "mesh":
            group.add_argument("--tensor-parallel-size", "--tp", "-tp", dest="tensor_parallel_size", type=_tp,
                               metavar="N", help="the same as --mesh tp=N")
        if item.name == "num_speculative_tokens":
            group.add_argument("--speculative-config", metavar="JSON", help="vLLM's spelling of the settings here: "
                               + ", ".join(SPECULATIVE_CONFIG))
    return parser


def _tp(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number; got {text!r}") from None


def _expand(values: dict[str, Any]) -> dict[str, Any]:
    """Replaces the aliases of one source (file or command line) by the fields they stand for."""
    for alias in MESH_ALIASES:
        if alias in values:
            size = values.pop(alias)
            if "mesh" in values and values["mesh"] != f"tp={size}":
                raise UserError(f"mesh={values['mesh']} and {alias}={size} contradict each other; give one of them",
                                param="mesh")
            values["mesh"] = f"tp={size}"
    if "speculative_config" in values:
        raw = values.pop("speculative_config")
        try:
            block = json.loads(raw) if isinstance(raw, str) else raw
        except ValueError as error:
            raise UserError(f"speculative_config must be a JSON object: {error}", param="speculative_config") from None
        if not isinstance(block, dict):
            raise UserError(f"speculative_config must be a JSON object; got {raw!r}", param="speculative_config")
        if block.get("model") is not None:
            raise draft_model_error()
        for name, value in block.items():
            if name in ("model", "method"):  # the container says what drafts
                continue
            if name not in SPECULATIVE_CONFIG:
                raise UserError(f"unknown key {name!r} in speculative_config{nearest(name, SPECULATIVE_CONFIG)}",
                                param="speculative_config")
            field = SPECULATIVE_CONFIG[name]
            if values.setdefault(field, value) != value:
                raise UserError(f"{field}={values[field]} and {name}={value} in speculative_config contradict each other; give "
                                "one of them", param=field)
    return values


def _refuse_draft_model(names: Sequence[str]) -> None:
    if any(name.replace("-", "_") in ("draft_model", "speculative_model") for name in names):
        raise draft_model_error()


def read_file(path: str, schema: type[Config]) -> tuple[dict[str, Any], list[str]]:
    """Values of a YAML file for `schema`, and the keys in it that belong to other doors."""
    raw = read_yaml(path, f"--config {path}")
    _refuse_draft_model(list(raw))
    aliases = [*MESH_ALIASES, "speculative_config"]
    everyone = {item.name for door in (*FILE_SCHEMAS, schema) for item in fields(door)}
    for key in raw:
        if field_name(key) not in everyone and field_name(key) not in aliases:
            raise UserError(f"{path}: unknown key {key!r}{nearest(field_name(key), [*everyone, *aliases])}", param=key)
    own = {item.name for item in fields(schema)}
    try:
        values = _expand({field_name(key): value for key, value in raw.items()})
        for door in FILE_SCHEMAS:  # a wrong value is an error whichever door reads the file
            door.of(**{name: values[name] for name in values if name in {item.name for item in fields(door)}})
    except UserError as error:
        raise UserError(f"{path}: {error}", param=error.param) from None
    return ({name: value for name, value in values.items() if name in own},
            [name for name in values if name not in own])


def read_config[C: Config](schema: type[C], argv: Sequence[str], *, prog: str, description: str,
                           environ: Mapping[str, str]) -> tuple[C, list[str]]:
    """The configuration of a door, and remarks to print. Raises `UserError`; `--help` leaves the process.

    Order, the later winning: field defaults, environment, file, flags.
    """
    parser = build_parser(schema, prog, description)
    argv = [_dashes(word) for word in argv]
    _refuse_draft_model([word[2:].split("=")[0] for word in argv if word.startswith("--")])
    flags = parser.parse(argv)
    positional, path = flags.pop("model_positional", None), flags.pop("config", None)
    if positional is not None:
        if flags.get("model", positional) != positional:
            raise UserError(f"two models given: {positional!r} and --model {flags['model']!r}", param="model")
        flags["model"] = positional
    from_file, unused = read_file(path, schema) if path else ({}, [])
    values = from_environment(schema, environ) | from_file | _expand(flags)
    remarks = [f"keys of {path} that {prog} does not use: {', '.join(unused)}"] if unused else []
    return schema.of(**values), remarks


def _dashes(word: str) -> str:
    """`--max_num_seqs=4` is `--max-num-seqs=4`."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def from_environment(schema: type[Config], environ: Mapping[str, str]) -> dict[str, Any]:
    """The few settings that have a place in the environment."""
    values: dict[str, Any] = {"cache_dir": default_cache_dir(environ)}
    if environ.get("RADIANCE_API_KEY"):
        values["api_key"] = environ["RADIANCE_API_KEY"]
    own = {item.name for item in fields(schema)}
    return {name: value for name, value in values.items() if name in own}


def default_cache_dir(environ: Mapping[str, str]) -> str:
    """`$RADIANCE_CACHE`, else `$XDG_CACHE_HOME/radiance_jax`, else `~/.cache/radiance_jax`."""
    return str(default_model.default_cache_dir(environ))
