"""The environment of a command: what the wrapper inherited, and the interpreter.

An interpreter is the node's own, or built once from the job's file. A built one is named by the
hash of what it is made of and kept in the node's cache; its marker is written last, so an
incomplete one is built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgeloop._util.files import file_lock, home_folder, mark_used
from edgeloop.errors import BadInput, Conflict
from edgeloop.node.scratch import JobLog
from edgeloop.node.ticket import NODE_CACHE, ORDER_VARIABLE, PLACE_PREFIX, Ticket, WrapperOrder
from edgeloop.store.base import check_blob_key

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
        kept = {
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
        return cls(cache.absolute(), python, node, kept, number, places, shared)

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
