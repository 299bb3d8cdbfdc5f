"""Plants one fault after the other in copies of a tree, and runs tests there until one fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from bench.faults import picked
from bench.faults.catalog import Catalog, Fault, TextLost
from bench.faults.choice import LEVELS, Batch, Chooser, CoverageMap

# What a test finds in the tree without a copy of its own, and what it does not need.
LINKED = (".venv", ".tools")
LEFT_OUT = (".git", ".hypothesis", ".pytest_cache", ".mypy_cache", ".ruff_cache", "site", "dist")
PLUGIN = "picked_tests"
PATIENCE = 10  # how much longer tests may take than when they were measured,
START_S = 120.0  # and how long pytest and the servers may take to start
LONGEST_TEST_S = 120
CAUGHT = ("caught", "timed out")


@dataclass(frozen=True)
class Answer:
    """`level` is which tests were run, `by` the one that failed."""

    id: str
    level: str
    outcome: str  # caught, timed out, survived, or error: the tests could not be run
    by: str = ""
    why: str = ""
    tests: int = 0
    seconds: float = 0.0
    commit: str = ""


class Results:
    """A file of answers; those of unsteady tests count no more (see `confirm`)."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.answers: list[Answer] = []
        self.unsteady: set[str] = set()
        self._lock = threading.Lock()
        for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
            fields = json.loads(line)
            if "unsteady" in fields:
                self.unsteady.update(fields["unsteady"])
            else:
                self.answers.append(Answer(**fields))

    def add(self, answer: Answer) -> None:
        self.answers.append(answer)
        self._append(asdict(answer))

    def add_unsteady(self, tests: Iterable[str]) -> None:
        self.unsteady.update(tests)
        self._append({"unsteady": sorted(tests)})

    def of(self, fault: str) -> Answer | None:
        """What is known of a fault: the answer of the most tests."""
        own = [a for a in self.answers if a.id == fault and a.by not in self.unsteady]
        own = [a for a in own if a.outcome != "error"]
        caught = [answer for answer in own if answer.outcome in CAUGHT]
        ranked = sorted(own, key=lambda answer: LEVELS.index(answer.level))
        return caught[-1] if caught else ranked[-1] if ranked else None

    def is_answered(self, fault: str, level: str) -> bool:
        known = self.of(fault)
        if known is None:
            return False
        return known.outcome in CAUGHT or LEVELS.index(known.level) >= LEVELS.index(level)

    def _append(self, fields: Mapping[str, object]) -> None:
        with self._lock, self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields, ensure_ascii=False) + "\n")


class Tree:
    """A copy of a tree in which files may be changed."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(source, folder, ignore=_left_out(source))
        for name in LINKED:
            if (source / name).exists():
                (folder / name).symlink_to((source / name).resolve())
        shutil.copy(Path(picked.__file__), folder / f"{PLUGIN}.py")

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Raises TextLost. The times of the file change with it, so that no compiled form of the
        other content is used."""
        path = self.folder / fault.file
        try:
            before, status = path.read_text(encoding="utf-8"), path.stat()
        except FileNotFoundError:
            raise TextLost(f"{fault.id}: there is no {fault.file}") from None
        _rewrite(path, fault.planted(before), status.st_mtime_ns + 1_000_000_000)
        try:
            yield
        finally:
            _rewrite(path, before, status.st_mtime_ns)


def _rewrite(path: Path, content: str, modified_ns: int) -> None:
    path.write_text(content, encoding="utf-8")
    os.utime(path, ns=(modified_ns, modified_ns))
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)


def _left_out(source: Path):  # type: ignore[no-untyped-def]
    def ignored(folder: str, names: list[str]) -> set[str]:
        return {*LEFT_OUT, *LINKED} & set(names) if Path(folder) == source else set()

    return ignored


