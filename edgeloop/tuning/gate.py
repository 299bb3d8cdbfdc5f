"""The figures of a model against those of a baseline: what changed, what is allowed, the verdict.

A deterministic figure (an estimate of the compiler, memory, size) is a regression when it grows by
more than is allowed. One with an interval (a score, a measured latency) must also be worse beyond
doubt: its 95 % interval leaves no change out. A change beyond what is allowed that is not beyond
doubt is `unclear`, and a figure of other conditions is `not compared`: both pass unless `strict`.
"""

from __future__ import annotations

import base64
import io
import json
import math
import platform
import re
import statistics
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from edgeloop._util.files import parse_json, read_regular, sha256_of, write_atomic
from edgeloop._util.schema import Section, validated
from edgeloop._util.system import announced_memory
from edgeloop._util.values import plural, size_text
from edgeloop._util.yaml import Origin
from edgeloop._version import __version__
from edgeloop.errors import BadInput, BadSetting, LocalFileError
from edgeloop.graph.info import GraphSummary, Shape
from edgeloop.graph.isolated import graph_pool
from edgeloop.graph.read import check_file
from edgeloop.platforms import (
    DEFAULT_PRECISION,
    Converted,
    Device,
    GraphInfo,
    Measurement,
    Precision,
    PrecisionPlan,
    SharedDevice,
    Toolchain,
    Versioned,
    convert_as,
    converter_of,
    device_type,
    named_devices,
    open_device,
    open_toolchain,
    platform_of,
)
from edgeloop.platforms.batching import run_test
from edgeloop.settings import Settings
from edgeloop.tasks import (
    Interval,
    Samples,
    TakesOutputs,
    Task,
    TensorsTask,
    metric_of,
    open_task,
    paired_interval,
    reading_data,
    score_unit,
    student_t,
    task_for,
)

Verdict = Literal["pass", "regression", "unclear", "not compared"]
_SMALLEST_MS = 1e-9
_MARKUP = re.compile(r"[\[\]!*_#@<>&\\~^{}|$]|://|www\.", re.IGNORECASE)


@dataclass(frozen=True)
class GateLimits:
    """What a model may be worse by. `drop` is in points: hundredths of F1, mAP and other shares,
    else the metric's own unit, such as dB. `strict`: what is unclear or not compared fails, too."""

    latency_percent: float = 2.0
    drop: float = 0.25
    memory_percent: float = 5.0
    size_percent: float = 5.0
    strict: bool = False


@dataclass(frozen=True)
class GateCheck:
    """One line of the table. `low` and `high` are the 95 % interval of `change`, where it has
    one."""

    name: str
    verdict: Verdict
    baseline: str = ""
    now: str = ""
    change: float | None = None
    unit: str = ""
    allowed: str = ""
    low: float | None = None
    high: float | None = None
    detail: str = ""

    @property
    def is_absent(self) -> bool:
        """A score that neither side has: nobody asked for one, so it fails no `strict` gate."""
        return self.name == "score" and not self.baseline and not self.now

    @property
    def change_text(self) -> str:
        if self.change is None:
            return ""
        digits = 1 if self.unit == "%" else 2
        text = f"{self.change:+.{digits}f}"
        if self.low is not None and self.high is not None:
            text += f" ({self.low:+.{digits}f} … {self.high:+.{digits}f})"
        return f"{text} {self.unit}"


