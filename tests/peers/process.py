"""A server that is a process of ours."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from edgeloop.testing import wait_until
from tests import guard

START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0


class MissingComponent(RuntimeError):
    """A test server is not installed: never a reason to skip."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not installed: 'make setup' installs it")


class ServerProcess(ABC):
    """A process in a group of its own, with a folder of its own that outlives restarts. Both end
    with the test process, even if that is killed (see tests/guard.py)."""

    name: str
    graceful_signal = signal.SIGTERM

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=guard.folder_prefix(self.name)))
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def is_ready(self) -> bool: ...

    def environ(self) -> Mapping[str, str]:
        return os.environ

    def popen_options(self) -> dict[str, Any]:
        return {}

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        if self.is_running:
            return self
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                env={**self.environ(), **guard.mark()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self.popen_options(),
            )
        try:
            wait_until(self._ready_or_dead, START_LIMIT_S, f"{self.name} to start")
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Ask it to end; what it was told before is kept."""
        if self._process is None:
            return
        self._process.send_signal(self.graceful_signal)
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"{self.name} did not stop when asked to; it was killed") from None
        self._process = None

    def kill(self) -> None:
        """As a power cut would."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def close(self) -> None:
        """At once, and with all that it has kept."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    def _ready_or_dead(self) -> bool:
        if not self.is_running:
            said = self._log.read_text(errors="replace")[-2_000:]
            raise RuntimeError(f"{self.name} ended while it was starting:\n{said}")
        return self.is_ready()


def accepts_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def find_program(name: str, *elsewhere: Path) -> str:
    found = shutil.which(name) or next((str(p) for p in elsewhere if p.is_file()), None)
    if found is None:
        raise MissingComponent(name)
    return found
