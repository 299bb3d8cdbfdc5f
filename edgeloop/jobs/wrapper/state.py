"""The job's word about itself in the store, and the latest of its metrics."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgeloop.jobs.ticket import Progress, state_key
from edgeloop.store import Blobs, json_safe

_TAIL_BYTES = 256 * 1024


class StateWriter:
    """Holds the progress and writes it; `put` is called by one thread at a time."""

    def __init__(
        self, blobs: Blobs, job: str, progress: Progress, clock: Callable[[], float] = time.time
    ) -> None:
        self._blobs = blobs
        self._job = job
        self._progress = progress
        self._clock = clock
        self._changing = threading.Lock()

    @property
    def progress(self) -> Progress:
        return self._progress

    def change(self, **changes: Any) -> bool:
        """True where it made a difference."""
        with self._changing:
            before = self._progress
            self._progress = replace(before, **changes)
            return self._progress != before

    def put(self) -> None:
        with self._changing:
            self._progress = replace(self._progress, heartbeat=self._clock())
            content = self._progress.to_json()
        self._blobs.put(state_key(self._job), content)


def latest_metrics(file: Path) -> Mapping[str, object]:
    """The last whole line that is a JSON object; a line still being written is left for later."""
    try:
        if not file.is_file():
            return {}
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _TAIL_BYTES))
            lines = stream.read(_TAIL_BYTES).split(b"\n")[:-1]
    except OSError:
        return {}
    return next((found for line in reversed(lines) if (found := _object(line))), {})


def _object(line: bytes) -> dict[str, object]:
    try:
        value = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {
        name: json_safe(item) if isinstance(item, float) else item for name, item in value.items()
    }
