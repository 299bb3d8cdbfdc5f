"""The runner: one worker for this machine's own stages and one per device session, until told to
stop.

`run` reads from top to bottom: reserve CPUs, open toolchain and devices, register, work, end.
SIGTERM and Ctrl-C only set an event; `_end` then gives stages under way their grace time and
returns the rest to the queue.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType

from edgeloop._util.files import kept_in_use
from edgeloop._util.system import announced_memory, limit_heaps
from edgeloop.errors import (
    BadInput,
    DatasetDamaged,
    DeviceUnavailable,
    EdgeloopError,
    LocalFileError,
    NoSuchDataset,
    StoreError,
)
from edgeloop.models.catalog import ExperimentSettings, read_settings, register_devices
from edgeloop.models.columns import is_true, matches_any
from edgeloop.models.plan import CONVERTS, DeviceTarget, Plan, Targets
from edgeloop.models.runners import Registry
from edgeloop.platforms import (
    DEFAULT_PLATFORM,
    DEFAULT_PRECISION,
    AttributesLatency,
    Device,
    Precision,
    PrecisionPlan,
    SharedDevice,
    Toolchain,
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
from edgeloop.runner.worker import RunnerContext, Worker
from edgeloop.settings import Settings, cache_folder
from edgeloop.tasks import Task, TensorsTask, check_data, open_task
from edgeloop.workspace import Workspace

HOST = "host"  # the device that is always there
REMEMBERED_S = 30.0
MOST_REMEMBERED = 10_000
IDLE_WORK_GRACE_S = 5.0
GIVE_UP_S = 5.0  # to return stages to the queue, after the grace time
REPEATED_S = 600.0


@dataclass(frozen=True)
class RunnerOptions:
    """The options of `edgeloop runner`."""

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
    idle_s: float | None = None  # end after so long without work
    cpus: int = 0  # to reserve; 0: none
    health: Path | None = None  # the file for probes
    idle_work_s: float = IDLE_WORK_S  # `on_idle` is called at most so often
    layers: bool = False  # also measure or estimate every layer
    recover: tuple[str, ...] = ()  # steps of recovery, as `parse_steps` gives them


@dataclass(frozen=True)
class RunTotals:
    """How many stages a runner did, how many failed for a reason in the model, and how many it
    released because it could not do them. `was_stopped`: by a signal; `was_interrupted`: by that of
    Ctrl-C. `unreachable`: how many it left alone because a symbolic link is in the way to their
    files. `has_abandoned`: a stage did not end within the grace time, and its threads still run."""

    done: int = 0
    failed: int = 0
    released: int = 0
    was_stopped: bool = False
    unreachable: int = 0
    was_interrupted: bool = False
    has_abandoned: bool = False

    def plus(self, later: RunTotals) -> RunTotals:
        """Of two crews of one runner, one after the other."""
        return replace(
            later,
            done=self.done + later.done,
            failed=self.failed + later.failed,
            released=self.released + later.released,
            unreachable=self.unreachable + later.unreachable,
        )


def run(
    workspace: Workspace,
    options: RunnerOptions,
    report: Callable[[RunnerEvent], None],
    on_idle: Callable[[], None] | None = None,
) -> RunTotals:
    """Work until stopped, drained or done once.

    The first SIGTERM or Ctrl-C lets stages under way finish for a while; then they return to the
    queue. `on_idle` is called now and then while there is nothing to do, in a thread of its own; it
    may be interrupted at any point, and its errors are only reported.
    """
    limit_heaps()
    settings = workspace.settings
    stopping = _Stopping()
    report = _WithoutRepetition(report)

    def note(text: str) -> None:
        report(RunnerEvent("note", text=text))

    with ExitStack() as opened:
        opened.enter_context(announced_memory(settings.native_memory))
        health = opened.enter_context(HealthBeat(options.health, settings.stuck_seconds))
        cpus = CpuPool()
        if options.cpus:
            # Before anything is opened: processes that are started later inherit the CPUs.
            try:
                with _signals(stopping):
                    opened.enter_context(cpus.reserve(options.cpus, stopping, note, options.idle_s))
            except NoCpusError:
                return RunTotals(was_stopped=True, was_interrupted=stopping.is_interrupted)
        shared_folder = settings.project / ".edgeloop/work"  # by all runners of a project
        work = WorkFolder(options.workdir or shared_folder, options.cap_bytes)
        context = RunnerContext(workspace, work, threading.Event(), report, cpus=cpus)
        totals = RunTotals()
        while True:
            served, has_changed = _serve(context, options, stopping, health, on_idle)
            totals = totals.plus(served)
            if not has_changed:
                return totals
            note("The experiment asks for something else now: starting again with it.")
            context = replace(context, stopping=threading.Event())


def _serve(
    context: RunnerContext,
    options: RunnerOptions,
    stopping: _Stopping,
    health: HealthBeat,
    on_idle: Callable[[], None] | None,
) -> tuple[RunTotals, bool]:
    """Work with what the experiment asks for now. The second value: whether it asks for something
    else, so that all is to be opened again; stages under way have ended then."""
    workspace, report = context.workspace, context.report

    def note(text: str) -> None:
        report(RunnerEvent("note", text=text))

    asked = read_settings(workspace.store, workspace.experiment)
    with ExitStack() as opened:
        options, lacks = _with_data(workspace, options, asked, note)
        for folder in _cached_datasets(options):
            opened.enter_context(kept_in_use(folder))
        if lacks:
            note(f"{lacks} Conversion and accuracy are left to others.")
        elif options.dataset is None:
            note(_without_dataset(options, asked))
        task = TensorsTask() if lacks else _open_task(options, workspace.settings, context.folder)
        if not lacks:
            _check_data(task, options)
        only, lacks_data = _models_to_take(workspace, options, asked)
        context = replace(context, only=only)
        targets = asked.for_models()
        opened_crew = _open_crew(context, options, task, opened, targets, has_data=not lacks)
        crew = opened_crew.workers
        _register(workspace, opened_crew, note)
        waits = not (options.once or options.drain)
        presence = Presence(
            workspace,
            crew,
            options.subset,
            report,
            is_outdated=lambda now: _has_changed(asked, now, opened_crew.known),
            lacks_data=lacks_data,
            outdated=context.outdated,
            says_waiting=waits,
        )
        health.watch(crew, lambda: "it is stopping" if stopping.is_set() else presence.not_ready())
        idle_work = IdleWork(on_idle, note, options.idle_work_s)
        # In the registry until the end: the runner is shown while it gives its stages back.
        with _signals(stopping), presence:
            has_abandoned = _run_all(crew, options, stopping, idle_work, context.stopping, presence)
        has_changed = presence.has_changed.is_set() and not stopping.is_set()
        if stopping.is_interrupted or (options.drain and not stopping.is_set() and not has_changed):
            can = {capability for worker in crew for capability in worker.capabilities}
            cannot = {f"{CONVERTS}@{name}" for name in opened_crew.cannot}
            if lacks and options.quantize:
                cannot |= {CONVERTS, *(f"{CONVERTS}@{name}" for name in opened_crew.converters)}
            with suppress(StoreError) if stopping.is_set() else nullcontext():
                if reason := lacks_data():
                    note(f"Models were left: {reason}.")

                def is_ours(model: str) -> bool:
                    return bool(lacks or reason) or only(model)

                summary = drain_summary(workspace, can, options.subset, cannot, is_ours)
                report(RunnerEvent("drained", text=str(summary), summary=summary))
        return _totals(crew, stopping, has_abandoned), has_changed


def _has_changed(
    asked: ExperimentSettings, now: ExperimentSettings, known: frozenset[str] | None
) -> bool:
    """Whether the experiment names other data than it `asked` for, or needs a conversion with a
    toolchain that was not looked at."""
    is_new = known is not None and not known.issuperset(now.for_models().toolchains)
    return is_new or (now.dataset, now.task) != (asked.dataset, asked.task)


def _register(workspace: Workspace, crew: Crew, note: Callable[[str], None]) -> None:
    """Tell the experiment what the devices here take, so that quantizers convert for them; and say
    which of the conversions that it asks for this machine leaves to others."""
    store, experiment = workspace.store, workspace.experiment
    before = read_settings(store, experiment)
    settings = register_devices(store, experiment, crew.devices) if crew.devices else before
    targets = settings.for_models()
    if settings != before:
        workspace.catalog.retarget(targets)
    for toolchain in targets.toolchains:
        if toolchain in crew.cannot:
            note(f"Conversion with {toolchain} is left to others: {crew.cannot[toolchain]}")


def _totals(crew: list[Worker], stopping: _Stopping, has_abandoned: bool) -> RunTotals:
    ended = sum((worker.ended for worker in crew), Counter[str]())
    return RunTotals(
        done=ended["done"],
        failed=ended["failed"],
        released=ended["released"],
        was_stopped=stopping.is_set(),
        unreachable=ended["unreachable"],
        was_interrupted=stopping.is_interrupted,
        has_abandoned=has_abandoned,
    )


# Work, and its end.


class _Stopping(threading.Event):
    """Set by the first signal; `is_interrupted` where that was Ctrl-C."""

    is_interrupted = False


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


def _run_all(
    crew: list[Worker],
    options: RunnerOptions,
    stopping: _Stopping,
    idle_work: IdleWork,
    ending: threading.Event,
    presence: Presence,
) -> bool:
    """Whether stages were abandoned: they did not end within the grace time. `ending` is what the
    workers look at: it is set by a signal, and when the experiment asks for other data."""
    if options.once:
        if not any(worker.run_once() for worker in _most_urgent_first(crew)):
            for trouble in (worker.trouble for worker in crew):
                if trouble is not None:
                    raise trouble
        return False
    first: dict[object, list[Worker]] = {worker: _looking_before(worker, crew) for worker in crew}
    coordinator = Coordinator(len(crew), first, options.idle_s, idle_work.offer)
    errors: list[Exception] = []

    def work(worker: Worker) -> None:
        try:
            worker.run(coordinator, options.drain)
        except DeviceUnavailable as error:
            # One board is gone; the workers of other devices continue. Raised at the end.
            errors.append(error)
            coordinator.leave()
        except Exception as error:  # noqa: BLE001 - raised again by the main thread
            errors.insert(0, error)
            ending.set()

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in crew]
    for thread in threads:
        thread.start()
    # The main thread only waits, in short steps: that is where Python runs signal handlers.
    while any(thread.is_alive() for thread in threads) and not stopping.is_set():
        if presence.has_changed.is_set():
            ending.set()  # what is under way may end
        elif ending.is_set():
            break
        stopping.wait(0.05)
    ending.set()
    has_abandoned = _end(threads, crew, options.grace_s)
    idle_work.end(min(options.grace_s, IDLE_WORK_GRACE_S))
    if errors:
        raise errors[0]
    return has_abandoned


def _most_urgent_first(crew: list[Worker]) -> list[Worker]:
    """Workers with nothing to claim come last: a thorough look may still find them something."""
    ranks = {id(worker): worker.best_rank for worker in crew}
    return sorted(crew, key=lambda worker: (ranks[id(worker)] is None, ranks[id(worker)] or ""))


def _end(threads: list[threading.Thread], crew: list[Worker], grace_s: float) -> bool:
    """Stages that only wait for their turn on a board return to the queue at once. Those under way
    may finish within the grace time, then return to the queue, too. Whether there were any."""
    for worker in crew:
        worker.stop()
    deadline = time.monotonic() + grace_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    # Daemon threads die with the process. Their leases are released first, so that another runner
    # need not wait until they expire; at once, and no longer than a container has for it.
    late = [worker for thread, worker in zip(threads, crew, strict=True) if thread.is_alive()]
    giving_up = [threading.Thread(target=worker.give_up, daemon=True) for worker in late]
    for thread in giving_up:
        thread.start()
    deadline = time.monotonic() + GIVE_UP_S
    for thread in giving_up:
        thread.join(max(0.0, deadline - time.monotonic()))
    return bool(late)


def _looking_before(worker: Worker, crew: list[Worker]) -> list[Worker]:
    """The first hand of each board looks for work before the second hand of any other."""
    if worker.hand is None:
        return []
    others = [each for each in crew if each.equipment.device.name != worker.equipment.device.name]
    return [other for other in others if other.hand is not None and other.hand < worker.hand]


class _WithoutRepetition:
    """Reports what keeps a runner from working once, not every time that it tries again; and again
    after a while, for readers of the end of a log."""

    def __init__(self, report: Callable[[RunnerEvent], None]) -> None:
        self._report = report
        self._until: dict[str, float] = {}

    def __call__(self, event: RunnerEvent) -> None:
        if event.state == "note" and not event.model:
            now = time.monotonic()
            self._until = {text: until for text, until in self._until.items() if until > now}
            if event.text in self._until:
                return
            self._until[event.text] = now + REPEATED_S
        self._report(event)


# The crew: toolchains, devices and the workers for them.


@dataclass(frozen=True)
class Crew:
    """The workers of a runner, that of the machine itself first. `devices` are what it serves, and
    `cannot` says why this machine does not convert with a toolchain. `known` are the toolchains
    that were looked at; None: no others matter to this runner."""

    workers: list[Worker]
    devices: tuple[DeviceTarget, ...]
    converters: Collection[str]
    cannot: Mapping[str, str]
    known: frozenset[str] | None


def _open_crew(
    context: RunnerContext,
    options: RunnerOptions,
    task: Task,
    opened: ExitStack,
    targets: Targets,
    has_data: bool = True,
) -> Crew:
    """The host does the machine's own stages. It is measured as a device itself only where it is
    the only one: its times must not be mixed with a chip's."""
    settings = context.workspace.settings
    expanded = (each for name in options.devices for each in named_devices(name, settings))
    names = list(dict.fromkeys(expanded))
    served = [name for name in names if name != HOST] or names
    chosen = _chosen_toolchain(served, options, settings)
    asked = targets.toolchains
    converters, cannot = _open_converters(served, chosen, asked, options, settings, opened)
    devices, host = _open_devices(names, settings, opened)
    if HOST in names and not devices:
        devices = [host]
    equipment = _equipment(options, task, converters, host, devices)
    equipment = replace(equipment, dataset=targets.dataset)
    plan = context.workspace.plan
    able = [name for name in converters if name not in cannot]
    own = _host_capabilities(plan, able, options) if has_data else ()
    workers = [Worker(context, equipment, own)]
    for device in devices:
        sessions = DeviceSessions(Backoff(settings.board_patience_seconds))
        toolchain = converters[chosen or converter_of(device.name)]
        for hand, session in enumerate(_sessions_of(device)):
            worker = Worker(
                context,
                replace(equipment, device=session, toolchain=toolchain),
                _device_capabilities(plan, device, toolchain.name, options, has_data),
                served_device=device.name,
                hand=hand if isinstance(device, SharedDevice) else None,
                sessions=sessions,
            )
            workers.append(worker)
    served_types = (
        DeviceTarget(device_type(each), chosen or converter_of(each.name), each.chip)
        for each in devices
    )
    known = None if chosen or not options.quantize else frozenset({*converters, *cannot})
    return Crew(workers, tuple(dict.fromkeys(served_types)), able, cannot, known)


