"""Priority inversions: a claim of less urgent work while more urgent work lay ready.

Work lies ready, for certain, from the moment somebody has seen it free in the row until the next
moment at which anybody might have written to that row. It counts if it lay ready for the whole
window before the claim began, and until the claim ended. Work of which it is not known whether it
was free (a write without an answer, a lease that ran out) is left out.

Left out, too, are claims by a machine whose clock is wrong by more than the margin, since it takes
free work for held and held work for free; and claims ahead, which leave the last piece of a kind to
idle runners. What was claimed ahead is judged when it begins, against models with a priority of
their own, and so is what is claimed in its place because it is urgent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.nemesis.history import Event
from tests.nemesis.operations import PEOPLE, ModelHistory, Operation


@dataclass(frozen=True)
class Window:
    """How much later than a change of the row a claim may overlook it. `of_own_only`: only models
    with a priority of their own are promised to go in order (see docs/explanation/leases.md)."""

    seconds: float = 1.0
    margin_s: float = 0.5
    of_own_only: bool = False


@dataclass(frozen=True)
class Ready:
    model: str
    stage: str
    rank: float
    is_own: bool
    since: float
    until: float


def inversions(
    models: Mapping[str, ModelHistory], events: Iterable[Event], window: Window
) -> list[str]:
    ready = sorted(
        (piece for model in models.values() for piece in _ready_pieces(model)),
        key=lambda piece: piece.rank,
    )
    return [
        f"{event.worker} {event.kind} {event.model} {event.stage} of rank {event.detail['rank']:g} "
        f"while {better.model} {better.stage} of rank {better.rank:g} had been ready for "
        f"{event.began - better.since:.1f} s"
        for event in events
        if (better := _overlooked(event, ready, window)) is not None
        and not _was_changed(event, models.get(event.model))
    ]


def _overlooked(event: Event, ready: list[Ready], window: Window) -> Ready | None:
    if event.kind not in ("claimed", "begun", "urgent") or not _is_judged(event, window):
        return None
    of_own_only = window.of_own_only or event.kind != "claimed"
    for piece in ready:
        if piece.rank >= event.detail["rank"]:
            return None
        is_long = piece.since <= event.began - window.seconds and piece.until >= event.ended
        if is_long and (piece.is_own or not of_own_only):
            return piece
    return None


def _was_changed(claim: Event, model: ModelHistory | None) -> bool:
    """Whether somebody changed the rank of what was claimed while it was chosen."""
    changes = model.of("priority", "upload") if model is not None else []
    return any(change.overlaps(claim.began, claim.ended) for change in changes)


def _is_judged(event: Event, window: Window) -> bool:
    if abs(event.detail["offset_s"]) > window.margin_s or event.detail.get("unknown"):
        return False
    return not (window.of_own_only and event.detail["resting"])


def _ready_pieces(model: ModelHistory) -> Iterator[Ready]:
    for seen in model.snapshots:
        for stage, (rank, is_own) in seen.detail["ready"].items():
            writers = [each for each in model.operations if _may_end(each, stage)]
            others = [each for each in writers if not _is_same(each, seen)]
            if any(each.overlaps(seen.began, seen.ended) for each in others):
                continue
            until = min((each.began for each in others if each.began > seen.ended), default=1e12)
            yield Ready(model.name, stage, rank, is_own, seen.ended, until)


def _may_end(operation: Operation, stage: str) -> bool:
    """Whether an operation may make a ready stage of its model unready, or change its rank."""
    if operation.verb in PEOPLE or operation.verb in ("fail", "giveup"):
        return True
    return operation.verb in ("try", "commit") and operation.stage == stage


def _is_same(operation: Operation, seen: Event) -> bool:
    return (operation.worker, operation.began) == (seen.worker, seen.began)
