"""The jobs of the project: their states and logs.

Records are in `runs/`. A thread asks stores and computes for the current states, but only while
a page shows them. A page never waits for a cluster.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from edgeloop._util.redact import CONTEXT, redact
from edgeloop.errors import EdgeloopError, LocalFileError
from edgeloop.models.columns import natural_key
from edgeloop.view.portal.feed import is_moment
from edgeloop.view.portal.shapes import (
    FileView,
    JobLine,
    JobsView,
    JobView,
    LogPart,
    MetricCurve,
    OverlayView,
)
from edgeloop.workspace import Workspace

if TYPE_CHECKING:
    from edgeloop.jobs.client import Jobs
    from edgeloop.jobs.records import Run
    from edgeloop.store import BlobInfo
    from edgeloop.view.portal.state import Portal


LOOK_EVERY_S = 2.0
LIST_EVERY_S = 1.0
TAIL_BYTES = 64 << 10
MOST_BYTES = 1 << 20
METRICS_SHOWN = 5
MOST_JOBS = 500  # the newest ones
MOST_FILES = 500
FILES_EVERY_S = 4.0
METRICS_FILE = "metrics.jsonl"
MOST_METRICS_BYTES = 4 << 20


class JobsMonitor:
    """The last known states, refreshed in the background when they are some seconds old."""

    def __init__(self, workspace: Workspace) -> None:
        from edgeloop.jobs.client import Jobs

        self.jobs: Jobs = Jobs(workspace.settings, workspace.store.blobs)
        self._guard = threading.Lock()
        self._is_looking = False
        self._looked_at = float("-inf")
        self._listed_at = float("-inf")
        self._listing: tuple[Sequence[Run], Sequence[str]] = ((), ())
        self._notes: Mapping[str, str] = {}
        self._asked: dict[str, float] = {}  # when, by the id of a job that has not ended

    def listing(self) -> tuple[Sequence[Run], Sequence[str]]:
        """Runs from the oldest to the newest, and sentences about damaged records."""
        self._look_if_due()
        if time.monotonic() - self._listed_at > LIST_EVERY_S:
            listing = self.jobs.runs.list()
            self._listing = (listing.runs, listing.damaged)
            self._listed_at = time.monotonic()
        return self._listing

    def get(self, name: str) -> Run:
        self._look_if_due()
        return self.jobs.runs.get(name)

    def note(self, run: Run) -> str:
        """Why the known state may be out of date."""
        return self._notes.get(run.record.compute) or run.status.note

    def asked(self, run: Run) -> float | None:
        """When its compute last said what it does; None for one that was not asked yet."""
        return self._asked.get(run.record.id)

    def outputs(self, run: Run) -> Mapping[str, BlobInfo]:
        """The files of a job that are in the store by now, by path. Raises BadInput for a job of
        another store."""
        from edgeloop.jobs.watch import outputs_of

        self.jobs.check_store(run)
        return outputs_of(self.jobs.blobs, run.record.id)[0]

    def look_now(self) -> None:
        """After a change of our own: do not wait until the next look is due."""
        self._looked_at = self._listed_at = float("-inf")

    def _look_if_due(self) -> None:
        with self._guard:
            if self._is_looking or time.monotonic() - self._looked_at < LOOK_EVERY_S:
                return
            self._is_looking = True
        threading.Thread(target=self._look, name="jobs", daemon=True).start()

    def _look(self) -> None:
        try:
            self._refresh()
        finally:
            self._listed_at = float("-inf")
            self._looked_at = time.monotonic()
            self._is_looking = False

    def _refresh(self) -> None:
        """A compute that is away or no longer in the settings does not hide the others."""
        here = str(self.jobs.settings.location)
        by_compute: dict[str, list[Run]] = {}
        for run in self.jobs.runs.list().runs:
            if not run.status.is_final and run.record.store in ("", here):
                by_compute.setdefault(run.record.compute, []).append(run)
        notes = {}
        asked: dict[str, float] = {}
        for compute, runs in by_compute.items():
            moment = time.time()
            try:
                self.jobs.refresh(runs)
            except (EdgeloopError, OSError) as error:
                notes[compute] = redact(str(error))
                asked |= {i: self._asked[i] for i in _ids(runs) if i in self._asked}
            else:
                asked |= dict.fromkeys(_ids(runs), moment)
        self._notes, self._asked = notes, asked


def _known_state(desk: JobsMonitor, run: Run) -> str:
    is_known = run.status.is_final or desk.asked(run) is not None
    return str(run.status.state) if is_known else "checking"


def _ids(runs: Sequence[Run]) -> list[str]:
    return [run.record.id for run in runs]


def jobs_view(portal: Portal, experiment: str | None = None) -> JobsView:
    from edgeloop.view.portal.state import frame_of

    runs, damaged = portal.jobs.listing()
    lines, unread = [], []
    for run in reversed(runs[-MOST_JOBS:]):
        try:
            lines.append(job_line(portal.jobs, run))
        except EdgeloopError as error:
            unread.append(str(error))
    params = dict.fromkeys(name for line in lines for name in line.params)
    metrics = Counter(name for line in lines for name in line.metrics)
    return JobsView(
        frame=frame_of(portal, experiment),
        jobs=tuple(lines),
        counts=dict(Counter(_known_state(portal.jobs, run) for run in runs)),
        params=tuple(n for n in params if len({line.params.get(n) for line in lines}) > 1),
        metrics=tuple(name for name, _ in metrics.most_common(METRICS_SHOWN)),
        damaged=tuple(redact(sentence) for sentence in (*damaged, *unread)),
        hidden=max(0, len(runs) - MOST_JOBS),
    )


def job_view(portal: Portal, experiment: str | None, name: str) -> JobView:
    from edgeloop.view.portal.state import frame_of

    run = portal.jobs.get(name)
    trouble, log = "", LogPart(0, 0, 0, "", run.status.is_final)
    files: tuple[FileView, ...] = ()
    curves: tuple[MetricCurve, ...] = ()
    try:
        size = portal.jobs.jobs.log_size(run)
        log = job_log(portal, name, max(0, size - TAIL_BYTES), TAIL_BYTES)
        files, curves = _results(portal, run)
    except EdgeloopError as error:
        trouble = redact(str(error))
    return JobView(
        frame=frame_of(portal, experiment),
        job=job_line(portal.jobs, run),
        command=tuple(redact(str(word)) for word in run.record.command),
        inputs=_inputs(run),
        log=log,
        trouble=trouble,
        curves=curves,
        files=files[:MOST_FILES],
        hidden_files=max(0, len(files) - MOST_FILES),
    )


MOST_OVERLAID = 12


def overlay_view(portal: Portal, experiment: str | None, names: Sequence[str]) -> OverlayView:
    """The metrics of several jobs, each in one chart with a line per job. Jobs that cannot be read
    are named in `missing`, and those beyond the limit in `left_out`."""
    from edgeloop.view.charts import metric_chart
    from edgeloop.view.portal.state import frame_of

    asked = list(dict.fromkeys(names))
    lines: list[JobLine] = []
    missing: list[str] = []
    series: dict[tuple[str, str], dict[str, Points]] = {}
    for name in asked[:MOST_OVERLAID]:
        try:
            run = portal.jobs.get(name)
            lines.append(job_line(portal.jobs, run))
            across, points_by_metric = series_of(_history(portal, run))
        except EdgeloopError:
            missing.append(name)
            continue
        for metric, points in points_by_metric.items():
            series.setdefault((metric, across), {})[name] = _thinned(points)
    charts = tuple(
        (
            metric,
            portal.draw_twice(
                (metric, across, tuple((n, tuple(points)) for n, points in by_job.items())),
                partial(metric_chart, metric, across, by_job),
                f"overlay{place}-",
            ),
        )
        for place, ((metric, across), by_job) in enumerate(series.items())
    )
    params = dict.fromkeys(name for line in lines for name in line.params)
    return OverlayView(
        frame=frame_of(portal, experiment),
        jobs=tuple(lines),
        params=tuple(n for n in params if len({line.params.get(n) for line in lines}) > 1),
        charts=charts,
        missing=tuple(missing),
        left_out=max(0, len(asked) - MOST_OVERLAID),
    )


def _history(portal: Portal, run: Run) -> bytes:
    file = portal.jobs.outputs(run).get(METRICS_FILE)
    if file is None:
        return b""
    return portal.jobs.jobs.blobs.read_range(file.key, 0, MOST_METRICS_BYTES)


def job_files(portal: Portal, run: Run) -> tuple[FileView, ...]:
    """The outputs of a job in the store, in natural order."""
    return tuple(
        FileView(path, info.size, info.modified.timestamp())
        for path, info in sorted(
            portal.jobs.outputs(run).items(), key=lambda item: natural_key(item[0])
        )
    )


def _results(portal: Portal, run: Run) -> tuple[tuple[FileView, ...], tuple[MetricCurve, ...]]:
    """The files of a job, listed again every few seconds while it runs, and curves of its metrics,
    read again when their file has changed."""
    moment = 0 if run.status.is_final else int(time.monotonic() // FILES_EVERY_S)
    files = portal.cache.get(("files", run.record.id, moment), lambda: job_files(portal, run))
    history = next((file for file in files if file.name == METRICS_FILE), None)
    if history is None:
        return files, ()

    def read() -> tuple[MetricCurve, ...]:
        key = portal.jobs.outputs(run)[METRICS_FILE].key
        return curves_of(portal.jobs.jobs.blobs.read_range(key, 0, MOST_METRICS_BYTES))

    return files, portal.cache.get(("curves", run.record.id, history), read)


def _inputs(run: Run) -> tuple[str, ...]:
    """Datasets at their versions, and data at URLs."""
    datasets = [f"{item.name}@{item.version}" for item in run.record.inputs]
    written = run.record.spec.get("data")
    places = written if isinstance(written, list) else []
    return (*datasets, *(str(place["url"]) for place in places if isinstance(place, Mapping)))


def job_log(portal: Portal, name: str, offset: int = 0, limit: int = MOST_BYTES) -> LogPart:
    """Some bytes of a log as text. A character that is cut at the end comes with the next part, and
    half a secret is as secret as a whole one, so the bytes around the part are read, too.

    The state is read first: if the job is over by then, the log is complete.
    """
    run = portal.jobs.get(name)
    is_final = run.status.is_final
    desk = portal.jobs.jobs
    size = desk.log_size(run)
    start = min(max(offset, 0), size)
    limit = max(1, min(limit, MOST_BYTES))
    first = max(0, start - CONTEXT)
    read = b""
    with contextlib.closing(desk.log(run, first).more()) as parts:  # type: ignore[type-var]
        for part in parts:
            read += part
            if len(read) >= start - first + limit + CONTEXT:
                break
    before, content = read[: start - first], read[start - first :][:limit]
    whole = content if is_final and start + len(content) >= size else whole_characters(content)
    end = start + len(whole)
    after = read[end - first :][:CONTEXT]
    texts = [part.decode(errors="replace") for part in (before, whole, after)]
    text = redact("".join(texts), len(texts[0]), len(texts[0]) + len(texts[1]))
    return LogPart(start, end, max(size, end), text, is_final)


def job_line(desk: JobsMonitor, run: Run) -> JobLine:
    """Raises LocalFileError for an invalid record."""
    try:
        return _line(desk, run)
    except (AttributeError, TypeError, ValueError, OverflowError):
        reason = "its record is not valid: restore it, or remove its folder"
        raise LocalFileError(path=run.record.name, reason=reason) from None


def _line(desk: JobsMonitor, run: Run) -> JobLine:
    record, status = run.record, run.status
    return JobLine(
        name=record.name,
        state=status.state,
        is_final=status.is_final,
        experiment=record.experiment,
        compute=record.compute,
        node=status.node,
        created=_moment(record.created.timestamp()) or 0.0,
        started=_moment(status.started),
        ended=_moment(status.ended),
        attempt=max(record.attempt, status.attempt),
        parent=record.parent or "",
        exit_code=status.exit_code,
        reason=redact(status.reason),
        note=redact(status.files.note(name=record.name) if status.is_final else desk.note(run)),
        tags=tuple(record.tags),
        params={str(name): str(value) for name, value in record.params.items()},
        metrics={
            str(name): f"{value:.4g}"
            if isinstance(value, float)
            else ""
            if value is None
            else str(value)
            for name, value in status.metrics.items()
        },
        published=dict(status.published),
        log_bytes=status.log_bytes,
        asked=None if status.is_final else desk.asked(run),
    )


def _moment(value: float | None) -> float | None:
    return value if is_moment(value) else None


def whole_characters(content: bytes) -> bytes:
    """Without an incomplete character at the end."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte & 0xC0 == 0xC0:  # the first byte of a multi-byte character
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return content[:-back] if length > back else content
        if byte & 0xC0 != 0x80:
            break
    return content


