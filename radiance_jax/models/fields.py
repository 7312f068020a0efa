"""Reading the fields of a JSON object that anybody may have written: every error names the field and what must hold."""

from typing import Any

from radiance_jax.errors import ModelError

LARGEST = 2**31 - 1  # sizes and ids are int32 on the device


def _show(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number of more digits than Python prints
        return "a value too long to print"
    return text if len(text) <= 80 else text[:77] + "..."


class Fields:
    """`raw` is the parsed object, `where` its name for people. A JSON null counts as absent."""

    def __init__(self, raw: Any, where: str = "config.json"):
        self.raw, self.where = raw, where
        if not isinstance(raw, dict):
            raise ModelError(f"{where} must be a JSON object; got {_show(raw)}", param=where)

    def fail(self, key: str, must: str, advice: str = "") -> ModelError:
        got = _show(self.raw[key]) if self.raw.get(key) is not None else "nothing"
        return ModelError(f"{self.where}: {key} must be {must}; got {got}{'. ' + advice if advice else ''}", param=key)

    def get(self, key: str, default: Any = None) -> Any:
        value = self.raw.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None, *, low: int = 1, high: int = LARGEST) -> int:
        """A whole number; one without a default must be there."""
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.fail(key, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None, *, low: float, high: float) -> float:
        """A finite number, as a float; one without a default must be there."""
        value = self.get(key, default)
        try:
            if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= float(value) <= high:
                return float(value)  # NaN fails the comparison
        except OverflowError:
            pass
        raise self.fail(key, f"a number from {low:g} to {high:g}")

    def optional_number(self, key: str, *, low: float, high: float) -> float | None:
        return None if self.get(key) is None else self.number(key, low=low, high=high)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def word(self, key: str, known: tuple[str, ...], default: str | None = None, advice: str = "") -> str:
        value = self.get(key, default)
        if not isinstance(value, str) or value not in known:
            raise self.fail(key, " or ".join(map(repr, known)) if len(known) < 3 else f"one of {', '.join(known)}", advice)
        return value

    def block(self, key: str) -> "Fields":
        """The object under `key`, empty where there is none."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.fail(key, "a JSON object")
        return Fields(value, f"{self.where}: {key}")

    def refuse(self, key: str, plain: tuple[Any, ...], advice: str) -> None:
        """Raises unless the field is absent or one of the `plain` values that change nothing."""
        value = self.get(key)
        if value is not None and not any(type(value) is type(one) and value == one for one in plain):
            raise self.fail(key, " or ".join([*map(str, plain), "absent"]).lower(), advice)


def token_ids(fields: Fields, key: str, vocab_size: int) -> tuple[int, ...]:
    """One token id or a list of them, all of the vocabulary; () where the field is absent."""
    value = fields.get(key, [])
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < vocab_size for i in ids):
        raise fields.fail(key, f"a token id below the vocabulary's {vocab_size}, or a list of them")
    return tuple(dict.fromkeys(ids))