def _chosen_toolchain(names: list[str], options: RunnerOptions, settings: Settings) -> str:
    """The one toolchain that was asked for; empty: what devices and models need."""
    chosen = options.toolchain or settings.toolchain
    for name in names:
        if chosen and converter_of(name) != chosen:
            reason = f"{name} needs the toolchain {converter_of(name)}, not {chosen!r}"
            raise BadInput(reason=reason)
    return chosen


def _open_converters(
    names: list[str],
    chosen: str,
    asked: Sequence[str],
    options: RunnerOptions,
    settings: Settings,
    opened: ExitStack,
) -> tuple[dict[str, CachingToolchain], dict[str, str]]:
    """The toolchains of this machine, by name: the one that was chosen; else those of its devices
    and those that the experiment asks for. And why it cannot convert with some of them."""
    needed = [converter_of(name) for name in names] + list(asked if options.quantize else ())
    wanted = [chosen] if chosen else list(dict.fromkeys(needed)) or [DEFAULT_PLATFORM]
    converters: dict[str, CachingToolchain] = {}
    cannot: dict[str, str] = {}
    errors: list[EdgeloopError] = []

    def open_one(name: str) -> None:
        try:
            toolchain = CachingToolchain(open_toolchain(name, settings))
            opened.callback(toolchain.close)
            converters[name] = toolchain
            if options.quantize:
                _check_conversion(toolchain, options, settings)
        except EdgeloopError as error:
            if name in needed[: len(names)] and name not in converters:
                raise  # what a device runs cannot even be read
            cannot[name] = str(error)
            errors.append(error)

    for name in wanted:
        open_one(name)
    if options.quantize and chosen in cannot:
        raise errors[0]  # nothing else may convert in its place
    if not converters and DEFAULT_PLATFORM not in cannot:
        open_one(DEFAULT_PLATFORM)  # float models are read with it
    if errors and not names and not converters.keys() - cannot.keys():
        raise errors[0]
    if errors and (chosen or options.recover) and not converters.keys() - cannot.keys():
        raise errors[0]
    return converters, cannot


