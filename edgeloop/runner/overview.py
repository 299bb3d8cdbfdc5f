"""What each device does at this moment, on whatever machine it is: read from the rows of the models
and the record of use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime

from edgeloop.models import records_of
from edgeloop.runner.usage import utilisation
from edgeloop.store import Values


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
