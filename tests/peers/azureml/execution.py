"""What a run is, and how one goes from its queue to its end, on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from azure.core.exceptions import AzureError

from tests.peers.azureml.assets import DEFAULT, Assets, Datastores
from tests.peers.azureml.computes import Cluster, Computes
from tests.peers.azureml.identity import Identities
from tests.peers.azureml.server import (
    GROUP,
    LOCATION,
    SUBSCRIPTION,
    WORKSPACE,
    WORKSPACE_GUID,
    Faults,
    Scope,
    ServiceError,
    not_found,
    now,
)
from tests.peers.azureml.storage import ARTIFACTS, Storage, split_blob_url
from tests.peers.environments import ENVIRONMENTS, CannotBuild, Definition
from tests.peers.ports import free_port

ENDED = ("Completed", "Failed", "Canceled")
_SPAN = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?")


@dataclass(frozen=True)
class Order:
    """A command in a place: what a command job and a step of a pipeline have in common."""

    command: str
    environment: str
    compute: str
    code: str | None = None
    instance_type: str | None = None
    nodes: int = 1
    processes: int = 1
    is_distributed: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    timeout_s: float | None = None
    docker_args: tuple[str, ...] = ()

    @classmethod
    def of_job(cls, properties: dict[str, Any]) -> Order:
        resources = properties.get("resources") or {}
        distribution = properties.get("distribution") or {}
        limits = properties.get("limits") or {}
        return cls(
            properties["command"],
            properties["environmentId"],
            properties.get("computeId") or "",
            properties.get("codeId"),
            resources.get("instanceType"),
            resources.get("instanceCount") or 1,
            distribution.get("processCountPerInstance") or 1,
            distribution.get("distributionType") == "PyTorch",
            properties.get("environmentVariables") or {},
            properties.get("inputs") or {},
            properties.get("outputs") or {},
            seconds(limits.get("timeout")),
            docker_arguments(resources.get("dockerArgs"), resources.get("dockerArgsList")),
        )


@dataclass
class Run:
    name: str
    kind: str  # Command or Pipeline
    properties: dict[str, Any]
    order: Order | None = None
    parent: str | None = None
    step: str | None = None
    status: str = "NotStarted"
    times: dict[str, str] = field(default_factory=lambda: {"NotStarted": now()})
    error: dict[str, Any] | None = None
    waits_for: str = ""  # why it is still in the queue
    identity: str = field(default_factory=lambda: str(uuid.uuid4()))
    cancel: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    outputs: dict[str, str] = field(default_factory=dict)  # where each is, as azureml://…

    @property
    def prefix(self) -> str:
        """Where its logs and its ./outputs lie, in the container of artefacts."""
        return f"ExperimentRun/dcid.{self.name}"

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def experiment(self) -> str:
        return str(self.properties.get("experimentName") or "Default")

    def reach(self, status: str) -> None:
        if self.has_ended:
            return
        self.status = status
        self.times.setdefault(status, now())
        if self.has_ended:
            self.ended.set()

    def fail(self, code: str, message: str) -> None:
        self.error = {
            "error": {
                "code": code,
                "severity": None,
                "message": message,
                "messageFormat": message,
                "messageParameters": {},
                "referenceCode": None,
                "detailsUri": None,
                "target": None,
                "details": [],
                "innerError": None,
            },
            "correlation": {"operation": self.identity, "request": self.identity},
            "environment": LOCATION,
            "location": LOCATION,
            "time": now(),
            "componentName": "execution",
        }
        self.reach("Failed")


def seconds(span: str | None) -> float | None:
    found = _SPAN.fullmatch(span) if span else None
    if not found:
        return None
    days, hours, minutes, rest = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


_BINDING = re.compile(r"\$\{\{\s*(inputs|outputs)\.([\w.-]+)\s*\}\}")
_OPTIONAL = re.compile(r"\$\[\[(.*?)\]\]", re.DOTALL)
LOG = "user_logs/std_log.txt"


@dataclass
class Executor:
    scope: Scope
    storage: Storage
    assets: Assets
    datastores: Datastores
    computes: Computes
    identities: Identities
    faults: Faults
    folder: Path
    cloud: Mapping[str, str]  # the variables that lead an SDK in a job to this emulator

    def execute(self, run: Run) -> None:
        """Takes a run from NotStarted to its end; whatever goes wrong is the run's error."""
        assert run.order is not None
        try:
            self._through(run, run.order)
        except (ServiceError, AzureError, OSError, LookupError) as error:
            run.fail("ServiceError", f"{type(error).__name__}: {error}")
        finally:
            self.identities.revoke(run.name)

    def _through(self, run: Run, order: Order) -> None:
        run.reach("Starting")
        run.reach("Preparing")
        try:
            programs = self._build_image(order)
        except CannotBuild as error:
            run.fail("UserError", _IMAGE.format(order.environment, error))
            return
        run.reach("Queued")
        cluster = self.computes.cluster(order.compute)
        if not self._wait_for_nodes(run, order, cluster):
            self._canceled(run)
            return
        try:
            run.waits_for = ""
            run.reach("Running")
            self._run(run, order, programs)
        finally:
            cluster.give(run.name)

    def _build_image(self, order: Order) -> Path:
        """The programs of an environment that holds what its definition names, and nothing else."""
        names = self.faults.broken_environments
        if any(f"/environments/{name}/" in order.environment for name in names):
            raise CannotBuild("CondaResolveError")
        asset = self.assets.find(order.environment, "environments")
        return ENVIRONMENTS.bin_of(Definition.of_asset(asset["properties"]))

    def _wait_for_nodes(self, run: Run, order: Order, cluster: Cluster) -> bool:
        def say(reason: str) -> None:
            run.waits_for = reason

        while self.faults.never_start and not run.cancel.is_set():
            say(self.faults.never_start)
            run.cancel.wait(0.05)
        return cluster.take(run.name, order.nodes, say, run.cancel)

    def _run(self, run: Run, order: Order, programs: Path) -> None:
        folder = self.folder / run.name
        places = Places(self.storage, self.datastores, self.assets, folder)
        values = places.prepare(run, order)
        processes = self._processes(run, order, folder, values, programs)
        logs = _Logs(self.storage, run, processes)
        container = Container(run.identity, processes)
        ending = container.run(run.cancel.is_set, logs.send, order.timeout_s)
        if ending != "stopped":
            run.reach("Finalizing")
        for process in processes:
            outputs = process.folder / "outputs"
            if outputs.is_dir():
                self.storage.store(outputs, ARTIFACTS, f"{run.prefix}/outputs")
        places.store_outputs(run)
        shutil.rmtree(folder, ignore_errors=True)
        self._conclude(run, order, ending, processes)

    def _conclude(self, run: Run, order: Order, ending: str, processes: list[Process]) -> None:
        if ending == "stopped":
            self._canceled(run)
            return
        if ending == "timeout":
            what = f"Job was canceled because it exceeded its limit of {order.timeout_s:g} seconds."
            run.fail("UserError", what)
            return
        code = next((c for c in (p.exit_code for p in processes) if c), 0)
        if code:
            run.fail("UserError", _EXIT.format(code=code, log=LOG))
        else:
            run.reach("Completed")

    def _canceled(self, run: Run) -> None:
        """As in the cloud, where it takes a while until nodes have let go."""
        run.reach("CancelRequested")
        until = time.monotonic() + self.faults.cancel_takes_s
        while time.monotonic() < until and self.faults.cancel_takes_s:
            time.sleep(0.02)
        run.reach("Canceled")

    def _processes(
        self, run: Run, order: Order, folder: Path, values: dict[str, str], programs: Path
    ) -> list[Process]:
        count = order.nodes * order.processes if order.is_distributed else 1
        port, found = free_port(), []
        for rank in range(count):
            node = rank // order.processes
            place = folder / f"node-{node}"
            if not place.exists():
                place.mkdir(parents=True)
                self._fetch_code(order, place)
            log = folder / f"log-{rank}"
            log.touch()
            environ = self._environ(run, order, place, programs) | _ranks(order, rank, port)
            environ = with_volumes(environ, order.docker_args, self._disk(run, order, node))
            found.append(Process(place, log, environ, _filled(order.command, values)))
        return found

    def _disk(self, run: Run, order: Order, node: int) -> Path:
        """What outlives a job on the node that it runs on."""
        cluster = self.computes.cluster(order.compute)
        return self.folder / "nodes" / f"{cluster.name}-{cluster.seats[run.name][node]}"

    def _fetch_code(self, order: Order, folder: Path) -> None:
        if order.code:
            uri = self.assets.find(order.code, "codes")["properties"]["codeUri"]
            account, container, path = split_blob_url(uri)
            if not self.storage.fetch(container, path, folder, account):
                raise LookupError(f"no code at {uri}")

    def _environ(self, run: Run, order: Order, folder: Path, programs: Path) -> dict[str, str]:
        return {
            "PATH": f"{programs}{os.pathsep}{os.defpath}",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            **self.cloud,
            **order.variables,
            "AZUREML_RUN_ID": run.name,
            "AZUREML_ROOT_RUN_ID": run.parent or run.name,
            "AZUREML_ARM_SUBSCRIPTION": SUBSCRIPTION,
            "AZUREML_ARM_RESOURCEGROUP": GROUP,
            "AZUREML_ARM_WORKSPACE_NAME": WORKSPACE,
            "AZUREML_ARM_PROJECT_NAME": run.experiment,
            "AZUREML_WORKSPACE_ID": WORKSPACE_GUID,
            "AZUREML_WORKSPACE_SCOPE": self.scope.workspace_id,
            "AZUREML_SERVICE_ENDPOINT": self.scope.url,
            "AZUREML_DISCOVERY_SERVICE_ENDPOINT": f"{self.scope.url}/discovery",
            "AZUREML_REGION": LOCATION,
            "AZUREML_CR_COMPUTE_CONTEXT": "AmlCompute",
            "AZ_BATCHAI_CLUSTER_NAME": order.compute.rpartition("/")[2],
            "AZ_BATCHAI_JOB_NAME": run.name,
            "AZ_BATCHAI_NUM_GPUS": "0",
            "AZ_BATCH_NODE_LIST": ";".join(["127.0.0.1"] * order.nodes),
            "AZ_BATCH_MASTER_NODE": "127.0.0.1:6000",
            "MSI_ENDPOINT": f"{self.scope.url}/identity/token",
            "MSI_SECRET": self.identities.secret_of(run.name),
            MARK: run.identity,
        }


