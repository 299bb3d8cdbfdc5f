"""The bench of planted faults: its list, and that it can tell a caught fault from a survivor."""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from bench.faults.catalog import (
    Catalog,
    Fault,
    TextLost,
    names_defined,
    read_catalog,
    statement_lines,
)
from bench.faults.choice import Chooser, CoverageMap
from bench.faults.report import tables
from bench.faults.trials import Bench, Results, confirm

ROOT = Path(__file__).parents[1]
CATALOG = read_catalog()
ROOMS = {
    *("leases", "queue", "plan", "catalog", "stores", "jobs", "wrapper"),
    *("snapshot", "data", "quantization", "scoring", "sampler", "auth"),
}


@cache
def source_of(file: str) -> tuple[str, str]:
    """A file of the product, and what it does: its syntax tree."""
    source = (ROOT / file).read_text(encoding="utf-8")
    return source, ast.dump(ast.parse(source)) if file.endswith(".py") else source


@pytest.mark.parametrize("fault", CATALOG.faults, ids=lambda fault: fault.id)
def test_a_fault_is_found_once_and_changes_what_the_file_does(fault: Fault):
    source, meaning = source_of(fault.file)
    planted = fault.planted(source)
    assert fault.harm.endswith(".")
    is_python = fault.file.endswith(".py")
    assert (ast.dump(ast.parse(planted)) if is_python else planted) != meaning


def test_every_room_has_its_share_of_at_least_two_hundred_faults():
    counts = Counter(fault.room for fault in CATALOG.faults)
    assert set(counts) == set(CATALOG.rooms) == ROOMS
    assert min(counts.values()) >= 15
    assert len(CATALOG.faults) >= 220
    assert len({fault.id for fault in CATALOG.faults}) == len(CATALOG.faults)
    missing = [place for places in CATALOG.rooms.values() for place in places]
    assert all((ROOT / place).exists() for place in missing)


def test_a_text_is_found_at_any_indentation_and_keeps_it():
    fault = Fault("x", "leases", "x.py", "if a:\n    b()", "if not a:\n    b()", "")
    assert fault.planted("def f():\n    if a:\n        b()\n") == (
        "def f():\n    if not a:\n        b()\n"
    )
    with pytest.raises(TextLost, match="0 times"):
        fault.planted("if a:\n  b()\n")
    with pytest.raises(TextLost, match="2 times"):
        fault.planted("if a:\n    b()\nif a:\n    b()\n")


def test_the_lines_of_a_fault_are_those_of_its_statement_or_of_what_it_defines():
    source = "LIMIT = 3\n\ndef f(\n    a=LIMIT,\n):\n    return g(\n        a,\n    )\n"
    assert statement_lines(source, range(7, 8)) == range(6, 9)
    assert names_defined(source, range(1, 2)) == {"LIMIT"}
    assert names_defined(source, range(4, 5)) == {"f"}
    assert names_defined(source, range(7, 8)) == set()


