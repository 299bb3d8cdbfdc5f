"""Trains one model: steps, epochs, checkpoints, and the files at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput, TrainingDiverged, TrainingFailed
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.checkpoint import ARCH, MODEL, Folder, State, load_weights, write_whole
from edgeloop.search.nets.data import ImageSet, SharedData, class_weights, order_of, plain
from edgeloop.search.nets.device import Machine, machine_for, memory_watched, tuned
from edgeloop.search.nets.export import check_exporter, export_onnx
from edgeloop.search.nets.plan import (
    Epoch,
    ProgressReport,
    TrainingPlan,
    TrainingProgress,
    TrainingResult,
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
    dataset: Path,
    plan: TrainingPlan,
    out: Path,
    *,
    resume: bool = True,
    progress: ProgressReport | None = None,
    cache: Path | None = None,
    project: Path | None = None,
    shared: SharedData | None = None,
) -> TrainingResult:
    """Train a model; `out` gets arch.json, model.onnx, checkpoint.pt, metrics.json and
    metrics.jsonl (one line per epoch).

    The same arguments give the same weights, bit for bit on a CPU. With `resume`, an interrupted
    training continues from its last checkpoint and ends with those same weights; a finished one is
    not repeated. One that pauses (`plan.until`) leaves its checkpoint and scores, and no model yet.
    `cache` is a folder for decoded images, `project` the root for files of spaces.
    """
    check_torch()
    check_exporter()
    machine = machine_for(plan)
    folder = Folder(out)
    if not resume:
        folder.clear()
    with tuned(machine, plan.threads), memory_watched(arch.id, machine, machine.batch):
        net = _net(arch, plan, project)
        folder_of_project = project or Path.cwd()
        task = _task(net, arch, dataset, plan, cache or folder_of_project / ".edgeloop/prepared")
        data = _Data.of(task, arch)
        # Compiling would hold up those that train beside it.
        may_compile = plan.compile is None and shared is None
        shared = shared or SharedData()
        with shared.gate.together(), shared.usage.watched(machine) as utilisation:
            training = _Training(arch, net, data, plan, machine, folder, shared)
            training.may_compile = may_compile
            return training.go(progress, utilisation)


def _net(arch: Architecture, plan: TrainingPlan, project: Path | None) -> nn.Module:
    net = build(arch, plan.seed, project)
    if plan.qat_from is None:
        return net

    from edgeloop.search.nets.quantization import with_fake_quantization

    load_weights(net, arch, plan.qat_from)
    return with_fake_quantization(net, plan.qat_weight_bits)


@dataclass(frozen=True)
class _Length:
    """Steps in total and per epoch."""

    epoch: int
    steps: int

    @property
    def epochs(self) -> int:
        return math.ceil(self.steps / self.epoch)


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
    ) -> None:
        from edgeloop.search.nets.engine import Engine

        self.may_compile = False
        self._arch, self._task, self._plan = arch, data.task, plan
        self._machine, self._folder, self._gate = machine, folder, shared.gate
        self._images: ImageSet = shared.load(data.training, plan.images, machine)
        self._validation = shared.load(data.validation, plan.validation_images, machine)
        self._batch = min(machine.batch, len(self._images))
        self._length = _length(plan, len(self._images), self._batch)
        self._until = _until(plan, self._length)
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
            number = state.step // self._length.epoch
            self._epoch(state, number, clock, progress)
            if state.step < self._length.steps and state.step % self._length.epoch:
                break
            self._validate(state, number, clock)
            patience = self._plan.patience
            stopped = patience is not None and len(state.epochs) - state.best_epoch >= patience
            state.is_done = stopped or state.step >= self._length.steps
            is_end = state.is_done or state.step >= self._until
            if is_end or clock.since_saved() >= self._plan.checkpoint_s * _SOONER:
                self._save(state, clock)
            else:
                self._folder.write_history(state.history)
            if progress is not None:
                last = state.epochs[-1]
                progress(TrainingProgress(state.step, self._length.steps, last.loss, last))
        if not state.is_done and not _scores_at(state, self._until):
            state.pauses.append(self._scored(state, state.step // self._length.epoch, clock))
            self._save(state, clock)

    def _epoch(
        self, state: State, number: int, clock: _Clock, progress: ProgressReport | None
    ) -> None:
        """From where the state stands to the end of the epoch, or to where the training pauses."""
        from edgeloop.search.nets.engine import learning_rate

        first = number * self._length.epoch
        last = min(first + self._length.epoch, self._length.steps, self._until)
        order = order_of(
            self._plan.seed, number, len(self._images), self._batch, self._length.epoch
        )
        index = order.index.to(self._images.device)
        chance = order.chance.to(self._machine.device)
        every = _CHECK_EVERY if self._machine.is_gpu else 1
        while state.step < last:
            place = state.step - first
            rate = learning_rate(self._plan, state.step, self._length.steps)
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
                    progress(TrainingProgress(state.step, self._length.steps, loss, done))

    def _consider_compiling(self, state: State, clock: _Clock) -> None:
        """As soon as it is known how long a step takes; the first steps are slow."""
        from edgeloop.search.nets.engine import compile_pays

        pace = clock.seconds_per_step(state.step) if self.may_compile else None
        if pace is not None:
            self.may_compile = False
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

        steps = state.step - number * self._length.epoch
        net = self._engine.net
        quality = quality_of(net, self._validation, self._task, self._machine, self._batch)
        seconds = clock.seconds()
        return Epoch(
            epoch=number + 1,
            step=state.step,
            loss=float(self._engine.loss_sum) / max(steps, 1),
            f1=quality.f1,
            miou=quality.miou,
            learning_rate=learning_rate(self._plan, state.step - 1, self._length.steps),
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
            export_onnx(net, self._arch, self._folder.path / MODEL)
        result = self._result(state, best, last, sum(p.numel() for p in net.parameters()))
        self._folder.write_result(result)
        return result

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
            stopped_early=state.is_done and state.step < self._length.steps,
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


def _length(plan: TrainingPlan, images: int, batch: int) -> _Length:
    epoch = max(1, images // batch)
    return _Length(epoch, plan.steps or plan.epochs * epoch)


def _until(plan: TrainingPlan, length: _Length) -> int:
    """The step at which a training pauses; its last one without a pause."""
    if plan.until is None:
        return length.steps
    return min(plan.until if plan.steps else plan.until * length.epoch, length.steps)


def _scores_at(state: State, step: int) -> list[Epoch]:
    """All scores up to a step, if there is one of the step itself or of an epoch before it that is
    all a later checkpoint knows."""
    known = [epoch for epoch in state.history if epoch.step <= step]
    is_there = bool(known) and (known[-1].step == step or state.step > step)
    return known if is_there else []


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
