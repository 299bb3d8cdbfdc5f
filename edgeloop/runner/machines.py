"""The machines of a farm as people see them: one line per device, and how much each is used."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

from edgeloop.models.columns import natural_key
from edgeloop.models.plan import Plan, records_of
from edgeloop.models.runners import CurrentStage, RunnerDevice, RunnerEntry
from edgeloop.store import Value, Values


@dataclass(frozen=True)
class MachineLine:
    """A device of a machine. An empty device is the machine itself, which converts models and tests
    float ones. `state` is busy, idle, hot, plugged (no runner uses it), unplugged, unauthorized,
    offline or dead (its runner has fallen silent); `seconds` is for how long.

    `detail` says why a device cannot be used and what to do, or what an idle runner waits for.
    `work` is what `doing` says in words. `error` is the last one there, `error_seconds` ago; its
    runner was heard `seen_seconds` ago, None if it is known from its leases alone.
    """

    machine: str
    device: str
    state: str
    doing: tuple[str, ...] = ()
    detail: str = ""
    seconds: float = 0.0
    experiment: str = ""
    stages: tuple[str, ...] = ()
    chip: str = ""
    version: str = ""
    host: str = ""
    pid: int = 0
    work: tuple[CurrentStage, ...] = ()
    celsius: float | None = None
    error: str = ""
    error_seconds: float = 0.0
    seen_seconds: float | None = None

    @property
    def text(self) -> str:
        return ", ".join(self.doing) or self.detail


@dataclass(frozen=True)
class HeldStage:
    """A lease in a model's row, which tells of runners that are not in the registry, such as those
    of an older version, and of what began a moment ago."""

    owner: str
    stage: str
    model: str
    since: float
    expires: float


def held_stages(rows: Iterable[Values]) -> list[HeldStage]:
    return [
        HeldStage(
            str(record.owner),
            stage,
            str(row.get("name", "")),
            _time(record.since),
            _time(record.expires),
        )
        for row in rows
        for stage, record in records_of(row).items()
        if record.is_held
    ]


def machine_lines(
    entries: Sequence[RunnerEntry], plan: Plan, now_s: float, held: Iterable[HeldStage] = ()
) -> list[MachineLine]:
    """Sorted by machine and device, in natural order."""
    by_device: dict[tuple[str, str], list[HeldStage]] = defaultdict(list)
    for stage in sorted(held, key=lambda stage: stage.since):
        by_device[place_of(stage.owner)].append(stage)
    lines: dict[tuple[str, str], MachineLine] = {}
    for entry in sorted(entries, key=lambda entry: (not entry.is_dead, entry.beat)):
        for used in entry.devices:
            line = _line(entry, used, plan, now_s)
            key = line.machine, line.device
            if line.state == "idle" and key in by_device:
                line = _with_work(line, by_device[key], now_s)
            if key not in lines or lines[key].state == "dead" or line.state != "plugged":
                lines[key] = line
    for key, stages in by_device.items():
        if key not in lines:
            lines[key] = _with_work(MachineLine(*key, "idle"), stages, now_s)
    shown = _each_board_once(lines.values())
    return sorted(shown, key=lambda line: (natural_key(line.machine), natural_key(line.device)))


def _each_board_once(lines: Iterable[MachineLine]) -> list[MachineLine]:
    """Runners of one host may have several names, and each reports the boards that it does not
    use: such a board is shown where it is used, and otherwise once."""
    by_board: dict[tuple[str, str], list[MachineLine]] = defaultdict(list)
    for line in lines:
        by_board[line.host or line.machine, line.device].append(line)
    shown: list[MachineLine] = []
    for same in by_board.values():
        live = [line for line in same if line.state != "dead"]
        unused = [line for line in live if line.device and line.host and not line.stages]
        if len(unused) < len(live) or not unused:
            shown += [line for line in same if line not in unused]
        else:
            shown.append(unused[0])
    return shown


def _line(entry: RunnerEntry, device: RunnerDevice, plan: Plan, now_s: float) -> MachineLine:
    doing = tuple(map(str, device.doing))
    state, detail, since = device.state, device.detail, device.since
    if entry.is_dead:
        was = f"was at {', '.join(doing)}; " if doing else ""
        detail = f"{was}its runner (process {entry.pid}) no longer answers"
        state, doing, since = "dead", (), entry.beat
    elif doing:
        since = min(stage.since for stage in device.doing)
    elif state == "idle":
        detail = entry.waits_for
    stages = tuple(stage.name for stage in plan.stages if stage.capability in device.can)
    return MachineLine(
        machine=entry.node,
        device=device.device,
        state=state,
        doing=doing,
        detail=detail,
        seconds=max(0.0, now_s - since),
        experiment=entry.experiment if device.can else "",
        stages=stages,
        chip=device.chip,
        version=entry.version,
        host=entry.host,
        pid=entry.pid,
        work=() if entry.is_dead else device.doing,
        celsius=None if entry.is_dead else device.celsius,
        error=device.error,
        error_seconds=max(0.0, now_s - device.error_at) if device.error else 0.0,
        seen_seconds=max(0.0, now_s - entry.beat),
    )


def _with_work(line: MachineLine, stages: Sequence[HeldStage], now_s: float) -> MachineLine:
    doing = tuple(f"{stage.stage} {stage.model}" for stage in stages)
    seconds = max(0.0, now_s - stages[0].since)
    if all(stage.expires < now_s for stage in stages):
        detail = f"was at {', '.join(doing)}; its lease has run out"
        return replace(line, state="dead", detail=detail, seconds=seconds)
    work = tuple(CurrentStage(stage.stage, stage.model, stage.since) for stage in stages)
    return replace(line, state="busy", doing=doing, seconds=seconds, detail="", work=work)


def _time(value: object) -> float:
    """Of a row that any tool may have written."""
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_number else 0.0  # type: ignore[arg-type]


# The use of devices, as `record_use` wrote it.


USE_COLUMNS = ("machine", "device", "day", "seconds", "uses")


@dataclass(frozen=True)
class DeviceUse:
    """The machine is empty in rows of older versions and of Archai, which name the device alone."""

    machine: str
    device: str
    day: date
    seconds: float
    uses: int

    @property
    def utilisation(self) -> float:
        return self.seconds / 86_400

    @property
    def values(self) -> dict[str, Value]:
        """As `devices usage` prints it as JSON and CSV."""
        return {
            "machine": self.machine,
            "device": self.device,
            "day": f"{self.day}",
            "seconds": self.seconds,
            "uses": self.uses,
        }


@dataclass(frozen=True)
class UseToday:
    """Seconds in use since midnight UTC, of devices on their machines; `passed_s` is how long ago
    that was. Rows of older versions do not say on which machine a device was: then it is the same
    device for all that have it."""

    passed_s: float
    by_place: Mapping[tuple[str, str], float]
    by_device: Mapping[str, float]

    def seconds(self, machine: str, device: str) -> float:
        """`device` is empty for the machine itself."""
        placed = self.by_place.get((machine, device), 0.0)
        return min(self.passed_s, placed + (self.by_device.get(device, 0.0) if device else 0.0))

    def share(self, machine: str, device: str) -> float:
        return self.seconds(machine, device) / self.passed_s


def use_today(rows: Iterable[Values], now: datetime) -> UseToday:
    """The machine itself has the empty name here, although the record says `host`."""
    today = now.astimezone(UTC).date()
    midnight = datetime.combine(today, datetime.min.time(), UTC)
    renamed: list[Values] = []
    for row in rows:
        owner = str(row.get("owner", ""))
        renamed.append({**row, "name": place_of(owner)[1]} if owner else row)
    uses = [use for use in utilisation(renamed) if use.day == today]
    by_place = {(use.machine, use.device): use.seconds for use in uses if use.machine}
    by_device = {use.device: use.seconds for use in uses if not use.machine}
    return UseToday(max(1.0, (now - midnight).total_seconds()), by_place, by_device)


def place_of(owner: str) -> tuple[str, str]:
    """The machine and the device of a lease's owner. The device is empty for the machine itself,
    whose name has an ending: its bare name would be a lock of Archai's."""
    machine, _, device = owner.partition("/")
    return machine.removesuffix(":runner"), device


