"""What the table and a model's page show. See `shapes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PAGE_SIZES = (50, 100, 200)


@dataclass(frozen=True)
class Frame:
    """What stands around every page. `event` is what the stream of events goes on from.

    `banner` is a sentence when the store is away: what is shown is then that of `read_at`.
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
    """`text` is a part of a name, tag or error, or a glob for names; the others are exact.

    `status` is the first word of the column: `running`, `error`. `stage` keeps models on which it
    is held or waits. `sort` is any column; rows without it come last either way.
    """

    text: str = ""
    status: str = ""
    tag: str = ""
    stage: str = ""
    device: str = ""
    node: str = ""
    sort: str = "name"
    descending: bool = False
    page: int = 1
    size: int = PAGE_SIZES[0]


@dataclass(frozen=True)
class Heading:
    """A column of the table: `name` is what to sort by, `title` what people read."""

    name: str
    title: str
    unit: str
    is_number: bool


@dataclass(frozen=True)
class Work:
    """A machine at work on a stage. `is_stalled`: its lease ran out without a word."""

    stage: str
    node: str
    since: float
    expires: float
    is_stalled: bool


@dataclass(frozen=True)
class Line:
    """A model in the table; `cells` has a text for each heading."""

    name: str
    status: str
    word: str
    cells: tuple[str, ...]
    is_estimate: bool
    error: str
    tags: tuple[str, ...]
    device: str
    since: float | None
    work: tuple[Work, ...]
    waiting: tuple[str, ...]


@dataclass(frozen=True)
class Choices:
    """What the filters may be set to; the first of each by number of models, 200 at most."""

    statuses: tuple[str, ...]
    tags: tuple[str, ...]
    stages: tuple[str, ...]
    devices: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class TableView:
    """One page of the table. `counts` is by word of status, over all models, unfiltered."""

    frame: Frame
    query: TableQuery
    headings: tuple[Heading, ...]
    lines: tuple[Line, ...]
    counts: Mapping[str, int]
    matching: int
    total: int
    pages: int
    choices: Choices


@dataclass(frozen=True)
class Use:
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

    `attempts` count those without a result so far; `runs_done` of `runs` are results.
    `seconds` is how long it took, all its uses of a device together; None where nobody wrote it.
    """

    name: str
    state: str
    needs: tuple[str, ...]
    node: str
    since: float | None
    expires: float | None
    not_before: float | None
    attempts: int
    runs_done: int
    runs: int
    error: str
    files: tuple[str, ...]
    uses: tuple[Use, ...]
    seconds: float | None


@dataclass(frozen=True)
class FileView:
    """A file to download, at /api/v1/models/NAME/files/FILE."""

    name: str
    size: int
    modified: float


@dataclass(frozen=True)
class Chart:
    title: str
    svg: str


@dataclass(frozen=True)
class Layer:
    name: str
    operator: str
    time_us: float


@dataclass(frozen=True)
class Fact:
    """A column of a row: its name, what it means, and its text."""

    column: str
    meaning: str
    text: str


@dataclass(frozen=True)
class ModelView:
    """`picture` is a PNG of PR curves as a data: address, drawn when `scored` was tested.

    `scores` is class → metric → value, for that same stage.
    """

    frame: Frame
    name: str
    line: Line
    priority: float | None
    facts: tuple[Fact, ...]
    stages: tuple[StageView, ...]
    files: tuple[FileView, ...]
    charts: tuple[Chart, ...]
    layers: tuple[Layer, ...]
    layers_kind: str
    conditions: Mapping[str, str]
    scored: str
    scores: Mapping[str, Mapping[str, float]]
    picture: str
    trouble: str  # a sentence, where the files could not be read
