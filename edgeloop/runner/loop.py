"""The runner: a worker for this machine's own stages and one a device, until told to stop."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType

from edgeloop._util.files import kept_in_use
from edgeloop._util.system import announced_memory, limit_heaps
from edgeloop.errors import BadInput, DeviceUnavailable, StoreError
from edgeloop.models.columns import is_true, matches_any
from edgeloop.models.plan import Plan
from edgeloop.models.runners import Registry
from edgeloop.platforms import (
    DEFAULT_PLATFORM,
    DEFAULT_PRECISION,
    AttributesLatency,
    Device,
    Precision,
    PrecisionPlan,
    SharedDevice,
    check_mixes,
    converter_of,
    device_type,
    find_platform,
    named_devices,
    open_device,
    open_toolchain,
    platform_of,
)
from edgeloop.runner.coordinator import (
    IDLE_WORK_S,
    Backoff,
    Coordinator,
    DeviceSessions,
    IdleWork,
    ModelFilter,
)
from edgeloop.runner.presence import HealthBeat, Presence, RunnerEvent, drain_summary
from edgeloop.runner.resources import DEFAULT_CAP_BYTES, CpuPool, NoCpusError, WorkFolder
from edgeloop.runner.stages.base import CachingToolchain, Equipment, Sizes
from edgeloop.runner.stages.recovery import check_toolchain
from edgeloop.runner.worker import Worker
from edgeloop.settings import Settings, cache_folder
from edgeloop.tasks import Task, TensorsTask, check_data, open_task
from edgeloop.workspace import Workspace

HOST = "host"  # the device that is always there
REMEMBERED_S = 30.0
MOST_REMEMBERED = 10_000
IDLE_WORK_GRACE_S = 5.0
SAID_S = 600.0


@dataclass(frozen=True)
class RunnerOptions:
    """What `edgeloop runner` can be told."""

    devices: tuple[str, ...] = ()
    dataset: Path | None = None
    calibration: Path | None = None  # images or tensors; None: the dataset's, or random ones
    task: str = ""  # empty: the settings', and models that do not fit it are compared with float
    drain: bool = False
    once: bool = False
    subset: tuple[str, ...] = ()  # globs of names; none: all models
    benchmark_only: bool = False
    quantize: bool = True
    toolchain: str = ""
    precision: Precision | PrecisionPlan = DEFAULT_PRECISION
    sizes: Sizes = field(default_factory=Sizes)
    workdir: Path | None = None
    cap_bytes: int = DEFAULT_CAP_BYTES
    grace_s: float = 30.0
    idle_s: float | None = None  # end when nothing was found for so long
    cpus: int = 0  # to reserve; 0: none
    health: Path | None = None  # the file for probes
    idle_work_s: float = IDLE_WORK_S  # `on_idle` is called at most so often
    layers: bool = False  # also find the cost of every layer
    recover: tuple[str, ...] = ()  # steps of recovery, as `parse_steps` gives them


@dataclass(frozen=True)
class RunTotals:
    """How many stages a runner did, how many failed for a reason in the model, and how many it gave
    back because it could not do them. `was_stopped`: by a signal; `was_interrupted`: by that of
    Ctrl-C. `unreachable`: how many it left alone because a symbolic link is in the way to their
    files."""

    done: int = 0
    failed: int = 0
    released: int = 0
    was_stopped: bool = False
    unreachable: int = 0
    was_interrupted: bool = False


class _Stopping(threading.Event):
    """Set by the first signal; `is_interrupted` where that was Ctrl-C."""

    is_interrupted = False


class _Once:
    """What keeps a runner from working is said once, not every time that it tries again; and again
    after a while, for those who look at the end of a log."""

    def __init__(self, report: Callable[[RunnerEvent], None]) -> None:
        self._report = report
        self._said: dict[str, float] = {}

    def __call__(self, event: RunnerEvent) -> None:
        if event.state == "note" and not event.model:
            now = time.monotonic()
            self._said = {text: until for text, until in self._said.items() if until > now}
            if event.text in self._said:
                return
            self._said[event.text] = now + SAID_S
        self._report(event)


def run(
    workspace: Workspace,
    options: RunnerOptions,
    report: Callable[[RunnerEvent], None],
    on_idle: Callable[[], None] | None = None,
) -> RunTotals:
    """Work until stopped, drained or done once; how many stages ended in which way.

    The first SIGTERM or Ctrl-C lets stages under way finish for a while; then they are given back.
    `on_idle` is called, in a thread of its own, now and then while there is nothing to do; it may
    be interrupted at any point, and its errors are only reported.
    """
    limit_heaps()
    stopping = _Stopping()
    report = _Once(report)
    with ExitStack() as opened:
        settings = workspace.settings
        opened.enter_context(announced_memory(settings.native_memory))
        health = opened.enter_context(HealthBeat(options.health, settings.stuck_seconds))
        for folder in _cached(options):
            opened.enter_context(kept_in_use(folder))
        cpus = CpuPool()
        try:
            _reserve(cpus, options, stopping, report, opened)
        except NoCpusError:
            return RunTotals(was_stopped=True, was_interrupted=stopping.is_interrupted)
        shared = settings.project / ".edgeloop/work"  # by all runners of a project
        work = WorkFolder(options.workdir or shared, options.cap_bytes)
        if options.dataset is None:
            report(RunnerEvent("note", text=_without_dataset(options)))
        task = _task(options, settings, work)
        _check_data(task, options)
        crew = _crew(workspace, options, task, work, cpus, stopping, report, opened)
        toolchain = crew[0].equipment.toolchain.name
        waits = not (options.once or options.drain)
        presence = Presence(workspace, crew, toolchain, options.subset, report, waits)
        health.watch(crew, lambda: "it is stopping" if stopping.is_set() else presence.not_ready())
        idle_work = IdleWork(
            on_idle, lambda text: report(RunnerEvent("note", text=text)), options.idle_work_s
        )
        with _signals(stopping), presence:
            _run_all(crew, options, stopping, idle_work)
        ended = sum((worker.ended for worker in crew), Counter[str]())
        if stopping.is_interrupted or (options.drain and not stopping.is_set()):
            can = {capability for worker in crew for capability in worker.capabilities}
            with suppress(StoreError) if stopping.is_set() else nullcontext():
                summary = drain_summary(workspace, can, options.subset)
                report(RunnerEvent("drained", text=str(summary), summary=summary))
        endings = (ended["done"], ended["failed"], ended["released"])
        unreachable = ended["unreachable"]
        return RunTotals(*endings, stopping.is_set(), unreachable, stopping.is_interrupted)


def _cached(options: RunnerOptions) -> Iterator[Path]:
    """Datasets in this machine's cache that the runner reads until it ends."""
    cache = (cache_folder() / "datasets").resolve()
    for path in (options.dataset, options.calibration):
        if path is not None and cache in path.resolve().parents:
            yield cache / path.resolve().relative_to(cache).parts[0]


