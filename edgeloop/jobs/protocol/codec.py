"""Dataclasses as JSON and back: nested ones, tuples of them, and times. The standard library
alone."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

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
        hints = _hints(make)
        return make(**{name: from_plain(hints[name], item) for name, item in value.items()})
    if get_origin(kind) is tuple:
        return tuple(from_plain(get_args(kind)[0], item) for item in value)
    return datetime.fromisoformat(value) if kind is datetime else value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
