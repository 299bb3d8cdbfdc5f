"""The checker must be able to fail: histories that should not be possible, and what it says."""

from __future__ import annotations

from edgeloop.models import Plan, Stage
from tests.nemesis.checker import violations
from tests.nemesis.history import Event

PLAN = Plan((Stage("f1_1k", ("f1_1k",), "device", lambda row: 1),))
GOOD = [
    Event("claimed", "otter", "f1_1k", "a", 1, 2),
    Event("commit", "otter", "f1_1k", "a", 3, 3),
    Event("accepted", "otter", "f1_1k", "a", 3, 4),
]


def row(**columns: object) -> dict[str, object]:
    return {"name": "otter", "status": "complete", "node": "", "f1_1k": "a", **columns}


def found(events: list[Event], **columns: object) -> str:
    return "\n".join(violations(PLAN, [row(**columns)], events))


def test_a_good_history_has_nothing_to_say_against_it() -> None:
    assert found(GOOD) == ""


def test_a_stage_that_never_ended_is_found() -> None:
    assert "ended as 'waiting'" in found(GOOD, status="waiting")


def test_a_row_still_held_is_found() -> None:
    assert "still held" in found(GOOD, node="worker-1")


def test_an_accepted_result_that_is_not_there_is_found() -> None:
    other = [Event(e.kind, e.model, e.stage, "b", e.began + 9, e.ended + 9) for e in GOOD]
    assert "a was accepted and then lost" in found([*GOOD, *other], f1_1k="b")


def test_a_refused_result_that_is_there_is_found() -> None:
    refused = [*GOOD[:2], Event("lost", "otter", "f1_1k", "a", 3, 4)]
    assert "was refused, and yet is there" in found(refused)


def test_a_result_that_nobody_handed_in_is_found() -> None:
    assert "is nobody's result" in found([])


def test_a_result_accepted_from_a_stale_token_is_found() -> None:
    late = [
        Event("claimed", "otter", "f1_1k", "a", 1, 2),
        Event("claimed", "otter", "f1_1k", "b", 5, 6),
        Event("commit", "otter", "f1_1k", "a", 7, 7),
        Event("accepted", "otter", "f1_1k", "a", 7, 8),
    ]
    assert "a was accepted after b had taken over" in found(late)