@dataclass(frozen=True)
class GateReport:
    model: str
    device: str
    checks: tuple[GateCheck, ...]
    notes: tuple[str, ...] = ()
    strict: bool = False

    @property
    def is_passed(self) -> bool:
        good = ("pass",) if self.strict else ("pass", "unclear", "not compared")
        return all(check.verdict in good or check.is_absent for check in self.checks)

    @property
    def headline(self) -> str:
        bad = [check for check in self.checks if check.verdict == "regression"]
        if bad:
            return f"failed: {', '.join(check.name for check in bad)}"
        if not self.is_passed:
            kinds = {check.verdict for check in self.checks if not check.is_absent} - {"pass"}
            return f"failed, because something is {' or '.join(sorted(kinds))} (--strict)"
        left = [check.name for check in self.checks if check.verdict == "not compared"]
        if left:
            count = f"{len(left)} of {len(self.checks)}"
            return f"passed, {count} not compared: {', '.join(left)}"
        return "passed"

    def to_fields(self) -> dict[str, Any]:
        return {"passed": self.is_passed, **asdict(self)}

    def markdown(self) -> str:
        """For a comment on a pull request."""
        lines = [
            f"### Edgeloop gate: {self.headline}",
            "",
            f"`{_plain(self.model)}` on {_text(self.device)}",
            "",
            "| | baseline | now | change | allowed | |",
            "|---|---:|---:|---:|---:|---|",
        ]
        for check in self.checks:
            verdict = f"**{check.verdict}**" if check.verdict == "regression" else check.verdict
            cells = (check.name, check.baseline, check.now, check.change_text, check.allowed)
            lines.append(f"| {' | '.join(map(_cell, cells))} | {verdict} |")
        about = [f"{check.name}: {check.detail}" for check in self.checks if check.detail]
        if about or self.notes:
            lines += ["", *(f"- {_text(text)}" for text in (*about, *self.notes))]
        return "\n".join(lines) + "\n"


def compare_figures(baseline: Baseline, figures: GateFigures, limits: GateLimits) -> GateReport:
    checks = (
        _latency(baseline, figures, limits),
        _score(baseline, figures, limits),
        *_sizes(baseline, figures, limits),
        _operators(baseline, figures),
    )
    notes = tuple(_notes(baseline, figures))
    return GateReport(figures.model, figures.device, checks, notes, limits.strict)


def refused_report(model: str, device: str, reason: str) -> GateReport:
    """Of a model that the device does not take any more."""
    check = GateCheck("operators", "regression", now="refused", detail=reason)
    return GateReport(model, device, (check,))


def _latency(baseline: Baseline, figures: GateFigures, limits: GateLimits) -> GateCheck:
    before, now = baseline.latency_ms, statistics.median(figures.runs_ms)
    texts = (_least(baseline) + _time(before), _least(figures) + _time(now))
    if reason := _incomparable(baseline, figures):
        return GateCheck("latency", "not compared", *texts, detail=reason)
    allowed = f"{limits.latency_percent:+g} %"
    detail = ""
    if baseline.latency_profile != figures.latency_profile and baseline.raw_us and figures.raw_us:
        before, now = baseline.raw_us / 1000, figures.raw_us / 1000
        detail = (
            "the profile has other constants than the baseline's, so the compiler's own estimates "
            f"are compared: {_time(before)} and {_time(now)}"
        )
    change = 100 * (max(now, _SMALLEST_MS) / max(before, _SMALLEST_MS) - 1)
    if figures.latency_kind == "estimate":
        verdict, why = _estimated(baseline, figures, change > limits.latency_percent)
        detail = "; ".join(filter(None, (why, detail)))
        return GateCheck(
            "latency", verdict, *texts, change=change, unit="%", allowed=allowed, detail=detail
        )
    low, high = _ratio_interval(baseline.runs_ms, figures.runs_ms)
    verdict = _beyond_doubt(change > limits.latency_percent, is_worse=low > 0)
    runs = f"{len(baseline.runs_ms)} and {len(figures.runs_ms)} runs"
    return GateCheck(
        "latency",
        verdict,
        *texts,
        change=change,
        unit="%",
        allowed=allowed,
        low=low,
        high=high,
        detail=f"of {runs}",
    )


def _least(figures: Baseline | GateFigures) -> str:
    return "≥ " if figures.missing_ops else ""


def _estimated(baseline: Baseline, figures: GateFigures, is_slower: bool) -> tuple[Verdict, str]:
    """A step that an estimate leaves out makes it lower: more of them are no gain, and with fewer
    than before a higher estimate is no loss."""
    before, now = baseline.missing_ops, figures.missing_ops
    verdict: Verdict = "regression" if is_slower else "pass"
    if not before and not now:
        return verdict, ""
    steps = (
        f"the estimate leaves out {plural(now, 'step')}, that of the baseline {before or 'none'}"
    )
    if now > before:
        return "regression", f"{steps}: the chip takes longer than it says"
    if now < before and is_slower:
        return "not compared", f"{steps}: write a new baseline"
    return verdict, steps


