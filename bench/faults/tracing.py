"""Which tests run which lines: the suite under coverage, with one context per test.

Processes that tests start are measured as well (`COVERAGE_PROCESS_START`), but say nothing of the
test that started them: the tests of the room are run for what only they run.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from bench.faults.catalog import Catalog, Fault, TextLost, names_defined, statement_lines
from bench.faults.choice import CoverageMap

_STARTED_S = 0.02  # of processes: less is a `git` or a `cp`
_CONFIGURATION = """\
[run]
branch = True
parallel = True
source_pkgs = edgeloop
data_file = {folder}/data
disable_warnings = no-data-collected,module-not-imported,couldnt-parse,module-not-measured
"""


def trace(folder: Path, arguments: list[str], root: Path) -> str:
    """Run the suite, or what these arguments of pytest say, and leave coverage and times there."""
    folder = folder.absolute()
    (folder / "times").mkdir(parents=True, exist_ok=True)
    configuration = folder / "coverage.ini"
    configuration.write_text(_CONFIGURATION.format(folder=folder), encoding="utf-8")
    variables = {
        **os.environ,
        "COVERAGE_PROCESS_START": str(configuration),
        "TIMES_FOLDER": str(folder / "times"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH")))),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "bench.faults.traced", *arguments]
    done = subprocess.run(command, cwd=root, env=variables, check=False)
    return f"pytest ended with {done.returncode}; what it measured is in {folder}"


def make_map(folder: Path, tree: Path, catalog: Catalog, target: Path) -> str:
    """Look up every fault in what `trace` has left."""
    seconds, own_s = _seconds(folder)
    with_processes = {test for test, spent in seconds.items() if spent - own_s[test] > _STARTED_S}
    runs = _Runs(folder, tree)
    tests: dict[str, list[str]] = {}
    lost, bare = [], []
    for fault in catalog.faults:
        try:
            found = runs.tests_of(fault)
        except (TextLost, OSError) as error:
            lost.append(str(error))
            continue
        found &= seconds.keys()
        if not found:  # then a process that a test has started does
            bare.append(fault.id)
            places = catalog.rooms[fault.room]
            found = {test for test in with_processes if test.startswith(places)}
        tests[fault.id] = sorted(found)
    CoverageMap(seconds, tests).write(target)
    text = f"{len(seconds)} tests; {len(tests)} faults, {len(bare)} of them run by no test itself"
    return "\n".join((text, *bare, *lost))


class _Runs:
    """Coverage data of a tree. Its paths are those of the tree that was measured."""

    def __init__(self, folder: Path, tree: Path) -> None:
        from coverage import CoverageData

        self._tree = tree
        package = re.compile(r"(?:.*/)?(edgeloop/.*)")
        self._paths: dict[str, list[tuple[CoverageData, str]]] = defaultdict(list)
        for file in filter(_has_contexts, sorted(folder.glob("data*"))):
            data = CoverageData(str(file))
            data.read()
            for measured in data.measured_files():
                if match := package.fullmatch(measured):
                    self._paths[match[1]].append((data, measured))
        self._lines: dict[str, dict[int, set[str]]] = {}

    def tests_of(self, fault: Fault) -> set[str]:
        """Of the changed lines, else of the statement around them, else of what uses the names that
        they define."""
        source = (self._tree / fault.file).read_text(encoding="utf-8")
        changed = fault.lines(source)
        if not fault.file.endswith(".py"):
            return self._of_text(fault.file)
        found = self._of_lines(fault.file, changed)
        found = found or self._of_lines(fault.file, statement_lines(source, changed))
        if found:
            return found
        for name in names_defined(source, changed):
            found |= self._of_name(name)
        return found

    def _of_text(self, file: str) -> set[str]:
        """Of a file that is read and not run, such as queries: of the code beside it."""
        folder = file.rpartition("/")[0] + "/"
        names = [path for path in self._paths if path.startswith(folder)]
        return {test for path in names for tests in self._of(path).values() for test in tests}

    def _of_lines(self, file: str, lines: range) -> set[str]:
        known = self._of(file)
        return {test for line in lines for test in known.get(line, ())}

    def _of_name(self, name: str) -> set[str]:
        """Everywhere in the package: it may be imported elsewhere."""
        found: set[str] = set()
        word = re.compile(rf"\b{re.escape(name)}\b")
        for path in sorted((self._tree / "edgeloop").rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if name in text:
                file = path.relative_to(self._tree).as_posix()
                for number, line in enumerate(text.splitlines(), start=1):
                    if word.search(line):
                        found |= self._of_lines(file, range(number, number + 1))
        return found

    def _of(self, file: str) -> dict[int, set[str]]:
        if file not in self._lines:
            found: dict[int, set[str]] = defaultdict(set)
            for data, measured in self._paths.get(file, ()):
                for line, contexts in data.contexts_by_lineno(measured).items():
                    found[line].update(context for context in contexts if "::" in context)
            self._lines[file] = found
        return self._lines[file]


def _has_contexts(file: Path) -> bool:
    """Whether it is of a process that ran tests itself, and not of one that a test has started: of
    those there are thousands."""
    with sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True) as database:
        try:
            query = "SELECT 1 FROM context WHERE context LIKE '%::%' LIMIT 1"
            return database.execute(query).fetchone() is not None
        except sqlite3.Error:  # of a process that was killed
            return False


def _seconds(folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """The processor time of each test, with and without that of processes it has started: it says
    more than the clock of a machine that does other things, too."""
    total: dict[str, float] = defaultdict(float)
    alone: dict[str, float] = defaultdict(float)
    for test, _phase, _wall, own, children in _times(folder):
        total[test] += own + children
        alone[test] += own
    return {test: round(total[test], 3) for test in sorted(total)}, alone


def _times(folder: Path) -> Iterator[tuple[str, str, float, float, float]]:
    for file in sorted((folder / "times").glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            test, phase, wall, own, children = json.loads(line)
            yield test, phase, wall, own, children
