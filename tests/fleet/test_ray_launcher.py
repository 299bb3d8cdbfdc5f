"""Which runners of a Ray cluster may be killed when they are told to end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edgeloop.operate.fleet.launcher import RunnerOrder
from edgeloop.operate.fleet.ray import supervise as engine
from edgeloop.operate.fleet.ray.node import Shipment


class Handle:
    """An actor that keeps its answers to itself."""

    def __init__(self, state: str) -> None:
        self.state, self.told = state, list[str]()
        self.status = SimpleNamespace(remote=object)
        self.drain = SimpleNamespace(remote=lambda: self.told.append("drain"))


class SilentRay:
    """A cluster with one runner, which an earlier supervisor of the same fleet started."""

    def __init__(self, handle: Handle, shipment: Shipment) -> None:
        self.handle, self.killed = handle, list[Handle]()
        name = f"fleet-1 {shipment.id} {RunnerOrder('fleet-1', 'faces').to_json()}"
        self.util = SimpleNamespace(list_named_actors=lambda: [name])
        self.exceptions = SimpleNamespace(RayError=KeyError)

    def get_actor(self, name: str) -> Handle:
        return self.handle

    def wait(self, questions: list[Any], **_: object) -> tuple[list[Any], list[Any]]:
        return [], questions

    def kill(self, handle: Handle) -> None:
        self.killed.append(handle)


@pytest.mark.parametrize("state", ["ALIVE", "", "PENDING_CREATION", "RESTARTING"])
def test_only_what_has_no_process_is_killed(state: str, monkeypatch: pytest.MonkeyPatch):
    """A supervisor that was started again has no answer of its runners yet."""
    shipment = Shipment("1", "fleet", "edgeloop", "gcs://package.zip", (), (), {})
    handle = Handle(state)
    ray = SilentRay(handle, shipment)
    now = [1000.0]
    monkeypatch.setattr(engine, "connect", lambda _: None)
    monkeypatch.setattr(engine, "actor_state", lambda handle: handle.state)
    monkeypatch.setattr(engine.time, "monotonic", lambda: now[0])
    launcher = engine.RayLauncher(shipment)
    launcher._ray = ray  # type: ignore[assignment]
    assert launcher.states() == {"fleet-1": "waiting"}
    launcher.drain("fleet-1")
    if state in ("ALIVE", ""):
        now[0] += 30
        assert launcher.states() == {"fleet-1": "draining"}
        assert handle.told == ["drain"] and not ray.killed
        handle.state = "RESTARTING"  # with its node
        launcher.states()
    assert ray.killed == [handle]
