"""How large the package is and how it is cut, beside what the restructuring reaches for.

`python -m bench structure --list [FOLDER]` names every offender below a folder.

A private helper is a function or method whose name starts with one underscore. It counts as small
and used once when its definition, from `def` to its last line, has at most six lines, and its
file refers to it exactly once. The share is that of all functions and methods of the package.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.tables import markdown

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "edgeloop"
HELPER_LINES = 6


@dataclass(frozen=True)
class Place:
    """Where a name is defined."""

    file: Path
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} {self.name}"


class Package:
    """The parsed source of every Python file below a folder."""

    def __init__(self, root: Path = PACKAGE) -> None:
        self.sources = {file: file.read_text() for file in sorted(root.rglob("*.py"))}
        self._trees = {file: ast.parse(source) for file, source in self.sources.items()}

    @property
    def lines(self) -> dict[Path, int]:
        return {file: source.count("\n") for file, source in self.sources.items()}

    @property
    def folders(self) -> Counter[Path]:
        """How many Python files each folder holds itself."""
        return Counter(file.parent for file in self.sources)

    @cached_property
    def functions(self) -> list[Place]:
        return list(self._functions())

    @cached_property
    def colliding_classes(self) -> dict[str, list[Place]]:
        """Class names defined more than once, private ones included, with the definitions."""
        defined = defaultdict(list)
        for file, tree in self._trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    defined[node.name].append(Place(file, node.lineno, node.name))
        return {name: places for name, places in sorted(defined.items()) if len(places) > 1}

    @cached_property
    def helpers_used_once(self) -> list[Place]:
        """Private functions of at most six lines to which their file refers exactly once."""
        return list(self._helpers_used_once())

    def _functions(self) -> Iterator[Place]:
        for file, tree in self._trees.items():
            for node in ast.walk(tree):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield Place(file, node.lineno, node.name)

    def _helpers_used_once(self) -> Iterator[Place]:
        for file, tree in self._trees.items():
            nodes = list(ast.walk(tree))
            uses = Counter(node.id for node in nodes if isinstance(node, ast.Name))
            uses.update(node.attr for node in nodes if isinstance(node, ast.Attribute))
            for node in nodes:
                if (
                    isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                    and node.name.startswith("_")
                    and not node.name.startswith("__")
                    and (node.end_lineno or node.lineno) - node.lineno < HELPER_LINES
                    and uses[node.name] == 1
                ):
                    yield Place(file, node.lineno, node.name)


def run(*arguments: str) -> str:
    parser = argparse.ArgumentParser(prog="python -m bench structure")
    parser.add_argument("--list", metavar="FOLDER", nargs="?", const=PACKAGE, type=Path)
    folder = parser.parse_args(arguments).list
    package = Package()
    return _table(package) if folder is None else _offenders(package, folder.resolve())


def _table(package: Package) -> str:
    share = 100 * len(package.helpers_used_once) / len(package.functions)
    colliding = package.colliding_classes
    rows = [
        ("lines of Python", "43,749", f"{sum(package.lines.values()):,}", "≤ 39,500"),
        ("Python files", "330", len(package.sources), "≤ 230"),
        ("class names defined more than once", "31 (29 public)", len(colliding), "0"),
        ("functions and methods", "3,061", f"{len(package.functions):,}", ""),
        ("private, ≤ 6 lines, used once", "10.3 %", f"{share:.1f} %", "< 4 %"),
    ]
    return markdown(("package", "before", "now", "goal"), rows)


def _offenders(package: Package, below: Path) -> str:
    """What to rename or inline below a folder, a line for each."""
    per_folder: dict[Path, list[str]] = defaultdict(list)
    for places in package.colliding_classes.values():
        for place in places:
            others = ", ".join(str(other).partition(" ")[0] for other in places if other != place)
            per_folder[place.file.parent].append(f"{place}: class also in {others}")
    for place in package.helpers_used_once:
        per_folder[place.file.parent].append(f"{place}: used once, inline")
    lines = []
    for folder, found in sorted(per_folder.items()):
        if folder.is_relative_to(below):
            lines += [
                f"{folder.relative_to(ROOT)} ({len(found)})",
                *(f"  {line}" for line in found),
            ]
    return "\n".join(lines) or "nothing"
