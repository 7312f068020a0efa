"""`python -m radiance_jax.flags_page > docs/flags.md`: the page of flags, from the same declarations as the flags."""

from dataclasses import Field, fields

from radiance_jax.config import EngineConfig, GenerateConfig, ServeConfig
from radiance_jax.flags import SPECULATIVE_CONFIG
from radiance_jax.settings import PROMPT, SAMPLING, SERVER, Config, rule_of

HEAD = """# Flags

<!-- Written by `python -m radiance_jax.flags_page`; change `radiance_jax/config.py`, not this file. -->

The same settings are flags (`--max-num-seqs 4`), keys of a YAML file (`max-num-seqs: 4` in the file that `--config`
names; `_` for `-` is as good) and Python keywords (`LLM(max_num_seqs=4)`). Later ones win: defaults, environment, file,
flags. A name that does not exist is refused with the nearest that does. The start-up log prints what was decided.

| environment | stands for |
|---|---|
| `RADIANCE_CACHE` | `--cache-dir` |
| `RADIANCE_API_KEY` | `--api-key` (a flag can be read in the process list; this cannot) |
"""


def flags_page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, schema, without in (("Every door", EngineConfig, None), ("`serve` alone", ServeConfig, EngineConfig),
                                   ("`generate` alone", GenerateConfig, EngineConfig)):
        parts += [f"## {title}\n", *_tables(schema, without)]
    parts.append(_aliases())
    return "\n".join(parts)


def _tables(schema: type[Config], without: type[Config] | None) -> list[str]:
    known = {item.name for item in fields(without)} if without else set()
    mine = [item for item in fields(schema) if item.name not in known]
    groups = dict.fromkeys(rule_of(item).group for item in mine)
    tables = []
    for group in groups:
        rows = [_row(item) for item in mine if rule_of(item).group == group]
        title = f"### {group[0].upper()}{group[1:]}\n\n" if len(groups) > 1 else ""
        tables.append(title + "| flag | what | values | default |\n|---|---|---|---|\n" + "\n".join(rows) + "\n")
    return tables


def _row(item: Field) -> str:
    rule = rule_of(item)
    flag = "--" + item.name.replace("_", "-")
    flag = f"`{flag}`, `--no-{flag[2:]}`" if rule.type is bool else f"`{flag}`"
    text, _, default = rule.help.partition(" (default: ")
    values = "" if rule.type is bool else rule.must().replace(str(2**63 - 1), "2^63 - 1")
    return f"| {flag} | {_cell(text)} | {_cell(values)} | {_cell(default[:-1] if default else _default(item))} |"


def _default(item: Field) -> str:
    group = rule_of(item).group
    if item.default == () or (item.default is None and group in (SERVER, PROMPT)):
        return "none"
    if item.default is None:
        return "the model's own" if group == SAMPLING else "decided at start-up"
    return ("yes" if item.default else "no") if isinstance(item.default, bool) else str(item.default)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _aliases() -> str:
    inner = ",\n  ".join(f"`{name}` for `--{field.replace('_', '-')}`" for name, field in SPECULATIVE_CONFIG.items())
    return ("## Other spellings\n\n"
            "- A positional MODEL is `--model`.\n"
            "- `--tensor-parallel-size N`, `--tp N` and `-tp N` are `--mesh tp=N`.\n"
            f"- `--speculative-config '{{json}}'` takes vLLM's keys: {inner}.\n"
            "  `model` and `method` in it are ignored: the container says what drafts.\n"
            "- `--draft-model` does not exist: merge the drafter into the container with `convert --draft-model`.\n")


if __name__ == "__main__":
    print(flags_page(), end="")
