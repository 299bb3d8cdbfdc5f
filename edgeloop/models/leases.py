"""Leases: how any number of machines share the work, so that each result is recorded exactly once.

A claim is a compare-and-set on the model's row that puts a fresh random token, the owner, an
expiry and the number of the attempt into the record of one stage. The holder of the token may
renew, commit, fail or release. Each of these reads the row, looks for the token, and writes only if
the row is still as read. A holder that slept through its expiry finds another token, or none, and
gets LeaseLost: it can write nothing.

Clocks decide only when a silent lease may be taken over, and then with a margin; tokens alone
decide who may write. So a wrong clock can cost work, never correctness. A write whose answer got
lost can be repeated: a token that was already committed is recognized.

To claim, `candidates` yields what may be taken, best first, and a claim tries one after the other.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from edgeloop.errors import (
    BadInput,
    Conflict,
    LeaseLost,
    RowChanged,
    RowDamaged,
    RowTooLarge,
)
from edgeloop.models.columns import Edit, change_row
from edgeloop.models.plan import (
    NOT_AVAILABLE,
    Plan,
    Stage,
    StageRecord,
    Targets,
    node_text,
    records_of,
    retargeting,
    summary,
)
from edgeloop.models.queue import GRAB_SECONDS, OWN, Hint, Queue, rank_of
from edgeloop.store import Changes, Record, Table, Value, merged

LARGEST_SPREAD = 64
LARGEST_SPREAD_UNJOINED = 16  # where hints are read one by one, each of them costs
LOOKS = 10
EDIT_LOOKS = 3  # how many of these ask for priorities that were edited by hand
SETTLE_SECONDS = 2.0  # an idle runner looks every second
QUEUED_LOOK_SECONDS = 1.5
LONGEST_QUEUED_LOOK_SECONDS = 24.0
IDLE_SWEEP_SECONDS = 10.0
BUSY_SWEEP_SECONDS = 600.0
ERROR_TEXT_LIMIT = 2_000
LEFT_SECONDS = 60.0  # how long a row that cannot be claimed is left alone
_LOG = logging.getLogger("edgeloop.models")

Only = Callable[[str], bool]


@dataclass(frozen=True)
class Lease:
    """The right to do one stage of one model, until it expires or is taken away."""

    model: str
    stage: str
    owner: str
    token: str
    attempt: int
    expires: float
    row: Record
    rank: str = ""
    queued: bool = False  # claimed ahead: an idle runner may take it away until it begins


@dataclass(frozen=True)
class Outcome:
    """The result of a stage: columns of the row (None: emptied), and where its files were stored.

    `files` maps a file's name to its key below the model's folder, `sha256` to its content.
    """

    columns: Changes
    files: Mapping[str, str] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Claimable:
    """A stage that may be claimed, and the row as it was read. `taken_from` is the token of the
    runner that claimed it ahead; empty: nothing holds it."""

    row: Record
    stage: Stage
    taken_from: str = ""


@dataclass(frozen=True)
class ClaimRequest:
    """What a runner asks for. One that claims ahead (`is_ahead`) leaves more to others, see
    `Leases.claim_ahead`."""

    capabilities: Collection[str]
    only: Only
    is_ahead: bool = False
    after: str = ""


class _NoClaim(Enum):
    """Why a hint leads to no candidate."""

    NOT_NOW = "not for us, or not now"
    REPAIRED = "it was stale: the repaired hints may name something better"
    OUTDATED = "the queue has changed, so read it again"


@dataclass(frozen=True)
class _Settled:
    """How a stage is left behind: its record, further columns, and whether the model rests in
    error."""

    record: StageRecord
    columns: Changes = field(default_factory=dict)
    rests: bool = False


class Leases:
    def __init__(
        self,
        models: Table,
        hints: Table,
        plan: Plan,
        *,
        lease_s: float = 120.0,
        margin_s: float = 15.0,
        max_attempts: int = 3,
        clock: Callable[[], float] = time.time,
        targets: Callable[[], Targets | None] = lambda: None,
    ) -> None:
        """`targets` reads for whom models are evaluated; None: rows are left as they are."""
        self._models = models
        self._plan = plan
        self._targets = targets
        self._queue = Queue(hints, plan, margin_s)
        self._lease_s = lease_s
        self._margin_s = margin_s
        self._max_attempts = max_attempts
        self._clock = clock
        self._spread = 1  # how many of the best hints a claim chooses from
        self._last_seen = "", 0.0  # the last piece of its kind, and since when it has been seen
        self._left: dict[str, float] = {}  # models whose row cannot be claimed, and until when
        self._queued_look_at = 0.0
        self._queued_look_s = QUEUED_LOOK_SECONDS
        self._idle_sweep_at = 0.0
        self._busy_sweep_at = time.monotonic() + random.uniform(0.5, 1.0) * BUSY_SWEEP_SECONDS

    # Claims.

    def claim(
        self, capabilities: Collection[str], node: str, *, only: Only = lambda model: True
    ) -> Lease | None:
        """The best stage that is ready and that these capabilities can do, or None.

        For idle runners: where nothing else is left, it takes a stage that another runner has
        claimed ahead and not begun. `only` narrows the choice to some models.
        """
        request = ClaimRequest(capabilities, only)
        if time.monotonic() >= self._busy_sweep_at:
            self.sweep_if_due(BUSY_SWEEP_SECONDS)
        lease = self._claim_first(self.candidates(request), node)
        is_idle = lease is None and time.monotonic() >= self._idle_sweep_at
        if is_idle and self.sweep_if_due(IDLE_SWEEP_SECONDS):
            lease = self._claim_first(self.candidates(request), node)
        return lease or self._claim_first(self._claimed_ahead(request), node)

    def claim_ahead(
        self,
        capabilities: Collection[str],
        node: str,
        *,
        only: Only = lambda model: True,
        after: str = "",
    ) -> Lease | None:
        """As `claim`, for a busy runner that prepares its next stage; `begin` follows.

        Takes nothing that an idle runner could take now: either there is more of the kind, or
        it has been there for so long that an idle runner would have taken it. Of models with a
        priority of their own it takes none that is better than the rank `after`: those run next,
        not behind the stages that were claimed ahead before (see `claim_urgent`).
        """
        request = ClaimRequest(capabilities, only, is_ahead=True, after=after)
        return self._claim_first(self.candidates(request), node, queued=True)

    def claim_urgent(
        self,
        capabilities: Collection[str],
        node: str,
        *,
        than: str,
        only: Only = lambda model: True,
    ) -> Lease | None:
        """A stage of a row whose own priority makes it better than the rank `than`."""
        return self._claim_first(self._urgent(ClaimRequest(capabilities, only), than), node)

    def best_rank(
        self, capabilities: Collection[str], *, only: Only = lambda model: True
    ) -> str | None:
        """The rank of the stage that `claim` would take now, without claiming it."""
        for candidate in self.candidates(ClaimRequest(capabilities, only)):
            row = candidate.row
            return rank_of(self._queue.key(row.key, row.values, candidate.stage))
        return None

    def _claim_first(
        self, candidates: Iterable[Claimable], node: str, queued: bool = False
    ) -> Lease | None:
        for candidate in candidates:
            with self._leaving(candidate.row.key):
                lease = self._acquire(
                    candidate.row, candidate.stage, node, queued, candidate.taken_from
                )
                if lease is not None:
                    return lease
        return None

    def candidates(self, request: ClaimRequest) -> Iterator[Claimable]:
        """The stages that may be claimed now, best first.

        Ask for the next one only if the claim of the last one failed. The queue is then read again:
        the runners that were faster have taken more than one stage.
        """
        for look in range(LOOKS):
            is_repaired = False
            for hint in self._queue.open(
                request.capabilities, self._clock(), self._models, self._spread
            ):
                examined = self._examined(hint, request, look)
                if isinstance(examined, Claimable):
                    yield examined
                    if self._is_left(examined.row.key):  # its own row is the reason, not a race
                        continue
                    self._lost_race()
                    break
                if examined is _NoClaim.OUTDATED:
                    break
                is_repaired = is_repaired or examined is _NoClaim.REPAIRED
            else:
                if not is_repaired:
                    return

    def _examined(self, hint: Hint, request: ClaimRequest, look: int) -> Claimable | _NoClaim:
        if self._is_left(hint.model):
            return _NoClaim.NOT_NOW
        with self._leaving(hint.model):
            if not request.only(hint.model):
                return _NoClaim.NOT_NOW
            if request.is_ahead and self._is_for_others(hint, request.after):
                return _NoClaim.NOT_NOW
            examined = self._takeable(hint)
            is_asked = isinstance(examined, Claimable) and look < EDIT_LOOKS
            if is_asked and self._is_overlooked(hint, request):
                return _NoClaim.OUTDATED
            return examined
        return _NoClaim.NOT_NOW

    def _takeable(self, hint: Hint) -> Claimable | _NoClaim:
        """Compare a hint with the row, which alone decides who gets the work."""
        if not self._models.is_atomic:
            # The store cannot change row and hint together. So the hint is hidden first: of many
            # runners that want the same stage, all but one turn away at once. One that dies in
            # between only delays the work, since a hidden hint shows again.
            hidden_s = min(GRAB_SECONDS, self._lease_s + self._margin_s)
            hidden = self._queue.hide(hint, self._clock() + hidden_s)
            if hidden is None:
                self._lost_race()
                return _NoClaim.OUTDATED
            hint = hidden
        row = hint.read_row()
        if row is None or hint.stage not in self._plan:
            self._queue.repair(hint.model, None, hint)
            return _NoClaim.NOT_NOW
        stage = self._plan[hint.stage]
        ready_at = self._queue.ready_at(row.values, stage)
        is_stale = self._queue.key(hint.model, row.values, stage) != hint.record.key
        if ready_at is None or is_stale:
            self._queue.repair(hint.model, row.values, hint)
            return _NoClaim.REPAIRED
        if ready_at > self._clock():
            self._queue.hide(hint, ready_at)
            return _NoClaim.NOT_NOW
        return Claimable(row, stage) if self._has_attempts_left(row, stage) else _NoClaim.NOT_NOW

    def _is_for_others(self, hint: Hint, after: str) -> bool:
        """Whether to leave it to an idle runner, or to the session that begins next on this
        device."""
        if OWN in hint.rank and hint.rank < after:
            return True
        if not self._queue.is_last(hint, self._clock(), self._models):
            return False
        key, seen_at = self._last_seen
        if key != hint.record.key:
            self._last_seen = hint.record.key, time.monotonic()
            return True
        return time.monotonic() - seen_at < SETTLE_SECONDS

    def _is_overlooked(self, hint: Hint, request: ClaimRequest) -> bool:
        """Whether a row names something better that no hint points at; then a hint is added."""

        def may_take(model: str) -> bool:
            return not self._is_left(model) and request.only(model)

        better = self._queue.urgent(
            self._models, request.capabilities, self._clock(), hint.rank, may_take
        )
        for key, values, _ in better:
            self._queue.put(key, values)
        if better and not self._models.is_atomic:  # `_takeable` has hidden this one
            self._queue.put(hint.record.key, {**hint.record.values, "until": 0.0})
        return bool(better)

    def _urgent(self, request: ClaimRequest, than: str) -> Iterator[Claimable]:
        """Candidates from the rows themselves: a priority may have been edited by hand, and then no
        hint says so."""
        rows = self._queue.urgent(
            self._models, request.capabilities, self._clock(), than, request.only
        )
        for key, _, row in rows:
            stage = self._plan[key.rpartition("|")[2]]
            has_attempts_left = False
            with self._leaving(row.key):
                if not self._is_left(row.key):
                    has_attempts_left = self._has_attempts_left(row, stage)
            if has_attempts_left:
                yield Claimable(row, stage)

    def _claimed_ahead(self, request: ClaimRequest) -> Iterator[Claimable]:
        """Stages that other runners have claimed ahead and not begun. Their holders find the token
        gone when they begin. Looks that find nothing become rarer: at the end of a large fleet's
        work many runners are idle."""
        if time.monotonic() < self._queued_look_at:
            return
        self._queued_look_at = time.monotonic() + random.uniform(0.8, 1.2) * self._queued_look_s
        self._queued_look_s = min(2 * self._queued_look_s, LONGEST_QUEUED_LOOK_SECONDS)
        for hint in self._queue.queued(request.capabilities):
            candidate = None
            if self._is_left(hint.model):
                continue
            with self._leaving(hint.model):
                candidate = self._still_queued(hint) if request.only(hint.model) else None
            if candidate is not None:
                yield candidate

    def _still_queued(self, hint: Hint) -> Claimable | None:
        row = self._models.get(hint.model)
        if row is None or hint.stage not in self._plan:
            return None
        record = records_of(row.values).get(hint.stage, StageRecord())
        if not (record.is_held and record.queued):
            self._queue.put(hint.record.key, {**hint.record.values, "queued": False})
            return None
        return Claimable(row, self._plan[hint.stage], taken_from=record.token)

    def _acquire(
        self, row: Record, stage: Stage, node: str, queued: bool = False, taken_from: str = ""
    ) -> Lease | None:
        """The claim itself; None if another runner was faster."""
        now, token = self._clock(), uuid.uuid4().hex

        def hold(row: Record) -> Changes | None:
            # Holders of other stages may write to the row meanwhile. What counts is that this stage
            # is free, or only queued under `taken_from`, in the very version that is replaced.
            ready_at = self._queue.ready_at(row.values, stage)
            records = records_of(row.values)
            before = records.get(stage.name, StageRecord())
            is_taken = before.queued and before.token == taken_from
            if ready_at is None or (ready_at > now and not is_taken):
                return None
            records[stage.name] = replace(
                before,
                token=token,
                owner=node,
                expires=now + self._lease_s,
                since=now,
                attempts=before.attempts + (not before.is_held),
                silent=before.silent + before.has_begun,  # its lease has run out
                queued=queued,
            )
            return self._summary(row, records)

        # Where row and hint cannot change together, the hint of a plain claim is hidden already.
        is_whole = self._models.is_atomic or queued or taken_from
        update = self._update if is_whole else self._models.update
        _, after = change_row(self._models, row.key, hold, row, update) or (row, row)
        held = records_of(after.values).get(stage.name)
        if held is None or held.token != token:
            return None
        self._spread = max(self._spread - 1, 1)
        self._queued_look_s = QUEUED_LOOK_SECONDS
        return Lease(
            model=row.key,
            stage=stage.name,
            owner=node,
            token=token,
            attempt=held.attempts + held.silent,
            expires=held.expires,
            row=after,
            rank=rank_of(self._queue.key(row.key, after.values, stage)),
            queued=queued,
        )

    def _lost_race(self) -> None:
        """In a crowd of runners, choose from more hints next time."""
        largest = LARGEST_SPREAD if self._models.is_atomic else LARGEST_SPREAD_UNJOINED
        self._spread = min(2 * self._spread, largest)

    @contextlib.contextmanager
    def _leaving(self, model: str) -> Iterator[None]:
        """Leave a model alone for a while if it cannot be claimed because of its own row."""
        try:
            yield
        except (BadInput, RowDamaged, RowTooLarge) as error:
            if model not in self._left:
                _LOG.warning("edgeloop: %.200s cannot be claimed: %s", model, error)
            self._left[model] = time.monotonic() + LEFT_SECONDS

    def _is_left(self, model: str) -> bool:
        return self._left.get(model, 0.0) > time.monotonic()

    def _has_attempts_left(self, row: Record, stage: Stage) -> bool:
        record = records_of(row.values).get(stage.name, StageRecord())
        if record.has_attempts_left(self._max_attempts):
            return True
        self._give_up(row, stage)
        return False

    def _give_up(self, row: Record, stage: Stage) -> None:
        """Every attempt ended in silence: its machine died, or the model kills its runners."""
        records = records_of(row.values)
        record = records[stage.name]
        records[stage.name] = record.free()
        attempts = record.attempts + record.silent
        reason = (
            f"{stage.name}: gave up after {attempts} attempts; the last, on "
            f"{record.owner or 'a machine'}, ended without a result or a reason"
        )
        failed = self._failed(row, stage, records[stage.name], reason, rests=True)
        with contextlib.suppress(RowChanged):
            self._update(row, self._summary(row, records, failed.columns, failed.rests))

    # What the holder of a lease does.

    def begin(self, lease: Lease) -> Lease:
        """Begin a stage that was claimed ahead; raises LeaseLost if an idle runner has taken it."""

        def start(row: Record) -> Changes | None:
            records = self._held(row, lease)
            held = records[lease.stage]
            if not held.queued:
                return None
            now = self._clock()
            records[lease.stage] = replace(
                held, queued=False, since=now, expires=now + self._lease_s
            )
            return self._summary(row, records)

        row = self._change(lease, start, None if self._models.is_atomic else self._models.update)
        expires = records_of(row.values)[lease.stage].expires
        return replace(lease, row=row, expires=expires, queued=False)

    def renew(self, lease: Lease) -> Lease:
        """Extend the expiry; raises LeaseLost if the lease is no longer ours."""
        expires = self._clock() + self._lease_s

        def extend(row: Record) -> Changes:
            records = self._held(row, lease)
            records[lease.stage] = replace(records[lease.stage], expires=expires)
            return self._summary(row, records)

        row = self._change(lease, extend, self._models.update)
        return replace(lease, expires=expires, row=row)

    def commit(self, lease: Lease, outcome: Outcome) -> Record:
        """Write a stage's result if the lease is still ours."""
        stage = self._plan[lease.stage]

        def finish(row: Record, held: StageRecord) -> _Settled:
            # A result that leaves the stage where it was would be computed again forever.
            if stage.progress(merged(row.values, outcome.columns)) <= stage.progress(row.values):
                missing = ", ".join(stage.fills)
                reason = f"the result of {stage.name} does not fill its columns ({missing})"
                raise BadInput(reason=reason)
            files = {**held.files, **outcome.files}
            replaced = outcome.files
            earlier = {name: text for name, text in held.sha256.items() if name not in replaced}
            sha256 = {**earlier, **outcome.sha256}
            done = replace(held.settled(), attempts=0, silent=0, not_before=0.0)
            columns = dict(outcome.columns)
            if str(row.values.get("error", "")).startswith(f"{lease.stage}: "):
                columns["error"] = None
            return _Settled(replace(done, files=files, sha256=sha256), columns)

        return self._settle(lease, finish)

    def fail(self, lease: Lease, reason: str, is_final: bool = False) -> Record:
        """Record a failure that is the model's own fault. The model rests in error after its last
        attempt, or at once if another attempt could only end the same way (`is_final`)."""

        def note(row: Record, held: StageRecord) -> _Settled:
            error = _clean(f"{lease.stage}: {reason}")
            rests = is_final or held.attempts >= self._max_attempts
            return self._failed(row, self._plan[lease.stage], held.settled(), error, rests)

        return self._settle(lease, note)

    def set_aside(self, lease: Lease, reason: str) -> Record:
        """Record that the store cannot give what the stage needs. The model rests in error until it
        is reset, since another attempt would get the same, but no attempt is used up: it is not the
        model's fault."""

        def note(row: Record, held: StageRecord) -> _Settled:
            record = replace(held.settled(), attempts=held.given_back().attempts)
            return _Settled(record, {"error": _clean(f"{lease.stage}: {reason}")}, rests=True)

        return self._settle(lease, note)

    def release(self, lease: Lease, delay_s: float = 0.0) -> Record:
        """Give the work back. It was not the model's fault, so no attempt is used up."""

        def give_back(row: Record, held: StageRecord) -> _Settled:
            record = replace(
                held.settled(),
                attempts=held.given_back().attempts,
                not_before=self._clock() + delay_s if delay_s else 0.0,
            )
            return _Settled(record)

        return self._settle(lease, give_back)

    def pass_on(self, lease: Lease, reason: str) -> Record:
        """Leave the work to another machine, since this one cannot do it. That counts like an
        attempt that ended in silence, of which a model survives more than of failures. The reason
        stays in the row until the stage is done."""

        def note(row: Record, held: StageRecord) -> _Settled:
            passed = replace(held.settled(), attempts=held.attempts - 1, silent=held.silent + 1)
            error = _clean(f"{lease.stage}: {reason}")
            rests = not passed.has_attempts_left(self._max_attempts)
            return self._failed(row, self._plan[lease.stage], passed, error, rests)

        return self._settle(lease, note)

    def _failed(
        self, row: Record, stage: Stage, record: StageRecord, error: str, rests: bool
    ) -> _Settled:
        """A model rests in error, except for what only a further device asks of it: that device
        gets `n/a`, and the others continue."""
        columns: dict[str, Value | None] = {"error": error}
        if rests and self._plan.is_further(row.values, stage):
            columns |= dict.fromkeys(stage.fills, NOT_AVAILABLE)
            rests = False
        return _Settled(record, columns, rests)

    def _settle(self, lease: Lease, settle: Callable[[Record, StageRecord], _Settled]) -> Record:
        def edit(row: Record) -> Changes | None:
            # The answer to an earlier call may have got lost: saying it twice does no harm.
            if self._is_committed(row, lease):
                return None
            records = self._held(row, lease)
            settled = settle(row, records[lease.stage])
            records[lease.stage] = settled.record
            return self._summary(row, records, settled.columns, settled.rests)

        return self._change(lease, edit)

    def _held(self, row: Record, lease: Lease) -> dict[str, StageRecord]:
        """The records of the row, if the lease still holds; raises LeaseLost otherwise."""
        records = records_of(row.values)
        # A tool that knows no leases takes a row by writing its own name into `node`, and frees it
        # by emptying `node`: both end a lease, too.
        is_taken = str(row.values.get("node") or "") != node_text(records)
        if is_taken or lease.stage not in records or records[lease.stage].token != lease.token:
            raise LeaseLost(stage=lease.stage, model=lease.model, owner=lease.owner)
        return records

    def _is_committed(self, row: Record, lease: Lease) -> bool:
        record = records_of(row.values).get(lease.stage)
        return record is not None and lease.token in record.committed

    # Writing, and keeping the hints complete.

    def _change(
        self, lease: Lease, edit: Edit, update: Callable[[Record, Changes], Record] | None = None
    ) -> Record:
        changed = change_row(self._models, lease.model, edit, lease.row, update or self._update)
        if changed is None:
            raise LeaseLost(stage=lease.stage, model=lease.model, owner=lease.owner)
        return changed[1]

    def _update(self, row: Record, changes: Changes) -> Record:
        return self._queue.update(self._models, row, changes)

    def _summary(
        self,
        row: Record,
        records: Mapping[str, StageRecord],
        columns: Changes | None = None,
        resting: bool = False,
    ) -> dict[str, Value | None]:
        return summary(row.values, records, self._plan, self._clock(), columns, resting)

    def sweep(self) -> None:
        """Add every missing hint, from the rows, and show those that are hidden for no reason. Rows
        that another tool made learn for whom they are evaluated. A drain ends with this, then looks
        again."""
        targets = self._targets()
        edit = None if targets is None else retargeting(targets, self._plan, self._clock)

        def renewed(row: Record) -> Record:
            changed = None
            if edit is not None:
                with contextlib.suppress(BadInput, Conflict, RowDamaged, RowTooLarge):
                    changed = change_row(self._models, row.key, edit, row, self._update)
            return changed[1] if changed else row

        self._queue.sweep(self._models, self._clock(), renewed)

    def sweep_if_due(self, interval_s: float) -> bool:
        """Not more often than that by this runner, nor by all runners together."""
        self._idle_sweep_at = time.monotonic() + IDLE_SWEEP_SECONDS
        self._busy_sweep_at = time.monotonic() + BUSY_SWEEP_SECONDS
        return self._queue.sweep_if_due(self._clock(), interval_s, self.sweep)


def _clean(reason: str) -> str:
    """One readable line or few: no control characters from a tool's output, no endless dumps."""
    printable = "".join(c for c in reason if c.isprintable() or c == "\n").strip()
    return printable if len(printable) <= ERROR_TEXT_LIMIT else printable[:ERROR_TEXT_LIMIT] + "…"
