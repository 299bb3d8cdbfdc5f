"""Evaluators that work in threads: a queue of requests, a queue of evaluations.

An architecture that is being evaluated is not started a second time, and each gets exactly one
evaluation whatever goes wrong: a thread that died silently would leave a search waiting.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue

from edgeloop._util.redact import redact
from edgeloop.errors import (
    BadInput,
    ComputeUnavailable,
    EdgeloopError,
    MemoryExceeded,
    ModelFailed,
    StoreUnavailable,
    TimeLimitReached,
    TrainingFailed,
)
from edgeloop.search.base import Evaluation, Evaluator
from edgeloop.search.nets.architecture import (
    AnyArchitecture,
    Architecture,
    architecture_from,
)

SHORTEST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 4.0
_END_LIMIT_S = 30.0


@dataclass(frozen=True)
class Request:
    """An architecture that was sent, its files, where its training pauses, and when it was sent
    (monotonic)."""

    arch: Architecture
    files: Mapping[str, Path] = field(default_factory=dict)
    until: int | None = None
    sent: float = field(default_factory=time.monotonic)


def failure(arch_id: str, error: Exception | str, is_final: bool | None = None) -> Evaluation:
    """An evaluation with an error, as one sentence. Unless given, `is_final` follows from the
    error: what is wrong with the candidate itself stays wrong. A time limit is not the candidate's
    fault, and whoever set it has given it more time before this."""
    if is_final is None:
        is_final = isinstance(error, BadInput | MemoryExceeded | ModelFailed | TrainingFailed)
    text = str(error)
    if not isinstance(error, str | EdgeloopError):
        first_line = text.strip().partition("\n")[0]
        text = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    overran = isinstance(error, TimeLimitReached)
    sentence = redact(" ".join(text.split()))
    return Evaluation(arch_id, error=sentence, is_final=is_final, overran=overran)


def _drained(queue: SimpleQueue[Evaluation], timeout_s: float) -> list[Evaluation]:
    """All evaluations in a queue; waits for the first one."""
    evaluations = []
    with contextlib.suppress(Empty):
        evaluations.append(queue.get(timeout=max(0.0, timeout_s)))
        while True:
            evaluations.append(queue.get_nowait())
    return evaluations


class BusyTime:
    """When how many architectures were in evaluation."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []  # from when on, and how many
        self._last_came = 0

    def note(self, active: int, now: float) -> None:
        if not self._seen or active > self._seen[-1][1]:
            self._last_came = len(self._seen)
        self._seen.append((now, active))

    def share(self, places: int) -> float | None:
        """Of so many places, until the last architecture came: then fewer and fewer are left."""
        seen = self._seen[: self._last_came + 1]
        spans = [
            (until - since, min(active, places))
            for (since, active), (until, _) in itertools.pairwise(seen)
        ]
        total_s = sum(span_s for span_s, _ in spans)
        busy_s = sum(span_s * busy for span_s, busy in spans)
        return busy_s / (places * total_s) if total_s else None


