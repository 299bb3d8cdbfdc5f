"""The open portal: a feed per experiment, the use of devices, and the caches that pages share."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from edgeloop._util.redact import redact
from edgeloop._version import __version__
from edgeloop.errors import EdgeloopError, NotFound
from edgeloop.models.columns import check_experiment_name
from edgeloop.models.runners import Registry, RunnerEntry
from edgeloop.store import Record, Store, Values
from edgeloop.view.drawing import to_page_part, to_page_parts
from edgeloop.view.portal.auth import Sessions
from edgeloop.view.portal.feed import Feed, Row, TableSnapshot, read_row, seconds_of
from edgeloop.view.portal.shapes import Frame, UsePeriod
from edgeloop.view.portal.tokens import AUTO
from edgeloop.workspace import Workspace, models_elsewhere

if TYPE_CHECKING:
    import altair as alt

    from edgeloop.view.portal.views.jobs import JobsMonitor


FRESH_S = 5.0
WINDOW_S = 30 * 86_400.0
OVERLAP_S = 86_400.0  # a use is recorded when it ends, with the key of its start
MOST_ROWS = 200_000


class UsageReader:
    """The use of devices in the last thirty days, read on demand and then kept for some seconds.
    Rows are only ever added, so only the newest are read again."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._rows: dict[str, Values] = {}
        self._uses: tuple[UsePeriod, ...] = ()
        self._read_at = float("-inf")
        self._is_whole = False
        self._guard = threading.Lock()

    def uses(self) -> tuple[UsePeriod, ...]:
        """Sorted by start. Raises StoreUnavailable if the store is away."""
        with self._guard:
            if time.monotonic() - self._read_at > FRESH_S:
                self._read()
            return self._uses

    def rows(self) -> Mapping[str, Values]:
        self.uses()
        return self._rows

    def last_known(self, is_away: bool) -> Mapping[str, Values]:
        """All of them as last read, and not read again while the store `is_away`."""
        return self._rows if is_away else self.rows()

    def _read(self) -> None:
        now = self._clock()
        first = now - (OVERLAP_S if self._is_whole else WINDOW_S)
        rows = {key: row for key, row in self._rows.items() if key >= _key(now - WINDOW_S)}
        recent = self._store.usage().query(after=_key(first), limit=MOST_ROWS)
        rows.update((record.key, record.values) for record in recent)
        uses = filter(None, map(_use, rows.values()))
        self._uses = tuple(
            sorted((use for use in uses if use.end >= now - WINDOW_S), key=lambda use: use.start)
        )
        self._rows, self._is_whole, self._read_at = rows, True, time.monotonic()


class RunnersReader:
    """The runners of the store, read on demand and then kept for some seconds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._entries: tuple[RunnerEntry, ...] = ()
        self._now_s = 0.0
        self._read_at = float("-inf")
        self._guard = threading.Lock()

    def read(self) -> tuple[tuple[RunnerEntry, ...], float]:
        """All of them, and the store's time. Raises StoreUnavailable if the store is away."""
        with self._guard:
            if time.monotonic() - self._read_at > FRESH_S:
                self._entries = tuple(Registry(self._store).entries())
                self._now_s = self._store.now()
                self._read_at = time.monotonic()
            return self._entries, self._now_s

    def last_known(self, is_away: bool) -> tuple[RunnerEntry, ...]:
        """All of them as last read, and not read again while the store `is_away`."""
        return self.last_read(is_away)[0]

    def last_read(self, is_away: bool) -> tuple[tuple[RunnerEntry, ...], float]:
        """The same with the store's time then, or ours if it was never read."""
        if not is_away:
            with contextlib.suppress(EdgeloopError):
                self.read()
        return self._entries, self._now_s or time.time()


def _key(seconds: float) -> str:
    """The key of a use that started then."""
    return f"{max(seconds, 0.0):015.3f}"