def _incomparable(baseline: Baseline, figures: GateFigures) -> str:
    """A profile with other constants is no obstacle where the compiler's own estimates are
    known."""
    has_raw = bool(baseline.raw_us and figures.raw_us)
    profiles = (baseline.latency_profile, figures.latency_profile)
    pairs = {
        "kind of latency": (baseline.latency_kind, figures.latency_kind),
        "precision": (baseline.precision, figures.precision),
        "compiler": (baseline.compiler, figures.compiler),
        "profile": ("", "") if has_raw else profiles,
        "CPU": (baseline.machine, figures.machine),
    }
    for name, (before, now) in pairs.items():
        if before != now:
            return f"another {name}: {before or 'none'} in the baseline, {now or 'none'} here"
    return ""


def _ratio_interval(before: tuple[float, ...], now: tuple[float, ...]) -> tuple[float, float]:
    """Of the change in percent, from the spread between runs: Welch's, of logarithms."""
    if len(before) < 2 or len(now) < 2:
        return -math.inf, math.inf
    logs = [[math.log(max(run, _SMALLEST_MS)) for run in runs] for runs in (before, now)]
    parts = [statistics.variance(values) / len(values) for values in logs]
    middle = statistics.mean(logs[1]) - statistics.mean(logs[0])
    total = sum(parts)
    if total == 0:
        return 100 * math.expm1(middle), 100 * math.expm1(middle)
    freedom = total**2 / sum(p**2 / (len(v) - 1) for p, v in zip(parts, logs, strict=True))
    away = student_t(max(1, int(freedom))) * math.sqrt(total)
    return 100 * math.expm1(middle - away), 100 * math.expm1(middle + away)


def _score(baseline: Baseline, figures: GateFigures, limits: GateLimits) -> GateCheck:
    before, now = baseline.score, figures.score
    if before is None and now is None:
        detail = "the baseline has no score: write it with --dataset"
        return GateCheck("score", "not compared", detail=detail)
    if before is None or now is None:
        who = "the baseline has no score" if before is None else "give --dataset"
        first, second = ("" if each is None else f"{each.value:.4f}" for each in (before, now))
        return GateCheck("score", "not compared", first, second, detail=who)
    name, texts = now.metric, (f"{before.value:.4f}", f"{now.value:.4f}")
    if (before.task, before.metric) != (now.task.name, now.metric):
        detail = f"the baseline's task is {before.task}, here it is {now.task.name}"
        return GateCheck(name, "not compared", *texts, detail=detail)
    if before.image_set != now.image_set:
        detail = (
            f"other test images: {before.images} in the baseline, {len(now.counts)} here, not the "
            "same ones in the same preparation"
        )
        return GateCheck(name, "not compared", *texts, detail=detail)
    difference = paired_interval(now.task, now.counts, unpacked(before.counts, now.counts))
    if not math.isfinite(now.value):
        return GateCheck(name, "regression", *texts, detail="the score is not a number")
    if not math.isfinite(difference.value):
        detail = "the difference of the scores is not a number"
        return GateCheck(name, "not compared", *texts, detail=detail)
    return _scored(name, texts, difference, now, limits)


def _scored(
    name: str, texts: tuple[str, str], difference: Interval, now: GateScore, limits: GateLimits
) -> GateCheck:
    factor, unit = score_unit(now.value, name)
    ends = (difference.value, difference.low, difference.high)
    change, low, high = (factor * value for value in ends)
    verdict = _beyond_doubt(change < -limits.drop, is_worse=high < 0)
    images = len(now.counts)
    detail = f"on {images} images"
    doubt = change - low
    if verdict != "regression" and limits.drop > 0 and doubt > limits.drop:
        needed = math.ceil(images * (doubt / limits.drop) ** 2) if math.isfinite(doubt) else 0
        enough = f"about {needed:,} would show one of {limits.drop:g}" if needed else "more are due"
        most = f"{doubt:.2f}" if math.isfinite(doubt) else "any size"
        detail += f", which may miss a drop of {most} {unit}: {enough}"
    allowed = f"−{limits.drop:g} {unit}"
    return GateCheck(
        name,
        verdict,
        *texts,
        change=change,
        unit=unit,
        allowed=allowed,
        low=low,
        high=high,
        detail=detail,
    )


