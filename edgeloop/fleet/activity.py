"""Which runners have something to do: from the registry in the store, and from the engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from edgeloop.fleet.demand import group_of
from edgeloop.fleet.launcher import RunnerState
from edgeloop.models import Registry, RunnerEntry
from edgeloop.store import Store

REGISTRY_S = 3.0  # between two looks into the registry
IN_VAIN_S = 60.0  # the first claim in a large fleet may take half a minute


class RunnerActivity:
    """What is known of the runners of all experiments, looked up now and then."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._registry = Registry(store)
        self._entries: list[RunnerEntry] = []
        self._entries_of: dict[str, list[RunnerEntry]] = {}  # by runner
        self._read_at = -REGISTRY_S
        self._store_s = 0.0  # the store's clock at that time
        self._waiting_since: dict[str, float] = {}
        self._work_since: dict[str, float] = {}

    def refresh(self, states: Mapping[str, RunnerState]) -> None:
        now = self._clock()
        waiting = {id_ for id_, state in states.items() if state == "waiting"}
        self._waiting_since = {id_: self._waiting_since.get(id_, now) for id_ in waiting}
        if now - self._read_at >= REGISTRY_S:
            self._entries = [entry for entry in self._registry.entries() if not entry.is_dead]
            self._entries_of = {}
            for entry in self._entries:
                self._entries_of.setdefault(entry.node, []).append(entry)
            self._read_at, self._store_s = now, self._store.now()

    def note_work(self, experiments: Iterable[str]) -> None:
        """Which experiments have work for runners now."""
        now = self._clock()
        self._work_since = {name: self._work_since.get(name, now) for name in experiments}

    def is_served(self, experiment: str) -> bool:
        """Whether any runner, of whichever fleet, is alive there."""
        return any(entry.experiment == experiment for entry in self._entries)

    def idle_s(self, runner: str) -> float | None:
        """For how long a runner has had nothing to do; None: it works, or nobody knows."""
        if runner in self._waiting_since:
            return self._clock() - self._waiting_since[runner]
        return self._registered_idle_s(runner)

    def _registered_idle_s(self, runner: str) -> float | None:
        own = self._entries_of.get(runner, [])
        if not own or any(entry.state != "idle" for entry in own):
            return None
        passed_s = self._clock() - self._read_at
        return min(self._store_s - entry.since for entry in own) + passed_s

    def idle_in_vain(self, experiment: str, runners: Iterable[str], limit_s: float) -> int:
        """How many of these runners have found nothing for long though work is there: they cannot
        take it, because it needs another dataset, for example, or waits for a retry. Those that
        still wait for a machine do not count."""
        since = self._work_since.get(experiment)
        least_s = max(limit_s, IN_VAIN_S)
        if since is None or self._clock() - since < least_s:
            return 0
        started = [runner for runner in runners if runner not in self._waiting_since]
        return sum((self._registered_idle_s(runner) or 0.0) >= least_s for runner in started)

    def stages_elsewhere(
        self, experiment: str, own: Collection[str], groups: Collection[str]
    ) -> int:
        """Stages of these groups that runners outside the fleet are doing."""
        return sum(
            len(device.doing)
            for entry in self._entries
            if entry.experiment == experiment and entry.node not in own
            for device in entry.devices
            if set(groups) & {group_of(can) for can in device.can}
        )

    def working(self, runners: Collection[str]) -> int:
        """How many of these are at work, looked up now."""
        entries = self._registry.entries()
        return len({entry.node for entry in entries if entry.state == "working"} & set(runners))
