"""Values that are known before any training: counts, host latency, the compiler's estimate.

`Screening` takes the cheapest values first, so that a violated constraint saves the others: counts
come from a network without weights, in milliseconds, and only what is left is exported with its
initial weights. A worker process builds the models and runs users' spaces. It keeps PyTorch and
ONNX Runtime loaded, which takes seconds; whatever a space does to it is an error of the candidate
and not the end of the search.
"""

from __future__ import annotations

import contextlib
import platform
import statistics
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from edgeloop._util.isolation import Answer, WorkerProcess, more_time, register_calls
from edgeloop.errors import (
    BadInput,
    EdgeloopError,
    MemoryExceeded,
    ModelFailed,
    ModelRefused,
    OutOfMemory,
    TimeLimitReached,
    WorkerFailed,
)
from edgeloop.graph.info import GraphInfo
from edgeloop.graph.isolated import GraphProcess
from edgeloop.platforms import EstimatesIntervals, Estimator, platform_of
from edgeloop.search.base import (
    PROXY,
    Evaluation,
    broken_constraint,
    device_of,
    on_device,
    value_of,
)
from edgeloop.search.config import CHIP, DEFAULT_CHIP, SearchConfig
from edgeloop.search.evaluators.threads import PoolEvaluator, Request, failure
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.export import check_exporter, export_onnx
from edgeloop.search.nets.proxies import proxies_of
from edgeloop.search.nets.spaces import build, check_torch
from edgeloop.settings import Settings

UNTRAINED = "untrained.onnx"
COUNTS = ("params", "macs", "memory_bytes")
VALUES = (*COUNTS, "host_latency_ms", "chip_latency_ms", "ddr_bytes")
INTERVAL = ("chip_latency_low_ms", "chip_latency_high_ms", "chip_latency_coverage")
_UNTRAINED, _AND = "untrained net", "; "
_CHECK_S = 60.0
_MORE_TIME = 5.0  # for the second attempt, as a multiple of the limit
_PROXY_LIMIT_S = 30.0


@dataclass(frozen=True)
class ScreeningPlan:
    """Which values are screened, and how. A model that violates one of the `constraints` is not
    examined any further. A step that takes longer than `limit_s` is stopped and gets five times as
    long in a second attempt; after that, the model is not judged.

    With `devices`, values of the compiler are given for each of these chips, with the chip in their
    names; otherwise for `device` alone, without it. `with_counts` adds counts that are not
    `wanted`. `proxies` are zero-cost proxies, which only a sampler sees. Host latency is the median
    of `repeats` runs after `warm_up` others.
    """

    wanted: Collection[str] = VALUES
    device: str = DEFAULT_CHIP
    devices: Sequence[str] = ()
    constraints: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    with_counts: bool = False
    proxies: Sequence[str] = ()
    repeats: int = 20
    warm_up: int = 3
    limit_s: float = 60.0

    def __post_init__(self) -> None:
        unknown = sorted(set(self.wanted) - set(VALUES))
        if unknown or not self.wanted:
            what = f"has no value {unknown[0]!r}" if unknown else "needs at least one value"
            raise BadInput(reason=f"Screening {what}: choose from {', '.join(VALUES)}")
        if self.repeats < 1 or self.warm_up < 0 or self.limit_s <= 0:
            raise BadInput(reason="repeats must be 1 or more, warm_up 0 or more, limit_s above 0")

    @property
    def gives(self) -> tuple[str, ...]:
        return self._named(value for value in VALUES if value in self.wanted)

    @property
    def beside(self) -> tuple[str, ...]:
        interval = self._named(INTERVAL if "chip_latency_ms" in self.wanted else ())
        counts = [name for name in COUNTS if self.with_counts and name not in self.wanted]
        return (*interval, *counts, *(PROXY + name for name in self.proxies))

    @property
    def needs_compiler(self) -> bool:
        return not set(CHIP).isdisjoint(self.wanted)

    def _named(self, values: Iterable[str]) -> tuple[str, ...]:
        """Each value, or that of each chip."""
        names: list[str] = []
        for value in values:
            is_by_chip = bool(self.devices) and value in (*CHIP, *INTERVAL)
            names += [on_device(value, d) for d in self.devices] if is_by_chip else [value]
        return tuple(names)


