"""The devices: what each does now, and its utilisation by day."""

from __future__ import annotations

import contextlib
import time

from edgeloop._util.redact import redact
from edgeloop.errors import EdgeloopError
from edgeloop.models import RunnerEntry
from edgeloop.portal.feed import TableSnapshot
from edgeloop.portal.shapes import Busy, DayUse, DevicesView
from edgeloop.portal.state import Portal, frame_of
from edgeloop.portal.views.queue import queue_view
from edgeloop.report import utilisation_chart
from edgeloop.runner import HeldStage, MachineLine, machine_lines, utilisation

DAYS = 14


def devices_view(portal: Portal, experiment: str | None = None, days: int = DAYS) -> DevicesView:
    snapshot = portal.rows(experiment)
    frame = frame_of(portal, experiment)
    found: tuple[DayUse, ...] = ()
    trouble = ""
    try:
        found = days_of(portal, days)
    except EdgeloopError as error:
        trouble = redact(str(error))
    used = [{"device": u.device, "day": u.day, "seconds": u.seconds, "uses": u.uses} for u in found]
    svg = portal.draw(("use", found), lambda: utilisation_chart(used), "use-")
    queue = queue_view(portal, experiment)
    return DevicesView(
        frame=frame,
        machines=machines_of(portal, snapshot),
        read_at=time.time(),
        now=busy_of(snapshot),
        waiting=queue.stages,
        queue=queue,
        days=found,
        svg=svg,
        trouble=trouble,
    )


def machines_of(portal: Portal, snapshot: TableSnapshot) -> tuple[MachineLine, ...]:
    """While the store is away, what the rows in memory tell."""
    entries: tuple[RunnerEntry, ...] = ()
    now_s = time.time()
    with contextlib.suppress(EdgeloopError):
        entries, now_s = portal.runners.read()
    held = [
        HeldStage(lease.node, lease.stage, row.name, lease.since, lease.expires)
        for row in snapshot.rows.values()
        for lease in row.held
    ]
    return tuple(machine_lines(entries, portal.workspace.plan, now_s, held))


def days_of(portal: Portal, days: int) -> tuple[DayUse, ...]:
    """Per device and UTC day, for the last days."""
    first = time.strftime("%Y-%m-%d", time.gmtime(time.time() - (days - 1) * 86_400))
    return tuple(
        DayUse(use.device, use.day.isoformat(), use.seconds, use.utilisation, use.uses)
        for use in utilisation(portal.usage.rows().values())
        if use.day.isoformat() >= first
    )


def busy_of(snapshot: TableSnapshot) -> tuple[Busy, ...]:
    """What each machine does, and since when, sorted by machine."""
    now = time.time()
    found = [
        Busy(
            held.node,
            row.text("device"),
            row.name,
            held.stage,
            held.since,
            held.expires,
            held.expires < now,
        )
        for row in snapshot.rows.values()
        for held in row.held
    ]
    return tuple(sorted(found, key=lambda busy: (busy.node, busy.since)))
