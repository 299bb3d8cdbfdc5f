"""convert: from the uploaded ONNX file to everything a chip needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgeloop.errors import EdgeloopError, ModelFailed, PlanMisfit
from edgeloop.graph.isolated import graph_pool
from edgeloop.graph.outline import OUTLINE_SUFFIX, write_viewer
from edgeloop.models.columns import is_true
from edgeloop.models.plan import compiled_for, main_toolchain, targets_of
from edgeloop.platforms import (
    DEFAULT_PRECISION,
    PLAN_FILE,
    CompilesQuantized,
    Converted,
    MixesPrecision,
    Precision,
    PrecisionPlan,
    Toolchain,
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
    toolchain = _toolchain(work, equipment)
    chips = _chips(work, equipment, toolchain)
    equipment = replace(equipment, toolchain=toolchain, chips=chips)
    if (compiled := _compiled_only(work, equipment)) is not None:
        return compiled
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
    columns: dict[str, Value | None] = {
        "macs": info.macs,
        "params": info.params,
        "shape": str(_archai_shape(info.input_shape, info.layout)),
        "output_shape": str(_archai_shape(info.output_shape, info.layout)),
        "quantized": True,
        "precision": converted.precision,
        "calibration": calibration.origin,
        "toolchain": equipment.toolchain.name,
        "compiled": " ".join(_marked(chips, converted.refused)) or None,
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


def _toolchain(work: Assignment, equipment: Equipment) -> Toolchain:
    """The one that the row asks for; else the runner's own."""
    name = work.target or main_toolchain(work.row) or equipment.toolchain.name
    return equipment.converters.get(name, equipment.toolchain)


def _chips(work: Assignment, equipment: Equipment, toolchain: Toolchain) -> tuple[str, ...]:
    """Those that the row asks for, and those of this runner's devices."""
    own = equipment.chips if toolchain.name == equipment.toolchain.name else ()
    return tuple(dict.fromkeys((*targets_of(work.row).chips(toolchain.name), *own)))


def _compiled_only(work: Assignment, equipment: Equipment) -> Result | None:
    """What was asked for after the model had been converted: its numbers stay as they are, and
    something is compiled for further chips. None where it must be converted from the start."""
    toolchain = equipment.toolchain
    made = work.conversion(toolchain.name) or frozenset()
    is_converted = made and is_true(work.row.get("quantized"))
    quantized = work.find(".quant.onnx", toolchain.name) if is_converted else None
    if quantized is None or not isinstance(toolchain, CompilesQuantized):
        return None
    before = str(work.row.get("compiled") or "")
    missing = [chip for chip in equipment.chips if chip not in compiled_for(before)]
    more = _compiled(work, toolchain, quantized, missing)
    notes = " ".join(filter(None, (str(work.row.get("notes") or ""), *more.refusals)))
    columns: dict[str, Value | None] = {
        "quantized": True,
        "compiled": " ".join(filter(None, (before, *_marked(missing, more.refused)))),
        **({"notes": notes} if notes else {}),
    }
    files = {name: path for name, path in more.files.items() if name not in made}
    return Result(columns, files, f"compiled for {', '.join(missing)}")


@dataclass(frozen=True)
class _Compiled:
    """What was compiled of a quantized model, the chips that refused it, and why."""

    files: Mapping[str, Path]
    refused: tuple[str, ...]
    refusals: tuple[str, ...]


def _compiled(
    work: Assignment, toolchain: CompilesQuantized, quantized: Path, chips: Sequence[str]
) -> _Compiled:
    """One chip after the other: one of them may refuse what the others take."""
    files: dict[str, Path] = {}
    refused: dict[str, str] = {}
    place = work.folder / "compiled"
    for chip in chips:
        try:
            files |= toolchain.compile(quantized, f"{work.stem}.onnx", place, (chip,))
        except ModelFailed as error:
            refused[chip] = f"{chip}: {error}"
    return _Compiled(files, tuple(refused), tuple(refused.values()))


def _marked(chips: Sequence[str], refused: Collection[str]) -> list[str]:
    """As in the column `compiled`."""
    return [f"!{chip}" if chip in refused else chip for chip in chips]


def _converted(
    work: Assignment, equipment: Equipment, calibration: Samples
) -> tuple[Converted, Precision | PrecisionPlan, str]:
    """What was made, with which precision, and why it is not another one. A plan of the runner may
    be for any model, and name tensors that only some of them have."""

    def made(precision: Precision | PrecisionPlan) -> Converted:
        def with_chips(chips: tuple[str, ...]) -> Converted:
            source, folder = work.named_onnx, work.folder
            return convert_as(equipment.toolchain, source, calibration, folder, precision, chips)

        try:
            return with_chips(equipment.chips)
        except ModelFailed:  # one chip that refuses a model must not keep it from the others
            toolchain = equipment.toolchain
            if len(equipment.chips) < 2 or not isinstance(toolchain, CompilesQuantized):
                raise
            plain = with_chips(())
            more = _compiled(work, toolchain, plain.files[plain.quantized], equipment.chips)
            if len(more.refused) == len(equipment.chips):
                raise
            files = {**plain.files, **more.files}
            notes = (*plain.notes, *more.refusals)
            return replace(plain, files=files, notes=notes, refused=more.refused)

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
    path = work.folder / f"{work.stem}.{PLAN_FILE}"
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
    path = work.folder / f"{work.stem}{OUTLINE_SUFFIX}"
    try:
        graph_pool().write_outline(source, path)
    except EdgeloopError:
        return {}
    return {path.name: path} if path.is_file() else {}


def _archai_shape(shape: tuple[int, ...], layout: str) -> list[int]:
    """As Archai's tools write and read it: height, width and channels, without the batch."""
    inner = list(shape[1:])
    return [*inner[1:], inner[0]] if layout == "NCHW" and len(inner) == 3 else inner
