"""The portal, opened: the experiments it shows, each with a feed, and what all pages share."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from edgeloop._util.redact import redact
from edgeloop._version import __version__
from edgeloop.errors import EdgeloopError, NotFound
from edgeloop.models import check_experiment_name
from edgeloop.portal.auth import Sessions
from edgeloop.portal.feed import Feed, Snapshot
from edgeloop.portal.rows import Row, read_row
from edgeloop.portal.views.shapes import Frame
from edgeloop.store import Record
from edgeloop.workspace import Workspace

if TYPE_CHECKING:
    from edgeloop.portal.usage import UsageDesk
    from edgeloop.portal.views.jobs import JobsDesk

FEEDS = 4  # experiments in memory at once
IDLE_S = 600.0
FIRST_LOOK_S = 20.0
EXPERIMENTS_S = 5.0
CACHED = 24

Result = TypeVar("Result")


@dataclass(frozen=True)
class PortalOptions:
    host: str = "127.0.0.1"
    port: int = 8750
    token: str = field(default="", repr=False)
    allow_changes: bool = False


class Cache:
    """The last few results. What several threads want at once is made by one of them."""

    def __init__(self, size: int = CACHED) -> None:
        self._size = size
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Result]) -> Result:
        with self._guard:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        with kept.making:  # a maker that raises leaves it unmade, for the next to try
            if not kept.is_made:
                kept.value, kept.is_made = make(), True
        return kept.value  # type: ignore[return-value]


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
    """What is open. `close` ends its threads; the workspace it was given stays its giver's."""

    def __init__(self, workspace: Workspace, options: PortalOptions | None = None) -> None:
        from edgeloop.portal.usage import UsageDesk
        from edgeloop.portal.views.jobs import JobsDesk

        self.workspace = workspace
        self.options = options or PortalOptions()
        self.sessions = Sessions(self.options.token)
        self.cache = Cache()
        self.drawings = Cache()
        self.jobs: JobsDesk = JobsDesk(workspace)
        self.usage: UsageDesk = UsageDesk(workspace.store)
        self.closing = threading.Event()
        self._opened: dict[str, _Opened] = {}
        self._guard = threading.Lock()
        self._experiments: tuple[str, ...] = ()
        self._listed_at = float("-inf")

    def feed(self, experiment: str | None = None) -> Feed:
        return self._open(experiment).feed

    def rows(self, experiment: str | None = None) -> Snapshot:
        """All rows, as last seen; nothing is read for it but when the feed is new."""
        return self.feed(experiment).wait(FIRST_LOOK_S)

    def workspace_of(self, experiment: str | None = None) -> Workspace:
        """For what one model needs: its row as it is now, its files, changes to it."""
        return self._open(experiment).workspace

    def experiments(self) -> tuple[str, ...]:
        """Those of the store, and always the portal's own. No page waits for the list: it is made
        anew beside, and a store that is away leaves it as it was."""
        with self._guard:
            is_due = time.monotonic() - self._listed_at > EXPERIMENTS_S
            self._listed_at = time.monotonic() if is_due else self._listed_at
        if is_due:
            threading.Thread(target=self._list_experiments, name="experiments", daemon=True).start()
        return tuple(sorted({*self._experiments, self.workspace.experiment}))

    def _list_experiments(self) -> None:
        with contextlib.suppress(EdgeloopError):
            self._experiments = tuple(self.workspace.store.experiments())

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

    def _new(self, name: str) -> _Opened:
        settings = replace(self.workspace.settings, experiment=name)
        workspace = Workspace(settings, self.workspace.store)
        plan, margin_s = workspace.plan, settings.clock_margin_seconds

        def read(record: Record) -> Row:
            return read_row(record, plan, margin_s)

        feed = Feed(workspace.store.models(name), read, name=name).start()
        return _Opened(feed, workspace, time.monotonic())

    def _drop_idle(self) -> None:
        """Makes room for one more. One whose events somebody hears goes only when it must."""
        own, now = self.workspace.experiment, time.monotonic()
        for name, item in list(self._opened.items()):
            if name != own and not item.feed.listeners and now - item.used > IDLE_S:
                self._opened.pop(name).feed.stop(0.0)
        while len(self._opened) >= FEEDS:
            others = [name for name in self._opened if name != own]
            oldest = min(
                others, key=lambda n: (self._opened[n].feed.listeners > 0, self._opened[n].used)
            )
            self._opened.pop(oldest).feed.stop(0.0)


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
