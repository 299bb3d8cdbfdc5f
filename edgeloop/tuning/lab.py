"""The lab: variants of a model are compiled for their latency and simulated for what they compute.

`PrecisionLab` tries plans of bits, `TrialRoom` rewrites, and `QuantizedCheck` what rewrites do to a
quantized model. Several processes work at once, each on a variant of its own. Every answer is kept
by the content of its question (model, inputs, device, versions), so that nothing is compiled twice
and a run that was killed continues where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from edgeloop._util.files import (
    make_folder,
    mark_used,
    parse_json,
    read_regular,
    sha256_of,
    write_atomic,
)
from edgeloop._util.isolation import LendingPool, WorkerProcess, register_calls
from edgeloop._util.system import announced_cpus, available_cpus, ordered_map
from edgeloop.errors import (
    BadInput,
    EdgeloopError,
    MemoryExceeded,
    ModelFailed,
    ModelRefused,
    NoSuchPrecision,
)
from edgeloop.graph.bits import tunable_from
from edgeloop.graph.info import GraphInfo, TensorInfo, info_from
from edgeloop.graph.isolated import GraphProcess
from edgeloop.graph.read import external_files
from edgeloop.graph.rewrites.registry import OutputComparison, RewriteStep
from edgeloop.platforms import (
    PROBE,
    CalibratedModel,
    Device,
    EstimatesIntervals,
    Estimator,
    MixesPrecision,
    PrecisionPlan,
    Toolchain,
    check_mixes,
    converter_of,
    open_device,
    open_toolchain,
    platform_of,
)
from edgeloop.platforms.batching import calibration_batch, cut, sample_count
from edgeloop.settings import Settings
from edgeloop.tasks import (
    AgreementScorer,
    Interval,
    Output,
    Samples,
    Score,
    TakesOutputs,
    Task,
    Tensors,
    paired_interval,
)
from edgeloop.tuning.quantized import channel_sqnr

register_calls("tuning", "edgeloop.tuning.worker", what="Tuning")
_METHOD = 2  # one more whenever the same question gets another answer
_PACKAGES = ("edgeloop", "onnxruntime", "onnxruntime-qnn")
_NOISE_LIMIT_S = 600.0

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class LabOptions:
    """`samples` are what outputs are compared on; those with labels are scored by `task`."""

    device: str
    samples: Samples
    calibration: Samples
    task: Task | None = None
    workers: int = 0
    cache: Path | None = None


@dataclass(frozen=True)
class Latency:
    """`missing_ops` are steps that the compiler has no cost for: the times leave them out."""

    raw_us: float
    us: float
    low_us: float | None = None
    high_us: float | None = None
    missing_ops: int = 0


@dataclass(frozen=True)
class Simulated:
    sqnr_db: float
    score: float | None = None
    difference: Interval | None = None


class PrecisionLab:
    """Opened by `opened_lab`."""

    def __init__(
        self,
        options: LabOptions,
        calibrated: CalibratedModel,
        benches: Sequence[tuple[MixesPrecision, Device, WorkerProcess]],
        host: Device,
        answers: Answers,
        folder: Path,
        progress: Progress,
    ) -> None:
        self.calibrated = calibrated
        self.info: GraphInfo = calibrated.info
        self._options = options
        self._benches = LendingPool(benches)
        self.workers = len(benches)
        self._host = host
        self._answers = answers
        self._folder = folder
        self._progress = progress
        self._lock = threading.Lock()
        self._number = 0
        self._float: tuple[Tensors, Score | None] | None = None

    def latencies(self, plans: Sequence[PrecisionPlan], about: str) -> list[Latency | None]:
        """By the compiler; None for a plan that it does not take."""
        return self._each(about, plans, self._latency)

    def simulations(
        self, plans: Sequence[PrecisionPlan], count: int, about: str
    ) -> list[Simulated | None]:
        """What the chip would compute, on the first `count` samples."""
        return self._each(about, plans, lambda plan: self._simulation(plan, count))

    def noises(
        self, asked: Sequence[tuple[tuple[str, ...], Mapping[str, int]]], count: int, about: str
    ) -> list[float]:
        """The share of error that rounding makes: of activations (to 8 bits) and weights."""
        return self._each(about, asked, lambda one: self._noise(*one, count))

    def affordable(self, most: int, runs: int, budget_s: float) -> int:
        """How many samples `runs` plans can be simulated on in about this time."""
        seconds = self._seconds("seconds", lambda: self._simulated(PrecisionPlan(), 1))
        fitting = int(budget_s * self.workers / max(1e-3, runs * seconds))
        return max(2, min(most, fitting, len(self._options.samples)))

    def affordable_compiles(self, budget_s: float) -> int:
        """How many plans can be compiled in about this time."""
        seconds = self._seconds("compile seconds", lambda: self._measured(PrecisionPlan()))
        return int(budget_s * self.workers / max(1e-3, seconds))

    def _seconds(self, key: str, work: Callable[[], object]) -> float:
        seconds = self._answers.get(key)
        if seconds is None:
            began = time.monotonic()
            try:
                work()
            except (ModelFailed, MemoryExceeded):  # the search goes on with other plans
                return time.monotonic() - began
            seconds = time.monotonic() - began
            self._answers.put(key, seconds)
        return float(seconds)

    def batch(self, count: int) -> Tensors:
        samples = self._options.samples
        whole = samples.tensors
        if whole is None:
            whole = {self.info.input_name: samples.images}
        return {name: np.asarray(array) for name, array in cut(whole, 0, count).items()}

    def inside(
        self, plan: PrecisionPlan, parts: Sequence[Sequence[str]], count: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        """SQNR of tensors inside the model on the chip, against those of the float model, and
        against what their layers give in float from what they read on the chip. Tensors are asked
        for in parts, as many as fit into memory at a time; all of the chip's are kept."""
        batch = self.batch(count)
        whole: dict[str, float] = {}
        chip: dict[str, Output] = {}
        with self._benches.borrow() as (toolchain, device, native):
            for part in parts:
                for name, on_chip, expected in self._compared(
                    toolchain, device, native, plan, part, batch
                ):
                    whole[name] = channel_sqnr(np.asarray(on_chip), np.asarray(expected))
                    chip[name] = np.asarray(on_chip)
            if not chip:
                return {}, {}
            file = self._folder / "inside.npz"
            with file.open("wb") as stream:
                np.savez(stream, *chip.values())
            answer, _ = native.call(
                "tuning.local",
                tuple(batch.values()),
                limit_s=_NOISE_LIMIT_S,
                names=list(batch),
                model=str(self.calibrated.model.resolve()),
                info=self.info.to_fields(),
                given=str(file),
                tensors=list(chip),
            )
            file.unlink()
        return whole, dict(answer["sqnr_db"])

    def _compared(
        self,
        toolchain: MixesPrecision,
        device: Device,
        native: WorkerProcess,
        plan: PrecisionPlan,
        names: Sequence[str],
        batch: Tensors,
    ) -> Iterator[tuple[str, Output, Output]]:
        """(name, chip's, float's)"""
        exact, target = self._path("float"), self._path("probed")
        names = toolchain.quantize_plan(self.calibrated, plan, target, names)
        if not names:
            return
        model = str(self.calibrated.model.resolve())
        answer, _ = native.call("tuning.probe", model=model, target=str(exact), names=list(names))
        probes = tuple(
            TensorInfo(f"{name}{PROBE}", tuple(answer["shapes"][name])) for name in names
        )
        info = replace(self.info, outputs=(*self.info.outputs, *probes))
        (given,) = device.infer(target, info, "quantized", iter([batch]))
        (expected,) = self._host.infer(exact, info, "float", iter([batch]))
        for name, probe in zip(names, probes, strict=True):
            yield name, given[probe.name], expected[probe.name]
        exact.unlink()
        target.unlink()

    def _latency(self, plan: PrecisionPlan) -> Latency | None:
        answer = self._asked(f"latency {plan.digest}", lambda: asdict(self._measured(plan)))
        return Latency(**answer) if answer else None

    def _asked(self, key: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """None where it fails. That the compiler refuses a plan is remembered; a crash, a time
        limit or too little memory is not, since another time, or another machine, may do it."""
        answer: dict[str, Any] | None = self._answers.get(key)
        if answer is None:
            try:
                answer = work()
            except (ModelRefused, NoSuchPrecision):
                answer = {}
            except (ModelFailed, MemoryExceeded):
                return None
            self._answers.put(key, answer)
        return answer or None

    def _measured(self, plan: PrecisionPlan) -> Latency:
        with (
            self._benches.borrow() as (toolchain, device, _),
            self._quantized(toolchain, plan) as path,
        ):
            measured = device.measure(path, self.info)
        us = 1e6 * measured.seconds
        low, high = (
            None if end is None else 1e6 * end for end in (measured.low_s, measured.high_s)
        )
        raw_us = us if measured.raw_us is None else measured.raw_us
        return Latency(raw_us, us, low, high, measured.missing_ops)

    def _simulation(self, plan: PrecisionPlan, count: int) -> Simulated | None:
        key = f"simulated {plan.digest} {count}"
        if self._answers.get(key) is None:
            self._expected(count)  # where the float model fails, the plan is not to blame
        answer = self._asked(key, lambda: asdict(self._simulated(plan, count)))
        if answer is None:
            return None
        difference = answer["difference"] and Interval(**answer["difference"])
        return Simulated(answer["sqnr_db"], answer["score"], difference)

    def _simulated(self, plan: PrecisionPlan, count: int) -> Simulated:
        expected, float_score = self._expected(count)
        with (
            self._benches.borrow() as (toolchain, device, _),
            self._quantized(toolchain, plan) as path,
        ):
            batches = iter([self.batch(count)])
            (outputs,) = device.infer(path, self.info, "quantized", batches)
        scorer = AgreementScorer(self.info)
        scorer.add(outputs, expected)
        worst = scorer.worst()
        sqnr = worst.sqnr_db if math.isfinite(worst.sqnr_db) else 100 * worst.top1_agreement
        if float_score is None or self._options.task is None:
            return Simulated(sqnr)
        score = self._scored(outputs)
        assert score is not None
        task = self._options.task
        return Simulated(
            sqnr, score.headline, paired_interval(task, score.counts, float_score.counts)
        )

    def _expected(self, count: int) -> tuple[Tensors, Score | None]:
        with self._lock:
            if self._float is None or sample_count(self._float[0]) != count:
                batches = iter([self.batch(count)])
                (outputs,) = self._host.infer(self.calibrated.model, self.info, "float", batches)
                self._float = outputs, self._scored(outputs)
            return self._float

    def _scored(self, given: Tensors) -> Score | None:
        task = self._options.task
        if task is None:
            return None
        scorer = task.scorer(curves=False)
        outputs = given if isinstance(task, TakesOutputs) else given[self.info.output_name]
        scorer.add(outputs, self._options.samples.labels[: sample_count(given)])
        return scorer.score()

    def _noise(self, names: tuple[str, ...], weights: Mapping[str, int], count: int) -> float:
        key = f"noise {json.dumps([names, dict(weights), count])}"
        noise = self._answers.get(key)
        if noise is None:
            ranges = {name: list(self.calibrated.ranges[name]) for name in names}
            batch = self.batch(count)
            with self._benches.borrow() as (_, _, native):
                answer, _ = native.call(
                    "tuning.noise",
                    tuple(batch.values()),
                    limit_s=_NOISE_LIMIT_S,
                    names=list(batch),
                    model=str(self.calibrated.model.resolve()),
                    info=self.info.to_fields(),
                    activations=ranges,
                    weights=dict(weights),
                )
            noise = answer["noise"]
            self._answers.put(key, noise)
        return float(noise)

    def _each(
        self, about: str, items: Sequence[Item], work: Callable[[Item], Answer]
    ) -> list[Answer]:
        answers = []
        self._progress(about, 0, len(items))
        for done in ordered_map(work, items, self.workers, max(2, 2 * self.workers)):
            answers.append(done)
            self._progress(about, len(answers), len(items))
        return answers

    @contextmanager
    def _quantized(self, toolchain: MixesPrecision, plan: PrecisionPlan) -> Iterator[Path]:
        path = self._path("plan")
        try:
            toolchain.quantize_plan(self.calibrated, plan, path)
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        with self._lock:
            self._number += 1
            return self._folder / f"{name}{self._number}.quant.onnx"


def tuning_worker() -> WorkerProcess:
    """A process for the calls of `worker.py`, which are registered here."""
    return WorkerProcess()


@contextmanager
def opened_lab(
    model: Path, options: LabOptions, settings: Settings, progress: Progress
) -> Iterator[PrecisionLab]:
    """`model` is a float ONNX file with fixed sizes. Each worker counts on one CPU."""
    workers = options.workers or available_cpus()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="edgeloop-precision-")))
        stack.enter_context(announced_cpus(1, for_libraries=True))
        name = converter_of(options.device)
        benches = []
        for _ in range(workers):
            toolchain = stack.enter_context(closing(open_toolchain(name, settings)))
            device = stack.enter_context(closing(open_device(options.device, settings)))
            native = stack.enter_context(closing(tuning_worker()))
            benches.append((_mixing(toolchain), device, native))
        host = stack.enter_context(closing(open_device("host", settings)))
        cache = options.cache or folder / "cache"
        results = cache / _key(model, options, _conditions(benches[0][1].name, settings))
        make_folder(results)
        mark_used(results)
        progress("calibrating", 0, 1)
        calibrated = _calibrated(benches[0][0], model, options, results)
        progress("calibrating", 1, 1)
        answers = Answers(results / "answers.jsonl")
        yield PrecisionLab(
            options=options,
            calibrated=calibrated,
            benches=benches,
            host=host,
            answers=answers,
            folder=folder,
            progress=progress,
        )


