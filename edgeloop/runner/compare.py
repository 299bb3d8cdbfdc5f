"""The float question answered: one model, four ways to run it, side by side on the same images.

A model's files, here, as a stage would see them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeloop._util.files import read_regular
from edgeloop._util.values import interval_text, latency_text
from edgeloop.errors import BadInput, LocalFileError, NoSuchPrecision
from edgeloop.graph.count import LayerTiming, costliest
from edgeloop.graph.variants import class_axis
from edgeloop.platforms import (
    DEFAULT_PLATFORM,
    Device,
    GraphInfo,
    Kind,
    LatencyProfile,
    MeasuredModel,
    Measurement,
    converter_of,
    find_platform,
    open_device,
    open_toolchain,
)
from edgeloop.runner.stages import Sizes
from edgeloop.runner.stages.accuracy import agreement_of, batches, test_batches, test_samples
from edgeloop.runner.stages.base import Assignment, Equipment, choose_task
from edgeloop.tasks import (
    Interval,
    Output,
    Samples,
    Score,
    TakesOutputs,
    Task,
    Tensors,
    TensorsTask,
    are_logits,
    metric_of,
    open_task,
    paired_interval,
    task_for,
)
from edgeloop.workspace import Workspace

_LARGEST_FILE = 10_000_000


def fetched(workspace: Workspace, model: str, folder: Path, match: str = "*") -> Assignment:
    row = workspace.catalog.get(model).values
    paths = workspace.catalog.download(model, folder, match)
    files = {str(path.relative_to(folder)): path for path in paths}
    return Assignment(model, "", row, files, folder)


Answers = dict[str, NDArray[Any]]
MOST_LAYERS = 5
REMEMBERED = 32  # images whose outputs are compared as they are


@dataclass(frozen=True)
class Variant:
    """`f1` is the headline of the task, whatever its metric is called. `delta` and `agreement` are
    against float, on the same images; float has no delta. Agreement is the share of equal classes,
    or the cosine of the output that differs most where a task is not about classes."""

    name: str
    f1: Interval | None
    delta: Interval | None
    agreement: float
    size: int
    latency: str
    sqnr_db: float | None = None
    max_error: float | None = None
    top1_agreement: float | None = None


@dataclass(frozen=True)
class Comparison:
    """`metric` is empty for models that are not scored but compared with float: their variants have
    no `f1`, but SQNR, largest error and top-1 agreement; `agreement` is the cosine then."""

    model: str
    images: int
    variants: tuple[Variant, ...]
    metric: str = "f1"
    costliest: tuple[LayerTiming, ...] = ()  # layers, if their cost was found by a runner

    def rows(self) -> Iterator[dict[str, object]]:
        about = {"model": self.model, "images": self.images, "metric": self.metric}
        for variant in self.variants:
            values = asdict(variant)
            unknown = ("f1", "sqnr_db", "max_error", "top1_agreement")
            kept = {k: v for k, v in values.items() if v is not None or k not in unknown}
            yield {**about, **kept}


@dataclass(frozen=True)
class _VariantRun:
    name: str
    score: Score
    answers: Answers
    size: int
    latency: str


def compare_model(
    workspace: Workspace,
    model: str,
    device: str,
    dataset: Path | None,
    task: str,
    images: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Needs a model that was converted. Everything is run afresh, on the last test images; without
    a dataset on random inputs. An empty task is that of the settings, as for a runner: a model that
    does not fit it is compared with its float form. `progress` hears how many images were run, of
    how many."""
    settings = workspace.settings
    if dataset is None and task not in ("", TensorsTask.name):
        reason = f"the task {task} needs a dataset: --dataset FOLDER, or INPUT_DATASET"
        raise BadInput(reason=reason)
    toolchain = converter_of(device)
    with TemporaryDirectory() as name, ExitStack() as opened:
        folder = Path(name)
        work = fetched(workspace, model, folder / "files")
        inspector = opened.enter_context(closing(open_toolchain(toolchain, settings)))
        info = inspector.inspect(work.onnx)
        opened_task: Task = TensorsTask()
        if dataset is not None and (task or settings.task) != TensorsTask.name:
            named = open_task(task or settings.task, dataset, folder / "data")
            opened_task = task_for(named, info)
        host = opened.enter_context(closing(open_device("host", settings)))
        chip = opened.enter_context(closing(open_device(device, settings)))
        ways: list[tuple[str, Device, Kind]] = [("float, CPU", host, "float")]
        if converter_of("host") == toolchain:  # it can run the same quantized model
            ways.append(("quantized, CPU", host, "quantized"))
        if chip.name != host.name:
            ways.append((f"quantized, {chip.name}", chip, "quantized"))
            ways.append((f"{chip.float_kind}, {chip.name}", chip, chip.float_kind))
        fallback = None if task else TensorsTask()
        equipment = Equipment(
            *(inspector, host, opened_task, chip), sizes=Sizes(quick=images), fallback=fallback
        )
        chosen = choose_task(work, equipment, info).task
        if isinstance(chosen, TensorsTask):
            samples = test_samples(work, equipment, info, chosen)
            float_model = work.artefact(host.artefacts.get("float", ""), toolchain)
            found: list[Variant | None] = []
            for place, (title, runs_on, kind) in enumerate(ways):
                progress(place * len(samples), len(ways) * len(samples))
                file = work.artefact(runs_on.artefacts.get(kind, ""), toolchain)
                reference = (host, float_model)
                found.append(_compared(title, runs_on, kind, file, reference, info, samples))
            variants = tuple(variant for variant in found if variant is not None)
            return Comparison(model, len(samples), variants, "", _costliest(work))
        samples = opened_task.test(info.height, info.width, images)
        runs = []
        for place, (title, runs_on, kind) in enumerate(ways):
            before, every = place * len(samples), len(ways) * len(samples)

            def seen(count: int, before: int = before, every: int = every) -> None:
                progress(before + count, every)

            file = work.artefact(runs_on.artefacts.get(kind, ""), toolchain)
            if run := _tried(title, runs_on, kind, file, opened_task, info, samples, seen):
                runs.append(run)
        layers = _costliest(work)
    variants = tuple(_variant(opened_task, run, runs[0]) for run in runs)
    return Comparison(model, len(samples), variants, metric_of(opened_task), layers)


