"""The float question answered: one model, four ways to run it, side by side on the same images.

A model's files, here, as a stage would see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput, NoSuchPrecision
from edgeloop.platforms import Device, GraphInfo, Kind, Measurement, QnnToolchain, open_device
from edgeloop.runner.stages.accuracy import batches
from edgeloop.runner.stages.base import Assignment
from edgeloop.tasks import Interval, Output, Samples, Score, Task, open_task
from edgeloop.workspace import Workspace


def fetched(workspace: Workspace, model: str, folder: Path, match: str = "*") -> Assignment:
    row = workspace.catalog.get(model).values
    paths = workspace.catalog.download(model, folder, match)
    files = {str(path.relative_to(folder)): path for path in paths}
    return Assignment(model, "", row, files, folder)


Classes = NDArray[np.uint8]


@dataclass(frozen=True)
class Variant:
    """`delta` and `agreement` are against float, on the same images; float has no delta."""

    name: str
    f1: Interval
    delta: Interval | None
    agreement: float
    size: int
    latency: str


@dataclass(frozen=True)
class Comparison:
    model: str
    images: int
    variants: tuple[Variant, ...]

    def rows(self) -> Iterator[dict[str, object]]:
        for variant in self.variants:
            yield {"model": self.model, "images": self.images, **asdict(variant)}


@dataclass(frozen=True)
class _VariantRun:
    name: str
    score: Score
    classes: Classes
    size: int
    latency: str


def compare_model(
    workspace: Workspace, model: str, device: str, dataset: Path | None, task: str, images: int
) -> Comparison:
    """Needs a model that was converted. Everything is run afresh, on the last test images."""
    if dataset is None:
        raise BadInput(reason="compare needs a dataset: --dataset FOLDER, or INPUT_DATASET")
    profiles = workspace.settings.project / ".edgeloop" / "profiles"
    with TemporaryDirectory() as name, QnnToolchain() as toolchain:
        folder = Path(name)
        opened_task = open_task(task, dataset, folder / "data")
        work = fetched(workspace, model, folder / "files")
        info = toolchain.inspect(work.onnx)
        samples = opened_task.test(info.height, info.width, images)
        host, chip = open_device("host", profiles), open_device(device, profiles)
        try:
            ways: list[tuple[str, Device, Kind, Path]] = [
                ("float, CPU", host, "float", work.onnx),
                ("quantized, CPU", host, "quantized", work.quantized),
                (f"quantized, {chip.name}", chip, "quantized", work.quantized),
                (f"fp16, {chip.name}", chip, "fp16", work.onnx),
            ]
            runs = [run for way in ways if (run := _tried(*way, opened_task, info, samples))]
        finally:
            host.close()
            chip.close()
    variants = tuple(_variant(opened_task, run, runs[0]) for run in runs)
    return Comparison(model, len(samples), variants)


def _tried(
    name: str,
    device: Device,
    kind: Kind,
    model: Path,
    task: Task,
    info: GraphInfo,
    samples: Samples,
) -> _VariantRun | None:
    """None where the chip has no such way to run this graph; the others are still worth showing."""
    try:
        return _run(name, device, kind, model, task, info, samples)
    except NoSuchPrecision:
        return None


def _run(
    name: str,
    device: Device,
    kind: Kind,
    model: Path,
    task: Task,
    info: GraphInfo,
    samples: Samples,
) -> _VariantRun:
    scorer = task.scorer(curves=False)
    classes: list[Classes] = []
    seen = 0
    for outputs in device.infer(model, info, kind, batches(samples)):
        scorer.add(outputs, samples.labels[seen : seen + len(outputs)])
        classes.append(_classes(outputs, len(task.classes)))
        seen += len(outputs)
    latency = "" if kind == "fp16" else _latency(device.measure(model, info))
    return _VariantRun(name, scorer.score(), np.concatenate(classes), model.stat().st_size, latency)


def _variant(task: Task, run: _VariantRun, reference: _VariantRun) -> Variant:
    delta = None
    if run is not reference:
        delta = task.difference(run.score.counts, reference.score.counts)
    agreement = float(np.mean(run.classes == reference.classes))
    interval = task.interval(run.score.counts)
    return Variant(run.name, interval, delta, agreement, run.size, run.latency)


def _classes(outputs: Output, count: int) -> Classes:
    """The class of each pixel, or of each image, whatever the layout of the logits."""
    if outputs.ndim in (2, 4):
        axis = 1 if outputs.shape[1] == count else -1
        outputs = outputs.argmax(axis=axis)
    return outputs.astype(np.uint8)


def _latency(measured: Measurement) -> str:
    text = f"{1000 * measured.seconds:.3g} ms"
    if not measured.is_estimate:
        return text
    return f"{text} est ± {measured.margin_percent or 20:.0f} %"
