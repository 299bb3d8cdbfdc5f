"""Planted bugs: the protocol with one rule broken. The explorer must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from edgeloop.errors import LeaseLost
from edgeloop.models.leases import Lease, Leases, Outcome
from edgeloop.models.plan import Stage, StageRecord, records_of
from edgeloop.store import Changes, Record, Values
from tests.protocol.actors import Configuration


class CommitsWithoutLooking(Leases):
    """A result is written whoever holds the stage now."""

    def commit(self, lease: Lease, outcome: Outcome) -> Record:
        with _instead(self, "_held", lambda row, lease: records_of(row.values)):
            return super().commit(lease, outcome)


class RenewsWhatItLost(Leases):
    """A holder that slept through its expiry puts its own token back."""

    def renew(self, lease: Lease) -> Lease:
        def take_back(row: Record, lease: Lease) -> dict[str, StageRecord]:
            records = records_of(row.values)
            record = records.get(lease.stage, StageRecord())
            records[lease.stage] = replace(record, token=lease.token, owner=lease.owner)
            return records

        with _instead(self, "_held", take_back):
            return super().renew(lease)


class ClaimsWithoutComparing(Leases):
    """A claim is written over whatever the row has become since it was read."""

    def _acquire(self, row: Record, stage: Stage, node: str, *rest: Any, **more: Any) -> Any:
        def overwrite(row: Record, changes: Changes) -> Record:
            newest = self._models.get(row.key)
            return self._queue.update(self._models, newest or row, changes)

        with _instead(self, "_update", overwrite):
            return super()._acquire(row, stage, node, *rest, **more)


class RetriesBlindly(Leases):
    """A result that was refused is handed in once more, as a new attempt: it may be there."""

    def commit(self, lease: Lease, outcome: Outcome) -> Record:
        with _instead(self, "_is_committed", lambda row, lease: False):
            try:
                return super().commit(lease, outcome)
            except LeaseLost:
                row = self._models.get(lease.model)
                again = row and self._acquire(row, self._plan[lease.stage], lease.owner)
                if not again:
                    raise
                return super().commit(again, _appended(again, outcome))


class ReleasesAsFailure(Leases):
    """Work that is given back counts as a failed attempt."""

    def release(self, lease: Lease, delay_s: float = 0.0) -> Record:
        def count(row: Record) -> Changes | None:
            if self._is_committed(row, lease):
                return None
            records = self._held(row, lease)
            records[lease.stage] = records[lease.stage].settled()
            return self._summary(row, records)

        return self._change(lease, count)


@dataclass(frozen=True)
class Planted:
    """A bug, where to look for it, and words of the violation that it must lead to."""

    configuration: Configuration
    says: str


def _ends_at_once(record: StageRecord, margin_s: float) -> float:
    return max(record.expires if record.is_held else 0.0, record.not_before)


def _shows_nothing(queue: Any, hint: Record, values: Values) -> None:
    """A hint that a wrong clock hid stays as it is."""


def _finds_nothing(queue: Any, *where: Any) -> list[Any]:
    return []


_QUEUE = "edgeloop.models.queue"
_SHORT: dict[str, Any] = {"ticks": 1, "lease_s": 10.0, "margin_s": 0.0}  # over after one tick
PLANTED = {
    "commit without looking for the token": Planted(
        Configuration("", True, **_SHORT, renewals=0, leases=CommitsWithoutLooking),
        "commit with the stale token",
    ),
    "renewal of a lease that was taken over": Planted(
        Configuration("", True, **_SHORT, leases=RenewsWhatItLost),
        "renew with the stale token",
    ),
    "claim without compare-and-set": Planted(
        Configuration("", True, ticks=0, renewals=0, leases=ClaimsWithoutComparing),
        "s left by its holder's clock",
    ),
    "takeover without the margin": Planted(
        Configuration(
            *("", True),
            ticks=1,
            renewals=0,
            skews_s=(0.0, 10.0, 0.0),
            patches=((f"{_QUEUE}.free_at", _ends_at_once),),
        ),
        "s left by its holder's clock",
    ),
    "lost answer retried as a second attempt": Planted(
        Configuration(
            *("", True, ("benchmark",)),
            workers=1,
            ticks=0,
            faults=1,
            renewals=0,
            leases=RetriesBlindly,
        ),
        "commit with the stale token",
    ),
    "work that is given back counts": Planted(
        Configuration("", True, workers=1, ticks=0, releases=1, leases=ReleasesAsFailure),
        "failures of convert instead of 0",
    ),
    "hint that a wrong clock hid": Planted(
        Configuration(
            *("", False),
            workers=1,
            ticks=0,
            jumps=1,
            crashes=1,
            patches=((f"{_QUEUE}.Queue._show", _shows_nothing),),
        ),
        "is never finished",
    ),
    "priorities that were edited by hand are not looked for": Planted(
        Configuration(
            *("", True),
            models=("a", "b"),
            workers=1,
            ticks=0,
            renewals=0,
            deeds=("edit",),
            deeds_left=1,
            judges_order=True,
            patches=((f"{_QUEUE}.Queue.urgent", _finds_nothing),),
        ),
        "was taken while b of rank",
    ),
    "versions used again after a delete": Planted(
        Configuration(
            *("", False),
            workers=1,
            ticks=0,
            renewals=0,
            deeds=("delete", "upload"),
            deeds_left=2,
            reuses_versions=True,
        ),
        "stale token",
    ),
}


class _instead:  # noqa: N801 - reads as a statement
    """One method of one object replaced for a while."""

    def __init__(self, whom: object, name: str, what: Callable[..., Any]) -> None:
        self._whom, self._name, self._what = whom, name, what

    def __enter__(self) -> None:
        vars(self._whom)[self._name] = self._what

    def __exit__(self, *error: object) -> None:
        del vars(self._whom)[self._name]


def _appended(lease: Lease, outcome: Outcome) -> Outcome:
    """The same result behind the runs that are there now."""
    import json

    from edgeloop.models.columns import runs_of

    mine = json.loads(str(outcome.columns["total_inference_avg"]))[-1]
    runs = [*runs_of(lease.row.values), mine]
    return Outcome({"total_inference_avg": json.dumps(runs)})