class Bench:
    def __init__(
        self,
        source: Path,
        python: Path,
        catalog: Catalog,
        coverage: CoverageMap,
        results: Results,
    ) -> None:
        self._source, self._python = source.resolve(), python.absolute()
        self._catalog, self._results = catalog, results
        self._chooser = Chooser(self._source, catalog, coverage)
        self._commit = _commit_of(self._source)
        self.lost: list[str] = []

    def run(self, level: str, workers: int, seconds: float | None) -> None:
        """All faults that are not answered yet, each by one worker in a tree of its own."""
        end = None if seconds is None else time.monotonic() + seconds
        waiting: SimpleQueue[Fault] = SimpleQueue()
        for fault in self._catalog.faults:
            waiting.put(fault)
        with tempfile.TemporaryDirectory(prefix="faults-") as name, ThreadPoolExecutor() as pool:
            folders = [Path(name, str(number), "tree") for number in range(workers)]
            for done in [pool.submit(self._work, waiting, f, level, end) for f in folders]:
                done.result()

    def _work(
        self, waiting: SimpleQueue[Fault], folder: Path, level: str, end: float | None
    ) -> None:
        tree = Tree(self._source, folder)
        while end is None or time.monotonic() < end:
            try:
                self._try(waiting.get_nowait(), tree, level)
            except Empty:
                return
            except TextLost as error:
                self.lost.append(str(error))

    def _try(self, fault: Fault, tree: Tree, level: str) -> None:
        with tree.planted(fault):  # also to find out whether it can be
            for step in LEVELS[: LEVELS.index(level) + 1]:
                if not self._results.is_answered(fault.id, step):
                    answer = self._answer(fault, tree, step)
                    self._results.add(answer)
                    print(_line(answer), flush=True)

    def _answer(self, fault: Fault, tree: Tree, level: str) -> Answer:
        began, tests = time.monotonic(), 0
        for batch in self._chooser.batches(fault, level):
            steady = [test for test in batch.tests if test not in self._results.unsteady]
            outcome = run_tests(tree.folder, self._python, Batch(tuple(steady), batch.seconds))
            tests += outcome.tests
            if outcome.kind != "survived":
                return Answer(
                    id=fault.id,
                    level=level,
                    outcome=outcome.kind,
                    by=outcome.by,
                    why=outcome.why,
                    tests=tests,
                    seconds=round(time.monotonic() - began, 1),
                    commit=self._commit,
                )
        seconds = round(time.monotonic() - began, 1)
        return Answer(
            fault.id, level, "survived", tests=tests, seconds=seconds, commit=self._commit
        )


@dataclass(frozen=True)
class BatchOutcome:
    kind: str
    tests: int = 0
    by: str = ""
    why: str = ""
    failed: tuple[str, ...] = ()


def run_tests(tree: Path, python: Path, batch: Batch, stops: bool = True) -> BatchOutcome:
    """One call of pytest. Without `stops`, all of them are run."""
    if not batch.tests:
        return BatchOutcome("survived")
    limit_s = START_S + PATIENCE * batch.seconds
    with tempfile.TemporaryDirectory(prefix="faults-run-") as name:
        tests, note, log = (Path(name, each) for each in ("tests.json", "note.jsonl", "log.txt"))
        tests.write_text(json.dumps(batch.tests), encoding="utf-8")
        files = dict.fromkeys(test.partition("::")[0] for test in batch.tests)
        paths = filter(None, (str(tree), os.environ.get("PYTHONPATH")))
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTEST_TIMEOUT": str(LONGEST_TEST_S),
            picked.TESTS: str(tests),
            picked.NOTE: str(note),
        }
        command = [
            *(str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", PLUGIN),
            *("-p", "no:xdist", f"--rootdir={tree}", *(["-x"] if stops else [])),
            *(str(tree / file) for file in files),
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=tree,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        noted = note.read_text(encoding="utf-8").splitlines() if note.is_file() else []
        said = log.read_text(encoding="utf-8", errors="replace")
    return _judged(code, [json.loads(line) for line in noted], said, limit_s)


def _judged(
    code: int | None, notes: list[dict[str, object]], said: str, limit_s: float
) -> BatchOutcome:
    failed = [str(each["test"]) for each in notes if each["failed"]]
    why = next((str(each["why"]) for each in notes if each["failed"]), "")
    by = failed[0] if failed else ""
    last = str(notes[-1]["test"]) if notes else ""
    if code is None:
        after = f"behind {last}" if last else "at the start"
        return BatchOutcome("timed out", len(notes), by or last, f"{after}, {limit_s:.0f} s")
    if code in (0, 5):
        return BatchOutcome("survived", len(notes))
    if failed:
        return BatchOutcome("caught", len(notes), by, why, tuple(failed))
    if code < 0:
        return BatchOutcome("caught", len(notes), last, f"the tests were killed by signal {-code}")
    if "while loading conftest" in said:
        return BatchOutcome("caught", 0, "conftest.py", said.strip().rpartition("\n")[2][-300:])
    return BatchOutcome("error", len(notes), by, f"exit code {code}: {said.strip()[-300:]}")


def confirm(source: Path, python: Path, results: Results) -> str:
    """Run the tests that have caught something in a tree without a fault: what fails there proves
    nothing, and its answers are withdrawn."""
    caught = {a.by for a in results.answers if a.outcome in CAUGHT and "::" in a.by}
    tests = sorted(caught - results.unsteady)
    failed: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        tree = Tree(source.resolve(), Path(name, "tree"))
        batch = Batch(tuple(tests), 20.0 * len(tests))
        outcome = run_tests(tree.folder, python.absolute(), batch, stops=False)
        failed.update(outcome.failed)
    if outcome.kind == "error":
        return f"the tests could not be run: {outcome.why}"
    if failed:
        results.add_unsteady(failed)
    return f"{len(tests)} tests have caught faults; without one, {len(failed)} of them fail"


def _commit_of(tree: Path) -> str:
    found = subprocess.run(
        ["git", "-C", str(tree), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip()


def _line(answer: Answer) -> str:
    by = f" by {answer.by}" if answer.by else ""
    return f"{answer.outcome:9} {answer.seconds:6.1f} s  {answer.id}{by}"
