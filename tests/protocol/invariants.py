"""What must hold whatever happens: of every write, of every call's end, and of every content.

Who may write, how often a result is accepted and what counts as an attempt are judged write by
write, from the row before and after. That nothing is lost is judged by content: as if all machines
died at that moment, one new worker comes an hour later and must be able to finish every model, the
most urgent first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from edgeloop.models.catalog import Catalog
from edgeloop.models.columns import own_priority, runs_of
from edgeloop.models.leases import Leases, Outcome
from edgeloop.models.plan import StageRecord, _status, node_text, records_of
from edgeloop.models.queue import Queue, rank_of, ready_at
from edgeloop.store import Record, Values
from tests.protocol.actors import (
    EXPERIMENT,
    Call,
    Configuration,
    Ending,
    Memory,
    Tape,
    on_tape,
    result_of,
)
from tests.protocol.tables import AskingStore, Frozen, Row, Sheet, direct

Content = tuple[tuple[Row, ...], tuple[Row, ...]]  # models and hints

HOUR_S = 3_600.0
ON_A_LEASE = ("commit", "fail", "release", "renew", "begin")
CLAIMS = ("claim", "claim_ahead")
STARTS_AFRESH = ("reset", "delete", "upload")
ENDED = ("complete", "error")
HALF_MADE = ("uploading", "deleting")
MOST_STAGES = 40


class Write(NamedTuple):
    """A write to the models that was accepted. `memory` is the writer's, as its call began."""

    before: tuple[Row, ...]
    after: tuple[Row, ...]
    actor: str
    call: Call
    memory: Memory
    now: float


