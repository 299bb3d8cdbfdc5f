"""Sizes of machines, and clusters of them, which are made as a long-running operation."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.peers.azureml.bodies import Checker
from tests.peers.azureml.server import (
    LOCATION,
    Faults,
    Operations,
    Request,
    Response,
    Route,
    Scope,
    ServiceError,
    workspace_route,
)


@dataclass(frozen=True)
class Size:
    name: str
    family: str
    cores: int
    gpus: int
    memory_gb: int

    def row(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "family": self.family,
            "vCPUs": self.cores,
            "gpus": self.gpus,
            "memoryGB": self.memory_gb,
            "osVhdSizeMB": 1047552,
            "maxResourceVolumeMB": 28672,
            "lowPriorityCapable": True,
            "premiumIO": True,
            "supportedComputeTypes": ["AmlCompute", "ComputeInstance"],
        }


SIZES = {
    size.name: size
    for size in (
        Size("STANDARD_DS3_V2", "standardDSv2Family", 4, 0, 14),
        Size("STANDARD_D4S_V3", "standardDSv3Family", 4, 0, 16),
        Size("STANDARD_NC4AS_T4_V3", "standardNCASv3_T4Family", 4, 1, 28),
        Size("STANDARD_NC24ADS_A100_V4", "standardNCADSA100v4Family", 24, 1, 220),
        Size("STANDARD_ND96ASR_V4", "standardNDASv4Family", 96, 8, 900),
    )
}
FAMILIES = sorted({size.family for size in SIZES.values()})


def size_of(name: str) -> Size:
    found = SIZES.get(name.upper())
    if found is None:
        known = ", ".join(sorted(SIZES))
        what = f"The specified Azure ML Compute size {name} is not supported in region {LOCATION}. "
        raise ServiceError(400, "BadArgument", f"{what}Supported sizes: {known}.")
    return found


@dataclass
class Cluster:
    """Jobs wait in line for its nodes: who came first goes first."""

    name: str
    body: dict[str, Any]
    ready_at: float
    seats: dict[str, list[int]] = field(default_factory=dict)  # the nodes of each running job
    line: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def properties(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body["properties"]["properties"]
        return found

    @property
    def nodes(self) -> int:
        return int((self.properties.get("scaleSettings") or {}).get("maxNodeCount", 1))

    @property
    def busy(self) -> int:
        return sum(map(len, self.seats.values()))

    @property
    def is_ready(self) -> bool:
        return time.monotonic() >= self.ready_at

    def take(self, job: str, nodes: int, say: Callable[[str], None], stop: threading.Event) -> bool:
        """Waits for nodes, telling why; false when `stop` came first."""
        with self.changed:
            self.line.append(job)
            try:
                while not stop.is_set():
                    if self.line[0] == job and self.is_ready and self.busy + nodes <= self.nodes:
                        taken = {seat for seats in self.seats.values() for seat in seats}
                        free = [seat for seat in range(self.nodes) if seat not in taken]
                        self.seats[job] = free[:nodes]
                        return True
                    say(self._reason(job, nodes))
                    self.changed.wait(0.05)
                return False
            finally:
                self.line.remove(job)
                self.changed.notify_all()

    def give(self, job: str) -> None:
        with self.changed:
            self.seats.pop(job, None)
            self.changed.notify_all()

    def _reason(self, job: str, nodes: int) -> str:
        if nodes > self.nodes:
            return (
                f"The job asks for {nodes} nodes; the cluster {self.name} has at most {self.nodes}."
            )
        ahead = self.line.index(job)
        return f"{self.busy} of {self.nodes} nodes of {self.name} are busy; {ahead} jobs are ahead."


class Computes:
    def __init__(
        self, scope: Scope, operations: Operations, faults: Faults, checker: Checker
    ) -> None:
        self._scope, self._operations = scope, operations
        self._faults, self._checker = faults, checker
        self._clusters: dict[str, Cluster] = {}
        self.creating_takes_s = 0.06
        self.user_identities: dict[str, dict[str, str]] = {}
        self.serverless = _serverless()

    def routes(self) -> list[Route]:
        return [
            workspace_route("GET", "/computes", self._list),
            workspace_route("GET", "/computes/{name}", self._get),
            workspace_route("PUT", "/computes/{name}", self._put),
        ]

    def add_identity(self, name: str) -> str:
        """A user-assigned identity of the group; its client id."""
        provider = "providers/Microsoft.ManagedIdentity/userAssignedIdentities"
        ids = {"clientId": str(uuid.uuid4()), "principalId": str(uuid.uuid4())}
        self.user_identities[f"{self._scope.group_id}/{provider}/{name}"] = ids
        return ids["clientId"]

    def cluster(self, id_or_name: str) -> Cluster:
        name = id_or_name.rpartition("/")[2].lower()
        if name in ("", self.serverless.name):
            return self.serverless
        with self._scope.lock:
            found = self._clusters.get(name)
        if found is None:
            what = f"Compute with name '{name}' could not be found in this workspace."
            raise ServiceError(404, "ResourceNotFound", what)
        return found

    def cores_in_use(self, family: str) -> int:
        with self._scope.lock:
            sizes = [(size_of(c.properties["vmSize"]), c.nodes) for c in self._clusters.values()]
        return sum(size.cores * nodes for size, nodes in sizes if size.family == family)

    def _list(self, request: Request) -> Response:
        with self._scope.lock:
            rows = [self._shown(cluster) for cluster in self._clusters.values()]
        return self._scope.page(request, rows)

    def _get(self, request: Request) -> Response:
        return Response(200, self._shown(self.cluster(request.parameters["name"])))

    def _put(self, request: Request) -> Response:
        body, name = self._checker.check("computes", request), request.parameters["name"]
        for rid in (body.get("identity") or {}).get("userAssignedIdentities") or {}:
            if rid not in self.user_identities:
                raise ServiceError(400, "InvalidRequestContent", f"there is no identity {rid}")
        with self._scope.lock:
            old = self._clusters.get(name.lower())
            size = size_of(body["properties"]["properties"]["vmSize"])
            if old and size_of(old.properties["vmSize"]) != size:
                what = f"A compute '{name}' exists already, with another virtual machine size."
                raise ServiceError(409, "Conflict", what)
            new = Cluster(name, body, time.monotonic() + self.creating_takes_s)
            self._check_quota(new, old)
            if old:
                old.body, new = body, old
            self._clusters[name.lower()] = new
        cluster = new
        return self._operations.begin(
            lambda: cluster.is_ready, 200 if old else 201, self._shown(cluster)
        )

    def _check_quota(self, new: Cluster, old: Cluster | None) -> None:
        size = size_of(new.properties["vmSize"])
        used = self.cores_in_use(size.family) - (size.cores * old.nodes if old else 0)
        wanted = size.cores * new.nodes
        if used + wanted > self._faults.cores_per_family:
            what = (
                f"Operation results in exceeding quota limits of {size.family} cores. Maximum "
                f"allowed: {self._faults.cores_per_family}, Current in use: {used}, Additional "
                f"requested: {wanted}."
            )
            raise ServiceError(400, "ClusterCoreQuotaReached", what)

    def _shown(self, cluster: Cluster) -> dict[str, Any]:
        state = "Succeeded" if cluster.is_ready else "Creating"
        details = {
            **cluster.properties,
            "allocationState": "Steady",
            "currentNodeCount": cluster.busy,
            "targetNodeCount": cluster.busy,
            "nodeStateCounts": {"runningNodeCount": cluster.busy, "idleNodeCount": 0},
        }
        properties = {
            **cluster.body["properties"],
            "computeLocation": LOCATION,
            "provisioningState": state,
            "provisioningErrors": None,
            "isAttachedCompute": False,
            "properties": details,
        }
        shown = self._scope.resource("computes", cluster.name, properties)
        shown["location"] = cluster.body.get("location", LOCATION)
        if cluster.body.get("identity"):
            shown["identity"] = {
                **cluster.body["identity"],
                "principalId": "22222222-0000-0000-0000-000000000000",
                "tenantId": "00000000-0000-0000-0000-000000000000",
            }
            own = cluster.body["identity"].get("userAssignedIdentities")
            if own:
                known = {rid: self.user_identities[rid] for rid in own}
                shown["identity"]["userAssignedIdentities"] = known
        return shown


def _serverless() -> Cluster:
    """What a job that names an instance type and no compute runs on."""
    scale = {"maxNodeCount": 4}
    return Cluster("serverless", {"properties": {"properties": {"scaleSettings": scale}}}, 0.0)
