"""convert: from the uploaded ONNX file to everything a chip needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edgeloop.graph import write_viewer
from edgeloop.models import is_true
from edgeloop.platforms import Converted
from edgeloop.runner.stages.base import (
    Assignment,
    Chosen,
    Equipment,
    Result,
    calibration_samples,
    choose_task,
    task_for,
)
from edgeloop.store import Value


def convert(work: Assignment, equipment: Equipment) -> Result:
    info = equipment.toolchain.inspect(work.onnx)
    equipment = replace(equipment, task=task_for(equipment.task, info))
    chosen = None
    if not is_true(work.row.get("benchmark_only")):  # latency needs no task
        chosen = choose_task(work, equipment, info)
    calibration = calibration_samples(work, equipment, info)
    converted = equipment.toolchain.convert(
        work.onnx, calibration, work.folder, equipment.precision, equipment.chips
    )
    why = _why(chosen, equipment)
    notes = " ".join(filter(None, (*converted.notes, calibration.note, why)))
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
        **({"task": chosen.task.name} if chosen else {}),
        **({"notes": notes} if notes else {}),
    }
    counts = f"macs {info.macs / 1e6:.3g} M, params {info.params / 1e6:.3g} M"
    kind = "" if calibration.origin == "dataset" else f"{calibration.origin} "
    what = "images" if calibration.tensors is None else "inputs"
    summary = f"{counts}, quantized {converted.precision} on {len(calibration)} {kind}{what}"
    if why:
        summary += f"; {why}"
    return Result(columns, {**converted.files, **_viewer(work, converted.files)}, summary)


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


def _archai_shape(shape: tuple[int, ...], layout: str) -> list[int]:
    """As Archai's tools write and read it: height, width and channels, without the batch."""
    inner = list(shape[1:])
    return [*inner[1:], inner[0]] if layout == "NCHW" and len(inner) == 3 else inner
