"""`key=value` on the command line: a dotted path into the known keys, or the name of a param."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping, Sequence

from edgeloop.errors import BadJob

_BELOW = {  # keys that have keys; None: any
    "resources": ("cpus", "gpus", "memory", "custom"),
    "params": None,
    "sweep": None,
    "variables": None,
    "environment": ("requirements", "conda"),
}


def apply(
    document: Mapping[str, object], overrides: Sequence[str], where: str
) -> dict[str, object]:
    """The document with the changes made; raises BadJob for what names nothing."""
    changed = copy.deepcopy(dict(document))
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            reason = f"{text!r} is no change: write key=value, as epochs=30"
            raise BadJob(where=where, reason=reason)
        _set(changed, _path(changed, key, where), _parsed(value, text, where), where)
    return changed


def unknown_key(key: str, known: Iterable[str], where: str) -> BadJob:
    known = list(known)
    by_last = {name.rpartition(".")[2]: name for name in known}
    near = [by_last[key]] if key in by_last else difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(known)}."
    return BadJob(where=where, reason=f"unknown key {key!r}: {hint}")


def _path(document: Mapping[str, object], key: str, where: str) -> list[str]:
    """Where the value goes. A key of the specification wins over a param of the same name."""
    from edgeloop.jobs.fields import KEYS

    params = document.get("params")
    names = [str(name) for name in params] if isinstance(params, Mapping) else []
    top, dot, rest = key.partition(".")
    if not dot and key in KEYS:
        return [key]
    if key in names:
        return ["params", key]
    if dot and rest and top in _BELOW:
        allowed = _BELOW[top]
        below, _, last = rest.partition(".")
        if allowed is None:
            return [top, rest]
        if below in allowed and (below == "custom") == bool(last):
            return [top, below, last] if last else [top, below]
    nested = [f"{name}.{item}" for name, items in _BELOW.items() for item in items or ()]
    raise unknown_key(key, [*names, *KEYS, *nested], where)


def _set(document: dict[str, object], path: Sequence[str], value: object, where: str) -> None:
    place = document
    for key in path[:-1]:
        below = place.setdefault(key, {})
        if isinstance(below, str):  # `environment: here`, as it was
            below = place[key] = {}
        if not isinstance(below, dict):
            raise BadJob(where=where, reason=f"{key} must hold 'key: value' lines")
        place = below
    if path[0] == "environment" and len(path) > 1:
        place.clear()  # it has one kind at a time
    place[path[-1]] = value


def _parsed(value: str, text: str, where: str) -> object:
    """Lists and mappings as YAML writes them; all else stays the text that was typed."""
    if not value.startswith(("[", "{")):
        return value
    import yaml

    try:
        return yaml.load(value, Loader=yaml.BaseLoader)  # noqa: S506 - texts and lists alone
    except yaml.YAMLError:
        raise BadJob(where=where, reason=f"{text!r} has a bracket that is not closed") from None
