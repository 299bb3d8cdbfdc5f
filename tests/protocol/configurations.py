"""What is explored: small configurations to their end in the tests, larger ones in the bench.

Each is about one kind of trouble, on both kinds of store: those that change a row and its hints
together (`sql`), and those that write one after the other (`azure`).
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.protocol.actors import Configuration

SHORT = {"lease_s": 10.0, "margin_s": 0.0}  # a lease is over after one tick
KINDS = {"sql": True, "azure": False}


def _both(name: str, **bounds: object) -> Iterator[Configuration]:
    for kind, is_atomic in KINDS.items():
        yield Configuration(f"{name}, {kind}", is_atomic, **bounds)  # type: ignore[arg-type]


def _only(kind: str, name: str, **bounds: object) -> Configuration:
    return Configuration(f"{name}, {kind}", KINDS[kind], **bounds)  # type: ignore[arg-type]


SMALL: tuple[Configuration, ...] = (
    *_both("one worker in trouble", workers=1, **SHORT, ticks=1, faults=1, crashes=1, releases=1),
    *_both("failures", workers=1, ticks=0, failures=2, releases=1, faults=1, renewals=0),
    *_both(
        *("deleted and uploaded again",),
        **{"workers": 1, "ticks": 0, "renewals": 0, "deeds": ("delete", "upload"), "deeds_left": 2},
    ),
    *_both("clock a year ahead", workers=1, ticks=0, jumps=1, crashes=1, renewals=0, sweeps=1),
    _only("sql", "takeover", **SHORT, ticks=1, renewals=1),
    _only("azure", "takeover", **SHORT, ticks=1, renewals=0),
    _only("sql", "heartbeats", **SHORT, ticks=1, renewals=0, heartbeats=1),
    _only("sql", "reset", ticks=0, renewals=0, deeds=("reset",), deeds_left=1, workers=1, faults=1),
    *_both(
        *("priorities",),
        **{"models": ("a", "b"), "workers": 1, "ticks": 0, "renewals": 0, "judges_order": True},
        **{"deeds": ("priority", "edit"), "deeds_left": 1},
    ),
    _only("azure", "unlock", ticks=0, renewals=0, deeds=("unlock",), deeds_left=1, workers=1),
)

LARGE: tuple[Configuration, ...] = (
    *_both("takeover and renewal", ticks=4, renewals=1),
    *_both("clocks apart by the margin", ticks=4, skews_s=(0.0, 10.0, 0.0), renewals=1),
    *_both("three workers", workers=3, **SHORT, ticks=1, renewals=0),
    *_both("crashes and lost answers", **SHORT, ticks=2, faults=1, crashes=1),
    *_both("failures and releases", ticks=0, failures=1, releases=1, faults=1, renewals=0),
    *_both("runs that are counted", stages=("benchmark",), **SHORT, ticks=1, faults=1, renewals=0),
    *_both("two stages at once", stages=("convert", "f1_onnx"), ticks=0, faults=1, renewals=0),
    *_both("heartbeats", **SHORT, ticks=1, faults=1, renewals=0, heartbeats=1),
    *_both("claimed ahead", models=("a", "b"), ticks=1, looks_ahead=True, renewals=0),
    *_both("reset", ticks=1, renewals=0, deeds=("reset",), deeds_left=1),
    *_both("unlock", ticks=1, renewals=0, deeds=("unlock",), deeds_left=1, faults=1),
    *_both("deleted and uploaded", ticks=0, renewals=0, deeds=("delete", "upload"), deeds_left=2),
    *_both(
        *("priorities",),
        **{"models": ("a", "b"), "ticks": 1, "renewals": 0, "judges_order": True},
        **{"deeds": ("priority", "edit"), "deeds_left": 1, "crashes": 1},
    ),
    *_both("clock a year ahead", ticks=1, jumps=1, crashes=1, renewals=0, sweeps=1),
    *_both("lost hints", ticks=2, has_hints=False, sweeps=1, crashes=1, faults=1, renewals=0),
    *_both(
        *("people alone",),
        **{"workers": 1, "ticks": 0, "renewals": 0, "faults": 1, "deeds_left": 4},
        **{"deeds": ("delete", "upload", "unlock", "reset", "priority")},
    ),
    *_both(
        *("people and trouble",),
        **{
            **SHORT,
            "ticks": 1,
            "renewals": 0,
            "faults": 1,
            "crashes": 1,
            "releases": 1,
            "deeds": ("reset", "unlock", "delete", "upload", "priority"),
            "deeds_left": 2,
        },
    ),
)