class Screening(PoolEvaluator):
    """The values of a plan, in two warm processes: one that builds the model, one for the compiler.
    None of them depends on the weights, so no training is needed.

    A model that crashes a process or cannot be allocated has a final error, and the next one gets a
    new process. One that needs more memory or time than a process may have gets another attempt,
    and is then not judged. Models are kept in `folder`, by default a temporary one that `close`
    removes. Results are stored by chip: a search for other chips finds what it can use.
    """

    cost = 0
    label = "in screening"

    def __init__(
        self,
        plan: ScreeningPlan | None = None,
        *,
        folder: Path | None = None,
        project: Path | None = None,
        settings: Settings | None = None,
    ) -> None:
        check_torch()
        check_exporter()
        super().__init__()
        self._plan = plan = plan or ScreeningPlan()
        self.gives, self.beside = plan.gives, plan.beside
        self._estimators: dict[str, Estimator] = {}  # by chip, a single one without its name
        if plan.needs_compiler:
            settings = settings or Settings.load(project)
            opened = open_estimators(plan.devices or (plan.device,), settings, plan.limit_s)
            self._estimators = opened if plan.devices else {"": opened[plan.device]}
        # The process of an estimator counts as well, so none is started for that alone.
        self._graphs = next(iter(self._estimators.values()), None) or GraphProcess(plan.limit_s)
        self._depends = {name: self._part(name) for name in (*self.gives, *self.beside)}
        self.conditions = _joined(_UNTRAINED, *self._depends.values())
        self._temporary = tempfile.TemporaryDirectory(
            prefix="edgeloop-screen-", ignore_cleanup_errors=True
        )
        self._folder = folder or Path(self._temporary.name)
        self._builder = ModelBuilder(plan.limit_s, project)

    @property
    def capacity(self) -> int:
        return 1

    def warm(self) -> None:
        """Load the libraries now instead of with the first architecture."""
        self._builder.warm()
        self._graphs.warm()

    # One architecture

    def _work(self, request: Request) -> Evaluation:
        # Limits say more about this machine than about the model. One that lacks memory is not
        # final: a group of evaluators tries again while nothing else runs.
        try:
            return self._patiently_screened(request.arch)
        except MemoryExceeded as error:
            return replace(failure(request.arch.id, error, is_final=False), lacks_memory=True)
        except WorkerFailed as error:  # does not start, or did not get enough of a busy CPU
            return replace(failure(request.arch.id, error, is_final=False), overran=True)

    def _patiently_screened(self, arch: Architecture) -> Evaluation:
        try:
            return self._screen(arch)
        except TimeLimitReached:
            with more_time(_MORE_TIME):
                return self._screen(arch)

    def _screen(self, arch: Architecture) -> Evaluation:
        began = time.monotonic()
        values: dict[str, float] = {}
        model = self._folder / arch.id / UNTRAINED
        for more in self._steps(arch, model):
            values |= {name: value for name, value in more.items() if name in self._depends}
            if broken_constraint(values, self._plan.constraints):
                break
        files = {UNTRAINED: model} if model.is_file() else {}
        return Evaluation(arch.id, values, files, time.monotonic() - began)

    def _steps(self, arch: Architecture, model: Path) -> Iterator[dict[str, float]]:
        """The values, the cheapest first: the caller stops at a violated constraint. The model is
        exported as late as possible, and not at all for counts."""
        needs_counts = not set(COUNTS).isdisjoint(self._depends)
        counts = self._builder.counts(arch) if needs_counts else None
        if counts is not None:
            yield counts
        is_uncounted = needs_counts and counts is None
        if is_uncounted or "host_latency_ms" in self.gives or self._estimators:
            self._builder.build(arch, model)
        if is_uncounted:
            yield _counts(self._graphs.inspect(model))
        if "host_latency_ms" in self.gives:
            plan = self._plan
            latency_ms = self._builder.host_latency_ms(model, plan.warm_up, plan.repeats)
            yield {"host_latency_ms": latency_ms}
        for device, estimator in self._estimators.items():
            yield _values_on(device, estimator, model)
        if self._plan.proxies:
            yield self._builder.proxies(arch, self._plan.proxies)

    # Conditions: what a stored value depends on besides the architecture

    def depends_on(self, name: str) -> str:
        return self._depends.get(name, self.conditions)

    def known(self, results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        return {
            name: values[value_of(name)]
            for name, part in self._depends.items()
            for conditions, values in results.items()
            if value_of(name) in values and part in conditions.split(_AND)
        }

    def stored(self, values: Mapping[str, float]) -> Mapping[str, Mapping[str, float]]:
        """Of several chips, each as a search for this chip alone would store it."""
        if not any(self._estimators):  # none, or that of a single chip, which has no name here
            return {self.conditions: values}
        by_conditions: dict[str, dict[str, float]] = {}
        for name, value in values.items():
            conditions = _joined(_UNTRAINED, self._depends[name])
            by_conditions.setdefault(conditions, {})[value_of(name)] = value
        return by_conditions

    def _part(self, name: str) -> str:
        if name == "host_latency_ms":
            return _host_conditions(self._plan.repeats)
        if value_of(name) in (*CHIP, *INTERVAL):
            return self._estimators[device_of(name)].conditions
        return _UNTRAINED

    def _stop(self) -> None:
        processes = [self._builder, self._graphs, *self._estimators.values()]

        def interrupt() -> None:
            """Ends a call in progress; the thread sees that we are closing and ends."""
            for process in processes:
                process.kill()

        self._join(interrupt)
        for process in processes:
            process.close()
        self._temporary.cleanup()


def _counts(info: GraphInfo) -> dict[str, float]:
    counts = {"params": float(info.params), "macs": float(info.macs)}
    if info.memory is not None:
        counts["memory_bytes"] = float(info.memory.weights_8bit + info.memory.activations_8bit)
    return counts


def _joined(*parts: str) -> str:
    """Stored results are found by this text."""
    return _AND.join(dict.fromkeys(parts))


def _host_conditions(repeats: int) -> str:
    try:
        installed = version("onnxruntime")
    except PackageNotFoundError:
        installed = "unknown"
    cpu = f"{platform.machine()} {platform.node()}"
    return f"host {cpu}, 1 thread, onnxruntime {installed}, of {repeats}"


# Chips: the values of a compiler


def open_estimators(
    devices: Sequence[str], settings: Settings, limit_s: float
) -> dict[str, Estimator]:
    """One per device, in this order; those of one platform may share work."""
    platforms = {device: platform_of(device) for device in devices}
    opened: dict[str, Estimator] = {}
    for owner in {one.name: one for one in platforms.values()}.values():
        its_devices = [device for device in devices if platforms[device].name == owner.name]
        opened |= owner.open_estimators(its_devices, settings, limit_s)
    return {device: opened[device] for device in devices}


def check_devices(config: SearchConfig, settings: Settings) -> None:
    """Refuse a chip that is unknown or cannot be estimated, or that is named twice in different
    words, before anything is searched."""
    values = [value for value in map(value_of, config.wanted) if value in CHIP]
    if not values:
        return
    options = {one.value: one.options for one in config.objectives if one.value in CHIP}
    value = next((name for name, keys in options.items() if "devices" in keys), values[0])
    path = ("objectives", value, "devices" if config.devices else "device")
    by_conditions: dict[str, str] = {}
    for device in config.chips:
        try:
            [estimator] = open_estimators([device], settings, _CHECK_S).values()
        except BadInput as error:
            raise config.origin.wrong(path, f"cannot be used: {error}") from None
        estimator.close()
        other = by_conditions.setdefault(estimator.conditions, device)
        if other != device:
            reason = f"names {other} and {device}, which are the same chip: keep one of them"
            raise config.origin.wrong(path, reason)


def chip_values(estimator: Estimator, model: Path) -> dict[str, float]:
    """Latency, with its interval and the traffic where these are known."""
    if not isinstance(estimator, EstimatesIntervals):
        return {"chip_latency_ms": estimator.latency_ms(model)}
    estimate = estimator.estimate(model)
    # A latency that leaves out steps would make a model look faster than all others.
    if estimate.missing_ops:
        reason = f"its latency is not known ({estimate.basis}); measure it with farm_latency_ms"
        raise ModelFailed(reason=reason)
    values = {
        "chip_latency_ms": 1000 * estimate.seconds,
        "chip_latency_low_ms": estimate.low_ms,
        "chip_latency_high_ms": estimate.high_ms,
        "chip_latency_coverage": estimate.coverage,
        "ddr_bytes": estimate.ddr_bytes,
    }
    return {name: value for name, value in values.items() if value is not None}


def _values_on(device: str, estimator: Estimator, model: Path) -> dict[str, float]:
    try:
        values = chip_values(estimator, model)
    except ModelFailed as error:
        if not device:
            raise
        reason = error.fields.get("reason", error)
        raise type(error)(reason=f"for {device}: {reason}") from None
    return {on_device(name, device): value for name, value in values.items()}


# The process that builds models: its caller, and what runs in it


class ModelBuilder:
    """Calls the process that builds models: started by the first call, and again after a crash."""

    def __init__(self, limit_s: float, project: Path | None = None) -> None:
        self._process = WorkerProcess()
        self._limit_s = limit_s
        self._project = str((project or Path.cwd()).resolve())

    def warm(self) -> None:
        self._process.warm("screening")

    def counts(self, arch: Architecture) -> dict[str, float] | None:
        """Parameters, MACs and memory, as the exported file would have them, from a network without
        weights; None where only an export can tell."""
        answer, _ = self._process.call(
            "screening.count", limit_s=self._limit_s, arch=arch.canonical, project=self._project
        )
        counts = answer["counts"]
        return None if counts is None else {name: float(counts[name]) for name in counts}

    def build(self, arch: Architecture, target: Path) -> Path:
        """Write the model with its initial weights, the same each time, as an ONNX file."""
        self._process.call(
            "screening.build",
            limit_s=self._limit_s,
            arch=arch.canonical,
            target=str(target.resolve()),
            project=self._project,
        )
        return target

    def host_latency_ms(self, model: Path, warm_up: int, repeats: int) -> float:
        """The median of single-threaded runs in ONNX Runtime."""
        answer, _ = self._process.call(
            "screening.run",
            limit_s=self._limit_s,
            model=str(model.resolve()),
            warm_up=warm_up,
            repeats=repeats,
        )
        return float(answer["median_ms"])

    def proxies(self, arch: Architecture, wanted: Sequence[str]) -> dict[str, float]:
        """Zero-cost proxies of the untrained model, as features."""
        # No proxy is worth a candidate: one that takes too long or cannot be computed is left out.
        with contextlib.suppress(ModelFailed, ModelRefused, MemoryExceeded, OutOfMemory):
            answer, _ = self._process.call(
                "screening.proxies",
                limit_s=min(self._limit_s, _PROXY_LIMIT_S),
                arch=arch.canonical,
                wanted=list(wanted),
                project=self._project,
            )
            return {PROXY + name: float(value) for name, value in answer.items()}
        return {}

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.close()


def _hello(warm: bool = True) -> Answer:
    """Called when the process starts, so that the first model does not pay for the imports."""
    import onnxruntime
    import torch

    torch.set_num_threads(1)
    return {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__}, ()


def _count(arch: str, project: str) -> Answer:
    from edgeloop.search.nets.counting import NotCountable, count_on_meta

    try:
        info = count_on_meta(Architecture.from_json(arch), Path(project))
    except NotCountable:
        return {"counts": None}, ()
    return {"counts": _counts(info)}, ()


def _build(arch: str, target: str, project: str) -> Answer:
    architecture = Architecture.from_json(arch)
    try:
        net = build(architecture, project=Path(project))
        export_onnx(net, architecture, Path(target))
    except (MemoryError, RuntimeError, EdgeloopError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        raise OutOfMemory(arch=architecture.id, device="this machine", batch=1) from None
    return {}, ()


def _proxies(arch: str, wanted: list[str], project: str) -> Answer:
    architecture = Architecture.from_json(arch)
    net = build(architecture, project=Path(project))
    return dict(proxies_of(net, architecture.shape, architecture.classes, wanted)), ()


def _run(model: str, warm_up: int, repeats: int) -> Answer:
    import numpy as np
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    source = session.get_inputs()[0]
    feeds = {source.name: np.random.default_rng(0).random(source.shape, dtype=np.float32)}
    times = []
    for number in range(warm_up + repeats):
        began = time.perf_counter()
        session.run(None, feeds)
        if number >= warm_up:
            times.append(time.perf_counter() - began)
    return {"median_ms": 1000 * statistics.median(times)}, ()


CALLS = {"hello": _hello, "count": _count, "build": _build, "run": _run, "proxies": _proxies}
register_calls("screening", __name__, what="Screening")