def _use(row: Values) -> UsePeriod | None:
    start, end = seconds_of(str(row.get("start", ""))), seconds_of(str(row.get("end", "")))
    if start is None or end is None or end < start:
        return None
    return UsePeriod(
        str(row.get("name", "")), str(row.get("model", "")), str(row.get("stage", "")), start, end
    )


FEEDS = 16  # experiments in memory at once: a scaler asks for each of them all the time
IDLE_S = 600.0
FIRST_LOOK_S = 20.0
EXPERIMENTS_S = 5.0
CACHED = 24
THUMBNAILS = 200  # some kilobytes each
MOST_UPLOADS = 4  # at once
EXAMPLES = 8  # models whose examples are kept decoded, about a megabyte each

Result = TypeVar("Result")


@dataclass(frozen=True)
class PortalOptions:
    """`token`: what visitors need; "auto" is that of this user, "" none (on loopback).
    `public_url`: where a proxy in front of the portal serves it. `certificate` and `key` are files;
    `is_self_signed` makes them."""

    host: str = "127.0.0.1"
    port: int = 8750
    token: str = field(default=AUTO, repr=False)
    allow_changes: bool = False
    public_url: str = ""
    certificate: Path | None = None
    key: Path | None = None
    is_self_signed: bool = False


class Cache:
    """The last few results. If several threads want the same one, one of them makes it."""

    def __init__(self, size: int = CACHED) -> None:
        self._size = size
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Result]) -> Result:
        with self._guard:
            entry = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        with entry.making:  # if `make` raises, the next thread tries again
            if not entry.is_made:
                entry.value, entry.is_made = make(), True
        return entry.value  # type: ignore[return-value]


class _Kept:
    def __init__(self) -> None:
        self.making = threading.Lock()
        self.is_made = False
        self.value: object = None


@dataclass
class _Opened:
    feed: Feed
    workspace: Workspace
    used: float


