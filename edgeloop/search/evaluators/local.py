"""Accuracy after partial training on this machine, one process per candidate."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from edgeloop._util.system import FairLimit, python_module
from edgeloop.architectures import check_exporter, check_torch
from edgeloop.errors import BadInput, LocalFileError
from edgeloop.search.base import Evaluation
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
from edgeloop.training import TrainingPlan

_MODULE = "edgeloop.search.evaluators.trainer"
_LOG = "train.log"
_LOG_TAIL = 4096
_OOM_SCORE = 500  # when memory runs out, a candidate is killed and not the search


class LocalTraining(PoolEvaluator):
    """Trains `at_once` candidates at a time, in one folder per candidate and plan below `folder`:
    a training that was killed continues from its checkpoint there, and the result of one that was
    finished under the same conditions is used at once.

    A model that diverges, is killed for its memory or trains longer than `limit_s` has a final
    error.
    """

    gives = GIVES
    cost = 1
    label = "in training"

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

    @property
    def capacity(self) -> int:
        return len(self._threads)

    def _work(self, request: Request) -> Evaluation:
        arch, began = request.arch, time.monotonic()
        conditions, source = self.conditions, source_of(arch, self._project)
        if source is not None:  # an edited file builds another model with the same id
            conditions = f"{conditions}; {digest((self._project / source).read_bytes())}"
        folder = self._folder / arch.id / digest(conditions)
        outcome = read_outcome(folder, arch.id, conditions)
        if outcome is None or outcome.error:
            TrainingOrder(self._plan, (arch,), conditions).save(folder / ORDER)
            with self._started(folder) as process:
                problem = self._problem(process)
            if problem is not None:
                text = problem[0] or _last_line(folder / _LOG) or "it ended without a message"
                text = f"Training of {arch.id}: {text.rstrip('.')}; its log is {folder / _LOG}"
                return failure(arch.id, text, problem[1])
            outcome = read_outcome(folder, arch.id, conditions)
        if outcome is None:
            return failure(arch.id, f"Training of {arch.id} left no result", is_final=False)
        return replace(outcome.evaluation(folder), seconds=time.monotonic() - began)

    @contextlib.contextmanager
    def _started(self, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
        command = [
            *python_module(_MODULE, str(folder / ORDER), "--leash"),
            *("--dataset", str(self._dataset), "--out", str(folder)),
            *("--cache", str(self._cache), "--project", str(self._project)),
        ]
        try:
            with (folder / _LOG).open("wb") as log:
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
            Path(f"/proc/{process.pid}/oom_score_adj").write_text(str(_OOM_SCORE))
        self._running.add(process)
        try:
            if self._closing.is_set():  # `close` may have run before the process was known
                _kill(process)
            yield process
        finally:
            _kill(process)
            self._running.discard(process)

    def _problem(self, process: subprocess.Popen[bytes]) -> tuple[str, bool] | None:
        """Why there is no outcome, and whether that is final; None if there is one."""
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
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it started: the group exists until its leader is waited for."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""
