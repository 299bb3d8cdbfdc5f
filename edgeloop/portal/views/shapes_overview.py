"""What overviews show: the front, the devices, the jobs, the searches. See `shapes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgeloop.portal.views.shapes_model import Choices, Frame


@dataclass(frozen=True)
class ParetoQuery:
    """`x` and `y` are columns, or `COLUMN:min` and `COLUMN:max` where the goal is not known."""

    x: str = "mean"
    y: str = "f1_1k"
    text: str = ""
    status: str = ""
    tag: str = ""
    device: str = ""


@dataclass(frozen=True)
class Axis:
    column: str
    title: str
    goal: str


@dataclass(frozen=True)
class Point:
    name: str
    x: float
    y: float
    x_text: str
    y_text: str
    sigma_ms: float | None
    is_front: bool
    is_estimate: bool
    iteration: int | None
    device: str
    status: str


@dataclass(frozen=True)
class ParetoView:
    """`points` are all that the chart shows, the front first and best first.

    In `svg` a point is a link to `#model=NAME`, NAME quoted as in an address. `hidden` points are
    left out of chart and list, of `front` models on the front only where those alone are too many;
    `missing` models have no number in one of the two. `trouble` is a sentence when the columns
    cannot be used.
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
    columns: tuple[Axis, ...]
    choices: Choices
    svg: str
    trouble: str


@dataclass(frozen=True)
class Busy:
    """What a machine does now. `device` is that of the model's row, where a device is in use."""

    node: str
    device: str
    model: str
    stage: str
    since: float
    expires: float
    is_stalled: bool


@dataclass(frozen=True)
class DayUse:
    """`day` is ISO 8601, UTC; `share` of the day between 0 and 1."""

    device: str
    day: str
    seconds: float
    share: float
    uses: int


@dataclass(frozen=True)
class DevicesView:
    frame: Frame
    now: tuple[Busy, ...]
    waiting: Mapping[str, int]
    days: tuple[DayUse, ...]
    svg: str
    trouble: str


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
    """Newest first, `hidden` older ones left out. `counts` are of all. `damaged` has a sentence for
    each record that cannot be read."""

    frame: Frame
    jobs: tuple[JobLine, ...]
    counts: Mapping[str, int]
    params: tuple[str, ...]
    metrics: tuple[str, ...]
    damaged: tuple[str, ...]
    hidden: int


@dataclass(frozen=True)
class LogPart:
    """Bytes of a log from `start` to `end` as text; `size` is all there is now."""

    start: int
    end: int
    size: int
    text: str
    is_final: bool


@dataclass(frozen=True)
class JobView:
    """`log` is the end of the log; what comes after it is at `log.end`."""

    frame: Frame
    job: JobLine
    command: tuple[str, ...]
    inputs: tuple[str, ...]
    log: LogPart
    trouble: str


@dataclass(frozen=True)
class SearchLine:
    name: str
    experiment: str
    objectives: tuple[str, ...]
    counts: Mapping[str, int]
    candidates: int
    iterations: int
    front: int
    hypervolume: float | None
    updated: float | None


@dataclass(frozen=True)
class SearchesView:
    frame: Frame
    searches: tuple[SearchLine, ...]
    damaged: tuple[str, ...]


@dataclass(frozen=True)
class Iteration:
    """`hypervolume` is what the front had won at its end."""

    number: int
    candidates: int
    complete: int
    failed: int
    screened: int
    hypervolume: float | None


@dataclass(frozen=True)
class SearchView:
    """`front` and `candidates` are rows of texts under `columns`; candidates newest first, 500 at
    most. `curve` is the hypervolume after so many candidates."""

    frame: Frame
    search: SearchLine
    columns: tuple[str, ...]
    front: tuple[Mapping[str, str], ...]
    candidates: tuple[Mapping[str, str], ...]
    iterations: tuple[Iteration, ...]
    curve: tuple[tuple[int, float], ...] = field(default=())
