"""The interpreter a command runs in: the node's own, or one built once from the job's file.

An environment is named by the hash of what it is made of and lies in the node's cache; its marker
comes last, so one that was cut off half-way is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgeloop.errors import BadInput
from edgeloop.jobs.protocol.ticket import Ticket
from edgeloop.jobs.wrapper.environment import Surroundings
from edgeloop.jobs.wrapper.log import Log
from edgeloop.store import check_blob_key

_READY = ".ready"
_LOCK_POLL_S = 0.5
# A file that names others (-r, -e, a path): its own text does not tell what it leads to.
_NAMES_OTHERS = re.compile(rb"(?m)^\s*(-[rce]|--requirement|--constraint|--editable|\.|/)|file:")


@dataclass(frozen=True)
class Interpreter:
    """What a leading `python` means, and what is first on PATH for programs it starts."""

    python: str
    folder: str | None = None
    prefix: str | None = None

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        changes = {}
        if self.folder is not None:
            path = inherited.get("PATH", os.defpath)
            changes["PATH"] = f"{self.folder}{os.pathsep}{path}"
        if self.prefix is not None:
            changes["VIRTUAL_ENV"] = self.prefix
        return changes


@dataclass(frozen=True)
class Builder:
    """Makes the interpreter for one job; `variables` are those that the command will see."""

    here: Surroundings
    work: Path
    log: Log
    log_file: Path
    limit_s: float
    variables: Mapping[str, str] = field(repr=False)

    def interpreter(self, ticket: Ticket) -> Interpreter:
        kind = ticket.environment.kind
        if kind in ("here", "image"):  # an image was started by whoever started us
            return self._own()
        content = self._file(ticket).read_bytes()
        target = self.here.cache / "envs" / self._name(kind, content, ticket.code)
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._turn(target.with_suffix(".lock")):
            if not (target / _READY).is_file():
                shutil.rmtree(target, ignore_errors=True)
                self._build(kind, self._file(ticket), target)
                (target / _READY).touch()
        bin_folder = target / "bin"
        return Interpreter(str(bin_folder / "python"), str(bin_folder), str(target))

    def _own(self) -> Interpreter:
        if self.here.python is None:
            return Interpreter(sys.executable)
        return Interpreter(self.here.python, str(Path(self.here.python).parent))

    def _file(self, ticket: Ticket) -> Path:
        name = check_blob_key(ticket.environment.file)
        if not (self.work / name).is_file():
            raise BadInput(reason=f"The environment's file {name} is not in the job's code")
        return self.work / name

    def _name(self, kind: str, content: bytes, code: str) -> str:
        digest = hashlib.blake2b(content, digest_size=16)
        for part in (kind, platform.python_version(), platform.machine(), self._own().python):
            digest.update(b"\0" + part.encode())
        if kind == "requirements" and _NAMES_OTHERS.search(content):
            digest.update(code.encode())
        return digest.hexdigest()

    @contextlib.contextmanager
    def _turn(self, lock: Path) -> Iterator[None]:
        """Jobs that need the same environment at once build it once; the others wait."""
        deadline = time.monotonic() + self.limit_s
        with lock.open("ab") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        reason = "Another job has been building the same environment for too long"
                        raise BadInput(reason=reason) from None
                    time.sleep(_LOCK_POLL_S)
            yield

    def _build(self, kind: str, file: Path, target: Path) -> None:
        self.log.say(f"building an environment from {file.name}")
        if kind == "requirements":
            self._run([self._own().python, "-m", "venv", str(target)], file.name)
            pip = [str(target / "bin/python"), "-m", "pip", "install", "--no-input"]
            quiet = ["--disable-pip-version-check", "--progress-bar", "off"]
            self._run([*pip, *quiet, "-r", str(file)], file.name)
            return
        self._run(self._conda(file, target), file.name)
        if not (target / "bin/python").exists():
            raise BadInput(reason=f"{file.name} makes an environment without Python: add python")

    def _conda(self, file: Path, target: Path) -> list[str]:
        path = self.variables.get("PATH")
        for name in ("micromamba", "mamba", "conda"):
            program = shutil.which(name, path=path)
            if program is not None:
                verb = ["create", "-y"] if name == "micromamba" else ["env", "create"]
                return [program, *verb, "-p", str(target), "-f", str(file)]
        raise BadInput(
            reason="This node has no conda, mamba or micromamba on its PATH: install one there, "
            "or give the job a requirements file"
        )

    def _run(self, command: Sequence[str], what: str) -> None:
        start = self.log.size()
        with self.log_file.open("ab") as log:
            try:
                done = subprocess.run(  # noqa: S603
                    command,
                    cwd=self.work,
                    env=dict(self.variables),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=self.limit_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                reason = f"The environment of {what} was not built after {self.limit_s:g} s"
                raise BadInput(reason=reason) from None
            except OSError as error:
                reason = f"The environment of {what} was not built: {error.strerror}: {command[0]}"
                raise BadInput(reason=reason) from None
        if done.returncode != 0:
            word = _last_word(self.log.tail(start))
            raise BadInput(reason=f"The environment of {what} was not built: {word}")


def _last_word(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it said nothing"])[-1]
