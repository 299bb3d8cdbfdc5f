"""What workers and people did, as they saw it: one line per event, kept even when its writer is
killed.

Whoever is about to write to a row says so first (`try?`, `commit?`, `fail?`, `release?`, `giveup?`,
`upload?`, `reset?`, `delete?`, `unlock?`, `priority?`), and then how it ended, with the same
`began`. An intention without an end may or may not have been carried out.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Event:
    """`kind` of a worker: claimed, ahead, urgent, begun, tried, accepted, failed, released, lost,
    unsure.
    Of people: uploaded, reset, deleted, unlocked, priority, unsure. Of the driver: killed.

    `began` and `ended` are readings of this machine's one monotonic clock, before and after the
    call, so that the order of events in different processes can be told where they do not overlap.
    `detail` says what else was seen; `ready` in it has the stages of the row that could be claimed
    after this event, each with its rank.
    """

    kind: str
    model: str
    stage: str = ""
    token: str = ""
    began: float = 0.0
    ended: float = 0.0
    worker: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


class Writer:
    """Appends whole lines by one write each: a killed process leaves no half line."""

    def __init__(self, path: Path) -> None:
        self.worker = path.stem
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def intend(self, what: str, model: str, stage: str = "", token: str = "") -> Operation:
        """Said before a row is written."""
        began = time.monotonic()
        self.add(f"{what}?", model, stage, token, began)
        return Operation(self, model, stage, token, began)

    def add(
        self,
        kind: str,
        model: str,
        stage: str = "",
        token: str = "",
        began: float | None = None,
        **detail: object,
    ) -> None:
        now = time.monotonic()
        began = now if began is None else began
        event = Event(kind, model, stage, token, began, now, self.worker, detail)
        os.write(self._file, (json.dumps(asdict(event)) + "\n").encode())


@dataclass(frozen=True)
class Operation:
    """Something that was begun, and whose end is to be written down."""

    writer: Writer
    model: str
    stage: str
    token: str
    began: float

    def ended(self, kind: str, **detail: object) -> None:
        self.writer.add(kind, self.model, self.stage, self.token, self.began, **detail)


def read(folder: Path) -> list[Event]:
    """In the order in which events ended."""
    events = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            events.append(Event(**json.loads(line)))
    return sorted(events, key=lambda event: event.ended)


class Clock:
    """A clock that the nemesis may set wrong: the machine's, and an offset that a file holds."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY)

    @property
    def offset_s(self) -> float:
        return float(os.pread(self._file, 64, 0) or b"0")

    def __call__(self) -> float:
        return time.time() + self.offset_s

    @staticmethod
    def set(path: Path, offset_s: float) -> None:
        """In place, by one write of a fixed length: whoever reads it reads all of it."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, f"{offset_s:+024.6f}".encode(), 0)
        finally:
            os.close(file)
