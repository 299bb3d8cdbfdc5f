"""f1_1k and f1_1k_f of the task `tensors`: how well a model on the device agrees with the float
model on the host, on the same inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from edgeloop.errors import ModelFailed, NoSuchPrecision
from edgeloop.platforms import GraphInfo, Kind, cut, sample_count
from edgeloop.runner.stages.base import Assignment, Equipment, Result
from edgeloop.runner.stages.running import BATCH, NOT_AVAILABLE, ahead, batches
from edgeloop.store import Value
from edgeloop.tasks import (
    AgreementScorer,
    Output,
    Samples,
    Tensors,
    TensorsTask,
    reading_data,
)

COMPARED = ("f1_1k", "f1_1k_f")
_BATCH_BYTES = 64 * 1024**2  # of outputs; a few batches exist at any time


def compare_with_float(
    work: Assignment, equipment: Equipment, info: GraphInfo, task: TensorsTask
) -> Result:
    """`f1_1k` fills the columns of the quantized model; of the float model on the device there is
    a file and a line. F1 itself is `n/a`: agreement and accuracy are never mixed in a column."""
    device = equipment.device
    kind: Kind = "quantized" if work.stage == "f1_1k" else device.float_kind
    columns: dict[str, Value] = {work.stage: NOT_AVAILABLE, "task": task.name}
    if device.name == equipment.host.name and kind == "float":
        reason = "it is what others are compared with"
        return Result(columns, {}, f"{work.stage} n/a: {reason}")
    samples = test_samples(work, equipment, info, task)
    model = work.artefact(device.artefacts.get(kind, ""), equipment.toolchain.name)
    outputs = device.infer(model, info, kind, test_batches(samples, info))
    reference = equipment.host.infer(work.onnx, info, "float", test_batches(samples, info))
    try:
        scorer = agreement_of(outputs, reference, info, device.name)
    except NoSuchPrecision as error:
        return Result(columns, {}, f"{work.stage} n/a: {error}")
    if scorer.samples != len(samples):
        reason = f"{device.name} gave {scorer.samples} results for {len(samples)} inputs"
        raise ModelFailed(reason=reason)
    worst = scorer.worst()
    path = work.folder / f"test_results_{work.stage}.csv"
    scorer.write_csv(path)
    columns |= {f"{work.stage}_images": len(samples), f"{work.stage}_set": samples.key}
    if work.stage == "f1_1k":
        columns |= worst.values()
    of = "" if len(info.outputs) == 1 else f", the worst of {len(info.outputs)} outputs"
    summary = f"{worst}{of}, on {_described(samples)}, {device.name} ({kind})"
    return Result(columns, {path.name: path}, summary)


def test_samples(
    work: Assignment, equipment: Equipment, info: GraphInfo, task: TensorsTask
) -> Samples:
    """The dataset's test images where it has some for this model."""
    count = equipment.sizes.quick
    with reading_data():
        if info.image is not None and not isinstance(equipment.task, TensorsTask):
            return equipment.task.test(info.height, info.width, count)
        return task.inputs(info, count, "test", work.onnx)


def _described(samples: Samples) -> str:
    what = "images" if samples.tensors is None else "inputs"
    kind = "" if samples.origin == "dataset" else f"{samples.origin} "
    return f"{len(samples)} {kind}{what}"


def test_batches(samples: Samples, info: GraphInfo) -> Iterator[Tensors]:
    """Fewer at once where outputs are large."""
    sample = sum(
        math.prod(info.sample_shape(tensor)) * np.dtype(tensor.dtype).itemsize
        for tensor in info.outputs
    )
    size = max(1, min(BATCH, _BATCH_BYTES // max(1, sample)))
    return batches(samples, info, size)


def agreement_of(
    outputs: Iterable[Tensors], reference: Iterable[Tensors], info: GraphInfo, device: str
) -> AgreementScorer:
    """Both are drawn at the same time; their batches need not be of equal size."""
    scorer = AgreementScorer(info)
    for given, expected in _paired(ahead(outputs), ahead(reference)):
        for batch, source in ((expected, "the float model"), (given, device)):
            if not all(_is_finite(array) for array in batch.values()):
                end = scorer.samples + sample_count(batch)
                reason = f"{source} gave NaN or infinite values for inputs {scorer.samples}–{end}"
                raise ModelFailed(reason=reason)
        scorer.add(given, expected)
    return scorer


def _is_finite(array: Output) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _paired(
    first: Iterator[Tensors], second: Iterator[Tensors]
) -> Iterator[tuple[Tensors, Tensors]]:
    """As many samples of each; ends with the shorter one."""
    one: Tensors = {}
    other: Tensors = {}
    try:
        while True:
            one = one if sample_count(one) else next(first)
            other = other if sample_count(other) else next(second)
            count = min(sample_count(one), sample_count(other))
            yield cut(one, 0, count), cut(other, 0, count)
            one = cut(one, count, sample_count(one))
            other = cut(other, count, sample_count(other))
    except StopIteration:
        return