def utilisation(rows: Iterable[Values]) -> list[DeviceUse]:
    """Seconds in use per machine, device and UTC day; overlapping uses of one device count once."""
    spans: dict[tuple[str, str, date], list[tuple[datetime, datetime]]] = defaultdict(list)
    for row in rows:
        start, end = _moment(row.get("start")), _moment(row.get("end"))
        if start is None or end is None or end < start:
            continue
        machine, _ = place_of(str(row.get("owner", "")))
        for day, first, last in _days(start, end):
            spans[machine, str(row.get("name", "")), day].append((first, last))
    return [
        DeviceUse(
            machine=machine,
            device=device,
            day=day,
            seconds=_covered(periods),
            uses=len(periods),
        )
        for (machine, device, day), periods in sorted(spans.items())
    ]


def _days(start: datetime, end: datetime) -> Iterable[tuple[date, datetime, datetime]]:
    while start.date() < end.date():
        midnight = datetime.combine(start.date() + timedelta(days=1), datetime.min.time(), UTC)
        yield start.date(), start, midnight
        start = midnight
    yield start.date(), start, end


def _covered(spans: list[tuple[datetime, datetime]]) -> float:
    total, reached = 0.0, datetime.min.replace(tzinfo=UTC)
    for start, end in sorted(spans):
        begin = max(start, reached)
        if end > begin:
            total += (end - begin).total_seconds()
            reached = end
    return total


def _moment(value: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