# The metrics of a job as curves, from the lines that its script appends to a file.


WIDTH, HEIGHT = 100.0, 30.0  # of a curve, in units of its own
MOST_POINTS = 300
MOST_CURVES = 24
STEPS = ("step", "epoch", "iteration")
Points = Sequence[tuple[float, float]]


def curves_of(content: bytes) -> tuple[MetricCurve, ...]:
    """One for each number that at least two of the lines have, in the order of the file."""
    across, series = series_of(content)
    return tuple(_curve(name, across, points) for name, points in series.items())


def series_of(content: bytes) -> tuple[str, dict[str, Points]]:
    """What lines are counted by, and the points of each of their numbers. A line that is cut or is
    no JSON object is left out."""
    lines = [numbers for line in content.split(b"\n") if (numbers := _numbers(line))]
    across = next((name for name in STEPS if _increases([x.get(name) for x in lines])), "")
    names = dict.fromkeys(name for line in lines for name in line if name != across)
    series: dict[str, Points] = {}
    for name in names:
        points = [
            (line[across] if across else float(number), line[name])
            for number, line in enumerate(lines, 1)
            if name in line and (not across or across in line)
        ]
        if len(points) > 1 and len(series) < MOST_CURVES:
            series[name] = points
    return across or "line", series


def _curve(name: str, across: str, points: Sequence[tuple[float, float]]) -> MetricCurve:
    drawn = _thinned(points)
    (first, _), (last, latest) = points[0], points[-1]
    low, high = min(y for _, y in points), max(y for _, y in points)
    across_by = WIDTH / ((last - first) or 1.0)
    up_by = HEIGHT / ((high - low) or 1.0)
    middle = HEIGHT / 2 if high == low else 0.0
    path = " ".join(
        f"{(x - first) * across_by:.2f},{HEIGHT - (y - low) * up_by - middle:.2f}" for x, y in drawn
    )
    return MetricCurve(
        name=name,
        across=across,
        first=first,
        last=last,
        low=low,
        high=high,
        latest=latest,
        count=len(points),
        path=path,
    )


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The lowest and the highest of each piece, so that no peak is lost."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size = 2 * len(points) / MOST_POINTS
    extremes: list[tuple[float, float]] = [points[0]]
    for piece in range(MOST_POINTS // 2):
        part = points[int(piece * size) : int((piece + 1) * size)]
        if part:
            ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
            extremes.extend(sorted(ends))
    return [*extremes, points[-1]]


def _increases(values: Sequence[float | None]) -> bool:
    numbers = [value for value in values if value is not None]
    pairs = pairwise(numbers)
    return len(numbers) > 1 and len(numbers) == len(values) and all(a < b for a, b in pairs)


def _numbers(line: bytes) -> Mapping[str, float]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(entry, dict):
        return {}
    numbers = {str(name): _number(value) for name, value in entry.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) and abs(value) < 1e300 else None
    except OverflowError:
        return None
