"""Candidates that are screened before any of them is trained."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from edgeloop._util.files import open_regular, write_atomic
from edgeloop.errors import EdgeloopError, LocalFileError, SearchFailed
from edgeloop.search.base import Evaluation, Evaluator, ScreenedMember, broken_constraint, value_of
from edgeloop.search.config import SearchConfig
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.sampler.members import Params, key_of
from edgeloop.search.sampler.proposer import START
from edgeloop.search.study import Candidate, Study, barred_fronts

# The bank of a search: every member of the space that was screened, and those that will be.
#
# It is kept in a file beside the other files of the search, so that a search that was killed does
# not compile anything twice. A missing or damaged file costs time and nothing else. Lines are
# appended:
#
#     {"bank": 1, "conditions": …, "first": 0}    how values were obtained, and the first batch
#     {"batch": 12, "members": [{…}, …]}          what is screened for the candidate of this number
#     {"member": "id_…", "values": {…}}           what was found
#     {"member": "id_…", "error": …}              what cannot be built or compiled
#
# Values of other conditions are of no use: such a file is replaced. A line that cannot be read,
# such as one that a kill cut off, is skipped.


FORMAT = 1
ELSEWHERE = -1  # the batch of members that an earlier search has screened
MOST_MEMBERS = 200_000
_LONGEST_LINE = 4 << 20
_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class BankMember:
    """A member of the space: planned, then screened. `values` has what is known without training;
    a member that cannot be built or compiled has an `error`."""

    params: Params
    arch: Architecture
    batch: int
    values: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    is_screened: bool = False


class Bank:
    """Members in the order in which they were planned, whatever the order of their results.

    Parameters that build the same architecture are one member: the first that was planned.
    """

    def __init__(
        self, conditions: str, make: Callable[[Params], Architecture], file: Path | None = None
    ) -> None:
        self._conditions, self._make, self._file = conditions, make, file
        self._members: dict[str, BankMember] = {}
        self._repeats: list[Params] = []
        self._found: dict[str, tuple[dict[str, float], str]] = {}  # results without a plan
        self.batches: list[int] = []  # the number of every batch that was planned, in order
        self.first: int | None = None  # the first batch; None: no file says so

    @classmethod
    def open(
        cls, file: Path | None, conditions: str, make: Callable[[Params], Architecture]
    ) -> Bank:
        """What the file has of these conditions; an empty bank if there is none."""
        bank = cls(conditions, make, file)
        if file is not None:
            bank._read(file)
            bank._end_last_line(file)
        return bank

    def adopt(self, file: Path) -> int:
        """Add what the bank of another search has of these conditions; returns how many are new."""
        other, before = Bank(self._conditions, self._make), len(self)
        other._read(file)
        for member in other.members:
            if member.is_screened:
                self.add(member.params, member.values, member.error)
        return len(self) - before

    @property
    def members(self) -> list[BankMember]:
        return list(self._members.values())

    @property
    def repeats(self) -> list[Params]:
        """Planned parameters whose architecture another member has."""
        return self._repeats

    def __len__(self) -> int:
        return len(self._members)

    def get(self, arch_id: str) -> BankMember | None:
        return self._members.get(arch_id)

    def begin(self, first: int) -> None:
        """A new file, whose first batch has this number; what was added before is kept."""
        self.first = first
        lines = [{"bank": FORMAT, "conditions": self._conditions, "first": first}]
        adopted = [member for member in self._members.values() if member.batch == ELSEWHERE]
        if adopted:
            lines.append(_plan_line(ELSEWHERE, (member.params for member in adopted)))
            lines += [_result_line(m.arch.id, m.values, m.error) for m in adopted if m.is_screened]
        if self._file is not None:
            try:
                write_atomic(self._file, b"".join(map(_encoded, lines)))
            except OSError as error:
                raise LocalFileError(path=self._file, reason=error.strerror or "") from None

    def plan(self, batch: int, several: Iterable[Params]) -> list[BankMember]:
        """Members to screen; those that are in the bank already are left out."""
        planned = list(several)
        self._append(_plan_line(batch, planned))
        return self._plan(batch, planned)

    def put(self, arch_id: str, values: Mapping[str, float], error: str = "") -> None:
        """The result of a member."""
        self._put(arch_id, values, error)
        self._append(_result_line(arch_id, values, error))

    def add(self, params: Params, values: Mapping[str, float], error: str = "") -> None:
        """A member that was screened elsewhere under the same conditions. Nothing changes if it is
        in the bank already."""
        arch = self._make(params)
        if arch.id in self._members and self._members[arch.id].is_screened:
            return
        if self.first is not None:
            self._append(_plan_line(ELSEWHERE, [params]))
            self._append(_result_line(arch.id, values, error))
        self._plan(ELSEWHERE, [params])
        self._put(arch.id, values, error)

    def _plan(self, batch: int, several: Iterable[Params]) -> list[BankMember]:
        if batch != ELSEWHERE:
            self.batches.append(batch)
        fresh: list[BankMember] = []
        for params in several:
            try:
                arch = self._make(params)
            except EdgeloopError:
                continue  # a damaged or foreign line
            if arch.id in self._members:
                if key_of(params) != key_of(self._members[arch.id].params):
                    self._repeats.append(params)
                continue
            if len(self._members) >= MOST_MEMBERS:
                break
            self._members[arch.id] = BankMember(params, arch, batch)
            if arch.id in self._found:
                self._put(arch.id, *self._found.pop(arch.id))
            fresh.append(self._members[arch.id])
        return fresh

    def _put(self, arch_id: str, values: Mapping[str, float], error: str) -> None:
        member = self._members.get(arch_id)
        if member is None:
            self._found[arch_id] = (dict(values), error)
        else:
            self._members[arch_id] = replace(
                member, values=dict(values), error=error, is_screened=True
            )

    def _append(self, line: Mapping[str, Any]) -> None:
        """Without a flush to disk: what a power cut loses is screened again. So is what does not
        fit on a full disk, about which the tables of the search complain."""
        if self._file is None:
            return
        with suppress(OSError), self._file.open("ab") as file:
            file.write(_encoded(line))

    def _read(self, file: Path) -> None:
        lines = _lines(file)
        head = next(lines, None)
        if head is None or head.get("bank") != FORMAT:
            return
        first = head.get("first")
        if head.get("conditions") != self._conditions or not isinstance(first, int):
            return
        self.first = first
        for line in lines:
            batch, several = line.get("batch"), line.get("members")
            if isinstance(batch, int) and isinstance(several, list):
                self._plan(batch, [params for params in several if _are_params(params)])
            elif isinstance(line.get("member"), str) and len(self._found) < MOST_MEMBERS:
                values, error = line.get("values", {}), line.get("error", "")
                if _are_values(values) and isinstance(error, str) and (values or error):
                    self._put(line["member"], values, error)

    def _end_last_line(self, file: Path) -> None:
        """A line that was cut off must not swallow the next one."""
        if self.first is None:
            return
        with file.open("ab+") as whole:
            size = whole.seek(0, 2)
            whole.seek(max(0, size - 1))
            if whole.read(1) != b"\n":
                whole.write(b"\n")


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """All lines that hold a JSON object; nothing if the file cannot be read."""
    left = _MOST_BYTES
    try:
        with open_regular(file) as opened:
            while left > 0 and (line := opened.readline(_LONGEST_LINE)):
                left -= len(line)
                try:
                    entry = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(entry, dict):
                    yield entry
    except OSError:
        return


def _plan_line(batch: int, several: Iterable[Params]) -> dict[str, Any]:
    return {"batch": batch, "members": list(several)}


def _result_line(arch_id: str, values: Mapping[str, float], error: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"member": arch_id, "values": dict(values)}
    return entry | ({"error": error} if error else {})


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":"), default=_plain).encode() + b"\n"


def _plain(value: Any) -> Any:
    """A NumPy number, such as a space may give among its choices."""
    return value.item()


def _are_params(params: object) -> bool:
    kinds = bool | int | float | str | None
    return isinstance(params, dict) and all(isinstance(value, kinds) for value in params.values())


def _are_values(values: object) -> bool:
    return isinstance(values, dict) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
        for value in values.values()
    )


# Where the candidates of a search come from if some of its values are known before training.
#
# For every candidate that is trained, a batch of members of the space is screened: their cheap
# values are exact when the sampler chooses among all that are in the bank. Only what is chosen
# becomes a candidate and counts for the budget; a member that violates a constraint is never
# trained.
#
# A batch is planned as soon as the candidate before it was chosen, and is screened while that one
# is trained. The first batch is small, so that trainings begin soon, and the second one large.
#
# If one candidate is trained at a time, or in rounds, the search waits for the batches, and what is
# screened and chosen depends only on the seed: a search that was killed continues as it would have,
# and one whose bank was lost plans the same batches again. With several workers, a free one gets
# the best of what is known by then.


HOPELESS = 60  # give up after so many members in a row that violate the constraints
FAULTS = 5  # or after so many in a row that this machine could not screen
FIRST = 4  # the first two batches together are so many times as large as the others
TELL_S = 5.0
_ADVICE = "Relax search.constraints or change the space"
INTERVAL = ("_low_ms", "_high_ms", "_coverage")  # of a latency: they say nothing new

Tell = Callable[[str], None]


def pool_of(
    config: SearchConfig,
    study: Study,
    evaluators: Sequence[Evaluator],
    bank: Bank | None,
    slots: int,
    tell: Tell,
) -> CandidatePool | None:
    """A pool, if some values are known before training and some objectives are not."""
    screening = [evaluator for evaluator in evaluators if evaluator.cost == 0]
    cheap = {name for evaluator in screening for name in evaluator.gives}
    has_expensive = any(objective.name not in cheap for objective in config.objectives)
    if config.sampler != "default" or not config.pool or not has_expensive:
        return None
    if not cheap.intersection(config.wanted):
        return None
    if bank is None:
        bank = Bank.open(None, conditions_of(screening), study.architecture)
    is_patient = bool(config.batch) or slots == 1
    return CandidatePool(config, study, bank, screening, is_patient, tell)


def conditions_of(evaluators: Iterable[Evaluator]) -> str:
    """What the values in a bank depend on."""
    screening = (evaluator for evaluator in evaluators if evaluator.cost == 0)
    return " | ".join(f"{', '.join(one.gives)}: {one.conditions}" for one in screening)


@dataclass
class _Screened:
    """A member that is being screened."""

    member: BankMember
    owed: set[int]  # evaluators that have not answered
    values: dict[str, float] = field(default_factory=dict)
    asked: int = 1


class CandidatePool:
    """Chooses the candidates of a search. `is_patient`: wait for every batch."""

    def __init__(
        self,
        config: SearchConfig,
        study: Study,
        bank: Bank,
        screening: Sequence[Evaluator],
        is_patient: bool,
        tell: Tell = lambda _: None,
    ) -> None:
        self._config, self._study, self._bank = config, study, bank
        self._evaluators = list(screening)
        self._is_patient, self._tell = is_patient, tell
        self._stride = config.batch or 1
        # A training on the same CPU would change what is measured of it.
        self._is_alone = is_patient and any("host_latency_ms" in one.gives for one in screening)
        self._names = tuple(dict.fromkeys(n for e in screening for n in (*e.gives, *e.beside)))
        self._waiting: dict[str, _Screened] = {}
        self._given_up: dict[str, str] = {}  # this machine could not screen them
        self._faults = 0
        self._ids: list[str] = []  # of the candidates so far
        self._place = 0  # of the candidate that is planned for; after a loss, earlier ones first
        self._seen: dict[str, ScreenedMember] = {}
        self._is_planned = False  # the whole space
        self._told_s = time.monotonic()
        self.is_exhausted = False

    def open(self, candidates: Sequence[Candidate]) -> None:
        """Continue with what the bank and the study have."""
        objectives = {objective.name for objective in self._config.objectives}
        useful = (name for name in self._names if name not in objectives)
        self._study.features = tuple(n for n in useful if not value_of(n).endswith(INTERVAL))
        self._ids = [item.arch.id for item in candidates]
        self._place = len(self._ids)
        if self._bank.first is None:
            self._bank.begin(self._study.not_chosen() if self._is_patient else self._place)
        if self._is_patient:
            self._place = min(self._place, max(self._bank.batches, default=self._bank.first or 0))
        for item in candidates:
            self._recall(item)
        if len(self._ids) < self._config.budget:
            self._send(member for member in self._bank.members if not member.is_screened)

    @property
    def is_screening(self) -> bool:
        return bool(self._waiting)

    def next(self) -> Candidate | None:
        """The candidate to train now; None if it is not known yet, or the space is exhausted."""
        members = (None if self._is_patient else self._choosable()) or self._advance()
        while members:
            values_by_id = {member.arch.id: member.values for member in members}
            visible = [self._as_seen(member) for member in self._visible()]
            candidate = self._study.choose(visible, values_by_id)
            if candidate is not None:
                self.follow(candidate)
                return candidate
            self._given_up |= dict.fromkeys(values_by_id, "the sampler did not choose it")
            self._seen.clear()
            members = self._advance()
        return None

    def follow(self, candidate: Candidate) -> None:
        """Take note that a candidate was chosen."""
        if candidate.arch.id not in self._ids:
            self._ids.append(candidate.arch.id)
            self._place += 1

    def prepare(self, is_training: bool) -> None:
        """Plan what is screened for the next candidate, if that is due."""
        is_spent = len(self._ids) >= self._config.budget or self.is_exhausted
        if not is_spent and not (is_training and self._is_alone):
            self._advance()

    def receive(self, evaluator: Evaluator, evaluation: Evaluation) -> None:
        """A result of screening; what is not asked for is ignored."""
        for file in evaluation.files.values():  # the model can be built again
            with suppress(OSError):
                file.unlink()
                file.parent.rmdir()
        entry = self._waiting.get(evaluation.arch_id)
        index = self._evaluators.index(evaluator)
        if entry is None or index not in entry.owed:
            return
        entry.values.update(evaluation.values)
        error = evaluation.error or self._missing(evaluator, entry)
        if error and not evaluation.is_final and entry.asked <= self._config.retries:
            entry.asked += 1
            evaluator.send(entry.member.arch)
            return
        entry.owed.discard(index)
        if error and evaluation.is_unjudged and (evaluation.is_final or evaluation.lacks_memory):
            self._give_up(entry, error)
        elif error or not entry.owed:
            self._settle(entry, error, is_fault=bool(evaluation.error) and not evaluation.is_final)

    def report(self) -> None:
        """Say now and then how far the screening is that everything waits for."""
        if self._waiting and time.monotonic() - self._told_s > TELL_S:
            self._told_s = time.monotonic()
            count = len(self._bank) - len(self._waiting)
            self._tell(f"Screened {count} of {len(self._bank)} candidates.")

    def counts(self) -> tuple[int, int]:
        """How many members were screened, and how many of them may not be trained."""
        screened = [member for member in self._bank.members if member.is_screened]
        return len(screened), sum(bool(self._objection(member)) for member in screened)

    def _advance(self) -> list[BankMember]:
        """Plan what is due, and return what can be chosen from; nothing if that has to wait."""
        while not self.is_exhausted:
            if self._is_due() and not (self._is_patient and self._waiting):
                self._plan()
                continue
            if self._is_due() and self._is_patient:
                return []
            members = self._choosable()
            if members is None:
                return []
            if not members:
                self._plan_more()
            elif self._place == len(self._ids):
                return members
            else:
                self._place += 1  # chosen before the bank was lost
        return []

    def _is_due(self) -> bool:
        """The first two batches are planned with the first candidate, the others one by one after
        the sampler has something to learn from, each before the round that needs it: it is screened
        while the round before is trained. Those who cannot wait screen one at a time."""
        batches, first = self._bank.batches, self._bank.first or 0
        if self._is_planned or (not self._is_patient and len(self._waiting) >= self._config.pool):
            return False
        if len(batches) < 2:
            return not batches or self._place > batches[0]
        last_of_round = self._place + self._stride - 1 - self._place % self._stride
        return last_of_round >= max(batches[-1] + self._stride, first + START)

    def _plan(self) -> None:
        ended = (max(0, self._place - 1) // self._stride) * self._stride
        bank = [self._as_seen(member) for member in self._bank.members]
        empty = (None,) * len(self._config.objectives)
        bank += [ScreenedMember(params, empty, False) for params in self._bank.repeats]
        basis = ended if self._is_patient else None
        batch = self._study.batch(self._place, basis, bank, self._size())
        self._is_planned = not batch
        self._send(self._bank.plan(self._place, batch))

    def _size(self) -> int:
        """Of the next batch."""
        pool = self._config.pool
        sizes = (min(START, FIRST * pool), max(pool, FIRST * pool - START))
        planned = len(self._bank.batches)
        return sizes[planned] if planned < len(sizes) else pool

    def _plan_more(self) -> None:
        """Nothing that was screened can be trained."""
        if not self._is_planned:
            self._plan()
        in_a_row = self._in_a_row()
        if not self._is_planned and in_a_row < HOPELESS:
            return
        self.is_exhausted = True
        last = self._last_objection()
        if self._is_planned:
            reason = f"none of the {len(self._bank)} members of the space met the constraints"
        else:
            reason = f"none of {in_a_row} candidates in a row met the constraints"
        if not self._ids and not self._study.earlier():
            raise SearchFailed(reason=f"{reason}; the last one: {last}. {_ADVICE}")
        if not self._is_planned:  # what was found so far is a result
            self._tell(f"No further candidate: {reason}; the last one: {last}.")

    def _in_a_row(self) -> int:
        """How many members, up to the last one, may not be trained."""
        taken = self._taken_over()
        screened_here = [
            member for member in reversed(self._tried()) if member.arch.id not in taken
        ]
        return len(list(takewhile(self._objection, screened_here)))

    def _last_objection(self) -> str:
        objections = map(self._objection, reversed(self._tried()))
        return next(filter(None, objections), "").rstrip(".")

    def _tried(self) -> list[BankMember]:
        """Those that were screened, and those that this machine could not screen."""
        every = self._bank.members
        return [m for m in every if m.is_screened or m.arch.id in self._given_up]

    def _choosable(self) -> list[BankMember] | None:
        """Members to choose from; None if it is worth waiting for more."""
        visible = self._visible()
        free = self._free(visible)
        if not any(member.arch.id in self._waiting for member in visible):
            return free
        if self._is_patient:
            return None
        is_begun = self._is_early() and not self._is_waiting_for(self._first_members())
        return free if len(free) >= (1 if is_begun else self._config.pool) else None

    def _visible(self) -> list[BankMember]:
        """All members; but a patient search chooses its first candidates from the first batch, as
        long as it lasts, and trains them while the second one is screened."""
        if self._is_patient and self._is_early() and not self._is_alone:
            first = self._first_members()
            if self._is_waiting_for(first) or self._free(first):
                return first
        return self._bank.members

    def _is_early(self) -> bool:
        return self._place < (self._bank.first or 0) + START

    def _first_members(self) -> list[BankMember]:
        first = (ELSEWHERE, *self._bank.batches[:1])
        return [member for member in self._bank.members if member.batch in first]

    def _is_waiting_for(self, members: Iterable[BankMember]) -> bool:
        return any(member.arch.id in self._waiting for member in members)

    def _free(self, members: Iterable[BankMember]) -> list[BankMember]:
        """Those that may be trained and are not yet."""
        taken = set(self._ids[: self._place]) | self._taken_over()
        return [
            member
            for member in members
            if member.is_screened and member.arch.id not in taken and not self._objection(member)
        ]

    def _taken_over(self) -> set[str]:
        """Those whose results earlier searches have: there is no need to train them."""
        return {item.arch.id for item in self._study.earlier()}

    def _objection(self, member: BankMember) -> str:
        """Why a member may not be trained."""
        return (
            self._given_up.get(member.arch.id)
            or member.error
            or broken_constraint(member.values, self._config.constraints)
        )

    def _as_seen(self, member: BankMember) -> ScreenedMember:
        """As the sampler sees it; a member without values teaches it nothing."""
        cached = self._seen.get(member.arch.id)
        if cached is not None:
            return cached
        values = tuple(
            o.minimised(member.values[o.name]) if o.name in member.values else None
            for o in self._config.objectives
        )
        features = self._study.features_of(member.params, member.values)
        is_feasible = member.is_screened and not self._objection(member)
        barred = barred_fronts(self._config, member.values)
        seen = ScreenedMember(member.params, values, is_feasible, features, barred)
        if member.is_screened:
            self._seen[member.arch.id] = seen
        return seen

    def _recall(self, item: Candidate) -> None:
        """What was chosen is in the bank, or will be when it is planned again; not with values of
        other conditions."""
        if not self._study.is_current(item):
            return
        member = self._bank.get(item.arch.id)
        values = {name: item.values[name] for name in self._names if name in item.values}
        required = {name for evaluator in self._evaluators for name in evaluator.gives}
        if (member is None or not member.is_screened) and required <= set(values):
            if self._is_patient:
                self._bank.put(item.arch.id, values)
            else:
                self._bank.add(dict(item.params), values)

    def _send(self, members: Iterable[BankMember]) -> None:
        for member in members:
            if not member.is_screened:
                owed = set(range(len(self._evaluators)))
                self._waiting[member.arch.id] = _Screened(member, owed)
                for evaluator in self._evaluators:
                    evaluator.send(member.arch)

    def _missing(self, evaluator: Evaluator, entry: _Screened) -> str:
        """What an evaluator did not return, unless a violated constraint made that useless."""
        missing = set(evaluator.gives) - set(entry.values)
        if not missing or broken_constraint(entry.values, self._config.constraints):
            return ""
        return f"it has no {', '.join(sorted(missing))}"

    def _give_up(self, entry: _Screened, error: str) -> None:
        """It is not screened by this run. The bank knows nothing of it: a machine with more memory,
        or less to do, may resume the search."""
        del self._waiting[entry.member.arch.id]
        self._given_up[entry.member.arch.id] = error
        self._seen.pop(entry.member.arch.id, None)

    def _settle(self, entry: _Screened, error: str, is_fault: bool) -> None:
        if not is_fault:
            self._faults = 0
            del self._waiting[entry.member.arch.id]
            self._bank.put(entry.member.arch.id, entry.values, error)
            return
        self._give_up(entry, error)
        self._faults += 1
        if self._faults >= FAULTS:
            reason = f"{FAULTS} candidates in a row could not be screened on this machine; the last"
            raise SearchFailed(reason=f"{reason} one: {error.rstrip('.')}. Fix that and --resume")
