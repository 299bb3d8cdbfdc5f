"""Files are whole or not there; locks exclude; retries end; results come in order."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeloop._util import retry as retrying
from edgeloop._util.files import file_lock, replacing, try_lock, write_atomic
from edgeloop._util.retry import delays, retry
from edgeloop._util.system import ordered_map
from edgeloop._util.values import size_text
from edgeloop.errors import Conflict, LocalFileError


@pytest.mark.parametrize("durable", [False, True])
def test_an_atomic_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path, durable: bool):
    file = tmp_path / "état.json"
    write_atomic(file, "old", durable)
    write_atomic(file, b"new", durable)
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path):
    file = tmp_path / "report.html"
    file.write_text("old")
    with pytest.raises(RuntimeError), replacing(file) as temporary:
        temporary.write_text("half of the n")
        raise RuntimeError
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_name_of_the_longest_length_can_be_written(tmp_path: Path):
    file = tmp_path / ("n" * 255)
    write_atomic(file, "x")
    assert file.read_text() == "x"


def test_a_lock_excludes_other_processes_until_it_is_released(tmp_path: Path):
    path = tmp_path / "below" / "a.lock"
    program = (
        "import sys; from pathlib import Path; from edgeloop._util.files import try_lock; "
        "sys.exit(0 if try_lock(Path(sys.argv[1])) is None else 3)"
    )
    with file_lock(path):
        held = subprocess.run([sys.executable, "-c", program, path], check=False)
        waiting = file_lock(path, timeout_s=0)
        with pytest.raises(Conflict, match=r"in use by another process for 0 s"), waiting:
            pytest.fail("locked twice")
    free = subprocess.run([sys.executable, "-c", program, path], check=False)
    assert (held.returncode, free.returncode) == (0, 3)


def test_shared_locks_go_together_and_exclude_an_exclusive_one(tmp_path: Path):
    first = try_lock(tmp_path, shared=True)
    second = try_lock(tmp_path, shared=True)
    assert first is not None
    assert second is not None
    assert try_lock(tmp_path) is None
    os.close(first)
    os.close(second)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_created_names_the_path(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalFileError, match="file"):
        try_lock(tmp_path / "file" / "a.lock")


class Ticking:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Ticking:
    """Without jitter, so that delays can be compared."""
    ticking = Ticking()
    monkeypatch.setattr(retrying, "random", SimpleNamespace(uniform=lambda _, most: most))
    time = SimpleNamespace(monotonic=lambda: ticking.now, sleep=ticking.sleep)
    monkeypatch.setattr(retrying, "time", time)
    return ticking


def test_a_retry_waits_longer_each_time_and_ends(clock: Ticking):
    calls = []

    def fail() -> None:
        calls.append(clock.now)
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        retry(fail, OSError, 10, 1, 4)
    assert clock.slept == [1, 2, 4, 3]
    assert calls == [0, 1, 3, 7, 10]


def test_a_retry_ends_after_so_many_tries_or_at_an_error_that_will_not_pass(clock: Ticking):
    calls = []

    def fail() -> None:
        calls.append(clock.now)
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        retry(fail, OSError, 100, 1, most_tries=3)
    assert calls == [0, 1, 3]
    with pytest.raises(OSError, match="away"):
        retry(fail, OSError, 100, 1, unless=lambda error: "away" in str(error))
    assert len(calls) == 4


def test_a_retry_returns_the_first_result_and_passes_other_errors_on(clock: Ticking):
    outcomes = iter([OSError("away"), "done"])

    def sometimes() -> str:
        outcome = next(outcomes)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    assert retry(sometimes, OSError, 10) == "done"
    with pytest.raises(StopIteration):
        retry(sometimes, OSError, 10)
    assert clock.slept == [0.5]


def test_delays_double_up_to_the_longest():
    some = delays(1, 5)
    assert [next(some) for _ in range(5)] == [1, 2, 4, 5, 5]


def test_results_come_in_order_and_no_more_is_in_flight_than_allowed():
    lock, running, most = threading.Lock(), 0, 0
    started: list[int] = []

    def work(item: int) -> int:
        nonlocal running, most
        with lock:
            started.append(item)
            running += 1
            most = max(most, running)
        with lock:
            running -= 1
        return item * item

    results = ordered_map(work, range(20), workers=4, ahead=4)
    assert next(results) == 0
    assert max(started) <= 4
    assert list(results) == [item * item for item in range(1, 20)]
    assert most <= 4


def test_an_error_reaches_the_consumer_and_stops_the_rest():
    def work(item: int) -> int:
        if item == 1:
            raise ValueError("one")
        return item

    results = ordered_map(work, range(1_000), workers=1, ahead=2)
    assert next(results) == 0
    with pytest.raises(ValueError, match="one"):
        next(results)


def test_an_interrupt_while_a_thread_starts_ends_nothing_before_its_work_has_ended(
    monkeypatch: pytest.MonkeyPatch,
):
    starts, may_end = threading.Event(), threading.Event()
    ended: list[int] = []

    def work(item: int) -> None:
        starts.set()
        may_end.wait(60)
        ended.append(item)

    start = threading.Thread.start

    def interrupted_start(thread: threading.Thread) -> None:
        """The executor has not noted the thread yet."""
        start(thread)
        starts.wait(60)
        monkeypatch.undo()
        threading.Timer(0.2, may_end.set).start()
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    with pytest.raises(KeyboardInterrupt):
        list(ordered_map(work, range(3), workers=2, ahead=3))
    assert ended == [0]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (12_000, "12.0 kB"), (1_500_000, "1.5 MB"), (2e12, "2,000.0 GB")],
)
def test_a_size_reads_the_same_everywhere(size: float, text: str):
    assert size_text(size) == text
