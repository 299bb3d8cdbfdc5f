"""The record of device use: utilisation by day."""

from __future__ import annotations

import contextlib
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from edgeloop.errors import EdgeloopError
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
        known = self.by_place.get((machine, device), 0.0)
        return min(self.passed_s, known + (self.by_device.get(device, 0.0) if device else 0.0))

    def share(self, machine: str, device: str) -> float:
        return self.seconds(machine, device) / self.passed_s


def use_today(rows: Iterable[Values], now: datetime) -> UseToday:
    today = now.astimezone(UTC).date()
    placed: list[Values] = []
    unplaced: list[Values] = []
    for row in rows:
        owner = str(row.get("owner", ""))
        (placed if owner else unplaced).append({**row, "name": owner} if owner else row)
    midnight = datetime.combine(today, datetime.min.time(), UTC)
    by_place = {place_of(u.device): u.seconds for u in utilisation(placed) if u.day == today}
    by_device = {u.device: u.seconds for u in utilisation(unplaced) if u.day == today}
    return UseToday(max(1.0, (now - midnight).total_seconds()), by_place, by_device)


def place_of(owner: str) -> tuple[str, str]:
    """The machine and the device of who holds a lease; the device is empty for the machine
    itself, whose name has an ending since its bare name is Archai's."""
    machine, _, device = owner.partition("/")
    return machine.removesuffix(":runner"), device


def record_use(usage: Table, device: str, start: datetime, end: datetime, **more: str) -> None:
    """Columns `name`, `start`, `end` as in Archai's table, and `model`, `stage` and `owner`, the
    holder of the lease. A failure to record does not lose the
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
