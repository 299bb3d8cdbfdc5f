"""A runner's row in the registry: written while it runs, removed when it ends.

Also what a runner says of itself: whom it serves, and what it waits for while it has nothing to do.
"""

from __future__ import annotations

import math
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

from edgeloop._util.system import machine_celsius
from edgeloop._version import __version__
from edgeloop.errors import EdgeloopError
from edgeloop.models.runners import BEAT_S, Registry, RunnerDevice, RunnerEntry, new_runner_id
from edgeloop.platforms import Device, DeviceCondition, HasCondition, ListedDevice, platform_of
from edgeloop.runner.outlook import outlook
from edgeloop.runner.worker import RunnerEvent, Worker
from edgeloop.workspace import Workspace

TICK_S = 1.0
SOONEST_S = 3.0  # between two writes, however quickly the work changes
PRUNE_S = 3600.0
QUIET_S = 3.0  # without work, before that is said
LOOK_AGAIN_S = 60.0
ANSWER_S = 4 * BEAT_S  # a store that was silent for so long is away
LONGEST_LOOK_AGAIN_S = 600.0
_LEFT = DeviceCondition("unplugged", "it was plugged in here, and nobody used it")


class Presence:
    """A context manager around the work. A store that is away is no reason to stop."""

    def __init__(
        self,
        workspace: Workspace,
        crew: Sequence[Worker],
        toolchain: str,
        subset: Sequence[str],
        report: Callable[[RunnerEvent], None],
        says_waiting: bool = True,
    ) -> None:
        self._workspace = workspace
        self._crew = crew
        self._report = report
        self._subset = subset
        self._says_waiting = says_waiting
        self._registry = Registry(workspace.store)
        self._devices = DeviceWatch(workspace, [worker.equipment.device for worker in crew])
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)
        self._offset_s = 0.0  # from our clock to the store's
        self._changed_at: dict[str, tuple[object, float]] = {}
        self._waits_for = ""
        self._looked = -LONGEST_LOOK_AGAIN_S
        self._look_again_s = LOOK_AGAIN_S
        self._answered_s = -math.inf  # when the store last did
        node = workspace.settings.node
        self.entry = RunnerEntry(
            id=new_runner_id(node),
            node=node,
            experiment=workspace.experiment,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            toolchain=toolchain,
            subset=" ".join(subset),
            task=crew[0].equipment.task.name if "onnx" in crew[0].capabilities else "",
        )

    def __enter__(self) -> Presence:
        self._report(RunnerEvent("serving", text=self._serving()))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._devices.close()
        self._thread.join(BEAT_S)
        try:
            self._registry.remove(self.entry.id)
        except EdgeloopError:
            return  # it will be shown as dead, and forgotten

    def not_ready(self) -> str:
        """Why this runner can do no work now: its store or a device is away; else empty."""
        for worker in self._crew:
            if worker.device_error:
                return worker.device_error
        if time.monotonic() - self._answered_s > ANSWER_S:
            return f"{self._workspace.store.description} does not answer"
        return ""

    def _run(self) -> None:
        written = -BEAT_S
        pruned = time.monotonic() - random.uniform(0, PRUNE_S)  # not all of a fleet at once
        shown: object = None
        while True:
            now = time.monotonic()
            fresh = self._described()
            waited_s = now - written
            if waited_s >= BEAT_S or (waited_s >= SOONEST_S and fresh != shown):
                try:
                    store_now = self._workspace.store.now()
                    self._offset_s = store_now - time.time()
                    fresh = self._described()
                    self._registry.write(fresh, store_now)
                    shown, self._answered_s = fresh, time.monotonic()
                    if now - pruned >= PRUNE_S:
                        self._registry.prune()
                        pruned = now
                except EdgeloopError:
                    pass
                written = now
            self._say_what_is_awaited()
            if self._done.wait(TICK_S):
                return

    def _described(self) -> RunnerEntry:
        """This runner as it is now."""
        started = self.entry.started or time.time() + self._offset_s
        self.entry = replace(
            self.entry,
            started=started,
            devices=self._described_devices(),
            waits_for=self._waits_for,
        )
        return self.entry

    def _described_devices(self) -> tuple[RunnerDevice, ...]:
        by_device: dict[str, list[Worker]] = {}
        for worker in self._crew:
            by_device.setdefault(worker.served_device, []).append(worker)
        used = [self._described_device(name, workers) for name, workers in by_device.items()]
        plugged = [
            RunnerDevice(
                listed.device,
                state,
                listed.condition.detail,
                since=self._since(listed.device, state),
            )
            for listed in self._devices.others
            for state in [_unused(listed.condition)]
        ]
        return (*used, *plugged)

    def _described_device(self, name: str, workers: Sequence[Worker]) -> RunnerDevice:
        found = [stage for worker in workers if (stage := worker.doing) is not None]
        doing = tuple(
            replace(stage, since=stage.since + self._offset_s)
            for stage in sorted(found, key=lambda stage: stage.since)
        )
        condition = self._devices.condition(name)
        trouble = next((text for worker in workers if (text := worker.device_error)), "")
        state, detail = ("busy" if doing else "idle"), ""
        if condition.state != "ready":
            state, detail = condition.state, condition.detail
        elif trouble and not doing:
            state, detail = "offline", trouble
        failed_at, error = max(worker.last_error for worker in workers)
        return RunnerDevice(
            name,
            state,
            detail,
            workers[0].equipment.device.chip if name else "",
            tuple(sorted({can for worker in workers for can in worker.capabilities})),
            doing,
            self._since(name, state),
            machine_celsius() if name in ("", "host") else condition.celsius,
            error,
            failed_at + self._offset_s if error else 0.0,
        )

    def _since(self, name: str, state: str) -> float:
        """Since when the device has been in this state."""
        before, since = self._changed_at.get(name, ("", 0.0))
        if before != state:
            since = time.time() + self._offset_s
            self._changed_at[name] = (state, since)
        return since

    def _serving(self) -> str:
        plan = self._workspace.plan
        parts = []
        for device in self._described_devices():
            stages = [stage.name for stage in plan.stages if stage.capability in device.can]
            if stages:
                parts.append(f"{', '.join(stages)} on {device.device or 'this machine'}")
        work = "; ".join(parts) or "nothing: no stage is left to it"
        return f"Serving {self._place()}: {work}."

    def _place(self) -> str:
        workspace = self._workspace
        return f"experiment {workspace.experiment!r} of {workspace.store.description}"

    def _say_what_is_awaited(self) -> None:
        """Once it has nothing to do, and again when the reason changes."""
        idle = [d for d in self.entry.devices if d.can]
        if any(device.doing for device in idle):
            self._waits_for, self._looked = "", -LONGEST_LOOK_AGAIN_S
            self._look_again_s = LOOK_AGAIN_S
            return
        quiet_s = time.time() + self._offset_s - max((d.since for d in idle), default=0.0)
        if quiet_s < QUIET_S or time.monotonic() - self._looked < self._look_again_s:
            return
        self._looked = time.monotonic()
        self._look_again_s = min(1.5 * self._look_again_s, LONGEST_LOOK_AGAIN_S)
        try:
            awaited = outlook(self._workspace, self.entry.capabilities, self._subset)
        except EdgeloopError:
            return  # the workers say that the store is away
        if awaited != self._waits_for and self._says_waiting and not self._done.is_set():
            text = f"Waiting for work in {self._place()}: {awaited}."
            self._report(RunnerEvent("waiting", text=text))
        self._waits_for = awaited


