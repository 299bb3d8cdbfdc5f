"""The faults of `faults.yaml`, and how one gets into a source."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

FILE = Path(__file__).with_name("faults.yaml")


class TextLost(Exception):
    """The text of a fault is not in its file, or there several times."""


@dataclass(frozen=True)
class Fault:
    """`was` is found in the file `file`, whatever it is indented by, and becomes `now`; `harm` is
    what a user would suffer."""

    id: str
    room: str
    file: str
    was: str
    now: str
    harm: str

    def lines(self, source: str) -> range:
        """The lines of the source that it changes, counted from 1."""
        found = self._found(source)
        first = source.count("\n", 0, found.start()) + 1
        return range(first, first + self.was.count("\n") + 1)

    def planted(self, source: str) -> str:
        """The source with the fault."""
        found = self._found(source)
        text = textwrap.indent(self.now, found.groupdict().get("indent") or "")
        return source[: found.start()] + text + source[found.end() :]

    def _found(self, source: str) -> re.Match[str]:
        first, *others = (re.escape(line) for line in self.was.split("\n"))
        pattern = first
        if others:
            following = "".join(f"\n(?P=indent){line}" if line else "\n" for line in others)
            pattern = rf"^(?P<indent> *){first}{following}$"
        matches = list(re.finditer(pattern, source, re.MULTILINE))
        if len(matches) != 1:
            raise TextLost(f"{self.id}: its text is {len(matches)} times in {self.file}")
        return matches[0]


@dataclass(frozen=True)
class Catalog:
    """`rooms` has the folders and files of tests that are about each room."""

    rooms: Mapping[str, tuple[str, ...]]
    faults: tuple[Fault, ...]

    def only(self, names: Collection[str]) -> Catalog:
        """The faults of these rooms and ids; all without any."""
        unknown = set(names) - {*self.rooms, *(fault.id for fault in self.faults)}
        if unknown:
            raise SystemExit(f"no room and no fault is called {min(unknown)!r}")
        chosen = [f for f in self.faults if not names or {f.id, f.room} & set(names)]
        return replace(self, faults=tuple(chosen))


def read_catalog(file: Path = FILE) -> Catalog:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    rooms = {room: tuple(places) for room, places in content["rooms"].items()}
    return Catalog(rooms, tuple(Fault(**fields) for fields in content["faults"]))


def statement_lines(source: str, changed: range) -> range:
    """The lines of the innermost statement around some lines. Of one that holds others, such as an
    `if`, only those of its own."""
    best = changed
    span = len(source)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt) or node.end_lineno is None:
            continue
        own = range(node.lineno, _own_end(node) + 1)
        if own.start <= changed.start and changed.stop <= own.stop and len(own) < span:
            best, span = own, len(own)
    return best


def _own_end(node: ast.stmt) -> int:
    body = getattr(node, "body", None)
    is_compound = isinstance(body, list) and body
    return body[0].lineno - 1 if is_compound else node.end_lineno or node.lineno


def names_defined(source: str, changed: range) -> set[str]:
    """The names that a module or a class assigns in these lines: they run when it is imported, so
    the tests are those that use the names. Of the head of a function, the function."""
    names: set[str] = set()
    for node in _at_import(ast.parse(source)):
        last = _own_end(node) if isinstance(node, _FUNCTIONS) else node.end_lineno or node.lineno
        if node.lineno > changed.start or last < changed.stop - 1:
            continue
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = (part for target in targets for part in ast.walk(target))
            names |= {part.id for part in found if isinstance(part, ast.Name)}
        elif isinstance(node, _FUNCTIONS):
            names.add(node.name)
    return names


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _at_import(tree: ast.Module) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        found.append(node)
        if isinstance(node, ast.ClassDef):
            pending += node.body
    return found
