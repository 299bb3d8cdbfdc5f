"""Waiting work as a number: what runners could claim now, by what they need for it.

`waiting_work` counts the stages of rows, by the rules that `Leases.claim` follows. `quick_demand`
reads hints alone, and not more of them than matter: a supervisor can afford it every second. Hints
may be stale, so it is an estimate. A stage that was renewed often looks ready there instead of
running, so ready and running together are better than each alone.
"""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from edgeloop.models.plan import CONVERTS, Plan, StageRecord, is_foreign, records_of
from edgeloop.models.queue import FINISHED, free_at, is_claimable, plain_key
from edgeloop.models.runners import RunnerDevice, RunnerEntry
from edgeloop.store import Condition, Table, Values, after_prefix
from edgeloop.workspace import Workspace

LINUX = "linux"  # f1_onnx, and conversion of models that no device has asked a toolchain for
CONVERT = "convert "  # begins the lines of toolchains: `convert snpe`
DEVICE = "device"  # stages of models that no device has measured yet: any will do
SERVING = ("busy", "idle", "hot")  # states of a device that does work
FIRST_HINTS, NEXT_HINTS = 100, 1_000  # read at once
HINTS_PER_SECOND = 100  # a reader reads on average; a partition on Azure gives 2,000 to all
HELD_HINTS = 1_000  # hints at held stages may come before those at ready ones
_MAX_ATTEMPTS = 3
_NEVER = StageRecord()
_TAKEN_NAMES = ("", LINUX, DEVICE, "total", "runners", "experiment", "read_at")

WorkState = Literal["ready", "running", "blocked"]


@dataclass(frozen=True)
class WaitingWork:
    """The work for one capability: `linux`, `device`, a conversion such as `convert snpe`, or what
    models are pinned to, which is a device type such as `htp:qcs8550` or a board's chip, or a
    toolchain.

    Attributes:
        capability: The name of this group of stages.
        stages: How many stages are ready, by name.
        ready: How many stages could be claimed now.
        running: How many stages are held by a live lease.
        blocked: How many stages of unfinished models wait for an earlier stage, for a retry, or for
            another tool that holds their model.
        oldest_s: For how long the oldest ready stage has waited, by the last change of its model's
            status; 0 if none is ready.
        runners: How many runners would help. Where only boards can do it, at most as many as are
            known.
        have: How many machines, or devices, of live runners can do it.
    """

    capability: str
    stages: Mapping[str, int] = field(default_factory=dict)
    ready: int = 0
    running: int = 0
    blocked: int = 0
    oldest_s: float = 0.0
    runners: int = 0
    have: int = 0


@dataclass(frozen=True)
class Demand:
    """Stages that could be claimed now, and stages that are held."""

    ready: int = 0
    running: int = 0


@dataclass(frozen=True, slots=True)
class StageWork:
    """A stage of a model that is still to be done, as its row tells at any time: when it may be
    claimed (never: infinity), and until when a lease holds it."""

    stage: str
    capability: str
    waits_since: float
    free_at: float
    held_until: float = 0.0
    is_queued: bool = False  # claimed ahead: an idle runner takes it

    def state(self, now: float) -> WorkState:
        if self.held_until > now:
            return "ready" if self.is_queued else "running"
        return "ready" if self.free_at <= now else "blocked"


def waiting_work(
    rows: Iterable[tuple[str, Values]],
    plan: Plan,
    entries: Sequence[RunnerEntry],
    now: float,
    margin_s: float,
    max_attempts: int = _MAX_ATTEMPTS,
) -> tuple[WaitingWork, ...]:
    """Count the work of an experiment.

    Args:
        rows: Names and values of its models.
        plan: Their stages.
        entries: Its runners, dead ones included.
        now: The time, by the clock that leases are compared with.
        margin_s: For how long an expired lease is left alone.
        max_attempts: After how many attempts a stage is given up.

    Returns:
        One line per capability: always `linux` and `device`, then conversions by toolchain, then
        what models are pinned to and what live runners have, by name.
    """
    work = (each for _, row in rows for each in stage_work(row, plan, margin_s, max_attempts))
    return summed_work(work, entries, now)


