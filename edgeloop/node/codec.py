"""Dataclasses as JSON and back: nested ones, tuples of them, and times. The standard library
alone."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

Value = TypeVar("Value")
_LARGEST_NUMBER = 1 << 62
_PLAIN: dict[str, tuple[type, ...]] = {
    **{"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)},
    **{"State": (str,), "datetime": (str,)},
}


class FieldKind(NamedTuple):
    """A field's annotation, or that of the items of a tuple: as written, and as a type of ours."""

    written: str
    type: Any
    is_tuple: bool


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
    """Raises ValueError, TypeError, KeyError or AttributeError if it is not a `kind`. Others may
    have written it: every text, number and list is one where it has to be."""
    try:
        plain = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    value: Value = from_plain(kind, plain)
    return value


def from_plain(kind: Any, value: Any) -> Any:
    """The same from what `json.loads` returns."""
    if is_dataclass(kind):
        make: Any = kind
        types = _types(make)
        return make(**{name: _read(name, types[name], item) for name, item in value.items()})
    return datetime.fromisoformat(value) if kind is datetime else value


def _read(name: str, kind: FieldKind, value: Any) -> Any:
    if not kind.is_tuple:
        _check(name, kind.written, value)
        return from_plain(kind.type, value)
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list")
    for item in value:
        _check(name, kind.written, item)
    return tuple(from_plain(kind.type, item) for item in value)


def _check(name: str, written: str, value: Any) -> None:
    """By the annotation as it is written: `str`, `float | None`, `Mapping[str, int]`."""
    wanted, _, none = written.partition(" | ")
    if none == "None" and value is None:
        return
    mapping = re.fullmatch(r"Mapping\[str, (\w+)\]", wanted)
    if mapping and isinstance(value, dict):
        for item in value.values():
            _check(name, mapping[1], item)
        return
    allowed = _PLAIN.get(wanted, () if mapping is None else (dict,))
    is_bool = isinstance(value, bool) and wanted != "bool"
    if allowed and (is_bool or not isinstance(value, allowed)):
        raise TypeError(f"{name} must be {wanted}, not {type(value).__name__}")
    if wanted in ("int", "float") and not abs(value) < _LARGEST_NUMBER:
        raise ValueError(f"{name} is too large")


@lru_cache(maxsize=None)
def _types(kind: Any) -> dict[str, FieldKind]:
    """What each field is, or what it is a tuple of. Read as it is written and not evaluated, since
    the Python of a node may be too old for `str | None`."""
    names = vars(sys.modules[kind.__module__])
    found = {}
    for each in fields(kind):
        several = re.fullmatch(r"tuple\[(\w+), \.\.\.\]", str(each.type))
        written = several[1] if several else str(each.type)
        found[each.name] = FieldKind(written, names.get(written), several is not None)
    return found
