"""Looks everywhere, then removes what was found."""

from __future__ import annotations

from collections.abc import Iterator

from edgeloop.errors import EdgeloopError
from edgeloop.housekeeping.boards import find_on_boards
from edgeloop.housekeeping.findings import Finding, GcOptions, Report, ReportDraft
from edgeloop.housekeeping.jobs import JobLeftovers
from edgeloop.housekeeping.machine import MachineLeftovers, known_jobs
from edgeloop.housekeeping.models import ModelLeftovers, find_fleets, find_runners
from edgeloop.settings import cache_folder
from edgeloop.workspace import Workspace

RECLAIM_S = 240.0


def find_leftovers(
    workspace: Workspace, options: GcOptions | None = None, now: float | None = None
) -> Report:
    """What nobody needs any more. Changes nothing. `now` is a time of the store's clock; files of
    this machine are judged by its own."""
    options = options or GcOptions()
    store, settings = workspace.store, workspace.settings
    now = store.now() if now is None else now
    draft = ReportDraft()
    for experiment in options.experiments or store.experiments():
        ModelLeftovers(store, experiment, settings, options.older_s, now).find(draft)
    find_runners(store, options.older_s, draft)
    find_fleets(store, options.older_s, draft)
    JobLeftovers(store.blobs, options, now, known_jobs(settings.project)).find(draft)
    MachineLeftovers(cache_folder(), settings.project, store.blobs, options).find(draft)
    if options.boards:
        find_on_boards(settings, options, draft)
    return Report(_merged(draft.findings), tuple(draft.notes))


def reclaim_orphans(workspace: Workspace, interval_s: float = RECLAIM_S) -> None:
    """For idle runners: what is left over of the models of their experiment goes. Files of attempts
    that never counted go at once, the rest when it is old enough that nobody is at it; `gc` does it
    for all experiments. Not more often than that by all runners together. It may be killed at any
    point, and be repeated."""
    store, settings = workspace.store, workspace.settings
    leftovers = ModelLeftovers(
        *(store, workspace.experiment, settings, 0.0, store.now()), attempts_at_once=True
    )
    leftovers.reclaim(interval_s)


def remove_leftovers(report: Report) -> Iterator[tuple[Finding, int | EdgeloopError]]:
    """Remove what was found, kind by kind: how many items went, or why that failed. One kind that
    fails does not keep the others from going."""
    for finding in report.findings:
        try:
            yield finding, finding.remove()
        except EdgeloopError as error:
            yield finding, error


def _merged(findings: list[Finding]) -> list[Finding]:
    """One line for a kind, whatever the number of experiments."""
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((finding.kind, finding.where), []).append(finding)
    return [_together(same) for same in kinds.values()]


def _together(same: list[Finding]) -> Finding:
    first = same[0]
    return Finding(
        *(first.kind, first.where, sum(f.count for f in same), sum(f.size for f in same)),
        *(first.why, lambda: sum(finding.remove() for finding in same)),
        *(tuple(item for finding in same for item in finding.items), first.verb),
    )
