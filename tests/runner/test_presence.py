"""A runner is seen while it runs: in the registry, and by what it says."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from edgeloop.models.runners import DEAD_S, Registry
from tests.jobs.waiting import eventually
from tests.runner.conftest import NETS, Farm

pytestmark = pytest.mark.server


def test_a_waiting_runner_says_whom_it_serves_and_is_seen_until_it_ends(
    make_farm: Callable[[str], Farm], monkeypatch: pytest.MonkeyPatch
) -> None:
    farm = make_farm("postgresql")
    farm.edgeloop("upload", str(NETS / "unet-w8.onnx"), "--name", "calm-heron")
    with ExitStack() as cleaning, farm.workspace() as workspace:
        options = ("--no-quantize", "--benchmark-only")
        ended, killed = (farm.runner(*options, device="host") for _ in range(2))
        cleaning.callback(killed.kill)
        cleaning.callback(ended.kill)
        eventually(lambda: [bool(e.waits_for) for e in workspace.runners()] == [True, True])
        for entry in workspace.runners():
            assert entry.pid in (ended.pid, killed.pid)
            assert [device.device for device in entry.devices] == ["", "host"]
            assert entry.capabilities >= {"device", "device@host"}
            assert not entry.capabilities & {"quantize", "onnx"}
        ended.send_signal(signal.SIGINT)
        output, err = ended.communicate(timeout=60)
        assert ended.returncode == 130 and "unfinished ones were given back" in output + (err or "")
        store = workspace.store
        place = f"experiment 'default' of {store.description}"
        assert f"Serving {place}: benchmark on host." in output
        waiting = "1 waiting for convert qnn, which this runner does not do"
        assert f"Waiting for work in {place}: {waiting}." in output
        killed.kill()
        killed.communicate(timeout=60)
        assert [entry.pid for entry in workspace.runners()] == [killed.pid]
        later = store.now() + DEAD_S + 1
        monkeypatch.setattr(store, "now", lambda: later)
        assert [entry.state for entry in Registry(store).entries()] == ["dead"]