def _mixing(toolchain: Toolchain) -> MixesPrecision:
    check_mixes(toolchain)
    if not isinstance(toolchain, MixesPrecision):  # for the type checker: it was checked
        raise BadInput(reason=f"the toolchain {toolchain.name} takes no plans")
    return toolchain


def _calibrated(
    toolchain: MixesPrecision, model: Path, options: LabOptions, folder: Path
) -> CalibratedModel:
    """Once: the ranges are kept beside the answers."""
    record = folder / "calibrated.json"
    try:
        fields = json.loads(record.read_text(encoding="utf-8"))
        if (folder / fields["model"]).is_file():
            return CalibratedModel(
                info=info_from(fields["info"]),
                model=folder / fields["model"],
                tensors=tuple(tunable_from(one) for one in fields["tensors"]),
                ranges={name: (low, high) for name, (low, high) in fields["ranges"].items()},
                pixels=tuple(fields["pixels"]),
                notes=tuple(fields["notes"]),
            )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    calibrated = toolchain.calibrate_tensors(model, options.calibration, folder)
    fields = {
        "info": calibrated.info.to_fields(),
        "model": calibrated.model.name,
        "tensors": [tensor.to_fields() for tensor in calibrated.tensors],
        "ranges": {name: list(ends) for name, ends in calibrated.ranges.items()},
        "pixels": list(calibrated.pixels),
        "notes": list(calibrated.notes),
    }
    write_atomic(record, json.dumps(fields))
    return calibrated