def _beyond_doubt(is_beyond: bool, is_worse: bool) -> Verdict:
    if not is_beyond:
        return "pass"
    return "regression" if is_worse else "unclear"


def _sizes(baseline: Baseline, figures: GateFigures, limits: GateLimits) -> Iterator[GateCheck]:
    before = _memory(baseline.weight_bytes, baseline.peak_memory_bytes)
    now = _memory(figures.weight_bytes, figures.peak_memory_bytes)
    reason = ""
    if baseline.precision != figures.precision:
        reason = f"another precision: {baseline.precision} in the baseline"
    yield _size("memory", before, now, limits.memory_percent, reason)
    yield _size("size", baseline.size_bytes, figures.size_bytes, limits.size_percent)


def _memory(weights: int | None, peak: int | None) -> int | None:
    return None if weights is None or peak is None else weights + peak


def _size(
    name: str, before: int | None, now: int | None, percent: float, reason: str = ""
) -> GateCheck:
    first, second = ("" if value is None else size_text(value) for value in (before, now))
    if before is None or now is None or reason:
        why = reason or "it is not known"
        return GateCheck(name, "not compared", first, second, detail=why)
    change = 100 * (now / max(before, 1) - 1)
    verdict: Verdict = "regression" if change > percent else "pass"
    return GateCheck(
        name, verdict, first, second, change=change, unit="%", allowed=f"{percent:+g} %"
    )


def _operators(baseline: Baseline, figures: GateFigures) -> GateCheck:
    """New operators are named; those that newly run on the CPU are a regression."""
    new = sorted(set(figures.operators) - set(baseline.operators))
    fallen = sorted(set(figures.cpu_operators) - set(baseline.cpu_operators))
    before, now = (f"{sum(each.operators.values())} layers" for each in (baseline, figures))
    detail = f"new: {', '.join(new)}" if new else ""
    if fallen:
        detail = f"the chip leaves {', '.join(fallen)} to the CPU"
    verdict: Verdict = "regression" if fallen else "pass"
    return GateCheck("operators", verdict, before, now, detail=detail)


def _notes(baseline: Baseline, figures: GateFigures) -> Iterator[str]:
    if baseline.calibration != figures.calibration:
        yield f"calibrated on {figures.calibration} samples, the baseline on {baseline.calibration}"
    if figures.ddr_bytes is not None and baseline.ddr_bytes is not None:
        before, now = size_text(baseline.ddr_bytes), size_text(figures.ddr_bytes)
        if before != now:
            yield f"DDR traffic per inference: {before} in the baseline, {now} now"
    if baseline.edgeloop != __version__:
        yield f"the baseline is of Edgeloop {baseline.edgeloop}, this is {__version__}"


def _time(milliseconds: float) -> str:
    if milliseconds < 1:
        return f"{1000 * milliseconds:.4g} µs"
    return f"{milliseconds:.4g} ms"


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    """Nothing that a model, a layer or a file is called may be markup: links, pictures, mentions
    and references work in escaped text, too, but not in code."""
    safe = _plain(text)
    return f"`{safe}`" if _MARKUP.search(safe) else safe


def _plain(text: str) -> str:
    """One line, which does not end the code that it is put in."""
    return "".join(letter if letter.isprintable() else " " for letter in text).replace("`", "'")


# What the gate looks at: latency, score, memory, size and operators of one model on one device.


DEFAULT_IMAGES = 200
CALIBRATION_IMAGES = 100
RANDOM_SAMPLES = 2
RUNS = 5


@dataclass(frozen=True)
class GateOptions:
    """`runs` are benchmark runs of a device that measures; an estimate is the same each time.
    Without a dataset there is no score, and the model is calibrated on random inputs."""

    device: str = "htp"
    dataset: Path | None = None
    task: str = ""
    images: int = DEFAULT_IMAGES
    calibration_images: int = CALIBRATION_IMAGES
    precision: Precision | PrecisionPlan = DEFAULT_PRECISION
    runs: int = RUNS
    shapes: Mapping[str, Shape] = field(default_factory=dict)


