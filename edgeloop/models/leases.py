"""Leases: how any number of machines share the work without doing it twice.

A claim is a compare-and-set on the model's row that puts a fresh random token, the owner, an
expiry and the attempt's number into the record of one stage. Whoever holds the token may renew,
commit, fail or release; each of these reads the row, looks for the token, and writes only if the
row is still as read. A holder that slept through its expiry finds another token, or none, and is
told LeaseLost: it can write nothing.

Clocks decide only when a silent lease may be taken over, and then with a margin; who may write is
decided by tokens alone. So a wrong clock can cost work, never correctness. A write whose answer got
lost can be said again: a token that was already committed is recognised.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from edgeloop.errors import BadInput, LeaseLost, RowChanged, RowDamaged, RowTooLarge
from edgeloop.models.columns import Edit, change_row
from edgeloop.models.plan import Plan, Stage, StageRecord, node_text, records_of, summary
from edgeloop.models.queue import GRAB_SECONDS, OWN, Hint, Queue, rank_of
from edgeloop.store import Changes, Record, Table, Value, merged

LARGEST_SPREAD = 64
LARGEST_SPREAD_UNJOINED = 16  # where hints are read one by one, each of them counts
LOOKS = 10
EDIT_LOOKS = 3  # of these, how many ask for priorities that were edited by hand
SETTLE_SECONDS = 2.0  # an idle runner looks every second
QUEUED_LOOK_SECONDS = 1.5
LONGEST_QUEUED_LOOK_SECONDS = 24.0
IDLE_SWEEP_SECONDS = 10.0
BUSY_SWEEP_SECONDS = 600.0
ERROR_TEXT_LIMIT = 2_000
LEFT_SECONDS = 60.0  # so long a row that cannot be claimed is left alone
_LOG = logging.getLogger("edgeloop.models")


@dataclass(frozen=True)
class Lease:
    """The right to do one stage of one model, until it expires or somebody takes it away."""

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
    """What a stage hands back: columns of the row (None: emptied), and where its files were stored.

    `files` maps a file's name to its key below the model's folder, `sha256` to its content.
    """

    columns: Changes
    files: Mapping[str, str] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)


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
    ) -> None:
        self._models = models
        self._plan = plan
        self._queue = Queue(hints, plan, margin_s)
        self._lease_s = lease_s
        self._margin_s = margin_s
        self._max_attempts = max_attempts
        self._clock = clock
        self._spread = 1  # how many of the best hints a claim chooses from
        self._races_lost = 0
        self._mended = 0
        self._last_seen = "", 0.0  # the last piece of its kind, and since when it has been seen
        self._left: dict[str, float] = {}  # models whose row cannot be claimed, and until when
        self._queued_look_at = 0.0
        self._queued_look_s = QUEUED_LOOK_SECONDS
        self._idle_sweep_at = 0.0
        self._busy_sweep_at = time.monotonic() + random.uniform(0.5, 1.0) * BUSY_SWEEP_SECONDS

    def claim(
        self,
        capabilities: Collection[str],
        node: str,
        *,
        only: Callable[[str], bool] = lambda model: True,
    ) -> Lease | None:
        """The best stage that is ready and that these capabilities can do, or None.

        For whoever is idle: where nothing else is left, it takes what another has claimed ahead and
        not begun. `only` narrows the choice to some models.
        """
        if time.monotonic() >= self._busy_sweep_at:
            self.sweep_if_due(BUSY_SWEEP_SECONDS)
        lease = self._claim_from_queue(capabilities, node, only)
        idle = lease is None and time.monotonic() >= self._idle_sweep_at
        if idle and self.sweep_if_due(IDLE_SWEEP_SECONDS):
            lease = self._claim_from_queue(capabilities, node, only)
        return lease or self._claim_queued(capabilities, node, only)

    def claim_ahead(
        self,
        capabilities: Collection[str],
        node: str,
        *,
        only: Callable[[str], bool] = lambda model: True,
        after: str = "",
    ) -> Lease | None:
        """As `claim`, for whoever is busy and wants to prepare what comes next; `begin` follows.

        Takes nothing that an idle runner could take now: either there is more of the kind, or
        it has been there for so long that an idle one would have taken it. Of models with a
        priority of their own it takes none that is better than the rank `after`: those go next, and
        not behind what was claimed ahead before (see `claim_urgent`).
        """
        return self._claim_from_queue(capabilities, node, only, ahead=True, after=after)

    def claim_urgent(
        self,
        capabilities: Collection[str],
        node: str,
        *,
        than: str,
        only: Callable[[str], bool] = lambda model: True,
    ) -> Lease | None:
        """Work whose row has a priority of its own that makes it better than the rank `than`."""
        now = self._clock()
        for key, _, row in self._queue.urgent(self._models, capabilities, now, than, only):
            stage = self._plan[key.rpartition("|")[2]]
            with self._leaving(row.key):
                if self._is_left(row.key) or not self._has_attempts_left(row, stage):
                    continue
                if lease := self._acquire(row, stage, node):
                    return lease
        return None

    def begin(self, lease: Lease) -> Lease:
        """What was claimed ahead begins now; raises LeaseLost when an idle runner has taken it."""

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
        """Push the expiry out; raises LeaseLost when the lease is no longer ours."""
        expires = self._clock() + self._lease_s

        def extend(row: Record) -> Changes:
            records = self._held(row, lease)
            records[lease.stage] = replace(records[lease.stage], expires=expires)
            return self._summary(row, records)

        row = self._change(lease, extend, self._models.update)
        return replace(lease, expires=expires, row=row)

    def commit(self, lease: Lease, outcome: Outcome) -> Record:
        """Write a stage's result if the lease is still ours. Saying it twice does no harm."""
        stage = self._plan[lease.stage]

        def finish(row: Record) -> Changes | None:
            if self._is_committed(row, lease):
                return None
            records = self._held(row, lease)
            held = records[lease.stage]
            files = {**held.files, **outcome.files}
            kept = {name: text for name, text in held.sha256.items() if name not in outcome.files}
            sha256 = {**kept, **outcome.sha256}
            done = replace(held.settled(), attempts=0, silent=0, not_before=0.0)
            records[lease.stage] = replace(done, files=files, sha256=sha256)
            if stage.progress(merged(row.values, outcome.columns)) <= stage.progress(row.values):
                missing = ", ".join(stage.fills)  # it would be done again forever
                reason = f"the result of {stage.name} does not fill its columns ({missing})"
                raise BadInput(reason=reason)
            changes = self._summary(row, records, outcome.columns)
            if str(row.values.get("error", "")).startswith(f"{lease.stage}: "):
                changes["error"] = None
            return changes

        return self._change(lease, finish)

    def fail(self, lease: Lease, reason: str, is_final: bool = False) -> Record:
        """The model's own fault: the reason goes into the row; after the last attempt it rests, and
        at once if another attempt could not end otherwise (`is_final`)."""

        def note(row: Record) -> Changes | None:
            if self._is_committed(row, lease):
                return None
            records = self._held(row, lease)
            held = records[lease.stage]
            records[lease.stage] = held.settled()
            error = {"error": _clean(f"{lease.stage}: {reason}")}
            rests = is_final or held.attempts >= self._max_attempts
            return self._summary(row, records, error, rests)

        return self._change(lease, note)

    def release(self, lease: Lease, delay_s: float = 0.0) -> Record:
        """Give the work back: not the model's fault, so no attempt is used up."""

        def give_back(row: Record) -> Changes | None:
            if self._is_committed(row, lease):
                return None
            records = self._held(row, lease)
            held = records[lease.stage]
            records[lease.stage] = replace(
                held.settled(),
                attempts=held.given_back().attempts,
                not_before=self._clock() + delay_s if delay_s else 0.0,
            )
            return self._summary(row, records)

        return self._change(lease, give_back)

    def pass_on(self, lease: Lease, reason: str) -> Record:
        """This machine cannot do it and another one may: counted as if nothing had been heard of
        it, which a model survives more often than failures. The reason stays in the row until the
        stage is done."""

        def note(row: Record) -> Changes | None:
            if self._is_committed(row, lease):
                return None
            records = self._held(row, lease)
            held = records[lease.stage]
            passed = replace(held.settled(), attempts=held.attempts - 1, silent=held.silent + 1)
            records[lease.stage] = passed
            error = {"error": _clean(f"{lease.stage}: {reason}")}
            rests = not passed.has_attempts_left(self._max_attempts)
            return self._summary(row, records, error, rests)

        return self._change(lease, note)

    def sweep(self) -> None:
        """Put every missing hint back, from the rows, and show those that are hidden for no reason.
        A drain ends with this, then looks again."""
        self._queue.sweep(self._models, self._clock())

    def sweep_if_due(self, interval_s: float) -> bool:
        """Not more often than that by this runner, nor by all runners together."""
        self._idle_sweep_at = time.monotonic() + IDLE_SWEEP_SECONDS
        self._busy_sweep_at = time.monotonic() + BUSY_SWEEP_SECONDS
        return self._queue.sweep_if_due(self._models, self._clock(), interval_s)

    def _claim_from_queue(
        self,
        capabilities: Collection[str],
        node: str,
        only: Callable[[str], bool],
        ahead: bool = False,
        after: str = "",
    ) -> Lease | None:
        """After a race lost to others the queue is read again: they took more than that. So it is
        when hints were mended: what they now say may be the best."""
        for look in range(LOOKS):
            races_lost, mended = self._races_lost, self._mended
            for hint in self._queue.open(capabilities, self._clock(), self._models, self._spread):
                if self._is_left(hint.model):
                    continue
                with self._leaving(hint.model):
                    if not only(hint.model) or (ahead and self._is_for_others(hint, after)):
                        continue
                    if (row := self._takeable(hint)) is not None:
                        if look < EDIT_LOOKS and self._is_overlooked(hint, capabilities, only):
                            break
                        if lease := self._acquire(row, self._plan[hint.stage], node, queued=ahead):
                            return lease
                        self._lost_race()
                if self._races_lost > races_lost:
                    break
            else:
                if self._mended == mended:
                    return None
        return None

    def _takeable(self, hint: Hint) -> Record | None:
        """The row alone decides who gets the work. Where the store cannot change row and hint
        together, the hint is hidden first, so that of many who want the same work all but one turn
        away at once; whoever dies in between delays the work a little."""
        if not self._models.is_atomic:
            hidden_s = min(GRAB_SECONDS, self._lease_s + self._margin_s)
            hidden = self._queue.hide(hint, self._clock() + hidden_s)
            if hidden is None:
                self._lost_race()
                return None
            hint = hidden
        row = hint.read_row()
        if row is None or hint.stage not in self._plan:
            self._queue.mend(hint.model, None, hint)
            return None
        stage = self._plan[hint.stage]
        ready_at = self._queue.ready_at(row.values, stage)
        is_stale = self._queue.key(hint.model, row.values, stage) != hint.record.key
        if ready_at is None or is_stale:
            self._queue.mend(hint.model, row.values, hint)
            self._mended += 1
            return None
        if ready_at > self._clock():
            self._queue.hide(hint, ready_at)
            return None
        return row if self._has_attempts_left(row, stage) else None

    def _has_attempts_left(self, row: Record, stage: Stage) -> bool:
        record = records_of(row.values).get(stage.name, StageRecord())
        if record.has_attempts_left(self._max_attempts):
            return True
        self._give_up(row, stage)
        return False

    def _is_for_others(self, hint: Hint, after: str) -> bool:
        """Whether to leave it to an idle runner, or to whoever begins next on this device."""
        if OWN in hint.rank and hint.rank < after:
            return True
        if not self._queue.is_last(hint, self._clock(), self._models):
            return False
        key, seen_at = self._last_seen
        if key != hint.record.key:
            self._last_seen = hint.record.key, time.monotonic()
            return True
        return time.monotonic() - seen_at < SETTLE_SECONDS

    def _claim_queued(
        self, capabilities: Collection[str], node: str, only: Callable[[str], bool]
    ) -> Lease | None:
        """Take what another has claimed ahead. Its holder finds the token gone when it begins.
        After looks in vain it looks less often: in a large fleet many are idle at the end."""
        if time.monotonic() < self._queued_look_at:
            return None
        self._queued_look_at = time.monotonic() + random.uniform(0.8, 1.2) * self._queued_look_s
        self._queued_look_s = min(2 * self._queued_look_s, LONGEST_QUEUED_LOOK_SECONDS)
        for hint in self._queue.queued(capabilities):
            if self._is_left(hint.model):
                continue
            with self._leaving(hint.model):
                row = self._models.get(hint.model) if only(hint.model) else None
                if row is None or hint.stage not in self._plan:
                    continue
                stage = self._plan[hint.stage]
                record = records_of(row.values).get(hint.stage, StageRecord())
                if not (record.is_held and record.queued):
                    self._queue.put(hint.record.key, {**hint.record.values, "queued": False})
                elif lease := self._acquire(row, stage, node, taken_from=record.token):
                    return lease
        return None

    @contextlib.contextmanager
    def _leaving(self, model: str) -> Iterator[None]:
        """A model that cannot be claimed for a reason in its own row is left for a while."""
        try:
            yield
        except (BadInput, RowDamaged, RowTooLarge) as error:
            if model not in self._left:
                _LOG.warning("edgeloop: %.200s cannot be claimed: %s", model, error)
            self._left[model] = time.monotonic() + LEFT_SECONDS

    def _is_left(self, model: str) -> bool:
        return self._left.get(model, 0.0) > time.monotonic()

    def _is_overlooked(
        self, hint: Hint, capabilities: Collection[str], only: Callable[[str], bool]
    ) -> bool:
        """Whether something better than this was found that no hint spoke of; it does now."""
        now = self._clock()
        better = self._queue.urgent(
            *(self._models, capabilities, now, hint.rank),
            lambda model: not self._is_left(model) and only(model),
        )
        for key, values, _ in better:
            self._queue.put(key, values)
        if better and not self._models.is_atomic:  # it was hidden on the way here
            self._queue.put(hint.record.key, {**hint.record.values, "until": 0.0})
        return bool(better)

    def _lost_race(self) -> None:
        self._races_lost += 1
        largest = LARGEST_SPREAD if self._models.is_atomic else LARGEST_SPREAD_UNJOINED
        self._spread = min(2 * self._spread, largest)

    def _acquire(
        self, row: Record, stage: Stage, node: str, queued: bool = False, taken_from: str = ""
    ) -> Lease | None:
        """The claim itself. Other stages' holders may write to the row meanwhile; what counts is
        that this stage is still free, or only queued under the token `taken_from`, in the very
        version that is replaced."""
        now, token = self._clock(), uuid.uuid4().hex

        def hold(row: Record) -> Changes | None:
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

        is_whole = self._models.is_atomic or queued or taken_from
        update = self._update if is_whole else self._models.update
        _, after = change_row(self._models, row.key, hold, row, update) or (row, row)
        held = records_of(after.values).get(stage.name)
        if held is None or held.token != token:
            return None
        self._spread = max(self._spread - 1, 1)
        self._queued_look_s = QUEUED_LOOK_SECONDS
        rank = rank_of(self._queue.key(row.key, after.values, stage))
        return Lease(
            *(row.key, stage.name, node, token, held.attempts + held.silent),
            *(held.expires, after, rank, queued),
        )

    def _update(self, row: Record, changes: Changes) -> Record:
        return self._queue.update(self._models, row, changes)

    def _give_up(self, row: Record, stage: Stage) -> None:
        """Every attempt ended without a word: the machine died, or the model kills its runner."""
        records = records_of(row.values)
        record = records[stage.name]
        records[stage.name] = record.free()
        attempts = record.attempts + record.silent
        reason = (
            f"{stage.name}: gave up after {attempts} attempts; the last, on "
            f"{record.owner or 'a machine'}, ended without a result or a reason"
        )
        with contextlib.suppress(RowChanged):
            changes = self._summary(row, records, {"error": reason}, resting=True)
            self._update(row, changes)

    def _summary(
        self,
        row: Record,
        records: Mapping[str, StageRecord],
        columns: Changes | None = None,
        resting: bool = False,
    ) -> dict[str, Value | None]:
        return summary(row.values, records, self._plan, self._clock(), columns, resting)

    def _held(self, row: Record, lease: Lease) -> dict[str, StageRecord]:
        """The records, if the lease still holds. A tool that knows no leases takes a row by writing
        its own name into `node`, and frees one by emptying it: that ends a lease too."""
        records = records_of(row.values)
        is_taken = str(row.values.get("node") or "") != node_text(records)
        if is_taken or lease.stage not in records or records[lease.stage].token != lease.token:
            raise LeaseLost(stage=lease.stage, model=lease.model, owner=lease.owner)
        return records

    def _is_committed(self, row: Record, lease: Lease) -> bool:
        record = records_of(row.values).get(lease.stage)
        return record is not None and lease.token in record.committed

    def _change(
        self, lease: Lease, edit: Edit, update: Callable[[Record, Changes], Record] | None = None
    ) -> Record:
        changed = change_row(self._models, lease.model, edit, lease.row, update or self._update)
        if changed is None:
            raise LeaseLost(stage=lease.stage, model=lease.model, owner=lease.owner)
        return changed[1]


def _clean(reason: str) -> str:
    """One readable line or few: no control characters from a tool's output, no endless dumps."""
    printable = "".join(c for c in reason if c.isprintable() or c == "\n").strip()
    return printable if len(printable) <= ERROR_TEXT_LIMIT else printable[:ERROR_TEXT_LIMIT] + "…"
