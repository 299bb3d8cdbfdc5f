"""Every promise of the older systems names the tests that hold it, and those tests exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs/reference/promises.md"
IDS = [
    *(f"A{number}" for number in range(1, 9)),
    *(f"B{number}" for number in range(1, 16)),
    *(f"C{number}" for number in range(1, 8)),
    *(f"D{number}" for number in range(1, 12)),
    *(f"E{number}" for number in range(1, 10)),
]
NOT_BUILT: set[str] = set()


def rows() -> dict[str, str]:
    """The cell with the tests of each promise, by its id."""
    promises = PAGE.read_text().partition("## What only")[0]
    lines = re.findall(r"^\| ([A-E]\d+) \| .+? \| (.+) \|$", promises, re.MULTILINE)
    assert len(lines) == len(dict(lines)), "a promise has two rows"
    return dict(lines)


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((REPOSITORY / file).read_text())
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_promise_has_a_row():
    assert sorted(rows()) == sorted(IDS)


@pytest.mark.parametrize("promise", [name for name in IDS if name not in NOT_BUILT])
def test_every_row_names_tests_that_exist(promise: str):
    cell = rows()[promise]
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", cell)
    assert named, cell
    assert cell.count("`") == 2 * len(named), f"something is no test: {cell}"
    assert not [f"{file}::{name}" for file, name in named if name not in names_in(file)]


def test_what_is_not_built_says_so():
    found = rows()
    assert {name for name, cell in found.items() if cell == "not built yet"} == NOT_BUILT
