"""What the nemesis does, each kind a small class: `strike` begins it, waits, and ends it again."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from tests.nemesis.arena import MARGIN_S, Arena, Slot
from tests.peers.azurite import Azurite
from tests.peers.postgres import Postgres

YEAR_S = 365 * 86_400.0
JUMPS_S = (-YEAR_S, -3_600.0, -120.0, 120.0, 3_600.0, YEAR_S)
DESCRIPTORS = 65_536


class Fault(ABC):
    """`stores`: the kinds of store that it can happen to."""

    name: str
    stores: tuple[str, ...] = ("sqlite", "postgresql", "azurite")

    @abstractmethod
    def strike(self, arena: Arena, dice: random.Random) -> None: ...


class Kill(Fault):
    name = "kill"

    def strike(self, arena: Arena, dice: random.Random) -> None:
        with one_of(arena, dice) as slot:
            arena.kill(slot)
            arena.start(slot)


class Freeze(Fault):
    """A lid that is closed for longer than a lease lasts; it opens while others have taken over."""

    name = "freeze"

    def strike(self, arena: Arena, dice: random.Random) -> None:
        with one_of(arena, dice) as slot:
            os.kill(slot.pid, signal.SIGSTOP)
            time.sleep(arena.plan.lease_s * dice.uniform(1.0, 2.0) + MARGIN_S)
            os.kill(slot.pid, signal.SIGCONT)


class Restart(Fault):
    """PostgreSQL is killed. Azurite is told to stop: it keeps its tables in memory and writes them
    when it ends, so killing it would test Azurite's durability, which it does not promise."""

    name = "restart"
    stores = ("postgresql", "azurite")

    def strike(self, arena: Arena, dice: random.Random) -> None:
        assert arena.server is not None
        if isinstance(arena.server, Postgres):
            arena.server.kill()
        else:
            arena.server.stop()
        arena.server.start()


class Terminate(Fault):
    """An administrator, or a pooler, ends sessions, some of them in the middle of a statement."""

    name = "terminate"
    stores = ("postgresql",)

    def strike(self, arena: Arena, dice: random.Random) -> None:
        with suppress(psycopg.Error), _session(arena) as session:
            for _ in range(10):
                session.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> "
                    "pg_backend_pid() AND backend_type = 'client backend' AND random() < 0.5"
                )
                time.sleep(0.1)


class Exhaust(Fault):
    """Somebody else takes all connections of the server, and sessions that end cannot return."""

    name = "exhaust"
    stores = ("postgresql",)

    def strike(self, arena: Arena, dice: random.Random) -> None:
        taken: list[psycopg.Connection] = []
        deadline = time.monotonic() + arena.plan.lease_s
        with contextlib.ExitStack() as held:
            while time.monotonic() < deadline:
                try:
                    taken.append(held.enter_context(_session(arena)))
                except psycopg.Error:  # all are taken
                    with suppress(psycopg.Error, IndexError):
                        taken[0].execute(
                            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
                            "application_name <> 'nemesis' AND backend_type = 'client backend'"
                        )
                    time.sleep(0.1)


class Block(Fault):
    """A session that began a transaction and went to lunch: it holds rows, or the whole table."""

    name = "block"
    stores = ("sqlite", "postgresql")

    def strike(self, arena: Arena, dice: random.Random) -> None:
        seconds = arena.plan.lease_s * dice.uniform(0.5, 2.0)
        if arena.plan.kind == "sqlite":
            with suppress(sqlite3.Error):
                session = sqlite3.connect(arena.disk / "store" / "store.db", isolation_level=None)
                with contextlib.closing(session):
                    session.execute("BEGIN IMMEDIATE")
                    time.sleep(seconds)
            return
        with suppress(psycopg.Error), _session(arena) as session, session.transaction():
            table = _table(session)
            if dice.random() < 0.5:
                session.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            else:
                session.execute(f"SELECT * FROM {table} FOR UPDATE")
            time.sleep(seconds)


class ClockJump(Fault):
    """One machine's clock is minutes to a year wrong for a while, forwards or backwards."""

    name = "clock"

    def strike(self, arena: Arena, dice: random.Random) -> None:
        with one_of(arena, dice) as slot:
            arena.set_clock(slot, dice.choice(JUMPS_S))
            time.sleep(arena.plan.lease_s * dice.uniform(0.5, 1.5))
            arena.set_clock(slot, dice.uniform(-0.5, 0.5) * MARGIN_S)


class DiskFull(Fault):
    """The disk of the workers, of the files and of SQLite's database has no room for a while."""

    name = "disk"

    def strike(self, arena: Arena, dice: random.Random) -> None:
        ballast = arena.disk / "ballast"
        deadline = time.monotonic() + arena.plan.lease_s * dice.uniform(0.5, 1.5)
        try:
            with ballast.open("ab", buffering=0) as file:
                while time.monotonic() < deadline:
                    size = 1 << 20
                    while size >= 1 << 10:
                        try:
                            file.write(b"\0" * size)
                        except OSError:
                            size >>= 2
                    time.sleep(0.02)  # what others free is filled, too
        finally:
            ballast.unlink()


