"""Jobs run by the real wrapper, as a compute would start it: the bundle, in its own process."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeloop.errors import BlobMissing
from edgeloop.jobs.bundle import bundle
from edgeloop.node.ticket import (
    CodeDigest,
    JobProgress,
    Pace,
    Ticket,
    WrapperOrder,
    code_key,
    content_digest,
    kept_folder,
    log_key,
    outputs_folder,
    state_key,
    ticket_key,
)
from edgeloop.store import Blobs
from tests.peers.environments import INTERPRETERS
from tests.peers.process import MissingComponent, wait_until

BRISK = Pace(log_s=0.1, outputs_s=0.1, heartbeat_s=0.5, patience_s=60)
LIMIT_S = 120.0


def python_of(version: str) -> str:
    """A Python as a bare node has it: `here` is the one that the tests' environment was made with,
    and others are installed beside it with their standard library alone."""
    if version == "here":
        return os.path.realpath(sys.executable)
    python = INTERPRETERS / version / f"usr/bin/python{version}"
    if not python.is_file():
        raise MissingComponent(f"Python {version}")
    return str(python)


@dataclass
class Wrapped:
    """One job on one node: a store, a cache, and the wrapper's file."""

    blobs: Blobs
    folder: Path
    job: str = field(default_factory=lambda: f"job-{secrets.token_hex(6)}")
    pace: Pace = BRISK
    variables: dict[str, str] = field(default_factory=dict)
    python: str = field(default_factory=lambda: python_of("here"))

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def scratch(self) -> Path:
        return self.cache / "jobs" / self.job

    @property
    def outputs(self) -> Path:
        return self.scratch / "work/outputs"

    def order(self, command: Sequence[str], code: Mapping[str, str] | None = None, **more: Any):
        """Write the ticket; `code` are files of the snapshot by their names."""
        digest = self._store_code(code or {})
        defaults: dict[str, Any] = {"name": "test", "experiment": "default", "grace_s": 5.0}
        ticket = Ticket(id=self.job, command=tuple(command), code=digest, **{**defaults, **more})
        self.blobs.put(ticket_key(self.job), ticket.to_json())

    def order_script(self, script: str, *arguments: str, **more: Any) -> None:
        self.order(["python", "script.py", *arguments], {"script.py": script}, **more)

    def environ(self) -> dict[str, str]:
        handover = WrapperOrder(self.job, "_wrapper/x.pyz", self.blobs.access(3600), self.pace)
        own = {"EDGELOOP_CACHE": str(self.cache), **handover.to_variables()}
        return {**os.environ, **own, **self.variables}

    def start(self, before: Sequence[str] = (), **options: Any) -> subprocess.Popen[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True)
        wrapper = self.folder / "wrapper.pyz"
        wrapper.write_bytes(bundle())
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
        return subprocess.Popen(
            [*before, self.python, str(wrapper)],
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **options,
        )

    def run(self, **options: Any) -> tuple[int, str]:
        """To its end; the launcher's exit code and what it showed."""
        with self.start(**options) as launcher:
            shown, _ = launcher.communicate(timeout=LIMIT_S)
        return launcher.returncode, (shown or b"").decode()

    @contextlib.contextmanager
    def running(self, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Started; whatever a test does, nothing of it is left behind."""
        launcher = self.start(**options)
        try:
            yield launcher
        finally:
            launcher.kill()
            launcher.wait()
            if launcher.stdout is not None:
                launcher.stdout.close()
            wait_until(lambda: not self.processes(), LIMIT_S, "the job to end")

    def progress(self) -> JobProgress | None:
        try:
            return JobProgress.from_json(self.blobs.read(state_key(self.job)))
        except BlobMissing:
            return None

    def final(self) -> JobProgress:
        """The last word; raises where there is none yet."""
        wait_until(self._is_over, LIMIT_S, "the job's final state")
        progress = self.progress()
        assert progress is not None
        return progress

    def stored(self) -> dict[str, bytes]:
        return self._files(outputs_folder(self.job))

    def kept(self) -> dict[str, bytes]:
        return self._files(kept_folder(self.job))

    def _files(self, folder: str) -> dict[str, bytes]:
        keys = [info.key for info in self.blobs.list(folder)]
        return {key.removeprefix(folder): self.blobs.read(key) for key in keys}

    def log(self) -> str:
        keys = sorted(info.key for info in self.blobs.list(log_key(self.job, 0)[:-8]))
        return b"".join(self.blobs.read(key) for key in keys).decode(errors="replace")

    def wait_for_output(self, name: str, content: bytes | None = None) -> None:
        def is_there() -> bool:
            found = self.stored().get(name)
            return found is not None and (content is None or found == content)

        wait_until(is_there, LIMIT_S, f"outputs/{name} in the store")

    def wait_for_file(self, name: str) -> Path:
        """On the node, which is how a script of a test says that it got somewhere."""
        wait_until((self.outputs / name).exists, LIMIT_S, f"outputs/{name}")
        return self.outputs / name

    def supervisor(self) -> int:
        """The process that holds the lock of the scratch folder."""
        status = (self.scratch / "lock").stat()
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            if place in line and "FLOCK" in line:
                return int(line.split()[4])
        raise AssertionError("nobody holds the job's lock")

    def processes(self) -> list[int]:
        """All that was started for this job's command and still runs."""
        return running_with(f"EDGELOOP_JOB_ID={self.job}")

    def _is_over(self) -> bool:
        progress = self.progress()
        return progress is not None and progress.ended is not None

    def _store_code(self, files: Mapping[str, str]) -> str:
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w:gz") as archive:
            for name, text in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(text.encode()), 0o755
                archive.addfile(entry, io.BytesIO(text.encode()))
        total = CodeDigest()
        for name, text in files.items():
            total.add(name, content_digest(text.encode()), executable=True)
        self.blobs.put(code_key(total.hexdigest()), target.getvalue())
        return total.hexdigest()


def running_with(variable: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and variable.encode() in _variables(entry):
                found.append(int(entry.name))
    return found


def _variables(process: Path) -> list[bytes]:
    if ") Z" in (process / "stat").read_text():
        return []
    return (process / "environ").read_bytes().split(b"\0")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
