"""The one YAML reader: plain data with the line of every key, and limits on what it builds.

Only texts, numbers, booleans, dates, lists and mappings come out. A key that is written twice, a
tag that asks for anything else, and a file that would expand beyond the limits are errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop._util.files import open_regular
from edgeloop.errors import BadInput

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 1_000_000
MAX_DEPTH = 50
MAX_VALUES = 100_000  # with every alias expanded
MAX_TEXT = 10_000_000  # characters of all values, with every alias expanded
MAX_NUMBER = 2**64  # an int of a thousand digits fits nowhere, and some cannot even be shown
_TAG = "tag:yaml.org,2002:"
_COLLECTIONS = ("map", "omap", "pairs", "seq", "set")  # a text that claims to be one is none
_TOO_LARGE = "has a number that is too large: quote it if it is meant as a text"
_UNREADABLE = {  # 2024-99-99, !!int zz
    "timestamp": "a date or time that does not exist: quote it if it is meant as a text",
    "int": "a value that is no number: quote it if it is meant as a text",
    "float": "a value that is no number: quote it if it is meant as a text",
}
_DIGITS = re.compile(r"[-+]?[0-9_]+")

KeyPath = tuple[str | int, ...]


class NotYaml(Exception):
    """Why a file cannot be used; the caller adds the name of the file."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(frozen=True)
class Document:
    """What a file holds, and the line (from 1) that each key or list item stands on."""

    value: object
    lines: Mapping[KeyPath, int] = field(default_factory=dict)