@dataclass(frozen=True)
class GateScore:
    """`counts` has one entry per image; `image_set` names the images by their content."""

    task: Task
    metric: str
    value: float
    image_set: str
    counts: NDArray[Any]


@dataclass(frozen=True)
class GateFigures:
    """Bytes are those of the model as it was quantized, but `size_bytes`, which is the file's.

    `latency_profile` is the profile with its constants, and `raw_us` what the compiler said before
    they were applied. `missing_ops` are steps that an estimate leaves out."""

    model: str
    sha256: str
    size_bytes: int
    device: str
    compiler: str
    precision: str
    calibration: str
    latency_kind: str
    runs_ms: tuple[float, ...]
    latency_profile: str
    machine: str
    weight_bytes: int | None
    peak_memory_bytes: int | None
    ddr_bytes: int | None
    operators: Mapping[str, int]
    cpu_operators: tuple[str, ...]
    score: GateScore | None = None
    raw_us: float | None = None
    missing_ops: int = 0


def measure_model(
    path: Path, options: GateOptions, settings: Settings | None = None, expected: str = ""
) -> GateFigures:
    """Quantize a model file, time it, and score it if there is a dataset. Raises ModelFailed where
    the device does not take the model, and BadInput where it is not the `expected` device."""
    check_file(path)
    settings = settings or Settings.load()
    options = replace(options, task=options.task or settings.task)
    with ExitStack() as stack:
        stack.enter_context(announced_memory(settings.native_memory))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="edgeloop-gate-")))
        name = named_devices(options.device, settings)[0]
        platform_of(name).check_benchmark(name, settings)
        device = open_device(name, settings)
        stack.callback(device.close)
        if expected and device_type(device) != expected:
            reason = f"the baseline is of {expected}, not of {device_type(device)}"
            raise BadInput(reason=f"{reason}: write one for each device")
        toolchain = open_toolchain(converter_of(name), settings)
        stack.callback(toolchain.close)
        return _Measuring(path, options, device, toolchain, folder).figures()


class _Measuring:
    def __init__(
        self, path: Path, options: GateOptions, device: Device, toolchain: Toolchain, folder: Path
    ) -> None:
        self._path, self._options, self._folder = path, options, folder
        self._device, self._toolchain = device, toolchain

    def figures(self) -> GateFigures:
        summary, model = self._read()
        info = self._toolchain.inspect(model)
        task = self._task(info)
        samples = self._calibration(task, info, model)
        options, device = self._options, self._device
        if isinstance(options.precision, PrecisionPlan):
            options.precision.check_model(self._path)
        target = self._folder / "converted"
        made = convert_as(self._toolchain, model, samples, target, options.precision)
        device.probe()
        if isinstance(device, SharedDevice):
            device.acquire()
        file = _artefact(made, device, model)
        runs = list(self._runs(file, made.info))
        first, memory = runs[0], made.memory_or_guess
        on_cpu = str(first.conditions.get("cpu_operators", ""))
        return GateFigures(
            model=self._path.name,
            sha256=sha256_of(self._path),
            size_bytes=summary.size,
            device=device_type(device),
            compiler=self._compiler(),
            precision=made.precision,
            calibration=f"{len(samples)} {samples.origin}",
            latency_kind="estimate" if first.is_estimate else "measured",
            runs_ms=tuple(1000 * run.seconds for run in runs),
            latency_profile=_profile(first),
            machine="" if device.chip else str(first.conditions.get("cpu", platform.machine())),
            weight_bytes=memory.weight_bytes if memory else None,
            peak_memory_bytes=memory.peak_bytes if memory else None,
            ddr_bytes=first.ddr_bytes,
            operators=dict(summary.operators),
            cpu_operators=tuple(on_cpu.split(", ")) if on_cpu else (),
            score=self._score(task, made.info, file) if task else None,
            raw_us=first.raw_us or None,
            missing_ops=first.missing_ops,
        )

    def _read(self) -> tuple[GraphSummary, Path]:
        shapes = self._options.shapes
        summary = graph_pool().summarize(self._path, shapes)
        return summary, graph_pool().prepare(self._path, shapes, self._folder / "prepared")

    def _task(self, info: GraphInfo) -> Task | None:
        dataset = self._options.dataset
        if dataset is None:
            return None
        with reading_data():
            named = open_task(self._options.task, dataset, self._folder / "data")
            if isinstance(named, TensorsTask) or info.image is None:
                reason = f"the gate scores models of one image, not by the task {named.name}"
                raise BadInput(reason=f"{reason}: leave out --dataset")
            task = task_for(named, info)
            if isinstance(task, TakesOutputs):
                task.check_outputs({one.name: one.shape for one in info.outputs})
            else:
                task.check_output(info.output_shape)
        return task

    def _calibration(self, task: Task | None, info: GraphInfo, model: Path) -> Samples:
        if task is None:
            return TensorsTask().inputs(info, RANDOM_SAMPLES * info.batch, "calibration", model)
        with reading_data():
            count = self._options.calibration_images
            return task.calibration(info.height, info.width, count)

    def _runs(self, file: Path, info: GraphInfo) -> Iterator[Measurement]:
        first = self._device.measure(file, info)
        yield first
        for _ in range(0 if first.is_estimate else self._options.runs - 1):
            yield self._device.measure(file, info)

    def _score(self, task: Task, info: GraphInfo, file: Path) -> GateScore:
        with reading_data():
            samples = task.test(info.height, info.width, self._options.images)
        score = run_test(task, self._device, file, info, "quantized", samples)
        return GateScore(task, metric_of(task), score.headline, samples.key, score.counts)

    def _compiler(self) -> str:
        toolchain = self._toolchain
        return toolchain.version if isinstance(toolchain, Versioned) else toolchain.name


