"""f1_onnx, f1_1k, f1_1k_f, f1_10k: run a test set through a model and score it as it comes.

For the task `tensors` there is no score: f1_1k and f1_1k_f then tell how well the model on the
device agrees with the float model on the host, on the same inputs.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgeloop.errors import ModelFailed, NoSuchPrecision
from edgeloop.models.plan import NOT_AVAILABLE
from edgeloop.platforms import Device, GivesClasses, GraphInfo, Kind, device_type
from edgeloop.platforms.batching import (
    BATCH,
    ahead,
    batches,
    cut,
    run_test,
    sample_count,
    score_of,
    scorer_of,
)
from edgeloop.runner.stages.base import Assignment, Equipment, Result, choose_task
from edgeloop.store import Value
from edgeloop.tasks import (
    AgreementScorer,
    IllustratedScorer,
    Output,
    Samples,
    Score,
    Tensors,
    TensorsTask,
    example_files,
    metric_of,
    reading_data,
    task_for,
    write_score_files,
)

COMPARED = ("f1_1k", "f1_1k_f")
_BATCH_BYTES = 64 * 1024**2  # of outputs; a few batches exist at any time


@dataclass(frozen=True)
class Test:
    """Which model, on what, on how many images."""

    kind: Kind
    on_host: bool
    thorough: bool


TESTS = {
    "f1_onnx": Test("float", on_host=True, thorough=True),
    "f1_1k": Test("quantized", on_host=False, thorough=False),
    "f1_1k_f": Test("float", on_host=False, thorough=False),
    "f1_10k": Test("quantized", on_host=False, thorough=True),
}


def accuracy(work: Assignment, equipment: Equipment) -> Result:
    test = TESTS[work.stage]
    info = equipment.toolchain.inspect(work.onnx)
    equipment = replace(equipment, task=task_for(equipment.task, info))
    chosen = choose_task(work, equipment, info)
    if isinstance(chosen.task, TensorsTask):
        if work.stage not in COMPARED:
            reason = "the task tensors compares with the float model, in f1_1k and f1_1k_f"
            return Result({work.stage: NOT_AVAILABLE}, {}, f"{work.stage} n/a: {reason}")
        return compare_with_float(work, equipment, info, chosen.task)
    calibration = work.calibration(equipment.toolchain.name)
    if test.kind == "quantized" and calibration == "random":
        reason = "it was calibrated on random images; reset convert, with a dataset"
        return Result({work.stage: NOT_AVAILABLE}, {}, f"{work.stage} n/a: {reason}")
    device = equipment.host if test.on_host else equipment.device
    count = equipment.sizes.thorough if test.thorough else equipment.sizes.quick
    with reading_data():
        samples = equipment.task.test(info.height, info.width, count)
    kind = _kind(test, device)
    if (same := _same_test(work, equipment, device, kind, samples)) is not None:
        return _copied(work, same, samples)
    try:
        score, scorer = _scored(work, equipment, device, info, kind, samples)
    except NoSuchPrecision as error:
        return Result({work.stage: NOT_AVAILABLE}, {}, f"{work.stage} n/a: {error}")
    interval = equipment.task.interval(score.counts)
    metric = metric_of(equipment.task)
    files = write_score_files(score, work.folder, work.stage, interval, metric)
    task_name = equipment.task.name
    files |= scorer.write(work.folder, work.stage, samples, task_name, device.name)
    named = work.stage if metric == "f1" else f"{work.stage} {metric}"
    summary = f"{named} {score.headline:.4f} on {len(samples)} images, {device.name} ({kind})"
    if score.curve_images:
        summary += f", PR curves of {score.curve_images}"
    if score.note:
        summary += f"; {score.note}"
    if scorer.problem:
        summary += f"; no images of examples: {scorer.problem}"
    columns: dict[str, Value] = {
        work.stage: score.headline,
        f"{work.stage}_images": len(samples),
        f"{work.stage}_set": samples.key,
        "task": task_name,
        "metric": metric,
    }
    if math.isfinite(interval.low) and math.isfinite(interval.high):
        columns |= {f"{work.stage}_low": interval.low, f"{work.stage}_high": interval.high}
    return Result(columns, files, summary)


def _kind(test: Test, device: Device) -> Kind:
    return device.float_kind if test.kind == "float" else test.kind


def _same_test(
    work: Assignment, equipment: Equipment, device: Device, kind: Kind, samples: Samples
) -> str | None:
    """A stage that has done the same already: the same model on the same device and images. In a
    small dataset, 1,000 and 10,000 images are the same ones."""
    row = work.row
    if (row.get("task"), row.get("metric")) != (equipment.task.name, metric_of(equipment.task)):
        return None
    for name, test in TESTS.items():
        on = equipment.host if test.on_host else equipment.device
        is_same = (device_type(on), _kind(test, on)) == (device_type(device), kind)
        is_scored = type(row.get(name)) is float and row.get(f"{name}_set") == samples.key
        if name != work.stage and is_same and is_scored and _files_of(work, name):
            return name
    return None


def _files_of(work: Assignment, stage: str) -> dict[str, Path]:
    """Its results, by the names they have as those of this stage; empty where some are not here."""
    curves = (f"pr_curve_{stage}.png", f"pr_curve_{stage}.csv")
    names = (f"test_results_{stage}.csv", *curves, *example_files(stage))
    present = [name for name in names if name in work.files]
    if names[0] not in present:
        return {}
    return {name.replace(stage, work.stage): work.files[name] for name in present}


def _copied(work: Assignment, stage: str, samples: Samples) -> Result:
    files = {}
    for name, source in _files_of(work, stage).items():
        files[name] = Path(shutil.copyfile(source, work.folder / name))
    columns: dict[str, Value] = {
        work.stage: work.row[stage],
        f"{work.stage}_images": len(samples),
        f"{work.stage}_set": samples.key,
        "task": work.row["task"],
        "metric": work.row["metric"],
    }
    for end in ("low", "high"):
        if f"{stage}_{end}" in work.row:
            columns[f"{work.stage}_{end}"] = work.row[f"{stage}_{end}"]
    summary = f"{work.stage} {work.row[stage]:.4f}, copied from {stage}: same {len(samples)} images"
    return Result(columns, files, summary)


def _scored(
    work: Assignment,
    equipment: Equipment,
    device: Device,
    info: GraphInfo,
    kind: Kind,
    samples: Samples,
) -> tuple[Score, IllustratedScorer]:
    """F1 needs class maps only, and those are a small part of the bytes: where device and model
    have them, the full outputs of a few images are enough for the curves."""
    task = equipment.task
    model = work.artefact(device.artefacts.get(kind, ""), equipment.toolchain.name)
    few = equipment.sizes.curve
    maps = None
    if isinstance(device, GivesClasses) and metric_of(task) == "f1" and len(samples) > few:
        maps = None
        if kind in device.class_artefacts:
            maps = work.find(device.class_artefacts[kind], equipment.toolchain.name)
    scorer = IllustratedScorer(scorer_of(task, curves=maps is None), len(samples))
    if maps is None or not isinstance(device, GivesClasses):
        return run_test(task, device, model, info, kind, samples, scorer=scorer), scorer
    outputs = device.infer_classes(maps, info, kind, batches(samples, info))
    whole = score_of(outputs, samples, scorer, device.name)
    sample = replace(samples, images=samples.images[:few], labels=samples.labels[:few])
    return whole.with_curves_of(run_test(task, device, model, info, kind, sample)), scorer


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
    for actual, expected in _paired(ahead(outputs), ahead(reference)):
        for batch, source in ((expected, "the float model"), (actual, device)):
            if not all(_is_finite(array) for array in batch.values()):
                end = scorer.samples + sample_count(batch)
                reason = f"{source} gave NaN or infinite values for inputs {scorer.samples}–{end}"
                raise ModelFailed(reason=reason)
        scorer.add(actual, expected)
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
