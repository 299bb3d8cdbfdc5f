"""Where a job runs on its node: inherited variables, caches, interpreter, scratch folder and log.

An interpreter is the node's own, or built once from the job's file. A built one is named by the
hash of what it is made of and kept in the node's cache; its marker is written last, so an
incomplete one is built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgeloop._util.files import file_lock, home_folder, mark_used, wait_for_lock, write_atomic
from edgeloop._util.redact import KnownSecrets, MaskedStream, redact
from edgeloop._util.values import size_text
from edgeloop.errors import BadInput, BadName, BlobMissing, Conflict
from edgeloop.node.ticket import (
    LOG_PIECE,
    NODE_CACHE,
    ORDER_VARIABLE,
    PLACE_PREFIX,
    Ticket,
    WrapperOrder,
    log_key,
)
from edgeloop.store.base import Blobs, check_blob_key

# Left by a job that started this one; its own are set again.
_INHERITED = ("EDGELOOP_INPUT_", "EDGELOOP_OUTPUT_", "EDGELOOP_JOB_", PLACE_PREFIX)
_CREDENTIALS = ("AWS_", "AZURE_STORAGE_")
_RAY_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # a job's runtime environment, as JSON
_READY = ".ready"
# A file that refers to others (-r, -e, a path): its own text does not tell what they contain.
_REFERENCES = re.compile(rb"(?m)^\s*(-[rce]|--requirement|--constraint|--editable|\.|/)|file:")


@dataclass(frozen=True)
class NodeEnvironment:
    """A node's cache, its interpreter for commands, and the variables that commands inherit."""

    cache: Path
    python: str | None
    node: str
    variables: Mapping[str, str] = field(repr=False)
    rank: int = 0  # which of a job's nodes this is; the first reports for all
    places: Mapping[str, str] = field(default_factory=dict)  # paths of what the compute mounts
    node_cache: Path | None = None  # for data, if the other cache ends with the job

    @classmethod
    def current(cls, environ: Mapping[str, str] = os.environ) -> NodeEnvironment:
        cache = Path(environ.get("EDGELOOP_CACHE") or _cache_base(environ) / "edgeloop")
        inherited = {
            name: value if name != _RAY_CONFIG else _without_order(value)
            for name, value in environ.items()
            if name != ORDER_VARIABLE and not name.startswith(_INHERITED)
            if name == _RAY_CONFIG or ORDER_VARIABLE not in value
        }
        node = environ.get("EDGELOOP_NODE") or socket.gethostname()
        rank = environ.get("NODE_RANK") or environ.get("RANK") or "0"
        number = int(rank) if rank.isdecimal() else 0
        python = environ.get("EDGELOOP_PYTHON") or None
        places = {n: path for n, path in environ.items() if n.startswith(PLACE_PREFIX)}
        shared = _usable(environ.get(NODE_CACHE, ""))
        return cls(
            cache=cache.absolute(),
            python=python,
            node=node,
            variables=inherited,
            rank=number,
            places=places,
            node_cache=shared,
        )

    @property
    def data_cache(self) -> Path:
        return self.node_cache or self.cache


def _cache_base(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or home_folder(environ) / ".cache")


def _usable(folder: str) -> Path | None:
    """A compute may offer a folder that this user cannot write to."""
    if not folder:
        return None
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return Path(folder).absolute() if os.access(folder, os.W_OK) else None


def _without_order(value: str) -> str:
    """Ray's workers that a command starts would inherit its working folder, in which the order
    came, and may not have one of their own then."""
    try:
        config = json.loads(value)
        config["runtime_env"].pop("working_dir", None)
        config["runtime_env"].get("env_vars", {}).pop(ORDER_VARIABLE, None)
    except (ValueError, TypeError, KeyError, AttributeError):
        return ""
    return json.dumps(config)


def use_credentials(variables: Mapping[str, str]) -> None:
    """Those that the job was given for its command open its URLs too; the clients of storage
    services read them from the environment."""
    os.environ.update({n: text for n, text in variables.items() if n.startswith(_CREDENTIALS)})


