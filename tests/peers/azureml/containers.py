"""The processes of one job: as in a container, none of them outlives it."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

GRACE_S = 2.0
_POLL_S = 0.02
MARK = "AZUREML_EMULATED_CONTAINER"


def with_volumes(environ: Mapping[str, str], docker_args: str, disk: Path) -> dict[str, str]:
    """`-v HOST:INSIDE` of docker. There is no container here, so a variable that names the folder
    inside gets its place on the disk of the node instead."""
    found, words = dict(environ), shlex.split(docker_args)
    for flag, volume in pairwise(words):
        if flag in ("-v", "--volume"):
            host, inside = volume.split(":")[:2]
            place = disk / host.strip("/")
            place.mkdir(parents=True, exist_ok=True)
            found = {
                name: str(place) + value[len(inside) :] if _is_below(value, inside) else value
                for name, value in found.items()
            }
    return found


def _is_below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


@dataclass
class Process:
    """One rank: its command, its folder, its log."""

    folder: Path
    log: Path
    environ: Mapping[str, str]
    command: str
    _popen: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                ["bash", "-c", self.command],
                cwd=self.folder,
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        return self._popen.poll() if self._popen else None


class Container:
    """All ranks of a job. Whoever carries its mark in the environment belongs to it."""

    def __init__(self, mark: str, processes: list[Process]) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self.processes = processes

    def run(
        self, should_stop: Callable[[], bool], meanwhile: Callable[[], None], limit_s: float | None
    ) -> str:
        """`done`, `stopped` or `timeout`; a rank that fails ends the others."""
        deadline = time.monotonic() + limit_s if limit_s else None
        for process in self.processes:
            process.start()
        try:
            while True:
                codes = [process.exit_code for process in self.processes]
                if all(code is not None for code in codes) or any(codes):
                    return "done"
                if should_stop():
                    self._terminate(meanwhile)
                    return "stopped"
                if deadline and time.monotonic() > deadline:
                    self._terminate(meanwhile)
                    return "timeout"
                meanwhile()
                time.sleep(_POLL_S)
        finally:
            self._signal(signal.SIGKILL)
            meanwhile()

    def _terminate(self, meanwhile: Callable[[], None]) -> None:
        """Asked first, killed after a while."""
        self._signal(signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until and self._members():
            meanwhile()
            time.sleep(_POLL_S)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        for process in self.processes:
            process.exit_code  # noqa: B018 - reaps what has ended

    def _members(self) -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found
