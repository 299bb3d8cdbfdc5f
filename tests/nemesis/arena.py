"""Where a round takes place: a store with its server, a small disk, workers, a proxy for each.

Runs inside a mount and process namespace of its own (see `driver`), so that the small disk is seen
by nobody else and everything ends with the round.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from edgeloop.testing import wait_until
from tests.nemesis.history import Clock, Writer
from tests.nemesis.worker import GAVE_UP_STARTING
from tests.peers.azurite import Azurite
from tests.peers.limiter import Limiter
from tests.peers.postgres import Postgres
from tests.peers.proxy import Proxy

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENT = "nemesis"
DISK_BYTES = 192 << 20
MARGIN_S = 0.5
BENCHMARK_RUNS = 2
MAX_ATTEMPTS = 3
START_LIMIT_S = 60.0


@dataclass(frozen=True)
class Round:
    """What a round is made of; `kind` is sqlite, postgresql or azurite."""

    kind: str
    home: str
    seconds: float
    models: int
    seed: int
    workers: int = 4
    lease_s: float = 1.0
    work_s: float = 0.05
    people_pause_s: float = 0.3
    patience_s: float = 120.0


@dataclass
class Slot:
    """One worker's place: its process, and its way to the store. `lock` is held by whoever does
    something to it."""

    number: int
    seed: int = 0
    proxies: list[Proxy] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid


class Arena:
    def __init__(self, plan: Round) -> None:
        self.plan = plan
        self.home = Path(plan.home)
        self.disk = self.home / "disk"
        self.histories = self.home / "history"
        self.project = self.home / "project"
        self.deeds: Counter[str] = Counter()
        self.ended: list[str] = []  # what workers said that ended by themselves
        self.server: Postgres | Azurite | None = None
        self.limiters: list[Limiter] = []
        self.slots = [Slot(number) for number in range(plan.workers)]
        self._opened = ExitStack()
        self._numbers = itertools.count(plan.seed * 1_000)
        self._person: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        for folder in (self.disk, self.histories, self.home / "cache"):
            folder.mkdir(parents=True, exist_ok=True)
        self._make_project()
        options = ["-o", f"size={DISK_BYTES}"]
        subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(self.disk)], check=True)
        self.history = Writer(self.histories / "driver.jsonl")
        try:
            self._open_store()
            for slot in self.slots:
                self.set_clock(slot, 0.0)
                self.start(slot)
            self._start_person()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*(slot.process for slot in self.slots), self._person):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        self._opened.close()

    def _open_store(self) -> None:
        if self.plan.kind == "postgresql":
            self.server = self._opened.enter_context(Postgres(max_connections=40))
            for slot in self.slots:
                slot.proxies = [self._opened.enter_context(Proxy(self.server.port))]
        elif self.plan.kind == "azurite":
            self.server = self._opened.enter_context(Azurite())
            ports = (self.server.table_port, self.server.blob_port)
            self.limiters = [Limiter(port) for port in ports]
            for slot in self.slots:
                slot.proxies = [self._opened.enter_context(Proxy(port)) for port in ports]

    def url(self, slot: Slot | None = None) -> str:
        """Of the store, through the proxies of a worker or directly."""
        if isinstance(self.server, Postgres):
            port = slot.proxies[0].port if slot else self.server.port
            return f"postgresql://postgres@127.0.0.1:{port}/postgres?blobs=file://{self.disk}/blobs"
        if isinstance(self.server, Azurite):
            text = self.server.connection_string
            ports = (self.server.table_port, self.server.blob_port)
            for proxy, port in zip(slot.proxies if slot else (), ports, strict=False):
                text = text.replace(f":{port}/", f":{proxy.port}/")
            return text
        return f"sqlite:{self.disk}/store"

    def environ(self, slot: Slot | None = None) -> dict[str, str]:
        name = "person" if slot is None else f"work-{slot.number}"
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "EDGELOOP_STORE": self.url(slot),
            "EDGELOOP_EXPERIMENT": EXPERIMENT,
            "EDGELOOP_CACHE": str(self.home / "cache"),
            "EDGELOOP_STATE": str(self.home / "state"),
            "NEMESIS_WORK": str(self.disk / name),
        }

    def _make_project(self) -> None:
        """Once: whoever starts while it is written would have other settings."""
        self.project.mkdir(exist_ok=True)
        (self.project / "edgeloop.yaml").write_text(
            f"lease_seconds: {self.plan.lease_s}\nclock_margin_seconds: {MARGIN_S}\n"
            f"benchmark_runs: {BENCHMARK_RUNS}\nmax_attempts: {MAX_ATTEMPTS}\n"
        )

    def start(self, slot: Slot) -> None:
        slot.seed = next(self._numbers)
        words = [str(self.histories), str(slot.number), str(slot.seed)]
        slot.process = self._process("worker", [*words, str(self.plan.work_s)], self.environ(slot))

    def wait_until_up(self, slot: Slot) -> None:
        file = self.histories / f"up-{slot.number}-{slot.seed}"
        wait_until(file.exists, START_LIMIT_S, f"worker {slot.number} to start")

    def kill(self, slot: Slot) -> None:
        """And say so: what it was about to do may have been done."""
        assert slot.process is not None
        slot.process.kill()
        slot.process.wait()
        self.history.add("killed", "", worker_slot=slot.number)

    def replace_the_dead(self) -> None:
        """A runner that cannot start, since its disk is full, is started again; one that ended for
        another reason should not have."""
        for slot in self.slots:
            with slot.lock:
                self.revive(slot)

    def revive(self, slot: Slot) -> None:
        code = slot.process.poll() if slot.process else None
        if code is None:
            return
        if code != GAVE_UP_STARTING:
            self.ended.append(f"worker {slot.number} ended by itself with code {code}")
        self.history.add("killed", "", worker_slot=slot.number)
        self.start(slot)

    def set_clock(self, slot: Slot, offset_s: float) -> None:
        Clock.set(self.histories / f"clock-{slot.number}", offset_s)

    def _start_person(self) -> None:
        plan = self.plan
        words = [str(self.histories), str(plan.models), str(plan.seed), str(plan.people_pause_s)]
        self._person = self._process("person", words, self.environ())

    def dismiss_person(self, patience_s: float) -> None:
        assert self._person is not None
        (self.histories / "people-stop").touch()
        code = self._person.wait(patience_s)
        if code:
            self.ended.append(f"the person ended by itself with code {code}")

    def _process(
        self, module: str, words: list[str], environ: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.home / "errors.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", f"tests.nemesis.{module}", *words],
                cwd=self.project,
                env=environ,
                stderr=log,
            )