class ThreadedEvaluator(Evaluator):
    """Each of its threads executes `_run`."""

    def __init__(self, threads: int = 1) -> None:
        self._inbox: SimpleQueue[Request | None] = SimpleQueue()
        self._outbox: SimpleQueue[Evaluation] = SimpleQueue()
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._active: set[str] = set()
        self._busy = BusyTime()
        self._until: dict[str, int | None] = {}
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def pause(self, arch: AnyArchitecture, until: int | None) -> None:
        self._until[architecture_from(arch).id] = until

    def send(self, arch: AnyArchitecture, files: Mapping[str, Path] | None = None) -> None:
        """Programs may pass its JSON, or the path of a file with that, instead of the object.
        Raises BadArchitecture, or LocalFileError for a file that cannot be read."""
        self.send_all([(architecture_from(arch), files or {})])

    def send_all(self, several: Sequence[tuple[Architecture, Mapping[str, Path]]]) -> None:
        """A thread that empties the inbox under the lock sees all of them or none."""
        with self._lock:
            if self._closing.is_set():
                raise BadInput(reason="This evaluator is closed: create a new one")
            for thread in self._threads:
                if thread.ident is None:
                    thread.start()
            for arch, files in several:
                if arch.id not in self._active:
                    self._active.add(arch.id)
                    self._inbox.put(Request(arch, dict(files), self._until.get(arch.id)))
            self._busy.note(len(self._active), time.monotonic())
        self._wake.set()

    def collect(self, timeout_s: float) -> list[Evaluation]:
        return _drained(self._outbox, timeout_s)

    def answer_to(self, outbox: SimpleQueue[Evaluation]) -> None:
        """Put evaluations there instead, before anything is sent; `collect` then returns none."""
        self._outbox = outbox

    def close(self) -> None:
        """Evaluations that are not finished are abandoned."""
        with self._lock:
            self._closing.set()
        self._wake.set()
        for _ in self._threads:
            self._inbox.put(None)
        self._stop()
        self._join()

    def busy_share(self, places: int) -> float | None:
        with self._lock:
            return self._busy.share(places)

    @abstractmethod
    def _run(self) -> None: ...

    def _stop(self) -> None:
        """End whatever the threads wait for."""

    def _join(self, interrupt: Callable[[], object] = lambda: None) -> None:
        """Wait for the threads, up to a limit. `interrupt` is called repeatedly: what it ends may
        be started again just after the call."""
        deadline = time.monotonic() + _END_LIMIT_S
        while time.monotonic() < deadline and any(t.is_alive() for t in self._threads):
            interrupt()
            for thread in self._threads:
                if thread.is_alive():
                    thread.join(0.05)

    def _finish(self, evaluation: Evaluation) -> None:
        with self._lock:
            if self._closing.is_set():
                return
            self._active.discard(evaluation.arch_id)
            self._busy.note(len(self._active), time.monotonic())
        self._outbox.put(evaluation)


class PoolEvaluator(ThreadedEvaluator):
    """A thread pool: each thread evaluates one architecture at a time."""

    @abstractmethod
    def _work(self, request: Request) -> Evaluation: ...

    def _run(self) -> None:
        while (request := self._inbox.get()) is not None and not self._closing.is_set():
            try:
                evaluation = self._work(request)
            except Exception as error:  # noqa: BLE001 - any error belongs to this architecture
                evaluation = failure(request.arch.id, error)
            self._finish(evaluation)


class PollingEvaluator(ThreadedEvaluator):
    """One thread polls the state of all architectures: often while something happens, with longer
    and longer pauses while nothing does. A store or compute may be away for `away_s`."""

    def __init__(self, away_s: float) -> None:
        super().__init__()
        self._away_s = away_s

    @abstractmethod
    def _take(self, request: Request) -> None:
        """Take note of an architecture that was sent."""

    @abstractmethod
    def _poll(self) -> bool:
        """Do all that can be done now; returns whether anything changed."""

    @abstractmethod
    def _waiting(self) -> list[str]:
        """The ids of those without an evaluation yet."""

    @abstractmethod
    def _forget(self, arch_id: str) -> None: ...

    def _run(self) -> None:
        pause, away_since = SHORTEST_PAUSE_S, 0.0
        while not self._closing.is_set():
            has_new = False
            with self._lock, contextlib.suppress(Empty):
                while (request := self._inbox.get_nowait()) is not None:
                    self._take(request)
                    has_new = True
            try:
                has_changed, away_since = self._poll(), 0.0
            except (StoreUnavailable, ComputeUnavailable) as error:
                has_changed = False
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > self._away_s:
                    self._give_up(error)
            except Exception as error:  # noqa: BLE001 - all that wait fail with it
                has_changed = True
                self._give_up(error)
            is_busy = has_new or has_changed
            pause = SHORTEST_PAUSE_S if is_busy else min(pause * 1.5, LONGEST_PAUSE_S)
            self._wake.wait(pause if self._waiting() else None)
            self._wake.clear()

    def _give_up(self, error: Exception) -> None:
        for arch_id in self._waiting():
            self._settle(failure(arch_id, error, is_final=False))

    def _settle(self, evaluation: Evaluation) -> None:
        self._forget(evaluation.arch_id)
        self._finish(evaluation)


