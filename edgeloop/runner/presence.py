"""What a runner tells others: events for screen and log, its row in the registry, its health file,
the use of its devices, and what it waits for while it has nothing to do."""

from __future__ import annotations

import contextlib
import math
import os
import random
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from edgeloop._util.system import machine_celsius
from edgeloop._version import __version__
from edgeloop.errors import EdgeloopError, LocalFileError
from edgeloop.models.catalog import ExperimentSettings, read_settings
from edgeloop.models.columns import CANDIDATE, matches_any
from edgeloop.models.plan import Stage, is_foreign, records_of
from edgeloop.models.queue import FINISHED
from edgeloop.models.runners import BEAT_S, Registry, RunnerDevice, RunnerEntry, new_runner_id
from edgeloop.platforms import Device, DeviceCondition, HasCondition, ListedDevice, platform_of
from edgeloop.runner.health import BEAT_S as HEALTH_BEAT_S
from edgeloop.runner.health import write_health
from edgeloop.store import Condition, Table, Values
from edgeloop.workspace import Workspace, models_elsewhere

if TYPE_CHECKING:
    from edgeloop.runner.worker import Worker

TICK_S = 1.0
SOONEST_S = 3.0  # between two writes, however quickly the work changes
PRUNE_S = 3600.0
SETTINGS_S = 20.0  # between two looks at what the experiment asks for
QUIET_S = 3.0  # without work, before the runner says so
LOOK_AGAIN_S = 60.0
ANSWER_S = 4 * BEAT_S  # after this long without an answer the store counts as unreachable
LONGEST_LOOK_AGAIN_S = 600.0
_LEFT = DeviceCondition("unplugged", "it was plugged in here, and no runner used it")
MOST_ROWS = 100  # a look costs the same however many models there are
MOST_NAMES = 3


@dataclass(frozen=True)
class RunnerEvent:
    """A message for the screen and the log: a stage has begun, is done, has failed, or was released
    because this machine could not do it. Messages without a model say which experiment a runner
    serves, what it waits for, how models stand at the end (`drained`), or something else
    (`note`)."""

    state: Literal["begun", "done", "failed", "released", "note", "serving", "waiting", "drained"]
    model: str = ""
    stage: str = ""
    seconds: float = 0.0
    text: str = ""
    summary: DrainSummary | None = None


class Presence:
    """A context manager around the work. An unreachable store is no reason to stop."""

    def __init__(
        self,
        workspace: Workspace,
        crew: Sequence[Worker],
        subset: Sequence[str],
        report: Callable[[RunnerEvent], None],
        is_outdated: Callable[[ExperimentSettings], bool] = lambda settings: False,
        lacks_data: Callable[[], str] = lambda: "",
        outdated: threading.Event | None = None,
        says_waiting: bool = True,
    ) -> None:
        """When `is_outdated` says so of the experiment's settings, `has_changed` is set; they are
        read now and then, and as soon as a worker finds that the runner is `outdated`.
        `lacks_data`: why this machine must leave what needs data to others; empty: it need not."""
        self._is_outdated = is_outdated
        self._lacks_data = lacks_data
        self._asked_at = time.monotonic()
        self._outdated = outdated or threading.Event()
        self.has_changed = threading.Event()
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
            toolchain=crew[-1].equipment.toolchain.name,
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
        """Why this runner can do no work now, an unreachable store or device; empty if it can."""
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
            with contextlib.suppress(EdgeloopError):
                self._compare_settings(now)
            self._say_what_is_awaited()
            if self._done.wait(TICK_S):
                return

    def _compare_settings(self, now: float) -> None:
        if now - self._asked_at < SETTINGS_S and not self._outdated.is_set():
            return
        self._asked_at = now
        self._outdated.clear()
        if self._is_outdated(read_settings(self._workspace.store, self._workspace.experiment)):
            self.has_changed.set()

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
        running = [stage for worker in workers if (stage := worker.doing) is not None]
        doing = tuple(
            replace(stage, since=stage.since + self._offset_s)
            for stage in sorted(running, key=lambda stage: stage.since)
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
            device=name,
            state=state,
            detail=detail,
            chip=workers[0].equipment.device.chip if name else "",
            can=self._can(name, workers),
            doing=doing,
            since=self._since(name, state),
            celsius=machine_celsius() if name in ("", "host") else condition.celsius,
            error=error,
            error_at=failed_at + self._offset_s if error else 0.0,
        )

    def _can(self, name: str, workers: Sequence[Worker]) -> tuple[str, ...]:
        """Without data the machine itself does none of its stages."""
        if not name and self._lacks_data():
            return ()
        return tuple(sorted({can for worker in workers for can in worker.capabilities}))

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
            return  # the workers report that the store is unreachable
        if reason := self._lacks_data():
            awaited = f"{awaited}; {reason}"
        if awaited != self._waits_for and self._says_waiting and not self._done.is_set():
            text = f"Waiting for work in {self._place()}: {awaited}."
            self._report(RunnerEvent("waiting", text=text))
        self._waits_for = awaited