class DeviceWatch:
    """The conditions of devices that can go away, asked by a thread of its own: an adb server that
    hangs must not make the runner look dead."""

    def __init__(self, workspace: Workspace, devices: Sequence[Device]) -> None:
        self._settings = workspace.settings
        self._watched = {d.name: d for d in devices if isinstance(d, HasCondition)}
        self._conditions: dict[str, DeviceCondition] = {}
        self._done = threading.Event()
        self.others: tuple[ListedDevice, ...] = ()
        if self._watched:
            threading.Thread(target=self._run, name="device-watch", daemon=True).start()

    def condition(self, name: str) -> DeviceCondition:
        return self._conditions.get(name, DeviceCondition())

    def close(self) -> None:
        self._done.set()

    def _run(self) -> None:
        names = set(self._watched)
        platforms = {(p := platform_of(name)).name: p for name in names}
        while not self._done.is_set():
            for name, device in self._watched.items():
                assert isinstance(device, HasCondition)
                self._conditions[name] = _condition(device)
            listed = [d for p in platforms.values() for d in p.list_devices(self._settings)]
            there = {d.device: d for d in listed if d.is_attached and d.device not in names}
            left = [replace(d, condition=_LEFT) for d in self.others if d.device not in there]
            self.others = (*there.values(), *left)
            self._done.wait(SOONEST_S)


def _condition(device: HasCondition) -> DeviceCondition:
    try:
        return device.condition()
    except EdgeloopError as error:
        return DeviceCondition("offline", str(error))


def _unused(condition: DeviceCondition) -> str:
    """A board that nobody uses is plugged in, unless it is worse."""
    return "plugged" if condition.state in ("ready", "hot") else condition.state
