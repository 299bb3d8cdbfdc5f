"""The machines of a farm as people see them: one line per device, whoever serves it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from edgeloop.models.columns import natural_key
from edgeloop.models.plan import Plan, records_of
from edgeloop.models.runners import CurrentStage, RunnerDevice, RunnerEntry
from edgeloop.runner.usage import place_of
from edgeloop.store import Values


@dataclass(frozen=True)
class MachineLine:
    """A device of a machine. An empty device is the machine itself, which converts models and tests
    float ones. `state` is busy, idle, hot, plugged (nobody uses it), unplugged, unauthorized,
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
    order = sorted(lines, key=lambda key: (natural_key(key[0]), natural_key(key[1])))
    return [lines[key] for key in order]


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
    """Of a row that anybody may have written."""
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_number else 0.0  # type: ignore[arg-type]
