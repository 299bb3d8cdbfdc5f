"""What the gate looks at: latency, score, memory, size and operators of one model on one device."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from numpy.typing import NDArray

from edgeloop._util.files import sha256_of
from edgeloop._util.system import announced_memory
from edgeloop.errors import BadInput
from edgeloop.graph import GraphProcess, GraphSummary, Shape, needs_preparing
from edgeloop.inspection import check_file
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
from edgeloop.runner import run_test
from edgeloop.settings import Settings
from edgeloop.tasks import (
    Samples,
    TakesOutputs,
    Task,
    TensorsTask,
    metric_of,
    open_task,
    reading_data,
    task_for,
)

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
        with closing(GraphProcess()) as graphs:
            summary = graphs.summarize(self._path, self._options.shapes)
            if not needs_preparing(self._path, self._options.shapes):
                return summary, self._path
            prepared = graphs.prepare(self._path, self._options.shapes, self._folder / "prepared")
        return summary, prepared

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
        found = run_test(task, self._device, file, info, "quantized", samples)
        return GateScore(task, metric_of(task), found.headline, samples.key, found.counts)

    def _compiler(self) -> str:
        toolchain = self._toolchain
        return toolchain.version if isinstance(toolchain, Versioned) else toolchain.name


def _profile(found: Measurement) -> str:
    constants = found.conditions.get("profile_constants", "")
    return f"{found.profile} ({constants})" if constants else found.profile


def _artefact(made: Converted, device: Device, model: Path) -> Path:
    """The file that the device runs."""
    suffix = device.artefacts.get("quantized", "")
    if not suffix:
        return model
    if made.quantized.endswith(suffix):
        return made.files[made.quantized]
    return next(file for name, file in made.files.items() if name.endswith(suffix))
