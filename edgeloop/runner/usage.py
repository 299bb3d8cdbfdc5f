"""The record of device use: utilisation by day, and what each device is doing now."""

from __future__ import annotations

import contextlib
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from edgeloop.errors import EdgeloopError
from edgeloop.models import records_of
from edgeloop.store import Table, Values


@dataclass(frozen=True)
class DeviceUse:
    device: str
    day: date
    seconds: float
    uses: int

    @property
    def utilisation(self) -> float:
        return self.seconds / 86_400


def record_use(usage: Table, device: str, start: datetime, end: datetime, **more: str) -> None:
    """Columns `name`, `start`, `end` as in Archai's table. A failure to record does not lose the
    measurement."""
    key = f"{start.timestamp():015.3f}-{secrets.token_hex(4)}"
    row = {"name": device, "start": start.isoformat(), "end": end.isoformat(), **more}
    with contextlib.suppress(EdgeloopError):
        usage.insert(key, row)


def utilisation(rows: Iterable[Values]) -> list[DeviceUse]:
    """Seconds in use per device and UTC day; overlapping uses of one device count once."""
    spans: dict[tuple[str, date], list[tuple[datetime, datetime]]] = defaultdict(list)
    uses: dict[tuple[str, date], int] = defaultdict(int)
    for row in rows:
        start, end = _time(row.get("start")), _time(row.get("end"))
        if start is None or end is None or end < start:
            continue
        for day, first, last in _days(start, end):
            spans[str(row.get("name", "")), day].append((first, last))
            uses[str(row.get("name", "")), day] += 1
    return [
        DeviceUse(device, day, _covered(spans[device, day]), uses[device, day])
        for device, day in sorted(spans)
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


def _time(value: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Activity:
    """`doing` has the stages under way, the longest first; `today_s` the seconds of use."""

    device: str
    machine: str
    doing: tuple[str, ...]
    seconds: float
    today_s: float

    @property
    def today_percent(self) -> float:
        now = datetime.now(UTC)
        passed = now.hour * 3600 + now.minute * 60 + now.second
        return 100 * self.today_s / max(passed, 1)


def activities(
    models: Iterable[Values], usage: Iterable[Values], now_s: float, today: date
) -> list[Activity]:
    """A device that is used now or was used today, by machine and device."""
    held: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for row in models:
        for stage, record in records_of(row).items():
            machine, _, device = record.owner.partition("/")
            if record.is_held and device:
                silent = " (silent)" if record.expires < now_s else ""
                text = f"{stage} {row.get('name', '')}{silent}"
                held[machine, device].append((record.since, text))
    used = {use.device: use.seconds for use in utilisation(usage) if use.day == today}
    busy = {device for _, device in held}
    rows = [
        _activity(machine, device, work, now_s, used) for (machine, device), work in held.items()
    ]
    idle = [Activity(name, "", (), 0.0, used[name]) for name in used if name not in busy]
    return sorted([*rows, *idle], key=lambda row: (row.device, row.machine))


def _activity(
    machine: str,
    device: str,
    work: list[tuple[float, str]],
    now_s: float,
    used: Mapping[str, float],
) -> Activity:
    doing = tuple(text for _, text in sorted(work))
    return Activity(device, machine, doing, now_s - min(work)[0], used.get(device, 0.0))
