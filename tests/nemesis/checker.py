"""Reads a history and the store it led to, and says what should not have been possible."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from edgeloop.models.columns import own_priority
from edgeloop.models.plan import SILENT_ATTEMPTS, UPLOAD, Plan, records_of
from edgeloop.store import Values
from tests.nemesis.history import Event
from tests.nemesis.operations import ModelHistory, Operation, histories
from tests.nemesis.priorities import Window, inversions

OF_THE_MODEL = "drawn by lot"  # the only fault that models have here
TOKEN = 12  # characters of it that a result holds


@dataclass(frozen=True)
class Final:
    """What is in the store at the end: rows by name, and the files of each model by their keys
    below its folder."""

    rows: Mapping[str, Values]
    files: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    violations: list[str]
    inversions: list[str]
    unfinished: list[str]  # work that there was no time for: nothing is wrong with it


def judge(
    plan: Plan,
    final: Final,
    events: Iterable[Event],
    max_attempts: int = 3,
    window: Window | None = None,
) -> Verdict:
    events = list(events)
    models = histories(events)
    found, unfinished = [], []
    for name in sorted({*models, *final.rows}):
        model = models.get(name) or ModelHistory(name, (), (), (), ())
        case = _Case(plan, model, final.rows.get(name), final.files.get(name, {}), max_attempts)
        found += [f"{name}{': ' if ' ' in text else ' '}{text}" for text in case.violations()]
        unfinished += [f"{name} {stage}" for stage in case.unfinished()]
    inverted = inversions(models, events, window or Window())
    return Verdict(found, inverted, unfinished)


def results_of(row: Values, stage: str) -> list[str]:
    """The tokens whose results a row holds. Workers write their token as the result itself."""
    if stage == "benchmark":
        return [
            f"{int(mark):012x}" for mark in json.loads(str(row.get("total_inference_avg", "[]")))
        ]
    column = "shape" if stage == "convert" else stage
    return [str(row[column])] if row.get(column) else []


def is_wanted(key: str, row: Values) -> bool:
    """Whether a row names a file, or holds the lease of the attempt that is making it."""
    records = records_of(row).values()
    held = any(record.is_held and f"/{record.token}/" in key for record in records)
    return held or any(key in record.files.values() for record in records)


@dataclass(frozen=True)
class _Case:
    """One model: what happened to it, its row and its files."""

    plan: Plan
    model: ModelHistory
    row: Values | None
    files: Mapping[str, bytes]
    max_attempts: int

    def violations(self) -> Iterator[str]:
        yield from self._of_attempts()
        for stage in self.plan.stages:
            yield from self._of_stale_writes(stage.name)
            yield from self._of_doubles(stage.name, stage.runs)
        yield from self._of_inputs()
        last = self._last_of("upload", "delete")
        if last is not None and last.is_unsure:
            return
        if last is not None and last.verb == "delete":
            if self.row is not None:
                yield "was deleted, and its row is there"
            if self.files:
                yield f"was deleted, and {len(self.files)} files are there"
            return
        if self.row is None:
            yield "its row is gone, and nobody deleted it"
            return
        yield from self._of_row(self.row)
        yield from self._of_files(self.row)

    def unfinished(self) -> Iterator[str]:
        if self.row is None or self.row.get("status") in ("complete", "error"):
            return
        for stage in self.plan.stages:
            if not stage.is_done(self.row):
                yield stage.name

    def _of_row(self, row: Values) -> Iterator[str]:
        uploads = self.model.of("upload")
        if uploads and row.get("content") not in uploads[-1].detail.get("content", ()):
            yield "its row is not that of the last upload"
        if row.get("status") == "complete":
            held = [name for name, record in records_of(row).items() if record.is_held]
            if held or row.get("node"):
                yield f"is complete and still held by {row.get('node')!r}"
            for stage in self.plan.stages:
                if len(results_of(row, stage.name)) != stage.runs:
                    yield f"{stage.name} has {len(results_of(row, stage.name))} results"
        for stage in self.plan.stages:
            yield from self._of_results(row, stage.name)
        yield from self._of_priority(row)
        if row.get("status") == "error":
            yield from self._of_error(str(row.get("error")))

    def _of_results(self, row: Values, stage: str) -> Iterator[str]:
        kept = Counter(results_of(row, stage))
        commits = self._commits(stage)
        for token, count in kept.items():
            if count > 1:
                yield f"{stage}: {token} was recorded twice"
            mine = commits.get(token, [])
            if not mine:
                yield f"{stage}: {token} is nobody's result"
            elif all(each.result == "lost" for each in mine):
                yield f"{stage}: {token} was refused, and yet is there"
            ended = max((each.ended for each in mine), default=0.0)
            if any(reset.began > ended for reset in self._resets(stage) if not reset.is_unsure):
                yield f"{stage}: {token} has outlived a reset"
            claim = self._claim_of(token)
            if claim is not None and claim.detail.get("content") != row.get("content"):
                yield f"{stage}: {token} is a result of another upload"
        for token, accepted in self._accepted(stage).items():
            claim = self._claim_of(token)
            is_this_model = claim is None or claim.detail.get("content") == row.get("content")
            is_reset = any(reset.ended > accepted.began for reset in self._resets(stage))
            if token not in kept and is_this_model and not is_reset:
                yield f"{stage}: {token} was accepted and then lost"

    def _of_doubles(self, stage: str, runs: int) -> Iterator[str]:
        """More results were accepted than there are runs, and nobody reset it in between."""
        accepted = sorted(self._accepted(stage).values(), key=lambda each: each.began)
        anew = [*self._resets(stage), *self.model.of("upload", "delete")]
        for number in range(len(accepted) - runs):
            first, last = accepted[number], accepted[number + runs]
            if not any(each.overlaps(first.began, last.ended) for each in anew):
                yield f"{stage}: {last.token[:TOKEN]} was accepted though it was done"

    def _of_stale_writes(self, stage: str) -> Iterator[str]:
        """An accepted result is stale if, between its claim and its first commit, another claim
        began and was won, or somebody took the lease away: the token was no longer in the row."""
        commits = self._commits(stage)
        takers = [each for each in self.model.claims if each.stage == stage]
        people = [
            each
            for verb in ("reset", "unlock", "delete")
            for each in self.model.of(verb, stage=stage)
            if not each.is_unsure and each.result != "refused"
        ]
        for token in self._accepted(stage):
            claim = self._claim_of(token)
            if claim is None:
                continue
            first = min(each.began for each in commits[token])
            for taker in takers:
                if taker.token[:TOKEN] != token and _is_between(taker, claim.ended, first):
                    yield f"{stage}: {token} was accepted after {taker.token[:TOKEN]} took over"
            for person in people:
                if _is_between(person, claim.ended, first):
                    yield f"{stage}: {token} was accepted after a person's {person.verb}"

    def _of_inputs(self) -> Iterator[str]:
        """Accepted results were made from the very file that was uploaded, and from the conversion
        that the row named."""
        uploads = {
            content: each.detail.get("file")
            for each in self.model.of("upload")
            for content in each.detail.get("content", ())
        }
        accepted = {token for stage in self.plan.stages for token in self._accepted(stage.name)}
        for work in self.model.worked:
            if work.token[:TOKEN] not in accepted:
                continue
            where = f"{work.stage}: {work.token[:TOKEN]}"
            content = work.detail.get("content")
            if content in uploads and uploads[content] != work.detail.get("file"):
                yield f"{where} was computed from another file than the uploaded one"
            needs_it = "convert" in self.plan[work.stage].needs
            if needs_it and work.detail.get("converted") != work.detail.get("row_converted"):
                yield f"{where} was computed from another conversion than the row's"

    def _of_attempts(self) -> Iterator[str]:
        for failure in self.model.of("fail"):
            reason = str(failure.detail.get("reason", ""))
            if failure.result == "failed" and not reason.endswith(OF_THE_MODEL):
                yield f"{failure.stage}: the model was blamed: {reason}"
        for claim in self.model.claims:
            fewest, most = self._failures_before(claim)
            counted = claim.detail.get("failures", 0)
            if counted > most:
                yield f"{claim.stage}: {counted} failures were counted, and {most} happened"
            elif counted < fewest:
                yield f"{claim.stage}: {counted} failures were counted, and {fewest} happened"

    def _failures_before(self, claim: Event) -> tuple[int, int]:
        """At least and at most how many failures a claim had to find in the row."""
        known, possible = self._failures(claim.stage)
        starts = self._fresh_starts(claim.stage)
        wiped_at = max(
            (s.began for s in starts if not s.is_unsure and s.ended < claim.began), default=0.0
        )
        most = [f for f in possible if f.began < claim.ended and f.ended >= wiped_at]
        fewest = [
            f
            for f in known
            if f.ended < claim.began
            and not any(start.overlaps(f.began, claim.ended) for start in starts)
        ]
        return len(fewest), len(most)

    def _failures(self, stage: str) -> tuple[list[Operation], list[Operation]]:
        """Those that were counted for certain, and those that may have been. What was said of a
        token that had committed changes nothing."""
        said = [each for each in self.model.of("fail", stage=stage) if each.result != "lost"]
        committed = self._commits(stage)
        known = [f for f in said if not f.is_unsure and f.token[:TOKEN] not in committed]
        return known, said

    def _fresh_starts(self, stage: str) -> list[Operation]:
        """From each of these on failures are counted anew. A commit that was refused is none."""
        commits = [each for each in self.model.of("commit", stage=stage) if each.result != "lost"]
        return [*commits, *self._resets(stage), *self.model.of("upload", "delete")]

    def _of_error(self, reason: str) -> Iterator[str]:
        stage = reason.partition(":")[0]
        silences = [each.detail for each in self.model.of("giveup") if each.result == "gave up"]
        if any(each.get("silent", 0) + 1 >= SILENT_ATTEMPTS for each in silences):
            return
        start = max(
            (each.began for each in self._fresh_starts(stage) if not each.is_unsure), default=0
        )
        failures = [each for each in self._failures(stage)[1] if each.ended >= start]
        if len(failures) < self.max_attempts:
            yield f"is in error after {len(failures)} failures of {stage}"

    def _of_priority(self, row: Values) -> Iterator[str]:
        last = self._last_of("priority", "upload")
        if last is None or last.verb != "priority" or last.result != "priority":
            return
        wanted = last.detail.get("to")
        if own_priority(row) != wanted:
            yield f"has the priority {row.get('priority')!r}, and {wanted!r} was asked for"

    def _of_files(self, row: Values) -> Iterator[str]:
        for stage, record in records_of(row).items():
            tokens = results_of(row, stage) if stage in self.plan else []
            for key in record.files.values():
                if key not in self.files:
                    yield f"{stage}: its file {key} is gone"
                elif stage == UPLOAD:
                    yield from self._of_upload(key)
                elif self.files[key][:TOKEN].decode() not in tokens:
                    yield f"{stage}: its file {key} is of another attempt"
            if tokens and len(record.files) != len(tokens):
                yield f"{stage}: it has {len(record.files)} files of {len(tokens)}"
        for key in self.files:
            if not is_wanted(key, row):
                yield f"the file {key} is nobody's, and gc left it"

    def _of_upload(self, key: str) -> Iterator[str]:
        uploads = self.model.of("upload")
        expected = uploads[-1].detail.get("file") if uploads else None
        if expected and hashlib.sha256(self.files[key]).hexdigest() != expected:
            yield f"its file {key} is not the one that was uploaded last"

    def _commits(self, stage: str) -> dict[str, list[Operation]]:
        found: dict[str, list[Operation]] = {}
        for each in self.model.of("commit", stage=stage):
            found.setdefault(each.token[:TOKEN], []).append(each)
        return found

    def _accepted(self, stage: str) -> dict[str, Operation]:
        """By token, the first time it was told so."""
        return {
            token: next(each for each in said if each.result == "accepted")
            for token, said in self._commits(stage).items()
            if any(each.result == "accepted" for each in said)
        }

    def _resets(self, stage: str) -> list[Operation]:
        found = self.model.of("reset", stage=stage)
        return [each for each in found if each.result != "refused"]

    def _claim_of(self, token: str) -> Event | None:
        found = (each for each in self.model.claims if each.token[:TOKEN] == token)
        return next(found, None)

    def _last_of(self, *verbs: str) -> Operation | None:
        found = [each for each in self.model.of(*verbs) if each.result != "refused"]
        return found[-1] if found else None


def _is_between(thing: Event | Operation, start: float, end: float) -> bool:
    return thing.began > start and thing.ended < end