class Descriptors(Fault):
    """A worker may open nothing more: neither files nor connections."""

    name = "descriptors"

    def strike(self, arena: Arena, dice: random.Random) -> None:
        with one_of(arena, dice) as slot:
            arena.wait_until_up(slot)  # without its modules it could not even start
            hard = resource.prlimit(slot.pid, resource.RLIMIT_NOFILE)[1]
            open_now = len(list(Path(f"/proc/{slot.pid}/fd").iterdir()))
            resource.prlimit(slot.pid, resource.RLIMIT_NOFILE, (open_now, hard))
            time.sleep(arena.plan.lease_s * dice.uniform(0.5, 1.0))
            soft = min(DESCRIPTORS, hard)
            resource.prlimit(slot.pid, resource.RLIMIT_NOFILE, (soft, hard))


class Partition(Fault):
    """One worker is cut off, in one direction or both; what it sent arrives late, or never."""

    name = "partition"
    stores = ("postgresql", "azurite")

    def strike(self, arena: Arena, dice: random.Random) -> None:
        with one_of(arena, dice) as slot:
            directions = dice.choice([(), ("requests",), ("answers",)])
            for proxy in slot.proxies:
                proxy.hold(*directions)
            time.sleep(arena.plan.lease_s * dice.uniform(0.5, 1.5) + MARGIN_S)
            for proxy in slot.proxies:
                if dice.random() < 0.5:
                    proxy.reset()
                proxy.heal()


class Reset(Fault):
    """A firewall forgets the connections of one worker."""

    name = "reset"
    stores = ("postgresql", "azurite")

    def strike(self, arena: Arena, dice: random.Random) -> None:
        with one_of(arena, dice) as slot:
            for proxy in slot.proxies:
                proxy.reset()


class SlowNetwork(Fault):
    name = "slow"
    stores = ("postgresql", "azurite")

    def strike(self, arena: Arena, dice: random.Random) -> None:
        with one_of(arena, dice) as slot:
            for proxy in slot.proxies:
                proxy.delay(dice.uniform(0.02, 0.3))
            time.sleep(arena.plan.lease_s)
            for proxy in slot.proxies:
                proxy.heal()


class LostAnswers(Fault):
    """What a worker asked for is done, and it is not told, or told half of it."""

    name = "lost answers"
    stores = ("postgresql", "azurite")

    def strike(self, arena: Arena, dice: random.Random) -> None:
        with one_of(arena, dice) as slot:
            for proxy in slot.proxies:
                proxy.lose_answers(dice.choice([0, 0, 1, 20, 200]))
            time.sleep(arena.plan.lease_s * dice.uniform(0.3, 1.0))
            for proxy in slot.proxies:
                proxy.heal()


class Throttle(Fault):
    """The account limits requests: 'come back later', to everybody."""

    name = "throttle"
    stores = ("azurite",)

    def strike(self, arena: Arena, dice: random.Random) -> None:
        seconds = arena.plan.lease_s * dice.uniform(0.5, 1.5)
        status = dice.choice([429, 503])
        for limiter in arena.limiters:
            limiter.limit(seconds, status, {"Retry-After": "1"})
        self._lead(arena, [limiter.port for limiter in arena.limiters])
        time.sleep(seconds)
        assert isinstance(arena.server, Azurite)
        self._lead(arena, [arena.server.table_port, arena.server.blob_port])

    def _lead(self, arena: Arena, ports: list[int]) -> None:
        for slot in arena.slots:
            for proxy, port in zip(slot.proxies, ports, strict=True):
                proxy.target = port
                proxy.reset()


FAULTS: tuple[Fault, ...] = (
    *(Kill(), Freeze(), Restart(), Terminate(), Exhaust(), Block(), ClockJump(), DiskFull()),
    *(Descriptors(), Partition(), Reset(), SlowNetwork(), LostAnswers(), Throttle()),
)


def faults_of(kind: str) -> list[Fault]:
    return [fault for fault in FAULTS if kind in fault.stores]


@contextmanager
def one_of(arena: Arena, dice: random.Random) -> Iterator[Slot]:
    """A worker that nobody else is doing something to."""
    slots = dice.sample(arena.slots, len(arena.slots))
    slot = next((slot for slot in slots if slot.lock.acquire(blocking=False)), None)
    if slot is None:
        slot = slots[0]
        slot.lock.acquire()
    try:
        if slot.process is None or slot.process.poll() is not None:
            arena.revive(slot)
        yield slot
    finally:
        slot.lock.release()


@contextmanager
def _session(arena: Arena) -> Iterator[psycopg.Connection]:
    assert isinstance(arena.server, Postgres)
    with psycopg.connect(
        arena.server.url, autocommit=True, connect_timeout=5, application_name="nemesis"
    ) as session:
        yield session


def _table(session: psycopg.Connection) -> str:
    found = session.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1 LIMIT 1"
    ).fetchone()
    assert found is not None
    return str(found[0])