# Several evaluators of the same kind as one, so that several architectures are evaluated at a time,
# each in processes of its own.


_AHEAD = 2  # architectures that each has, so that it never waits for the next one


class EvaluatorGroup(Evaluator):
    """Each of `several` gets another architecture when it is done with one: a slow one holds up
    none but its own. The first ones are preferred: those that are never needed start nothing.

    One that lacked memory is tried once more, alone, while all the memory is its own: as long as
    that takes, `whole_memory` is entered.
    """

    def __init__(
        self,
        several: Sequence[ThreadedEvaluator],
        whole_memory: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        first = several[0]
        self.gives, self.beside, self.cost = first.gives, first.beside, first.cost
        self.conditions, self.label = first.conditions, first.label
        self._several = list(several)
        self._queue: deque[tuple[Architecture, Mapping[str, Path]]] = deque()
        self._owner: dict[str, int] = {}  # by the id of an architecture that is being evaluated
        self._answers: SimpleQueue[Evaluation] = SimpleQueue()
        self._whole_memory = whole_memory
        self._sent: dict[str, tuple[Architecture, Mapping[str, Path]]] = {}  # and not answered
        self._hungry: deque[str] = deque()  # those that lacked memory
        self._alone: contextlib.ExitStack | None = None  # open while one is tried alone
        for evaluator in several:
            evaluator.answer_to(self._answers)

    def send(self, arch: Architecture, files: Mapping[str, Path] | None = None) -> None:
        if arch.id not in self._sent and all(arch.id != other.id for other, _ in self._queue):
            self._queue.append((arch, files or {}))
        self._distribute()

    def collect(self, timeout_s: float) -> list[Evaluation]:
        settled = map(self._settled, _drained(self._answers, timeout_s))
        evaluations = [evaluation for evaluation in settled if evaluation is not None]
        self._distribute()
        return evaluations

    def close(self) -> None:
        self._queue.clear()
        self._hungry.clear()
        self._end_alone()
        for evaluator in self._several:
            evaluator.close()

    def depends_on(self, name: str) -> str:
        return self._several[0].depends_on(name)

    def known(self, results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        return self._several[0].known(results)

    def stored(self, values: Mapping[str, float]) -> Mapping[str, Mapping[str, float]]:
        return self._several[0].stored(values)

    @property
    def capacity(self) -> int:
        return len(self._several)

    def _settled(self, evaluation: Evaluation) -> Evaluation | None:
        """None for one that is tried again."""
        arch_id, is_alone = evaluation.arch_id, self._alone is not None
        self._owner.pop(arch_id, None)
        self._end_alone()
        if evaluation.lacks_memory and not is_alone and arch_id in self._sent:
            self._hungry.append(arch_id)
            return None
        self._sent.pop(arch_id, None)
        return replace(evaluation, is_final=True) if evaluation.lacks_memory else evaluation

    def _end_alone(self) -> None:
        if self._alone is not None:
            self._alone.close()
            self._alone = None

    def _distribute(self) -> None:
        """Send to the evaluator with the least to do. Nothing new is sent while an architecture
        waits to be evaluated alone."""
        if self._hungry:
            if not self._owner:
                arch, files = self._sent[self._hungry.popleft()]
                self._alone = contextlib.ExitStack()
                self._alone.enter_context(self._whole_memory())
                self._owner[arch.id] = 0
                self._several[0].send(arch, files)
            return
        while self._queue and self._alone is None:
            owners = list(self._owner.values())
            loads = [owners.count(place) for place in range(len(self._several))]
            place = loads.index(min(loads))
            if loads[place] >= _AHEAD:
                return
            arch, files = self._queue.popleft()
            self._owner[arch.id] = place
            self._sent[arch.id] = (arch, files)
            self._several[place].send(arch, files)
