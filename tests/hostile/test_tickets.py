"""Tickets and states of jobs out of a store that others write to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from edgeloop.errors import BadInput
from edgeloop.node.ticket import JobProgress, Ticket, WrapperOrder
from edgeloop.store import Access
from edgeloop.testing import MemoryStore

TICKET = {"id": "j", "name": "n", "experiment": "e", "command": ["true"], "code": "c"}
STATE = {"state": "running", "attempt": 1, "node": "n", "heartbeat": 1.0}
BYTES: Mapping[str, bytes] = {
    "empty": b"",
    "no JSON": b"\xff\xfe",
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 100_000,
    "a list": b"[]",
    "a number": b"7",
    "5,000 digits": b'{"attempt": ' + b"9" * 5_000 + b"}",
}
TICKETS: Mapping[str, Mapping[str, Any]] = {
    "unknown key": {"evil": 1},
    "id a list": {"id": ["j"]},
    "command a text": {"command": "rm -rf /"},
    "command of numbers": {"command": [1, 2]},
    "code a mapping": {"code": {"a": 1}},
    "inputs a mapping": {"inputs": {"name": "x", "version": 1}},
    "inputs of texts": {"inputs": ["x"]},
    "version a text": {"inputs": [{"name": "x", "version": "latest"}]},
    "version true": {"inputs": [{"name": "x", "version": True}]},
    "variables a list": {"variables": ["A=1"]},
    "variables of numbers": {"variables": {"A": 1}},
    "attempt a text": {"attempt": "1"},
    "attempt of 400 digits": {"attempt": 10**400},
    "retries a fraction": {"retries": 1.5},
    "timeout a text": {"timeout_s": "1h"},
    "timeout endless": {"timeout_s": float("inf")},
    "grace of 1e300": {"grace_s": 1e300},
    "environment a text": {"environment": "here"},
    "source without url": {"sources": [{"name": "x"}]},
    "options of lists": {"sources": [{"name": "x", "url": "u", "options": {"a": [1]}}]},
}
STATES: Mapping[str, Mapping[str, Any]] = {
    "state a number": {"state": 7},
    "heartbeat a text": {"heartbeat": "now"},
    "heartbeat of 400 digits": {"heartbeat": 10**400},
    "started a list": {"started": [1]},
    "exit code a text": {"exit_code": "0"},
    "reason a mapping": {"reason": {"a": 1}},
    "metrics a list": {"metrics": [1]},
    "published of texts": {"published": {"x": "1"}},
    "files a list": {"files": [1]},
    "log of 10**30 bytes": {"log_bytes": 10**30},
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_that_are_no_document_are_refused(name: str) -> None:
    for kind in (Ticket, JobProgress):
        with pytest.raises(BadInput, match="cannot be read"):
            kind.from_json(BYTES[name])


@pytest.mark.parametrize("name", TICKETS)
def test_a_ticket_of_the_wrong_shape_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="The job's ticket cannot be read"):
        Ticket.from_json(json.dumps({**TICKET, **TICKETS[name]}).encode())


@pytest.mark.parametrize("name", STATES)
def test_a_state_of_the_wrong_shape_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="The job's state cannot be read"):
        JobProgress.from_json(json.dumps({**STATE, **STATES[name]}).encode())


def test_what_is_right_is_read() -> None:
    assert Ticket.from_json(json.dumps(TICKET).encode()).command == ("true",)
    assert JobProgress.from_json(json.dumps(STATE).encode()).node == "n"
    order = WrapperOrder("j", "w", Access("LocalStore", {"folder": "/s"}))
    assert WrapperOrder.from_variables(order.to_variables()) == order


def test_a_document_of_gigabytes_is_not_read() -> None:
    blobs = MemoryStore().blobs
    blobs.put("_jobs/j/ticket.json", bytes(9_000_000))
    with pytest.raises(BadInput, match="larger than 8 MB"):
        blobs.read_document("_jobs/j/ticket.json")