class Judge:
    def __init__(self, configuration: Configuration) -> None:
        self._of = configuration
        self._seen: set[Any] = set()
        self._facts = cache(self._read)

    @property
    def contents(self) -> int:
        return len(self._seen)

    def of_write(self, write: Write) -> list[str]:
        before = {key: columns for key, _, columns in write.before}
        messages: list[str] = []
        for key, _, columns in write.after:
            if columns != before.get(key):
                messages += self._of_row(write, key, before.get(key), columns)
        return messages

    def of_ending(self, content: Content, call: Call, ending: Ending) -> list[str]:
        if call.name != "commit" or ending.outcome != "lost":
            return []
        for key, _, columns in content[0]:
            facts = self._facts(columns)
            is_going = facts.values.get("status") == "deleting"  # and its results with it
            if key == call.model and ending.token in facts.results and not is_going:
                return [f"the result of {ending.token} was refused, and yet it is there"]
        return []

    def of_order(
        self, first: Content, last: Content, lease: tuple[Any, ...], now: float
    ) -> list[str]:
        """What a claim took, against the models with a priority of their own that could have been
        taken all the time, from the beginning of the claim to its end."""
        was_there = {(key, version) for key, version, _ in first[0]}
        taken_rank = lease[-2]
        messages = []
        for key, version, columns in last[0]:
            if columns is None or key == lease[0] or (key, version) not in was_there:
                continue
            values = self._facts(columns).values
            if own_priority(values) is None:
                continue
            better = [rank for rank in self._ranks(key, values, now) if rank < taken_rank]
            if better:
                said = f"{lease[0]} of rank {taken_rank} was taken"
                messages.append(f"{said} while {key} of rank {better[0]} was free")
        return messages

    def of_content(self, content: Content, now: float) -> list[str]:
        """Once per content, whatever the versions."""
        plain = tuple(
            tuple((key, columns) for key, _, columns in rows if columns is not None)
            for rows in content
        )
        if plain in self._seen:
            return []
        self._seen.add(plain)
        return self._finish({"models": Sheet(content[0]), "hints": Sheet(content[1])})

    def sweep(self, sheets: Mapping[str, Sheet], now: float) -> None:
        with on_tape(Tape((), now, now)):
            self._lone_worker(sheets, lambda: now).sweep()

    def shown(self, content: Content) -> str:
        parts = []
        for key, version, columns in content[0]:
            if columns is None:
                parts.append(f"{key} (deleted)")
                continue
            facts = self._facts(columns)
            held = [
                f"{stage}[{record.token or 'free'}"
                + (f" until {record.expires:.0f}" if record.token else "")
                + (" queued" if record.queued else "")
                + f" attempts {record.attempts}+{record.silent}]"
                for stage, record in facts.records.items()
            ]
            done = [f"results {', '.join(facts.results)}"] if facts.results else []
            parts.append(f"{key} v{version} {facts.values.get('status')} {' '.join(held + done)}")
        hints = [
            f"{key.rpartition('|')[2]}@{dict(columns).get('until', 0):.0f}"
            for key, _, columns in content[1]
            if columns is not None and "|" in key and "until" in dict(columns)
        ]
        return " · ".join(parts) + (f" · hints {' '.join(hints)}" if hints else " · no hints")

    # Of one row that was written

    def _of_row(self, write: Write, key: str, old: Frozen | None, new: Frozen | None) -> list[str]:
        if old is None or new is None:
            is_persons = write.call.name in STARTS_AFRESH
            return [] if is_persons else [f"{write.call} of {write.actor} made or removed {key}"]
        before, after = self._facts(old), self._facts(new)
        messages = [*after.faults]
        name = write.call.name
        statuses = before.values.get("status"), after.values.get("status")
        if statuses[0] == "deleting" != statuses[1]:
            messages.append(
                f"{write.call} made a model that is being deleted {statuses[1]!r} again"
            )
        if name in ON_A_LEASE:
            messages += _of_holder(write, key, before, after)
        elif name in CLAIMS:
            messages += self._of_claim(write, before, after)
        messages += _of_results(write, before, after)
        if name not in STARTS_AFRESH:
            messages += _of_attempts(write, before, after)
            messages += self._of_resting(write, before, after)
        return messages

    def _of_claim(self, write: Write, before: Facts, after: Facts) -> list[str]:
        if after.values.get("status") == "error":
            return []  # it gave up: see _of_resting
        messages = []
        for stage, record in after.records.items():
            old = before.records.get(stage, StageRecord())
            if record == old:
                continue
            if old.has_begun and self._of.are_clocks_close:
                holder = self._of.skews_s[int(old.owner[1:]) - 1] + write.now
                if holder < old.expires:
                    left = f"{old.expires - holder:.0f} s left by its holder's clock"
                    messages.append(
                        f"{write.actor} took {stage} from {old.token}, which had {left}"
                    )
            if record.silent != old.silent + old.has_begun:
                messages.append(f"{stage} counts {record.silent} silent attempts")
        return messages

    def _of_resting(self, write: Write, before: Facts, after: Facts) -> list[str]:
        if after.values.get("status") != "error" or before.values.get("status") == "error":
            return []
        most = self._of.max_attempts
        if write.call.name == "fail":
            failures = max(_failures(record) for record in after.records.values())
            return [] if failures >= most else [f"it rests after {failures} failures"]
        used_up = [r for r in before.records.values() if not r.has_attempts_left(most)]
        return [] if used_up else [f"{write.call} put it to rest with attempts left"]

    def _read(self, columns: Frozen | None) -> Facts:
        return Facts.of({} if columns is None else dict(columns), self._of)  # type: ignore[arg-type]

    # Whether everything can still be finished

    def _finish(self, sheets: dict[str, Sheet]) -> list[str]:
        now = 1_000.0 + self._of.ticks * self._of.tick_s + HOUR_S
        with on_tape(Tape((), now, now, "w8")):
            messages = self._drain(sheets, now)
            catalog = self._catalog(sheets, now)
            held = [model for model in _unfinished(sheets) if _is_held(sheets, model)]
            if held and self._of.jumps:  # a lease of a wrong clock: a person frees it
                for model in held:
                    catalog.unlock(model)
                messages += self._drain(sheets, now + HOUR_S)
            for record in sheets["models"].query("", "", (), None):
                if record.values.get("status") in HALF_MADE:
                    catalog.delete(record.key)
            left = _unfinished(sheets)
        if left:
            shown = self.shown((sheets["models"].frozen(), sheets["hints"].frozen()))
            messages.append(f"{', '.join(left)} is never finished: {shown}")
        return messages

    def _drain(self, sheets: dict[str, Sheet], now: float) -> list[str]:
        leases, messages = self._lone_worker(sheets, lambda: now), []
        for _ in range(MOST_STAGES):
            leases.sweep()
            best = self._best(sheets, now)
            lease = leases.claim(self._of.capabilities, "w8")
            if lease is None:
                break
            if best is not None and lease.rank > best:
                messages.append(f"{lease.model} of rank {lease.rank} was taken before {best}")
            leases.commit(lease, Outcome(result_of(lease)))
        return messages

    def _best(self, sheets: dict[str, Sheet], now: float) -> str | None:
        rows = sheets["models"].query("", "", (), None)
        ranks = [rank for row in rows for rank in self._ranks(row.key, row.values, now)]
        return min(ranks, default=None)

    def _ranks(self, key: str, values: Values, now: float) -> list[str]:
        """Of the stages of a model that may be claimed now, the best first."""
        plan, margin_s = self._of.plan, self._of.margin_s
        queue = Queue(AskingStore(direct({}), True).queue(EXPERIMENT), plan, margin_s)
        records, found = records_of(values), []
        for stage in plan.for_model(values):
            ready = ready_at(values, stage, plan, margin_s)
            record = records.get(stage.name, StageRecord())
            if ready is None or ready > now or not record.has_attempts_left(self._of.max_attempts):
                continue
            found.append(rank_of(queue.key(key, values, stage)))
        return sorted(found)

    def _lone_worker(self, sheets: Mapping[str, Sheet], clock: Any) -> Leases:
        store = AskingStore(direct(sheets), self._of.is_atomic)
        return self._of.leases(
            *(store.models(EXPERIMENT), store.queue(EXPERIMENT), self._of.plan),
            lease_s=self._of.lease_s,
            margin_s=self._of.margin_s,
            max_attempts=self._of.max_attempts,
            clock=clock,
        )

    def _catalog(self, sheets: Mapping[str, Sheet], now: float) -> Catalog:
        store = AskingStore(direct(sheets), self._of.is_atomic)
        margin_s = self._of.margin_s
        return Catalog(
            store, EXPERIMENT, self._of.plan, node="p9", margin_s=margin_s, clock=lambda: now
        )


