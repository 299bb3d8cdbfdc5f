"""The devices: what each does now, and its utilisation by day."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from edgeloop._util.redact import redact
from edgeloop.errors import EdgeloopError
from edgeloop.models.plan import targets_of
from edgeloop.operate.fleet.demand import (
    DEVICE,
    LINUX,
    WaitingWork,
    conversion_group,
    group_named,
    group_of_pin,
    summed_work,
)
from edgeloop.runner.machines import (
    HeldStage,
    MachineLine,
    UseToday,
    machine_lines,
    use_today,
    utilisation,
)
from edgeloop.store import Values
from edgeloop.view.charts import utilisation_chart
from edgeloop.view.portal.feed import TableSnapshot
from edgeloop.view.portal.shapes import Busy, DayUse, DeviceCard, DevicesView, QueueView
from edgeloop.view.portal.state import Portal, frame_of

DAYS = 14


def devices_view(
    portal: Portal, experiment: str | None = None, days: int = DAYS, state: str = ""
) -> DevicesView:
    """While the store is away, what was last read of it."""
    snapshot = portal.rows(experiment)
    frame = frame_of(portal, experiment)
    usage: tuple[Values, ...] = ()
    trouble = ""
    try:
        usage = tuple(portal.usage.last_known(bool(snapshot.problem)).values())
    except EdgeloopError as error:
        trouble = redact(str(error))
    days_used = days_of(usage, days)
    svg = portal.draw_twice(
        ("use", days_used), lambda: utilisation_chart(map(vars, days_used)), "use-"
    )
    queue = queue_view(portal, experiment)
    lines, read_at = machines_of(portal, snapshot)
    today = use_today(usage, datetime.now(UTC))
    cards = [card_of(line, read_at, today) for line in lines if state in ("", line.state)]
    return DevicesView(
        frame=frame,
        machines=lines,
        cards=tuple(cards),
        counts=dict(Counter(line.state for line in lines).most_common()),
        state=state,
        read_at=read_at,
        now=busy_of(snapshot),
        waiting=queue.stages,
        queue=queue,
        days=days_used,
        svg=svg,
        trouble=trouble,
    )


def machines_of(portal: Portal, snapshot: TableSnapshot) -> tuple[tuple[MachineLine, ...], float]:
    """And when that was. While the store is away, its runners are as old as what it last said: the
    portal cannot know who has died since."""
    entries, now_s = portal.runners.last_read(bool(snapshot.problem))
    held = [
        HeldStage(lease.node, lease.stage, row.name, lease.since, lease.expires)
        for row in snapshot.rows.values()
        for lease in row.held
    ]
    return tuple(machine_lines(entries, portal.workspace.plan, now_s, held)), now_s


def card_of(line: MachineLine, read_at: float, today: UseToday) -> DeviceCard:
    return DeviceCard(
        line=line,
        since=read_at - line.seconds if line.seconds else None,
        error_at=read_at - line.error_seconds if line.error else None,
        seen_at=None if line.seen_seconds is None else read_at - line.seen_seconds,
        today=today.share(line.machine, line.device),
        today_s=today.seconds(line.machine, line.device),
    )


def days_of(usage: Iterable[Values], days: int) -> tuple[DayUse, ...]:
    """Per machine, device and UTC day, for the last days."""
    first = time.strftime("%Y-%m-%d", time.gmtime(time.time() - (days - 1) * 86_400))
    return tuple(
        DayUse(
            machine=use.machine,
            device=use.device,
            day=use.day.isoformat(),
            seconds=use.seconds,
            share=use.utilisation,
            uses=use.uses,
        )
        for use in utilisation(usage)
        if use.day.isoformat() >= first
    )


def busy_of(snapshot: TableSnapshot) -> tuple[Busy, ...]:
    """What each machine does, and since when, sorted by machine."""
    now = time.time()
    machines = [
        Busy(
            node=held.node,
            device=row.text("device"),
            model=row.name,
            stage=held.stage,
            since=held.since,
            expires=held.expires,
            is_stalled=held.expires < now,
        )
        for row in snapshot.rows.values()
        for held in row.held
    ]
    return tuple(sorted(machines, key=lambda busy: (busy.node, busy.since)))


# The work that waits for runners, by capability, and the runners of an experiment.


RUNNER_STATES = ("working", "idle", "dead")


def queue_view(
    portal: Portal, experiment: str | None = None, known: Collection[str] = ()
) -> QueueView:
    """From memory. Capabilities that are `known`, and the devices and toolchains that any row
    names, are there even if nothing waits for them: a scaler takes a missing number for an
    error."""
    name = experiment or portal.workspace.experiment
    snapshot = portal.rows(experiment)
    every = portal.runners.last_known(bool(snapshot.problem))
    entries = [entry for entry in every if entry.experiment == name]
    now = int(time.time())  # several who look within a second see the same

    def count() -> tuple[WaitingWork, ...]:
        rows = snapshot.rows.values()
        pins = {row.text("device") for row in rows} - {"", LINUX, DEVICE}
        asked = [targets_of({"targets": text}) for text in {row.text("targets") for row in rows}]
        work = (work for row in rows for work in row.left)
        names = {
            *map(group_named, {*known} - {"", LINUX, DEVICE}),
            *map(group_of_pin, pins),
            *(conversion_group(name) for targets in asked for name in targets.toolchains),
        }
        return summed_work(work, entries, now, names)

    lines = portal.queues.get((name, snapshot.generation, now, frozenset(known)), count)
    states = Counter(entry.state for entry in entries)
    return QueueView(
        experiment=name,
        read_at=portal.feed(experiment).read_at,
        is_loaded=snapshot.is_loaded,
        lines=lines,
        runners={state: states[state] for state in RUNNER_STATES},
    )
