"""What evaluators share: what was asked, what was answered, and the threads in between.

An architecture that is under way is not begun a second time, and each is answered exactly once,
whatever goes wrong on the way: a thread that dies without a word would leave a search waiting.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

from edgeloop._util.redact import redact
from edgeloop.architectures import Architecture
from edgeloop.errors import (
    BadInput,
    ComputeUnavailable,
    EdgeloopError,
    ModelFailed,
    StoreUnavailable,
    TrainingFailed,
)
from edgeloop.search.base import Answer, Evaluator

SHORTEST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 4.0
_END_LIMIT_S = 30.0


@dataclass(frozen=True)
class Request:
    """An architecture that was sent, what is there of it, and when that was (monotonic)."""

    arch: Architecture
    files: Mapping[str, Path] = field(default_factory=dict)
    sent: float = field(default_factory=time.monotonic)


def failure(arch_id: str, error: Exception | str, is_final: bool | None = None) -> Answer:
    """An answer with one sentence. Whether asking again could help follows from the error, where
    nobody says: what is wrong with the candidate stays wrong."""
    if is_final is None:
        is_final = isinstance(error, BadInput | ModelFailed | TrainingFailed)
    text = str(error) if isinstance(error, str | EdgeloopError) else _words(error)
    return Answer(arch_id, error=redact(" ".join(text.split())), is_final=is_final)


class Desk(Evaluator):
    """Takes architectures and hands out answers; `_run` is what each of its threads does."""

    def __init__(self, threads: int = 1) -> None:
        self._inbox: SimpleQueue[Request | None] = SimpleQueue()
        self._outbox: SimpleQueue[Answer] = SimpleQueue()
        self._closing = threading.Event()
        self._news = threading.Event()
        self._lock = threading.Lock()
        self._under_way: set[str] = set()
        self._crew = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def send(self, arch: Architecture, files: Mapping[str, Path] | None = None) -> None:
        with self._lock:
            if self._closing.is_set():
                raise BadInput(reason="This evaluator is closed: make a new one")
            if arch.id in self._under_way:
                return
            self._under_way.add(arch.id)
            for thread in self._crew:
                if thread.ident is None:
                    thread.start()
        self._inbox.put(Request(arch, dict(files or {})))
        self._news.set()

    def collect(self, timeout_s: float) -> list[Answer]:
        answers = []
        with contextlib.suppress(Empty):
            answers.append(self._outbox.get(timeout=max(0.0, timeout_s)))
            while True:
                answers.append(self._outbox.get_nowait())
        return answers

    def close(self) -> None:
        """What is under way is given up, not answered."""
        with self._lock:
            self._closing.set()
        self._news.set()
        for _ in self._crew:
            self._inbox.put(None)
        self._stop()
        self._join()

    @abstractmethod
    def _run(self) -> None: ...

    def _stop(self) -> None:
        """End what the threads wait for."""

    def _join(self, hurry: Callable[[], object] = lambda: None) -> None:
        """Until the threads have ended, or for a while. `hurry` is said again and again: what it
        ends may be started just after it was said."""
        deadline = time.monotonic() + _END_LIMIT_S
        while time.monotonic() < deadline and any(t.is_alive() for t in self._crew):
            hurry()
            for thread in self._crew:
                if thread.is_alive():
                    thread.join(0.05)

    def _answer(self, answer: Answer) -> None:
        with self._lock:
            if self._closing.is_set():
                return
            self._under_way.discard(answer.arch_id)
        self._outbox.put(answer)


class Crew(Desk):
    """A thread takes one architecture, works on it to its end, and takes the next."""

    @abstractmethod
    def _work(self, request: Request) -> Answer: ...

    def _run(self) -> None:
        while (request := self._inbox.get()) is not None and not self._closing.is_set():
            try:
                answer = self._work(request)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this one's answer
                answer = failure(request.arch.id, error)
            self._answer(answer)


class Watch(Desk):
    """One thread looks after all architectures at once, turn by turn: soon while things happen,
    less and less often while nothing does. What is away for a moment is asked again."""

    def __init__(self, away_s: float) -> None:
        super().__init__()
        self._away_s = away_s

    @abstractmethod
    def _take(self, request: Request) -> None:
        """Remember an architecture that was sent."""

    @abstractmethod
    def _look(self) -> bool:
        """Do all that can be done now; whether anything happened."""

    @abstractmethod
    def _waiting(self) -> list[str]:
        """The ids of those that are not answered yet."""

    @abstractmethod
    def _forget(self, arch_id: str) -> None: ...

    def _run(self) -> None:
        pause, away_since = SHORTEST_PAUSE_S, 0.0
        while not self._closing.is_set():
            came = self._take_all()
            try:
                happened, away_since = self._look(), 0.0
            except (StoreUnavailable, ComputeUnavailable) as error:
                happened = False
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > self._away_s:
                    self._give_up(error)
            except Exception as error:  # noqa: BLE001 - all that wait get it as their answer
                happened = True
                self._give_up(error)
            pause = SHORTEST_PAUSE_S if came or happened else min(pause * 1.5, LONGEST_PAUSE_S)
            self._news.wait(pause if self._waiting() else None)
            self._news.clear()

    def _take_all(self) -> bool:
        came = False
        with contextlib.suppress(Empty):
            while (request := self._inbox.get_nowait()) is not None:
                self._take(request)
                came = True
        return came

    def _give_up(self, error: Exception) -> None:
        for arch_id in self._waiting():
            self._settle(failure(arch_id, error, is_final=False))

    def _settle(self, answer: Answer) -> None:
        self._forget(answer.arch_id)
        self._answer(answer)


def _words(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