def _check_conversion(
    toolchain: CachingToolchain, options: RunnerOptions, settings: Settings
) -> None:
    """Raises where this machine, or the toolchain, cannot convert as the options say."""
    find_platform(toolchain.name).check_toolchain(settings)
    if isinstance(options.precision, PrecisionPlan):
        check_mixes(toolchain)
    if options.recover:
        check_toolchain(toolchain, toolchain.name)


def _open_devices(
    names: list[str], settings: Settings, opened: ExitStack
) -> tuple[list[Device], Device]:
    """The devices that were named, and the host."""
    others = [name for name in names if name != HOST]
    for name in others:
        platform_of(name).check_benchmark(name, settings)

    def open_one(name: str) -> Device:
        device = open_device(name, settings)
        opened.callback(device.close)
        return device

    devices = [open_one(name) for name in others]
    host = open_one(HOST)
    for device in devices:
        device.probe()
        if isinstance(device, SharedDevice):
            device.acquire()
    return devices, host


def _equipment(
    options: RunnerOptions,
    task: Task,
    converters: Mapping[str, Toolchain],
    host: Device,
    devices: list[Device],
) -> Equipment:
    """That of the machine's own worker."""
    toolchain = next(iter(converters.values()))
    calibration = TensorsTask(options.calibration) if options.calibration else None
    return Equipment(
        toolchain=toolchain,
        host=host,
        task=task,
        device=host,
        converters=converters,
        chips=tuple(
            dict.fromkeys(
                device.chip
                for device in devices
                if device.chip and converter_of(device.name) == toolchain.name
            )
        ),
        precision=options.precision,
        sizes=options.sizes,
        calibration=calibration,
        fallback=None if options.task else calibration or TensorsTask(),
        recover=options.recover,
        judge=next((each for each in devices if not isinstance(each, SharedDevice)), host),
        attributor=_attributor(devices) if options.layers else None,
    )


