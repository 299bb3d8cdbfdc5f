"""The page of one model: its row as it is now, how far each stage is, its files.

How far each stage of a model is, from its row alone.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from edgeloop._util.redact import redact
from edgeloop.errors import EdgeloopError
from edgeloop.models import CANDIDATE, COLUMNS, Plan, Stage, StageRecord, visible_columns
from edgeloop.portal.rows import read_row, sound_records
from edgeloop.portal.state import Portal, frame_of
from edgeloop.portal.views.drawings import drawn
from edgeloop.portal.views.shapes import Chart, Fact, FileView, Layer, ModelView, StageView, Use
from edgeloop.portal.views.table import line_of
from edgeloop.report import Evidence, classes_chart, evidence_of, layers_chart, pr_chart
from edgeloop.store import Record, Values

if TYPE_CHECKING:
    import altair as alt


def timeline(
    row: Values,
    plan: Plan,
    records: Mapping[str, StageRecord],
    uses: Sequence[Use],
    now: float,
) -> tuple[StageView, ...]:
    taken = {stage.name for stage in plan.for_model(row)}
    return tuple(
        _stage(row, plan, stage, records.get(stage.name, StageRecord()), uses, now, taken)
        for stage in plan.stages
    )


def _stage(
    row: Values,
    plan: Plan,
    stage: Stage,
    record: StageRecord,
    uses: Sequence[Use],
    now: float,
    taken: set[str],
) -> StageView:
    own = tuple(use for use in uses if use.stage == stage.name)
    error = _error_of(row, stage)
    state = _state(row, plan, stage, record, now) if stage.name in taken else "skipped"
    if state == "ready" and error and row.get("status") == "error":
        state = "failed"
    is_held = record.is_held
    return StageView(
        name=stage.name,
        state=state,
        needs=stage.needs,
        node=record.owner,
        since=record.since if is_held else None,
        expires=record.expires if is_held else None,
        not_before=record.not_before if record.not_before > now else None,
        attempts=record.attempts,
        runs_done=stage.progress(row),
        runs=stage.runs,
        error=error,
        files=tuple(sorted(record.files)),
        uses=own,
        seconds=sum(use.seconds for use in own) if own else None,
    )


def _state(row: Values, plan: Plan, stage: Stage, record: StageRecord, now: float) -> str:
    if record.is_held:
        return "stalled" if record.expires < now else "running"
    if stage.is_done(row):
        return "done"
    if row.get("status") in (CANDIDATE, "uploading", "deleting"):
        return "none"
    if not plan.is_ready(row, stage):
        return "blocked"
    return "retry" if record.not_before > now else "ready"


def _error_of(row: Values, stage: Stage) -> str:
    """The row keeps its last error, with the stage in front."""
    name, colon, reason = str(row.get("error") or "").partition(": ")
    return reason if colon and name == stage.name else ""


Result = TypeVar("Result")
_MEANINGS = {column.name: column.meaning for column in COLUMNS}


def model_view(portal: Portal, experiment: str | None, name: str) -> ModelView:
    """Reads the row itself, one get: it may be newer than the snapshot, and has the long columns.
    Files that cannot be read are said, and hide nothing else."""
    frame = frame_of(portal, experiment)
    workspace = portal.workspace_of(experiment)
    record = workspace.catalog.get(name)
    troubles: list[str] = []
    none: tuple[FileView, ...] = ()
    files = _or(lambda: files_view(portal, experiment, name), none, troubles)
    evidence = _or(lambda: evidence_of(workspace, name), Evidence(), troubles)
    margin_s = workspace.settings.clock_margin_seconds
    layers = evidence.layers
    return ModelView(
        frame=frame,
        name=name,
        line=line_of(read_row(record, workspace.plan, margin_s), time.time()),
        priority=_priority(record),
        facts=_facts(record),
        stages=stages_view(portal, experiment, record),
        files=files,
        charts=_charts(portal, evidence, record.version),
        layers=tuple(Layer(*layer) for layer in layers.times_us) if layers else (),
        layers_kind=layers.kind if layers else "",
        conditions=dict(layers.conditions) if layers else {},
        scored=evidence.stage,
        scores=_by_class(evidence.scores),
        picture=_picture(evidence.pr_picture),
        trouble=" ".join(dict.fromkeys(troubles)),
    )


def files_view(portal: Portal, experiment: str | None, name: str) -> tuple[FileView, ...]:
    files = portal.workspace_of(experiment).catalog.files(name)
    return tuple(FileView(file.name, file.size, file.modified.timestamp()) for file in files)


def stages_view(portal: Portal, experiment: str | None, record: Record) -> tuple[StageView, ...]:
    workspace = portal.workspace_of(experiment)
    uses: tuple[Use, ...] = _or(portal.usage.uses, (), [])
    own = tuple(use for use in uses if use.model == record.key)
    records = sound_records(record.values)
    return timeline(record.values, workspace.plan, records, own, time.time())


def _charts(portal: Portal, evidence: Evidence, version: str) -> tuple[Chart, ...]:
    makers: list[tuple[str, Callable[[], alt.TopLevelMixin]]] = []
    layers, stage = evidence.layers, evidence.stage
    if layers and layers.times_us:
        makers.append(("Layer times", lambda: layers_chart(layers)))
    if evidence.scores:
        makers.append(("Classes", lambda: classes_chart(evidence.scores, f"Classes, {stage}")))
    if evidence.curves:
        title, average = f"Precision and recall, {stage}", evidence.scores.get("AP")
        makers.append((title, lambda: pr_chart(evidence.curves, title, average)))
    return tuple(
        Chart(title, drawn(portal, (title, version), make, f"chart{place}-"))
        for place, (title, make) in enumerate(makers)
    )


def _facts(record: Record) -> tuple[Fact, ...]:
    columns = visible_columns([record.values])
    return tuple(
        Fact(name, _MEANINGS.get(name, ""), redact(str(record.values[name]))) for name in columns
    )


def _priority(record: Record) -> float | None:
    value = record.values.get("priority")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]


def _by_class(scores: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """From metric → class to class → metric; what is no number is left out."""
    found: dict[str, dict[str, float]] = {}
    for metric, values in scores.items():
        for name, value in values.items():
            if math.isfinite(value):
                found.setdefault(name, {})[metric] = value
    return found


def _picture(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}" if content else ""


def _or(get: Callable[[], Result], instead: Result, troubles: list[str]) -> Result:
    try:
        return get()
    except EdgeloopError as error:
        troubles.append(redact(str(error)))
        return instead
