"""The portal on 50,000 models, beside the plain way: a page that reads the table for each request.

Both are processes of their own, asked over HTTP. "change" is from the moment a row is written until
a listener has the event (portal), or until a page that is loaded once a second shows it (plain).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from bench.tables import markdown
from edgeloop.settings import Settings
from edgeloop.store import Table
from edgeloop.workspace import Workspace
from tests.portal.farm import rows
from tests.portal.live import Events, Live

MODELS = 50_000
PAGES = ("/", "/?sort=mean&descending=1", "/?text=heron&status=complete", "/?sort=f1_1k&page=400")
AT_ONCE = 20
REQUESTS = 200
CHANGES = 20
LIMIT_S = 120.0


def run() -> str:
    with tempfile.TemporaryDirectory(prefix="edgeloop-bench-") as folder:
        project = Path(folder)
        with Workspace(
            Settings.load(project, {}, store=f"sqlite:{project / '.edgeloop'}")
        ) as opened:
            table = opened.store.models("default")
            table.insert_many((str(row["name"]), _filled(row)) for row in rows(MODELS))
            name = "bold-heron"
            with portal(project) as (address, pid):
                ours = measure(address, pid, table, name, by_events=True)
            with plain(project) as (address, pid):
                theirs = measure(address, pid, table, name, by_events=False)
    headings = (
        f"{MODELS:,} models, SQLite",
        "table page (ms)",
        "sorted, filtered (ms)",
        f"slowest of {AT_ONCE} at once (ms)",
        "errors",
        "memory (MB)",
        f"after {REQUESTS} requests (MB)",
        "change, median (s)",
        "slowest (s)",
    )
    return markdown(headings, [("portal", *ours), ("a scan for each request", *theirs)])


def measure(
    address: str, pid: int, table: Table, name: str, *, by_events: bool
) -> tuple[object, ...]:
    with httpx.Client(base_url=address, timeout=LIMIT_S) as client:
        client.get("/").raise_for_status()
        before = memory_mb(pid)
        rounds = 5 if by_events else 1  # the plain way would take minutes
        plain_ms = [timed(client, "/") for _ in range(rounds)]
        other_ms = [timed(client, f"{page}&n={n}") for page in PAGES[1:] for n in range(rounds)]
        slowest, errors = crowd(address)
        for number in range(REQUESTS if by_events else 0):
            client.get(PAGES[number % len(PAGES)])
        delays = changes(address, client, table, name, by_events)
    return (
        f"{statistics.median(plain_ms):.0f}",
        f"{statistics.median(other_ms):.0f}",
        f"{slowest:.0f}",
        errors,
        f"{before:.0f}",
        f"{memory_mb(pid):.0f}",
        f"{statistics.median(delays):.2f}",
        f"{max(delays):.2f}",
    )


def timed(client: httpx.Client, page: str) -> float:
    began = time.perf_counter()
    client.get(page).raise_for_status()
    return 1e3 * (time.perf_counter() - began)


def crowd(address: str) -> tuple[float, int]:
    """Twenty people at once, each with another page: the slowest answer, and how many failed."""

    def ask(number: int) -> tuple[float, bool]:
        page = PAGES[number % len(PAGES)]
        began = time.perf_counter()
        try:
            is_good = httpx.get(f"{address}{page[1:]}", timeout=LIMIT_S).status_code == 200
        except httpx.HTTPError:
            is_good = False
        return 1e3 * (time.perf_counter() - began), is_good

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(ask, range(AT_ONCE)))
    return max(took for took, _ in answers), sum(not is_good for _, is_good in answers)


def changes(
    address: str, client: httpx.Client, table: Table, name: str, by_events: bool
) -> list[float]:
    events = Events(f"{address}api/v1/events") if by_events else None
    while events is not None and not events.told:
        time.sleep(0.01)
    delays = []
    for number in range(CHANGES if by_events else 3):
        seen = len(events.told) if events is not None else 0
        record = table.get(name)
        assert record is not None
        error = f"change {number}"
        began = time.perf_counter()
        table.update(record, {"error": error})
        while True:
            if events is None:
                if error in client.get("/", params={"text": name}).text:
                    break
                time.sleep(1.0)
            elif any(name in data["changed"] for _, data in events.told[seen:]):
                break
            else:
                time.sleep(0.002)
        delays.append(time.perf_counter() - began)
    return delays


def memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")


@contextmanager
def portal(project: Path) -> Iterator[tuple[str, int]]:
    running = Live(project)
    try:
        yield running.address, running.process.pid
    finally:
        running.end()


@contextmanager
def plain(project: Path) -> Iterator[tuple[str, int]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.portal_plain", str(project)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.wait()


def _filled(row: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if value is not None}
