"""Recovery as a part of convert (`runner --recover`): the judge, and what the row and people get.

The judge runs models on the runner's own device, on labelled images that neither the steps nor the
tests use: the last ones of those for calibration. Without labels it compares with the float model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgeloop.errors import BadInput
from edgeloop.platforms import CompilesQuantized, Converted, Device, GraphInfo, Kind
from edgeloop.platforms.batching import run_test, scorer_of
from edgeloop.runner.stages.accuracy import agreement_of, test_batches
from edgeloop.runner.stages.base import Assignment, Equipment, calibration_samples
from edgeloop.store import Value
from edgeloop.tasks import (
    Interval,
    Samples,
    Task,
    TensorsTask,
    metric_of,
    paired_interval,
    reading_data,
)
from edgeloop.tuning.recovery import Judge, Judged, Recovery, recover

_FEWEST = 4
_MOST_CALIBRATION = 256


@dataclass(frozen=True)
class Recovered:
    """What recovery adds to a conversion: files that take the place of others, columns, a text."""

    files: Mapping[str, Path] = field(default_factory=dict)
    columns: Mapping[str, Value] = field(default_factory=dict)
    text: str = ""


def check_toolchain(toolchain: object, name: str) -> CompilesQuantized:
    """Raises BadInput for one that cannot compile what recovery changed."""
    if not isinstance(toolchain, CompilesQuantized):
        reason = f"--recover needs the toolchain qnn: {name} compiles only what it quantized itself"
        raise BadInput(reason=reason)
    return toolchain


def recovered(
    work: Assignment,
    equipment: Equipment,
    info: GraphInfo,
    task: Task | None,
    converted: Converted,
) -> Recovered:
    """`task` is what the model is scored by; None, or tensors: it is compared with float."""
    tool = check_toolchain(equipment.toolchain, equipment.toolchain.name)
    scored = task if task is not None and not isinstance(task, TensorsTask) else None
    for_steps, held_out = _samples(work, equipment, info, scored)
    if len(held_out.labels) != len(held_out):  # a task that has none for calibration
        scored = None
    device = equipment.judge or equipment.host
    if len(held_out) < _FEWEST:
        return Recovered(text=f"not recovered: {_FEWEST} images to judge by are needed")
    judge = _judge(work, equipment, device, info, scored, held_out)
    began = time.monotonic()
    folder = work.folder / "recovery"
    folder.mkdir()
    simplified = folder / "simplified.onnx"
    tool.simplify(work.onnx, simplified)
    quantized = converted.files[converted.quantized]
    recovery = recover(simplified, quantized, for_steps, judge, folder, equipment.recover)
    files: Mapping[str, Path] = {}
    if recovery.is_better:
        place = work.folder / "recovered"
        files = tool.compile(recovery.quantized, f"{work.stem}.onnx", place, equipment.chips)
    metric = metric_of(scored) if scored else "sqnr_db"
    record = {
        "metric": metric,
        "device": device.name,
        "images": len(held_out),
        "seconds": round(time.monotonic() - began, 1),
        **recovery.to_fields(),
    }
    columns: dict[str, Value] = {"recovery": json.dumps(record)}
    if scored:
        columns |= {"f1_before_recovery": recovery.before, "f1_after_recovery": recovery.after}
    return Recovered(files, columns, _text(recovery, metric, device, len(held_out)))


def _samples(
    work: Assignment, equipment: Equipment, info: GraphInfo, scored: Task | None
) -> tuple[Samples, Samples]:
    """For the steps, and for the judge; no image is in both."""
    sizes = equipment.sizes
    more = replace(equipment, sizes=replace(sizes, calibration=sizes.calibration + sizes.recovery))
    whole = calibration_samples(work, more, info)
    if scored is not None and whole.origin != "dataset":  # calibration was given
        with reading_data():
            labelled = scored.calibration(info.height, info.width, sizes.recovery)
        return _cut(whole, 0, min(len(whole), _MOST_CALIBRATION)), labelled
    last = min(sizes.recovery, len(whole) // 2)
    end = len(whole) - last
    return _cut(whole, 0, min(end, _MOST_CALIBRATION)), _cut(whole, end, len(whole))


def _cut(samples: Samples, start: int, end: int) -> Samples:
    tensors = samples.tensors
    if tensors is not None:
        tensors = {name: array[start:end] for name, array in tensors.items()}
    images, labels = samples.images[start:end], samples.labels[start:end]
    return replace(samples, images=images, labels=labels, tensors=tensors)


def _judge(
    work: Assignment,
    equipment: Equipment,
    device: Device,
    info: GraphInfo,
    scored: Task | None,
    samples: Samples,
) -> Judge:
    if scored is None:
        return _AgreementJudge(device, equipment.host, work.onnx, info, samples)
    return _TaskJudge(scored, device, equipment.host, work.onnx, info, samples)


@dataclass(frozen=True)
class _TaskJudge:
    """By the score of the task."""

    task: Task
    device: Device
    host: Device
    model: Path
    info: GraphInfo
    samples: Samples

    def score(self, quantized: Path) -> Judged:
        return self._judged(self.device, quantized, "quantized")

    def reference(self) -> Judged:
        return self._judged(self.host, self.model, "float")

    def _judged(self, device: Device, model: Path, kind: Kind) -> Judged:
        scorer = scorer_of(self.task, curves=False)
        score = run_test(self.task, device, model, self.info, kind, self.samples, scorer=scorer)
        return Judged(score.headline, score.counts)

    def difference(self, first: Judged, second: Judged) -> Interval:
        return paired_interval(self.task, first.counts, second.counts)


@dataclass(frozen=True)
class _AgreementJudge:
    """By how well outputs agree with those of the float model, in dB."""

    device: Device
    host: Device
    model: Path
    info: GraphInfo
    samples: Samples

    def score(self, quantized: Path) -> Judged:
        info, samples = self.info, self.samples
        outputs = self.device.infer(quantized, info, "quantized", test_batches(samples, info))
        expected = self.host.infer(self.model, info, "float", test_batches(samples, info))
        scorer = agreement_of(outputs, expected, info, self.device.name)
        worst = scorer.worst()
        value = worst.values().get("sqnr_db", worst.values().get("top1_agreement", 0.0))
        return Judged(value, scorer.counts)

    def reference(self) -> None:
        return None

    def difference(self, first: Judged, second: Judged) -> Interval:
        return paired_interval(TensorsTask(), first.counts, second.counts)


def _text(recovery: Recovery, metric: str, device: Device, images: int) -> str:
    helpful = ", ".join(step.step for step in recovery.steps if step.kept)
    if metric == "sqnr_db":
        ends = f"SQNR {recovery.before:.1f} → {recovery.after:.1f} dB"
    else:
        ends = f"{metric} {recovery.before:.4f} → {recovery.after:.4f}"
        if recovery.reference is not None:
            ends += f" (float {recovery.reference:.4f})"
    where = f"on {images} images, {device.name}"
    if helpful:
        return f"recovered by {helpful}: {ends} {where}"
    reason = recovery.outcome if recovery.outcome.startswith("nothing") else "no step helped"
    return f"not recovered ({reason}): {ends} {where}"
