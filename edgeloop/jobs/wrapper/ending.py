"""The end of a job: outputs, log and state into the store, in this order, and the scratch away.

The state comes last because it is a promise: who reads `completed` finds every file there.

The job's word about itself in the store, and the latest of its metrics.

Finish a job whose keeper died, out of the folder it left.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgeloop.errors import BadInput, BlobMissing, EdgeloopError, StoreRefused
from edgeloop.jobs.protocol.ticket import FINAL_STATES, Progress, State, state_key
from edgeloop.jobs.wrapper import processes
from edgeloop.jobs.wrapper.log import Log, LogCopier
from edgeloop.jobs.wrapper.outputs import OutputCopier
from edgeloop.jobs.wrapper.repeat import STORE_TROUBLE, patiently
from edgeloop.jobs.wrapper.scratch import Note, Scratch
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


FAILED = 1
KILLED = 137
CANCELED = 143
_STUBBORN = 3  # times that a store takes everything but some file before that file is given up
_DELAY_S = 1.0


@dataclass(frozen=True)
class Outcome:
    """What became of the job; `code` is the exit code that the compute gets to see."""

    state: State
    code: int
    reason: str = ""
    exit_code: int | None = None  # the command's own, where it ran
    published: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    """All that is needed to finish a job; the same for a keeper and for who salvages one."""

    scratch: Scratch
    node: str
    log: Log
    log_copier: LogCopier
    outputs: OutputCopier
    state: StateWriter
    patience_s: float

    def finish(self, outcome: Outcome) -> int:
        """The job's final exit code. The scratch folder stays where not all of it is stored."""
        missing = self._copy_all()
        if missing:
            outcome = self._incomplete(outcome, missing)
        elif outcome.state == "completed":
            self._try(self.outputs.remove_deleted)
        self.log.say(f"{outcome.state}: {outcome.reason}" if outcome.reason else outcome.state)
        if self._report(outcome, complete=not missing) and not missing:
            shutil.rmtree(self.scratch.folder, ignore_errors=True)
        return outcome.code

    def _incomplete(self, outcome: Outcome, missing: set[str]) -> Outcome:
        """Results that nobody can fetch are no success; single files that no store could hold are
        said and no more."""
        many = f"{len(missing)} files of outputs/ ({sorted(missing)[0]}, …)"
        what = many if len(missing) > 1 else f"outputs/{next(iter(missing))}"
        why = f" ({self.outputs.trouble})" if self.outputs.trouble else ""
        kept = f"{what} could not be stored{why}: see {self.scratch.outputs} on {self.node}"
        reason = f"{outcome.reason}; {kept}" if outcome.reason else kept
        if outcome.state == "completed" and not self._works(self.state.put):
            return replace(outcome, state="failed", code=FAILED, reason=reason)
        return replace(outcome, reason=reason)

    def _copy_all(self) -> set[str]:
        """What could not be copied. A file that fails while all else goes is given up soon."""
        deadline = time.monotonic() + self.patience_s
        refusals, delay = 0, _DELAY_S
        while True:
            missing = self.outputs.finish()
            if self.outputs.trouble is None:
                return missing
            works = self._works(self.state.put)
            refusals = refusals + 1 if works else 0
            hopeless = isinstance(self.outputs.trouble, StoreRefused) and not works
            left = deadline - time.monotonic()
            if hopeless or refusals >= _STUBBORN or left <= 0:
                return missing
            time.sleep(min(delay, left))
            delay = min(2 * delay, 15 * _DELAY_S)

    def _report(self, outcome: Outcome, complete: bool) -> bool:
        stored = self._try(self.log_copier.copy)
        self.state.change(
            state=outcome.state,
            exit_code=outcome.exit_code,
            reason=outcome.reason,
            ended=time.time(),
            published=outcome.published,
            log_bytes=self.log_copier.bytes_sent,
            outputs_complete=complete,
            metrics=latest_metrics(self.scratch.outputs / "metrics.jsonl")
            or self.state.progress.metrics,
        )
        return self._try(self.state.put) and stored

    def _try(self, action: Callable[[], None]) -> bool:
        try:
            patiently(action, self.patience_s)
        except EdgeloopError as error:
            self.log.say(f"{error} The job's folder is kept: {self.scratch.folder}")
            return False
        return True

    def _works(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except STORE_TROUBLE:
            return False
        return True


_DYING_S = 3.0  # a killed process says goodbye to its pipes before it lets go of its lock


def salvage(folder: Path, blobs: Blobs, reason: str, patience_s: float = 30.0) -> bool:
    """True when the job is finished; False where its keeper is alive after all.

    A job that had said its last word keeps it; only what was not stored then is stored now.
    """
    scratch = Scratch(folder)
    if not folder.is_dir():
        return True
    with scratch.held(_DYING_S) as alone:
        if not alone:
            return False
        note = scratch.noted()
        _end_command(scratch.job, note)
        progress = patiently(lambda: stored_progress(blobs, scratch.job), patience_s)
        if progress is not None and progress.state in FINAL_STATES and progress.outputs_complete:
            shutil.rmtree(folder, ignore_errors=True)
            return True
        _ending(scratch, blobs, note, progress, patience_s).finish(_outcome(progress, reason))
    return True


def stored_progress(blobs: Blobs, job: str) -> Progress | None:
    with contextlib.suppress(BlobMissing, BadInput):
        return Progress.from_json(blobs.read(state_key(job)))
    return None


def _end_command(job: str, note: Note) -> None:
    """Its group, if that number still means it, and all that carries the job's id."""
    if note.command and processes.born(note.command) == note.born:
        processes.send_group(signal.SIGKILL, note.command)
    processes.end_all(lambda: processes.belonging_to(job))


def _outcome(progress: Progress | None, reason: str) -> Outcome:
    if progress is None or progress.state not in FINAL_STATES:
        return Outcome("failed", KILLED, reason)
    said = progress.reason or reason
    return Outcome(progress.state, KILLED, said, progress.exit_code, progress.published)


def _ending(
    scratch: Scratch, blobs: Blobs, note: Note, progress: Progress | None, patience_s: float
) -> Ending:
    scratch.log.touch()
    log = Log(scratch.log)
    fresh = Progress("failed", note.attempt, note.node, time.time(), started=note.started)
    return Ending(
        scratch,
        note.node,
        log,
        LogCopier(scratch.log, blobs, scratch.job),
        OutputCopier(scratch.outputs, blobs, scratch.job, log.say_once),
        StateWriter(blobs, scratch.job, progress or fresh),
        patience_s,
    )