def summed_work(
    work: Iterable[StageWork],
    entries: Sequence[RunnerEntry],
    now: float,
    known: Iterable[str] = (),
) -> tuple[WaitingWork, ...]:
    """As `waiting_work`, of what `stage_work` has told. There is a line for each name that is
    `known`, even if there is neither work nor a runner for it."""
    counts: dict[tuple[str, str, str], int] = {}
    oldest: dict[str, float] = {}
    for each in work:
        state = each.state(now)
        key = each.capability, state, each.stage
        counts[key] = counts.get(key, 0) + 1
        if state == "ready":
            since = max(each.waits_since, 0.0 if each.is_queued else each.free_at) or math.inf
            if since < oldest.get(each.capability, math.inf):
                oldest[each.capability] = since
    toolchains = {name for entry in entries for name in (entry.toolchain, *toolchains_of(entry))}
    served = [
        _ServedDevice(entry, device, toolchains) for entry in entries for device in entry.devices
    ]
    capabilities = {name for name, _, _ in counts} | set(known)
    capabilities = capabilities.union(*(device.types for device in served)) - {LINUX, DEVICE}
    conversions = sorted(name for name in capabilities if name.startswith(CONVERT))
    devices = [device for device in served if not device.is_dead]
    return tuple(
        _line(name, counts, max(0.0, now - oldest.get(name, now)), devices)
        for name in (LINUX, DEVICE, *conversions, *sorted(capabilities.difference(conversions)))
    )


def stage_work(
    row: Values, plan: Plan, margin_s: float, max_attempts: int = _MAX_ATTEMPTS
) -> tuple[StageWork, ...]:
    """What a row still asks for. Nothing if it is finished, or not readable as a model's row."""
    status = row.get("status")
    if status is None or (status in FINISHED and status != "error"):
        return ()
    try:
        return tuple(_stage_work(row, plan, margin_s, max_attempts))
    except (TypeError, ValueError, OverflowError):  # a record that another tool has written
        return ()


def read_waiting_work(
    workspace: Workspace, entries: Sequence[RunnerEntry]
) -> tuple[WaitingWork, ...]:
    """The work of a workspace's experiment as it is now; `entries` are its runners. Reads all rows
    that are not complete."""
    settings = workspace.settings
    unread = [Condition("status", "!=", status) for status in FINISHED if status != "error"]
    rows = workspace.store.models(workspace.experiment).query(where=unread)
    return waiting_work(
        ((row.key, row.values) for row in rows),
        workspace.plan,
        entries,
        time.time(),
        settings.clock_margin_seconds,
        settings.max_attempts,
    )


def quick_demand(workspace: Workspace, most: int, now: float | None = None) -> Mapping[str, Demand]:
    """Estimate the work of an experiment from hints alone.

    Args:
        workspace: The experiment.
        most: As many runners as there may be. More ready stages than that are not looked for.
        now: The time that leases are compared with. By default this machine's.

    Returns:
        By capability as in `waiting_work`: ready stages, `most` at most, and running ones. The
        latter include those that wait for a retry. Always `linux` and `device`.
    """
    hints = workspace.store.queue(workspace.experiment)
    now = time.time() if now is None else now
    demand = {LINUX: Demand(), DEVICE: Demand()}
    for capability, hint_counts in _counted_hints(hints, workspace.plan, most, now).items():
        before = demand.get(group_of(capability), Demand())
        ready = min(most, before.ready + hint_counts["ready"])
        demand[group_of(capability)] = Demand(ready, before.running + hint_counts["running"])
    return demand


