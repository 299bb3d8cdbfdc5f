"""Dataclasses as JSON and back: nested ones, tuples of them, and times. The standard library
alone."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

Value = TypeVar("Value")


def to_json(value: Any, indent: int | None = None) -> bytes:
    def plain(item: object) -> str:
        if isinstance(item, datetime):
            return item.isoformat(timespec="microseconds")
        raise TypeError(f"{type(item).__name__} cannot be written as JSON")

    separators = None if indent else (",", ":")
    text = json.dumps(
        asdict(value), indent=indent, separators=separators, ensure_ascii=False, default=plain
    )
    return text.encode()


def from_json(kind: type[Value], content: bytes | str) -> Value:
    """Raises ValueError, TypeError, KeyError or AttributeError if it is not a `kind`."""
    value: Value = from_plain(kind, json.loads(content))
    return value


def from_plain(kind: Any, value: Any) -> Any:
    """The same from what `json.loads` returns."""
    if is_dataclass(kind):
        make: Any = kind
        types = _types(make)
        return make(**{name: _read(*types[name], item) for name, item in value.items()})
    return datetime.fromisoformat(value) if kind is datetime else value


def _read(kind: Any, is_tuple: bool, value: Any) -> Any:
    return tuple(from_plain(kind, item) for item in value) if is_tuple else from_plain(kind, value)


@lru_cache(maxsize=None)
def _types(kind: Any) -> dict[str, tuple[Any, bool]]:
    """What each field is, or what it is a tuple of. Read as it is written and not evaluated, since
    the Python of a node may be too old for `str | None`."""
    names = vars(sys.modules[kind.__module__])
    found = {}
    for each in fields(kind):
        several = re.fullmatch(r"tuple\[(\w+), \.\.\.\]", str(each.type))
        found[each.name] = names.get(several[1] if several else str(each.type)), several is not None
    return found
