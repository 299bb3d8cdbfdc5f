"""Values that are known before any training: counts, host latency, the compiler's estimate.

A worker process builds the models and runs users' spaces. It keeps PyTorch and ONNX Runtime loaded,
which takes seconds; whatever a space does to it is an error of the candidate and not the end of the
search.
"""

from __future__ import annotations

import contextlib
import platform
import statistics
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from edgeloop._util.isolation import Answer, WorkerProcess, register_calls
from edgeloop.errors import (
    BadInput,
    EdgeloopError,
    MemoryExceeded,
    ModelFailed,
    ModelRefused,
    OutOfMemory,
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


class ModelBuilder:
    """Calls the process that builds models: started by the first call, and again after a crash."""

    def __init__(self, limit_s: float, project: Path | None = None) -> None:
        self._process = WorkerProcess()
        self._limit_s = limit_s
        self._project = str((project or Path.cwd()).resolve())

    def warm(self) -> None:
        self._process.warm("screening")

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
        """Zero-cost proxies of the untrained model, as features. None is worth a candidate: what it
        takes too long for, or cannot be computed, is left out."""
        with contextlib.suppress(ModelFailed, ModelRefused, MemoryExceeded, OutOfMemory):
            answer, _ = self._process.call(
                "screening.proxies",
                limit_s=min(self._limit_s, _PROXY_LIMIT_S),
                arch=arch.canonical,
                wanted=[name.removeprefix(PROXY) for name in wanted],
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


def _build(arch: str, target: str, project: str) -> Answer:
    found = Architecture.from_json(arch)
    try:
        export_onnx(build(found, project=Path(project)), found, Path(target))
    except (MemoryError, RuntimeError, EdgeloopError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        raise OutOfMemory(arch=found.id, device="this machine", batch=1) from None
    return {}, ()


def _proxies(arch: str, wanted: list[str], project: str) -> Answer:
    found = Architecture.from_json(arch)
    net = build(found, project=Path(project))
    return dict(proxies_of(net, found.shape, found.classes, wanted)), ()


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


CALLS = {"hello": _hello, "build": _build, "run": _run, "proxies": _proxies}
register_calls("screening", __name__, what="Screening")

UNTRAINED = "untrained.onnx"
COUNTS = ("params", "macs", "memory_bytes")
VALUES = (*COUNTS, "host_latency_ms", "chip_latency_ms", "ddr_bytes")
INTERVAL = ("chip_latency_low_ms", "chip_latency_high_ms", "chip_latency_coverage")
_UNTRAINED, _AND = "untrained net", "; "
_CHECK_S = 60.0
_PROXY_LIMIT_S = 30.0


class Screening(PoolEvaluator):
    """Counts, host latency and the compiler's estimate, in two warm processes: one that builds the
    model, one for the compiler. None of them depends on the weights, so no training is needed.

    A model that crashes a process, cannot be allocated or takes longer than `limit_s` in one step
    has a final error, and the next one gets a new process. One that needs more memory than a
    process may have gets another attempt. A model that violates one of the
    `constraints` is not examined any further. Models are kept in `folder`, by default a temporary
    one that `close` removes. `with_counts` adds counts that are not `wanted`.

    With `devices`, values of the compiler are given for each of these chips, with the chip in their
    names. Results are stored by chip: a search for another choice of chips finds what it can use.
    `proxies` are zero-cost proxies, which only a sampler sees.
    """

    cost = 0
    label = "in screening"

    def __init__(
        self,
        wanted: Collection[str] = VALUES,
        device: str = DEFAULT_CHIP,
        *,
        repeats: int = 20,
        warm_up: int = 3,
        limit_s: float = 60.0,
        folder: Path | None = None,
        project: Path | None = None,
        settings: Settings | None = None,
        constraints: Mapping[str, tuple[float, float]] | None = None,
        devices: Sequence[str] = (),
        with_counts: bool = False,
        proxies: Sequence[str] = (),
    ) -> None:
        unknown = sorted(set(wanted) - set(VALUES))
        if unknown or not wanted:
            what = f"has no value {unknown[0]!r}" if unknown else "needs at least one value"
            raise BadInput(reason=f"Screening {what}: choose from {', '.join(VALUES)}")
        values = [value for value in VALUES if value in wanted]
        self.gives = tuple(_named(values, devices))
        if repeats < 1 or warm_up < 0 or limit_s <= 0:
            raise BadInput(reason="repeats must be 1 or more, warm_up 0 or more, limit_s above 0")
        check_torch()
        check_exporter()
        super().__init__()
        self._repeats, self._warm_up = repeats, warm_up
        self._constraints = dict(constraints or {})
        self._estimators: dict[str, Estimator] = {}  # by chip, one alone without its name
        if set(CHIP).intersection(values):
            beside = INTERVAL if "chip_latency_ms" in values else ()
            self.beside = tuple(_named(beside, devices))
            settings = settings or Settings.load(project)
            opened = open_estimators(devices or (device,), settings, limit_s)
            self._estimators = opened if devices else {"": opened[device]}
        if with_counts:
            self.beside += tuple(name for name in COUNTS if name not in self.gives)
        self._proxies = tuple(PROXY + name for name in proxies)
        self.beside += self._proxies
        self._graphs = next(iter(self._estimators.values()), None) or GraphProcess(limit_s)
        self._depends = {name: self._part(name) for name in (*self.gives, *self.beside)}
        self.conditions = _joined(_UNTRAINED, *self._depends.values())
        self._temporary = tempfile.TemporaryDirectory(
            prefix="edgeloop-screen-", ignore_cleanup_errors=True
        )
        self._folder = folder or Path(self._temporary.name)
        self._builder = ModelBuilder(limit_s, project)

    @property
    def capacity(self) -> int:
        return 1

    def warm(self) -> None:
        """Load the libraries now instead of with the first architecture."""
        self._builder.warm()
        self._graphs.warm()

    def _work(self, request: Request) -> Evaluation:
        try:
            return self._screened(request)
        except MemoryExceeded as error:
            found = failure(request.arch.id, error, is_final=False)
            return replace(found, lacks_memory=True)

    def _screened(self, request: Request) -> Evaluation:
        began, arch = time.monotonic(), request.arch
        model = self._builder.build(arch, self._folder / arch.id / UNTRAINED)
        values: dict[str, float] = {}
        for more in self._steps(model, arch):
            kept = (*self.gives, *self.beside)
            values |= {name: value for name, value in more.items() if name in kept}
            if broken_constraint(values, self._constraints):
                break
        return Evaluation(arch.id, values, {UNTRAINED: model}, time.monotonic() - began)

    def _steps(self, model: Path, arch: Architecture) -> Iterator[dict[str, float]]:
        """The values, the cheapest first."""
        if set(COUNTS).intersection((*self.gives, *self.beside)):
            yield _counts(self._graphs.inspect(model))
        if "host_latency_ms" in self.gives:
            latency_ms = self._builder.host_latency_ms(model, self._warm_up, self._repeats)
            yield {"host_latency_ms": latency_ms}
        for device, estimator in self._estimators.items():
            yield _of_device(estimator, model, device)
        if self._proxies:
            yield self._builder.proxies(arch, self._proxies)

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
        if not any(self._estimators):
            return {self.conditions: values}
        found: dict[str, dict[str, float]] = {}
        for name, value in values.items():
            conditions = _joined(_UNTRAINED, self._depends[name])
            found.setdefault(conditions, {})[value_of(name)] = value
        return found

    def _part(self, name: str) -> str:
        """What a value depends on besides the architecture."""
        if name == "host_latency_ms":
            return _host_conditions(self._repeats)
        if value_of(name) in (*CHIP, *INTERVAL):
            return self._estimators[device_of(name)].conditions
        return _UNTRAINED

    def _stop(self) -> None:
        """A call in progress is interrupted; the thread sees that we are closing and ends."""

        processes = [self._builder, self._graphs, *self._estimators.values()]

        def interrupt() -> None:
            for process in processes:
                process.kill()

        self._join(interrupt)
        for process in processes:
            process.close()
        self._temporary.cleanup()


def chip_values(estimator: Estimator, model: Path) -> dict[str, float]:
    """Latency, with its interval and the traffic where these are known. A latency that leaves out
    steps would make a model look faster than all others, so it is an error of the candidate."""
    if not isinstance(estimator, EstimatesIntervals):
        return {"chip_latency_ms": estimator.latency_ms(model)}
    found = estimator.estimate(model)
    if found.missing_ops:
        reason = f"its latency is not known ({found.basis}); measure it with farm_latency_ms"
        raise ModelFailed(reason=reason)
    values = (1000 * found.seconds, found.low_ms, found.high_ms, found.coverage, found.ddr_bytes)
    named = zip(("chip_latency_ms", *INTERVAL, "ddr_bytes"), values, strict=True)
    return {name: value for name, value in named if value is not None}


def _counts(info: GraphInfo) -> dict[str, float]:
    counts = {"params": float(info.params), "macs": float(info.macs)}
    if info.memory is not None:
        counts["memory_bytes"] = float(info.memory.weights_8bit + info.memory.activations_8bit)
    return counts


def open_estimators(
    devices: Sequence[str], settings: Settings, limit_s: float
) -> dict[str, Estimator]:
    """One per device, in this order; those of one platform may share work."""
    owners = {device: platform_of(device) for device in devices}
    found: dict[str, Estimator] = {}
    for owner in {one.name: one for one in owners.values()}.values():
        own = [device for device in devices if owners[device].name == owner.name]
        found |= owner.open_estimators(own, settings, limit_s)
    return {device: found[device] for device in devices}


def check_devices(config: SearchConfig, settings: Settings) -> None:
    """Said before anything is searched: a chip that nobody knows or can estimate, or one that is
    named twice in different words."""
    values = [value for value in map(value_of, config.wanted) if value in CHIP]
    if not values:
        return
    named = {one.value: one.options for one in config.objectives if one.value in CHIP}
    value = next((name for name, options in named.items() if "devices" in options), values[0])
    path = ("objectives", value, "devices" if config.devices else "device")
    known: dict[str, str] = {}
    for device in config.chips:
        try:
            [estimator] = open_estimators([device], settings, _CHECK_S).values()
        except BadInput as error:
            raise config.origin.wrong(path, f"cannot be used: {error}") from None
        estimator.close()
        other = known.setdefault(estimator.conditions, device)
        if other != device:
            reason = f"names {other} and {device}, which are the same chip: keep one of them"
            raise config.origin.wrong(path, reason)


def _of_device(estimator: Estimator, model: Path, device: str) -> dict[str, float]:
    try:
        values = chip_values(estimator, model)
    except ModelFailed as error:
        if not device:
            raise
        reason = error.fields.get("reason", error)
        raise ModelFailed(reason=f"for {device}: {reason}") from None
    return {on_device(name, device): value for name, value in values.items()}


def _named(values: Iterable[str], devices: Sequence[str]) -> Iterator[str]:
    """Each value, or that of each chip."""
    for value in values:
        if devices and value in (*CHIP, *INTERVAL):
            yield from (on_device(value, device) for device in devices)
        else:
            yield value


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
