"""The work that waits for runners, by capability, and the runners of an experiment."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection

from edgeloop.fleet import DEVICE, LINUX, WaitingWork, group_of_pin, summed_work
from edgeloop.portal.shapes import QueueView
from edgeloop.portal.state import Portal

RUNNER_STATES = ("working", "idle", "dead")


def queue_view(
    portal: Portal, experiment: str | None = None, known: Collection[str] = ()
) -> QueueView:
    """From memory. Capabilities that are `known`, and devices that any row names, are there even
    if nothing waits for them: a scaler takes a missing number for an error."""
    name = experiment or portal.workspace.experiment
    snapshot = portal.rows(experiment)
    every = portal.runners.last_known(bool(snapshot.problem))
    entries = [entry for entry in every if entry.experiment == name]
    now = int(time.time())  # several who look within a second see the same

    def count() -> tuple[WaitingWork, ...]:
        rows = snapshot.rows.values()
        pins = {row.text("device") for row in rows}.union(known) - {"", LINUX, DEVICE}
        work = (work for row in rows for work in row.left)
        return summed_work(work, entries, now, map(group_of_pin, pins))

    lines = portal.queues.get((name, snapshot.generation, now, frozenset(known)), count)
    states = Counter(entry.state for entry in entries)
    return QueueView(
        experiment=name,
        read_at=portal.feed(experiment).read_at,
        is_loaded=snapshot.is_loaded,
        lines=lines,
        runners={state: states[state] for state in RUNNER_STATES},
    )
