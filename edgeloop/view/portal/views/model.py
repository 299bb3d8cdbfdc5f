"""The page of one model: its current row, the progress of each stage, its files and charts."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from edgeloop._util.redact import redact
from edgeloop.errors import EdgeloopError, NotFound
from edgeloop.models.columns import (
    CANDIDATE,
    LATENCY,
    RecoverySummary,
    column_in_unit,
    column_of,
    is_true,
    recovery_of,
    score_meaning,
    shown_scores,
    visible_columns,
)
from edgeloop.models.plan import NOT_AVAILABLE, Plan, Stage, StageRecord, records_of
from edgeloop.store import Record, Values
from edgeloop.view.charts import Evidence, evidence_charts, evidence_of, png_address
from edgeloop.view.network import LayerDetails, PictureOfNetwork, outline_in_store, picture_of
from edgeloop.view.portal.shapes import (
    FileView,
    ModelView,
    StageView,
    UsePeriod,
)
from edgeloop.view.portal.state import Portal, frame_of, row_of
from edgeloop.view.portal.views.table import headings, line_of
from edgeloop.workspace import Workspace


def timeline(
    row: Values,
    plan: Plan,
    records: Mapping[str, StageRecord],
    uses: Sequence[UsePeriod],
    now: float,
) -> tuple[StageView, ...]:
    """Every registered stage, and those of further devices and toolchains behind it."""
    taken = {stage.name: stage for stage in plan.for_model(row)}
    stages = {**{stage.name: stage for stage in plan.stages}, **taken}
    steps = []
    for name in plan.in_order(stages):
        stage, record = stages[name], records.get(name, StageRecord())
        state = _state(row, plan, stage, record, now) if name in taken else "skipped"
        of_stage = tuple(use for use in uses if use.stage == name)
        title = plan.title(row, stage)
        steps.append(_stage(row, stage, title, record, state, uses=of_stage, now=now))
    return tuple(steps)


def _stage(
    row: Values,
    stage: Stage,
    title: str,
    record: StageRecord,
    state: str,
    uses: tuple[UsePeriod, ...],
    now: float,
) -> StageView:
    failed, colon, reason = str(row.get("error") or "").partition(": ")  # the last error
    error = reason if colon and failed == stage.name else ""
    if state == "ready" and error and row.get("status") == "error":
        state = "failed"
    is_held = record.is_held
    return StageView(
        name=stage.name,
        title=title,
        state=state,
        needs=stage.needs,
        node=record.owner,
        since=record.since if is_held else None,
        expires=record.expires if is_held else None,
        not_before=record.not_before if record.not_before > now else None,
        attempts=record.attempts,
        runs_done=stage.progress(row),
        runs=stage.runs,
        is_deterministic=stage.enough is not None and stage.enough(row),
        error=error,
        files=tuple(sorted(record.files)),
        uses=uses,
        seconds=sum(use.seconds for use in uses) if uses else None,
    )


def _state(row: Values, plan: Plan, stage: Stage, record: StageRecord, now: float) -> str:
    if record.is_held and record.expires < now:
        return "stalled"
    if record.is_held:
        return "queued" if record.queued else "running"
    if stage.target and all(row.get(column) == NOT_AVAILABLE for column in stage.fills):
        return "failed"  # the others go on without it
    if stage.is_done(row):
        return "done"
    if row.get("status") in (CANDIDATE, "uploading", "deleting"):
        return "none"
    if not plan.is_ready(row, stage):
        return "blocked"
    return "retry" if record.not_before > now else "ready"


Result = TypeVar("Result")


def model_view(portal: Portal, experiment: str | None, name: str) -> ModelView:
    """Reads the row from the store: it may be newer than the snapshot, and has the long columns.
    Files that cannot be read are reported and hide nothing else."""
    frame = frame_of(portal, experiment)
    workspace = portal.workspace_of(experiment)
    record = workspace.catalog.get(name)
    troubles: list[str] = []
    none: tuple[FileView, ...] = ()
    files = _or_else(lambda: files_view(portal, experiment, name), none, troubles)
    evidence = _or_else(lambda: evidence_of(workspace, name), Evidence(), troubles)
    graph = _or_else(lambda: graph_view(portal, workspace, record, evidence), None, troubles)
    hint, command = graph_hint(record, files) if graph is None else ("", "")
    layers, priority = evidence.layers, record.values.get("priority")
    columns = (LATENCY, "macs", *shown_scores([record.values]))
    units = {column: column_in_unit(column, [record.values]) for column in columns}
    is_number = isinstance(priority, int | float) and not isinstance(priority, bool)
    return ModelView(
        frame=frame,
        name=name,
        line=line_of(row_of(workspace, record), time.time(), columns, units),
        headings=headings(columns, score_meaning([record.values]), units=units),
        priority=float(priority) if is_number and math.isfinite(priority) else None,  # type: ignore[arg-type]
        facts=tuple(
            (column, column_of(column).meaning, redact(str(record.values[column])))
            for column in visible_columns([record.values])
        ),
        stages=stages_view(portal, experiment, record),
        files=files,
        charts=tuple(
            (title, portal.draw_twice((title, record.version), make, f"chart{place}-"))
            for place, (title, make) in enumerate(evidence_charts(evidence))
        ),
        layers=layers.times_us if layers else (),
        layers_kind=layers.kind if layers else "",
        conditions=dict(layers.conditions) if layers else {},
        scored=evidence.stage,
        scores=_by_class(evidence.scores),
        image=png_address(evidence.pr_image),
        trouble=" ".join(dict.fromkeys(troubles)),
        recovery=_recovery(record.values),
        comment=redact(str(record.values.get("comment") or "")),
        graph=graph,
        graph_hint=hint,
        graph_command=command,
    )


def _recovery(row: Values) -> RecoverySummary | None:
    summary = recovery_of(row)
    if summary is None:
        return None
    lines = tuple(tuple(redact(text) for text in line) for line in summary.lines)
    return replace(summary, title=redact(summary.title), lines=lines)


def files_view(portal: Portal, experiment: str | None, name: str) -> tuple[FileView, ...]:
    files = portal.workspace_of(experiment).catalog.files(name)
    return tuple(
        FileView(f.name, f.size, f.modified.timestamp(), f.role.group, f.role.about) for f in files
    )


def stages_view(portal: Portal, experiment: str | None, record: Record) -> tuple[StageView, ...]:
    workspace = portal.workspace_of(experiment)
    uses: tuple[UsePeriod, ...] = _or_else(portal.usage.uses, (), [])
    model_uses = tuple(use for use in uses if use.model == record.key)
    records = records_of(record.values)
    return timeline(record.values, workspace.plan, records, model_uses, time.time())


def _by_class(scores: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """From metric → class to class → metric, finite values only."""
    by_class: dict[str, dict[str, float]] = {}
    for metric, values in scores.items():
        for name, value in values.items():
            if math.isfinite(value):
                by_class.setdefault(name, {})[metric] = value
    return by_class


def _or_else(get: Callable[[], Result], default: Result, troubles: list[str]) -> Result:
    try:
        return get()
    except EdgeloopError as error:
        troubles.append(redact(str(error)))
        return default


# The graph of a model: from the file that conversion left, and the times of its layers.


_PREFIX = "network-"


def graph_view(
    portal: Portal, workspace: Workspace, record: Record, evidence: Evidence
) -> PictureOfNetwork | None:
    """None where the model has no such file, or one that cannot be used."""

    def made() -> PictureOfNetwork | None:
        outline = outline_in_store(workspace, record.key)
        layers = evidence.layers.times_us if evidence.layers else ()
        return picture_of(outline, layers, _PREFIX) if outline else None

    content = (workspace.experiment, record.key, record.version)
    return portal.drawings.get((_PREFIX, content), made)


@dataclass(frozen=True)
class BoxView:
    """What is behind one box of the graph: `count` layers, of which the first are in `layers`."""

    layers: tuple[LayerDetails, ...]
    count: int
    kind: str  # how the times came about: `estimate` or another


def box_view(portal: Portal, experiment: str | None, name: str, box: int) -> BoxView:
    """Raises NotFound for a box that the graph of the model does not have."""
    workspace = portal.workspace_of(experiment)
    record = workspace.catalog.get(name)
    evidence = evidence_of(workspace, name)
    graph = graph_view(portal, workspace, record, evidence)
    layers = graph.details(box) if graph else ()
    if graph is None or not layers:
        raise NotFound(reason=f"The graph of {name} has no such box: reload the page.")
    kind = evidence.layers.kind if evidence.layers else ""
    return BoxView(layers, len(graph.groups[box].layers), kind)


def graph_hint(record: Record, files: Sequence[FileView]) -> tuple[str, str]:
    """A sentence and a command for a model that was converted by an older version. Without its
    ONNX file, as in the demo, it cannot be converted again."""
    can_convert = any(file.name.endswith(".onnx") for file in files)
    if not is_true(record.values.get("quantized")) or not can_convert:
        return "", ""
    command = shlex.join(("edgeloop", "reset", record.key, "--stage", "convert"))
    return "It has no graph. Converting it again makes one:", command
