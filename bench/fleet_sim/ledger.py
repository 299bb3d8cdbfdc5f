"""What was computed and what was accepted, written down beside the table and compared with it.

Every result carries a number that no other has. The ledger hears of it when it is computed, and
when the runner was told that it is accepted; in the end each must stand in the table as often as
the plan wants it, and nothing else may.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from edgeloop.models.columns import runs_of
from edgeloop.models.plan import Plan
from edgeloop.store import Record, Values

RESULT_COLUMNS = {"convert": "macs"}  # others are named like their stage


@dataclass
class Verdict:
    """`lost`: accepted and not in the table, or never done. `doubled`: accepted more often than the
    plan wants. `foreign`: in the table, and computed by nobody."""

    complete: int = 0
    failed: int = 0
    unfinished: int = 0
    stages: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    @property
    def violations(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.foreign]


class SimLedger:
    def __init__(self) -> None:
        self._last = 0
        self._computed: dict[int, tuple[str, str]] = {}
        self._accepted: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.refused: Counter[str] = Counter()  # results of holders that had lost their lease
        self.accepted: Counter[str] = Counter()

    def computed(self, model: str, stage: str) -> int:
        """The number of this result."""
        self._last += 1
        self._computed[self._last] = (model, stage)
        return self._last

    def accept(self, model: str, stage: str, number: int) -> None:
        self._accepted[model, stage].append(number)
        self.accepted[stage] += 1

    def refuse(self, stage: str) -> None:
        self.refused[stage] += 1

    def check(
        self, rows: Iterable[Record], plan: Plan, bad: Mapping[str, str], is_over: bool
    ) -> Verdict:
        """`bad` models cannot be done: they must have ended in `error`. Unless it is over, work may
        be left, and what was accepted must stand in the table all the same."""
        verdict = Verdict()
        for row in rows:
            status = row.values.get("status")
            if row.key in bad and status == "error":
                verdict.failed += 1
            elif status == "complete":
                verdict.complete += 1
            else:
                verdict.unfinished += 1
                if is_over or status == "error":
                    verdict.lost.append(f"{row.key} ended as {status!r}: {row.values.get('error')}")
            for stage in plan.for_model(row.values):
                self._check_stage(row, stage.name, stage.runs, verdict)
        return verdict

    def _check_stage(self, row: Record, stage: str, runs: int, verdict: Verdict) -> None:
        where = f"{stage} of {row.key}"
        stored, accepted = Counter(_stored(row.values, stage)), self._accepted[row.key, stage]
        verdict.stages += sum(stored.values())
        if (
            len(accepted) > runs
            or sum(stored.values()) > runs
            or max(stored.values(), default=0) > 1
        ):
            verdict.doubled.append(f"{where}: accepted {accepted}, stored {sorted(stored)}")
        if missing := [number for number in accepted if number not in stored]:
            verdict.lost.append(f"{where}: accepted {missing}, stored {sorted(stored)}")
        if any(self._computed.get(number) != (row.key, stage) for number in stored):
            verdict.foreign.append(f"{where}: stored {sorted(stored)}")


def latency_of(number: int) -> float:
    """A latency in seconds that has the number of its result in its last digits."""
    return round(0.002 + number * 1e-12, 12)


def _stored(row: Values, stage: str) -> list[int]:
    if stage == "benchmark":
        return [round((run - 0.002) * 1e12) for run in runs_of(row)]
    value = row.get(RESULT_COLUMNS.get(stage, stage))
    return [] if value is None else [int(value)]


def benchmark_columns(row: Values, number: int) -> dict[str, str | float]:
    runs = [*runs_of(row), latency_of(number)]
    return {"total_inference_avg": json.dumps(runs), "mean": sum(runs) / len(runs), "stdev": 0.0}
