"""Typed models of what people write, and the one sentence they read when something is wrong.

A model is a `Section`: every key with its type, default and description. JSON Schema, the reference
pages, `key=value` overrides and the suggestions in errors all come from it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from edgeloop._util.values import (
    LINES,
    PLAIN_TEXT,
    TEXT,
    TIME,
    number,
    shown,
    suggestion,
    whole,
)
from edgeloop._util.yaml import KeyPath, NotYaml, Origin, parse_yaml
from edgeloop.errors import BadInput

Text = Annotated[str, TEXT]
PlainText = Annotated[str, PLAIN_TEXT]
Whole = Annotated[int, whole()]
Count = Annotated[int, whole(1)]
Amount = Annotated[float, number()]
Seconds = Annotated[float, TIME]


class Section(BaseModel):
    """Keys that belong together. An unknown one is an error; null stands for the default."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, value: object) -> object:
        if isinstance(value, Mapping):
            return {str(key): item for key, item in value.items() if item is not None}
        return value


def key(default: Any, about: str, shown: str | None = None) -> Any:
    """A key of a section. A callable makes the default; `shown` is how a file would write it."""
    default_of = {"default_factory" if callable(default) else "default": default}
    extra: Any = None if shown is None else {"default": shown or None}
    return Field(**default_of, description=about, json_schema_extra=extra)


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], document: object, origin: Origin) -> Model:
    """The model; or the first mistake, as one sentence. Unknown keys come before wrong values."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
    first = min(mistakes, key=lambda mistake: mistake["type"] != "extra_forbidden")
    path = first["loc"]
    if path and path[-1] == "[key]":  # of an open mapping: the sentence is about the mapping
        path = path[:-2]
    if first["type"] == "extra_forbidden":
        raise unknown_key(model, path, origin)
    raise origin.wrong(path, _reason(first))


def unknown_key(
    model: type[BaseModel], path: KeyPath, origin: Origin, more: Iterable[str] = ()
) -> BadInput:
    """`more` are names that the document itself allows at its top."""
    *above, last = map(str, path)
    schema = model_schema(model)
    names = [*(more if not above else ()), *_keys_at(schema, above)]
    key = ".".join(map(str, path))
    if not above and last in (leaves := _leaves(schema)):
        hint = f"did you mean {leaves[last]!r}?"
    else:
        hint = suggestion(last, names, prefix="".join(f"{part}." for part in above))
    return origin.at(path, f"unknown key {key!r}: {hint}")


def with_overrides(
    model: type[BaseModel],
    document: Mapping[str, object],
    words: Sequence[str],
    origin: Origin,
    *,
    example: str,
    texts: bool = False,
    params: str = "",
) -> tuple[dict[str, object], Origin]:
    """The document with `key=value` words applied, and an origin that knows they have no line.

    With `texts`, a value is a text unless it begins with `[` or `{`. `params` names an open mapping
    at the top whose keys may be given without its name.
    """
    changed, lines = copy.deepcopy(dict(document)), dict(origin.lines)
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            reason = f"{word!r} is not a valid override: write key=value, for example {example}"
            raise origin.at((), reason)
        path = _override_path(model, changed, key, params, replace(origin, lines={}))
        if texts and not text.startswith(("[", "{")):
            value: object = text
        else:
            try:
                value = parse_yaml(text, texts).value
            except NotYaml as problem:
                raise origin.at((), f"the value of {key} {problem}") from None
        _set(changed, path, value, model_schema(model))
        lines = {other: line for other, line in lines.items() if other[: len(path)] != path}
        lines |= {path[:depth]: 0 for depth in range(1, len(path) + 1) if path[:depth] not in lines}
    return changed, replace(origin, lines=lines)


@cache
def model_schema(model: type[BaseModel]) -> dict[str, Any]:
    """As editors read it: a mapping that takes the model's keys by the names in the file."""
    return model.model_json_schema()


def schema_node(schema: Mapping[str, Any], path: Iterable[str]) -> Mapping[str, Any]:
    """What a JSON Schema says about a key; empty where there is no such key."""
    node = _resolved(schema, schema)
    for part in path:
        below = node.get("properties", {}).get(part, node.get("additionalProperties"))
        node = _resolved(below, schema) if isinstance(below, Mapping) else {}
    return node


def _resolved(node: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Through references, and of several forms the one that has keys."""
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    forms = [_resolved(form, schema) for form in node.get("anyOf", ())]
    return next((form for form in forms if form.get("type") == "object"), node)


def _keys_at(schema: Mapping[str, Any], path: Iterable[str]) -> list[str]:
    return list(schema_node(schema, path).get("properties", {}))


def _leaves(schema: Mapping[str, Any], above: tuple[str, ...] = ()) -> dict[str, str]:
    """Keys below the top by their last name, the shallow ones before the deep."""
    paths: dict[str, str] = {}
    names = _keys_at(schema, above)
    for name in names if above else ():
        paths.setdefault(name, ".".join((*above, name)))
    for name in names:
        paths = {**_leaves(schema, (*above, name)), **paths}
    return paths


def _override_path(
    model: type[BaseModel], document: Mapping[str, object], key: str, params: str, origin: Origin
) -> KeyPath:
    """A key of the model wins over a param of the same name."""
    schema = model_schema(model)
    parameters = document.get(params) if params else None
    names = [str(name) for name in parameters] if isinstance(parameters, Mapping) else []
    parts = key.split(".")
    if key in names and key not in schema["properties"]:
        return (params, key)
    for depth, part in enumerate(parts):
        node = schema_node(schema, parts[:depth])
        if part in node.get("properties", {}):
            continue
        if node.get("additionalProperties") is True:
            break
        if node.get("additionalProperties"):  # single values, whose names may have dots
            return (*parts[:depth], ".".join(parts[depth:]))
        raise unknown_key(model, tuple(parts[: depth + 1]), origin, names)
    return tuple(parts)


def _set(
    document: dict[str, object], path: KeyPath, value: object, schema: Mapping[str, Any]
) -> None:
    *above, last = map(str, path)
    place = document
    for key in above:
        below = place.get(key)
        place[key] = place = below if isinstance(below, dict) else {}
    if schema_node(schema, above).get("maxProperties") == 1:
        place.clear()
    place[last] = value


def _reason(mistake: ErrorDetails) -> str:
    kind, value = mistake["type"], shown(mistake["input"])
    if kind == "value_error":
        return str(mistake["ctx"]["error"])
    if kind == "missing":
        return "is missing"
    if kind in ("model_type", "dict_type", "mapping_type"):
        return f"{LINES}, not {value}" if mistake["loc"] else LINES
    if kind == "string_type":
        return "must be a text"
    if kind.startswith("bool_"):
        return "must be true or false"
    return f"{mistake['msg'].replace('Input should be', 'must be')}, not {value}"
