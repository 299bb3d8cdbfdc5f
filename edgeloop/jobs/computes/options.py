"""The settings of one compute, taken out one by one and checked; what is left over is a mistake."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from edgeloop.errors import BadSetting

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


class Options:
    """Each method takes one key; `done` refuses those that nobody took."""

    def __init__(self, compute: str, values: Mapping[str, object]) -> None:
        self._where = f"computes.{compute}"
        self._values = dict(values)
        self._taken: list[str] = ["kind"]

    def text(self, key: str, default: str | None = None) -> str:
        value = self._take(key)
        if value in (None, "") and default is not None:
            return default
        if value is None:
            raise self._bad(f"{key} is missing")
        if not isinstance(value, str) or not value:
            raise self._bad(f"{key} must be a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._take(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._bad(f"{key} must be true or false")
        return value

    def number(self, key: str) -> float | None:
        value = self._take(key)
        return None if value is None else self._amount(key, value)

    def numbers(self, key: str) -> dict[str, float]:
        value = self._mapping(key)
        return {name: self._amount(f"{key}.{name}", amount) for name, amount in value.items()}

    def texts(self, key: str) -> dict[str, str]:
        value = self._mapping(key)
        if not all(isinstance(text, str) for text in value.values()):
            raise self._bad(f"{key} must hold 'name: text' lines")
        return {name: str(text) for name, text in value.items()}

    def size(self, key: str) -> int | None:
        """Bytes: a number, or one with a unit, as `16 GB` and `8Gi`."""
        value = self._take(key)
        if value is None:
            return None
        match = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?I?)B?\s*", str(value), re.IGNORECASE)
        try:
            return int(float(match[1]) * _UNITS[match[2].upper()]) if match else self._no_size(key)
        except (KeyError, ValueError):
            return self._no_size(key)

    def names(self, key: str) -> tuple[str, ...] | None:
        """GPUs: how many, or which ones."""
        value = self._take(key)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return tuple(str(number) for number in range(value))
        if isinstance(value, list | tuple):
            return tuple(str(item) for item in value)
        raise self._bad(f"{key} must be a whole number or a list")

    def whole(self, key: str, default: int) -> int:
        value = self._take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._bad(f"{key} must be a whole number, not {value!r}")
        return value

    def flag_or_text(self, key: str) -> bool | str:
        value = self._take(key)
        if value is None or isinstance(value, bool | str):
            return value or False
        raise self._bad(f"{key} must be true, false or a text")

    def mapping_or_text(self, key: str) -> Mapping[str, object] | str | None:
        value = self._take(key)
        if value is None or isinstance(value, str):
            return value or None
        if isinstance(value, Mapping):
            return {str(name): item for name, item in value.items()}
        raise self._bad(f"{key} must be a text, or hold 'name: value' lines")

    def plain_mapping(self, key: str) -> dict[str, object]:
        return self._mapping(key)

    def done(self) -> None:
        """Call it when every key that there can be was taken."""
        for key in self._values:
            if key not in self._taken:
                near = get_close_matches(key, self._taken, n=1)
                hint = f"did you mean {near[0]!r}?" if near else ""
                known = f"known keys are {', '.join(self._taken)}."
                raise self._bad(f"unknown key {key!r}: {hint or known}")

    def bad(self, key: str, reason: str) -> BadSetting:
        """For what only the compute itself can judge."""
        return self._bad(f"{key} {reason}")

    def _take(self, key: str) -> object:
        self._taken.append(key)
        return self._values.get(key)

    def _mapping(self, key: str) -> dict[str, object]:
        value = self._take(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._bad(f"{key} must hold 'name: value' lines")
        return {str(name): item for name, item in value.items()}

    def _amount(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise self._bad(f"{key} must be a number, 0 or more")
        return float(value)

    def _no_size(self, key: str) -> int:
        raise self._bad(f"{key} must be a size, as '16 GB'")

    def _bad(self, reason: str) -> BadSetting:
        return BadSetting(where=self._where, reason=reason)