def _attributor(devices: list[Device]) -> AttributesLatency:
    for device in devices:
        if isinstance(device, AttributesLatency):
            return device
    reason = "--layers needs a device that can tell the cost of layers, such as --device htp:CHIP"
    raise BadInput(reason=reason)


def _sessions_of(device: Device) -> list[Device]:
    if not isinstance(device, SharedDevice):
        return [device]
    return [device, *(device.open_session() for _ in range(device.sessions - 1))]


def _host_capabilities(
    plan: Plan, toolchains: Sequence[str], options: RunnerOptions
) -> tuple[str, ...]:
    """Conversion is a capability for each toolchain, and one for models that ask for none."""
    every = plan.capabilities(on_device=False, benchmark_only=options.benchmark_only)
    if not options.quantize or not toolchains:
        return tuple(one for one in every if one != CONVERTS)
    return (*every, *(f"{CONVERTS}@{name}" for name in toolchains))


def _device_capabilities(
    plan: Plan, device: Device, toolchain: str, options: RunnerOptions, has_data: bool
) -> tuple[str, ...]:
    """Models without a device yet, those of this type of device, those that an older version pinned
    to this very board, and those that another tool converted for this toolchain."""
    only_latency = options.benchmark_only or not has_data
    kinds = plan.capabilities(on_device=True, benchmark_only=only_latency)
    names = dict.fromkeys((device_type(device), device.name, toolchain))
    return (*kinds, *(f"{kind}@{of}" for of in names for kind in kinds))


