"""Accuracy after partial training on this machine: on a GPU candidates share one process per GPU,
on a CPU each has a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgeloop._util.processes import kill_group, last_line, start_detached
from edgeloop._util.system import FairLimit, python_module, variables_with
from edgeloop.errors import BadInput, LocalFileError
from edgeloop.search.base import Evaluation
from edgeloop.search.evaluators.threads import PoolEvaluator, Request, failure
from edgeloop.search.evaluators.trainer import (
    BROKEN,
    GIVES,
    LOG,
    ORDER,
    TrainingOrder,
    dataset_digest,
    plan_text,
    read_outcome,
)
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.device import usable_cards
from edgeloop.search.nets.export import check_exporter
from edgeloop.search.nets.plan import CHECKPOINT, TrainingPaths, TrainingPlan
from edgeloop.search.nets.spaces import check_torch, digest, source_of

# Our side of the processes in which candidates share a GPU: one process per GPU.
#
# Kernels of different processes take turns on a GPU, those of one process run side by side; and a
# process that stays has the libraries and the images loaded. What one candidate does must not
# become the fault of another. So when a process dies with several candidates in training, each of
# these is tried alone, from its checkpoint: one that ends the process again is to blame, the
# others are not. A time limit counts a candidate's share of the time: half of it while two of
# them run.


_MODULE = "edgeloop.search.evaluators.trainer"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_START_LIMIT_S = 300.0
_GRACE_S = 30.0  # for a training that was told to stop
_LOOK_S = 1.0
OOM_SCORE = 500  # when memory runs out, a candidate is killed and not the search

Problem = tuple[str, bool]  # what happened, and whether another attempt would end the same way


@dataclass(frozen=True)
class TrainerCommand:
    """The arguments of every process of a search; `at_once` None: as many as there is room for."""

    paths: TrainingPaths
    device: str = "auto"
    threads: int = 1
    at_once: int | None = None

    def words(self) -> list[str]:
        options = {
            "--dataset": self.paths.dataset,
            "--cache": self.paths.prepared,
            "--project": self.paths.project,
            "--device": self.device,
            "--threads": self.threads,
            "--at-once": self.at_once or 0,
        }
        return python_module(_MODULE, "serve", *_words(options))


def _words(options: Mapping[str, object]) -> Iterator[str]:
    for option, value in options.items():
        yield option
        yield str(value)


class SharedTrainers:
    """One process per card. `cards` are names for CUDA_VISIBLE_DEVICES; the logs of the processes
    are written to `folder`."""

    def __init__(self, cards: Sequence[str], command: TrainerCommand, folder: Path) -> None:
        logs = [folder / f"card{number}.log" for number in range(len(cards))]
        self._cards = [_Card(*each, command) for each in zip(cards, logs, strict=True)]

    def train(self, folder: Path, limit_s: float) -> Problem | None:
        """Train what the order in this folder says, on the card with the least to do. Returns why
        there is no outcome, if there is none."""
        return min(self._cards, key=lambda card: card.load).train(folder, limit_s)

    def warm(self) -> None:
        """Start the processes before the first candidate is known."""
        for card in self._cards:
            card.warm()

    def utilisation(self) -> float | None:
        """Of the GPUs while anything was trained, from 0 to 1, if known."""
        shares = [card.utilisation for card in self._cards if card.utilisation is not None]
        return sum(shares) / len(shares) if shares else None

    def close(self) -> None:
        for card in self._cards:
            card.close()


@dataclass(eq=False)
class _Ticket:
    """A candidate of a card: from when it is sent until it ends or its process does."""

    number: int
    folder: Path
    is_sent: bool = False
    has_begun: bool = False
    is_suspect: bool = False  # its process died, perhaps because of it
    is_over_time: bool = False
    has_ended: bool = False
    problem: Problem | None = None


class _Card:
    def __init__(self, name: str, log: Path, command: TrainerCommand) -> None:
        self._name, self._log, self._command = name, log, command
        self._changed = threading.Condition()
        self._tickets: list[_Ticket] = []
        self._numbers = iter(range(1, 1 << 62))
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = self._is_closed = False
        self.utilisation: float | None = None

    @property
    def load(self) -> int:
        return len(self._tickets)

    def train(self, folder: Path, limit_s: float) -> Problem | None:
        with self._changed:
            ticket = _Ticket(next(self._numbers), folder)
            self._tickets.append(ticket)
            try:
                while not ticket.has_ended:
                    self._changed.wait_for(lambda: self._may_send(ticket) or ticket.has_ended)
                    if not ticket.has_ended:
                        self._send(ticket)
                        self._watch(ticket, limit_s)
            finally:
                self._tickets.remove(ticket)
                self._changed.notify_all()
            return ticket.problem

    def warm(self) -> None:
        with self._changed:
            if not self._is_closed:
                self._started()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            for ticket in self._tickets:
                self._end(ticket, ("the search was stopped", False))
            if self._process is not None:
                kill_group(self._process)
            self._changed.notify_all()

    def _may_send(self, ticket: _Ticket) -> bool:
        """Suspects go first, one at a time, with the card to themselves."""
        suspects = [each for each in self._tickets if each.is_suspect]
        if not suspects:
            return True
        return ticket is suspects[0] and not any(each.is_sent for each in self._tickets)

    def _send(self, ticket: _Ticket) -> None:
        if self._is_closed:
            self._end(ticket, ("the search was stopped", False))
            return
        process = self._started()
        ticket.is_sent, ticket.has_begun, ticket.is_over_time = True, False, False
        self._say(process, {"train": ticket.number, "folder": str(ticket.folder)})

    def _watch(self, ticket: _Ticket, limit_s: float) -> None:
        """Until it has ended, or has to be sent again."""
        process = self._process
        if process is None:
            return
        if not self._changed.wait_for(lambda: not ticket.is_sent or self._is_ready, _START_LIMIT_S):
            kill_group(process)
        self._changed.wait_for(lambda: not ticket.is_sent or ticket.has_begun)
        if not ticket.is_sent:
            return
        limit, spent_s, seen = FairLimit(limit_s, process.pid), 0.0, time.monotonic()
        while ticket.is_sent and ((pause_s := limit.pause_s()) > 0 or spent_s < limit_s):
            self._changed.wait(min(pause_s, _LOOK_S) or _LOOK_S)
            begun, now = sum(each.has_begun for each in self._tickets), time.monotonic()
            spent_s, seen = spent_s + (now - seen) / max(1, begun), now
        if ticket.is_sent and self._is_stopped(ticket, process):
            text = f"it was not done after {limit_s:g} s and was stopped"
            self._end(ticket, (text, not limit.is_unfair))

    def _is_stopped(self, ticket: _Ticket, process: subprocess.Popen[bytes]) -> bool:
        """One that does not listen is ended with its process, from which the others are sent again.
        Where several do not, they may all wait for one of them: they are tried one by one."""
        was_suspect = ticket.is_suspect  # then it had the card to itself
        ticket.is_over_time = True
        self._say(process, {"stop": ticket.number})
        self._changed.wait_for(lambda: not ticket.is_sent, _GRACE_S)
        if ticket.is_sent:
            late = [each for each in self._tickets if each.is_sent and each.is_over_time]
            for each in late if len(late) > 1 else ():
                each.is_suspect = True
            kill_group(process)
            self._changed.wait_for(lambda: not ticket.is_sent)
            return len(late) == 1
        return was_suspect or not ticket.is_suspect

    def _say(self, process: subprocess.Popen[bytes], call: dict[str, Any]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it is dead; the reader will say so
            os.write(process.stdin.fileno(), (json.dumps(call) + "\n").encode())

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        variables = {_VISIBLE: self._name} if self._name else {}
        self._process = process = _start(self._command.words(), self._log, variables, answers=True)
        threading.Thread(target=self._read, args=(process,), daemon=True).start()
        return process

    # What the process says

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError, KeyError, TypeError), self._changed:
                self._hear(json.loads(line))
                self._changed.notify_all()
        code = process.wait()
        kill_group(process)
        with self._changed:
            self._process, self._is_ready = None, False
            self._died(code)
            self._changed.notify_all()

    def _hear(self, answer: dict[str, Any]) -> None:
        if answer["what"] == "ready":
            self._is_ready = True
            return
        if answer["gpu"] is not None:
            self.utilisation = float(answer["gpu"])
        ticket = next(each for each in self._tickets if each.number == answer["number"])
        if answer["what"] == "begun":
            ticket.has_begun = True
        elif ticket.is_over_time and answer["code"] != 0:
            ticket.is_sent = False
        else:
            self._end(ticket, None if answer["code"] == 0 else (str(answer["text"]), False))

    def _died(self, code: int) -> None:
        """One that was alone has to answer for it; several are tried again one by one. Those who
        had not begun are sent again, and all of them if we ended it because of one."""
        sent = [ticket for ticket in self._tickets if ticket.is_sent]
        begun = [ticket for ticket in sent if ticket.has_begun]
        is_our_doing = any(ticket.is_over_time for ticket in sent)
        for ticket in sent:
            ticket.is_sent = False
            if not begun:  # the process itself does not run
                self._end(ticket, (last_line(self._log, limit=None) or _cause(code), False))
            elif is_our_doing or not ticket.has_begun:
                continue
            elif len(begun) == 1:
                self._end(ticket, (_cause(code), code == -signal.SIGKILL))
            else:
                ticket.is_suspect = True

    def _end(self, ticket: _Ticket, problem: Problem | None) -> None:
        if not ticket.has_ended:
            ticket.has_ended, ticket.is_sent, ticket.problem = True, False, problem


def _start(
    words: Sequence[str],
    log_file: Path,
    variables: Mapping[str, str] | None = None,
    *,
    answers: bool = False,
) -> subprocess.Popen[bytes]:
    """A process that trains, in a group of its own. With `answers` its standard output is ours to
    read; otherwise it is in the log, too."""
    try:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        if not answers:
            log_file.write_bytes(b"")  # of the attempt before
        process = start_detached(
            words,
            variables_with(**(variables or {})),
            log_file,
            output="pipe" if answers else "log",
            ends_with="leash",
        )
    except OSError as error:
        raise LocalFileError(path=log_file, reason=error.strerror or str(error)) from None
    with contextlib.suppress(OSError):
        Path(f"/proc/{process.pid}/oom_score_adj").write_text(str(OOM_SCORE))
    return process


def _cause(code: int) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed, most likely because memory ran out"
    if code == BROKEN:
        return "it left the GPU in a state in which nothing else could be trained"
    if code < 0:
        return f"its process crashed with {signal.Signals(-code).name}"
    return f"its process ended with code {code}"


class LocalTraining(PoolEvaluator):
    """Trains up to `at_once` candidates at a time, in one folder per candidate and plan below
    `paths.out`: a training that was killed continues from its checkpoint there, and the result of
    one that was finished under the same conditions is used at once.

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
        paths: TrainingPaths,
        plan: TrainingPlan,
        at_once: int = 1,
        *,
        limit_s: float = 24 * 3600.0,
        cards: Sequence[str] | None = None,
        per_card: int | None = None,
    ) -> None:
        if at_once < 1 or limit_s <= 0:
            raise BadInput(reason="at_once must be 1 or more, limit_s above 0")
        check_torch()
        check_exporter()
        super().__init__(at_once)
        self._project = (paths.project or Path.cwd()).resolve()
        self._paths = paths = TrainingPaths(
            paths.dataset.resolve(), paths.out.resolve(), paths.cache, self._project
        )
        self._plan, self._limit_s = plan, limit_s
        content = dataset_digest(paths.dataset, paths.out / "dataset.json")
        self.conditions = f"trained on {content}: {plan_text(plan)}"
        self._running: set[subprocess.Popen[bytes]] = set()
        cards = usable_cards(plan) if cards is None else cards
        self._shared: SharedTrainers | None = None
        if cards:
            command = TrainerCommand(paths, plan.device, plan.threads, per_card)
            self._shared = SharedTrainers(cards, command, paths.out)

    def warm(self) -> None:
        """Processes that share a GPU take seconds to start: as long as it takes to screen the first
        candidates."""
        if self._shared is not None:
            self._shared.warm()

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
        return conditions, self._paths.out / arch.id / digest(conditions)

    def _work(self, request: Request) -> Evaluation:
        arch, began = request.arch, time.monotonic()
        conditions, folder = self._place(arch)
        outcome = read_outcome(folder, arch.id, conditions, request.until)
        if outcome is None or outcome.error:
            until = {} if request.until is None else {arch.id: request.until}
            TrainingOrder(self._plan, (arch,), conditions, until=until).save(folder / ORDER)
            problem = self._attempt(folder)
            if problem is not None:
                text = (
                    problem[0]
                    or last_line(folder / LOG, limit=None)
                    or "it ended without a message"
                )
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
        options = {
            "--dataset": self._paths.dataset,
            "--out": folder,
            "--cache": self._paths.prepared,
            "--project": self._project,
        }
        words = python_module(_MODULE, str(folder / ORDER), "--leash", *_words(options))
        process = _start(words, folder / LOG)
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
        # A process that ended by itself has said why in its log.
        return _cause(code) if code < 0 else "", code == -signal.SIGKILL

    def _stop(self) -> None:
        for process in list(self._running):
            kill_group(process)
        if self._shared is not None:
            self._shared.close()