PRODUCT = "def is_late(now: float, due: float) -> bool:\n    return now > due\n"
TESTS = """\
import subprocess, sys
from edgeloop.clock import is_late
def test_late(): assert is_late(2, 1)
def test_in_a_process():
    code = "from edgeloop.clock import is_late; print(is_late(1, 1))"
    assert subprocess.check_output([sys.executable, "-c", code], cwd="/").strip() == b"False"
def test_that_is_unsteady(): assert False
"""
FAULTS = (
    Fault("late", "leases", "edgeloop/clock.py", "now > due", "now < due", "Late."),
    Fault("equal", "leases", "edgeloop/clock.py", "now > due", "now >= due", "Early."),
    Fault("none", "leases", "edgeloop/clock.py", "now > due", "due < now", "Nothing."),
    Fault("lost", "leases", "edgeloop/clock.py", "now > then", "now < then", "Unknown."),
    Fault("gone", "leases", "edgeloop/watch.py", "now > due", "now < due", "Unknown."),
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project with the faults above."""
    tree = tmp_path / "project"
    for file, content in {
        "edgeloop/__init__.py": "",
        "edgeloop/clock.py": PRODUCT,
        "tests/test_clock.py": TESTS,
    }.items():
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / file).write_text(content)
    return tree


@pytest.mark.slow
def test_a_planted_fault_is_caught_and_one_that_changes_nothing_survives(
    tree: Path, tmp_path: Path
):
    names = ("test_late", "test_in_a_process")
    tests = [f"tests/test_clock.py::{name}" for name in names]
    catalog = Catalog({"leases": ("tests",)}, FAULTS)
    coverage = CoverageMap(dict.fromkeys(tests, 0.1), {fault.id: tests for fault in catalog.faults})
    results = Results(tmp_path / "results.jsonl")
    bench = Bench(tree, Path(sys.executable), catalog, coverage, results)
    bench.run("unit", workers=1, seconds=None)
    answers = {answer.id: (answer.outcome, answer.by) for answer in results.answers}
    assert answers == {
        "late": ("caught", tests[0]),
        "equal": ("caught", tests[1]),
        "none": ("survived", ""),
    }
    assert [text.partition(":")[0] for text in bench.lost] == ["lost", "gone"]
    assert (tree / "edgeloop/clock.py").read_text() == PRODUCT

    again = Results(tmp_path / "results.jsonl")
    assert all(again.is_answered(fault, "unit") for fault in ("late", "equal", "none"))
    assert again.is_answered("late", "test")
    assert not again.is_answered("none", "test")
    text = tables(catalog, [again])
    assert "| leases | 5 | 2 (67 %), 2 not tried |" in text
    assert "`none` | Nothing. | survived 2 tests" in text


@pytest.mark.slow
def test_what_fails_without_a_fault_proves_nothing(tree: Path, tmp_path: Path):
    results = tmp_path / "results.jsonl"
    for test in ("test_late", "test_that_is_unsteady"):
        fields = {"id": test, "level": "unit", "outcome": "caught"}
        with results.open("a") as file:
            file.write(json.dumps({**fields, "by": f"tests/test_clock.py::{test}"}) + "\n")
    said = confirm(tree, Path(sys.executable), Results(results))
    assert said == "2 tests have caught faults; without one, 1 of them fail"
    again = Results(results)
    assert again.is_answered("test_late", "test")
    assert not again.is_answered("test_that_is_unsteady", "unit")


def test_the_closest_and_cheapest_tests_come_first(tmp_path: Path):
    files = ("models/test_leases.py", "models/test_files.py", "portal/test_api.py")
    for file in files:
        (tmp_path / "tests" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / file).write_text("")
    (tmp_path / "tests/models/test_board.py").write_text("from tests.peers.board import Board\n")
    seconds = {
        "tests/portal/test_api.py::test_one": 0.1,
        "tests/models/test_files.py::test_two": 0.1,
        "tests/models/test_leases.py::test_dear": 1.5,
        "tests/models/test_leases.py::test_cheap": 0.1,
        "tests/models/test_leases.py::test_cheap[postgresql]": 0.1,
        "tests/models/test_leases.py::test_slow": 5.0,
        "tests/models/test_board.py::test_three": 0.1,
        "tests/models/test_gone.py::test_four": 0.1,
    }
    fault = Fault("x", "leases", "edgeloop/models/leases.py", "a", "b", "")
    catalog = Catalog({"leases": ("tests/models",)}, (fault,))
    chooser = Chooser(tmp_path, catalog, CoverageMap(seconds, {"x": list(seconds)}))
    (unit,) = chooser.batches(fault, "unit")
    assert [test.partition("::")[2] for test in unit.tests] == [
        *("test_cheap", "test_dear", "test_two", "test_one")
    ]
    few = CoverageMap(seconds, {"x": list(seconds)}).only([unit.tests[1], "tests/x.py::test_new"])
    assert few.tests["x"] == [unit.tests[1]]
    (servers,) = chooser.batches(fault, "test")
    assert [test.partition("::")[2] for test in servers.tests] == [
        *("test_cheap[postgresql]", "test_slow", "test_three")
    ]
