"""Why a runner has nothing to do: who holds the models that are left, and what they wait for; and
what a drain has come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from edgeloop.models.columns import CANDIDATE, matches_any
from edgeloop.models.plan import is_foreign, records_of
from edgeloop.models.queue import FINISHED
from edgeloop.store import Condition, Values
from edgeloop.workspace import Workspace, models_elsewhere

MOST_ROWS = 100  # a look costs the same however many models there are
MOST_NAMES = 3


@dataclass(frozen=True)
class DrainSummary:
    """How the models stand when a runner has nothing left to do: how many are complete, which ones
    are in error, and why others are left, with how many there are of each kind."""

    done: int
    failed: tuple[str, ...]
    left: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        names = ", ".join(self.failed[:MOST_NAMES])
        more = " and others" if len(self.failed) > MOST_NAMES else ""
        failed = f"{len(self.failed)} failed" + (f" ({names}{more})" if self.failed else "")
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.left)
        left = f"{sum(count for _, count in self.left)} left" + (f": {reasons}" if reasons else "")
        return f"Models: {self.done} done, {failed}, {left}."


def drain_summary(
    workspace: Workspace, capabilities: Collection[str], subset: Sequence[str] = ()
) -> DrainSummary:
    """Of all models of the experiment that match the subset."""
    done, failed, left = 0, [], Counter[str]()
    for row in workspace.store.models(workspace.experiment).query():
        status = row.values.get("status")
        if status == CANDIDATE or not matches_any(row.key, subset):
            continue
        if status == "complete":
            done += 1
        elif status == "error":
            failed.append(row.key)
        elif status in FINISHED:
            left[str(status)] += 1
        else:
            left[_reason(workspace, row.values, capabilities)] += 1
    return DrainSummary(done, tuple(failed), tuple(left.most_common()))


def outlook(workspace: Workspace, capabilities: Collection[str], subset: Sequence[str] = ()) -> str:
    """What stands between a runner with these capabilities and its next stage, as a phrase."""
    table = workspace.store.models(workspace.experiment)
    unfinished = [Condition("status", "!=", status) for status in FINISHED]
    rows = list(table.query(where=unfinished, limit=MOST_ROWS))
    if not rows:
        if any(True for _ in table.query(limit=1)):
            return "no model has anything left to do"
        others = ", ".join(f"{n} in '{name}'" for name, n in models_elsewhere(workspace).items())
        return f"experiment '{workspace.experiment}' has no models" + (others and f"; {others}")
    more = " or more" if len(rows) == MOST_ROWS else ""
    kept = [row.values for row in rows if matches_any(row.key, subset)]
    if not kept:
        return f"{len(rows)}{more} unfinished, but none matches {' or '.join(subset)}"
    reasons = Counter(_reason(workspace, row, capabilities) for row in kept)
    return ", ".join(f"{count}{more} {reason}" for reason, count in reasons.most_common(MOST_NAMES))


def _reason(workspace: Workspace, row: Values, capabilities: Collection[str]) -> str:
    plan = workspace.plan
    records = records_of(row)
    owners = sorted({record.owner for record in records.values() if record.is_held})
    ready = [stage for stage in plan.for_model(row) if plan.is_ready(row, stage)]
    free = [stage for stage in ready if not (s := records.get(stage.name)) or not s.is_held]
    if is_foreign(row, records):
        return f"held by {row.get('node')}, which is not an Edgeloop runner"
    ours = [stage for stage in free if plan.capability(row, stage) in capabilities]
    if ours:
        return f"ready for {ours[0].name}, to be tried again soon"
    if owners:
        shown = ", ".join(owners[:MOST_NAMES])
        return f"in work at {shown}{' and others' if len(owners) > MOST_NAMES else ''}"
    if not free:
        return "with no stage that is ready"
    _, _, device = plan.capability(row, free[0]).partition("@")
    where = f" on {device}" if device else ""
    return f"waiting for {free[0].name}{where}, which this runner does not do"
