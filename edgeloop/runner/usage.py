"""The record of device use: utilisation by day."""

from __future__ import annotations

import contextlib
import secrets
from collections import defaultdict
from collections.abc import Iterable
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
