"""Which tests are run for a fault, and in which order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath

from bench.faults.catalog import Catalog, Fault

LEVELS = ("unit", "test")
FIRST_S, UNIT_S, ALL_S = 10.0, 60.0, 300.0  # of tests, by what they took when they were measured
CLOSEST = 3  # files
FILES_AT_ONCE = 15  # importing them takes time, too
IN_TURN = 6  # tests of a file before the next file has its turn
UNMEASURED_S = 1.0
SLOW_S = 2.0
_SERVERS = ("postgresql", "azure", "s3", "ray", "chromium")
_NEEDS_A_SERVER = re.compile(
    r"^from tests\.peers\.(?!ports\b|process\b)|^pytestmark = pytest\.mark\.(server|slow|soak)\b",
    re.MULTILINE,
)


@dataclass(frozen=True)
class CoverageMap:
    """The seconds of each test, and the tests that run the lines of each fault."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    tests: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> CoverageMap:
        content = json.loads(file.read_text(encoding="utf-8"))
        names = list(content["seconds"])
        tests = {fault: [names[n] for n in found] for fault, found in content["tests"].items()}
        return cls(content["seconds"], tests)

    def only(self, names: Iterable[str]) -> CoverageMap:
        """With these tests alone: a machine may have no servers."""
        seconds = {name: self.seconds.get(name, UNMEASURED_S) for name in names}
        tests = {f: [name for name in found if name in seconds] for f, found in self.tests.items()}
        return CoverageMap(seconds, tests)

    def write(self, file: Path) -> None:
        places = {name: place for place, name in enumerate(self.seconds)}
        tests = {fault: [places[name] for name in found] for fault, found in self.tests.items()}
        file.write_text(json.dumps({"seconds": self.seconds, "tests": tests}), encoding="utf-8")


@dataclass(frozen=True)
class Batch:
    """Tests for one call of pytest, by their ids; an id without `::` is a whole file."""

    tests: tuple[str, ...]
    seconds: float


class Chooser:
    """`tree` has the tests: those of the map that are gone are left out."""

    def __init__(self, tree: Path, catalog: Catalog, coverage: CoverageMap) -> None:
        self._tree, self._catalog, self._coverage = tree, catalog, coverage
        self._quick_files: dict[str, bool] = {}

    def batches(self, fault: Fault, level: str) -> Iterator[Batch]:
        """Of a level alone: `test` has what `unit` has not run."""
        known = self._coverage.tests.get(fault.id) or self._of_room(fault)
        covering = [test for test in known if self._is_there(test)]
        quick = [test for test in covering if self._is_quick(test)]
        first, second = self._unit(fault, quick)
        if level == "unit":
            yield from (batch for batch in (first, second) if batch.tests)
            return
        done = {*first.tests, *second.tests}
        rest = [test for test in self._in_turn(fault, covering) if test not in done]
        spent = 0.0
        for batch in self._cut(rest):
            yield batch
            spent += batch.seconds
            if spent > ALL_S:
                return
        room = [test for test in self._of_room(fault) if test not in set(covering)]
        yield from self._cut(self._within(room, ALL_S - spent))

    def _unit(self, fault: Fault, quick: Sequence[str]) -> tuple[Batch, Batch]:
        ranked = self._by_file(fault, quick)
        closest = [test for file in list(ranked)[:CLOSEST] for test in ranked[file]]
        first = self._batch(self._within(closest, FIRST_S))
        files = set(islice(ranked, FILES_AT_ONCE))
        others = (t for t in self._in_turn(fault, quick) if _file(t) in files)
        left = [test for test in others if test not in set(first.tests)]
        return first, self._batch(self._within(left, UNIT_S - first.seconds))

    def _of_room(self, fault: Fault) -> list[str]:
        """Measured tests of the room, or its files where nothing was measured."""
        places = self._catalog.rooms[fault.room]
        known = [t for t in self._coverage.seconds if _file(t).startswith(places)]
        if not known:
            found = (path for place in places for path in _test_files(self._tree / place))
            known = [path.relative_to(self._tree).as_posix() for path in found]
        return list(self._in_turn(fault, [test for test in known if self._is_there(test)]))

    def _by_file(self, fault: Fault, tests: Iterable[str]) -> dict[str, list[str]]:
        """The files closest to the fault first, in each the cheapest tests."""
        found: dict[str, list[str]] = {}
        for test in sorted(tests, key=self._seconds):
            found.setdefault(_file(test), []).append(test)
        order = sorted(found, key=lambda file: (-closeness(fault, file), file))
        return {file: found[file] for file in order}

    def _in_turn(self, fault: Fault, tests: Iterable[str]) -> Iterator[str]:
        """A few of each file, then a few more: no file can use up the time of the others."""
        left = list(self._by_file(fault, tests).values())
        while left:
            for each in left:
                yield from each[:IN_TURN]
            left = [each[IN_TURN:] for each in left if len(each) > IN_TURN]

    def _cut(self, tests: Iterable[str]) -> Iterator[Batch]:
        """Batches of a minute or so, those with servers apart: conftest.py puts them first."""
        for is_quick in (True, False):
            part: list[str] = []
            for test in (t for t in tests if self._is_quick(t) == is_quick):
                part.append(test)
                files = {_file(each) for each in part}
                if sum(map(self._seconds, part)) > UNIT_S or len(files) >= FILES_AT_ONCE:
                    yield self._batch(part)
                    part = []
            if part:
                yield self._batch(part)

    def _within(self, tests: Iterable[str], seconds: float) -> list[str]:
        kept: list[str] = []
        for test in tests:
            seconds -= self._seconds(test)
            if seconds < 0:
                break
            kept.append(test)
        return kept

    def _batch(self, tests: Sequence[str]) -> Batch:
        return Batch(tuple(tests), sum(map(self._seconds, tests)))

    def _seconds(self, test: str) -> float:
        return self._coverage.seconds.get(test, UNMEASURED_S)

    def _is_there(self, test: str) -> bool:
        return (self._tree / _file(test)).is_file()

    def _is_quick(self, test: str) -> bool:
        file = _file(test)
        if file not in self._quick_files:
            text = (self._tree / file).read_text(encoding="utf-8")
            self._quick_files[file] = _NEEDS_A_SERVER.search(text) is None
        has_server = any(word in test.partition("[")[2] for word in _SERVERS)
        return self._quick_files[file] and not has_server and self._seconds(test) < SLOW_S


def closeness(fault: Fault, test_file: str) -> int:
    """By the names on both paths: test_leases.py in models/ is about models/leases.py."""
    own, theirs = PurePosixPath(fault.file), PurePosixPath(test_file)
    words = _words(theirs.stem)
    folders = set(theirs.parts[1:-1]) & set(own.parts[1:-1])
    score = 4 * bool(_words(own.stem) & words) + 2 * len(folders)
    return score + bool(words & _words(fault.room)) + bool(words & set(own.parts[1:-1]))


def _words(stem: str) -> set[str]:
    found = re.split(r"[_\W]", stem.removeprefix("test_"))
    return {word.rstrip("s") for word in found if len(word) > 2}


def _file(test: str) -> str:
    return test.partition("::")[0]


def _test_files(place: Path) -> Iterator[Path]:
    return iter([place] if place.is_file() else sorted(place.rglob("test_*.py")))
