"""Files of jobs as the first version wrote them are still read: a job may outlive an update."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from edgeloop.jobs.computes import Resources
from edgeloop.jobs.computes.queue import Capacity, JobQueue
from edgeloop.jobs.records import RunRecords
from edgeloop.node.environment import Scratch, SupervisorNote
from edgeloop.node.ticket import (
    ORDER_VARIABLE,
    Environment,
    Input,
    JobProgress,
    Pace,
    Ticket,
    WrapperOrder,
)
from edgeloop.store import Access

TICKET = """{"id": "lr-1-abc", "name": "lr", "experiment": "faces", "command": ["python", "a.py"],
"code": "d1", "inputs": [{"name": "working/faces", "version": 4}], "writes": ["working/small"],
"environment": {"kind": "conda", "file": "env.yaml"}, "variables": {"A": "1"}, "attempt": 2,
"retries": 1, "timeout_s": 60.0, "grace_s": 5.0, "previous": null}"""
STATE = """{"state": "running", "attempt": 1, "node": "n", "heartbeat": 5.5, "started": 1.0,
"ended": null, "exit_code": null, "reason": "", "metrics": {"loss": 0.5},
"published": {"working/small": 3}, "log_bytes": 7, "outputs_complete": false}"""
ORDER = """{"job":"lr-1-abc","wrapper":"_wrapper/x.pyz","access":{"make":"LocalStore",
"options":{"folder":"/store"}},"pace":{"log_s":1.0,"outputs_s":2.0,"heartbeat_s":10.0,
"patience_s":600.0,"install_s":3600.0},"nodes":2}"""
RECORD = """{"id": "lr-1-abc", "name": "lr", "created": "2026-01-02T03:04:05.000006+00:00",
"experiment": "faces", "spec": {"script": "a.py", "code": "/code"}, "compute": "local",
"kind": "local", "config": {}, "store": "sqlite:x", "code": "d1",
"inputs": [{"name": "working/faces", "version": 4}], "command": ["python", "a.py"],
"params": {"lr": "1e-3"}, "tags": ["night"], "attempt": 1, "parent": null}"""
KNOWN = """{"status": {"state": "completed", "reason": "", "exit_code": 0, "attempt": 1,
"node": "n", "started": 1.0, "ended": 2.0, "metrics": {}, "published": {}, "log_bytes": 7,
"outputs_complete": true, "note": ""}, "cancel_asked": false}"""
ENTRY = """{"job": "lr-1-abc", "priority": 100, "submitted": 1.5, "resources": {"cpus": 1.0,
"gpus": 0.0, "memory_bytes": 0, "custom": {}, "nodes": 1}, "capacity": {"cpus": 2.0,
"gpus": ["0"], "memory_bytes": 8, "custom": {"board": 1.0}}, "scratch": "/cache/jobs/lr-1-abc",
"gpus": ["0"], "pid": 7, "born": "123", "cancel": false, "state": "failed", "reason": "why"}"""
NOTE = '{"node": "n", "attempt": 2, "started": 1.0, "command": 7, "born": "123"}'


def test_a_ticket_a_state_and_an_order():
    ticket = Ticket.from_json(TICKET.encode())
    assert (ticket.command, ticket.writes) == (("python", "a.py"), ("working/small",))
    assert ticket.inputs == (Input("working/faces", 4),)
    assert ticket.environment == Environment("conda", "env.yaml")
    assert json.loads(TICKET).items() <= json.loads(ticket.to_json()).items()
    progress = JobProgress.from_json(STATE.encode())
    assert (progress.state, progress.published) == ("running", {"working/small": 3})
    assert json.loads(STATE).items() <= json.loads(progress.to_json()).items()
    order = WrapperOrder.from_variables({ORDER_VARIABLE: ORDER})
    access = Access("LocalStore", {"folder": "/store"})
    assert order == WrapperOrder("lr-1-abc", "_wrapper/x.pyz", access, Pace(), 2)
    assert json.loads(order.to_variables()[ORDER_VARIABLE]) == json.loads(ORDER)


def test_an_order_without_what_came_later():
    short = '{"job":"j","wrapper":"w","access":{"make":"LocalStore","options":{"folder":"/s"}}}'
    order = WrapperOrder.from_variables({ORDER_VARIABLE: short})
    assert (order.pace, order.nodes) == (Pace(), 1)


def test_a_record_in_the_runs_folder(tmp_path: Path):
    (tmp_path / "runs/lr").mkdir(parents=True)
    (tmp_path / "runs/lr/job.json").write_text(RECORD)
    (tmp_path / "runs/lr/state.json").write_text(KNOWN)
    run = RunRecords(tmp_path / "runs").get("lr")
    assert run.record.created == datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    assert (run.record.command, run.record.tags) == (("python", "a.py"), ("night",))
    assert (run.state, run.status.exit_code, run.cancel_asked) == ("completed", 0, False)
    assert json.loads(RECORD).items() <= json.loads(run.record.to_json()).items()


def test_a_job_in_the_queue_of_this_machine_and_in_its_folder(tmp_path: Path):
    queue = JobQueue(tmp_path)
    queue.create()
    (tmp_path / "over/lr-1-abc").write_text(ENTRY)
    entry = queue.ended("lr-1-abc")
    assert entry is not None and (entry.state, entry.gpus) == ("failed", ("0",))
    assert entry.resources == Resources()
    assert entry.capacity == Capacity(2.0, ("0",), 8, {"board": 1.0})
    (tmp_path / "keeper.json").write_text(NOTE)
    assert Scratch(tmp_path).read_note() == SupervisorNote("n", 2, 1.0, 7, "123")