def read_order(environ: Mapping[str, str] = os.environ) -> WrapperOrder:
    return WrapperOrder.from_variables(environ)


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
class EnvironmentBuilder:
    """Provides the interpreter for one job; `variables` are those that the command will see."""

    here: NodeEnvironment
    work: Path
    log: JobLog
    log_file: Path
    limit_s: float
    variables: Mapping[str, str] = field(repr=False)

    def interpreter(self, ticket: Ticket) -> Interpreter:
        kind = ticket.environment.kind
        if kind in ("here", "image"):  # an image was started by the compute
            return self._own()
        name = check_blob_key(ticket.environment.file)
        file = self.work / name
        if not file.is_file():
            raise BadInput(reason=f"The environment's file {name} is not in the job's code")
        target = self.here.cache / "envs" / self._name(kind, file.read_bytes(), ticket.code)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:  # jobs that need the same environment at once build it once
            with file_lock(target.with_suffix(".lock"), timeout_s=self.limit_s):
                if not (target / _READY).is_file():
                    shutil.rmtree(target, ignore_errors=True)
                    self._build(kind, file, target)
                    (target / _READY).touch()
                mark_used(target / _READY)
        except Conflict:
            reason = "Another job has been building the same environment for too long"
            raise BadInput(reason=reason) from None
        bin_folder = target / "bin"
        return Interpreter(str(bin_folder / "python"), str(bin_folder), str(target))

    def _own(self) -> Interpreter:
        if self.here.python is None:
            return Interpreter(sys.executable)
        return Interpreter(self.here.python, str(Path(self.here.python).parent))

    def _name(self, kind: str, content: bytes, code: str) -> str:
        digest = hashlib.blake2b(content, digest_size=16)
        for part in (kind, platform.python_version(), platform.machine(), self._own().python):
            digest.update(b"\0" + part.encode())
        if kind == "requirements" and _REFERENCES.search(content):
            digest.update(code.encode())
        return digest.hexdigest()

    def _build(self, kind: str, file: Path, target: Path) -> None:
        self.log.write(f"building an environment from {file.name}")
        if kind == "requirements":
            self._run([self._own().python, "-I", "-m", "venv", str(target)], file.name)
            pip = [str(target / "bin/python"), "-I", "-m", "pip", "install", "--no-input"]
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
            lines = [line.strip() for line in self.log.tail(start).splitlines() if line.strip()]
            errors = [line[len("ERROR:") :].strip() for line in lines if line.startswith("ERROR:")]
            cause = (errors or lines or ["it printed nothing"])[-1]
            if "'ensurepip'" in cause:  # venv's last line names only the command that failed
                cause = (
                    "the node's Python has no ensurepip: install python3-venv there, or use an "
                    "image that has it"
                )
            raise BadInput(reason=f"The environment of {what} was not built: {cause}")


# A job's folder on its node, with everything needed to finish it if all processes die; and its
# log.
#
# The command writes to the log file directly. There is no pipe in between, so neither a slow store
# nor a blocked terminal can delay the command, and nothing is lost when the wrapper is killed.


_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NOTE = "keeper.json"  # the name since the first version
_REMEMBERED = 64
_OWN = "edgeloop:"
_LONGEST_LINE = 300
_READ_BYTES = 1 << 16
_RESERVE_BYTES = 2 << 20  # room for the last lines of the log, and for the state in a folder
_ALMOST_NOTHING_BYTES = 1 << 20


def check_job_id(job: str) -> str:
    """It becomes part of paths."""
    if not _ID.fullmatch(job):
        raise BadName(what="job", name=job, reason="it must be letters, digits and ._-")
    return job


