"""Events joined to operations: what was begun, how it ended, and between which moments it took
effect, if it did."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.nemesis.history import Event

GRACE_S = 15.0  # a request of a process that was killed may still be on its way for so long
ENDS = (
    *("tried", "accepted", "failed", "released", "lost", "unsure", "refused", "gave up"),
    *("uploaded", "reset", "deleted", "unlocked", "priority"),
)
PEOPLE = ("upload", "reset", "delete", "unlock", "priority")


@dataclass(frozen=True)
class Operation:
    """`verb` is what was intended; `result` how it ended: empty or `unsure` where nobody knows, and
    then `ended` is when it can no longer take effect."""

    verb: str
    model: str
    stage: str
    token: str
    worker: str
    began: float
    ended: float
    result: str
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_unsure(self) -> bool:
        return self.result in ("", "unsure")

    def overlaps(self, began: float, ended: float) -> bool:
        return self.began <= ended and self.ended >= began


@dataclass(frozen=True)
class ModelHistory:
    """All that happened to one model."""

    name: str
    operations: Sequence[Operation]
    claims: Sequence[Event]
    snapshots: Sequence[Event]
    worked: Sequence[Event]

    def of(self, *verbs: str, stage: str = "") -> list[Operation]:
        return [
            each
            for each in self.operations
            if each.verb in verbs and (not stage or _concerns(each, stage))
        ]


def histories(events: Iterable[Event]) -> dict[str, ModelHistory]:
    """By model, each in the order in which things began."""
    events = list(events)
    ends = {_key(event): event for event in events if event.kind in ENDS}
    killed = _kills(events)
    operations: dict[str, list[Operation]] = defaultdict(list)
    others: dict[str, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        if event.kind.endswith("?"):
            operation = _operation(event, ends.get(_key(event)), killed)
            operations[event.model].append(operation)
        elif event.kind in ("claimed", "ahead", "urgent"):
            others[event.model]["claims"].append(event)
        elif event.kind == "worked":
            others[event.model]["worked"].append(event)
        if "ready" in event.detail:
            others[event.model]["snapshots"].append(event)
    return {
        name: ModelHistory(
            name,
            sorted(operations[name], key=lambda each: each.began),
            sorted(others[name]["claims"], key=lambda each: each.began),
            sorted(others[name]["snapshots"], key=lambda each: each.ended),
            others[name]["worked"],
        )
        for name in {*operations, *others}
        if name
    }


def _operation(
    intention: Event, end: Event | None, killed: Mapping[str, Sequence[float]]
) -> Operation:
    if end is None:
        deaths = killed.get(_slot(intention.worker), ())
        death = min((at for at in deaths if at >= intention.began), default=math.inf)
        ended, result, detail = death + GRACE_S, "", intention.detail
    else:
        ended, result, detail = end.ended, end.kind, end.detail
        if result == "unsure":
            ended += GRACE_S
    verb = intention.kind.removesuffix("?")
    where = (intention.model, intention.stage, intention.token, intention.worker)
    return Operation(verb, *where, intention.began, ended, result, detail)


def _concerns(operation: Operation, stage: str) -> bool:
    """A reset whose end nobody knows may have been of any stage."""
    if operation.verb in ("reset", "unlock") and not operation.is_unsure:
        return stage in operation.detail.get("stages", ())
    return not operation.stage or operation.stage == stage


def _kills(events: Iterable[Event]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.kind == "killed":
            found[str(event.detail["worker_slot"])].append(event.ended)
    return found


def _slot(worker: str) -> str:
    """`worker-SLOT-SEED`."""
    return worker.split("-")[1] if worker.count("-") > 1 else ""


def _key(event: Event) -> tuple[object, ...]:
    return event.worker, event.model, event.stage, event.token, event.began