# Data: what models are calibrated on and scored by.


def _with_data(
    workspace: Workspace,
    options: RunnerOptions,
    asked: ExperimentSettings,
    note: Callable[[str], None],
) -> tuple[RunnerOptions, str]:
    """The options with the dataset and the task that the experiment names, which win over the
    runner's own; and a sentence that says why this machine cannot have them, if so."""
    options = replace(options, task=asked.task or options.task)
    needs_none = options.benchmark_only and not options.quantize
    if not asked.dataset or needs_none:
        return options, ""
    if options.dataset is not None:
        note(f"--dataset {options.dataset} is not used: the experiment names {asked.dataset}.")
    if asked.has_random_inputs:
        return replace(options, dataset=None), ""
    from edgeloop.node.datasets import Datasets

    try:
        datasets = Datasets(workspace.store.blobs)
        reference = datasets.resolve(asked.dataset)
        folder = datasets.fetch(reference.name, reference.version, cache_folder(), note)
    except (NoSuchDataset, LocalFileError, DatasetDamaged, BadInput, OSError) as error:
        reason = str(error).rstrip(".")
        return replace(options, dataset=None), f"{asked.dataset} cannot be had here: {reason}."
    return replace(options, dataset=folder), ""


def _cached_datasets(options: RunnerOptions) -> Iterator[Path]:
    """Datasets in this machine's cache that the runner reads until it ends."""
    cache = (cache_folder() / "datasets").resolve()
    for path in (options.dataset, options.calibration):
        if path is not None and cache in path.resolve().parents:
            yield cache / path.resolve().relative_to(cache).parts[0]


