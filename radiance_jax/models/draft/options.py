"""The fields of a drafter's config.json, wherever its dialect puts them. No jax here.

z-lab, SpecForge and ModelOpt keep a drafter's own fields in `dflash_config`, some in `dspark_config`; DeepSpec keeps them at
the top; the speculators library keeps them at the top and the sizes of the layers in `transformer_layer_config`.
"""

from typing import Any

from radiance_jax.errors import ModelError
from radiance_jax.models.fields import Fields

NESTED = ("dflash_config", "dspark_config")
LAYERS = "transformer_layer_config"


class Options:
    """A field is looked up in the nested blocks first, then at the top, then among the layers' sizes; errors name the
    block it was found in. A JSON null counts as absent."""

    def __init__(self, raw: Any, where: str = "config.json"):
        self.top = Fields(raw, where)
        self.layers = self.top.block(LAYERS) if self.top.get(LAYERS) is not None else self.top
        self._blocks = (*(self.top.block(key) for key in NESTED), self.top, self.layers)

    def at(self, key: str) -> Fields:
        """The block that holds the field, the top where none does."""
        return next((block for block in self._blocks if block.get(key) is not None), self.top)

    def get(self, key: str, default: Any = None) -> Any:
        return self.at(key).get(key, default)

    def whole(self, key: str, default: int | None = None, *, low: int = 1) -> int:
        return self.at(key).whole(key, default, low=low)

    def number(self, key: str, default: float | None = None, *, low: float, high: float) -> float:
        return self.at(key).number(key, default, low=low, high=high)

    def optional_number(self, key: str, *, low: float, high: float) -> float | None:
        return self.at(key).optional_number(key, low=low, high=high)

    def flag(self, key: str, default: bool = False) -> bool:
        return self.at(key).flag(key, default)

    def optional_flag(self, key: str) -> bool | None:
        return None if self.get(key) is None else self.flag(key)

    def word(self, key: str, known: tuple[str, ...], default: str | None = None, advice: str = "") -> str:
        return self.at(key).word(key, known, default, advice)

    def fail(self, key: str, must: str, advice: str = "") -> ModelError:
        return self.at(key).fail(key, must, advice)

    def numbers(self, key: str, low: int) -> tuple[int, ...] | None:
        """A list of whole numbers, at least `low` each; None where the field is absent."""
        value = self.get(key)
        if value is None:
            return None
        plain = isinstance(value, list) and value and all(isinstance(i, int) and not isinstance(i, bool) for i in value)
        if not plain or min(value) < low or max(value) >= 2**31:
            raise self.fail(key, f"a list of whole numbers, each at least {low}")
        return tuple(value)
