"""Every promise of the older systems names the tests that hold it, and every fault at a joint the
test that causes it. Those tests exist, and look for what the page says is seen."""

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
COMMANDS = {"queue", "doctor", "azure doctor", "job status all", "outputs/"}
"""What the page of faults names besides what is seen."""
FAULTS = REPOSITORY / "docs/reference/faults.md"


def rows() -> dict[str, str]:
    """The cell with the tests of each promise, by its id."""
    promises = PAGE.read_text().partition("## What only")[0]
    lines = re.findall(r"^\| ([A-E]\d+) \| .+? \| (.+) \|$", promises, re.MULTILINE)
    assert len(lines) == len(dict(lines)), "a promise has two rows"
    return dict(lines)


@cache
def sources_in(file: str) -> dict[str, str]:
    """The source of each test of a file, with the functions of that file that it calls."""
    source = (REPOSITORY / file).read_text()
    functions = {
        node.name: ast.get_source_segment(source, node) or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    }
    return {
        name: plain("\n".join([text, *(functions[n] for n in functions if f"{n}(" in text)]))
        for name, text in functions.items()
        if name.startswith("test_")
    }


def plain(text: str) -> str:
    """In one line, without escapes and quotes."""
    return " ".join(re.sub(r"""[\\"']""", "", text).split())


def faults() -> list[tuple[str, str, str]]:
    """The id, what is seen, and the test of each fault."""
    return re.findall(r"^\| (F\d+) \| .+? \| (.+?) \| (.+) \|$", FAULTS.read_text(), re.MULTILINE)


def test_every_promise_has_a_row():
    assert sorted(rows()) == sorted(IDS)


@pytest.mark.parametrize("promise", [name for name in IDS if name not in NOT_BUILT])
def test_every_row_names_tests_that_exist(promise: str):
    cell = rows()[promise]
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", cell)
    assert named, cell
    assert cell.count("`") == 2 * len(named), f"something is no test: {cell}"
    assert not [f"{file}::{name}" for file, name in named if name not in sources_in(file)]


def test_what_is_not_built_says_so():
    found = rows()
    assert {name for name, cell in found.items() if cell == "not built yet"} == NOT_BUILT


def test_at_least_thirty_faults_have_a_test_of_their_own():
    found = faults()
    assert [name for name, _, _ in found] == [f"F{n}" for n in range(1, len(found) + 1)]
    assert len({test for _, _, test in found}) == len(found) >= 30


@pytest.mark.parametrize(
    ("seen", "test"), [pytest.param(*rest, id=name) for name, *rest in faults()]
)
def test_what_is_seen_of_a_fault_is_what_its_test_looks_for(seen: str, test: str):
    named = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", test)
    assert named, test
    source = sources_in(named[1])[named[2]]
    words = [word for word in re.findall(r"`([^`]+)`", seen) if word not in COMMANDS]
    assert words, "no words that the test could look for"
    assert [word for word in words if plain(word) not in source] == []
