"""How far each stage of a model is, from its row alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgeloop.models import CANDIDATE, Plan, Stage, StageRecord
from edgeloop.portal.shapes import StageView, Use
from edgeloop.store import Values


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
