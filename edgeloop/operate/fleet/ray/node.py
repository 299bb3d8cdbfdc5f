"""What a node offers and what a process on it gets: variables, and an interpreter that has all
that Edgeloop needs.

A node that has everything is used as it is. Otherwise an environment is built once, on top of the
node's own packages (Ray is among them), and kept in the node's cache. It is named by the hash of
what it is made of, and its marker is written last, so an incomplete one is built again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from edgeloop._util.files import file_lock, home_folder, kept_in_use, mark_used
from edgeloop._util.system import python_module
from edgeloop.errors import BadInput, Conflict, EdgeloopError
from edgeloop.operate.fleet.launcher import RunnerOrder, RunnerProcess

_PACKAGE = Path(__file__).parents[4]
_INSTALL_LIMIT_S = 3600.0
_READY = ".ready"
_SENTENCE = 300
_TAIL_BYTES = 8192


def node_variables(brought: Mapping[str, str], address: str) -> dict[str, str]:
    """The variables of a process on this node: the node's own, but for those of the actor that
    starts it, and what the fleet brings. `address` is that of the cluster."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    paths = [str(_PACKAGE), *inherited.get("PYTHONPATH", "").split(os.pathsep)]
    python_path = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    ours = {"PYTHONPATH": python_path, "PYTHONUNBUFFERED": "1", "RAY_ADDRESS": address}
    return {**inherited, **brought, **ours}


def own_variables() -> Mapping[str, str]:
    """Those of this process."""
    return os.environ


def forget_job() -> None:
    """What this process starts in Ray shall not inherit the environment of its job, whose working
    folder holds secrets for a moment."""
    os.environ.pop("RAY_JOB_CONFIG_JSON_ENV_VAR", None)


def node_cache() -> Path:
    """Where this node keeps what it could make again."""
    if os.environ.get("EDGELOOP_CACHE"):
        return Path(os.environ["EDGELOOP_CACHE"]).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or home_folder(os.environ) / ".cache"
    return (Path(base) / "edgeloop").absolute()


def interpreter(requirements: Sequence[str], variables: Mapping[str, str]) -> str:
    """A Python that has them all: the one that runs this, or one of its own. Raises BadInput with
    what pip complained about."""
    missing = [text for text in requirements if not is_satisfied(text)]
    if not missing:
        return sys.executable
    return str(_built(requirements, missing, variables) / "bin" / "python")


def interpreter_in_use(python: str) -> AbstractContextManager[None]:
    """Around the life of a process: a clean-up of this node leaves the environment alone that it
    runs in."""
    target = Path(python).parent.parent
    if target.parent != node_cache() / "envs":
        return nullcontext()
    return kept_in_use(target / _READY)


def is_satisfied(requirement: str) -> bool:
    """Whether this Python has a distribution and those of its extras, in versions that fit."""
    try:
        from packaging.requirements import Requirement
    except ImportError:  # Ray requires it; what is not known to be there is installed
        return False
    required = Requirement(requirement)
    if required.marker is not None and not required.marker.evaluate():
        return True
    try:
        installed = distribution(required.name)
    except PackageNotFoundError:
        return False
    if not required.specifier.contains(installed.version, prereleases=True):
        return False
    return all(map(is_satisfied, _of_extras(installed.requires or (), required.extras)))


def _of_extras(requires: Sequence[str], extras: set[str]) -> Iterator[str]:
    from packaging.requirements import Requirement

    for text in requires:
        needed = Requirement(text)
        marker = needed.marker
        if marker is None or marker.evaluate():
            continue  # not of an extra
        if any(marker.evaluate({"extra": extra}) for extra in extras):
            needed.marker = None
            yield str(needed)


def _built(
    requirements: Sequence[str], missing: Sequence[str], variables: Mapping[str, str]
) -> Path:
    target = node_cache() / "envs" / f"fleet-{_name(requirements)}"
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with file_lock(target.with_suffix(".lock"), timeout_s=_INSTALL_LIMIT_S):
            if not (target / _READY).is_file():
                shutil.rmtree(target, ignore_errors=True)
                _build(target, requirements, missing, variables)
                (target / _READY).touch()
            mark_used(target / _READY)
    except Conflict:
        reason = "another runner has been building the environment of this node for too long"
        raise BadInput(reason=reason) from None
    return target


