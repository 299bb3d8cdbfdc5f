"""One model file on several devices, side by side: no store, no dataset, nothing left behind.

The model is quantized once per toolchain, on random inputs unless others are given: latency hardly
depends on them. Estimates and boards come first, all at once; what runs on this machine's own CPU
comes last and alone, since anything beside it would slow it down.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from edgeloop._util.system import announced_memory
from edgeloop._util.values import plural
from edgeloop.errors import EdgeloopError
from edgeloop.graph.info import GraphInfo, Shape
from edgeloop.graph.isolated import graph_pool
from edgeloop.graph.read import check_file
from edgeloop.platforms import (
    DEFAULT_PRECISION,
    Converted,
    Device,
    Measurement,
    Precision,
    PrecisionPlan,
    SharedDevice,
    convert_as,
    converter_of,
    named_devices,
    open_device,
    open_toolchain,
    platform_of,
)
from edgeloop.settings import Settings
from edgeloop.tasks import Samples, TensorsTask

DEFAULT_DEVICES = ("htp", "host")
RANDOM_SAMPLES = 2
GIVEN_SAMPLES = 32
_RANDOM_NOTE = "calibrated on random inputs: good for latency, not for accuracy"


@dataclass(frozen=True)
class BenchOptions:
    """`runs` are benchmark runs of a device that measures; an estimate is the same each time."""

    precision: Precision | PrecisionPlan = DEFAULT_PRECISION
    runs: int = 1
    calibration: Path | None = None
    shapes: Mapping[str, Shape] = field(default_factory=dict)


@dataclass(frozen=True)
class BenchResult:
    """One device. `latency_ms` is None where `error` says why. `memory_bytes` are the weights and
    the most activations alive at once.

    `low_ms` to `high_ms` is where the time on the chip is expected, with the probability
    `coverage` (None: no data supports one) and `basis` saying where it comes from; for a device
    that measures, it is the middle 90 % of all samples. `is_lower_bound`: the estimate leaves out
    steps, so the chip takes longer, and there is no interval."""

    device: str
    chip: str = ""
    kind: str = ""
    latency_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    coverage: float | None = None
    basis: str = ""
    is_lower_bound: bool = False
    is_calibrated: bool = False
    per_second: float | None = None
    notes: tuple[str, ...] = ()
    error: str = ""
    memory_bytes: int | None = None
    ddr_bytes: int | None = None


@dataclass(frozen=True)
class BenchReport:
    info: GraphInfo
    precision: str
    results: tuple[BenchResult, ...]
    notes: tuple[str, ...]


def bench_model(
    path: Path,
    devices: Sequence[str] = (),
    options: BenchOptions | None = None,
    settings: Settings | None = None,
) -> BenchReport:
    """Latency of one file on each device. A device that fails has a result that says so; raises
    where the file is not a usable model or a device does not exist."""
    check_file(path)
    options = options or BenchOptions()
    settings = settings or Settings.load()
    names = [n for name in devices or DEFAULT_DEVICES for n in named_devices(name, settings)]
    with ExitStack() as stack:
        stack.enter_context(announced_memory(settings.native_memory))
        opened = [_opened(name, settings, stack) for name in dict.fromkeys(names)]
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="edgeloop-bench-")))
        return _Bench(opened, options, settings, folder, stack).run(path)


def _opened(name: str, settings: Settings, stack: ExitStack) -> tuple[str, Device]:
    """The device, and its toolchain; raises where there is none, or no latency to be had."""
    platform_of(name).check_benchmark(name, settings)
    device = open_device(name, settings)
    stack.callback(device.close)
    return converter_of(name), device


class _Bench:
    def __init__(
        self,
        devices: list[tuple[str, Device]],
        options: BenchOptions,
        settings: Settings,
        folder: Path,
        stack: ExitStack,
    ) -> None:
        self._devices = devices
        self._options = options
        self._settings = settings
        self._folder = folder
        self._pool = stack.enter_context(ThreadPoolExecutor(len(devices)))
        self._notes: list[str] = []
        self._model = Path()

    def run(self, path: Path) -> BenchReport:
        """Devices load their libraries while the model is quantized."""
        if isinstance(self._options.precision, PrecisionPlan):
            self._options.precision.check_model(path)
        probes = {device.name: self._pool.submit(device.probe) for _, device in self._devices}
        path = graph_pool().prepare(path, self._options.shapes, self._folder)
        self._model = path
        made = {name: self._converted(name, path) for name in dict(self._devices)}
        results = self._results([(device, made[name], probes) for name, device in self._devices])
        first = next(iter(made.values()))
        return BenchReport(first.info, first.precision, results, tuple(self._notes))

    def _converted(self, name: str, path: Path) -> Converted:
        with closing(open_toolchain(name, self._settings)) as toolchain:
            samples = self._samples(toolchain.inspect(path), path)
            precision = self._options.precision
            made = convert_as(toolchain, path, samples, self._folder / name, precision)
        self._notes += [note for note in (*made.notes, samples.note) if note not in self._notes]
        return made

    def _samples(self, info: GraphInfo, model: Path) -> Samples:
        source = self._options.calibration
        count = RANDOM_SAMPLES if source is None else GIVEN_SAMPLES
        samples = TensorsTask(source).inputs(info, count * info.batch, "calibration", model)
        return replace(samples, note=_RANDOM_NOTE) if source is None else samples

    def _results(self, work: list[_Work]) -> tuple[BenchResult, ...]:
        elsewhere = {
            device.name: self._pool.submit(self._result, device, made, probes[device.name])
            for device, made, probes in work
            if device.chip
        }
        wait(elsewhere.values())
        return tuple(
            elsewhere[device.name].result()
            if device.name in elsewhere
            else self._result(device, made, probes[device.name])
            for device, made, probes in work
        )

    def _result(self, device: Device, made: Converted, probe: Future[str]) -> BenchResult:
        """Whatever goes wrong with one device is no reason not to show the others."""
        try:
            probe.result()
            if isinstance(device, SharedDevice):
                device.acquire()
            model = _artefact(made, device) or self._model
            runs = [device.measure(model, made.info)]
            if not runs[0].is_deterministic:
                runs += [device.measure(model, made.info) for _ in range(self._options.runs - 1)]
        except EdgeloopError as error:
            return BenchResult(device.name, device.chip, error=str(error))
        result = _summed_up(device, made.info, runs)
        memory = made.memory_or_guess
        total = memory.weight_bytes + memory.peak_bytes if memory else None
        return replace(result, memory_bytes=total, ddr_bytes=runs[0].ddr_bytes)


_Work = tuple[Device, Converted, Mapping[str, "Future[str]"]]


def _artefact(made: Converted, device: Device) -> Path | None:
    """The file that the device runs; None where it is the model as it was given."""
    suffix = device.artefacts.get("quantized", "")
    if not suffix or made.quantized.endswith(suffix):
        return made.files[made.quantized] if suffix else None
    return next((file for name, file in made.files.items() if name.endswith(suffix)), None)


def _summed_up(device: Device, info: GraphInfo, runs: Sequence[Measurement]) -> BenchResult:
    seconds = statistics.median(run.seconds for run in runs)
    first = runs[0]
    result = BenchResult(
        device.name,
        device.chip,
        "estimate" if first.is_estimate else "measured",
        1000 * seconds,
        per_second=info.batch / seconds if seconds else None,
        notes=_notes(first),
    )
    if first.is_estimate:
        return replace(
            result,
            low_ms=first.low_ms,
            high_ms=first.high_ms,
            coverage=first.coverage,
            basis=first.basis,
            is_calibrated=first.is_calibrated,
            is_lower_bound=first.missing_ops > 0,
        )
    samples = sorted(sample for run in runs for sample in run.samples_s)
    edge = len(samples) // 20
    return replace(
        result,
        low_ms=1000 * samples[edge],
        high_ms=1000 * samples[-1 - edge],
        coverage=0.9,
        basis=f"middle 90 % of {plural(len(samples), 'sample')}",
    )


def _notes(measured: Measurement) -> tuple[str, ...]:
    """Why an estimate has no interval of a stated probability; then its caveats."""
    is_unsure = measured.is_estimate and measured.coverage is None
    notes = [measured.basis] if is_unsure else []
    if "note" in measured.conditions:
        notes.append(str(measured.conditions["note"]))
    return tuple(notes)