def _conditions(device: str, settings: Settings) -> str:
    """What latencies depend on: the device by its whole name, and its profile, since they are kept
    as calibrated."""
    try:
        estimator = platform_of(device).open_estimator(device, settings, _NOISE_LIMIT_S)
    except BadInput:  # one that measures
        return device
    with closing(estimator):
        return f"{device}: {estimator.conditions}"


def _key(model: Path, options: LabOptions, conditions: str) -> str:
    """Of everything that the answers depend on."""
    digest = hashlib.sha256()
    import onnx

    graph = onnx.load_model(model, load_external_data=False)
    for path in (model, *sorted(external_files(model, graph).values())):
        digest.update(sha256_of(path).encode())
    for samples in (options.calibration, options.samples):
        arrays: Mapping[str, Any] = samples.tensors or {"images": samples.images}
        labels = {"labels": samples.labels} if options.task is not None else {}
        for name, array in {**arrays, **labels}.items():
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    task = options.task.name if options.task is not None else ""
    digest.update(json.dumps([_METHOD, conditions, task, *map(_version, _PACKAGES)]).encode())
    return digest.hexdigest()[:32]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


# Answers that are kept for the next lab.


class Answers:
    """Answers by their questions, in a file that only grows: what was found before a run ended is
    there for the next one, however it ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known = dict(_entries(path))

    def get(self, key: str) -> Any | None:
        return self._known.get(key)

    def put(self, key: str, value: Any) -> None:
        line = json.dumps([key, value]) + "\n"
        with self._lock:
            self._known[key] = value
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Without the last line if a process was killed while writing it."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            key, value = json.loads(line)
        except (ValueError, TypeError):
            continue
        if isinstance(key, str):
            yield key, value


# Trials: a model with some rewrites, re-compiled for its estimate and compared by its outputs.
#
# Several run at once, each in processes of its own. An estimate is kept by the content of the model
# and by what it depends on, so that the same graph is never compiled twice.


Steps = tuple[RewriteStep, ...]
_LONGEST_RECORD = 10_000


@dataclass(frozen=True)
class GraphEstimate:
    """What the compiler said of one graph. `raw_us` is its own number, before any calibration;
    `missing_ops` are steps that it has no cost for. `low_ms` to `high_ms` is where the time on the
    chip is expected, with the probability `coverage`."""

    latency_ms: float
    raw_us: float | None = None
    missing_ops: int = 0
    low_ms: float | None = None
    high_ms: float | None = None
    coverage: float | None = None


@dataclass(frozen=True)
class RewriteTrial:
    """A model with some rewrites. `layers` are those of the last step."""

    steps: Steps
    layers: tuple[str, ...]
    path: Path
    estimate: GraphEstimate

    def gain_over(self, other: GraphEstimate) -> float:
        """The part of the time that is saved. Nothing is, where the compiler's own number did not
        fall, or where it has no cost for more steps than before."""
        mine = self.estimate
        if mine.missing_ops > other.missing_ops:
            return -math.inf
        gain = 1 - mine.latency_ms / other.latency_ms
        if mine.raw_us is not None and other.raw_us is not None and other.raw_us:
            gain = min(gain, 1 - mine.raw_us / other.raw_us)
        return gain


@dataclass
class _Lane:
    """What one trial needs for itself."""

    estimator: Estimator
    graphs: GraphProcess


class TrialRoom:
    """Runs trials of one model; ends with `close`. `compiles` counts estimates that were not known
    from before. No new one is begun after `limit_s` or `most_compiles`."""

    def __init__(
        self,
        open_estimator: Callable[[], Estimator],
        folder: Path,
        *,
        workers: int,
        limit_s: float,
        most_compiles: int,
        call_limit_s: float,
        cache: Path | None = None,
    ) -> None:
        self._folder, self._cache = folder, cache
        self._ends = time.monotonic() + limit_s
        self._most = most_compiles
        self._lanes = LendingPool(
            _Lane(open_estimator(), GraphProcess(call_limit_s)) for _ in range(workers)
        )
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="advice")
        self._lock = threading.Lock()
        self._known: dict[str, GraphEstimate] = {}
        self._count = 0
        self.compiles = 0
        self.is_cut_short = False
        self.failures: dict[str, str] = {}
        self.conditions = self._lanes.items[0].estimator.conditions
        self.base = folder / "base.onnx"

    def begin(self, model: Path) -> tuple[GraphInfo, GraphEstimate]:
        """Read the model, and estimate it as it is. Raises where that is not possible."""
        with self._lanes.borrow() as lane:
            info = lane.graphs.write_base(model, self.base)
            estimate = self._estimate(lane, self.base)
        assert estimate is not None
        return info, estimate

    def run(
        self, candidates: Sequence[Steps], done: Callable[[], None] = lambda: None
    ) -> list[RewriteTrial]:
        """Those that apply and compile, in order; `done` is called after each one. Why others did
        not is kept in `failures`, by the name of the last step."""

        def one(steps: Steps) -> RewriteTrial | None:
            try:
                with self._lanes.borrow() as lane:
                    return self._trial(lane, steps)
            except EdgeloopError as error:  # the compiler does not take it so, or not in time
                self.failures[steps[-1].name] = str(error)
                return None
            finally:
                done()

        return [trial for trial in self._pool.map(one, candidates) if trial is not None]

    def compare(
        self, after: Path, samples: Mapping[str, Any] | None, before: Path | None = None
    ) -> OutputComparison:
        with self._lanes.borrow() as lane:
            return lane.graphs.compare(before or self.base, after, samples)

    def estimate_file(self, model: Path) -> GraphEstimate:
        """Of a file that was written elsewhere, past the cache."""
        with self._lanes.borrow() as lane:
            return _asked(lane.estimator, model)

    def close(self) -> None:
        """Ends what is under way, too."""
        for lane in self._lanes.items:
            lane.estimator.kill()
            lane.graphs.kill()
        self._pool.shutdown(cancel_futures=True)
        for lane in self._lanes.items:
            lane.estimator.close()
            lane.graphs.close()

    def _trial(self, lane: _Lane, steps: Steps) -> RewriteTrial | None:
        with self._lock:
            self._count += 1
            target = self._folder / f"trial-{self._count}.onnx"
        layers = lane.graphs.rewrite(self.base, steps, target)
        if not all(layers):
            return None
        estimate = self._estimate(lane, target)
        if estimate is None:
            target.unlink(missing_ok=True)
            return None
        return RewriteTrial(steps, layers[-1], target, estimate)

    def _estimate(self, lane: _Lane, model: Path) -> GraphEstimate | None:
        key = hashlib.sha256(f"{sha256_of(model)} {self.conditions}".encode()).hexdigest()
        with self._lock:
            estimate = self._known.get(key) or self._read(key)
            if estimate is None and self.compiles and self._is_over():
                self.is_cut_short = True
                return None
            self.compiles += estimate is None
        if estimate is None:
            estimate = _asked(lane.estimator, model)
            self._write(key, estimate)
        self._known[key] = estimate
        return estimate

    def _is_over(self) -> bool:
        return self.compiles >= self._most or time.monotonic() > self._ends

    def _read(self, key: str) -> GraphEstimate | None:
        if self._cache is None:
            return None
        try:
            text = read_regular(self._cache / f"{key}.json", _LONGEST_RECORD)
            return estimate_of(parse_json(text, 20 * _LONGEST_RECORD))
        except (OSError, ValueError):
            return None

    def _write(self, key: str, estimate: GraphEstimate) -> None:
        if self._cache is None:
            return
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            write_atomic(self._cache / f"{key}.json", json.dumps(vars(estimate)))
        except (OSError, EdgeloopError):
            return  # the next time costs a compile


def estimate_of(record: object) -> GraphEstimate | None:
    """None for what `_write` does not write: such a record is made again."""
    names = [one.name for one in fields(GraphEstimate)]
    if not isinstance(record, dict) or set(record) != set(names):
        return None
    latency, missing = record.pop("latency_ms"), record.pop("missing_ops")
    may_lack = [value for value in record.values() if value is not None]
    if not all(_is_above_zero(value) for value in (latency, *may_lack)):
        return None
    if not isinstance(missing, int) or missing < 0:
        return None
    return GraphEstimate(latency, missing_ops=missing, **record)


def _is_above_zero(value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return 0 < value < math.inf


def _asked(estimator: Estimator, model: Path) -> GraphEstimate:
    if not isinstance(estimator, EstimatesIntervals):
        return GraphEstimate(estimator.latency_ms(model))
    measured = estimator.estimate(model)
    return GraphEstimate(
        1000 * measured.seconds,
        measured.raw_us,
        measured.missing_ops,
        measured.low_ms,
        measured.high_ms,
        measured.coverage,
    )


# How well the quantized model agrees with its float form, before and after rewrites.
#
# Rewrites that are exact for floats can change the ranges that are quantized. So both models are
# calibrated and simulated on the same inputs, against the float model as it was.


LARGEST_LOSS_DB = 1.0


@dataclass(frozen=True)
class QuantizedAgreement:
    """SQNR of the quantized model against the float one, and the latency of both as calibrated."""

    samples: int
    before_db: float
    after_db: float
    before_ms: float
    after_ms: float


class QuantizedCheck:
    """Of models that were made from one by rewrites. Each is quantized and simulated once, by
    processes that stay until `close`."""

    def __init__(
        self,
        base: Path,
        info: GraphInfo,
        samples: Samples,
        device: str,
        settings: Settings,
        folder: Path,
    ) -> None:
        self._base, self._info, self._samples = base, info, samples
        self._name, self._settings, self._folder = device, settings, folder
        self._stack = ExitStack()
        self._opened: tuple[Toolchain, Device] | None = None
        self._expected: list[Tensors] = []
        self._known: dict[Path, tuple[float, float] | None] = {}

    def agreement(self, after: Path) -> QuantizedAgreement | None:
        """None where the rewritten model has other outputs, which cannot be compared, or where
        nothing was rewritten."""
        first = self._found(self._base)
        second = self._found(after) if after != self._base else None
        if first is None or second is None:
            return None
        return QuantizedAgreement(len(self._samples), first[0], second[0], first[1], second[1])

    def first_loss(self, paths: Sequence[Path]) -> tuple[int, float] | None:
        """Of models with one rewrite more each: the place of the one that costs more than a
        decibel, and how much; None where all of them together do not."""
        whole = self.agreement(paths[-1])
        if whole is None or whole.before_db - whole.after_db <= LARGEST_LOSS_DB:
            return None
        losses = [
            (before[0] - after[0], place)
            for place in range(len(paths) - 1)
            if (before := self._found(paths[place])) and (after := self._found(paths[place + 1]))
        ]
        largest, place = max(losses)
        return place, largest

    def close(self) -> None:
        self._stack.close()

    def _found(self, model: Path) -> tuple[float, float] | None:
        """The SQNR in dB, and the latency in ms."""
        if model not in self._known:
            self._known[model] = self._simulated(model)
        return self._known[model]

    def _simulated(self, model: Path) -> tuple[float, float] | None:
        if not self._expected:
            with closing(open_device("host", self._settings)) as host:
                self._expected = list(host.infer(self._base, self._info, "float", self._runs()))
        toolchain, device = self._tools()
        info = self._info
        made = toolchain.convert(model, self._samples, self._folder / f"made-{len(self._known)}")
        if [one.name for one in made.info.outputs] != [one.name for one in info.outputs]:
            return None
        scorer = AgreementScorer(info)
        quantized = made.files[made.quantized]
        outputs = device.infer(quantized, made.info, "quantized", self._runs())
        for on_chip, in_float in zip(outputs, self._expected, strict=True):
            scorer.add(on_chip, in_float)
        latency_ms = 1000 * device.measure(quantized, made.info).seconds
        return scorer.worst().sqnr_db, latency_ms

    def _tools(self) -> tuple[Toolchain, Device]:
        if self._opened is None:
            toolchain = open_toolchain(converter_of(self._name), self._settings)
            self._stack.callback(toolchain.close)
            device = open_device(self._name, self._settings)
            self._stack.callback(device.close)
            self._opened = toolchain, device
        return self._opened

    def _runs(self) -> Iterator[Tensors]:
        batch = calibration_batch(self._info, self._samples)
        for start in range(0, sample_count(batch), self._info.batch):
            yield cut(batch, start, start + self._info.batch)
