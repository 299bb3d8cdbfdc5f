"""The nemesis: kills and freezes workers, stops the server under them, and lets them finish."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from edgeloop.errors import StoreError
from edgeloop.models import default_plan
from edgeloop.store import Store, open_store, parse_location
from tests.nemesis import checker, history
from tests.nemesis.worker import BENCHMARK_RUNS

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENT = "nemesis"
FINISH_WITHIN_S = 120.0


@dataclass
class Report:
    """What the nemesis did, what the workers saw, and what should not have been possible."""

    deeds: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


@dataclass
class Nemesis:
    """`restart_server` stops the server hard and starts it again; None where there is none."""

    url: str
    folder: Path
    seconds: float
    models: int
    seed: int
    workers: int = 4
    lease_s: float = 1.0
    work_s: float = 0.05
    restart_server: Callable[[], None] | None = None

    def run(self) -> Report:
        report = Report()
        dice = random.Random(self.seed)
        store = open_store(parse_location(self.url))
        names = [f"model-{number:03d}" for number in range(self.models)]
        rows = ((name, {"name": name, "status": "new"}) for name in names)
        store.models(EXPERIMENT).insert_many(rows)
        with self._crew() as crew:
            end = time.monotonic() + self.seconds
            while time.monotonic() < end:
                self._strike(dice, crew, report.deeds)
            self._let_them_finish(store, crew)
        events = history.read(self.folder)
        plan = default_plan(BENCHMARK_RUNS)
        final = [row.values for row in store.models(EXPERIMENT).query()]
        report.seen = Counter(event.kind for event in events)
        report.violations = checker.violations(plan, final, events)
        if len(final) != self.models:
            report.violations.append(f"{len(final)} rows of {self.models} are there")
        store.close()
        return report

    @contextmanager
    def _crew(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        crew = [self._start(number) for number in range(self.workers)]
        try:
            yield crew
        finally:
            (self.folder / "stop").touch()
            for worker in crew:
                worker.send_signal(signal.SIGCONT)
                worker.kill()
                worker.wait()

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        seed = self.seed * 1000 + number
        settings = [str(seed), str(self.lease_s), str(self.work_s)]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.nemesis.worker", EXPERIMENT, str(self.folder), *settings],
            cwd=ROOT,
            env={**os.environ, "NEMESIS_STORE": self.url},
        )

    def _strike(
        self, dice: random.Random, crew: list[subprocess.Popen[bytes]], deeds: Counter[str]
    ) -> None:
        time.sleep(dice.uniform(0.1, 0.5))
        position = dice.randrange(len(crew))
        worker = crew[position]
        deed = dice.choice(["kill", "freeze", "freeze", "server"])
        if deed == "kill":
            worker.kill()
            worker.wait()
            crew[position] = self._start(len(deeds) + 100 * sum(deeds.values()) + 50)
        elif deed == "freeze":
            worker.send_signal(signal.SIGSTOP)
            time.sleep(dice.uniform(0.5, 2.0) * self.lease_s)
            worker.send_signal(signal.SIGCONT)
        elif self.restart_server is None:
            return
        else:
            self.restart_server()
        deeds[deed] += 1

    def _let_them_finish(self, store: Store, crew: list[subprocess.Popen[bytes]]) -> None:
        deadline = time.monotonic() + FINISH_WITHIN_S
        while time.monotonic() < deadline:
            assert all(worker.poll() is None for worker in crew), "a worker ended by itself"
            try:
                rows = [row.values for row in store.models(EXPERIMENT).query()]
            except StoreError:
                rows = []
            if rows and all(row.get("status") == "complete" for row in rows):
                return
            time.sleep(0.2)
