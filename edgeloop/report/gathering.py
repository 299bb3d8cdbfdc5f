"""Reads what a report needs from the store: all rows, and files of the front's models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from edgeloop.report.evidence import evidence_of
from edgeloop.report.front import pareto_of
from edgeloop.report.html import Report
from edgeloop.report.measures import Objective, Row
from edgeloop.report.provenance import Source
from edgeloop.workspace import Workspace

MOST_DETAILS = 12
_AT_ONCE = 4


def gather(
    workspace: Workspace,
    rows: Sequence[Row],
    objectives: Sequence[Objective],
    when: datetime,
    uses: Iterable[Mapping[str, object]] = (),
    details: int = MOST_DETAILS,
) -> Report:
    """`details` is how many models of the front are shown with layers, classes and PR curves: each
    costs a few reads of files and up to half a megabyte of the page."""
    names = [str(row.get("name", "")) for row in pareto_of(rows, objectives).front[:details]]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda name: evidence_of(workspace, name), names))
    source = Source(workspace.store.description, workspace.experiment, when)
    return Report(rows, objectives, source, uses, dict(zip(names, found, strict=True)))
