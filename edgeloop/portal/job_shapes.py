"""What pages and the API show of jobs, as plain values; see `edgeloop.portal.shapes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeloop.portal.shapes import FileView, Frame


@dataclass(frozen=True)
class JobLine:
    name: str
    state: str
    is_final: bool
    experiment: str
    compute: str
    node: str
    created: float
    started: float | None
    ended: float | None
    attempt: int
    parent: str
    exit_code: int | None
    reason: str
    note: str
    tags: tuple[str, ...]
    params: Mapping[str, str]
    metrics: Mapping[str, str]
    published: Mapping[str, int]
    log_bytes: int


@dataclass(frozen=True)
class JobsView:
    """Newest first, without `hidden` older ones. `counts` includes all. `damaged` has a sentence
    for each record that cannot be read."""

    frame: Frame
    jobs: tuple[JobLine, ...]
    counts: Mapping[str, int]
    params: tuple[str, ...]
    metrics: tuple[str, ...]
    damaged: tuple[str, ...]
    hidden: int


@dataclass(frozen=True)
class LogPart:
    """The bytes of a log from `start` to `end` as text; `size` is its current size."""

    start: int
    end: int
    size: int
    text: str
    is_final: bool


@dataclass(frozen=True)
class MetricCurve:
    """A number of `outputs/metrics.jsonl` over the `across` column, a step or the line's number.
    `path` are its points in a box of 100 × 30, with `low` at the bottom and `high` on top."""

    name: str
    across: str
    first: float
    last: float
    low: float
    high: float
    latest: float
    count: int
    path: str


@dataclass(frozen=True)
class JobView:
    """`log` is the last part of the log; the next part starts at `log.end`. `files` are its outputs
    without `hidden_files` more, each at /api/v1/jobs/NAME/files/FILE."""

    frame: Frame
    job: JobLine
    command: tuple[str, ...]
    inputs: tuple[str, ...]
    log: LogPart
    trouble: str
    curves: tuple[MetricCurve, ...] = ()
    files: tuple[FileView, ...] = ()
    hidden_files: int = 0
