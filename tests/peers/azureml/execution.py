"""Runs one order from its queue to its end, on this machine."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azure.core.exceptions import AzureError

from tests.peers.azureml.assets import Assets
from tests.peers.azureml.computes import Cluster, Computes
from tests.peers.azureml.containers import MARK, Container, Process, with_volumes
from tests.peers.azureml.datastores import Datastores
from tests.peers.azureml.faults import Faults
from tests.peers.azureml.identity import Identities
from tests.peers.azureml.places import Places
from tests.peers.azureml.routing import ServiceError
from tests.peers.azureml.runs import Order, Run
from tests.peers.azureml.scope import (
    GROUP,
    LOCATION,
    SUBSCRIPTION,
    WORKSPACE,
    WORKSPACE_GUID,
    Scope,
)
from tests.peers.azureml.storage import ARTIFACTS, Storage, split_blob_url
from tests.peers.environments import ENVIRONMENTS, CannotBuild, Definition
from tests.peers.ports import free_port

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