def _reserve(
    cpus: CpuPool,
    options: RunnerOptions,
    stopping: _Stopping,
    report: Callable[[RunnerEvent], None],
    opened: ExitStack,
) -> None:
    """Before anything is opened: what is started later inherits the CPUs."""
    if not options.cpus:
        return

    def note(text: str) -> None:
        report(RunnerEvent("note", text=text))

    with _signals(stopping):
        opened.enter_context(cpus.reserve(options.cpus, stopping, note, options.idle_s))


def _crew(
    workspace: Workspace,
    options: RunnerOptions,
    task: Task,
    folder: WorkFolder,
    cpus: CpuPool,
    stopping: threading.Event,
    report: Callable[[RunnerEvent], None],
    opened: ExitStack,
) -> list[Worker]:
    """The host does the machine's own stages. It is measured as a device itself only where it is
    the only one: its times must not be mixed with a chip's."""
    settings = workspace.settings
    asked = [each for name in options.devices for each in named_devices(name, settings)]
    names = list(dict.fromkeys(asked))
    chosen = chosen_toolchain(names, options, workspace)
    toolchain = CachingToolchain(open_toolchain(chosen, settings))
    opened.callback(toolchain.close)
    if options.quantize:
        find_platform(chosen).check_toolchain(settings)
    if isinstance(options.precision, PrecisionPlan):
        check_mixes(toolchain)
    others = [name for name in names if name != HOST]
    for name in others:
        platform_of(name).check_benchmark(name, settings)
    devices = [_opened(opened, open_device(name, settings)) for name in others]
    host = _opened(opened, open_device(HOST, settings))
    for device in devices:
        device.probe()
        if isinstance(device, SharedDevice):
            device.acquire()
    chips = tuple(dict.fromkeys(device.chip for device in devices if device.chip))
    given = TensorsTask(options.calibration) if options.calibration else None
    fallback = None if options.task else given or TensorsTask()
    if options.recover and options.quantize:
        check_toolchain(toolchain, toolchain.name)
    base = Equipment(
        *(toolchain, host, task, host, chips, options.precision, options.sizes, given, fallback),
        recover=options.recover,
        judge=next((each for each in devices if not isinstance(each, SharedDevice)), host),
        attributor=_attributor(devices) if options.layers else None,
    )
    asked_for: Callable[[str], bool] = partial(matches_any, patterns=options.subset)
    if not (options.dataset or options.calibration or options.task or options.benchmark_only):
        asked_for = UnscoredModels(workspace, asked_for)
    only = ModelFilter(asked_for)

    def worker(
        name: str,
        equipment: Equipment,
        can: tuple[str, ...],
        backoff: Backoff | None = None,
        hand: int | None = None,
        sessions: DeviceSessions | None = None,
    ) -> Worker:
        node = workspace.settings.node
        return Worker(
            f"{node}/{name}" if name else f"{node}:runner",  # its bare name is Archai's lock
            workspace,
            equipment,
            folder,
            can,
            only,
            stopping,
            report,
            backoff,
            hand,
            name,
            sessions,
            cpus,
        )

    crew = [worker("", base, _host_capabilities(workspace.plan, options))]  # the machine itself
    if HOST in names and not devices:
        devices = [host]
    for device in devices:
        can = _device_capabilities(workspace.plan, device, toolchain.name, options)
        backoff = Backoff(workspace.settings.board_patience_seconds)
        shared, sessions = isinstance(device, SharedDevice), DeviceSessions()
        for number, session in enumerate(_sessions(device)):
            equipment, hand = replace(base, device=session), number if shared else None
            crew.append(worker(device.name, equipment, can, backoff, hand, sessions))
    return crew


