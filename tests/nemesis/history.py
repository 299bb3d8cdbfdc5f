"""What workers did, as they saw it: one line an event, kept even when its writer is killed."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Event:
    """`kind`: claimed, commit, accepted, lost, failed, released, unsure.

    `began` and `ended` are readings of this machine's one monotonic clock, before and after the
    call, so that the order of events in different processes can be told where they do not overlap.
    """

    kind: str
    model: str
    stage: str
    token: str
    began: float
    ended: float


class Writer:
    """Appends whole lines by one write each: a killed process leaves no half line."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, kind: str, model: str, stage: str, token: str, began: float) -> None:
        event = Event(kind, model, stage, token, began, time.monotonic())
        os.write(self._file, (json.dumps(asdict(event)) + "\n").encode())


def read(folder: Path) -> list[Event]:
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.open()]
    return sorted((Event(**json.loads(line)) for line in lines), key=lambda event: event.ended)
