"""Renders the Helm chart without Helm, so that `edgeloop fleet manifest` needs nothing but Python.

This is the part of Go's `text/template`, and of the functions that Helm adds to it, that the
templates in `chart/` use; anything else in a template is an error. The tests render the chart with
Helm's own engine as well, and the objects must be equal.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import yaml

from edgeloop.errors import BadSetting

# An action, with the marks that trim white space before and after it.
_ACTION = re.compile(r"\{\{(-(?=\s))?\s*(/\*.*?\*/|.*?)\s*((?<=\s)-)?\}\}", re.DOTALL)
_ASSIGNMENT = re.compile(r"(?:(\$\w+), *)?(\$\w+) *(:?=) *(.*)", re.DOTALL)
_TOKEN = re.compile(
    r"""\s* (?: (?P<text> "(?:[^"\\]|\\.)*" | `[^`]*` )
              | (?P<number> -?\d+ )
              | (?P<path> \$?\w*(?:\.\w+)+ | \$\w* | \. )
              | (?P<word> \w+ )
              | (?P<mark> [|()] ) )""",
    re.VERBOSE,
)
# Variables by name, inner blocks first. "." is the current value, "$" the template's argument.
Scope = ChainMap[str, Any]


def render_chart(chart: Path, values: Mapping[str, Any], release: Mapping[str, str]) -> list[Any]:
    """Return the objects that the templates make of the values, in the order of their files.

    Args:
        chart: The chart's folder.
        values: All values, defaults included.
        release: `Name`, `Namespace` and `Service`, as templates read them.

    Raises:
        BadSetting: The chart refuses the values.
    """
    about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    root = {"Values": values, "Release": release, "Chart": {"AppVersion": about["appVersion"]}}
    templates = _Templates()
    files = [path for path in sorted((chart / "templates").iterdir()) if path.suffix != ".txt"]
    bodies = [templates.parse(path.read_text(encoding="utf-8")) for path in files]
    texts = [templates.render(body, root) for body in bodies]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


@dataclass
class _Action:
    """One `{{ … }}`. Those that open a block have a body up to their `else` and `end`."""

    keyword: str
    pipeline: str
    body: list[str | _Action] = field(default_factory=list)
    otherwise: list[str | _Action] = field(default_factory=list)


class _Templates:
    """The named templates of a chart, and how a template becomes text."""

    def __init__(self) -> None:
        self._named: dict[str, list[str | _Action]] = {}
        self._functions: dict[str, Callable[..., Any]] = {**_FUNCTIONS, "include": self._include}

    def parse(self, source: str) -> list[str | _Action]:
        """Return the parts of a file. Bodies of `define` are kept under their names as well."""
        parts: list[str | _Action] = []
        here, place, trims = parts, 0, False
        open_blocks: list[tuple[_Action, list[str | _Action]]] = []  # each with what it is part of
        for match in _ACTION.finditer(source):
            text = source[place : match.start()]
            text = text.lstrip() if trims else text
            here.append(text.rstrip() if match[1] else text)
            place, trims = match.end(), bool(match[3])
            keyword, _, pipeline = match[2].partition(" ")
            if keyword in ("if", "with", "range", "define"):
                block = _Action(keyword, pipeline)
                open_blocks.append((block, here))
                here.append(block)
                here = block.body
                if keyword == "define":
                    self._named[json.loads(pipeline)] = block.body
            elif keyword == "else":
                block, outside = open_blocks.pop()
                here = block.otherwise
                if pipeline:  # `else if` is a block in the other branch that shares the `end`
                    block = _Action("if", pipeline.removeprefix("if "))
                    here.append(block)
                    here = block.body
                open_blocks.append((block, outside))
            elif keyword == "end":
                _, here = open_blocks.pop()
            elif not keyword.startswith("/*"):
                here.append(_Action("", match[2]))
        here.append(source[place:].lstrip() if trims else source[place:])
        return parts

    def render(self, parts: Sequence[str | _Action], argument: Any) -> str:
        return "".join(self._texts(parts, ChainMap({".": argument, "$": argument})))

    def _include(self, name: str, argument: Any) -> str:
        return self.render(self._named[name], argument)

    def _texts(self, parts: Sequence[str | _Action], scope: Scope) -> Iterator[str]:
        for part in parts:
            if isinstance(part, str):
                yield part
            elif part.keyword == "range":
                yield from self._repeated(part, scope)
            elif part.keyword in ("if", "with"):
                value = self._value(part.pipeline, scope)
                inner = scope.new_child({".": value} if value and part.keyword == "with" else {})
                yield from self._texts(part.body if value else part.otherwise, inner)
            elif not part.keyword:
                yield self._output(part.pipeline, scope)

    def _repeated(self, part: _Action, scope: Scope) -> Iterator[str]:
        assignment = _ASSIGNMENT.fullmatch(part.pipeline)
        items = self._value(assignment[4] if assignment else part.pipeline, scope) or []
        # As in Go, a mapping is read in the order of its keys.
        pairs = sorted(items.items()) if isinstance(items, Mapping) else enumerate(items)
        for key, item in pairs:
            inner = scope.new_child({".": item})
            if assignment:
                inner |= {assignment[1] or "$_": key, assignment[2]: item}
            yield from self._texts(part.body, inner)

    def _output(self, pipeline: str, scope: Scope) -> str:
        assignment = _ASSIGNMENT.fullmatch(pipeline)
        if assignment is None:
            return _text(self._value(pipeline, scope))
        _, name, sign, pipeline = assignment.groups()
        # `:=` declares in the innermost block, `=` changes the variable where it was declared.
        owner = next(each for each in scope.maps if sign == ":=" or name in each)
        owner[name] = self._value(pipeline, scope)
        return ""

    def _value(self, pipeline: str, scope: Scope) -> Any:
        matches = _TOKEN.finditer(pipeline)
        return self._piped(((str(m.lastgroup), m[str(m.lastgroup)]) for m in matches), scope)

    def _piped(self, tokens: Iterator[tuple[str, str]], scope: Scope) -> Any:
        """The value up to a closing parenthesis. `a | f b` is `f b a`."""
        command: list[Any] = []
        piped: list[Any] = []
        for kind, word in tokens:
            if kind == "mark" and word == ")":
                break
            if kind == "mark" and word == "|":
                piped = [_called([*command, *piped])]
                command = []
            elif kind == "mark":
                command.append(self._piped(tokens, scope))
            elif kind == "text":
                command.append(word[1:-1] if word[0] == "`" else json.loads(word))
            elif kind == "number":
                command.append(int(word))
            elif kind == "path":
                command.append(_at(word, scope))
            else:
                function = self._functions[word]
                command.append(function() if command else function)
        return _called([*command, *piped])


def _called(command: list[Any]) -> Any:
    first, *arguments = command
    return first(*arguments) if callable(first) else first


def _at(path: str, scope: Scope) -> Any:
    """`$experiment.name`, `$.named`, `.Values.image` or `.`; a missing key is None."""
    name, *fields = path.rstrip(".").split(".")
    value = scope[name or "."]
    for each in fields:
        value = value.get(each)
    return value


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    return str(value)


def _json(value: Any, indent: int | None = None) -> str:
    """As Go writes JSON: keys in order, whole numbers without a point, `<`, `>`, `&` escaped."""
    separators = (",", ": " if indent else ":")
    text = json.dumps(
        _whole_numbers(value),
        indent=indent,
        sort_keys=True,
        ensure_ascii=False,
        separators=separators,
    )
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=False, allow_unicode=True).rstrip("\n")


def _indented(columns: int, text: str) -> str:
    return "\n" + "\n".join(" " * columns + line for line in text.split("\n"))


def _merged(into: dict[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in source.items():
        into.setdefault(key, value)
    return into


def _set(mapping: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    mapping[key] = value
    return mapping


def _fail(reason: str) -> None:
    raise BadSetting(where="fleet.kubernetes", reason=reason)


def _printf(form: str, *values: Any) -> str:
    return form % values


def _dict(*pairs: Any) -> dict[str, Any]:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def _is_kind(kind: str, value: Any) -> bool:
    return isinstance(value, Mapping) if kind == "map" else kind == "invalid" and value is None


def _last_true(*values: Any) -> Any:
    return next((value for value in values if not value), values[-1])


def _first_true(*values: Any) -> Any:
    return next((value for value in values if value), values[-1])


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "and": _last_true,
    "append": lambda items, item: [*items, item],
    "concat": lambda *lists: [item for items in lists for item in items],
    "deepCopy": copy.deepcopy,
    "default": lambda default, value: value or default,
    "dict": _dict,
    "eq": lambda a, b: a == b,
    "fail": _fail,
    "fromJson": json.loads,
    "fromJsonArray": json.loads,
    "fromYaml": yaml.safe_load,
    "get": lambda mapping, key: mapping.get(key, ""),
    "gt": lambda a, b: a > b,
    "has": lambda item, items: item in items,
    "hasPrefix": lambda start, text: text.startswith(start),
    "hasKey": lambda mapping, key: key in mapping,
    "int": int,
    "join": lambda separator, items: separator.join(items),
    "kindIs": _is_kind,
    "le": lambda a, b: a <= b,
    "len": len,
    "list": lambda *items: list(items),
    "lower": str.lower,
    "lt": lambda a, b: a < b,
    "merge": _merged,
    "nindent": _indented,
    "not": lambda value: not value,
    "omit": lambda mapping, *keys: {key: mapping[key] for key in mapping if key not in keys},
    "or": _first_true,
    "prepend": lambda items, item: [item, *items],
    "printf": _printf,
    "quote": lambda value: json.dumps(_text(value), ensure_ascii=False),
    "regexMatch": lambda pattern, text: re.search(pattern, text) is not None,
    "replace": lambda old, new, text: text.replace(old, new),
    "set": _set,
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "sub": lambda a, b: a - b,
    "ternary": lambda if_true, if_false, condition: if_true if condition else if_false,
    "toJson": _json,
    "toPrettyJson": lambda value: _json(value, indent=2),
    "toString": _text,
    "toYaml": _yaml,
    "trimAll": lambda characters, text: text.strip(characters),
    "trimPrefix": lambda start, text: text.removeprefix(start),
    "trunc": lambda length, text: text[:length],
    "urlquery": quote_plus,
}