def _attributor(devices: list[Device]) -> AttributesLatency:
    for device in devices:
        if isinstance(device, AttributesLatency):
            return device
    reason = "--layers needs a device that can tell the cost of layers, such as --device htp:CHIP"
    raise BadInput(reason=reason)


def chosen_toolchain(names: list[str], options: RunnerOptions, workspace: Workspace) -> str:
    """What was asked for, else what the devices run. A model is converted once, so all devices of
    a runner must take the same files."""
    needed = {name: converter_of(name) for name in names}
    chosen = options.toolchain or workspace.settings.toolchain
    chosen = chosen or next(iter(needed.values()), DEFAULT_PLATFORM)
    for name, toolchain in needed.items():
        if toolchain == chosen:
            continue
        other = next((other for other in names if needed[other] == chosen), "")
        if not other:
            raise BadInput(reason=f"{name} needs the toolchain {toolchain}, not {chosen!r}")
        reason = (
            f"{name} runs models of the toolchain {toolchain}, and {other} those of {chosen}: "
            "start a runner for each, on separate experiments"
        )
        raise BadInput(reason=reason)
    return chosen


def _sessions(device: Device) -> list[Device]:
    if not isinstance(device, SharedDevice):
        return [device]
    return [device, *(device.open_session() for _ in range(device.sessions - 1))]


def _task(options: RunnerOptions, settings: Settings, folder: WorkFolder) -> Task:
    """Without a dataset nothing can be scored; what was asked for by name says so."""
    name = options.task or settings.task
    if name == TensorsTask.name or (options.dataset is None and not options.task):
        return TensorsTask(options.calibration or options.dataset)
    if options.dataset is None:
        if options.benchmark_only:
            return TensorsTask(options.calibration)
        raise BadInput(
            reason=f"the task {name} needs a dataset: --dataset FOLDER, or INPUT_DATASET in the "
            "environment; the task tensors needs none"
        )
    return open_task(name, options.dataset, folder.cache)


def _check_data(task: Task, options: RunnerOptions) -> None:
    """Before the first claim: a machine that lacks its data takes no work."""
    if options.benchmark_only and not options.quantize:
        return  # it needs none
    check_data(task, with_test=not options.benchmark_only)
    if options.calibration is not None:
        TensorsTask(options.calibration).check()


def _without_dataset(options: RunnerOptions) -> str:
    source = f"inputs of {options.calibration}" if options.calibration else "random inputs"
    remedy = "--dataset FOLDER, or INPUT_DATASET in the environment, adds accuracy"
    if options.benchmark_only:
        return f"No dataset: latency only, calibrated on {source}; {remedy}."
    return (
        f"No dataset: models are calibrated on {source} and compared with the float model; "
        f"{remedy}."
    )


