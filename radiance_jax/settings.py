"""How one configuration field is declared and checked; `config.py` holds the fields themselves."""

import textwrap
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Self

from radiance_jax.errors import UserError, nearest

MODEL, MEMORY, EXACT, SPEC, START = "model", "memory and batching", "exactness", "speculation", "start-up"
SERVER, PROMPT, SAMPLING = "server", "prompt", "sampling"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a field may hold. `word` is a value allowed beside the type, as in `auto` or a number; several: "auto|off"."""

    type: type
    help: str
    group: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    synonyms: dict[str, str] | None = None
    word: str | None = None
    flags: tuple[str, ...] = ()
    many: bool = False
    secret: bool = False

    def must(self) -> str:
        """The rule in words: "a whole number, at least 1, or 'auto'"."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        text = {int: "a whole number", float: "a number", bool: "true or false", str: "a non-empty string"}[self.type]
        if self.low is not None and self.high is not None:
            text += f" from {_plain(self.low)} to {_plain(self.high)}"
        elif self.low is not None:
            text += f", at least {_plain(self.low)}"
        return text + "".join(f", or {word!r}" for word in self.words)

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.word.split("|")) if self.word else ()

    def one(self, value: Any) -> Any:
        """The checked value, or `MISSING` where it breaks the rule."""
        if self.choices:
            if isinstance(value, bool):  # YAML reads a bare on / off as a boolean
                value = "on" if value else "off"
            value = (self.synonyms or {}).get(value, value) if isinstance(value, str) else value
            return value if value in self.choices else MISSING
        if value is False and "off" in self.words:  # YAML reads a bare off as a boolean
            return "off"
        if isinstance(value, str) and value in self.words:
            return value
        if self.type is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not self.type or value == "":
            return MISSING
        if self.type in (int, float):
            if (self.low is not None and not value >= self.low) or (self.high is not None and not value <= self.high):
                return MISSING
        return value


def _plain(bound: float) -> str:
    """Whole numbers with all their digits: rounded, a bound would not be the one that is checked."""
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def setting(type: type, default: Any, help: str, group: str, **rules: Any) -> Any:
    """A dataclass field carrying a `Setting`. A default of None means "decided at start-up"."""
    return field(default=default, metadata={"setting": Setting(type=type, help=help, group=group, **rules)})


def rule_of(item: Field) -> Setting:
    return item.metadata["setting"]


def draft_model_error() -> UserError:
    return UserError("the drafter comes from the container, so there is no draft_model at run time; merge it once with "
                     "`python -m radiance_jax.convert SRC OUT.rad --draft-model DIR` and serve OUT.rad",
                     param="draft_model")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Checks every field against its `Setting`. Errors: `UserError` with `param`."""

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Like the constructor, but an unknown name is refused with the nearest known one."""
        known = [item.name for item in fields(cls)]
        for name in values:
            if name == "draft_model":
                raise draft_model_error()
            if name not in known:
                raise UserError(f"unknown option {name!r}{nearest(name, known)}", param=name)
        return cls(**values)

    def __post_init__(self) -> None:
        for item in fields(self):
            value, rule = getattr(self, item.name), rule_of(item)
            if value is None and item.default is None:
                continue
            if rule.many:
                values = [value] if isinstance(value, (str, int)) else value
                checked = tuple(map(rule.one, values)) if isinstance(values, (list, tuple)) else (MISSING,)
                bad = MISSING in checked
            else:
                checked = rule.one(value)
                bad = checked is MISSING
            if bad:
                raise UserError(f"{item.name} must be {rule.must()}; got {value!r}", param=item.name)
            object.__setattr__(self, item.name, checked)

    def describe(self) -> str:
        """Every value, for the start-up log; secrets are masked and undecided values say `auto`."""
        def show(item: Field) -> str:
            value = getattr(self, item.name)
            if value is None or value == ():
                return "none" if rule_of(item).group == SERVER else "auto"
            if rule_of(item).secret:
                return "***"
            return str(value).lower() if isinstance(value, bool) else str(value)

        shown = [item for item in fields(self) if rule_of(item).group != PROMPT
                 and (rule_of(item).group != SAMPLING or getattr(self, item.name) not in (None, ()))]
        pairs = [f"{item.name}={show(item)}" for item in shown]
        return textwrap.fill("configuration: " + " ".join(pairs), 118, subsequent_indent="  ", break_long_words=False,
                             break_on_hyphens=False)
