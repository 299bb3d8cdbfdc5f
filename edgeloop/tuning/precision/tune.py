"""`edgeloop precision` as a function: sensitive tensors, a front of plans, the first layer that
diverges; and which point of the front to take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeloop._util.system import announced_memory
from edgeloop.errors import BadInput, MemoryExceeded, ModelFailed
from edgeloop.graph import GraphInfo
from edgeloop.platforms import PrecisionPlan, converter_of, open_toolchain
from edgeloop.settings import Settings, cache_folder
from edgeloop.tasks import (
    Samples,
    TakesOutputs,
    Task,
    TensorsTask,
    metric_of,
    open_task,
    reading_data,
    score_unit,
    task_for,
)
from edgeloop.tuning.precision.divergence import find_divergence
from edgeloop.tuning.precision.lab import LabOptions, PrecisionLab, Progress, opened_lab
from edgeloop.tuning.precision.results import Divergence, PrecisionPoint, TensorSensitivity
from edgeloop.tuning.precision.search import PrecisionSearch

DEFAULT_IMAGES = 16
_CALIBRATION_IMAGES = 64
_LITTLE = 0.3  # of the time that all tensors at 16 bits cost
_SIMULATION_S = 200.0  # what all simulations may take together, unless images are asked for


@dataclass(frozen=True)
class PrecisionOptions:
    """`images` 0: as many as some minutes allow, up to 16. `inputs` are what to use in place of a
    dataset. Without either, inputs are random."""

    device: str = "htp"
    dataset: Path | None = None
    task: str = ""
    images: int = 0
    inputs: Path | None = None
    workers: int = 0
    points: int = 6
    cache: Path | None = None


@dataclass(frozen=True)
class PrecisionReport:
    """`points` go from the fastest to the most accurate; `base` and `full` are a8w8 and a16w8."""

    model: str
    device: str
    images: int
    metric: str
    points: tuple[PrecisionPoint, ...]
    tensors: tuple[TensorSensitivity, ...]
    divergence: Divergence
    notes: tuple[str, ...] = ()

    @property
    def base(self) -> PrecisionPoint | None:
        return self._uniform(8)

    @property
    def full(self) -> PrecisionPoint | None:
        return self._uniform(16)

    def _uniform(self, activations: int) -> PrecisionPoint | None:
        plain = [point for point in self.points if not point.plan.bits]
        return next((p for p in plain if p.plan.default.activations == activations), None)

    def shares(self, point: PrecisionPoint) -> tuple[float, float] | None:
        """Of what all tensors at 16 bits gain in SQNR and cost in time: this point's part. None
        where that is not known, as with steps that the compiler has no cost for."""
        base, full = self.base, self.full
        if base is None or full is None or base.missing_ops or full.missing_ops:
            return None
        gain, premium = full.sqnr_db - base.sqnr_db, full.latency_us - base.latency_us
        if gain <= 0 or premium <= 0:
            return None
        own = point.sqnr_db - base.sqnr_db
        return own / gain, (point.latency_us - base.latency_us) / premium

    def is_bound(self, point: PrecisionPoint) -> bool:
        """Whether its latency leaves out more than that of a8w8 does."""
        return point.missing_ops > (self.base.missing_ops if self.base else 0)

    def to_fields(self) -> dict[str, Any]:
        first = self.divergence.first
        return {
            "model": self.model,
            "device": self.device,
            "images": self.images,
            "metric": self.metric,
            "points": [point.to_fields() for point in self.points],
            "tensors": [tensor.to_fields() for tensor in self.tensors],
            "first_diverging_layer": first.layer if first else None,
            "layers": [vars(layer) for layer in self.divergence.layers],
            "notes": list(self.notes),
        }


def tune_precision(
    model: Path,
    name: str,
    digest: str,
    options: PrecisionOptions,
    settings: Settings,
    progress: Progress,
) -> PrecisionReport:
    """`model` is a float ONNX file with fixed sizes, `digest` the sha256 of the file that plans
    belong to."""
    with announced_memory(settings.native_memory):
        toolchain = open_toolchain(converter_of(options.device), settings)
        try:
            info = toolchain.inspect(model)
        finally:
            toolchain.close()
        task, calibration, samples = _data(model, info, options, settings)
        cache = options.cache or cache_folder() / "precision"
        lab_options = LabOptions(options.device, samples, calibration, task, options.workers, cache)
        with opened_lab(model, lab_options, settings, progress) as lab:
            runs = options.points + 6
            images = options.images and min(options.images, len(samples))
            images = images or lab.affordable(DEFAULT_IMAGES, runs, _SIMULATION_S)
            points, tensors = PrecisionSearch(lab, digest, images, options.points).run()
            if not points:
                reason = f"no plan for {options.device} could be compiled and simulated"
                raise ModelFailed(reason=reason)
            progress("comparing layers", 0, 1)
            divergence = _divergence(lab, points[0].plan.model_copy(update={"tensors": {}}))
            progress("comparing layers", 1, 1)
            notes = (*lab.calibrated.notes, _note(samples), divergence.note)
    metric = metric_of(task) if task else ""
    return PrecisionReport(
        name, options.device, images, metric, tuple(points), tuple(tensors), divergence, notes
    )


def _divergence(lab: PrecisionLab, plan: PrecisionPlan) -> Divergence:
    """What was found before is worth showing also where this fails."""
    try:
        return find_divergence(lab, plan)
    except (ModelFailed, MemoryExceeded) as error:
        return Divergence((), note=f"layers were not compared: {error}")


def choose_point(
    report: PrecisionReport,
    number: int | None = None,
    budget_ms: float | None = None,
    within: float | None = None,
) -> PrecisionPoint:
    """By its number (from 1); the most accurate within a latency; the fastest that loses at most so
    many points of the score (hundredths of a share, else its own unit, such as dB); else the knee:
    what gains most of those that cost little, which is at most 30 % of what all tensors at 16 bits
    would."""
    points = report.points
    if number is not None:
        if not 1 <= number <= len(points):
            raise BadInput(reason=f"there is no point {number}: the front has 1 to {len(points)}")
        return points[number - 1]
    if budget_ms is not None:
        known = [point for point in points if not report.is_bound(point)] or points
        allowed = [point for point in known if point.latency_us <= 1000 * budget_ms]
        if not allowed:
            fastest = min(point.latency_us for point in known) / 1000
            reason = f"no plan takes at most {budget_ms:g} ms: the fastest takes {fastest:.3g} ms"
            raise BadInput(reason=reason)
        return max(allowed, key=lambda point: point.sqnr_db)
    if within is not None:
        return _within(report, within)
    return max(points, key=lambda point: _advantage(report, point))


def _within(report: PrecisionReport, within: float) -> PrecisionPoint:
    scored = [point for point in report.points if point.difference is not None]
    if not scored:
        reason = "--within compares scores, which need a dataset: give --dataset FOLDER"
        raise BadInput(reason=reason)
    factor, unit = score_unit(max(abs(p.score or 0.0) for p in scored), report.metric)
    close = [p for p in scored if p.difference and factor * p.difference.value >= -within]
    if not close:
        best = max(factor * p.difference.value for p in scored if p.difference)
        reason = f"no plan is within {within:g} {unit} of float: the best loses {-best:.2f}"
        raise BadInput(reason=reason)
    return min(close, key=lambda point: (report.is_bound(point), point.latency_us))


def _advantage(report: PrecisionReport, point: PrecisionPoint) -> float:
    shares = report.shares(point) or _guessed_shares(report, point)
    if shares is None:
        return point.sqnr_db
    gain, premium = shares
    if premium <= _LITTLE:
        return 1.0 + gain - 0.1 * premium if gain > 0 else gain - premium
    return min(1.0, gain - premium)


def _guessed_shares(report: PrecisionReport, point: PrecisionPoint) -> tuple[float, float] | None:
    """Where the time of a16w8 is known only from below, as if it took twice that of a8w8."""
    base, full = report.base, report.full
    if base is None or full is None or not (base.missing_ops or full.missing_ops):
        return None
    gain = full.sqnr_db - base.sqnr_db
    if gain <= 0:
        return None
    premium = 1.0 if report.is_bound(point) else point.latency_us / base.latency_us - 1
    return (point.sqnr_db - base.sqnr_db) / gain, premium


def _note(samples: Samples) -> str:
    if samples.origin == "random":
        return "on random inputs, which are no measure of accuracy: give --dataset or --inputs"
    return samples.note


def _data(
    model: Path, info: GraphInfo, options: PrecisionOptions, settings: Settings
) -> tuple[Task | None, Samples, Samples]:
    """The task that scores, what to calibrate on, and what to compare on."""
    count = options.images or DEFAULT_IMAGES
    if options.dataset is None or options.task == TensorsTask.name:
        if options.task not in ("", TensorsTask.name):
            reason = f"the task {options.task} needs a dataset: give --dataset FOLDER"
            raise BadInput(reason=reason)
        given = TensorsTask(options.inputs or options.dataset)
        calibration = given.inputs(info, _CALIBRATION_IMAGES, "calibration", model)
        return None, calibration, given.inputs(info, count, "test", model)
    task = open_task(
        options.task or settings.task, options.dataset, settings.project / ".edgeloop/work/data"
    )
    if info.image is None:
        inputs = ", ".join(one.name for one in info.inputs)
        reason = f"the task {task.name} takes one RGB image; the model takes {inputs}: use --inputs"
        raise BadInput(reason=reason)
    task = task_for(task, info)
    with reading_data():
        if isinstance(task, TakesOutputs):
            task.check_outputs({one.name: one.shape for one in info.outputs})
        else:
            task.check_output(info.output_shape)
        calibration = task.calibration(info.height, info.width, _CALIBRATION_IMAGES)
        return task, calibration, task.test(info.height, info.width, count)
