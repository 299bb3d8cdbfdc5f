"""One model, four ways to run it, side by side on the same images; and a latency profile of a
user's own board, fitted to models measured on it."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Callable, Iterator, Sequence
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
from edgeloop.platforms.batching import batches
from edgeloop.runner.stages.accuracy import agreement_of, test_batches, test_samples
from edgeloop.runner.stages.base import Assignment, Equipment, Sizes, choose_task
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

Answers = dict[str, NDArray[Any]]
MOST_LAYERS = 5
REMEMBERED = 32  # images whose outputs are compared as they are
_LARGEST_FILE = 10_000_000


def fetched(workspace: Workspace, model: str, folder: Path, match: str = "*") -> Assignment:
    """The files of a model, as a stage would see them."""
    row = workspace.catalog.get(model).values
    paths = workspace.catalog.download(model, folder, match)
    files = {str(path.relative_to(folder)): path for path in paths}
    return Assignment(model, "", row, files, folder)


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
            optional = ("f1", "sqnr_db", "max_error", "top1_agreement")
            shown = {k: v for k, v in values.items() if v is not None or k not in optional}
            yield {**about, **shown}


@dataclass(frozen=True)
class _Way:
    """A way to run the model: on which device, with which precision, from which file."""

    name: str
    device: Device
    kind: Kind
    model: Path

    def latency(self, info: GraphInfo) -> str:
        """Empty where a time would mean nothing: that of a float model on a chip's simulator."""
        is_measured = self.kind == "quantized" or self.device.name == "host"
        return _latency(self.device.measure(self.model, info)) if is_measured else ""


@dataclass(frozen=True)
class _ScoredRun:
    way: _Way
    score: Score
    answers: Answers
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
        ways = _ways(work, host, chip, toolchain)
        equipment = Equipment(
            inspector,
            host,
            opened_task,
            chip,
            sizes=Sizes(quick=images),
            fallback=None if task else TensorsTask(),
        )
        chosen = choose_task(work, equipment, info).task
        if isinstance(chosen, TensorsTask):
            samples = test_samples(work, equipment, info, chosen)
            variants, metric = _compare_outputs(ways, info, samples, progress), ""
        else:
            samples = opened_task.test(info.height, info.width, images)
            variants = _compare_scores(ways, opened_task, info, samples, progress)
            metric = metric_of(opened_task)
        return Comparison(model, len(samples), variants, metric, _costliest(work))


def _ways(work: Assignment, host: Device, chip: Device, toolchain: str) -> list[_Way]:
    """Float on the host comes first: the others are compared with it."""
    places: list[tuple[str, Device, Kind]] = [("float, CPU", host, "float")]
    if converter_of("host") == toolchain:  # it can run the same quantized model
        places.append(("quantized, CPU", host, "quantized"))
    if chip.name != host.name:
        places.append((f"quantized, {chip.name}", chip, "quantized"))
        places.append((f"{chip.float_kind}, {chip.name}", chip, chip.float_kind))
    return [
        _Way(name, device, kind, work.artefact(device.artefacts.get(kind, ""), toolchain))
        for name, device, kind in places
    ]


def _costliest(work: Assignment) -> tuple[LayerTiming, ...]:
    table = work.find(".layers.csv")
    return () if table is None else tuple(costliest(table, MOST_LAYERS))


def _compare_outputs(
    ways: Sequence[_Way],
    info: GraphInfo,
    samples: Samples,
    progress: Callable[[int, int], None],
) -> tuple[Variant, ...]:
    """Without a score: how well each way agrees with float. A way that the chip lacks is left out;
    the others are still worth showing."""
    variants = []
    for place, way in enumerate(ways):
        progress(place * len(samples), len(ways) * len(samples))
        with contextlib.suppress(NoSuchPrecision):
            variants.append(_outputs_of(way, ways[0], info, samples))
    return tuple(variants)


def _outputs_of(way: _Way, reference: _Way, info: GraphInfo, samples: Samples) -> Variant:
    latency = way.latency(info)
    size = way.model.stat().st_size
    if way is reference:
        return Variant(way.name, None, None, 1.0, size, latency)
    outputs = way.device.infer(way.model, info, way.kind, test_batches(samples, info))
    expected = reference.device.infer(reference.model, info, "float", test_batches(samples, info))
    figures = agreement_of(outputs, expected, info, way.device.name).worst().values()
    cosine = figures.pop("cosine", figures.get("top1_agreement", 0.0))
    return Variant(way.name, None, None, cosine, size, latency, **figures)


def _compare_scores(
    ways: Sequence[_Way],
    task: Task,
    info: GraphInfo,
    samples: Samples,
    progress: Callable[[int, int], None],
) -> tuple[Variant, ...]:
    """The score of each way, and its paired difference to float; a way that the chip lacks is left
    out."""
    runs = []
    total = len(ways) * len(samples)
    for place, way in enumerate(ways):

        def seen_so_far(count: int, before: int = place * len(samples)) -> None:
            progress(before + count, total)

        with contextlib.suppress(NoSuchPrecision):
            runs.append(_score_of(way, task, info, samples, seen_so_far))
    return tuple(_variant(task, run, runs[0]) for run in runs)


def _score_of(
    way: _Way, task: Task, info: GraphInfo, samples: Samples, seen_so_far: Callable[[int], None]
) -> _ScoredRun:
    scorer = task.scorer(curves=False)
    answers: list[Tensors] = []
    seen = 0
    seen_so_far(seen)
    for batch in way.device.infer(way.model, info, way.kind, batches(samples, info)):
        first = batch[info.output_name]
        outputs = batch if isinstance(task, TakesOutputs) else first
        scorer.add(outputs, samples.labels[seen : seen + len(first)])
        if metric_of(task) == "f1":
            answers.append({info.output_name: _classes(first, info)})
        elif seen < REMEMBERED:
            answers.append({name: np.array(array) for name, array in batch.items()})
        seen += len(first)
        seen_so_far(seen)
    whole = {name: np.concatenate([part[name] for part in answers]) for name in answers[0]}
    return _ScoredRun(way, scorer.score(), whole, way.latency(info))


def _variant(task: Task, run: _ScoredRun, reference: _ScoredRun) -> Variant:
    delta = None
    if run is not reference:
        delta = paired_interval(task, run.score.counts, reference.score.counts)
    pairs = [(run.answers[name], reference.answers[name]) for name in run.answers]
    agreement = min(_agreement(one, other) for one, other in pairs)
    interval = task.interval(run.score.counts)
    size = run.way.model.stat().st_size
    return Variant(run.way.name, interval, delta, agreement, size, run.latency)


def _agreement(one: NDArray[Any], other: NDArray[Any]) -> float:
    if one.dtype.kind != "f":
        return float(np.mean(one == other))
    first, second = one.ravel().astype(np.float64), other.ravel().astype(np.float64)
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
    """Fit a profile and store it in the project; `measured` is a CSV file with the columns `model`
    and `latency_ms`."""
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