def _costliest(work: Assignment) -> tuple[LayerTiming, ...]:
    table = work.find(".layers.csv")
    return () if table is None else tuple(costliest(table, MOST_LAYERS))


def _compared(
    name: str,
    device: Device,
    kind: Kind,
    model: Path,
    reference: tuple[Device, Path],
    info: GraphInfo,
    samples: Samples,
) -> Variant | None:
    """None as in `_tried`. The float model on the host agrees with itself."""
    host, float_model = reference
    is_measured = kind == "quantized" or device.name == "host"
    try:
        latency = _latency(device.measure(model, info)) if is_measured else ""
        size = model.stat().st_size
        if device.name == host.name and kind == "float":
            return Variant(name, None, None, 1.0, size, latency)
        outputs = device.infer(model, info, kind, test_batches(samples, info))
        expected = host.infer(float_model, info, "float", test_batches(samples, info))
        found = agreement_of(outputs, expected, info, device.name).worst().values()
    except NoSuchPrecision:
        return None
    cosine = found.pop("cosine", found.get("top1_agreement", 0.0))
    return Variant(name, None, None, cosine, size, latency, **found)


def _tried(
    name: str,
    device: Device,
    kind: Kind,
    model: Path,
    task: Task,
    info: GraphInfo,
    samples: Samples,
    seen_so_far: Callable[[int], None],
) -> _VariantRun | None:
    """None where the chip has no such way to run this graph; the others are still worth showing."""
    try:
        return _run(name, device, kind, model, task, info, samples, seen_so_far)
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
    seen_so_far: Callable[[int], None],
) -> _VariantRun:
    scorer = task.scorer(curves=False)
    answers: list[Tensors] = []
    seen = 0
    seen_so_far(seen)
    for batch in device.infer(model, info, kind, batches(samples, info)):
        first = batch[info.output_name]
        outputs = batch if isinstance(task, TakesOutputs) else first
        scorer.add(outputs, samples.labels[seen : seen + len(first)])
        if metric_of(task) == "f1":
            answers.append({info.output_name: _classes(first, info)})
        elif seen < REMEMBERED:
            answers.append({name: np.array(array) for name, array in batch.items()})
        seen += len(first)
        seen_so_far(seen)
    is_measured = kind == "quantized" or device.name == "host"
    latency = _latency(device.measure(model, info)) if is_measured else ""
    whole = {name: np.concatenate([part[name] for part in answers]) for name in answers[0]}
    return _VariantRun(name, scorer.score(), whole, model.stat().st_size, latency)