@dataclass(frozen=True)
class Scratch:
    """`work/` is the command's folder; the rest beside it is the wrapper's."""

    folder: Path

    @classmethod
    def of(cls, cache: Path, job: str, rank: int = 0) -> Scratch:
        """Several nodes may share a disk: each has a folder of its own."""
        check_job_id(job)
        return cls(cache / "ranks" / str(rank) / job if rank else cache / "jobs" / job)

    @property
    def job(self) -> str:
        return self.folder.name

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def outputs(self) -> Path:
        return self.work / "outputs"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets.json"

    @property
    def library(self) -> Path:
        """Where a script finds `edgeloop.paths`."""
        return self.folder / "library"

    @property
    def before(self) -> Path:
        """The files that were in `work/` before the command started."""
        return self.folder / "before.json"

    @property
    def code(self) -> Path:
        return self.folder / "code.tar.gz"

    @property
    def _reserve(self) -> Path:
        return self.folder / "reserve"

    def create(self) -> None:
        """Only the owner may read logs and outputs. Some of the disk is reserved, so that the end
        of a job that fills it can still be reported."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self.log.touch()
        self._reserve.write_bytes(os.urandom(_RESERVE_BYTES))  # not zeros: disks may compress

    def release_reserve(self) -> None:
        """For the last lines of the log, when the command can no longer take the space."""
        with contextlib.suppress(OSError):
            self._reserve.unlink()

    def full_disk(self) -> str:
        """A sentence if the disk of the job's folder is full, else nothing."""
        try:
            disk = shutil.disk_usage(self.folder)
        except OSError:
            return ""
        if disk.free >= _ALMOST_NOTHING_BYTES:
            return ""
        return f"the disk of {self.folder} is full ({size_text(disk.total)})"

    @contextlib.contextmanager
    def locked(self, wait_s: float = 0.0) -> Iterator[bool]:
        """Whether this is the only supervisor; the lock is released when its process ends."""
        lock = wait_for_lock(self.folder / "lock", wait_s)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)

    def write_note(self, note: SupervisorNote) -> None:
        """On a full disk there is none. `recover` then finds the command by its environment."""
        with contextlib.suppress(OSError):
            write_atomic(self.folder / _NOTE, json.dumps(note.__dict__))

    def read_note(self) -> SupervisorNote:
        try:
            return SupervisorNote(**json.loads((self.folder / _NOTE).read_text()))
        except (OSError, ValueError, TypeError):
            return SupervisorNote(node=os.uname().nodename)


@dataclass(frozen=True)
class SupervisorNote:
    """What is needed to recover the job of a supervisor that died."""

    node: str
    attempt: int = 1
    started: float | None = None
    command: int = 0  # the process group of the command; 0: none was started
    born: str = ""  # when that process started, by the kernel: its number may be reused


class JobSecrets:
    """The values of the job's secret variables, for every process that shows or stores texts of the
    job. The supervisor writes them before it starts anything that knows them; so whoever reads such
    a text first, and the values afterwards, masks it. A reader keeps the file open: the job's
    folder may be removed while the end of the log is still to be shown."""

    def __init__(self, scratch: Scratch) -> None:
        self._file = scratch.secrets
        self._known: KnownSecrets | None = None
        self._number: int | None = None

    def open(self) -> None:
        """Keep the file, which is written in place, at hand from now on."""
        if self._number is None:
            with contextlib.suppress(OSError):
                self._number = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)

    def write(self, values: Sequence[str]) -> None:
        content = (json.dumps(values) + "\n").encode()
        number = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(number, content, 0)
            os.ftruncate(number, len(content))
            os.fsync(number)
        finally:
            os.close(number)
        self._known = KnownSecrets(values)

    def known(self) -> KnownSecrets:
        if self._known is None:
            content = self._content()
            if not content.endswith(b"\n"):
                return KnownSecrets()  # nothing was started that knows any
            self._known = KnownSecrets(json.loads(content))
        return self._known

    def _content(self) -> bytes:
        if self._number is not None:
            return os.pread(self._number, os.fstat(self._number).st_size, 0)
        try:
            return self._file.read_bytes()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return b""