class Portal:
    """`close` ends its threads; the workspace belongs to the caller."""

    def __init__(self, workspace: Workspace, options: PortalOptions | None = None) -> None:
        from edgeloop.view.portal.views.jobs import JobsMonitor

        self.workspace = workspace
        self.options = options or PortalOptions(token="")
        self.sessions = Sessions(self.options.token)
        self.cache = Cache()
        self.drawings = Cache()
        self.queues = Cache(FEEDS)
        self.examples = Cache(EXAMPLES)
        self.thumbnails = Cache(THUMBNAILS)
        self.decoding = threading.Lock()
        self.jobs: JobsMonitor = JobsMonitor(workspace)
        self.usage: UsageReader = UsageReader(workspace.store)
        self.runners = RunnersReader(workspace.store)
        self.uploading = threading.BoundedSemaphore(MOST_UPLOADS)
        self.checking = threading.Lock()
        self.closing = threading.Event()
        self._opened: dict[str, _Opened] = {}
        self._guard = threading.Lock()
        self._experiments: tuple[str, ...] = ()
        self._listed_at = float("-inf")

    def feed(self, experiment: str | None = None) -> Feed:
        return self._open(experiment).feed

    def rows(self, experiment: str | None = None) -> TableSnapshot:
        """All rows as last read; waits only for a new feed."""
        return self.feed(experiment).wait(FIRST_LOOK_S)

    def workspace_of(self, experiment: str | None = None) -> Workspace:
        """For a single model: its current row, its files, changes to it."""
        return self._open(experiment).workspace

    def experiments(self) -> tuple[str, ...]:
        """Those of the store, and always the portal's own. No page waits for the list: it is
        refreshed in the background, and stays as it was while the store is away."""
        with self._guard:
            is_due = time.monotonic() - self._listed_at > EXPERIMENTS_S
            self._listed_at = time.monotonic() if is_due else self._listed_at
        if is_due:
            threading.Thread(target=self._list_experiments, name="experiments", daemon=True).start()
        return tuple(sorted({*self._experiments, self.workspace.experiment}))

    def _list_experiments(self) -> None:
        with contextlib.suppress(EdgeloopError):
            self._experiments = tuple(self.workspace.store.experiments())

    def draw(self, content: Hashable, make: Callable[[], alt.TopLevelMixin], prefix: str) -> str:
        """A chart as part of a page. `content` is all that it shows; the same content is drawn
        once."""
        return self.drawings.get((prefix, content), lambda: to_page_part(make(), prefix))

    def draw_twice(
        self,
        content: Hashable,
        make: Callable[[], alt.TopLevelMixin],
        prefix: str,
        make_narrow: Callable[[], alt.TopLevelMixin] | None = None,
    ) -> str:
        """Like `draw`, for screens and for phones, on which other charts are scrolled."""
        return self.drawings.get(
            (prefix, content, "twice"),
            lambda: to_page_parts(make(), prefix, make_narrow() if make_narrow else None),
        )

    def close(self) -> None:
        self.closing.set()
        with self._guard:
            opened, self._opened = list(self._opened.values()), {}
        for item in opened:
            item.feed.stop()

    def _open(self, experiment: str | None) -> _Opened:
        name = self._checked(experiment)
        with self._guard:
            if name not in self._opened:
                self._drop_idle()
                self._opened[name] = self._new(name)
            opened = self._opened[name]
            opened.used = time.monotonic()
            return opened

    def _checked(self, experiment: str | None) -> str:
        if experiment is None or experiment == self.workspace.experiment:
            return self.workspace.experiment
        if experiment not in self._opened:
            check_experiment_name(experiment)
            if experiment not in self._experiments:
                self._list_experiments()
            if experiment not in self._experiments:
                raise NotFound(reason=f"There is no experiment {experiment!r} in this store.")
        return experiment

    def elsewhere(self, experiment: str | None = None) -> Mapping[str, str]:
        """How many models other experiments have, for a page that has none to show; nothing while
        the store does not answer. Counted again when the list of experiments is."""
        opened = self._open(experiment)
        if opened.feed.wait(FIRST_LOOK_S).problem:
            return {}
        key = ("elsewhere", opened.workspace.experiment, int(time.monotonic() // EXPERIMENTS_S))
        try:
            return self.cache.get(key, lambda: models_elsewhere(opened.workspace))
        except EdgeloopError:
            return {}

    def _new(self, name: str) -> _Opened:
        settings = replace(self.workspace.settings, experiment=name)
        workspace = Workspace(settings, self.workspace.store)
        read = partial(row_of, workspace)
        feed = Feed(workspace.store.models(name), read, name=name).start()
        return _Opened(feed, workspace, time.monotonic())

    def _drop_idle(self) -> None:
        """Makes room for one more feed; those with listeners are dropped last."""
        main, now = self.workspace.experiment, time.monotonic()
        for name, item in list(self._opened.items()):
            if name != main and not item.feed.listeners and now - item.used > IDLE_S:
                self._opened.pop(name).feed.stop(0.0)
        while len(self._opened) >= FEEDS:
            others = [name for name in self._opened if name != main]
            oldest = min(
                others, key=lambda n: (self._opened[n].feed.listeners > 0, self._opened[n].used)
            )
            self._opened.pop(oldest).feed.stop(0.0)


def row_of(workspace: Workspace, record: Record) -> Row:
    settings = workspace.settings
    margin_s, most = settings.clock_margin_seconds, settings.max_attempts
    return read_row(record, workspace.plan, margin_s, most)


def frame_of(portal: Portal, experiment: str | None = None) -> Frame:
    feed = portal.feed(experiment)
    snapshot = feed.wait(FIRST_LOOK_S)
    return Frame(
        experiment=experiment or portal.workspace.experiment,
        experiments=portal.experiments(),
        store=redact(portal.workspace.store.description),
        event=f"{feed.id}-{snapshot.generation}",
        read_at=feed.read_at,
        banner=snapshot.problem,
        is_loading=not snapshot.is_loaded,
        allow_changes=portal.options.allow_changes,
        version=__version__,
    )
