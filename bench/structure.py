"""How many pieces the package is made of, and how many of its files each walk enters.

`python -m bench structure --write` updates both tables in RESULTS.md within seconds; a test fails
when they do not describe the present tree. The number of files entered is read from the ceilings in
`walks.yaml`, which another test compares with the walks themselves.
`python -m bench structure --list [FOLDER]` names the places to look at below a folder.

Statements are counted in the syntax tree, docstrings aside, so that packing lines changes nothing.
A package counts as thin with fewer than four modules besides `__init__.py`. A formatter trick
unpacks a literal, in a call or in another literal: `*(a, b)`, `**{"x": 1}`. A private helper is a
function or method whose name starts with one underscore. It counts as small and used once when its
definition, from `def` to its last line, has at most six lines, and its file refers to it exactly
once. Figures without a goal are for information.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from bench.tables import RESULTS, ROOT, between_markers, markdown
from bench.trace import WALKS, read_ceilings

PACKAGE = ROOT / "edgeloop"
HELPER_LINES = 6
THIN_MODULES = 4
MANY_ARGUMENTS = 7

Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True)
class Place:
    """Where a name is defined."""

    file: Path
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} {self.name}"


class Package:
    """The syntax trees of every Python file below a folder."""

    def __init__(self, root: Path = PACKAGE) -> None:
        self.root = root
        self._nodes = {
            file: list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
            for file in sorted(root.rglob("*.py"))
        }

    @property
    def files(self) -> list[Path]:
        return list(self._nodes)

    @property
    def folders(self) -> Counter[Path]:
        """How many Python files each folder holds itself."""
        return Counter(file.parent for file in self.files)

    @property
    def thin_packages(self) -> list[Path]:
        """Packages with fewer than four modules besides `__init__.py`, without the root."""
        return sorted(
            folder
            for folder, files in self.folders.items()
            if files - 1 < THIN_MODULES and folder != self.root
        )

    @property
    def top_level_names(self) -> set[str]:
        """Packages and modules directly below the root, without private names and dunder files."""
        names = {file.relative_to(self.root).parts[0].removesuffix(".py") for file in self.files}
        return {name for name in names if not name.startswith("_")}

    @cached_property
    def statements(self) -> int:
        return sum(
            isinstance(node, ast.stmt) and not _is_docstring(node)
            for nodes in self._nodes.values()
            for node in nodes
        )

    @cached_property
    def formatter_tricks(self) -> list[Place]:
        """Tuples, lists and dictionaries that are unpacked where they are written."""
        stars = [
            Place(file, node.lineno, "*(…)")
            for file, node in self._each(ast.Starred)
            if isinstance(node.value, (ast.Tuple, ast.List))
        ]
        keywords = [
            Place(file, node.lineno, "**{…}")
            for file, node in self._each(ast.keyword)
            if node.arg is None and isinstance(node.value, ast.Dict)
        ]
        items = [
            Place(file, value.lineno, "**{…}")
            for file, node in self._each(ast.Dict)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is None and isinstance(value, ast.Dict)
        ]
        return stars + keywords + items

    @cached_property
    def long_calls(self) -> list[Place]:
        """Calls with seven or more positional arguments."""
        return [
            Place(file, node.lineno, ast.unparse(node.func))
            for file, node in self._each(ast.Call)
            if len(node.args) >= MANY_ARGUMENTS
        ]

    @cached_property
    def functions(self) -> list[Place]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return [Place(file, node.lineno, node.name) for file, node in self._each(*kinds)]

    @cached_property
    def classes(self) -> list[Place]:
        return [Place(file, node.lineno, node.name) for file, node in self._each(ast.ClassDef)]

    @cached_property
    def colliding_classes(self) -> dict[str, list[Place]]:
        """Class names defined more than once, private ones included, with the definitions."""
        defined = defaultdict(list)
        for place in self.classes:
            defined[place.name].append(place)
        return {name: places for name, places in sorted(defined.items()) if len(places) > 1}

    @cached_property
    def helpers_used_once(self) -> list[Place]:
        """Private functions of at most six lines to which their file refers exactly once."""
        return list(self._helpers_used_once())

    def _each(self, *kinds: type[Node]) -> Iterator[tuple[Path, Node]]:
        for file, nodes in self._nodes.items():
            for node in nodes:
                if isinstance(node, kinds):
                    yield file, node

    def _helpers_used_once(self) -> Iterator[Place]:
        for file, nodes in self._nodes.items():
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
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--list", metavar="FOLDER", nargs="?", const=PACKAGE, type=Path)
    chosen.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    package = Package()
    if options.list is not None:
        return _places(package, options.list.resolve())
    if options.write:
        write(package)
    return "\n\n".join(tables(package).values())


def write(package: Package) -> None:
    """Update RESULTS.md with the figures of the present tree."""
    page = RESULTS.read_text(encoding="utf-8")
    RESULTS.write_text(between_markers(page, tables(package)), encoding="utf-8")


def tables(package: Package) -> dict[str, str]:
    """The tables in RESULTS.md that describe the tree, by the name of their marker."""
    return {"structure": _pieces(package), "trace": _walks()}


def _pieces(package: Package) -> str:
    share = 100 * len(package.helpers_used_once) / len(package.functions)
    rows = [
        ("statements", f"{package.statements:,}", "≤ 50,000"),
        ("Python files", len(package.files), "≤ 340"),
        ("packages", len(package.folders), ""),
        ("packages with fewer than four modules", len(package.thin_packages), "seams only"),
        ("top-level names", len(package.top_level_names), "≤ 21"),
        ("functions and methods", f"{len(package.functions):,}", ""),
        ("classes", f"{len(package.classes):,}", ""),
        ("class names defined more than once", len(package.colliding_classes), "0"),
        ("calls with seven or more positional arguments", len(package.long_calls), "0"),
        ("literals unpacked with `*(…)` or `**{…}`", len(package.formatter_tricks), "0"),
        ("private helpers of ≤ 6 lines, used once", f"{share:.1f} %", ""),
    ]
    return markdown(("package", "now", "goal"), rows)


def _walks() -> str:
    ceilings = read_ceilings()
    rows = [
        (f"`{walk.title}`", ceilings[name], f"≤ {walk.goal}" if walk.goal else "")
        for name, walk in WALKS.items()
    ]
    return markdown(("command", "files entered", "goal"), rows)


def _places(package: Package, below: Path) -> str:
    """The places behind the figures below a folder, one per line."""
    per_folder: dict[Path, list[str]] = defaultdict(list)
    for folder in package.thin_packages:
        modules = package.folders[folder] - 1
        per_folder[folder].append(f"{folder.relative_to(ROOT)}: modules: {modules}")
    for places in package.colliding_classes.values():
        for place in places:
            others = ", ".join(str(other).partition(" ")[0] for other in places if other != place)
            per_folder[place.file.parent].append(f"{place}: class also in {others}")
    for place in package.long_calls:
        per_folder[place.file.parent].append(f"{place}: seven or more positional arguments")
    for place in package.formatter_tricks:
        per_folder[place.file.parent].append(f"{place}: unpacks a literal")
    for place in package.helpers_used_once:
        per_folder[place.file.parent].append(f"{place}: used once")
    lines = []
    for folder, entries in sorted(per_folder.items()):
        if folder.is_relative_to(below):
            lines.append(f"{folder.relative_to(ROOT)} ({len(entries)})")
            lines += [f"  {entry}" for entry in entries]
    return "\n".join(lines) or "nothing"


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
