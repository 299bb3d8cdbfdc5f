"""The checker must be able to fail: each kind of violation, planted into a history that is good."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from edgeloop.models.plan import Plan, Stage
from edgeloop.store import Values
from tests.nemesis.checker import Final, Verdict, judge
from tests.nemesis.history import Event
from tests.nemesis.priorities import Window

PLAN = Plan(
    (
        Stage("convert", "quantize", lambda row: 20, fills=("shape",)),
        Stage("f1_1k", "device", lambda row: 60, needs=("convert",), fills=("f1_1k",)),
    )
)
NET = b"the uploaded model"
NET_HASH = hashlib.sha256(NET).hexdigest()
CONVERT, SCORE, OTHER = "c" * 12, "a" * 12, "b" * 12


def operation(
    verb: str,
    result: str,
    began: float,
    stage: str = "",
    token: str = "",
    worker: str = "worker-0-1",
    took: float = 0.5,
    **detail: object,
) -> list[Event]:
    """An intention and its end; without a result nobody knows it."""
    about = ("otter", stage, token, began)
    found = [Event(f"{verb}?", *about, began, worker)]
    if result:
        found.append(Event(result, *about, began + took, worker, detail))
    return found


def claim(
    token: str,
    began: float,
    stage: str = "f1_1k",
    kind: str = "claimed",
    model: str = "otter",
    worker: str = "worker-0-1",
    **detail: object,
) -> Event:
    seen = {"failures": 0, "silent": 0, "rank": 60.0, "content": "v1", "offset_s": 0.0}
    return Event(
        *(kind, model, stage, token, began, began + 0.5, worker),
        {**seen, "resting": False, **detail},
    )


def worked(token: str, stage: str = "f1_1k", **detail: object) -> Event:
    inputs = {"content": "v1", "file": NET_HASH, "converted": CONVERT, "row_converted": CONVERT}
    return Event("worked", "otter", stage, token, 0, 0, "worker-0-1", {**inputs, **detail})


def person(verb: str, result: str, began: float, **detail: object) -> list[Event]:
    return operation(verb, result, began, worker="person", **detail)


GOOD = [
    *person("upload", "uploaded", 0, content=["v1"], file=NET_HASH),
    claim(CONVERT, 1, "convert", rank=20.0),
    *operation("commit", "accepted", 2, "convert", CONVERT),
    claim(SCORE, 3),
    worked(SCORE),
    *operation("commit", "accepted", 5, "f1_1k", SCORE),
]
ROW: Values = {
    "name": "otter",
    "status": "complete",
    "node": "",
    "content": "v1",
    "shape": CONVERT,
    "f1_1k": SCORE,
    "stages": json.dumps(
        {
            "upload": {"files": {"net.onnx": "net.onnx"}},
            "convert": {"files": {"net.bin": "net.bin"}},
            "f1_1k": {"files": {"score.bin": "score.bin"}},
        }
    ),
}
FILES = {"net.onnx": NET, "net.bin": CONVERT.encode(), "score.bin": SCORE.encode()}


def verdict(
    events: list[Event],
    files: dict[str, bytes] | None = None,
    gone: bool = False,
    **columns: object,
) -> Verdict:
    rows = {} if gone else {"otter": {**ROW, **columns}}
    return judge(PLAN, Final(rows, {"otter": FILES if files is None else files}), events)


def test_a_good_history_has_nothing_to_say_against_it() -> None:
    assert verdict(GOOD) == Verdict([], [], [])


def test_work_that_there_was_no_time_for_is_no_violation() -> None:
    row = {key: value for key, value in ROW.items() if key != "f1_1k"}
    stages = json.loads(str(ROW["stages"]))
    del stages["f1_1k"]
    final = Final(
        {"otter": {**row, "status": "waiting", "stages": json.dumps(stages)}},
        {"otter": {key: FILES[key] for key in ("net.onnx", "net.bin")}},
    )
    assert judge(PLAN, final, GOOD[:5]) == Verdict([], [], ["otter f1_1k"])


SECOND = [claim(OTHER, 6, content="v1"), *operation("commit", "accepted", 8, "f1_1k", OTHER)]
BEFORE_COMMIT = GOOD[:-2]
LATE_COMMIT = operation("commit", "accepted", 9, "f1_1k", SCORE)
RESET_BETWEEN = person("reset", "reset", 6, stages=["f1_1k"])

PLANTED: dict[str, tuple[str, Callable[[], Verdict]]] = {
    "a row that is gone": ("nobody deleted it", lambda: verdict(GOOD, gone=True)),
    "a row that is still held": ("still held", lambda: verdict(GOOD, node="worker-1")),
    "a result that is missing": ("has 0 results", lambda: verdict(GOOD, f1_1k="", shape=CONVERT)),
    "an accepted result that was lost": (
        f"{SCORE} was accepted and then lost",
        lambda: verdict([*GOOD, claim(OTHER, 6), *SECOND[1:]], f1_1k=OTHER),
    ),
    "a stage that was done twice": (
        "was accepted though it was done",
        lambda: verdict([*GOOD, *SECOND], f1_1k=OTHER),
    ),
    "a refused result that is there": (
        "was refused, and yet is there",
        lambda: verdict([*BEFORE_COMMIT, *operation("commit", "lost", 5, "f1_1k", SCORE)]),
    ),
    "a result that nobody handed in": ("is nobody's result", lambda: verdict(BEFORE_COMMIT)),
    "a write after another took over": (
        f"{SCORE} was accepted after {OTHER} took over",
        lambda: verdict([*BEFORE_COMMIT, claim(OTHER, 6, worker="worker-1-2"), *LATE_COMMIT]),
    ),
    "a write after a reset": (
        "was accepted after a person's reset",
        lambda: verdict([*BEFORE_COMMIT, *RESET_BETWEEN, *LATE_COMMIT]),
    ),
    "a write after an unlock": (
        "was accepted after a person's unlock",
        lambda: verdict(
            [*BEFORE_COMMIT, *person("unlock", "unlocked", 6, stages=["f1_1k"]), *LATE_COMMIT]
        ),
    ),
    "a result that outlived a reset": (
        "has outlived a reset",
        lambda: verdict([*GOOD, *RESET_BETWEEN]),
    ),
    "a deleted model that came back": (
        "was deleted, and its row is there",
        lambda: verdict([*GOOD, *person("delete", "deleted", 9)]),
    ),
    "files of a deleted model": (
        "was deleted, and 3 files are there",
        lambda: verdict([*GOOD, *person("delete", "deleted", 9)], gone=True),
    ),
    "an upload that was lost": (
        "not that of the last upload",
        lambda: verdict([*GOOD, *person("upload", "uploaded", 9, content=["v2"], file="x")]),
    ),
    "a result of the model before": (
        "is a result of another upload",
        lambda: verdict([*GOOD[:-4], claim(SCORE, 3, content="v0"), *GOOD[-2:]]),
    ),
    "work on another file": (
        "computed from another file",
        lambda: verdict([*GOOD, worked(SCORE, file="another")]),
    ),
    "work on another conversion": (
        "another conversion than the row's",
        lambda: verdict([*GOOD, worked(SCORE, converted=OTHER)]),
    ),
    "a priority that was not kept": (
        "has the priority None, and 5 was asked for",
        lambda: verdict([*GOOD, *person("priority", "priority", 9, to=5)]),
    ),
    "a machine's fault that was counted": (
        "1 failures were counted, and 0 happened",
        lambda: verdict([*GOOD[:-4], claim(SCORE, 3, failures=1), *GOOD[-2:]]),
    ),
    "a model's fault that was not counted": (
        "0 failures were counted, and 1 happened",
        lambda: verdict(
            [*GOOD[:3], *operation("fail", "failed", 2.6, "f1_1k", OTHER, took=0.1), *GOOD[3:]]
        ),
    ),
    "a model that was blamed for a machine": (
        "the model was blamed: its file is gone",
        lambda: verdict(
            [*GOOD, *operation("fail", "failed", 9, "f1_1k", OTHER, reason="its file is gone")]
        ),
    ),
    "an error without failures": (
        "in error after 0 failures of f1_1k",
        lambda: verdict(GOOD, status="error", error="f1_1k: drawn by lot"),
    ),
    "a file that is gone": (
        "its file score.bin is gone",
        lambda: verdict(GOOD, {k: v for k, v in FILES.items() if k != "score.bin"}),
    ),
    "a file of another attempt": (
        "its file score.bin is of another attempt",
        lambda: verdict(GOOD, {**FILES, "score.bin": OTHER.encode()}),
    ),
    "a file that is not the upload": (
        "is not the one that was uploaded last",
        lambda: verdict(GOOD, {**FILES, "net.onnx": b"another"}),
    ),
    "an orphan that gc left": (
        "the file .attempts/x/y is nobody's, and gc left it",
        lambda: verdict(GOOD, {**FILES, ".attempts/x/y": b""}),
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_violation_is_found(what: str) -> None:
    expected, planted = PLANTED[what]
    assert expected in "\n".join(planted().violations)


def test_what_a_killed_worker_was_about_to_do_may_have_been_done() -> None:
    """Its commit had no answer: the result may be there or not."""
    killed = Event("killed", "", began=6, ended=6, worker="driver", detail={"worker_slot": 0})
    unknown = [*BEFORE_COMMIT, *operation("commit", "", 5, "f1_1k", SCORE), killed]
    assert verdict(unknown).violations == []
    again = [*unknown, claim(OTHER, 7), worked(OTHER)]
    again += operation("commit", "accepted", 8, "f1_1k", OTHER)
    files = {**FILES, "score.bin": OTHER.encode()}
    assert verdict(again, files, f1_1k=OTHER).violations == []


def test_a_model_that_was_reset_is_done_anew() -> None:
    files = {**FILES, "score.bin": OTHER.encode()}
    again = [*GOOD, *RESET_BETWEEN, claim(OTHER, 7), worked(OTHER)]
    again += operation("commit", "accepted", 8, "f1_1k", OTHER)
    assert verdict(again, files, f1_1k=OTHER) == Verdict([], [], [])


SEEN = Event(*("seen", "urgent", "", "", 10, 10.1, "person"), {"ready": {"convert": [0.0, True]}})
OVERLOOKED = claim(OTHER, 15, worker="worker-1-1")


def inverted(*events: Event, window: Window | None = None) -> list[str]:
    rows = {"otter": ROW}
    return judge(PLAN, Final(rows, {"otter": FILES}), events, 3, window).inversions


def test_less_urgent_work_that_was_claimed_first_is_found() -> None:
    assert (
        "while urgent convert of rank 0 had been ready for 4.9 s" in inverted(SEEN, OVERLOOKED)[0]
    )


def test_what_was_claimed_ahead_is_judged_when_it_begins() -> None:
    assert inverted(SEEN, replace(OVERLOOKED, kind="ahead")) == []
    assert len(inverted(SEEN, replace(OVERLOOKED, kind="begun"))) == 1
    natural = replace(SEEN, detail={"ready": {"convert": [20.0, False]}})
    assert inverted(natural, replace(OVERLOOKED, kind="begun")) == []
    assert len(inverted(natural, OVERLOOKED)) == 1
    assert inverted(natural, OVERLOOKED, window=Window(of_own_only=True)) == []


@pytest.mark.parametrize(
    "excuse",
    [
        claim(OTHER, 10.5, worker="worker-1-1"),  # within the window
        claim(OTHER, 15, rank=0.0),  # as urgent
        claim(OTHER, 15, offset_s=3_600.0),  # by a machine whose clock is wrong
    ],
)
def test_what_is_no_inversion(excuse: Event) -> None:
    assert inverted(SEEN, excuse) == []


def test_work_that_somebody_may_have_taken_was_not_ready_for_certain() -> None:
    trying = Event("try?", "urgent", "convert", "", 12, 12, "worker-2-1")
    assert inverted(SEEN, trying, OVERLOOKED) == []
    before = replace(trying, began=9, ended=9)  # and it has no end: it may still be carried out
    assert inverted(before, SEEN, OVERLOOKED) == []
    tried = Event("tried", "urgent", "convert", "", 9, 9.5, "worker-2-1")
    assert len(inverted(before, tried, SEEN, OVERLOOKED)) == 1