class DeviceWatch:
    """The conditions of devices that can be unplugged, in a thread of its own: an adb server that
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
        platforms = {platform.name: platform for platform in map(platform_of, names)}
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
    """An unused board is `plugged`, unless it has a problem."""
    return "plugged" if condition.state in ("ready", "hot") else condition.state


class HealthBeat:
    """A context manager around a runner: keeps its health file. Without a file it does nothing.

    A worker is stuck when nothing of its device has shown progress for `stuck_s`: long stages show
    it piece by piece, and every wait with a timeout shows it, too, also one for the store.
    """

    def __init__(self, file: Path | None, stuck_s: float) -> None:
        self._file = file
        self._stuck_s = stuck_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._workers: Sequence[Worker] = ()
        self._not_ready: Callable[[], str] = lambda: "it is starting"

    def watch(self, workers: Sequence[Worker], not_ready: Callable[[], str]) -> None:
        """From now on these must show progress; `not_ready` says why no work is taken, if so."""
        self._workers, self._not_ready = workers, not_ready

    def __enter__(self) -> HealthBeat:
        if self._file is not None:
            write_health(self._file, "", self._not_ready())  # a file that cannot be: said at once
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is None:
            return
        self._done.set()
        self._thread.join(HEALTH_BEAT_S)
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _run(self) -> None:
        assert self._file is not None
        while not self._done.wait(HEALTH_BEAT_S):
            with contextlib.suppress(LocalFileError):  # a full disk: the probe notices if it lasts
                write_health(self._file, self._stuck(), self._not_ready())

    def _stuck(self) -> str:
        """Sessions of one device wait for each other, so any of them speaks for all."""
        newest: dict[str, Worker] = {}
        for worker in self._workers:
            other = newest.setdefault(worker.served_device, worker)
            if worker.progressed_s > other.progressed_s:
                newest[worker.served_device] = worker
        for name, worker in newest.items():
            silent_s = time.monotonic() - worker.progressed_s
            if silent_s > self._stuck_s:
                what = f"{worker.doing.stage} {worker.doing.model}" if worker.doing else "no stage"
                where = name or "the machine itself"
                return f"{where} has made no progress for {silent_s:.0f} s ({what})"
        return ""


def record_use(usage: Table, device: str, start: datetime, end: datetime, **more: str) -> None:
    """Columns `name`, `start`, `end` as in Archai's table, and `model`, `stage` and `owner`, the
    holder of the lease. A failure to record does not lose the measurement."""
    key = f"{start.timestamp():015.3f}-{secrets.token_hex(4)}"
    row = {"name": device, "start": start.isoformat(), "end": end.isoformat(), **more}
    with contextlib.suppress(EdgeloopError):
        usage.insert(key, row)


@dataclass(frozen=True)
class DrainSummary:
    """How the models stand when a runner has nothing left to do: how many are complete, which ones
    are in error, and why others are left, with how many there are of each kind. `ready` of those
    have a stage that this runner should have done."""

    done: int
    failed: tuple[str, ...]
    left: tuple[tuple[str, int], ...]
    ready: int = 0

    def __str__(self) -> str:
        names = ", ".join(self.failed[:MOST_NAMES])
        more = " and others" if len(self.failed) > MOST_NAMES else ""
        failed = f"{len(self.failed)} failed" + (f" ({names}{more})" if self.failed else "")
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.left)
        left = f"{sum(count for _, count in self.left)} left" + (f": {reasons}" if reasons else "")
        return f"Models: {self.done} done, {failed}, {left}."


def drain_summary(
    workspace: Workspace,
    capabilities: Collection[str],
    subset: Sequence[str] = (),
    cannot: Collection[str] = (),
    is_ours: Callable[[str], bool] = lambda model: True,
) -> DrainSummary:
    """Of all models of the experiment that match the subset. `cannot` are capabilities that this
    runner would have if its machine could. What `is_ours` says of a model decides whether the
    runner should have worked on it."""
    done, failed, left, ready = 0, [], Counter[str](), 0
    plan = workspace.plan
    for row in workspace.store.models(workspace.experiment).query():
        status = row.values.get("status")
        if status == CANDIDATE or not matches_any(row.key, subset):
            continue
        if status == "complete":
            done += 1
        elif status == "error":
            failed.append(row.key)
        elif status in FINISHED:
            left[str(status)] += 1
        else:
            left[_reason(workspace, row.values, capabilities)] += 1
            free = _free_stages(workspace, row.values)
            able = {*capabilities, *cannot}
            is_left = any(plan.capability(row.values, stage) in able for stage in free)
            ready += is_left and is_ours(row.key)
    return DrainSummary(done, tuple(failed), tuple(left.most_common()), ready)


def outlook(workspace: Workspace, capabilities: Collection[str], subset: Sequence[str] = ()) -> str:
    """What stands between a runner with these capabilities and its next stage, as a phrase."""
    table = workspace.store.models(workspace.experiment)
    unfinished = [Condition("status", "!=", status) for status in FINISHED]
    rows = list(table.query(where=unfinished, limit=MOST_ROWS))
    if not rows:
        if any(True for _ in table.query(limit=1)):
            return "no model has anything left to do"
        others = ", ".join(f"{n} in '{name}'" for name, n in models_elsewhere(workspace).items())
        return f"experiment '{workspace.experiment}' has no models" + (others and f"; {others}")
    more = " or more" if len(rows) == MOST_ROWS else ""
    waiting = [row.values for row in rows if matches_any(row.key, subset)]
    if not waiting:
        return f"{len(rows)}{more} unfinished, but none matches {' or '.join(subset)}"
    reasons = Counter(_reason(workspace, row, capabilities) for row in waiting)
    return ", ".join(f"{count}{more} {reason}" for reason, count in reasons.most_common(MOST_NAMES))


def _free_stages(workspace: Workspace, row: Values) -> list[Stage]:
    """The stages that are ready and that no runner holds."""
    records = records_of(row)
    if is_foreign(row, records):
        return []
    ready = [s for s in workspace.plan.for_model(row) if workspace.plan.is_ready(row, s)]
    return [stage for stage in ready if not (r := records.get(stage.name)) or not r.is_held]


def _reason(workspace: Workspace, row: Values, capabilities: Collection[str]) -> str:
    plan = workspace.plan
    records = records_of(row)
    owners = sorted({record.owner for record in records.values() if record.is_held})
    free = _free_stages(workspace, row)
    if is_foreign(row, records):
        return f"held by {row.get('node')}, which is not an Edgeloop runner"
    ours = [stage for stage in free if plan.capability(row, stage) in capabilities]
    if ours:
        return f"ready for {plan.title(row, ours[0])}, to be tried again soon"
    if owners:
        shown = ", ".join(owners[:MOST_NAMES])
        return f"in work at {shown}{' and others' if len(owners) > MOST_NAMES else ''}"
    if not free:
        return "with no stage that is ready"
    return f"waiting for {plan.title(row, free[0])}, which this runner does not do"
