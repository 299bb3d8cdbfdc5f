"""convert: from the uploaded ONNX file to everything a chip needs."""

from __future__ import annotations

from edgeloop.runner.stages.base import Assignment, Equipment, Result
from edgeloop.store import Value


def convert(work: Assignment, equipment: Equipment) -> Result:
    info = equipment.toolchain.inspect(work.onnx)
    equipment.task.check_output(info.output_shape)
    calibration = equipment.task.calibration(info.height, info.width, equipment.sizes.calibration)
    converted = equipment.toolchain.convert(
        work.onnx, calibration, work.folder, equipment.precision, equipment.chips
    )
    notes = " ".join(filter(None, (*converted.notes, calibration.note)))
    columns: dict[str, Value] = {
        "macs": info.macs,
        "params": info.params,
        "shape": str(list(info.input_shape)),
        "output_shape": str(list(info.output_shape)),
        "quantized": True,
        "precision": converted.precision,
        "toolchain": equipment.toolchain.name,
        **({"notes": notes} if notes else {}),
    }
    counts = f"macs {info.macs / 1e6:.3g} M, params {info.params / 1e6:.3g} M"
    summary = f"{counts}, quantized {converted.precision} on {len(calibration)} images"
    return Result(columns, converted.files, summary)