class Facts(NamedTuple):
    """What a row says, and what is wrong with it by itself."""

    values: Values
    records: Mapping[str, StageRecord]
    results: tuple[str, ...]
    faults: tuple[str, ...]

    @classmethod
    def of(cls, values: Values, configuration: Configuration) -> Facts:
        records = records_of(values)
        results = _results(values, configuration)
        faults = []
        if values.get("stages"):
            content = json.loads(str(values["stages"]))
            if set(records) != set(content) or any(r.other for r in records.values()):
                faults.append("its records cannot be read")
        if str(values.get("node") or "") != node_text(records):
            faults.append(f"its node is {values.get('node')!r}, its holders {node_text(records)!r}")
        status = values.get("status")
        if status != "deleting" and status != (
            real := _status(values, records, configuration.plan)
        ):
            faults.append(f"its status is {status!r} where {real!r} is true")
        if len(set(results)) < len(results):
            faults.append(f"a result was recorded twice: {', '.join(results)}")
        return cls(values, records, results, tuple(faults))


def _results(values: Values, configuration: Configuration) -> tuple[str, ...]:
    """The tokens whose results a row holds."""
    found = []
    for stage in configuration.stages:
        if stage == "benchmark":
            found += [f"w{run // 1000:.0f}.{run % 1000:.0f}" for run in runs_of(values)]
        elif value := values.get("shape" if stage == "convert" else stage):
            found.append(str(value))
    return tuple(found)


def _of_holder(write: Write, key: str, before: Facts, after: Facts) -> list[str]:
    assert write.memory.lease is not None
    model, stage, _, token, *_ = write.memory.lease
    held = before.records.get(stage, StageRecord())
    messages = []
    if key != model or held.token != token:
        now_held = held.token or "nobody"
        said = f"{write.call.name} with the stale token {token} was accepted"
        messages.append(f"{said}: {stage} of {key} was held by {now_held}")
    others = [name for name in after.records if name != stage]
    if any(after.records[name] != before.records.get(name) for name in others):
        messages.append(f"{write.call} of {write.actor} changed another stage's record")
    return messages


def _of_results(write: Write, before: Facts, after: Facts) -> list[str]:
    fresh = [token for token in after.results if token not in before.results]
    gone = [token for token in before.results if token not in after.results]
    messages = []
    if write.call.name == "commit":
        token = write.memory.lease[3] if write.memory.lease else ""
        if fresh != [token]:
            messages.append(f"the commit of {token} recorded {', '.join(fresh) or 'nothing'}")
    elif fresh:
        messages.append(f"{write.call} recorded results: {', '.join(fresh)}")
    if gone and write.call.name not in STARTS_AFRESH:
        messages.append(f"{write.call} lost accepted results: {', '.join(gone)}")
    return messages


def _of_attempts(write: Write, before: Facts, after: Facts) -> list[str]:
    """Only a failure counts as one; a success forgets them."""
    messages = []
    for stage, record in after.records.items():
        was, now = _failures(before.records.get(stage, StageRecord())), _failures(record)
        if write.call.name == "commit" and write.memory.lease and stage == write.memory.lease[1]:
            expected = 0
        elif write.call.name == "fail" and write.memory.lease and stage == write.memory.lease[1]:
            expected = was + 1
        else:
            expected = was
        if now != expected:
            messages.append(f"{write.call} counts {now} failures of {stage} instead of {expected}")
    return messages


def _failures(record: StageRecord) -> int:
    return record.attempts - record.is_held


def _is_held(sheets: Mapping[str, Sheet], model: str) -> bool:
    row = sheets["models"].get(model)
    return row is not None and any(r.is_held for r in records_of(row.values).values())


def _unfinished(sheets: Mapping[str, Sheet]) -> list[str]:
    rows: list[Record] = sheets["models"].query("", "", (), None)
    return [row.key for row in rows if row.values.get("status") not in (*ENDED, *HALF_MADE)]
