"""The search loop: candidates pass from cheap evaluators to expensive ones, several at a time.

All evaluators of one cost work on a candidate in parallel, so training and measuring overlap; those
of the next cost wait for them. A candidate that violates a constraint is screened out as soon as
that is known. A free slot is given to a new candidate at once, and there are more slots than
workers (`ScreeningPace`), so that a worker that gets free finds a screened one. If the
configuration asks for batches, a whole round is chosen before any of it starts. An evaluator that
prefers groups gets one when it is full, or when no other candidate can become ready before these
have ended.

With early stopping, a training pauses at its rungs. A paused candidate holds no slot. A free slot
is given first to the paused candidate that should continue; those that never do end as stopped.

Results are in the status table before the study records that a candidate ended or paused. So a
search that is killed at any point loses nothing and evaluates nothing twice.

Start reading in `SearchLoop.run`; `_advance` takes one candidate from cost to cost.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from edgeloop.errors import SearchFailed
from edgeloop.models.catalog import Candidates
from edgeloop.search.base import Evaluation, Evaluator, broken_constraint, columns_of
from edgeloop.search.config import TRAINED, SearchConfig
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.pool import FAULTS, HOPELESS, Bank, pool_of
from edgeloop.search.stopping import Ladder
from edgeloop.search.study import Candidate, End, Study, patiently

COLLECT_S = 0.2
_OF_LATE = 8
_IDLE = 0.1  # of the time that a training takes, workers may wait for screening


@dataclass(frozen=True)
class Event:
    """A step of a candidate, for progress output."""

    candidate: Candidate
    what: End | Literal["begun", "paused", "dropped"]
    values: Mapping[str, float]
    reason: str = ""


@dataclass(frozen=True)
class SearchListener:
    """Callbacks of a search loop: `hear` for every step of a candidate, `keep` for the files of an
    evaluation before its result is stored, `tell` for a sentence about a delay."""

    hear: Callable[[Event], None] = lambda _: None
    keep: Callable[[Architecture, Mapping[str, Path]], None] = lambda _, __: None
    tell: Callable[[str], None] = lambda _: None


@dataclass
class _OpenCandidate:
    """A candidate that holds a slot, or is paused. Evaluators are meant by their index."""

    candidate: Candidate
    values: dict[str, float] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    cost: int = -1  # of the evaluators that were asked last
    awaited: set[int] = field(default_factory=set)  # evaluators that have not answered yet
    attempts: dict[int, int] = field(default_factory=dict)  # by evaluator
    rungs: dict[int, dict[str, float]] = field(default_factory=dict)  # values at each pause
    until: int = 0  # where its training ends next, if trainings have rungs
    is_paused: bool = False
    is_promoted: bool = False  # it continues a training instead of starting at the first evaluator
    started_s: float = 0.0  # monotonic

    @property
    def id(self) -> str:
        return self.candidate.arch.id


@dataclass
class ScreeningPace:
    """How long candidates of late took until they could be trained, and in training."""

    screened_s: deque[float] = field(default_factory=lambda: deque(maxlen=_OF_LATE))
    trained_s: deque[float] = field(default_factory=lambda: deque(maxlen=_OF_LATE))

    def ahead(self, workers: int) -> int:
        """How many candidates to have ready beyond those in training, so that a worker that gets
        free finds one: the more, the longer screening takes. At most one for each worker, since all
        that are chosen early are chosen with less knowledge."""
        if not self.screened_s or not self.trained_s:
            return 1
        screened_s = sum(self.screened_s) / len(self.screened_s)
        trained_s = sum(self.trained_s) / len(self.trained_s)
        # Trainings that begin together end together: all workers then wait in turn.
        needed = math.ceil(workers * screened_s / max(_IDLE * trained_s, 1e-9))
        return min(workers, max(1, needed))


class SearchLoop:
    """Runs until the budget is spent. Results are stored in `table`."""

    def __init__(
        self,
        config: SearchConfig,
        study: Study,
        evaluators: Sequence[Evaluator],
        table: Candidates,
        listener: SearchListener | None = None,
        bank: Bank | None = None,
    ) -> None:
        self._config = config
        self._study = study
        self._evaluators = sorted(evaluators, key=lambda evaluator: evaluator.cost)
        self._table = table
        self._listener = listener or SearchListener()
        self._open: dict[str, _OpenCandidate] = {}  # those that hold a slot
        self._paused: dict[str, _OpenCandidate] = {}
        self._round: list[_OpenCandidate] = []  # of `_open`, waiting for their round to be whole
        self._groups: dict[int, list[_OpenCandidate]] = {}  # by evaluator, waiting to be sent
        self._ladder: Ladder | None = None
        self._pace = ScreeningPace()
        self._ended = 0
        self._failed = 0
        self._failed_where: Counter[str] = Counter()  # in this run
        self._fruitless = 0  # candidates in a row that violated a constraint
        self._dropped_in_a_row = 0
        self._is_exhausted = False
        self._pool = pool_of(
            config, study, self._evaluators, bank, self._slots, self._listener.tell
        )

    def run(self) -> list[Candidate]:
        """All candidates, once the budget is spent or the space has no other member."""
        self._resume()
        while True:
            has_filled = self._fill_slots()
            self._start_round()
            self._plan_screening()
            if not (has_filled or self._open or self._is_screening):
                break
            self._send_groups()
            self._collect()
        self._stop_paused()
        candidates = patiently(self._study.candidates)
        if self._study.earlier() and all(item.state != "failed" for item in candidates):
            return candidates  # results of earlier searches are enough of a result
        _check_result(candidates, self._where_failed())
        return candidates

    @property
    def is_exhausted(self) -> bool:
        """Whether the space had fewer members than the budget."""
        return self._is_exhausted

    @property
    def screened(self) -> tuple[int, int]:
        """How many members of the space were screened for a pool, and how many of them violate a
        constraint or cannot be built."""
        return (0, 0) if self._pool is None else self._pool.counts()

    # The state of the search

    @property
    def _slots(self) -> int:
        """One worker alone proceeds strictly in turn, so that a seeded search is reproducible. With
        several, more candidates are ready while they are all busy."""
        workers = self._config.workers
        largest_group = max(evaluator.together for evaluator in self._evaluators)
        ahead = self._pace.ahead(workers) if workers > 1 else 0
        return self._config.batch or max(workers + ahead, largest_group)

    @property
    def _is_last(self) -> bool:
        """Whether no candidate is left to begin."""
        begun = self._ended + len(self._open) + len(self._paused)
        return self._is_exhausted or begun >= self._config.budget

    @property
    def _is_screening(self) -> bool:
        """Whether another candidate will come out of what is being screened."""
        return self._pool is not None and self._pool.is_screening and not self._is_last

    def _resume(self) -> None:
        """Continue with the candidates that an earlier run left, and count those that ended."""
        candidates = patiently(self._study.candidates)
        self._ended = sum(item.state != "running" for item in candidates)
        self._failed = sum(item.state == "failed" for item in candidates)
        for item in candidates:
            self._count_fruitless(item.state)
        if self._config.rungs is not None:
            self._ladder = Ladder(self._config, self._config.rungs, candidates)
        unfinished = patiently(self._study.unfinished)
        if self._pool is not None:
            self._pool.open(candidates)
        incomplete_round = self._incomplete_round(candidates)
        for candidate in unfinished:
            self._begin(candidate, is_held=candidate.arch.id in incomplete_round)

    def _incomplete_round(self, candidates: Sequence[Candidate]) -> set[str]:
        """The candidates of a round that a kill interrupted while it was being chosen."""
        count = len(candidates) % self._config.batch if self._config.batch else 0
        last = candidates[len(candidates) - count :]
        has_started = self._ladder is not None or any(item.state != "running" for item in last)
        return set() if has_started else {item.arch.id for item in last}

    # Slots: a paused candidate is promoted, or a new one is proposed

    def _fill_slots(self) -> bool:
        """Give free slots to candidates; returns whether one was given."""
        # In batch mode the whole round is chosen before any of it starts, so its own results cannot
        # influence it. A round that has started takes no further candidates.
        if self._config.batch and self._open and not self._round:
            return False
        has_filled = False
        while len(self._open) < self._slots and (self._promote() or self._propose()):
            has_filled = True
        return has_filled

    def _promote(self) -> bool:
        """Continue the most promising paused training; returns whether there is one."""
        if self._ladder is None or not self._paused:
            return False
        chosen = self._ladder.next(is_last=self._is_last)
        if chosen is None:
            return False
        entry = self._paused.pop(chosen)
        self._open[chosen] = entry
        entry.until = self._ladder.rungs.after(max(entry.rungs))
        entry.is_paused, entry.is_promoted = False, True
        # Stored before it continues: after a kill the training goes on to the same rung.
        patiently(lambda: self._study.promote(entry.candidate, entry.until))
        self._ladder.record(entry.candidate, entry.rungs)
        self._launch(entry, is_held=self._config.batch > 0)
        return True

    def _propose(self) -> bool:
        """Begin a new candidate; returns whether a slot was filled."""
        if self._is_last:
            return False
        candidate = self._next_candidate()
        if candidate is not None:
            self._begin(candidate, is_held=self._config.batch > 0)
            return True
        self._is_exhausted = self._pool is None or self._pool.is_exhausted
        # With no candidate left to begin, every paused one that is not beaten may continue.
        return self._is_exhausted and self._promote()

    def _next_candidate(self) -> Candidate | None:
        has_tried = False

        def attempt() -> Candidate | None:
            nonlocal has_tried
            # If the store went away at the wrong moment, it has stored a candidate without
            # confirming it: that one is used before another is proposed.
            unconfirmed = self._study.unfinished() if has_tried else []
            has_tried = True
            for item in unconfirmed:
                if item.arch.id not in self._open and item.arch.id not in self._paused:
                    if self._pool is not None:
                        self._pool.follow(item)
                    return item
            return self._study.propose() if self._pool is None else self._pool.next()

        return patiently(attempt)

    def _begin(self, candidate: Candidate, is_held: bool) -> None:
        """Give a slot to a new candidate, or to one of an earlier run."""
        rungs = {at: dict(values) for at, values in candidate.rungs.items()}
        entry = _OpenCandidate(candidate, rungs=rungs)
        self._open[entry.id] = entry
        self._launch(entry, is_held)

    def _launch(self, entry: _OpenCandidate, is_held: bool) -> None:
        """Start or continue its evaluation, or hold it until its round is whole."""
        if is_held:
            self._round.append(entry)
        elif entry.is_promoted:
            self._continue_training(entry)
        else:
            self._start(entry)

    def _start_round(self) -> None:
        """Start the candidates of a round once it is whole."""
        if len(self._open) >= self._slots or self._is_last:
            held, self._round = self._round, []
            for entry in held:
                self._launch(entry, is_held=False)

    def _plan_screening(self) -> None:
        if self._pool is not None:
            pool, is_training = self._pool, bool(self._open) and not self._round
            patiently(lambda: pool.prepare(is_training=is_training))

    # One candidate, from evaluator to evaluator

    def _start(self, entry: _OpenCandidate) -> None:
        # Values from before a resume are not used if their conditions have changed since, such as
        # the version of the compiler.
        if entry.candidate.values and self._study.is_current(entry.candidate):
            self._store_screened(entry)
        self._listener.hear(Event(entry.candidate, "begun", {}))
        entry.started_s = time.monotonic()
        self._advance(entry)

    def _store_screened(self, entry: _OpenCandidate) -> None:
        """What was known before a candidate was chosen is stored like any other result."""
        for evaluator in self._evaluators:
            names = (*evaluator.gives, *evaluator.beside)
            values = {n: v for n, v in entry.candidate.values.items() if n in names}
            if evaluator.cost == 0 and set(evaluator.gives) <= set(values):
                entry.values.update(values)
                self._store(entry, evaluator, values)

    def _advance(self, entry: _OpenCandidate) -> None:
        """As far as possible without waiting: constraints, then the evaluators of the next cost."""
        while not entry.awaited:
            broken = broken_constraint(entry.values, self._constraints(entry))
            if broken:
                self._end(entry, "screened", broken)
                return
            if entry.is_paused:
                self._pause(entry)
                return
            remaining = [e.cost for e in self._evaluators if e.cost > entry.cost]
            if not remaining:
                self._end(entry, "complete")
                return
            if entry.cost == 0:
                self._pace.screened_s.append(time.monotonic() - entry.started_s)
            entry.cost = min(remaining)
            for index, evaluator in enumerate(self._evaluators):
                if evaluator.cost == entry.cost and not self._recall(entry, evaluator):
                    if evaluator.can_pause and self._ladder is not None:
                        self._begin_training(entry, index, self._ladder)
                    else:
                        self._request(entry, index)

    def _constraints(self, entry: _OpenCandidate) -> Mapping[str, tuple[float, float]]:
        """Without those on scores while a training is paused: it will be better."""
        later = TRAINED if entry.is_paused else ()
        return {name: at for name, at in self._config.constraints.items() if name not in later}

    def _recall(self, entry: _OpenCandidate, evaluator: Evaluator) -> bool:
        """Use the results of an earlier search, or from before a kill; returns whether that makes
        the evaluator needless."""
        if evaluator.cost == 0 and set(evaluator.gives) <= set(entry.values):
            return True
        # The table has values and no files: a later evaluator needs the trained model itself.
        if evaluator.cost == 1 and any(other.cost == 2 for other in self._evaluators):
            return False
        values = evaluator.known(patiently(lambda: self._table.all_results(entry.id)))
        if not set(evaluator.gives) <= set(values):
            return False
        entry.values.update(values)
        return True

    def _begin_training(self, entry: _OpenCandidate, index: int, ladder: Ladder) -> None:
        """To the first rung; a candidate of an earlier run to where it was promoted, or it is
        paused again."""
        reached = max(entry.rungs, default=0)
        entry.until = entry.candidate.promoted if reached else ladder.rungs.after(0)
        if entry.until > reached:
            self._request(entry, index)
            return
        screening = [evaluator for evaluator in self._evaluators if evaluator.cost == 0]
        cheap = {name for one in screening for name in (*one.gives, *one.beside)}
        trained = {n: v for n, v in entry.rungs[reached].items() if n not in cheap}
        entry.values = {**trained, **entry.values}
        entry.is_paused = True

    def _continue_training(self, entry: _OpenCandidate) -> None:
        for index, evaluator in enumerate(self._evaluators):
            if evaluator.can_pause:
                entry.attempts[index] = 0
                self._request(entry, index)

    def _pause(self, entry: _OpenCandidate) -> None:
        assert self._ladder is not None
        reached = max(entry.rungs)
        entry.rungs[reached] = dict(entry.values)
        del self._open[entry.id]
        self._paused[entry.id] = entry
        # Everything known at this rung is in the study before it decides about others.
        if dict(entry.candidate.rungs) != entry.rungs:
            patiently(lambda: self._study.pause(entry.candidate, entry.rungs))
            reason = self._ladder.rungs.text(reached)
            self._listener.hear(Event(entry.candidate, "paused", dict(entry.values), reason))
        self._ladder.record(entry.candidate, entry.rungs, waits=True)

    def _stop_paused(self) -> None:
        for entry in sorted(self._paused.values(), key=lambda one: one.candidate.number):
            assert self._ladder is not None
            reason = self._ladder.rungs.text(max(entry.rungs))
            self._end(entry, "stopped", f"{reason}: others are better")
            for evaluator in self._evaluators:
                evaluator.discard(entry.candidate.arch)

    # Requests to evaluators, and their answers

    def _request(self, entry: _OpenCandidate, index: int) -> None:
        """Send a candidate to an evaluator, or let it wait for a group."""
        evaluator = self._evaluators[index]
        if entry.until and evaluator.can_pause:
            evaluator.pause(entry.candidate.arch, entry.until)
        if evaluator.together > 1:
            entry.awaited.add(index)
            self._groups.setdefault(index, []).append(entry)
        else:
            self._send(entry, index)

    def _send(self, entry: _OpenCandidate, index: int) -> None:
        entry.awaited.add(index)
        entry.attempts[index] = entry.attempts.get(index, 0) + 1
        self._evaluators[index].send(entry.candidate.arch, dict(entry.files))

    def _send_groups(self) -> None:
        """Send groups of the size that each evaluator prefers, and smaller ones that cannot
        grow."""
        for index, waiting in self._groups.items():
            size = self._evaluators[index].together
            while len(waiting) >= size or (waiting and not self._may_grow(index, waiting)):
                group, waiting[:] = waiting[:size], waiting[size:]
                for entry in group:
                    entry.attempts[index] = 1
                several = [(entry.candidate.arch, dict(entry.files)) for entry in group]
                self._evaluators[index].send_all(several)

    def _may_grow(self, index: int, waiting: Sequence[_OpenCandidate]) -> bool:
        """Whether another candidate may become ready while these wait."""
        cost = self._evaluators[index].cost
        if any(entry.cost < cost for entry in self._open.values()):
            return True
        if self._is_screening and len(self._open) < self._slots:
            return True
        if self._config.batch or self._is_last:
            return False
        return len(self._open) > len(waiting)  # each that ends makes room for a new one

    def _collect(self) -> None:
        """Take the answers of all evaluators that are at work. Only the first is waited for:
        screening while a slot is free, otherwise the most expensive one, which keeps slots busy."""
        pool = self._pool
        at_work = {index for entry in self._open.values() for index in entry.awaited}
        if pool is not None and pool.is_screening:
            at_work |= {index for index, one in enumerate(self._evaluators) if one.cost == 0}
        is_expensive_first = pool is not None and len(self._open) >= self._slots
        for place, index in enumerate(sorted(at_work, reverse=is_expensive_first)):
            evaluator = self._evaluators[index]
            for evaluation in evaluator.collect(COLLECT_S if place == 0 else 0.0):
                entry = self._open.get(evaluation.arch_id)
                if entry is not None and index in entry.awaited:
                    self._receive(entry, index, evaluation)
                elif pool is not None and evaluator.cost == 0:
                    pool.receive(evaluator, evaluation)
        if pool is not None and (self._round or not self._open):
            pool.report()

    def _receive(self, entry: _OpenCandidate, index: int, evaluation: Evaluation) -> None:
        evaluator = self._evaluators[index]
        entry.awaited.discard(index)
        error = evaluation.error or self._missing(evaluator, evaluation)
        if error:
            is_unjudged = bool(evaluation.error) and evaluation.is_unjudged
            self._retry_or_fail(entry, index, error, evaluation.is_final, is_unjudged)
            return
        if evaluator.cost == 1 and evaluation.seconds > 0:
            self._pace.trained_s.append(evaluation.seconds)
        entry.values.update(evaluation.values)
        entry.files.update(evaluation.files)
        self._listener.keep(entry.candidate.arch, evaluation.files)
        if evaluation.paused_at:
            entry.rungs[evaluation.paused_at] = dict(entry.values)
            entry.is_paused = True
        self._store(entry, evaluator, evaluation.values, evaluation.paused_at)
        if entry.id in self._open:
            self._advance(entry)

    def _missing(self, evaluator: Evaluator, evaluation: Evaluation) -> str:
        """Values that an evaluator owes, as an error."""
        missing = set(evaluator.gives) - set(evaluation.values)
        # An evaluator stops at a violated constraint: the other values would be of no use.
        if not missing or broken_constraint(evaluation.values, self._config.constraints):
            return ""
        return f"it has no {', '.join(sorted(missing))}"

    def _retry_or_fail(
        self, entry: _OpenCandidate, index: int, error: str, is_final: bool, is_unjudged: bool
    ) -> None:
        if not is_final and entry.attempts[index] <= self._config.retries:
            self._send(entry, index)
        elif is_unjudged:
            self._drop(entry, error)
        else:
            self._failed_where[self._evaluators[index].label] += 1
            self._end(entry, "failed", error)

    def _store(
        self,
        entry: _OpenCandidate,
        evaluator: Evaluator,
        values: Mapping[str, float],
        paused_at: int = 0,
    ) -> None:
        arch, results = entry.candidate.arch, evaluator.stored(values)
        if paused_at:  # a score at a pause is not the result under these conditions
            results = {f"{name}, paused at {paused_at}": at for name, at in results.items()}
        columns = columns_of(values, entry.candidate.place // self._config.iteration)
        patiently(lambda: self._table.note_all(arch.id, arch.canonical, results, columns))

    # Ends

    def _drop(self, entry: _OpenCandidate, reason: str) -> None:
        """Give its budget back: a limit of this machine says nothing about the candidate."""
        self._close(entry)
        patiently(lambda: self._study.drop(entry.candidate, reason))
        self._listener.hear(Event(entry.candidate, "dropped", {}, reason))
        self._dropped_in_a_row += 1
        if self._dropped_in_a_row >= FAULTS:
            raise SearchFailed(
                reason=f"{FAULTS} candidates in a row could not be evaluated on this machine; the "
                f"last one: {reason.rstrip('.')}. Fix that and --resume"
            )

    def _close(self, entry: _OpenCandidate) -> None:
        """It holds no slot any more, and waits for nothing."""
        self._open.pop(entry.id, None)
        self._paused.pop(entry.id, None)
        for waiting in self._groups.values():
            waiting[:] = [other for other in waiting if other is not entry]

    def _end(self, entry: _OpenCandidate, end: End, reason: str = "") -> None:
        self._close(entry)
        self._dropped_in_a_row = 0
        patiently(lambda: self._study.end(entry.candidate, end, entry.values, reason))
        self._ended += 1
        self._failed += end == "failed"
        self._count_fruitless(end)
        if self._ladder is not None:
            self._ladder.end(entry.candidate, entry.rungs, end, entry.values)
        ended = replace(entry.candidate, rungs=entry.rungs)
        self._listener.hear(Event(ended, end, dict(entry.values), reason))
        self._check_progress(reason)

    def _check_progress(self, reason: str) -> None:
        """Give up a search in which too many candidates fail or violate constraints."""
        if self._failed > self._config.failures:
            raise SearchFailed(
                reason=f"{self._failed} candidates failed{self._where_failed()}, more than "
                f"search.failures allows ({self._config.failures}); the last one: {reason}"
            )
        if self._fruitless >= HOPELESS:
            raise SearchFailed(
                reason=f"none of {HOPELESS} candidates in a row met the constraints; the last "
                f"one: {reason}. Relax search.constraints or change the space"
            )

    def _where_failed(self) -> str:
        """Where candidates failed, unless some of them did in an earlier run."""
        if self._failed_where.total() < self._failed:
            return ""
        if len(self._failed_where) == 1:
            return f" {next(iter(self._failed_where))}"
        return f" ({', '.join(f'{count} {at}' for at, count in self._failed_where.items())})"

    def _count_fruitless(self, state: str) -> None:
        """Screened candidates in a row: one that failed later had met the constraints."""
        if state in ("complete", "stopped", "failed"):
            self._fruitless = 0
        self._fruitless += state == "screened"


def _check_result(candidates: Sequence[Candidate], where_failed: str) -> None:
    """A search without a single complete candidate is an error that says why."""
    if not candidates or any(item.state == "complete" for item in candidates):
        return
    count = len(candidates)
    failed = [item for item in candidates if item.state == "failed"]
    if not failed:
        last = candidates[-1].reason.rstrip(".")
        reason = f"none of {count} candidates met the constraints; the last one: {last}"
        raise SearchFailed(reason=f"{reason}. Relax search.constraints or change the space")
    screened = count - len(failed)
    others = f" and {screened} did not meet the constraints" if screened else ""
    last = failed[-1].reason.rstrip(".")
    reason = f"none of {count} candidates has a result: {len(failed)} failed{where_failed}{others}"
    raise SearchFailed(reason=f"{reason}; the last error: {last}. Fix that first")
