"""The registry of runners: on every store, by the store's clock, and bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeloop.models.plan import default_plan
from edgeloop.models.runners import (
    BEAT_S,
    DEAD_S,
    FORGET_S,
    MOST_DEAD,
    CurrentStage,
    Registry,
    RunnerDevice,
    RunnerEntry,
    new_runner_id,
)
from edgeloop.store import Store
from edgeloop.testing import MemoryStore
from tests.store.passing import ClockedStore

MACHINE = RunnerDevice("", can=("onnx", "quantize"))
BOARD = RunnerDevice("adb:1", can=("device", "device@adb:1"))


def runner(node: str, *devices: RunnerDevice, experiment: str = "exp") -> RunnerEntry:
    return RunnerEntry(new_runner_id(node), node, experiment, "host", 7, "1.0", devices=devices)


def test_a_runner_is_read_as_it_was_written_on_every_store(store: Store) -> None:
    hot = replace(BOARD, state="hot", detail="too hot", error="no profile", error_at=9.0)
    entry = runner("lab/ü|1", MACHINE, replace(hot, celsius=81.5))
    registry = Registry(store)
    registry.write(entry)
    assert [device.celsius for device in Registry(store).entries()[0].devices] == [None, 81.5]
    busy = replace(entry, devices=(replace(MACHINE, doing=(CurrentStage("convert", "m", 5.0),)),))
    assert [replace(read, beat=0.0) for read in Registry(store).entries()] == [entry]
    registry.write(busy)
    [read] = Registry(store).entries("exp")
    assert replace(read, beat=0.0) == busy
    assert (read.state, read.is_dead, read.age_s < DEAD_S) == ("working", False, True)
    assert Registry(store).entries("other") == []
    assert store.experiments() == []
    assert list(store.models("exp").query()) == []
    registry.remove(entry.id)
    assert Registry(store).entries() == []


def test_idle_runners_are_found_by_what_they_can_do() -> None:
    store = ClockedStore()
    working = replace(BOARD, state="busy", doing=(CurrentStage("benchmark", "m"),))
    runners = {
        "idle": runner("idle", MACHINE, BOARD),
        "busy": runner("busy", MACHINE, working),
        "hot": runner("hot", replace(BOARD, state="hot")),
        "elsewhere": runner("elsewhere", BOARD, experiment="other"),
        "plugged": runner("plugged", RunnerDevice("adb:1", "plugged")),
    }
    registry = Registry(store)
    for entry in runners.values():
        registry.write(entry)

    def idle(capability: str, *besides: str) -> set[str]:
        return {entry.node for entry in registry.idle_for("exp", capability, besides)}

    assert idle("device") == {"idle"}
    assert idle("device@adb:1") == {"idle"}
    assert idle("quantize") == {"idle", "busy"}
    assert idle("quantize", runners["idle"].id) == {"busy"}
    assert runners["idle"].stages(default_plan()) == ("convert", "benchmark", "f1_onnx")


def test_silence_makes_a_runner_dead_by_the_stores_clock_and_a_beat_brings_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, entry = ClockedStore(), runner("lab", BOARD)
    registry = Registry(store)
    registry.write(entry)
    monkeypatch.setattr("time.time", lambda: 0.0)  # this machine's own clock is wrong
    store.time_s += DEAD_S - BEAT_S
    assert [read.state for read in registry.live("exp")] == ["idle"]
    store.time_s += 2 * BEAT_S
    assert [read.state for read in registry.entries()] == ["dead"]
    assert registry.live("exp") == registry.idle_for("exp", "device") == []
    registry.write(entry)
    assert [read.state for read in registry.entries()] == ["idle"]


def test_the_dead_are_forgotten_and_never_too_many() -> None:
    store = ClockedStore()
    registry = Registry(store)
    for number in range(MOST_DEAD + 5):
        registry.write(runner(f"pod-{number:03d}"))
        store.time_s += 1
    store.time_s += DEAD_S
    alive = runner("alive")
    registry.write(alive)
    registry.prune()
    nodes = [entry.node for entry in registry.entries()]
    assert nodes == ["alive", *(f"pod-{number:03d}" for number in range(5, MOST_DEAD + 5))]
    store.time_s += FORGET_S + 1
    registry.prune()
    assert registry.entries() == []
    registry.write(alive)  # taken for dead while its machine slept
    assert [entry.node for entry in registry.entries()] == ["alive"]


@pytest.mark.parametrize(
    "devices",
    [
        "",
        "{",
        "null",
        '{"a": 1}',
        "[1]",
        '[{"since": Infinity}]',
        '[{"can": 3, "doing": 4}]',
        "[" * 9999,
    ],
)
def test_rows_that_others_wrote_are_shown_as_far_as_they_can_be_read(devices: str) -> None:
    store = MemoryStore()
    store.runners().insert("odd|1", {"devices": devices, "beat": "soon", "pid": "x", "more": 1})
    [entry] = Registry(store).entries()
    assert (entry.node, entry.state, entry.doing) == ("odd", "dead", ())