def _profile(measured: Measurement) -> str:
    constants = measured.conditions.get("profile_constants", "")
    return f"{measured.profile} ({constants})" if constants else measured.profile


def _artefact(made: Converted, device: Device, model: Path) -> Path:
    """The file that the device runs."""
    suffix = device.artefacts.get("quantized", "")
    if not suffix:
        return model
    if made.quantized.endswith(suffix):
        return made.files[made.quantized]
    return next(file for name, file in made.files.items() if name.endswith(suffix))


# The baseline: the figures of a model that is good, in a small JSON file for the repository.
#
# What the score was of is kept image by image (compressed), so that the next model is compared on
# each image, not by two means: what is hard about an image cancels out.


FORMAT = 1
_LARGEST_FILE = 64_000_000
_LARGEST_COUNTS = 512_000_000
_Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]


class BaselineScore(Section):
    """A score, with what it was made of."""

    task: str
    metric: str
    value: float = Field(allow_inf_nan=False, strict=True)
    images: int = Field(ge=1)
    image_set: str
    counts: str

    @classmethod
    def of(cls, score: GateScore) -> Self:
        return cls(
            task=score.task.name,
            metric=score.metric,
            value=score.value,
            images=len(score.counts),
            image_set=score.image_set,
            counts=packed(score.counts),
        )


