"""f1_onnx, f1_1k, f1_1k_f, f1_10k: run a test set through a model and score it as it comes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from edgeloop.errors import ModelFailed, NoSuchPrecision
from edgeloop.platforms import Device, GivesClasses, GraphInfo, Kind
from edgeloop.runner.stages.base import Assignment, Equipment, Result, check_fits
from edgeloop.tasks import (
    Output,
    Samples,
    Score,
    Scorer,
    TakesOutputs,
    Task,
    Tensors,
    metric_of,
    write_score_files,
)

T = TypeVar("T")
BATCH = 8
AHEAD = 4


@dataclass(frozen=True)
class Test:
    """Which model, on what, on how many images."""

    kind: Kind
    on_host: bool
    thorough: bool


NOT_AVAILABLE = "n/a"  # as old tables say it where a device has no such result

TESTS = {
    "f1_onnx": Test("float", on_host=True, thorough=True),
    "f1_1k": Test("quantized", on_host=False, thorough=False),
    "f1_1k_f": Test("float", on_host=False, thorough=False),
    "f1_10k": Test("quantized", on_host=False, thorough=True),
}


def accuracy(work: Assignment, equipment: Equipment) -> Result:
    test = TESTS[work.stage]
    info = equipment.toolchain.inspect(work.onnx)
    check_fits(work, equipment.task, info)
    if test.kind == "quantized" and work.row.get("calibration") == "random":
        reason = "it was calibrated on random images; reset convert, with a dataset"
        return Result({work.stage: NOT_AVAILABLE}, {}, f"{work.stage} n/a: {reason}")
    device = equipment.host if test.on_host else equipment.device
    count = equipment.sizes.thorough if test.thorough else equipment.sizes.quick
    samples = equipment.task.test(info.height, info.width, count)
    kind = device.float_kind if test.kind == "float" else test.kind
    try:
        score = _scored(work, equipment, device, info, kind, samples)
    except NoSuchPrecision as error:
        return Result({work.stage: NOT_AVAILABLE}, {}, f"{work.stage} n/a: {error}")
    interval = equipment.task.interval(score.counts)
    metric = metric_of(equipment.task)
    files = write_score_files(score, work.folder, work.stage, interval, metric)
    summary = f"{work.stage} {score.headline:.4f} on {len(samples)} images, {device.name} ({kind})"
    if score.curve_images:
        summary += f", PR curves of {score.curve_images}"
    if score.note:
        summary += f"; {score.note}"
    return Result({work.stage: score.headline}, files, summary)


def run_test(
    task: Task, device: Device, model: Path, info: GraphInfo, kind: Kind, samples: Samples
) -> Score:
    """Inference and scoring overlap: outputs are scored while the next are computed, and no more
    than a few batches of outputs exist at any time."""
    outputs = device.infer(model, info, kind, batches(samples, info))
    if isinstance(task, TakesOutputs):
        return _score_of(outputs, samples, task.scorer(), device.name)
    single = (batch[info.output_name] for batch in outputs)
    return _score_of(single, samples, task.scorer(), device.name)


def _scored(
    work: Assignment,
    equipment: Equipment,
    device: Device,
    info: GraphInfo,
    kind: Kind,
    samples: Samples,
) -> Score:
    """F1 needs class maps only, and those are a small part of the bytes: where device and model
    have them, the full outputs of a few images are enough for the curves."""
    task = equipment.task
    model = work.artefact(device.artefacts.get(kind, ""), equipment.toolchain.name)
    few = equipment.sizes.curve
    needs_outputs = metric_of(task) != "f1"
    if needs_outputs or not isinstance(device, GivesClasses) or len(samples) <= few:
        return run_test(task, device, model, info, kind, samples)
    maps = work.find(device.class_artefacts[kind]) if kind in device.class_artefacts else None
    if maps is None:
        return run_test(task, device, model, info, kind, samples)
    outputs = device.infer_classes(maps, info, kind, batches(samples, info))
    whole = _score_of(outputs, samples, task.scorer(curves=False), device.name)
    sample = replace(samples, images=samples.images[:few], labels=samples.labels[:few])
    return whole.with_curves_of(run_test(task, device, model, info, kind, sample))


def _score_of(
    outputs: Iterable[Output | Tensors], samples: Samples, scorer: Scorer, device: str
) -> Score:
    """Each image once and in order, or there is no score."""
    seen = 0
    for batch in ahead(outputs):
        arrays = list(batch.values()) if isinstance(batch, Mapping) else [batch]
        count = len(arrays[0])
        if not all(_is_finite(array) for array in arrays):
            reason = f"{device} gave NaN or infinite values for images {seen}–{seen + count}"
            raise ModelFailed(reason=reason)
        labels = samples.labels[seen : seen + count]
        if len(labels) == count:
            scorer.add(batch, labels)
        seen += count
    if seen != len(samples):
        raise ModelFailed(reason=f"{device} gave {seen} results for {len(samples)} images")
    return scorer.score()


def _is_finite(array: Output) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array.max(initial=0.0)))


def batches(samples: Samples, info: GraphInfo, size: int = BATCH) -> Iterator[Tensors]:
    """As devices take them; every one but the last fills whole runs of the model."""
    step = max(1, size // info.batch) * info.batch
    arrays = samples.tensors or {info.input_name: samples.images}
    for start in range(0, len(samples), step):
        yield {name: array[start : start + step] for name, array in arrays.items()}


def ahead(outputs: Iterable[T]) -> Iterator[T]:
    """Draws from `outputs` in a thread of its own, a few items ahead of whoever consumes them."""
    ready: queue.Queue[T | BaseException | None] = queue.Queue(AHEAD)
    stopped = threading.Event()

    def draw() -> None:
        last: BaseException | None = None
        try:
            for output in outputs:
                while not stopped.is_set():
                    try:
                        ready.put(output, timeout=0.2)
                        break
                    except queue.Full:
                        continue
                if stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - carried over and raised by the consumer
            last = error
        ready.put(last)

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
