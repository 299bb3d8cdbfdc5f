"""Trains one model: steps, epochs, checkpoints, and the files at the end."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
)
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeloop._util.system import available_cpus, safe_path
from edgeloop.errors import BadInput, EdgeloopError, OutOfMemory, TrainingDiverged, TrainingFailed
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.device import (
    ImageSet,
    Machine,
    SharedData,
    class_weights,
    machine_for,
    memory_watched,
    order_of,
    plain,
    tuned,
)
from edgeloop.search.nets.export import ExportProcesses, check_exporter, export_onnx
from edgeloop.search.nets.plan import (
    ARCH,
    CHECKPOINT,
    MODEL,
    Epoch,
    Folder,
    ProgressReport,
    State,
    TrainingPaths,
    TrainingPlan,
    TrainingProgress,
    TrainingResult,
    load_weights,
    write_whole,
)
from edgeloop.search.nets.spaces import build, check_torch
from edgeloop.tasks import Samples, Task, Trainable, open_task, reading_data

if TYPE_CHECKING:
    from torch import nn

    from edgeloop.search.nets.engine import Engine


_IGNORED = 255  # the label of pixels that do not count
_CHECK_EVERY = 50  # steps on a GPU: reading the loss synchronizes
_REPORT_S = 1.0
_SOONER = 0.1  # of the checkpoint interval suffices at the end of an epoch


def train(
    arch: Architecture,
    plan: TrainingPlan,
    paths: TrainingPaths,
    *,
    resume: bool = True,
    progress: ProgressReport | None = None,
    shared: SharedData | None = None,
) -> TrainingResult:
    """Train a model; `paths.out` gets arch.json, model.onnx, checkpoint.pt, metrics.json and
    metrics.jsonl (one line per epoch).

    The same arguments give the same weights, bit for bit on a CPU. With `resume`, an interrupted
    training continues from its last checkpoint and ends with those same weights; a finished one is
    not repeated. One that pauses (`plan.until`) leaves its checkpoint and scores, and no model yet.
    """
    check_torch()
    check_exporter()
    machine = machine_for(plan)
    folder = Folder(paths.out)
    if not resume:
        folder.clear()
    with tuned(machine, plan.threads), memory_watched(arch.id, machine, machine.batch):
        net = _net(arch, plan, paths.project)
        task = _task(net, arch, paths.dataset, plan, paths.prepared)
        data = _Data.of(task, arch)
        shared = shared or SharedData(is_alone=True)
        with shared.gate.together(), shared.usage.watched(machine) as utilisation:
            training = _Training(
                arch=arch,
                net=net,
                data=data,
                plan=plan,
                machine=machine,
                folder=folder,
                shared=shared,
                project=paths.project,
            )
            return training.go(progress, utilisation)


def _net(arch: Architecture, plan: TrainingPlan, project: Path | None) -> nn.Module:
    net = build(arch, plan.seed, project)
    if plan.qat_from is None:
        return net

    from edgeloop.search.nets.quantization import with_fake_quantization

    load_weights(net, arch, plan.qat_from)
    return with_fake_quantization(net, plan.qat_weight_bits)


@dataclass(frozen=True)
class _Data:
    """The samples, decoded before the GPU is entered."""

    task: Task
    training: Samples
    validation: Samples

    @classmethod
    def of(cls, task: Task, arch: Architecture) -> _Data:
        assert isinstance(task, Trainable)
        sides = arch.height, arch.width
        with reading_data():
            return cls(task, task.training(*sides), task.validation(*sides))


class _Training:
    def __init__(
        self,
        arch: Architecture,
        net: nn.Module,
        data: _Data,
        plan: TrainingPlan,
        machine: Machine,
        folder: Folder,
        shared: SharedData,
        project: Path | None = None,
    ) -> None:
        from edgeloop.search.nets.engine import Engine

        # Compiling would hold up those that train beside it.
        self._may_compile = plan.compile is None and shared.is_alone
        self._arch, self._task, self._plan = arch, data.task, plan
        self._machine, self._folder, self._gate = machine, folder, shared.gate
        self._exports, self._project = shared.exports, project
        self._images: ImageSet = shared.load(data.training, plan.images, machine)
        self._validation = shared.load(data.validation, plan.validation_images, machine)
        self._batch = min(machine.batch, len(self._images))
        self._epoch_steps = max(1, len(self._images) // self._batch)
        self._steps = plan.steps or plan.epochs * self._epoch_steps
        self._until = self._steps  # the step at which it pauses; its last one without a pause
        if plan.until is not None:
            until = plan.until if plan.steps else plan.until * self._epoch_steps
            self._until = min(until, self._steps)
        ignored = _IGNORED if self._images.labels.dim() > 1 else None
        weights = class_weights(self._images, arch.classes, ignored, len(data.task.classes))
        self._engine: Engine = Engine(net, self._images, weights, plan, machine, self._gate)
        self._belongs_to = {
            "architecture": arch.id,
            "task": data.task.name,
            "dataset": f"{data.training.key[:16]}+{data.validation.key[:16]}",
            **plan.decides(self._batch),
        }

    def go(
        self, progress: ProgressReport | None, utilisation: Callable[[], float | None]
    ) -> TrainingResult:
        self._utilisation = utilisation
        engine = self._engine
        state = self._folder.load(self._belongs_to) or State(
            dict(self._belongs_to), engine.net.state_dict(), engine.optimizer.state_dict()
        )
        write_whole(
            self._folder.path / ARCH, lambda file: file.write(f"{self._arch.canonical}\n".encode())
        )
        if not state.is_done:
            self._engine.load(state.net, state.optimizer)
            self._engine.begin_at(state.step, state.loss_sum)
            self._learn(state, progress)
        return self._finish(state) if state.is_done else self._paused(state)

    def _learn(self, state: State, progress: ProgressReport | None) -> None:
        """To the end of the training, or to where it pauses."""
        clock = _Clock(state.seconds)
        while not state.is_done and state.step < self._until:
            number = state.step // self._epoch_steps
            self._epoch(state, number, clock, progress)
            if state.step < self._steps and state.step % self._epoch_steps:
                break
            self._validate(state, number, clock)
            patience = self._plan.patience
            stopped = patience is not None and len(state.epochs) - state.best_epoch >= patience
            state.is_done = stopped or state.step >= self._steps
            is_end = state.is_done or state.step >= self._until
            if is_end or clock.since_saved() >= self._plan.checkpoint_s * _SOONER:
                self._save(state, clock)
            else:
                self._folder.write_history(state.history)
            if progress is not None:
                last = state.epochs[-1]
                progress(TrainingProgress(state.step, self._steps, last.loss, last))
        if not state.is_done and not _scores_at(state, self._until):
            state.pauses.append(self._scored(state, state.step // self._epoch_steps, clock))
            self._save(state, clock)

    def _epoch(
        self, state: State, number: int, clock: _Clock, progress: ProgressReport | None
    ) -> None:
        """From where the state stands to the end of the epoch, or to where the training pauses."""
        from edgeloop.search.nets.engine import learning_rate

        first = number * self._epoch_steps
        last = min(first + self._epoch_steps, self._steps, self._until)
        order = order_of(self._plan.seed, number, len(self._images), self._batch, self._epoch_steps)
        index = order.index.to(self._images.device)
        chance = order.chance.to(self._machine.device)
        every = _CHECK_EVERY if self._machine.is_gpu else 1
        while state.step < last:
            place = state.step - first
            rate = learning_rate(self._plan, state.step, self._steps)
            self._engine.step(index[place], chance[place], rate)
            state.step += 1
            if state.step % every == 0 or state.step == last:
                if (bad := self._engine.first_bad_step()) is not None:
                    raise TrainingDiverged(arch=self._arch.id, step=bad + 1)
                self._consider_compiling(state, clock)
                if clock.since_saved() >= self._plan.checkpoint_s and state.step < last:
                    self._save(state, clock)
                if progress is not None and clock.is_time_to_report():
                    loss = float(self._engine.loss_sum) / (place + 1)
                    done = state.epochs[-1] if state.epochs else None
                    progress(TrainingProgress(state.step, self._steps, loss, done))

    def _consider_compiling(self, state: State, clock: _Clock) -> None:
        """As soon as it is known how long a step takes; the first steps are slow."""
        from edgeloop.search.nets.engine import compile_pays

        pace = clock.seconds_per_step(state.step) if self._may_compile else None
        if pace is not None:
            self._may_compile = False
            if compile_pays(self._machine, pace * (self._until - state.step)):
                self._engine.compile()

    def _validate(self, state: State, number: int, clock: _Clock) -> None:
        """At the end of an epoch: the quality on the validation set."""
        epoch, net = self._scored(state, number, clock), self._engine.net
        is_best = not state.best or epoch.f1 > state.epochs[state.best_epoch - 1].f1
        state.epochs.append(epoch)
        self._engine.loss_sum.zero_()
        if is_best:
            state.best_epoch = epoch.epoch
            state.best = {name: t.detach().cpu().clone() for name, t in net.state_dict().items()}

    def _scored(self, state: State, number: int, clock: _Clock) -> Epoch:
        from edgeloop.search.nets.engine import learning_rate

        steps = state.step - number * self._epoch_steps
        net = self._engine.net
        quality = quality_of(net, self._validation, self._task, self._machine, self._batch)
        seconds = clock.seconds()
        return Epoch(
            epoch=number + 1,
            step=state.step,
            loss=float(self._engine.loss_sum) / max(steps, 1),
            f1=quality.f1,
            miou=quality.miou,
            learning_rate=learning_rate(self._plan, state.step - 1, self._steps),
            seconds=round(seconds, 3),
            images_per_s=round(state.step * self._batch / max(seconds, 1e-9), 1),
        )

    def _save(self, state: State, clock: _Clock) -> None:
        engine = self._engine
        state.net, state.optimizer = engine.net.state_dict(), engine.optimizer.state_dict()
        state.loss_sum, state.seconds = float(engine.loss_sum), clock.seconds()
        self._folder.save(state)
        clock.saved()

    def _paused(self, state: State) -> TrainingResult:
        history = _scores_at(state, self._until) or state.history
        best = max(history, key=lambda epoch: epoch.f1)
        parameters = sum(p.numel() for p in self._engine.net.parameters())
        result = self._result(state, best, history[-1], parameters)
        self._folder.write_result(result)
        return result

    def _finish(self, state: State) -> TrainingResult:
        net = self._engine.net
        net.load_state_dict(state.best)
        net = net.cpu()
        best, last = state.epochs[state.best_epoch - 1], state.epochs[-1]
        if self._plan.qat_from is not None:
            from edgeloop.search.nets.quantization import without_fake_quantization

            net = without_fake_quantization(net)
        with self._gate.outside():
            if not self._is_exported():
                export_onnx(net, self._arch, self._folder.path / MODEL)
        result = self._result(state, best, last, sum(p.numel() for p in net.parameters()))
        self._folder.write_result(result)
        return result

    def _is_exported(self) -> bool:
        """From the checkpoint of its end, by another process, where there are such processes."""
        if self._exports is None or self._plan.qat_from is not None:
            return False
        folder, project = self._folder.path, self._project or Path.cwd()
        return self._exports.export(
            self._arch, self._plan.seed, folder / CHECKPOINT, folder / MODEL, project
        )

    def _result(self, state: State, best: Epoch, last: Epoch, parameters: int) -> TrainingResult:
        used = self._utilisation()
        return TrainingResult(
            arch_id=self._arch.id,
            f1=best.f1,
            miou=best.miou,
            loss=best.loss,
            best_epoch=best.epoch,
            epochs=last.epoch,
            steps=last.step,
            parameters=parameters,
            seconds=last.seconds,
            images_per_s=last.images_per_s,
            stopped_early=state.is_done and state.step < self._steps,
            device=self._machine.title,
            task=self._task.name,
            is_paused=not state.is_done,
            gpu_utilisation=None if used is None else round(used, 3),
        )


class _Clock:
    """Seconds of a training over all its sessions, and since its last checkpoint and report."""

    def __init__(self, earlier: float) -> None:
        now = time.monotonic()
        self._start, self._saved, self._reported = now - earlier, now, now
        self._timed: tuple[int, float] | None = None

    def seconds(self) -> float:
        return time.monotonic() - self._start

    def seconds_per_step(self, step: int) -> float | None:
        """Between the first call and the one _CHECK_EVERY steps later, which returns it."""
        now = time.monotonic()
        self._timed = self._timed or (step, now)
        steps = step - self._timed[0]
        return (now - self._timed[1]) / steps if steps >= _CHECK_EVERY else None

    def since_saved(self) -> float:
        return time.monotonic() - self._saved

    def saved(self) -> None:
        self._saved = time.monotonic()

    def is_time_to_report(self) -> bool:
        due = time.monotonic() - self._reported >= _REPORT_S
        if due:
            self._reported = time.monotonic()
        return due


def _scores_at(state: State, step: int) -> list[Epoch]:
    """All scores up to a step, if there is one of the step itself or of an epoch before it that is
    all a later checkpoint knows."""
    scored = [epoch for epoch in state.history if epoch.step <= step]
    is_there = bool(scored) and (scored[-1].step == step or state.step > step)
    return scored if is_there else []


def _task(
    net: nn.Module, arch: Architecture, dataset: Path, plan: TrainingPlan, cache: Path
) -> Task:
    """The named task, or the one that fits the shape of the output: a map or one class."""
    shape = _output_shape(net, arch)
    task = open_task(
        plan.task or ("segmentation" if len(shape) == 4 else "classification"), dataset, cache
    )
    if not isinstance(task, Trainable):
        raise BadInput(reason=f"the task {task.name!r} has no images to train with")
    try:
        task.check_output(shape)
    except BadInput as error:
        reason = f"it has {arch.classes} classes, but the dataset has {len(task.classes)} ({error})"
        raise TrainingFailed(arch=arch.id, reason=reason) from None
    sides = shape[2:]
    if len(shape) == 4 and sides != (arch.height, arch.width):
        reason = f"its output is {sides[0]} × {sides[1]}, not the size of the image"
        raise TrainingFailed(arch=arch.id, reason=reason)
    return task


def _output_shape(net: nn.Module, arch: Architecture) -> tuple[int, ...]:
    import torch

    was_training = net.training
    net.eval()
    try:
        with torch.no_grad():
            output: Any = net(torch.zeros(arch.shape))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if "allocate memory" in str(error):
            raise
        first = str(error).partition("\n")[0]
        reason = f"the model does not accept an image of shape {list(arch.shape)}: {first}"
        raise TrainingFailed(arch=arch.id, reason=reason) from error
    finally:
        net.train(was_training)
    return tuple(getattr(output, "shape", ()))


# The quality of a model in training, on the whole validation set.


@dataclass(frozen=True)
class Quality:
    """F1 by the task's own formula, and the mean IoU."""

    f1: float
    miou: float