class Baseline(Section):
    """Versioned: `edgeloop_gate` is the version of the format."""

    edgeloop_gate: Literal[1] = 1
    edgeloop: str = __version__
    model: str
    sha256: str
    size_bytes: int = Field(ge=0)
    device: str
    compiler: str
    precision: str
    calibration: str = ""
    latency_kind: Literal["estimate", "measured"]
    latency_profile: str = ""
    raw_us: _Above0 | None = None
    missing_ops: int = Field(default=0, ge=0)
    runs_ms: tuple[_Above0, ...] = Field(min_length=1, max_length=1000)
    machine: str = ""
    weight_bytes: int | None = Field(default=None, ge=0)
    peak_memory_bytes: int | None = Field(default=None, ge=0)
    ddr_bytes: int | None = Field(default=None, ge=0)
    operators: dict[str, int] = Field(default_factory=dict)
    cpu_operators: tuple[str, ...] = ()
    score: BaselineScore | None = None

    @classmethod
    def of(cls, figures: GateFigures) -> Self:
        """Raises BadInput for figures that nothing could be compared with."""
        plain = {
            name: getattr(figures, name)
            for name in cls.model_fields
            if name not in ("edgeloop_gate", "edgeloop", "score")
        }
        try:
            score = None if figures.score is None else BaselineScore.of(figures.score)
            return cls(**plain, score=score)
        except ValidationError as error:
            name = ".".join(map(str, error.errors()[0]["loc"]))
            reason = f"its {name} is no number that a model can be compared with"
            raise BadInput(reason=f"{figures.model} cannot be a baseline: {reason}") from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises BadSetting, which names the file, for what is not a baseline."""
        origin = Origin(str(path), BadSetting)
        try:
            content = read_regular(path, _LARGEST_FILE)
        except FileNotFoundError:
            reason = "there is no such baseline; make one with 'edgeloop gate --write'"
            raise LocalFileError(path=path, reason=reason) from None
        except OSError as error:
            raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
        try:
            document = parse_json(content, 4 * _LARGEST_FILE)
        except ValueError as error:
            place = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            reason = f"it is damaged (no JSON{place}): write the baseline again with 'edgeloop gate"
            raise BadSetting(where=path, reason=f"{reason} --write'") from None
        if not isinstance(document, dict) or "edgeloop_gate" not in document:
            reason = "it is no baseline: make one with 'edgeloop gate --write'"
            raise BadSetting(where=path, reason=reason)
        if document["edgeloop_gate"] != FORMAT:
            reason = (
                f"it has the format {document['edgeloop_gate']!r}, and this version of Edgeloop "
                f"reads {FORMAT}: write it again with 'edgeloop gate --write'"
            )
            raise BadSetting(where=path, reason=reason)
        return validated(cls, document, origin)

    def write(self, path: Path) -> None:
        fields = self.model_dump(mode="json", exclude_none=True)
        try:
            write_atomic(path, json.dumps(fields, indent=1, ensure_ascii=False) + "\n")
        except OSError as error:
            raise LocalFileError(path=path, reason=error.strerror or str(error)) from None

    @property
    def latency_ms(self) -> float:
        return float(np.median(self.runs_ms))


def packed(counts: NDArray[Any]) -> str:
    """As text; whole numbers in the smallest type that has them all."""
    if counts.dtype.kind in "iu" and counts.size:
        least = np.result_type(np.min_scalar_type(counts.min()), np.min_scalar_type(counts.max()))
        counts = counts.astype(least)
    buffer = io.BytesIO()
    np.save(buffer, counts, allow_pickle=False)
    return base64.b64encode(zlib.compress(buffer.getvalue(), 9)).decode("ascii")


def unpacked(text: str, like: NDArray[Any]) -> NDArray[Any]:
    """In the type of `like`, the counts of another model by the same task. Raises BadInput for what
    is damaged, or is not from the same task."""
    try:
        inflating = zlib.decompressobj()
        content = inflating.decompress(base64.b64decode(text, validate=True), _LARGEST_COUNTS)
        if not inflating.eof:
            raise ValueError("it is too large or cut off")
        array = _array_of(content)
    except (ValueError, zlib.error, EOFError, OSError, RecursionError, MemoryError) as error:
        raise BadInput(reason=f"the baseline's scores cannot be read: {error}") from None
    if array.dtype.names != like.dtype.names or array.shape[1:] != like.shape[1:]:
        reason = "the baseline's scores are from a test with other classes: write a new baseline"
        raise BadInput(reason=reason)
    if len(array) != len(like):
        raise BadInput(reason="the baseline's scores are of another number of images")
    if array.dtype.names and array.dtype != like.dtype:
        raise BadInput(reason="the baseline's scores are of another type: write a new baseline")
    return np.asarray(array, like.dtype)


def _array_of(content: bytes) -> NDArray[Any]:
    """What `packed` has written. Nothing is allocated for a header that claims more than follows
    it."""
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("it has another version")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    start = file.tell()
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or not dtype.itemsize or not shape or min(shape) < 0:
        raise ValueError("it is no array of numbers")
    if size != len(content) - start:
        raise ValueError("its size is not what its header says")
    flat: NDArray[Any] = np.frombuffer(content, dtype, offset=start)
    return flat.reshape(shape, order="F" if is_fortran else "C")
