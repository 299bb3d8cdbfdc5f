"""Jobs as a table and as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.jobs.selection import STATES
from edgeloop.cli.output import printable
from edgeloop.cli.terminal.tables import Screen, TableColumn, fit, totals

if TYPE_CHECKING:
    from edgeloop.jobs import Run, Status

METRICS_SHOWN = 5
_RANKS = {**dict.fromkeys(STATES, 2), **{"running": 0, "preparing": 0, "queued": 0, "failed": 1}}


def job_table(
    jobs: Sequence[Run],
    screen: Screen,
    with_users: bool = False,
    chosen: Sequence[str] = (),
    live: bool = False,
) -> str:
    """One line per job; a sweep shows the varied parameters and the metrics. A terminal also gets
    the totals. `chosen` are columns by their headings."""
    columns = _columns(jobs, with_users)
    if chosen:
        for name in chosen:
            _check_column(name, columns)
        columns = {name: columns[name] for name in chosen}
    cells = [[text_of(job) for _, text_of in columns.values()] for job in jobs]
    states = [job.status.state for job in jobs]
    table = fit([column for column, _ in columns.values()], cells, screen, states, "state")
    if screen.width is None:
        return table.text(screen)
    below = [totals("job", states, STATES), *table.remark]
    most = screen.height - len(below) - 3 if live and screen.height else None
    return table.text(screen, below, most)


def in_order(jobs: Sequence[Run], sort: str = "state") -> list[Run]:
    """By a column of the table, `COLUMN` or `COLUMN:desc`, or by `created`. By state, those that
    have not ended come first, then failed ones; then names in the order that people count in."""
    from edgeloop.models import natural_key

    name, _, way = sort.partition(":")
    if way not in ("", "asc", "desc"):
        raise click.UsageError(f"--sort is COLUMN, COLUMN:asc or COLUMN:desc, not {sort!r}.")
    by_name = sorted(jobs, key=lambda job: natural_key(job.name))
    if name == "state":
        return sorted(by_name, key=lambda job: _RANKS[job.status.state], reverse=way == "desc")
    if name == "created":
        return sorted(by_name, key=lambda job: job.record.created, reverse=way == "desc")
    columns = _columns(jobs, with_users=True)
    _check_column(name, columns)

    def key(job: Run) -> tuple[int, float, str]:
        if name == "took":
            return (0, _seconds(job.status), "")
        text = columns[name][1](job)
        try:
            return (0, float(text), "")
        except ValueError:
            return (1, 0.0, natural_key(text))

    return sorted(by_name, key=key, reverse=way == "desc")


def _columns(
    jobs: Sequence[Run], with_users: bool
) -> dict[str, tuple[TableColumn, Callable[[Run], str]]]:
    """The columns by their headings, and what each shows of a job."""
    names = dict.fromkeys(name for job in jobs for name in job.record.params)
    varied = [n for n in names if len({job.record.params.get(n) for job in jobs}) > 1]

    def parameter(name: str) -> Callable[[Run], str]:
        return lambda job: job.record.params.get(name, "")

    def metric(name: str) -> Callable[[Run], str]:
        return lambda job: _number(job.status.metrics.get(name))

    user = (TableColumn("user", 60, 8), lambda job: job.record.user)
    return {
        "name": (TableColumn("name", 100, 20), lambda job: job.name),
        **({"user": user} if with_users else {}),
        **{n: (TableColumn(n, 75, right=True), parameter(n)) for n in varied},
        "state": (TableColumn("state", 95), lambda job: job.status.state),
        "took": (TableColumn("took", 80, right=True), lambda job: duration(job.status)),
        "compute": (TableColumn("compute", 65, 8), lambda job: job.record.compute),
        **{n: (TableColumn(n, 70, right=True), metric(n)) for n in _measured(jobs)},
        "": (TableColumn("", 85, 16), lambda job: _remark(job.status)),
    }


def _check_column(name: str, columns: Mapping[str, object]) -> None:
    from edgeloop.errors import BadInput

    if name not in columns or not name:
        known = ", ".join(filter(None, columns))
        raise BadInput(reason=f"there is no column {name!r}; the columns are {known}")


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


def state_text(jobs: Sequence[Run]) -> str:
    """What one waits for: `long: queued on cluster`, `3 jobs: 1 queued, 2 running`."""
    if len(jobs) != 1:
        return totals("job", [job.status.state for job in jobs], STATES)
    [job] = jobs
    took = f" ({duration(job.status)})" if job.status.started else ""
    return f"{job.name}: {job.status.state} on {job.record.compute}{took}"


def duration(status: Status, now: float | None = None) -> str:
    if status.started is None:
        return ""
    minutes, seconds = divmod(round(_seconds(status, now)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _seconds(status: Status, now: float | None = None) -> float:
    if status.started is None:
        return 0.0
    end = status.ended if status.ended is not None else (now or time.time())
    return max(0.0, end - status.started)


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
