"""Jobs as a table and as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.output import printable, table

if TYPE_CHECKING:
    from edgeloop.jobs import Run, Status

METRICS_SHOWN = 5


def job_table(jobs: Sequence[Run], with_users: bool = False) -> str:
    """One line per job; a sweep shows the varied parameters and the metrics."""
    names = dict.fromkeys(name for job in jobs for name in job.record.params)
    varied = [n for n in names if len({job.record.params.get(n) for job in jobs}) > 1]
    measured = _measured(jobs)
    users = ("user",) if with_users else ()
    headings = ("name", *users, *varied, "state", "took", "compute", *measured, "")
    rows = [
        (
            job.name,
            *((job.record.user,) if with_users else ()),
            *(job.record.params.get(name, "") for name in varied),
            job.status.state,
            duration(job.status),
            job.record.compute,
            *(_number(job.status.metrics.get(name)) for name in measured),
            _remark(job.status),
        )
        for job in jobs
    ]
    return table(headings, rows, right=("took", *varied, *measured))


def job_json(job: Run, folder: Path, newest: str | None = None) -> dict[str, object]:
    """Everything known about a job; times are ISO 8601 in UTC. `newest` is the name of its newest
    attempt, if that is another one."""
    record, status = job.record, job.status
    return {
        "name": record.name,
        "id": record.id,
        "state": status.state,
        "exit_code": status.exit_code,
        "reason": status.reason,
        "note": status.note,
        "experiment": record.experiment,
        "user": record.user,
        "compute": record.compute,
        "node": status.node,
        "tags": list(record.tags),
        "params": dict(record.params),
        "command": list(record.command),
        "attempt": max(record.attempt, status.attempt),
        "parent": record.parent,
        "newest_attempt": newest,
        "created": record.created.isoformat(),
        "started": _time(status.started),
        "ended": _time(status.ended),
        "metrics": dict(status.metrics),
        "published": dict(status.published),
        "files": asdict(status.files),
        "folder": str(folder),
    }


def outcome(job: Run) -> str:
    """The last line of `run`: completed in 2:14 · exit code 0."""
    status = job.status
    parts = [f"{status.state} in {duration(status)}" if status.started else status.state]
    if status.exit_code is not None:
        parts.append(f"exit code {status.exit_code}")
    if status.reason and status.state != "completed":
        parts.append(printable(status.reason))
    for name, version in status.published.items():
        parts.append(f"made {printable(name)}@{version}")
    if status.files.left:
        parts.append(status.files.note())
    return " · ".join(parts)


def duration(status: Status, now: float | None = None) -> str:
    if status.started is None:
        return ""
    end = status.ended if status.ended is not None else (now or time.time())
    minutes, seconds = divmod(max(0, round(end - status.started)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


class Printer:
    """Output as it is; with several jobs, whole lines prefixed by the job's name."""

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._begun = b""

    def show(self, content: bytes) -> None:
        if not self._name:
            click.echo(content, nl=False)
            return
        *lines, self._begun = (self._begun + content).split(b"\n")
        for line in lines:
            click.echo(f"{self._name} │ {line.decode(errors='replace')}")

    def end(self) -> None:
        if self._begun:
            self.show(b"\n")


def _measured(jobs: Sequence[Run]) -> list[str]:
    names = dict.fromkeys(
        name
        for job in jobs
        for name, value in job.status.metrics.items()
        if isinstance(value, int | float) and name.isprintable()
    )
    return list(names)[:METRICS_SHOWN]


def _remark(status: Status) -> str:
    parts = [] if status.state == "completed" else [status.reason]
    parts += [f"made {name}@{version}" for name, version in status.published.items()]
    return "; ".join(part for part in (*parts, status.files.note(1), status.note) if part)


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


def counts(jobs: Sequence[Run]) -> str:
    """`2 running, 1 completed`, in the order of a job's life."""
    order = ("queued", "preparing", "running", "completed", "failed", "canceled")
    found: Mapping[str, int] = {
        state: sum(job.status.state == state for job in jobs) for state in order
    }
    return ", ".join(f"{count} {state}" for state, count in found.items() if count)