def read_yaml(path: Path, texts: bool = False) -> Document:
    """Raises NotYaml. With `texts`, every scalar stays as it was written: `1e-3`, `yes`, `010`."""
    content = b""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8")
    except FileNotFoundError:
        where = "such file" if path.is_absolute() else f"file {path.absolute()}"
        raise NotYaml(f"there is no {where}") from None
    except UnicodeDecodeError as error:
        if len(content) <= MAX_BYTES:
            raise NotYaml(f"cannot be read: {error}") from None
        text = ""
    except OSError as error:
        raise NotYaml(f"cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise NotYaml(f"is larger than {MAX_BYTES // 1_000_000} MB")
    return parse_yaml(text, texts)


def parse_yaml(text: str, texts: bool = False) -> Document:
    """As `read_yaml`, from a text."""
    import yaml

    try:
        return _Reader(text, texts).document()
    except yaml.YAMLError as error:  # its own words quote the line, which may hold a password
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else min(mark.line + 1, text.count("\n") + 1)
        raise NotYaml(f"cannot be read as YAML{_why(error)}", line) from None


def _why(error: Exception) -> str:
    """The usual remedy of the parser's problem. Its own words may quote the file."""
    problem = str(getattr(error, "problem", "") or "")
    return next((f": {remedy}" for words, remedy in _PROBLEMS.items() if words in problem), "")


_PROBLEMS = {  # of libyaml and of the parser in Python
    "mapping values are not allowed": "a value with ': ' in it needs quotes, or the line "
    "begins with too many spaces",
    "tab character": "a tab; indent with spaces",
    "'\\t'": "a tab; indent with spaces",
    "expected ',' or": "a '[' or '{' before it is not closed",
    "expected '-'": "the lines of a list must all begin with '-'",
    "block end": "its indentation differs from that of the lines above",
    "expected key": "its indentation differs from that of the lines above",
    "could not find expected ':'": "a key without ': ', perhaps in the line above",
    "unexpected end of stream": "a quotation mark is not closed",
    "undefined alias": "a value that begins with * needs quotes",
    "cannot start any token": "a value that begins with @, ` or % needs quotes",
}


@dataclass(frozen=True)
class Origin:
    """Where values were written; an error about one of them names it, with the line."""

    name: str
    error: type[BadInput]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)  # 0: not in the file

    def wrong(self, path: KeyPath, reason: str) -> BadInput:
        """`reason` continues after the key, which is the path with dots."""
        key = ".".join(map(str, path))
        return self.at(path, f"{key} {reason}" if key else reason)

    def at(self, path: KeyPath, reason: str) -> BadInput:
        upwards = (path[:count] for count in range(len(path), 0, -1))
        line = next((self.lines[above] for above in upwards if above in self.lines), None)
        where = f"{self.name}, line {line}" if line else self.name
        return self.error(where=where, reason=reason)


def read_document(path: Path, error: type[BadInput], texts: bool = False) -> tuple[object, Origin]:
    """What a YAML file holds, and where; see `read_yaml`."""
    try:
        document = read_yaml(path, texts)
    except NotYaml as problem:
        name = path.name if path.is_file() else str(path)
        where = name if problem.line is None else f"{name}, line {problem.line}"
        raise error(where=where, reason=str(problem)) from None
    return document.value, Origin(path.name, error, document.lines)


class _Reader:
    def __init__(self, text: str, texts: bool) -> None:
        import yaml

        self._yaml = yaml
        self._loader_type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._text, self._texts = text, texts
        self._lines: dict[KeyPath, int] = {}
        self._count = 0
        self._characters = 0

    def document(self) -> Document:
        self._check_depth()
        self._loader = self._loader_type(self._text)
        try:
            node = self._loader.get_single_node()
            value = None if node is None else self._value(node, ())
        finally:
            self._loader.dispose()
        return Document(value, self._lines)

    def _check_depth(self) -> None:
        """Before composing, which recurses: the parser that makes events does not."""
        depth, yaml = 0, self._yaml
        for event in yaml.parse(self._text, Loader=self._loader_type):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise self._too_deep(event.start_mark.line)

    def _value(self, node: yaml.Node, path: KeyPath) -> object:
        line = node.start_mark.line
        self._count += 1
        if self._count > MAX_VALUES:
            raise NotYaml(f"expands to more than {MAX_VALUES:,} values", line + 1)
        if len(path) > MAX_DEPTH:  # an alias that holds itself, or a long chain of them
            raise self._too_deep(line)
        if isinstance(node, self._yaml.MappingNode):
            self._check_tag(node, "map")
            return self._mapping(node, path)
        if isinstance(node, self._yaml.SequenceNode):
            self._check_tag(node, "seq")
            for number, item in enumerate(node.value):
                self._lines.setdefault((*path, number), item.start_mark.line + 1)
            return [self._value(item, (*path, number)) for number, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[object, object]:
        values: dict[object, object] = {}
        merged: dict[object, object] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == f"{_TAG}merge":
                for key, value in self._bases(value_node, (*path, "<<")).items():
                    merged.setdefault(key, value)
                continue
            if not isinstance(key_node, self._yaml.ScalarNode):
                raise NotYaml("has a key that is a list or a mapping", line)
            key = self._scalar(key_node)
            here = (*path, str(key))
            if key in values:
                name = ".".join(map(str, here))
                raise NotYaml(f"the key {name!r} is there twice", line)
            self._lines[here] = line
            values[key] = self._value(value_node, here)
        return {**merged, **values}

    def _bases(self, node: yaml.Node, path: KeyPath) -> dict[object, object]:
        """What `<<` brings in: a mapping, or several, of which the first wins."""
        value = self._value(node, path)
        inherited: dict[object, object] = {}
        for base in value if isinstance(value, list) else [value]:
            if not isinstance(base, dict):
                raise NotYaml("'<<' must name a mapping", node.start_mark.line + 1)
            for key, item in base.items():
                inherited.setdefault(key, item)
        return inherited

    def _scalar(self, node: yaml.Node) -> Any:
        self._characters += len(node.value)
        if self._characters > MAX_TEXT:
            reason = f"expands to more than {MAX_TEXT // 1_000_000} MB"
            raise NotYaml(reason, node.start_mark.line + 1)
        if self._texts:
            return node.value
        if ":" in node.value and node.tag in (f"{_TAG}int", f"{_TAG}float"):
            return node.value  # 2:16 was a number to the base of 60, which is never meant
        if node.tag.removeprefix(_TAG) in _COLLECTIONS:
            raise self._not_allowed(node)
        try:
            value = self._loader.construct_object(node)
        except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError):
            reason = _UNREADABLE.get(node.tag.removeprefix(_TAG), "a value that cannot be read")
            if reason == _UNREADABLE["int"] and _DIGITS.fullmatch(node.value):
                raise NotYaml(_TOO_LARGE, node.start_mark.line + 1) from None  # for Python too
            raise NotYaml(f"has {reason}", node.start_mark.line + 1) from None
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise NotYaml(_TOO_LARGE, node.start_mark.line + 1)
        return value

    def _check_tag(self, node: yaml.Node, kind: str) -> None:
        if not self._texts and node.tag != f"{_TAG}{kind}":
            raise self._not_allowed(node)

    def _not_allowed(self, node: yaml.Node) -> NotYaml:
        return NotYaml(f"has a tag that is not allowed: {node.tag}", node.start_mark.line + 1)

    def _too_deep(self, line: int) -> NotYaml:
        return NotYaml(f"is nested more than {MAX_DEPTH} levels deep", line + 1)
