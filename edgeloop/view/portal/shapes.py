"""What pages and the API show, as plain values: the same for both, so that they cannot differ.

Nothing here is markup except `svg` (rendered by us, escaped by an XML writer). Any other text may
come from a foreign row and must be escaped before it is put into a page. Times are seconds since
1970 (UTC), or None if unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from edgeloop.models.columns import LatencyInterval, RecoverySummary
from edgeloop.operate.fleet.demand import WaitingWork
from edgeloop.runner.machines import MachineLine
from edgeloop.view.network import PictureOfNetwork

PAGE_SIZES = (50, 100, 200)


@dataclass(frozen=True)
class Frame:
    """What every page has. The stream of events continues after `event`.

    `banner` is a sentence while the store is away: what is shown is then from `read_at`.
    """

    experiment: str
    experiments: tuple[str, ...]
    store: str
    event: str
    read_at: float | None
    banner: str
    is_loading: bool
    allow_changes: bool
    version: str


@dataclass(frozen=True)
class TableQuery:
    """`text` is a part of a name, tag or error, or a glob for names; the other filters are exact.

    `status` is the first word of the column, for example `running` or `error`. `stage` keeps models
    for which it runs or waits. `sort` is any column; rows without it always come last. Without one,
    running and failed models come first. `columns` are shown beside name and status, as people or
    the store name them; without any, those that an experiment usually needs.
    """

    text: str = ""
    status: str = ""
    tag: str = ""
    stage: str = ""
    device: str = ""
    node: str = ""
    sort: str = ""
    descending: bool = False
    page: int = 1
    size: int = PAGE_SIZES[0]
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Heading:
    """A column of the table: `name` is the key to sort by, `title` the text."""

    name: str
    title: str
    unit: str
    is_number: bool


@dataclass(frozen=True)
class Work:
    """A machine that runs a stage. `is_stalled`: its lease expired without a heartbeat."""

    stage: str
    node: str
    since: float
    expires: float
    is_stalled: bool


@dataclass(frozen=True)
class Line:
    """A model in the table, with one cell per heading. `interval` is that of an estimated latency;
    `latency_note` says where it comes from, or why there is none."""

    name: str
    status: str
    word: str
    cells: tuple[str, ...]
    is_estimate: bool
    is_lower_bound: bool
    interval: LatencyInterval | None
    latency_note: str
    error: str
    tags: tuple[str, ...]
    device: str
    since: float | None
    work: tuple[Work, ...]
    waiting: tuple[str, ...]


@dataclass(frozen=True)
class Choices:
    """The choices of the filters: the 200 most frequent of each."""

    statuses: tuple[str, ...]
    tags: tuple[str, ...]
    stages: tuple[str, ...]
    devices: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class TableView:
    """One page of the table. `counts` is by first word of the status, over all models; `offered`
    are all columns that can be shown."""

    frame: Frame
    query: TableQuery
    headings: tuple[Heading, ...]
    lines: tuple[Line, ...]
    counts: Mapping[str, int]
    matching: int
    total: int
    pages: int
    choices: Choices
    offered: tuple[Heading, ...] = ()


@dataclass(frozen=True)
class CompareCell:
    """`difference` is that from the first model, as text. `is_best` only where the intervals of the
    models do not overlap; `interval` is that of a latency or a score, in the unit of its row."""

    text: str
    difference: str
    is_best: bool
    is_estimate: bool
    interval: str = ""


@dataclass(frozen=True)
class CompareRow:
    """A column of the table with a cell for each model."""

    column: str
    title: str
    unit: str
    meaning: str
    is_number: bool
    has_goal: bool
    is_same: bool
    cells: tuple[CompareCell, ...]


@dataclass(frozen=True)
class CompareView:
    """Models side by side: the values that differ and matter to people, numbers with a goal first;
    those that do not; and `raw` columns that others are made from. `devices` are those of their
    latencies."""

    frame: Frame
    lines: tuple[Line, ...]
    differing: tuple[CompareRow, ...]
    equal: tuple[CompareRow, ...]
    raw: tuple[CompareRow, ...]
    missing: tuple[str, ...]
    left_out: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class UsePeriod:
    """A device in use for a model."""

    device: str
    model: str
    stage: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class StageView:
    """A step of the timeline. `state`: done, running, stalled, ready, retry (waits until
    `not_before`), blocked (something it needs is missing), failed, skipped or none (no model file).

    `attempts` counts attempts without a result; `runs_done` of `runs` have a result, and
    `is_deterministic` says that more would be the same. `seconds` is the total time on devices, if
    recorded. `name` is what a reset takes, `title` says for which device or toolchain it is.
    """

    name: str
    title: str
    state: str
    needs: tuple[str, ...]
    node: str
    since: float | None
    expires: float | None
    not_before: float | None
    attempts: int
    runs_done: int
    runs: int
    is_deterministic: bool
    error: str
    files: tuple[str, ...]
    uses: tuple[UsePeriod, ...]
    seconds: float | None


@dataclass(frozen=True)
class FileView:
    """A file to download, for a model at /api/v1/models/NAME/files/FILE. `group` says what it is
    for (`deploy`, `result` or `other`), and `about` what it is, of files of models."""

    name: str
    size: int
    modified: float
    group: str = ""
    about: str = ""


@dataclass(frozen=True)
class ParetoQuery:
    """`x` and `y` are columns, or `COLUMN:min` and `COLUMN:max` if the goal is not known. Without
    `y`, F1 or, where no model has it, agreement with the float model.

    Without `device`, that with most models, if the columns depend on the device; `*` compares all
    devices with each other. `range` is `all` for axes that show outliers, too.
    """

    x: str = "latency_ms"
    y: str = ""
    text: str = ""
    status: str = ""
    tag: str = ""
    device: str = ""
    range: str = ""


@dataclass(frozen=True)
class Axis:
    """A column that can be an axis. `title` has the `unit` in which texts are; they are the values
    times `factor`."""

    column: str
    title: str
    goal: str
    factor: float = 1.0
    unit: str = ""


@dataclass(frozen=True)
class Point:
    """A model. `x_text` and `y_text` are in the units of the axes, `x` and `y` in those of the
    API, such as ms. `score_interval` is the 95 % interval of a score on the y axis."""

    name: str
    x: float
    y: float
    x_text: str
    y_text: str
    sigma_ms: float | None
    is_front: bool
    is_estimate: bool
    interval: LatencyInterval | None
    iteration: int | None
    device: str
    status: str
    score_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class ParetoView:
    """`points` are those of the chart, the front first and best first.

    In `svg` a point is a link to `#model=NAME`, with NAME percent-encoded. `hidden` points are left
    out of chart and list; points of the front only if these alone are too many. `missing` models
    have no number in one of the columns. `trouble` is a sentence if the columns cannot be used.
    `device` is the one that the front is of, `*` for one front across all `devices` (with how many
    models each has), and `device_note` says so. `outside` models are beyond the axes of the chart.
    """

    frame: Frame
    query: ParetoQuery
    x: Axis
    y: Axis
    points: tuple[Point, ...]
    front: int
    hidden: int
    missing: int
    hypervolume: float
    reference: str
    columns: tuple[Axis, ...]
    choices: Choices
    svg: str
    trouble: str
    device: str = ""
    devices: Mapping[str, int] = field(default_factory=dict)
    device_note: str = ""
    outside: int = 0


@dataclass(frozen=True)
class Busy:
    """What a machine does now. `device` is that of the row, if a device is in use."""

    node: str
    device: str
    model: str
    stage: str
    since: float
    expires: float
    is_stalled: bool


@dataclass(frozen=True)
class DayUse:
    """`day` is ISO 8601, UTC; `share` of the day between 0 and 1. The machine is empty where the
    record does not name it."""

    machine: str
    device: str
    day: str
    seconds: float
    share: float
    uses: int


@dataclass(frozen=True)
class QueueView:
    """The work of an experiment by capability, and how many of its runners are working, idle and
    dead. It says nothing before the store has answered once (`is_loaded`)."""

    experiment: str
    read_at: float | None
    is_loaded: bool
    lines: tuple[WaitingWork, ...]
    runners: Mapping[str, int]

    @property
    def stages(self) -> Mapping[str, int]:
        """How many stages are ready, by name."""
        counts: Counter[str] = Counter()
        for line in self.lines:
            counts.update(line.stages)
        return counts


@dataclass(frozen=True)
class DeviceCard:
    """A device of a machine, or the machine itself (`device` is empty). `line` says what it does;
    `since`, `error_at` and `seen_at` are the times of it. `today` is the share of this UTC day so
    far, between 0 and 1, that it was in use, and `today_s` the seconds."""

    line: MachineLine
    since: float | None
    error_at: float | None
    seen_at: float | None
    today: float
    today_s: float


@dataclass(frozen=True)
class DevicesView:
    """`machines` are those of all runners of the store, and other holders of stages of this
    experiment; `read_at` is when they were read, so that `seconds` can be counted from there.
    `cards` are the same with their use of today, of the chosen `state` if there is one; `counts`
    has all states."""

    frame: Frame
    machines: tuple[MachineLine, ...]
    cards: tuple[DeviceCard, ...]
    counts: Mapping[str, int]
    state: str
    read_at: float
    now: tuple[Busy, ...]
    waiting: Mapping[str, int]
    queue: QueueView
    days: tuple[DayUse, ...]
    svg: str
    trouble: str


@dataclass(frozen=True)
class ChipFront:
    """The front of one chip of several: its size and its hypervolume."""

    name: str
    front: int
    hypervolume: float | None


@dataclass(frozen=True)
class SearchLine:
    """`reference` is the reference point of the hypervolume in words; empty while there is none."""

    name: str
    experiment: str
    objectives: tuple[str, ...]
    counts: Mapping[str, int]
    candidates: int
    iterations: int
    front: int
    hypervolume: float | None
    updated: float | None
    reference: str = ""
    fronts: tuple[ChipFront, ...] = field(default=())


@dataclass(frozen=True)
class SearchesView:
    """`is_comparable`: the hypervolumes are measured from one reference point."""

    frame: Frame
    searches: tuple[SearchLine, ...]
    damaged: tuple[str, ...]
    is_comparable: bool = True


@dataclass(frozen=True)
class Iteration:
    """`hypervolume` is that of the front at its end."""

    number: int
    candidates: int
    complete: int
    failed: int
    screened: int
    hypervolume: float | None
    stopped: int = 0


@dataclass(frozen=True)
class SearchView:
    """`front` and `candidates` are rows of texts under `columns`, candidates newest first and at
    most 500; a row also has `parameter:NAME` for each of the `parameters` that it has. `curve` is
    the hypervolume after so many candidates. `importance` is, by parameter and objective, the share
    of the variation that it explains."""

    frame: Frame
    search: SearchLine
    columns: tuple[str, ...]
    front: tuple[Mapping[str, str], ...]
    candidates: tuple[Mapping[str, str], ...]
    iterations: tuple[Iteration, ...]
    curve: tuple[tuple[int, float], ...] = field(default=())
    parameters: tuple[str, ...] = field(default=())
    importance: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


# What pages and the API show of jobs, as plain values; see `edgeloop.view.portal.shapes`.


@dataclass(frozen=True)
class JobLine:
    """`asked` is when its compute last said what a job that has not ended is doing; None: not yet,
    so that `state` is what its record says."""

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
    asked: float | None = None


@dataclass(frozen=True)
class OverlayView:
    """Several jobs: a chart for each metric that they have, with a line per job. `params` are those
    that differ."""

    frame: Frame
    jobs: tuple[JobLine, ...]
    params: tuple[str, ...]
    charts: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    left_out: int


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


# What the page of one model shows, as plain values; see shapes.py.


@dataclass(frozen=True)
class ModelView:
    """`facts` are the columns of its row with their meanings and texts, `charts` titles with SVGs,
    `layers` names with operators and microseconds, and `recovery` the attempts to recover accuracy.

    `image` is a PNG of PR curves as a data: address, drawn when `scored` was tested. `scores` is
    class → metric → value, for the same stage.
    """

    frame: Frame
    name: str
    line: Line
    headings: tuple[Heading, ...]
    priority: float | None
    facts: tuple[tuple[str, str, str], ...]
    stages: tuple[StageView, ...]
    files: tuple[FileView, ...]
    charts: tuple[tuple[str, str], ...]
    layers: tuple[tuple[str, str, float], ...]
    layers_kind: str
    conditions: Mapping[str, str]
    scored: str
    scores: Mapping[str, Mapping[str, float]]
    image: str
    trouble: str  # a sentence, if the files could not be read
    recovery: RecoverySummary | None = None
    graph: PictureOfNetwork | None = None
    graph_hint: str = ""  # why there is none, and a command that makes one
    graph_command: str = ""
    comment: str = ""
