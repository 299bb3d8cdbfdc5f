"""A fleet on this machine: runners as processes, and a supervisor that outlives the terminal.

Everything is in one folder of the user's state: the supervisor's lock and log, and a folder per
runner with its order, its state and the lock that its keeper holds. What is there tells a new
supervisor which runners there are; no file holds a secret.
`python -m edgeloop.operate.fleet.local NAME` is the supervisor.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeloop._util.files import is_locked, try_lock, wait_for_lock, write_atomic
from edgeloop._util.processes import last_line, reaped, start_detached
from edgeloop._util.redact import redact
from edgeloop._util.system import available_cpus, python_module
from edgeloop.errors import BadInput, ComputeUnavailable, EdgeloopError
from edgeloop.operate.fleet.keeper import (
    ALIVE,
    DRAIN,
    KILL,
    ORDER,
    ORPHAN_S,
    STATE,
    SUPERVISOR_LOCK,
)
from edgeloop.operate.fleet.launcher import Launcher, RunnerOrder, RunnerState, StartedSupervisor
from edgeloop.operate.fleet.records import FleetRecord
from edgeloop.operate.fleet.supervisor import supervise
from edgeloop.settings import Settings, state_folder, whole_environment
from edgeloop.store.location import location_text

MOST_LOGS = 50
_LOOK_FOR_BOARDS_S = 10.0
_LOOK_FOR_TOOLCHAINS_S = 60.0
_LOCK_S = 10.0  # keepers hold the lock for moments, when they check whether it is held
_LARGEST_LOG_BYTES = 2_000_000


def fleet_folder(settings: Settings, name: str) -> Path:
    """Of this machine, for one fleet of one store."""
    store = hashlib.blake2b(str(settings.location).encode(), digest_size=6).hexdigest()
    return state_folder() / "fleet" / socket.gethostname() / f"{name}-{store}"


def is_supervised(settings: Settings, name: str) -> bool:
    """Whether this machine has a supervisor of that fleet; certain, unlike its last beat."""
    folder = fleet_folder(settings, name)
    return folder.is_dir() and is_locked(folder / SUPERVISOR_LOCK)


def start_supervisor(settings: Settings, record: FleetRecord) -> StartedSupervisor:
    """In a session of its own, so that the terminal may close; in the project's folder, so that
    runners have its settings."""
    folder = fleet_folder(settings, record.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        log = folder / "supervisor.log"
        if log.is_file() and log.stat().st_size > _LARGEST_LOG_BYTES:
            log.replace(log.with_suffix(".old.log"))
        before = log.stat().st_size if log.is_file() else 0
        process = start_detached(
            python_module("edgeloop.operate.fleet.local", record.name),
            {**whole_environment(), "EDGELOOP_STORE": location_text(settings.location)},
            log,
            cwd=settings.project,
        )
    except OSError as error:
        reason = f"{folder}: {error.strerror or error}"
        raise ComputeUnavailable(compute="local", reason=reason) from None

    def failure() -> str:
        if process.poll() is None:
            return ""
        said = last_line(log, before).removeprefix("edgeloop: ") or f"see {log}"
        return f"the supervisor ended with exit code {process.returncode}: {said}"

    return StartedSupervisor(f"process {process.pid} on {socket.gethostname()}, {log}", failure)


class LocalLauncher(Launcher):
    """Runners as processes of this machine, each with its keeper."""

    def __init__(self, folder: Path, settings: Settings, orphan_s: float = ORPHAN_S) -> None:
        self._runners, self._logs = folder / "runners", folder / "logs"
        self._settings, self._orphan_s = settings, orphan_s
        self._started: list[subprocess.Popen[bytes]] = []
        self._boards: tuple[str, ...] = ()
        self._looked_at = -_LOOK_FOR_BOARDS_S
        self._toolchains: tuple[str, ...] = ()
        self._checked_at = -_LOOK_FOR_TOOLCHAINS_S
        self._runners.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(exist_ok=True)

    def start(self, order: RunnerOrder) -> None:
        folder = self._runners / order.id
        try:
            folder.mkdir()
        except FileExistsError:
            return
        except OSError as error:
            raise self._unavailable(folder, error) from None
        lock = try_lock(folder / ALIVE)
        if lock is None:
            return
        try:
            write_atomic(folder / ORDER, order.to_json())
            log = self._logs / f"{order.id}.log"
            words = [str(folder), str(log), str(self._orphan_s)]
            process = start_detached(
                python_module("edgeloop.operate.fleet.keeper", *words),
                whole_environment(),
                log,
                cwd=self._settings.project,
                lock=lock,
            )
            self._started.append(process)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise self._unavailable(folder, error) from None
        finally:
            os.close(lock)  # the keeper has it now

    def states(self) -> Mapping[str, RunnerState]:
        self._started = reaped(self._started)
        states: dict[str, RunnerState] = {}
        for folder in self._folders():
            if is_locked(folder / ALIVE):
                state = self._told(folder).get("state", "waiting")
                draining = (folder / DRAIN).exists() or (folder / KILL).exists()
                states[folder.name] = "draining" if draining and state != "ended" else state
            else:
                self._forget(folder)
        return states

    def orders(self) -> Mapping[str, RunnerOrder]:
        orders = {}
        for folder in self._folders():
            with contextlib.suppress(OSError, ValueError, TypeError):
                text = (folder / ORDER).read_text(encoding="utf-8")
                orders[folder.name] = RunnerOrder.from_json(text)
        return orders

    def drain(self, runner: str) -> None:
        self._tell(runner, DRAIN)

    def kill(self, runner: str) -> None:
        self._tell(runner, KILL)

    def devices(self) -> Sequence[str]:
        """Boards that are plugged in."""
        if time.monotonic() - self._looked_at >= _LOOK_FOR_BOARDS_S:
            from edgeloop.platforms import is_board, list_devices

            self._looked_at = time.monotonic()
            self._boards = tuple(
                listed.device
                for listed in list_devices(self._settings)
                if listed.is_attached and is_board(listed.device)
            )
        return self._boards

    def places(self, cpus: int) -> int:
        return max(1, available_cpus() // cpus)

    def toolchains(self) -> Collection[str]:
        """What is installed here; more may be installed later."""
        if time.monotonic() - self._checked_at >= _LOOK_FOR_TOOLCHAINS_S:
            self._checked_at = time.monotonic()
            self._toolchains = tuple(_installed_toolchains(self._settings))
        return self._toolchains

    def notes(self) -> Mapping[str, str]:
        notes = {folder.name: str(self._told(folder).get("note", "")) for folder in self._folders()}
        return {runner: note for runner, note in notes.items() if note}

    def close(self) -> None:
        """Keepers and runners go on."""

    def _folders(self) -> list[Path]:
        return sorted(folder for folder in self._runners.iterdir() if folder.is_dir())

    def _told(self, folder: Path) -> dict[str, Any]:
        """What the keeper says; nothing before it has begun."""
        try:
            told = json.loads((folder / STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}

    def _tell(self, runner: str, what: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._runners / runner / what).touch()

    def _forget(self, folder: Path) -> None:
        """What is over, and the oldest of many logs."""
        shutil.rmtree(folder, ignore_errors=True)
        logs = sorted(self._logs.glob("*.log"), key=lambda file: file.stat().st_mtime)
        for log in logs[:-MOST_LOGS]:
            log.unlink(missing_ok=True)

    def _unavailable(self, folder: Path, error: OSError) -> ComputeUnavailable:
        reason = f"{folder}: {error.strerror or error}"
        return ComputeUnavailable(compute="local", reason=reason)


def _installed_toolchains(settings: Settings) -> Iterator[str]:
    from edgeloop.platforms import platforms

    for platform in platforms():
        if platform.has_toolchain:
            with contextlib.suppress(EdgeloopError):
                platform.check_toolchain(settings)
                yield platform.name


def main() -> None:
    """The supervisor. SIGTERM ends it and leaves its runners to a successor for a while."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run_supervisor(Settings.load(), sys.argv[1], stop)
    except EdgeloopError as error:
        sys.exit(f"edgeloop: {redact(str(error))}")


def run_supervisor(settings: Settings, name: str, stop: threading.Event) -> None:
    folder = fleet_folder(settings, name)
    lock = _locked(folder / SUPERVISOR_LOCK)
    try:
        supervise(
            settings,
            name,
            lambda _: LocalLauncher(folder, settings),
            where=f"process {os.getpid()} on {socket.gethostname()}",
            stop=stop,
            is_alone=True,
            tell=_tell,
        )
    finally:
        os.close(lock)


def _locked(path: Path) -> int:
    lock = wait_for_lock(path, _LOCK_S)
    if lock is None:
        raise BadInput(reason="this machine has a supervisor of that fleet already")
    return lock


def _tell(line: str) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    sys.stderr.write(f"{stamp} {redact(line)}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