class _Logs:
    """What ranks print goes to the container of artefacts while they run."""

    def __init__(self, storage: Storage, run: Run, processes: list[Process]) -> None:
        container = storage.container(ARTIFACTS)
        self._targets: list[tuple[Path, Any]] = []
        self._sent = [0] * len(processes)
        for rank, process in enumerate(processes):
            name = LOG if len(processes) == 1 else f"user_logs/std_log_process_{rank}.txt"
            blob = container.get_blob_client(f"{run.prefix}/{name}")
            blob.create_append_blob()
            self._targets.append((process.log, blob))

    def send(self) -> None:
        for rank, (file, blob) in enumerate(self._targets):
            with file.open("rb") as log:
                log.seek(self._sent[rank])
                while chunk := log.read(1 << 22):
                    blob.append_block(chunk)
                    self._sent[rank] += len(chunk)


def _ranks(order: Order, rank: int, port: int) -> dict[str, str]:
    if not order.is_distributed:
        return {}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % order.processes),
        "NODE_RANK": str(rank // order.processes),
        "WORLD_SIZE": str(order.nodes * order.processes),
        "LOCAL_WORLD_SIZE": str(order.processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _filled(command: str, values: Mapping[str, str]) -> str:
    """`${{inputs.x}}` and `${{outputs.x}}`, here and nowhere else; `$[[…]]` goes if it has none."""

    def optional(found: re.Match[str]) -> str:
        wanted = [f"{kind}.{name}" for kind, name in _BINDING.findall(found[1])]
        return found[1] if all(name in values for name in wanted) else ""

    def value(found: re.Match[str]) -> str:
        return values[f"{found[1]}.{found[2]}"]

    return _BINDING.sub(value, _OPTIONAL.sub(optional, command))


_IMAGE = (
    "Image build failed for environment {}. Reason: {}. For more details, check "
    "log file azureml-logs/20_image_build_log.txt."
)
_EXIT = (
    "Execution failed. User process 'bash' exited with status code {code}. Please check log file "
    "'{log}' for error details."
)


_DATASTORE = re.compile(r"azureml://(?:.*/)?datastores/(?P<store>[^/]+)/(?:paths/)?(?P<path>.*)")


@dataclass
class Places:
    storage: Storage
    datastores: Datastores
    assets: Assets
    folder: Path
    _outputs: dict[str, Path] = field(default_factory=dict)

    def prepare(self, run: Run, order: Order) -> dict[str, str]:
        """Fetches the inputs and makes folders for the outputs; what bindings stand for."""
        values = {f"inputs.{k}": self._input(k, v) for k, v in order.inputs.items()}
        for name, output in order.outputs.items():
            if name == "default":
                continue
            where = (
                output.get("uri")
                or f"azureml://datastores/{DEFAULT}/paths/azureml/{run.name}/{name}/"
            )
            run.outputs[name] = where.replace("${{name}}", run.name)
            self._outputs[name] = target = self.folder / "outputs" / name
            is_file = output.get("jobOutputType") == "uri_file"
            (target.parent if is_file else target).mkdir(parents=True, exist_ok=True)
            if not is_file and _is_mounted(output):
                account, container, prefix = self.locate(run.outputs[name])
                self.storage.fetch(container, prefix.rstrip("/"), target, account)
            values[f"outputs.{name}"] = str(target)
        return values

    def store_outputs(self, run: Run) -> None:
        for name, path in self._outputs.items():
            account, container, prefix = self.locate(run.outputs[name])
            if path.is_dir():
                self.storage.store(path, container, prefix, account)
            elif path.is_file():
                client = self.storage.container(container, account)
                client.upload_blob(prefix.rstrip("/"), path.read_bytes(), overwrite=True)

    def locate(self, uri: str) -> tuple[str, str, str]:
        """Account, container and path behind an address."""
        if found := _DATASTORE.fullmatch(uri):
            return *self.datastores.place_of(found["store"]), found["path"]
        if uri.startswith("https://"):
            return split_blob_url(uri)
        if "/data/" in uri or uri.startswith("azureml:"):
            return self.locate(self.assets.find(uri, "data")["properties"]["dataUri"])
        raise not_found("data", uri)

    def _input(self, name: str, given: dict[str, Any]) -> str:
        if given["jobInputType"] == "literal":
            return str(given["value"])
        uri = str(given["uri"])
        if given.get("mode") == "Direct":
            return uri
        account, container, path = self.locate(uri)
        target = self.folder / "inputs" / name
        target.mkdir(parents=True, exist_ok=True)
        if not self.storage.fetch(container, path.rstrip("/"), target, account):
            raise not_found("data", uri)
        if _is_mounted(given):
            for file in target.rglob("*"):
                file.chmod(0o555 if file.is_dir() else 0o444)
        if given["jobInputType"] == "uri_file":
            return str(target / Path(path).name)
        return str(target)


def _is_mounted(place: dict[str, Any]) -> bool:
    """Which is what the service does where nothing else is said."""
    return str(place.get("mode") or "mount").lower().endswith("mount")


GRACE_S = 2.0
_POLL_S = 0.02
MARK = "AZUREML_EMULATED_CONTAINER"


def docker_arguments(*given: str | list[str] | None) -> tuple[str, ...]:
    """A string is one argument, as it is for the service."""
    return tuple(
        word for each in given if each for word in ([each] if isinstance(each, str) else each)
    )


def with_volumes(
    environ: Mapping[str, str], docker_args: Sequence[str], disk: Path
) -> dict[str, str]:
    """`-v HOST:INSIDE` of docker. There is no container here, so a variable that names the folder
    inside gets its place on the disk of the node instead."""
    found = dict(environ)
    words = [word for argument in docker_args for word in argument.split("=", maxsplit=1)]
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