def _name(requirements: Sequence[str]) -> str:
    parts = (*requirements, platform.python_version(), platform.machine(), sys.executable)
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


def _build(
    target: Path, requirements: Sequence[str], missing: Sequence[str], variables: Mapping[str, str]
) -> None:
    """Raises BadInput. Ray comes with virtualenv, which needs no ensurepip of the system."""
    maker = "virtualenv" if importlib.util.find_spec("virtualenv") else "venv"
    names = ", ".join(missing[:4]) + (", …" if len(missing) > 4 else "")
    sys.stderr.write(f"edgeloop: this node lacks {names}: building an environment\n")
    _run(python_module(maker, str(target)), variables)
    packages = target / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    site_folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "edgeloop_node.pth").write_text(
        "".join(f"{path}\n" for path in sorted(site_folders))
    )
    pip = python_module("pip", "install", "--no-input", python=str(target / "bin/python"))
    quiet = ["--disable-pip-version-check", "--progress-bar", "off", "--no-warn-script-location"]
    _run([*pip, *quiet, *requirements], variables)


def _run(command: Sequence[str], variables: Mapping[str, str]) -> None:
    environment = {name: value for name, value in variables.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(  # noqa: S603 - a list of arguments, no shell
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=_INSTALL_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            reason = f"the environment of this node was not built after {_INSTALL_LIMIT_S:g} s"
            raise BadInput(reason=reason) from None
        if done.returncode == 0:
            return
        lines = [line.strip() for line in _tail(output.fileno()).splitlines() if line.strip()]
    errors = [line[len("ERROR:") :].strip() for line in lines if line.startswith("ERROR:")]
    cause = (errors or lines or ["it printed nothing"])[-1]
    raise BadInput(reason=f"the environment of this node was not built: {cause[:_SENTENCE]}")


def _tail(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")


def last_words() -> str:
    """The last error of Edgeloop among the output of this process and of those it started, which
    Ray collects in a file."""
    with suppress(OSError):
        with Path("/proc/self/fd/2").resolve().open("rb") as file:
            lines = _tail(file.fileno()).splitlines()
        said = [line for line in lines if line.startswith(("edgeloop: ", "Error: "))]
        return said[-1].partition(": ")[2][:_SENTENCE] if said else ""
    return ""


# What a fleet brings to a cluster: to its supervisor once, and to each of its runners.


ORDER_FILE = "fleet.json"  # in the working folder of the job that starts a supervisor
SUPERVISOR = "supervisor"  # the actor's name, in the namespace of its fleet
SHIPMENT_VARIABLE = "EDGELOOP_FLEET"


@dataclass(frozen=True)
class Shipment:
    """`id` tells one start of a fleet from the next: what an earlier one has started may have an
    older Edgeloop, or a password that is no longer valid. `package` is Edgeloop itself, by the
    address that Ray gave it. `requirements` are what it needs, for nodes that do not have them.
    `variables` open the store, and are secret. `words` are settings of the project, for
    `edgeloop.operate.fleet.start`."""

    id: str
    fleet: str
    namespace: str
    package: str
    requirements: tuple[str, ...]
    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def to_json(self) -> str:
        """With all secrets."""
        return json.dumps(asdict(self))

    def public_json(self) -> str:
        """With the names of the variables alone, for a process that has them."""
        return json.dumps({**asdict(self), "variables": dict.fromkeys(self.variables, "")})

    @classmethod
    def from_json(cls, text: str, environ: Mapping[str, str] | None = None) -> Shipment:
        fields = json.loads(text)
        if environ is not None:
            fields["variables"] = {name: environ[name] for name in fields["variables"]}
        fields |= {name: tuple(fields[name]) for name in ("requirements", "words")}
        return cls(**fields)


# The actor that keeps one process alive on the node where Ray has put it.
#
# Ray starts the actor again, here or on another node, when it or its node dies. Its process is
# killed by the kernel when the actor ends, however it ends. It needs Ray and the standard library.


_POLL_S = 0.2
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 300.0  # before an environment is built again


class ProcessActor:
    """Keeps a runner alive, or (without an order) the supervisor, until it is told to end.

    All of its arguments are small texts: Ray keeps those for as long as the actor lives, but would
    lose an object of the process that created the actor when that ends.
    """

    def __init__(self, shipment: str, order: str = "") -> None:
        self._shipment = Shipment.from_json(shipment)
        self._order = RunnerOrder.from_json(order) if order else None
        self._process: RunnerProcess | None = None
        self._note = "its node is being made ready"
        self._is_unfit = self._is_ready = self._is_ending = self._is_killed = False
        # The kernel kills a process with the thread that started it: this one lives to the end.
        threading.Thread(target=self._keep, daemon=True).start()

    def status(self) -> dict[str, Any]:
        """What a launcher asks about every second."""
        process = self._process
        state = "waiting" if process is None else process.state
        if self._is_ending and state != "ended":
            state = "draining"
        note = self._note if process is None else process.note
        said = last_words() if process is not None and note else ""
        return {
            "state": state,
            "note": f"{note}: {said}" if said else note,
            "ready": self._is_ready,
            "unfit": self._is_unfit,  # the node cannot be made ready
            "pid": None if process is None else process.pid,
        }

    def is_ready(self) -> None:
        """Called by the supervisor's own process when it has taken the fleet over."""
        self._is_ready = True

    def drain(self) -> None:
        self._is_ending = True

    def kill(self) -> None:
        self._is_ending = self._is_killed = True

    def _keep(self) -> None:
        process = self._prepared()
        if process is not None:
            with interpreter_in_use(process.python):
                self._look_after(process)
        _leave()

    def _look_after(self, process: RunnerProcess) -> None:
        while process.poll() != "ended":
            if self._is_killed:
                process.kill()
            elif self._is_ending:
                process.drain()
            time.sleep(_POLL_S)

    def _prepared(self) -> RunnerProcess | None:
        """Once the node is ready; None if it is not wanted any more."""
        pause_s = _FIRST_PAUSE_S
        while not self._is_ending:
            try:
                self._process, self._is_unfit = self._new_process(), False
                return self._process
            except (EdgeloopError, OSError) as error:
                self._note, self._is_unfit = str(error), True
                sys.stderr.write(f"edgeloop: {error}\n")
            self._wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return None

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._is_ending:
            time.sleep(_POLL_S)

    def _new_process(self) -> RunnerProcess:
        import ray

        shipment, order = self._shipment, self._order
        address = ray.get_runtime_context().gcs_address
        variables = node_variables(shipment.variables, address)
        python = interpreter(shipment.requirements, variables)
        folder = node_cache() / "fleet"
        folder.mkdir(parents=True, exist_ok=True)
        if order is not None:
            return RunnerProcess(order, variables, python=python, cwd=folder)
        return _supervisor(shipment, variables, python, folder)


def _supervisor(
    shipment: Shipment, variables: Mapping[str, str], python: str, folder: Path
) -> RunnerProcess:
    """It takes what it passes on from its own variables, so no secret is written twice."""
    environment = {**variables, SHIPMENT_VARIABLE: shipment.public_json()}
    command = python_module("edgeloop.operate.fleet.ray.supervise", *shipment.words, python=python)
    order = RunnerOrder(f"{shipment.fleet}-{SUPERVISOR}", "")
    return RunnerProcess(order, environment, python=python, cwd=folder, command=command)


def _leave() -> None:
    """End this actor for good: Ray would start it again otherwise."""
    import ray

    with suppress(Exception):
        ray.kill(ray.get_runtime_context().current_actor)


def connect(shipment: Shipment) -> None:
    """Join the cluster of this node, in the namespace of a fleet. Whatever is created then has the
    fleet's package."""
    import ray

    ray.init(
        namespace=shipment.namespace,
        runtime_env={"py_modules": [shipment.package]},
        log_to_driver=False,
        logging_level=logging.WARNING,
    )


def create_actor(
    name: str,
    arguments: Sequence[str],
    cpus: float = 0,
    resources: Mapping[str, float] | None = None,
) -> Any:
    """Its handle. The actor outlives its creator, and Ray starts it again whenever it dies.
    CPUs are always said: without them, an autoscaler does not see what waits."""
    import ray

    kind: Any = ray.remote(ProcessActor)
    return kind.options(
        name=name,
        lifetime="detached",
        max_restarts=-1,
        max_task_retries=0,
        num_cpus=cpus,
        resources=dict(resources or {}),
        max_concurrency=4,
    ).remote(*arguments)