def _open_task(options: RunnerOptions, settings: Settings, folder: WorkFolder) -> Task:
    """Without a dataset nothing can be scored; a task that was asked for by name is then an
    error."""
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


def _without_dataset(options: RunnerOptions, asked: ExperimentSettings) -> str:
    if options.benchmark_only and not options.quantize:
        return "Latency only: this runner needs no dataset."
    source = f"inputs of {options.calibration}" if options.calibration else "random inputs"
    remedy = "--dataset FOLDER, or INPUT_DATASET in the environment, adds accuracy"
    if asked.has_random_inputs:
        remedy = "the experiment asks for that, and 'edgeloop experiment set --dataset' changes it"
    if options.benchmark_only:
        return f"No dataset: latency only, calibrated on {source}; {remedy}."
    return (
        f"No dataset: models are calibrated on {source} and compared with the float model; "
        f"{remedy}."
    )


def _models_to_take(
    workspace: Workspace, options: RunnerOptions, asked: ExperimentSettings
) -> tuple[ModelFilter, Callable[[], str]]:
    """And a function that says why it takes none that needs data, if so."""
    only: Callable[[str], bool] = partial(matches_any, patterns=options.subset)
    has_data = options.dataset or options.calibration or options.task or options.benchmark_only
    if has_data or asked.dataset:
        return ModelFilter(only), lambda: ""
    unscored = UnscoredModels(workspace, only)
    return ModelFilter(unscored), lambda: unscored.reason


class UnscoredModels:
    """The models that a runner takes which has only random inputs to calibrate on, in an experiment
    that names no dataset: all, unless a live runner scores them with one of its own, since random
    inputs would spoil that; then those that were uploaded with --benchmark-only. Where that runner
    does not convert either, there is a `reason` to tell. Answers are remembered for a while, since
    a claim asks about every model that waits."""

    def __init__(self, workspace: Workspace, only: Callable[[str], bool]) -> None:
        self._workspace, self._only = workspace, only
        self._registry = Registry(workspace.store)
        self._answers: dict[str, tuple[float, bool]] = {}
        self.reason = ""  # why it leaves others

    def __call__(self, model: str) -> bool:
        if not self._only(model):
            return False
        return not self._remembered("", self._is_scored) or self._remembered(model, self._is_short)

    def _remembered(self, key: str, ask: Callable[[str], bool]) -> bool:
        asked_at, answer = self._answers.get(key, (-math.inf, False))
        if time.monotonic() - asked_at > REMEMBERED_S:
            answer = ask(key)
            if len(self._answers) >= MOST_REMEMBERED:
                self._answers.clear()
            self._answers[key] = (time.monotonic(), answer)
        return answer

    def _is_scored(self, _: str) -> bool:
        runners = self._registry.live(self._workspace.experiment)
        scoring = [runner for runner in runners if runner.task not in ("", TensorsTask.name)]
        self.reason = ""
        if scoring and not any(CONVERTS in runner.capabilities for runner in scoring):
            experiment = self._workspace.experiment
            self.reason = (
                f"{scoring[0].node} scores models with a dataset that this machine does not have: "
                f"name it for all with 'edgeloop experiment set {experiment} --dataset NAME'"
            )
        return bool(scoring)

    def _is_short(self, model: str) -> bool:
        row = self._workspace.store.models(self._workspace.experiment).get(model)
        return row is not None and is_true(row.values.get("benchmark_only"))
