"""The search loop: candidates pass from cheap evaluators to expensive ones, several at a time.

A candidate that violates a constraint is screened out as soon as that is known. All evaluators of
one cost work on it in parallel, so training and measuring overlap; those of the next cost wait for
them. A free slot is given to a new candidate at once, unless the configuration asks for batches.
An evaluator that prefers several at once gets them when so many are ready, or when no other one can
become ready before these have ended.

With early stopping, a training pauses at its rungs. A paused candidate holds no slot. A free slot
is given first to the paused candidate that should continue; those that never do end as stopped.

Results are in the status table before the study says that a candidate ended or paused. So a search
that is killed at any point loses nothing and evaluates nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from edgeloop.errors import SearchFailed
from edgeloop.models.catalog import Candidates
from edgeloop.search.base import Evaluation, Evaluator, broken_constraint, columns_of
from edgeloop.search.config import TRAINED, SearchConfig
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.pool import HOPELESS, Bank, pool_of
from edgeloop.search.stopping import Ladder
from edgeloop.search.study import Candidate, End, Study, patiently

LOOK_S = 0.2


@dataclass(frozen=True)
class Event:
    """A step of a candidate, for progress output."""

    candidate: Candidate
    what: End | Literal["begun", "paused"]
    values: Mapping[str, float]
    reason: str = ""


@dataclass
class _Open:
    """A candidate that is being evaluated."""

    candidate: Candidate
    values: dict[str, float] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    cost: int = -1
    owed: set[int] = field(default_factory=set)  # evaluators that are not done yet
    asked: dict[int, int] = field(default_factory=dict)
    rungs: dict[int, dict[str, float]] = field(default_factory=dict)  # values at each pause
    until: int = 0  # where its training ends next, if trainings have rungs
    is_paused: bool = False


class SearchLoop:
    """Runs until the budget is spent. `table` stores the results and `keep` the files of each
    evaluation; `hear` is called for every step."""

    def __init__(
        self,
        config: SearchConfig,
        study: Study,
        evaluators: Sequence[Evaluator],
        table: Candidates,
        hear: Callable[[Event], None] = lambda _: None,
        keep: Callable[[Architecture, Mapping[str, Path]], None] = lambda _, __: None,
        bank: Bank | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._study = study
        self._evaluators = sorted(evaluators, key=lambda evaluator: evaluator.cost)
        self._table = table
        self._hear = hear
        self._keep_files = keep
        self._open: dict[str, _Open] = {}
        self._held: dict[int, list[_Open]] = {}  # ready for an evaluator that takes several
        self._paused: dict[str, _Open] = {}
        self._ladder: Ladder | None = None
        self._ended = 0
        self._failed = 0
        self._failed_where: Counter[str] = Counter()  # in this run
        self._fruitless = 0
        self._is_exhausted = False
        self._round: list[Callable[[], None]] = []  # what begins as soon as the round is whole
        self._pool = pool_of(config, study, self._evaluators, bank, self._slots, tell)

    def run(self) -> list[Candidate]:
        """All candidates, once the budget is spent or the space has no other member."""
        known = patiently(self._study.candidates)
        self._ended = sum(item.state != "running" for item in known)
        self._failed = sum(item.state == "failed" for item in known)
        for item in known:
            self._count_fruitless(item.state)
        if self._config.rungs is not None:
            self._ladder = Ladder(self._config, self._config.rungs, known)
        unfinished = patiently(self._study.unfinished)
        if self._pool is not None:
            self._pool.open(known)
        cut_off = self._cut_off_round(known)
        for candidate in unfinished:
            self._begin(candidate, is_held=candidate.arch.id in cut_off)
        while self._fill() or self._open or self._is_screening:
            self._release()
            self._look()
        self._stop_paused()
        found = patiently(self._study.candidates)
        is_enough = self._study.earlier() and all(item.state != "failed" for item in found)
        return found if is_enough else _with_result(found, self._where())

    @property
    def is_exhausted(self) -> bool:
        """Whether the space had fewer members than the budget."""
        return self._is_exhausted

    @property
    def screened(self) -> tuple[int, int]:
        """How many members of the space were screened for a pool, and how many of them violate a
        constraint or cannot be built."""
        return (0, 0) if self._pool is None else self._pool.counts()

    @property
    def _slots(self) -> int:
        """One worker alone proceeds strictly in turn, so that a seeded search is reproducible. With
        several, one more candidate is ready while they are all busy."""
        workers = self._config.workers
        most = max(evaluator.together for evaluator in self._evaluators)
        return self._config.batch or max(workers + (workers > 1), most)

    @property
    def _cheap(self) -> set[str]:
        """The values of screening."""
        screening = [evaluator for evaluator in self._evaluators if evaluator.cost == 0]
        return {name for one in screening for name in (*one.gives, *one.beside)}

    @property
    def _is_spent(self) -> bool:
        return self._ended + len(self._open) + len(self._paused) >= self._config.budget

    @property
    def _is_screening(self) -> bool:
        """Whether another candidate will come out of what is being screened."""
        is_over = self._is_exhausted or self._is_spent
        return self._pool is not None and self._pool.is_screening and not is_over

    def _fill(self) -> bool:
        """Start candidates while there are free slots; returns whether one was started. In batch
        mode none is, before the whole round was chosen: a result of the round would change it."""
        begun = False
        is_round = self._config.batch > 0
        is_under_way = is_round and bool(self._open) and not self._round
        while len(self._open) < self._slots and not is_under_way:
            if self._promote():
                begun = True
                continue
            if self._is_last():
                break
            candidate = self._next()
            if candidate is None:
                self._is_exhausted = self._pool is None or self._pool.is_exhausted
                if self._is_exhausted:
                    continue
                break
            self._begin(candidate, is_held=is_round)
            begun = True
        if len(self._open) >= self._slots or self._is_last():
            starts, self._round = self._round, []
            for start in starts:
                start()
        if self._pool is not None:
            pool, is_training = self._pool, bool(self._open) and not self._round
            patiently(lambda: pool.prepare(is_training=is_training))
        return begun

    def _cut_off_round(self, known: Sequence[Candidate]) -> set[str]:
        """The candidates of a round that a kill cut off while it was chosen."""
        count = len(known) % self._config.batch if self._config.batch else 0
        last = known[len(known) - count :]
        is_begun = self._ladder is not None or any(item.state != "running" for item in last)
        return set() if is_begun else {item.arch.id for item in last}

    def _is_last(self) -> bool:
        """Whether no candidate is left to begin."""
        return self._is_exhausted or self._is_spent

    def _promote(self) -> bool:
        """Continue the paused candidate that should continue next; returns whether there is one."""
        if self._ladder is None or not self._paused:
            return False
        chosen = self._ladder.next(is_last=self._is_last())
        if chosen is None:
            return False
        entry = self._paused.pop(chosen)
        self._open[chosen] = entry
        until = self._ladder.rungs.after(max(entry.rungs))
        patiently(lambda: self._study.promote(entry.candidate, until))
        self._ladder.record(entry.candidate, entry.rungs)
        if self._config.batch:
            self._round.append(lambda: self._continue(entry, until))
        else:
            self._continue(entry, until)
        return True

    def _continue(self, entry: _Open, until: int) -> None:
        entry.is_paused, entry.until = False, until
        for index, evaluator in enumerate(self._evaluators):
            if evaluator.can_pause:
                entry.asked[index] = 0
                self._give(entry, index)

    def _next(self) -> Candidate | None:
        """If the store goes away at the wrong moment, it has stored a candidate without confirming
        it: that one is used before another is proposed."""
        tries = 0

        def attempt() -> Candidate | None:
            nonlocal tries
            tries += 1
            for item in self._study.unfinished() if tries > 1 else ():
                if item.arch.id not in self._open and item.arch.id not in self._paused:
                    if self._pool is not None:
                        self._pool.follow(item)
                    return item
            return self._study.propose() if self._pool is None else self._pool.next()

        return patiently(attempt)

    def _begin(self, candidate: Candidate, *, is_held: bool = False) -> None:
        """It has its slot from now on; `is_held`: its evaluation begins with its round."""
        rungs = {at: dict(values) for at, values in candidate.rungs.items()}
        entry = _Open(candidate, rungs=rungs)
        self._open[candidate.arch.id] = entry
        if is_held:
            self._round.append(lambda: self._start(entry))
        else:
            self._start(entry)

    def _start(self, entry: _Open) -> None:
        candidate = entry.candidate
        if candidate.values and self._study.is_current(candidate):
            self._know(entry)
        self._hear(Event(candidate, "begun", {}))
        self._advance(entry)

    def _know(self, entry: _Open) -> None:
        """What was found before a candidate was chosen is stored like any other result, unless it
        was found under other conditions, before a resume."""
        for evaluator in self._evaluators:
            names = (*evaluator.gives, *evaluator.beside)
            values = {n: v for n, v in entry.candidate.values.items() if n in names}
            if evaluator.cost == 0 and set(evaluator.gives) <= set(values):
                entry.values.update(values)
                self._store(entry, evaluator, values)

    def _advance(self, entry: _Open) -> None:
        """As far as possible without waiting: constraints, then the evaluators of the next cost."""
        while not entry.owed:
            broken = broken_constraint(entry.values, self._constraints(entry))
            if broken:
                self._end(entry, "screened", broken)
                return
            if entry.is_paused:
                self._pause(entry)
                return
            left = [e.cost for e in self._evaluators if e.cost > entry.cost]
            if not left:
                self._end(entry, "complete")
                return
            entry.cost = min(left)
            for index, evaluator in enumerate(self._evaluators):
                if evaluator.cost != entry.cost or self._is_known(entry, evaluator):
                    continue
                if evaluator.can_pause and self._ladder is not None:
                    self._begin_training(entry, index, self._ladder)
                else:
                    self._give(entry, index)

    def _begin_training(self, entry: _Open, index: int, ladder: Ladder) -> None:
        """A candidate that paused before a kill is paused again, or continues to where it was."""
        reached = max(entry.rungs, default=0)
        entry.until = entry.candidate.promoted if reached else ladder.rungs.after(0)
        if entry.until > reached:
            self._give(entry, index)
        else:
            later = {n: v for n, v in entry.rungs[reached].items() if n not in self._cheap}
            entry.values = {**later, **entry.values}
            entry.is_paused = True

    def _give(self, entry: _Open, index: int) -> None:
        evaluator = self._evaluators[index]
        if entry.until and evaluator.can_pause:
            evaluator.pause(entry.candidate.arch, entry.until)
        if evaluator.together > 1:
            entry.owed.add(index)
            self._held.setdefault(index, []).append(entry)
        else:
            self._ask(entry, index)

    def _constraints(self, entry: _Open) -> Mapping[str, tuple[float, float]]:
        """Without those on scores while a training is paused: it will be better."""
        later = TRAINED if entry.is_paused else ()
        return {name: at for name, at in self._config.constraints.items() if name not in later}

    def _pause(self, entry: _Open) -> None:
        """Everything that is known at this rung is in the study before another one decides."""
        assert self._ladder is not None
        arch_id, reached = entry.candidate.arch.id, max(entry.rungs)
        entry.rungs[reached] = dict(entry.values)
        del self._open[arch_id]
        self._paused[arch_id] = entry
        if dict(entry.candidate.rungs) != entry.rungs:
            patiently(lambda: self._study.pause(entry.candidate, entry.rungs))
            reason = self._ladder.rungs.text(reached)
            self._hear(Event(entry.candidate, "paused", dict(entry.values), reason))
        self._ladder.record(entry.candidate, entry.rungs, waits=True)

    def _stop_paused(self) -> None:
        for entry in sorted(self._paused.values(), key=lambda one: one.candidate.number):
            assert self._ladder is not None
            reason = self._ladder.rungs.text(max(entry.rungs))
            self._end(entry, "stopped", f"{reason}: others are better")
            for evaluator in self._evaluators:
                evaluator.discard(entry.candidate.arch)

    def _release(self) -> None:
        """Send what is held, in groups of the size that each evaluator prefers."""
        for index, held in self._held.items():
            size = self._evaluators[index].together
            while len(held) >= size or (held and not self._may_grow(index, held)):
                group, held[:] = held[:size], held[size:]
                for entry in group:
                    entry.asked[index] = 1
                several = [(entry.candidate.arch, dict(entry.files)) for entry in group]
                self._evaluators[index].send_all(several)

    def _may_grow(self, index: int, held: Sequence[_Open]) -> bool:
        """Whether another candidate may become ready while these wait."""
        cost = self._evaluators[index].cost
        if any(entry.cost < cost for entry in self._open.values()):
            return True
        if self._is_screening and len(self._open) < self._slots:
            return True
        if self._config.batch or self._is_last():
            return False
        return len(self._open) > len(held)  # each that ends makes room for a new one

    def _is_known(self, entry: _Open, evaluator: Evaluator) -> bool:
        """From an earlier search or from before a kill. Not if a later evaluator needs files."""
        if evaluator.cost == 0 and set(evaluator.gives) <= set(entry.values):
            return True
        if any(other.cost == 2 for other in self._evaluators) and evaluator.cost == 1:
            return False
        arch_id = entry.candidate.arch.id
        found = evaluator.known(patiently(lambda: self._table.all_results(arch_id)))
        if not set(evaluator.gives) <= set(found):
            return False
        entry.values.update(found)
        return True

    def _ask(self, entry: _Open, index: int) -> None:
        entry.owed.add(index)
        entry.asked[index] = entry.asked.get(index, 0) + 1
        self._evaluators[index].send(entry.candidate.arch, dict(entry.files))

    def _look(self) -> None:
        """Collect from every evaluator that owes something; only the first one is waited for:
        screening if a worker is idle, otherwise what keeps the workers busy."""
        busy = {index for entry in self._open.values() for index in entry.owed}
        if self._pool is not None and self._pool.is_screening:
            busy |= {index for index, one in enumerate(self._evaluators) if one.cost == 0}
        is_full = len(self._open) >= self._slots
        for place, index in enumerate(sorted(busy, reverse=self._pool is not None and is_full)):
            evaluator = self._evaluators[index]
            for evaluation in evaluator.collect(LOOK_S if place == 0 else 0.0):
                entry = self._open.get(evaluation.arch_id)
                if entry is not None and index in entry.owed:
                    self._receive(entry, index, evaluation)
                elif self._pool is not None and evaluator.cost == 0:
                    self._pool.receive(evaluator, evaluation)
        if self._pool is not None and (self._round or not self._open):
            self._pool.report()

    def _receive(self, entry: _Open, index: int, evaluation: Evaluation) -> None:
        entry.owed.discard(index)
        missing = set(self._evaluators[index].gives) - set(evaluation.values)
        if broken_constraint(evaluation.values, self._config.constraints):
            missing = set()  # it stopped there: the rest is of no use
        if evaluation.error or missing:
            reason = evaluation.error or f"it has no {', '.join(sorted(missing))}"
            if not evaluation.is_final and entry.asked[index] <= self._config.retries:
                self._ask(entry, index)
            else:
                self._failed_where[self._evaluators[index].label] += 1
                self._end(entry, "failed", reason)
            return
        entry.values.update(evaluation.values)
        entry.files.update(evaluation.files)
        self._keep_files(entry.candidate.arch, evaluation.files)
        if evaluation.paused_at:
            entry.rungs[evaluation.paused_at] = dict(entry.values)
            entry.is_paused = True
        self._store(entry, self._evaluators[index], evaluation.values, evaluation.paused_at)
        if entry.candidate.arch.id in self._open:
            self._advance(entry)

    def _store(
        self, entry: _Open, evaluator: Evaluator, values: Mapping[str, float], paused_at: int = 0
    ) -> None:
        """What is known at a pause is not the result under these conditions."""
        arch, results = entry.candidate.arch, evaluator.stored(values)
        if paused_at:
            results = {f"{name}, paused at {paused_at}": found for name, found in results.items()}
        columns = columns_of(values, entry.candidate.place // self._config.iteration)
        patiently(lambda: self._table.note_all(arch.id, arch.canonical, results, columns))

    def _end(self, entry: _Open, end: End, reason: str = "") -> None:
        arch_id = entry.candidate.arch.id
        self._open.pop(arch_id, None)
        self._paused.pop(arch_id, None)
        for held in self._held.values():
            held[:] = [other for other in held if other is not entry]
        patiently(lambda: self._study.end(entry.candidate, end, entry.values, reason))
        self._ended += 1
        self._failed += end == "failed"
        self._count_fruitless(end)
        if self._ladder is not None:
            self._ladder.end(entry.candidate, entry.rungs, end, entry.values)
        ended = replace(entry.candidate, rungs=entry.rungs)
        self._hear(Event(ended, end, dict(entry.values), reason))
        if self._failed > self._config.failures:
            raise SearchFailed(
                reason=f"{self._failed} candidates failed{self._where()}, more than "
                f"search.failures allows ({self._config.failures}); the last one: {reason}"
            )
        if self._fruitless >= HOPELESS:
            raise SearchFailed(
                reason=f"none of {HOPELESS} candidates in a row met the constraints; the last "
                f"one: {reason}. Relax search.constraints or change the space"
            )

    def _where(self) -> str:
        """Where candidates failed, unless an earlier run knows it."""
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


def _with_result(candidates: list[Candidate], where: str) -> list[Candidate]:
    """A search without a single complete candidate is an error that says why."""
    if not candidates or any(item.state == "complete" for item in candidates):
        return candidates
    count = len(candidates)
    failed = [item for item in candidates if item.state == "failed"]
    if not failed:
        last = candidates[-1].reason.rstrip(".")
        reason = f"none of {count} candidates met the constraints; the last one: {last}"
        raise SearchFailed(reason=f"{reason}. Relax search.constraints or change the space")
    screened = count - len(failed)
    others = f" and {screened} did not meet the constraints" if screened else ""
    last = failed[-1].reason.rstrip(".")
    reason = f"none of {count} candidates has a result: {len(failed)} failed{where}{others}"
    raise SearchFailed(reason=f"{reason}; the last error: {last}. Fix that first")
