"""Records of jobs that nobody ran."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from edgeloop.jobs.records import JobRecord, Run
from edgeloop.jobs.watch import Status
from edgeloop.node.ticket import Input, State

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


def record(name: str, job: str = "", minute: int = 0, **more: object) -> JobRecord:
    known = {
        "id": job or f"{name}-1-abc",
        "name": name,
        "created": BEGINNING + timedelta(minutes=minute),
        "experiment": "default",
        "spec": {"command": ["python", "train.py"], "params": {"lr": "1e-3"}},
        "compute": "gpu",
        "kind": "ray",
        "config": {"address": "http://head:8265"},
        "store": "azure:https://acme.blob.core.windows.net",
        "code": "0123abcd",
        "inputs": (Input("working/faces", 3),),
        "command": ("python", "train.py", "ünï", "-1"),
        "params": {"lr": "1e-3"},
        "tags": ("night",),
    }
    return JobRecord(**(known | more))  # type: ignore[arg-type]


def run(name: str, minute: int = 0, state: State = "queued", tags: tuple[str, ...] = ()) -> Run:
    return Run(record(name, minute=minute, tags=tags), Status(state))