def _variant(task: Task, run: _VariantRun, reference: _VariantRun) -> Variant:
    delta = None
    if run is not reference:
        delta = paired_interval(task, run.score.counts, reference.score.counts)
    pairs = [(run.answers[name], reference.answers[name]) for name in run.answers]
    agreement = min(_agreement(own, other) for own, other in pairs)
    interval = task.interval(run.score.counts)
    return Variant(run.name, interval, delta, agreement, run.size, run.latency)


def _agreement(own: NDArray[Any], other: NDArray[Any]) -> float:
    if own.dtype.kind != "f":
        return float(np.mean(own == other))
    first, second = own.ravel().astype(np.float64), other.ravel().astype(np.float64)
    length = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / length if length else float(np.array_equal(first, second))


def _classes(outputs: Output, info: GraphInfo) -> NDArray[np.uint8]:
    """The class of each pixel, or of each image, whatever the layout of the logits."""
    axis = 1 if outputs.ndim == 2 else class_axis(info, (1, *outputs.shape[1:]))
    if axis is not None and outputs.shape[axis] > 1:
        outputs = outputs.argmax(axis=axis)
    elif outputs.dtype.kind == "f" and not np.array_equal(outputs, np.rint(outputs)):
        outputs = outputs > (0 if are_logits(outputs) else 0.5)  # of the second of two classes
    return outputs.astype(np.uint8)


def _latency(measured: Measurement) -> str:
    """An estimate with its interval and the probability of that, as far as data supports them."""
    if not measured.is_estimate:
        return f"{1000 * measured.seconds:.3g} ms"
    text = latency_text(1000 * measured.seconds)
    if measured.missing_ops:
        return f"at least {text} est"
    interval = interval_text(measured.low_ms, measured.high_ms, measured.coverage)
    return f"{text} est, {interval}" if interval else f"{text} est"


# A latency profile of a user's own board, from models measured on it and their estimates.


def calibrate_profile(workspace: Workspace, name: str, measured: Path, chip: str) -> LatencyProfile:
    """Fits and keeps it in the project; `measured` is a CSV with model and latency_ms."""
    platform = find_platform(workspace.settings.toolchain or DEFAULT_PLATFORM)
    suffix = platform.file_suffixes[0]
    with TemporaryDirectory() as folder:
        models = []
        for model, latency_ms in _read_measured(measured).items():
            work = fetched(workspace, model, Path(folder) / model, f"*{suffix}")
            models.append(MeasuredModel(work.artefact(suffix, platform.name), latency_ms))
        source = f"{len(models)} models, {measured.name}"
        return platform.calibrate(name, chip, models, workspace.settings, source)


def _read_measured(path: Path) -> dict[str, float]:
    try:
        text = read_regular(path, _LARGEST_FILE).decode("utf-8")
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        return {row["model"]: float(row["latency_ms"]) for row in rows}
    except (KeyError, TypeError, ValueError, csv.Error):
        reason = f"{path} must have the columns model and latency_ms, with a number in each row"
        raise BadInput(reason=reason) from None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror) from None
