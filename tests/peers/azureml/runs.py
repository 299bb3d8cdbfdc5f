"""What a run is: an order, how far it is, when it got there, and why it failed."""

from __future__ import annotations

import re
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any

from tests.peers.azureml.scope import LOCATION, now

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
    docker_args: str = ""

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
            resources.get("dockerArgs") or "",
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