class UnscoredModels:
    """Which models a runner takes that has only random inputs to calibrate on: all, unless a live
    runner of the experiment has a dataset and could score them; then those that were uploaded with
    --benchmark-only. Remembered for a while, since a claim asks about every model that waits."""

    def __init__(self, workspace: Workspace, only: Callable[[str], bool]) -> None:
        self._workspace, self._only = workspace, only
        self._registry = Registry(workspace.store)
        self._known: dict[str, tuple[float, bool]] = {}

    def __call__(self, model: str) -> bool:
        if not self._only(model):
            return False
        return not self._remembered("", self._is_scored) or self._remembered(model, self._is_short)

    def _remembered(self, key: str, ask: Callable[[str], bool]) -> bool:
        asked_at, answer = self._known.get(key, (-math.inf, False))
        if time.monotonic() - asked_at > REMEMBERED_S:
            answer = ask(key)
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[key] = (time.monotonic(), answer)
        return answer

    def _is_scored(self, _: str) -> bool:
        runners = self._registry.live(self._workspace.experiment)
        return any(runner.task not in ("", TensorsTask.name) for runner in runners)

    def _is_short(self, model: str) -> bool:
        row = self._workspace.store.models(self._workspace.experiment).get(model)
        return row is not None and is_true(row.values.get("benchmark_only"))


def _host_capabilities(plan: Plan, options: RunnerOptions) -> tuple[str, ...]:
    every = plan.capabilities(on_device=False, benchmark_only=options.benchmark_only)
    return tuple(one for one in every if options.quantize or one != "quantize")


def _device_capabilities(
    plan: Plan, device: Device, toolchain: str, options: RunnerOptions
) -> tuple[str, ...]:
    """Models without a device yet, those of this type of device, those that an older version pinned
    to this very board, and those that another tool converted for this toolchain."""
    kinds = plan.capabilities(on_device=True, benchmark_only=options.benchmark_only)
    names = dict.fromkeys((device_type(device), device.name, toolchain))
    return (*kinds, *(f"{kind}@{of}" for of in names for kind in kinds))


def _run_all(
    crew: list[Worker], options: RunnerOptions, stopping: threading.Event, idle_work: IdleWork
) -> None:
    if options.once:
        if not any(worker.run_once() for worker in crew):
            for trouble in (worker.trouble for worker in crew):
                if trouble is not None:
                    raise trouble
        return
    first: dict[object, list[Worker]] = {worker: _before(worker, crew) for worker in crew}
    coordinator = Coordinator(len(crew), first, options.idle_s, idle_work.offer)
    errors: list[Exception] = []

    def work(worker: Worker) -> None:
        try:
            worker.run(coordinator, options.drain)
        except DeviceUnavailable as error:  # the others go on; said at the end
            errors.append(error)
            coordinator.leave()
        except Exception as error:  # noqa: BLE001 - raised again by the main thread
            errors.insert(0, error)
            stopping.set()

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in crew]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not stopping.is_set():
        stopping.wait(0.05)
    _end(threads, crew, options.grace_s)
    idle_work.end(min(options.grace_s, IDLE_WORK_GRACE_S))
    if errors:
        raise errors[0]


def _end(threads: list[threading.Thread], crew: list[Worker], grace_s: float) -> None:
    """What is under way may finish for a while; then it is given back. What only waits for its
    turn on a board is given back at once."""
    for worker in crew:
        worker.stop()
    deadline = time.monotonic() + grace_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for thread, worker in zip(threads, crew, strict=True):
        if thread.is_alive():
            worker.give_up()


def _before(worker: Worker, crew: list[Worker]) -> list[Worker]:
    """Each board's first hand looks for work before any other board's second one does."""
    if worker.hand is None:
        return []
    others = [other for other in crew if other.device != worker.device]
    return [other for other in others if other.hand is not None and other.hand < worker.hand]


def _opened(opened: ExitStack, device: Device) -> Device:
    opened.callback(device.close)
    return device


@contextmanager
def _signals(stopping: _Stopping) -> Iterator[None]:
    """The first signal asks, the second insists."""

    def stop(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            raise SystemExit(128 + number)
        stopping.is_interrupted = number == signal.SIGINT
        stopping.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