def quality_of(
    net: nn.Module, images: ImageSet, task: Task, machine: Machine, batch: int
) -> Quality:
    """Scored by the task's scorer, like the outputs of a chip."""
    import torch

    scorer = task.scorer(curves=False)
    was_training = net.training
    net.eval()
    try:
        with torch.no_grad():
            for start in range(0, len(images), batch):
                pixels = images.images[start : start + batch].to(machine.device)
                with machine.mixed():
                    answers = net(plain(pixels, torch.float32)).argmax(1)
                labels = images.labels[start : start + batch].cpu().numpy()
                scorer.add(answers.to(torch.int32).cpu().numpy(), labels)
    finally:
        net.train(was_training)
    score = scorer.score()
    return Quality(score.headline, mean_iou(_confusion(score.counts, len(task.classes))))


def mean_iou(confusion: NDArray[np.int64]) -> float:
    """Over the classes that occur in truth or prediction: counting absent classes as right would
    inflate the score."""
    hits = np.diagonal(confusion).astype(np.float64)
    union = confusion.sum(axis=0) + confusion.sum(axis=1) - hits
    there = union > 0
    return float((hits[there] / union[there]).mean()) if there.any() else 0.0


def _confusion(counts: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Scorers keep one matrix per image, or for classification (truth, prediction) pairs."""
    if counts.ndim == 3:
        total: NDArray[np.int64] = counts.sum(axis=0)
        return total
    pairs = np.bincount(counts[:, 0] * classes + counts[:, 1], minlength=classes * classes)
    return pairs.reshape(classes, classes).astype(np.int64)


# Several trainings at once: a small model leaves most of a GPU idle.
#
# On a GPU the trainings share one process: kernels of different processes take turns, those of
# different streams run concurrently, and the images are loaded once. On a CPU each training has a
# process with one thread.


Outcome = TrainingResult | EdgeloopError


@dataclass(frozen=True)
class TrainingItem:
    """An architecture to train, its folders, and where its training pauses, instead of where the
    plan says so."""

    arch: Architecture
    paths: TrainingPaths
    until: int | None = None


def train_many(
    items: Sequence[TrainingItem],
    plan: TrainingPlan,
    *,
    at_once: int | None = 2,
    resume: bool = True,
) -> Iterator[tuple[TrainingItem, Outcome]]:
    """Yields each training as it ends, with its result or error; a failure does not stop others.
    `at_once` None: as many as the device has room for.

    A script that calls this for a CPU needs the usual `if __name__ == "__main__":`.
    """
    if at_once is not None and at_once < 1:
        raise BadInput(reason=f"at_once must be 1 or more, not {at_once}")
    check_torch()
    with ExitStack() as opened:
        if machine_for(plan).is_gpu:
            device = opened.enter_context(SharedTraining(plan, at_once).opened())
            pool: Executor = ThreadPoolExecutor(at_once or MOST_AT_ONCE, "train")
            one: Callable[..., TrainingResult] = device.train
        else:
            spawn = multiprocessing.get_context("spawn")
            pool, one = ProcessPoolExecutor(at_once or available_cpus(), spawn), train
        opened.enter_context(pool)
        with safe_path():
            running = {
                pool.submit(train_item, item, plan, one, resume=resume): item for item in items
            }
        for done in as_completed(running):
            yield running[done], _outcome(done, running[done])


def train_item(
    item: TrainingItem,
    plan: TrainingPlan,
    one: Callable[..., TrainingResult] = train,
    *,
    resume: bool = True,
) -> Outcome:
    """Train one of several; an error of its own is its outcome."""
    try:
        item_plan = replace(plan, until=item.until or plan.until)
        return one(item.arch, item_plan, item.paths, resume=resume)
    except EdgeloopError as error:
        return error


def _outcome(done: Future[Outcome], candidate: TrainingItem) -> Outcome:
    try:
        return done.result()
    except BrokenExecutor:
        reason = "its process was killed or ran out of memory: run it again"
        return TrainingFailed(arch=candidate.arch.id, reason=reason)


# Trainings that share a device in one process, and how many of them do at a time.
#
# Each runs in a thread with a stream of its own; the images are loaded once. A training that runs
# out of memory beside others is not to blame: it continues from its checkpoint when fewer run, and
# the number is lowered at once. Only what does not fit alone does not fit.
#
# Unless the number is given, it follows from the device: up to four at a time, as soon as the
# memory that one needs is known and there is room for another; up to eight while four leave a GPU
# idle.


USUAL_AT_ONCE = 4  # more gained nothing on a GPU that these kept busy
MOST_AT_ONCE = 8
_MARGIN = 1.25  # of the memory that a training needed so far
_EXPORTS = 4  # at a time, beside trainings on a GPU
_IS_IDLE = 0.8  # utilisation below which more trainings are worth a try
_LOOK_S = 1.0
_GOOD_ENDS = 2  # trainings per place that must end well before the number is raised again


@dataclass(eq=False)
class _Place:
    """A training that runs, or that waits for its turn."""

    is_settled: bool = False  # it has made steps: its memory is allocated
    met_others: bool = False
    is_retried: bool = False
    must_be_alone: bool = False


class SharedTraining:
    """Trainings on one device; `train` is called by one thread per training and waits for its turn.

    `at_once` is how many run at a time; None: as many as the device has room for.
    """

    def __init__(self, plan: TrainingPlan, at_once: int | None = None) -> None:
        if at_once is not None and at_once < 1:
            raise BadInput(reason=f"at_once must be 1 or more, not {at_once}")
        self._machine = machine_for(plan)
        self._threads = plan.threads
        self.shared = SharedData()
        self._is_given = at_once is not None
        self._most = at_once or (MOST_AT_ONCE if self._machine.is_gpu else available_cpus())
        self._limit = at_once or min(USUAL_AT_ONCE, self._most)
        self._usual = self._limit
        self._changed = Condition()
        self._waiting: list[_Place] = []
        self._running: list[_Place] = []
        self._settled_together = 1
        self._need_bytes = 0.0
        self._good_ends = 0

    @property
    def limit(self) -> int:
        """How many may run at a time now."""
        return self._limit

    @contextlib.contextmanager
    def opened(self) -> Iterator[SharedTraining]:
        """With the settings of PyTorch that all trainings want, so that none of them restores
        others while the rest still runs."""
        with tuned(self._machine, self._threads), contextlib.ExitStack() as closing:
            if self._machine.is_gpu:
                count = max(1, min(_EXPORTS, available_cpus() - 1))
                self.shared.exports = ExportProcesses(count)
                closing.callback(self.shared.exports.close)
            yield self

    def train(
        self,
        arch: Architecture,
        plan: TrainingPlan,
        paths: TrainingPaths,
        *,
        resume: bool = True,
        progress: ProgressReport | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> TrainingResult:
        """Like `train`; `begun` is called when it is its turn."""
        place = _Place()
        while True:
            with self._turn(place):
                begun()
                try:
                    with _own_stream(self._machine):
                        result = train(
                            arch,
                            plan,
                            paths,
                            resume=resume,
                            shared=self.shared,
                            progress=self._settling(place, progress),
                        )
                    self._ended_well()
                    return result
                except OutOfMemory as error:
                    if not self._may_try_again(place):
                        raise
                    _forget_frames(error)
                self._free_memory()
            resume = True

    # Whose turn it is

    @contextlib.contextmanager
    def _turn(self, place: _Place) -> Iterator[None]:
        with self._changed:
            # One that has run already continues before others begin.
            self._waiting.insert(0 if place.is_retried else len(self._waiting), place)
            while not (self._waiting[0] is place and self._has_room(place)):
                self._changed.wait(_LOOK_S)
            self._waiting.remove(place)
            self._running.append(place)
            place.met_others = place.is_settled = False
            self._note_company()
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._running.remove(place)
                self._changed.notify_all()

    def _has_room(self, place: _Place) -> bool:
        running = len(self._running)
        if not running:
            return True
        if place.must_be_alone or any(other.must_be_alone for other in self._running):
            return False
        self._consider_more()
        if running >= self._limit:
            return False
        if self._is_given or not self._machine.is_gpu or running < self._settled_together:
            return True
        return self._is_settled() and self._free_bytes() > _MARGIN * self._need_bytes

    def _note_company(self) -> None:
        for place in self._running:
            place.met_others |= len(self._running) > 1

    def _consider_more(self) -> None:
        """Beyond the usual number only while the device is known to be idle."""
        is_full = len(self._running) == self._limit and self._usual <= self._limit < self._most
        if self._is_given or not is_full or not self._is_settled():
            return
        usage = self.shared.usage.recent()
        if usage is not None and usage < _IS_IDLE:
            self._limit += 1
            self.shared.usage.forget_recent()

    # What a training needs

    def _settling(self, place: _Place, progress: ProgressReport | None) -> ProgressReport:
        def report(seen: TrainingProgress) -> None:
            if not place.is_settled:
                with self._changed:
                    place.is_settled = True
                    self._note_need()
                    self._changed.notify_all()
            if progress is not None:
                progress(seen)

        return report

    def _is_settled(self) -> bool:
        return all(place.is_settled for place in self._running)

    def _note_need(self) -> None:
        if not self._is_settled():
            return
        self._settled_together = max(self._settled_together, len(self._running))
        if self._machine.is_gpu:
            import torch

            used = torch.cuda.memory_reserved(self._machine.device) - self.shared.image_bytes
            self._need_bytes = max(self._need_bytes, used / len(self._running))

    def _free_bytes(self) -> float:
        import torch

        return float(torch.cuda.mem_get_info(self._machine.device)[0])

    # When memory runs out

    def _may_try_again(self, place: _Place) -> bool:
        """Fewer from now on; a training that fails a second time is tried alone."""
        with self._changed:
            if not place.met_others:
                return False
            self._limit = max(1, min(self._limit, len(self._running)) - 1)
            self._settled_together = min(self._settled_together, self._limit)
            self._good_ends = 0
            place.must_be_alone = self._limit == 1 or place.is_retried
            place.is_retried = True
            return True

    def _ended_well(self) -> None:
        """A number that one large model has lowered is raised again, step by step."""
        with self._changed:
            self._good_ends += 1
            if self._limit < self._usual and self._good_ends >= _GOOD_ENDS * self._limit:
                self._limit, self._good_ends = self._limit + 1, 0

    def _free_memory(self) -> None:
        gc.collect()
        if self._machine.is_gpu:
            import torch

            with self.shared.gate.together():  # not while a graph is captured
                torch.cuda.empty_cache()


@contextlib.contextmanager
def _own_stream(machine: Machine) -> Iterator[None]:
    if not machine.is_gpu:
        yield
        return
    import torch

    stream = torch.cuda.Stream(machine.device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        yield


def _forget_frames(error: BaseException | None) -> None:
    """The frames of an error hold on to the tensors of the training that failed."""
    while error is not None:
        error.__traceback__ = None
        cause, error.__cause__, error.__context__ = error.__cause__, None, None
        error = cause