class DemandReader:
    """`quick_demand` for a loop that asks every second: where much waits, the hints are read again
    only after a while, so that on average a reader costs the store little. Little or no work is
    counted at every call, so a fleet grows at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[str, int], tuple[float, Mapping[str, Demand]]] = {}

    def __call__(self, workspace: Workspace, most: int) -> Mapping[str, Demand]:
        key = workspace.experiment, most
        read_again_at, demand = self._known.get(key, (-math.inf, {}))
        if self._clock() >= read_again_at:
            demand = quick_demand(workspace, most)
            hints = sum(each.ready + each.running for each in demand.values())
            self._known[key] = (self._clock() + hints / HINTS_PER_SECOND, demand)
        return demand


def restore_hints(workspace: Workspace, interval_s: float = 10.0) -> bool:
    """Restore missing hints, for example of rows that another tool wrote, unless that was done
    within this time. Idle runners do the same; where none is alive, a supervisor must."""
    return workspace.leases().sweep_if_due(interval_s)


@functools.lru_cache(maxsize=1_000)
def group_of(capability: str) -> str:
    """The line on which a capability of a runner or a hint is counted: `quantize` is `linux`, and
    `quantize@snpe` is `convert snpe`."""
    kind, _, pin = capability.partition("@")
    if kind == CONVERTS and pin:
        return conversion_group(pin)
    if not kind.startswith("device"):
        return LINUX
    return group_of_pin(pin) if pin else DEVICE


def conversion_group(toolchain: str) -> str:
    """The line of conversions with this toolchain."""
    return CONVERT + plain_key(toolchain)


def group_named(name: str) -> str:
    """The line that somebody asks for by its name; a device type may stand for its own."""
    if name.startswith(CONVERT):
        return conversion_group(name.removeprefix(CONVERT))
    return group_of_pin(name)


def group_of_pin(pin: str) -> str:
    """The line of models that are pinned to this device type."""
    plain = plain_key(pin)
    is_taken = plain in _TAKEN_NAMES or plain.startswith(CONVERT)
    return f"{DEVICE}@{plain}" if is_taken else plain


def toolchains_of(entry: RunnerEntry) -> frozenset[str]:
    """What a runner converts with."""
    kinds = (can.partition("@") for can in entry.capabilities)
    return frozenset(pin for kind, _, pin in kinds if kind == CONVERTS) - {""}


def _stage_work(row: Values, plan: Plan, margin_s: float, max_attempts: int) -> Iterator[StageWork]:
    records = records_of(row)
    is_open = is_claimable(row, records)
    is_resting = row.get("status") in FINISHED
    is_lost = is_foreign(row, records)  # a former holder of a lease cannot write any more
    since = _seconds(row.get("since")) or _seconds(row.get("model_date")) or 0.0
    for stage in plan.for_model(row):
        if stage.is_done(row):
            continue
        record = records.get(stage.name, _NEVER)
        is_ready = is_open and plan.has_what_it_needs(row, stage)
        is_queued = record.queued and is_ready
        is_held = record.is_held and not is_lost and (is_queued or not record.queued)
        if is_resting and not is_held:
            continue
        is_free = is_ready and record.has_attempts_left(max_attempts)
        yield StageWork(
            stage.name,
            group_of(plan.capability(row, stage)),
            since,
            free_at(record, margin_s) if is_free else math.inf,
            record.expires + margin_s if is_held else 0.0,
            is_queued,
        )


class _ServedDevice:
    """A device of a runner, or its machine, and what it can do."""

    def __init__(
        self, entry: RunnerEntry, device: RunnerDevice, toolchains: Collection[str]
    ) -> None:
        kinds = (can.partition("@") for can in device.can)
        pins = {pin for kind, _, pin in kinds if kind.startswith(DEVICE)} - {""}
        types = pins - {device.device, *toolchains}
        self.name = device.device
        self.groups = {group_of(can) for can in device.can}
        self.is_board = bool(types)  # one of a type; other devices are their own
        self.types = {group_of_pin(name) for name in types or pins & {device.device}}
        self.is_dead = entry.is_dead
        self.is_serving = device.state in SERVING


def _line(
    name: str,
    counts: Mapping[tuple[str, str, str], int],
    oldest_s: float,
    devices: Sequence[_ServedDevice],
) -> WaitingWork:
    states, stages = Counter[str](), {}
    for (capability, state, stage), count in sorted(counts.items()):
        if capability == name:
            states[state] += count
            if state == "ready":
                stages[stage] = count
    runners = states["ready"] + states["running"]
    able = [device for device in devices if name in device.groups]
    boards = {device.name for device in able if device.is_board}
    is_limited = name != DEVICE and bool(able) and all(device.is_board for device in able)
    return WaitingWork(
        capability=name,
        stages=stages,
        ready=states["ready"],
        running=states["running"],
        blocked=states["blocked"],
        oldest_s=oldest_s,
        runners=min(runners, len(boards)) if is_limited else runners,
        have=sum(device.is_serving for device in able),
    )


def _counted_hints(
    hints: Table, plan: Plan, most: int, now: float
) -> Mapping[str, Mapping[str, int]]:
    """How many hints are ready and running, by capability. It is unknown beforehand what models
    are pinned to: capabilities follow each other in the order of keys, and of each only as much is
    read as matters."""
    counts: dict[str, Counter[str]] = {}
    kinds = {stage.capability for stage in plan.stages}
    others = {f"{kind}|" for kind in kinds if not kind.startswith(DEVICE)} | {f"{CONVERTS}@"}
    for prefix in sorted({DEVICE} | others):
        after, size = "", 2 * most + FIRST_HINTS
        while page := list(hints.query(prefix, after=after, limit=size)):
            for hint in page:
                after, capability = hint.key, hint.key.partition("|")[0]
                states = counts.setdefault(capability, Counter())
                is_known = hint.key.rpartition("|")[2] in plan
                states[_hint_state(hint.values, now) if is_known else "unknown"] += 1
            if len(page) < size:
                break
            size = max(size, NEXT_HINTS)
            if states["ready"] >= most or states.total() >= 4 * most + HELD_HINTS:
                after, size = after_prefix(f"{capability}|"), 2 * most + FIRST_HINTS
    return counts


def _hint_state(hint: Values, now: float) -> WorkState:
    is_free = hint.get("queued") or _number(hint.get("until")) <= now
    return "ready" if is_free else "running"


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _seconds(text: object) -> float | None:
    """A time of a row in ISO 8601, as seconds; other formats of old tables are not guessed."""
    try:
        moment = datetime.fromisoformat(str(text))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
