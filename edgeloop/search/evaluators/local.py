"""Accuracy after partial training on this machine: on a GPU candidates share one process per GPU,
on a CPU each has a process of its own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from edgeloop._util.system import FairLimit, python_module
from edgeloop.errors import BadInput, LocalFileError
from edgeloop.search.base import Evaluation
from edgeloop.search.evaluators.card import LOG
from edgeloop.search.evaluators.shared import (
    OOM_SCORE,
    Problem,
    SharedTrainers,
    TrainerCommand,
    kill_group,
    last_line,
)
from edgeloop.search.evaluators.threads import PoolEvaluator, Request, failure
from edgeloop.search.evaluators.trainer import (
    GIVES,
    ORDER,
    TrainingOrder,
    dataset_digest,
    digest,
    plan_text,
    read_outcome,
    source_of,
)
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.checkpoint import CHECKPOINT
from edgeloop.search.nets.device import usable_cards
from edgeloop.search.nets.export import check_exporter
from edgeloop.search.nets.plan import TrainingPlan
from edgeloop.search.nets.spaces import check_torch

_MODULE = "edgeloop.search.evaluators.trainer"


class LocalTraining(PoolEvaluator):
    """Trains up to `at_once` candidates at a time, in one folder per candidate and plan below
    `folder`: a training that was killed continues from its checkpoint there, and the result of one
    that was finished under the same conditions is used at once.

    `cards` are GPUs, as CUDA_VISIBLE_DEVICES names them; by default those that the plan can use.
    With any, candidates share one process per GPU, `per_card` of them at a time, by default as many
    as there is room for. Without, each has a process of its own.

    A model that diverges, is killed for its memory or trains longer than `limit_s` has a final
    error.
    """

    gives = GIVES
    cost = 1
    label = "in training"
    can_pause = True

    def __init__(
        self,
        dataset: Path,
        plan: TrainingPlan,
        at_once: int = 1,
        *,
        folder: Path,
        limit_s: float = 24 * 3600.0,
        cache: Path | None = None,
        project: Path | None = None,
        cards: Sequence[str] | None = None,
        per_card: int | None = None,
    ) -> None:
        if at_once < 1 or limit_s <= 0:
            raise BadInput(reason="at_once must be 1 or more, limit_s above 0")
        check_torch()
        check_exporter()
        super().__init__(at_once)
        self._dataset, self._plan, self._limit_s = dataset.resolve(), plan, limit_s
        self._folder, self._project = folder.resolve(), (project or Path.cwd()).resolve()
        self._cache = cache or self._project / ".edgeloop" / "prepared"
        content = dataset_digest(self._dataset, self._folder / "dataset.json")
        self.conditions = f"trained on {content}: {plan_text(plan)}"
        self._running: set[subprocess.Popen[bytes]] = set()
        found = usable_cards(plan) if cards is None else cards
        self._shared = self._shared_trainers(found, per_card) if found else None

    def _shared_trainers(self, cards: Sequence[str], per_card: int | None) -> SharedTrainers:
        command = TrainerCommand(
            *(self._dataset, self._cache, self._project),
            *(self._plan.device, self._plan.threads, per_card),
        )
        return SharedTrainers(cards, command, self._folder)

    @property
    def gpu_utilisation(self) -> float | None:
        return self._shared.utilisation() if self._shared is not None else None

    @property
    def capacity(self) -> int:
        return len(self._threads)

    def discard(self, arch: Architecture) -> None:
        """Checkpoints are as large as three models."""
        with contextlib.suppress(OSError):
            (self._place(arch)[1] / CHECKPOINT).unlink()

    def _place(self, arch: Architecture) -> tuple[str, Path]:
        """The conditions of its training, and its folder."""
        conditions, source = self.conditions, source_of(arch, self._project)
        if source is not None:  # an edited file builds another model with the same id
            conditions = f"{conditions}; {digest((self._project / source).read_bytes())}"
        return conditions, self._folder / arch.id / digest(conditions)

    def _work(self, request: Request) -> Evaluation:
        arch, began = request.arch, time.monotonic()
        conditions, folder = self._place(arch)
        outcome = read_outcome(folder, arch.id, conditions, request.until)
        if outcome is None or outcome.error:
            until = {} if request.until is None else {arch.id: request.until}
            TrainingOrder(self._plan, (arch,), conditions, until=until).save(folder / ORDER)
            problem = self._attempt(folder)
            if problem is not None:
                text = problem[0] or last_line(folder / LOG) or "it ended without a message"
                text = f"Training of {arch.id}: {text.rstrip('.')}; its log is {folder / LOG}"
                return failure(arch.id, text, problem[1])
            outcome = read_outcome(folder, arch.id, conditions, request.until)
        if outcome is None:
            return failure(arch.id, f"Training of {arch.id} left no result", is_final=False)
        return replace(outcome.evaluation(folder), seconds=time.monotonic() - began)

    def _attempt(self, folder: Path) -> Problem | None:
        """Do what the order in this folder says. Returns why there is no outcome, and whether that
        is final; None if there is one."""
        if self._shared is not None:
            return self._shared.train(folder, self._limit_s)
        with self._started(folder) as process:
            return self._problem(process)

    @contextlib.contextmanager
    def _started(self, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
        command = [
            *python_module(_MODULE, str(folder / ORDER), "--leash"),
            *("--dataset", str(self._dataset), "--out", str(folder)),
            *("--cache", str(self._cache), "--project", str(self._project)),
        ]
        try:
            with (folder / LOG).open("wb") as log:
                process = subprocess.Popen(  # noqa: S603
                    command,
                    stdin=subprocess.PIPE,  # closed by the kernel when we are gone
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise LocalFileError(path=folder, reason=error.strerror or str(error)) from None
        with contextlib.suppress(OSError):
            Path(f"/proc/{process.pid}/oom_score_adj").write_text(str(OOM_SCORE))
        self._running.add(process)
        try:
            if self._closing.is_set():  # `close` may have run before the process was known
                kill_group(process)
            yield process
        finally:
            kill_group(process)
            self._running.discard(process)

    def _problem(self, process: subprocess.Popen[bytes]) -> Problem | None:
        limit = FairLimit(self._limit_s, process.pid)
        while (pause_s := limit.pause_s()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(pause_s)
                break
        else:
            text = f"it was not done after {self._limit_s:g} s and was stopped"
            return text, not limit.is_unfair
        if code == 0:
            return None
        if code == -signal.SIGKILL:
            return "its process was killed, most likely because memory ran out", True
        if code < 0:
            return f"its process crashed with {signal.Signals(-code).name}", False
        return "", False

    def _stop(self) -> None:
        for process in list(self._running):
            kill_group(process)
        if self._shared is not None:
            self._shared.close()
