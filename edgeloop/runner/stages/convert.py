"""convert: from the uploaded ONNX file to everything a chip needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edgeloop.errors import EdgeloopError, PlanMisfit
from edgeloop.graph.isolated import graph_pool
from edgeloop.graph.outline import OUTLINE_SUFFIX, write_viewer
from edgeloop.models.columns import is_true
from edgeloop.platforms import (
    DEFAULT_PRECISION,
    PLAN_FILE,
    Converted,
    MixesPrecision,
    Precision,
    PrecisionPlan,
    convert_as,
)
from edgeloop.runner.stages.base import (
    Assignment,
    Chosen,
    Equipment,
    Result,
    calibration_samples,
    choose_task,
    complete_table,
)
from edgeloop.runner.stages.recovery import Recovered, recovered
from edgeloop.store import Value
from edgeloop.tasks import Samples, task_for


def convert(work: Assignment, equipment: Equipment) -> Result:
    info = equipment.toolchain.inspect(work.onnx)
    equipment = replace(equipment, task=task_for(equipment.task, info))
    chosen = None
    if not is_true(work.row.get("benchmark_only")):  # latency needs no task
        chosen = choose_task(work, equipment, info)
    calibration = calibration_samples(work, equipment, info)
    converted, precision, unused = _converted(work, equipment, calibration)
    better = Recovered()
    if equipment.recover:
        better = recovered(work, equipment, info, chosen.task if chosen else None, converted)
    files = {**converted.files, **better.files, **_plan_file(work, precision)}
    untimed = complete_table(equipment, files, converted.quantized)
    why = _why(chosen, equipment)
    notes = " ".join(filter(None, (*converted.notes, calibration.note, unused, why)))
    columns: dict[str, Value] = {
        "macs": info.macs,
        "params": info.params,
        "shape": str(_archai_shape(info.input_shape, info.layout)),
        "output_shape": str(_archai_shape(info.output_shape, info.layout)),
        "quantized": True,
        "precision": converted.precision,
        "calibration": calibration.origin,
        "toolchain": equipment.toolchain.name,
        **_memory(converted),
        **better.columns,
        **({"task": chosen.task.name} if chosen else {}),
        **({"notes": notes} if notes else {}),
    }
    counts = f"macs {info.macs / 1e6:.3g} M, params {info.params / 1e6:.3g} M"
    kind = "" if calibration.origin == "dataset" else f"{calibration.origin} "
    what = "images" if calibration.tensors is None else "inputs"
    summary = f"{counts}, quantized {converted.precision} on {len(calibration)} {kind}{what}"
    for more in filter(None, (better.text, why, untimed)):
        summary += f"; {more}"
    drawn = {**_viewer(work, converted.files), **_outline(work, files.get(converted.quantized))}
    return Result(columns, {**files, **drawn}, summary)


def _converted(
    work: Assignment, equipment: Equipment, calibration: Samples
) -> tuple[Converted, Precision | PrecisionPlan, str]:
    """What was made, with which precision, and why it is not another one. A plan of the runner may
    be for any model, and name tensors that only some of them have."""

    def made(precision: Precision | PrecisionPlan) -> Converted:
        toolchain, chips = equipment.toolchain, equipment.chips
        return convert_as(toolchain, work.onnx, calibration, work.folder, precision, chips)

    precision, unused = _precision(work, equipment)
    try:
        return made(precision), precision, unused
    except PlanMisfit as error:
        if precision is not equipment.precision:
            raise  # it came with the model
        unused = f"{str(error).rstrip('.')}: {DEFAULT_PRECISION} instead."
        return made(DEFAULT_PRECISION), DEFAULT_PRECISION, f"the runner was not followed: {unused}"


def _precision(work: Assignment, equipment: Equipment) -> tuple[Precision | PrecisionPlan, str]:
    """A plan that was uploaded with the model takes precedence over the runner's; a plan of another
    model is not used, and the notes say so."""
    requested = equipment.precision
    uploaded_plan = work.files.get(PLAN_FILE)
    if uploaded_plan is not None:
        reason = f"the toolchain {equipment.toolchain.name} takes none"
        if isinstance(equipment.toolchain, MixesPrecision):
            plan = PrecisionPlan.read(uploaded_plan)
            if plan.belongs_to(work.uploaded):
                return plan, ""
            reason = "it belongs to another model"
        unused = f"its {PLAN_FILE} was not used: {reason}."
        return (DEFAULT_PRECISION if isinstance(requested, PrecisionPlan) else requested), unused
    if isinstance(requested, PrecisionPlan) and not requested.belongs_to(work.uploaded):
        unused = (
            f"the runner's precision file belongs to another model: {DEFAULT_PRECISION} instead."
        )
        return DEFAULT_PRECISION, unused
    return requested, ""


def _plan_file(work: Assignment, precision: Precision | PrecisionPlan) -> dict[str, Path]:
    """The plan lies beside the model that it made."""
    if not isinstance(precision, PrecisionPlan):
        return {}
    path = work.folder / f"{work.uploaded.stem}.{PLAN_FILE}"
    precision.write(path)
    return {path.name: path}


def _memory(converted: Converted) -> dict[str, Value]:
    memory = converted.memory_or_guess
    if memory is None:
        return {}
    return {"peak_memory_bytes": memory.peak_bytes, "weight_bytes": memory.weight_bytes}


def _why(chosen: Chosen | None, equipment: Equipment) -> str:
    if chosen is None or not chosen.because:
        return ""
    return (
        f"compared with the float model instead of scored by the task {equipment.task.name}: "
        f"{chosen.because}"
    )


def _viewer(work: Assignment, files: Mapping[str, Path]) -> dict[str, Path]:
    """A page of the layers, if the toolchain wrote their table."""
    for name, table in files.items():
        if name.endswith(".layers.csv"):
            page = work.folder / f"{name.removesuffix('.csv')}.html"
            write_viewer(page, work.uploaded.name, table)
            return {page.name: page}
    return {}


def _outline(work: Assignment, quantized: Path | None) -> dict[str, Path]:
    """The network for a drawing: as it is deployed, since the times of layers are of that. A model
    of which none can be made is converted all the same."""
    is_graph = quantized is not None and quantized.suffix == ".onnx"
    source = quantized if quantized is not None and is_graph else work.onnx
    path = work.folder / f"{work.uploaded.stem}{OUTLINE_SUFFIX}"
    try:
        graph_pool().write_outline(source, path)
    except EdgeloopError:
        return {}
    return {path.name: path} if path.is_file() else {}


def _archai_shape(shape: tuple[int, ...], layout: str) -> list[int]:
    """As Archai's tools write and read it: height, width and channels, without the batch."""
    inner = list(shape[1:])
    return [*inner[1:], inner[0]] if layout == "NCHW" and len(inner) == 3 else inner