class JobLog:
    """The log file. The wrapper's own lines begin with `edgeloop:`."""

    def __init__(self, path: Path, secrets: JobSecrets) -> None:
        self._path = path
        self._secrets = secrets
        self._written: set[str] = set()

    def write(self, sentence: str) -> None:
        """A line for which the disk has no room is lost: it must not end the job."""
        masked = redact(self._secrets.known().mask(sentence))
        line = f"{_OWN} {masked}\n".encode(errors="replace")
        with contextlib.suppress(OSError), self._path.open("a+b", buffering=0) as file:
            size = file.tell()
            is_inside_a_line = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
            file.write(b"\n" + line if is_inside_a_line else line)

    def write_once(self, sentence: str) -> None:
        if sentence not in self._written:
            self._written.add(sentence)
            self.write(sentence)

    def restore(self, content: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(content)

    def size(self) -> int:
        return self._path.stat().st_size

    def tail(self, start: int, length: int = 16_384) -> str:
        """The last bytes that were written after `start`."""
        with self._path.open("rb") as file:
            file.seek(max(start, self.size() - length))
            return file.read(length).decode(errors="replace")

    def last_line(self, start: int) -> str:
        """The last line with words after `start` that is not the wrapper's."""
        lines = [" ".join(line.split()) for line in self.tail(start).splitlines()]
        said = [line for line in lines if len(line) > 1 and not line.startswith(_OWN)]
        return redact(self._secrets.known().mask(said[-1]))[:_LONGEST_LINE] if said else ""


class Tail:
    """Follows a growing file, even after it is deleted. A command that reopens /dev/stderr may
    truncate the file, and even fill it again: then its content is read from the beginning."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._offset = 0
        self._last = b""  # the bytes before the offset, as they were read

    def read(self, length: int) -> bytes:
        number = self._file.fileno()
        if os.pread(number, len(self._last), self._offset - len(self._last)) != self._last:
            self._offset, self._last = 0, b""
        content = os.pread(number, length, self._offset)
        self._offset += len(content)
        self._last = (self._last + content)[-_REMEMBERED:]
        return content


class MaskedTail:
    """Follows the log without the values of the job's secrets."""

    def __init__(self, path: Path, secrets: JobSecrets) -> None:
        self._tail = Tail(path)
        self._secrets = secrets
        self._masked = MaskedStream()
        self._ready = b""

    def read(self, length: int, is_over: bool = False) -> bytes:
        """New bytes, at most so many; `is_over` if nothing will be added that completes a value."""
        while not self._ready:
            content = self._tail.read(_READ_BYTES)
            known = self._secrets.known()  # after the log, so no value in it is unknown
            self._ready = self._masked.feed(content, known, is_over=is_over and not content)
            if not content:
                break
        part, self._ready = self._ready[:length], self._ready[length:]
        return part


class LogCopier:
    """Stores new bytes in pieces; only the last piece is ever written again."""

    def __init__(self, path: Path, blobs: Blobs, job: str, secrets: JobSecrets) -> None:
        self._tail = MaskedTail(path, secrets)
        self._blobs = blobs
        self._job = job
        self._number = 0
        self._piece = b""  # all of the piece that is being filled
        self._unsent = False
        self._copying = threading.Lock()

    @property
    def bytes_sent(self) -> int:
        return self._number * LOG_PIECE + (0 if self._unsent else len(self._piece))

    def copy(self, is_over: bool = False) -> None:
        with self._copying:
            while True:
                new = self._tail.read(LOG_PIECE - len(self._piece), is_over)
                self._piece += new
                self._unsent = self._unsent or bool(new)
                if not self._unsent:
                    return
                self._blobs.put(log_key(self._job, self._number), self._piece)
                self._unsent = False
                if len(self._piece) == LOG_PIECE:
                    self._number, self._piece = self._number + 1, b""


def stored_log(blobs: Blobs, job: str) -> Iterator[bytes]:
    """The pieces that an earlier wrapper of the same job stored."""
    number = 0
    while True:
        try:
            yield blobs.read_range(log_key(job, number), 0, LOG_PIECE)
        except BlobMissing:
            return
        number += 1
