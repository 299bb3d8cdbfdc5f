"""The end of a job: outputs, log and state into the store, in this order, then the scratch folder
is removed. The state comes last because it is a promise: who reads `completed` finds every file.

`recover` does the same for a job whose supervisor died, from the folder it left.
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

from edgeloop._util.retry import delays
from edgeloop._util.system import start_time
from edgeloop._util.units import size_text
from edgeloop.errors import BadInput, BlobMissing, EdgeloopError, StoreRefused
from edgeloop.jobs.protocol.ticket import FINAL_STATES, JobProgress, State, state_key
from edgeloop.jobs.wrapper import command
from edgeloop.jobs.wrapper.events import STORE_ERRORS, with_retries
from edgeloop.jobs.wrapper.outputs import CreatedFiles, OutputCopier
from edgeloop.jobs.wrapper.scratch import JobLog, LogCopier, Scratch
from edgeloop.store import Blobs, json_safe

FAILED = 1
KILLED = 137
CANCELED = 143
_TAIL_BYTES = 256 * 1024
_MOST_REFUSALS = 3  # of some file by a store that accepts everything else
_DELAY_S = 1.0
_MOST_NAMES = 10
_DYING_S = 3.0  # a killed process closes its pipes before its lock is released


class StateWriter:
    """Holds the progress and writes it; `put` is called by one thread at a time."""

    def __init__(
        self, blobs: Blobs, job: str, progress: JobProgress, clock: Callable[[], float] = time.time
    ) -> None:
        self._blobs = blobs
        self._job = job
        self._progress = progress
        self._clock = clock
        self._changing = threading.Lock()

    @property
    def progress(self) -> JobProgress:
        return self._progress

    def change(self, **changes: Any) -> bool:
        """Whether it made a difference."""
        with self._changing:
            before = self._progress
            self._progress = replace(before, **changes)
            return self._progress != before

    def put(self) -> None:
        with self._changing:
            self._progress = replace(self._progress, heartbeat=self._clock())
            content = self._progress.to_json()
        self._blobs.put(state_key(self._job), content)


def stored_progress(blobs: Blobs, job: str) -> JobProgress | None:
    with contextlib.suppress(BlobMissing, BadInput):
        return JobProgress.from_json(blobs.read_document(state_key(job)))
    return None


def latest_metrics(file: Path) -> Mapping[str, object]:
    """The last complete line that is a JSON object."""
    try:
        if not file.is_file():
            return {}
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _TAIL_BYTES))
            lines = stream.read(_TAIL_BYTES).split(b"\n")[:-1]
    except OSError:
        return {}
    return next((values for line in reversed(lines) if (values := _object(line))), {})


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


@dataclass(frozen=True)
class JobOutcome:
    """How the job ended; `code` is the exit code for the compute."""

    state: State
    code: int
    reason: str = ""
    exit_code: int | None = None  # the command's own, if it ran
    published: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class JobFinisher:
    """All that is needed to finish a job, for its supervisor and for `recover`."""

    scratch: Scratch
    node: str
    log: JobLog
    log_copier: LogCopier
    outputs: OutputCopier
    created: CreatedFiles
    state: StateWriter
    patience_s: float

    def finish(self, outcome: JobOutcome) -> int:
        """The final exit code. The scratch folder is kept if not all of it could be stored."""
        missing = self._copy_all()
        if missing:
            outcome = self._incomplete(outcome, missing)
        elif outcome.state == "completed":
            self._try(self.outputs.remove_deleted)
        self._list_files()
        self.log.write(f"{outcome.state}: {outcome.reason}" if outcome.reason else outcome.state)
        if self._report(outcome, complete=not missing) and not missing:
            shutil.rmtree(self.scratch.folder, ignore_errors=True)
        return outcome.code

    def _list_files(self) -> None:
        """In the log and the state, because the job's folder is removed."""
        collected = self.outputs.collected()
        files = self.created.summary(collected)
        self.state.change(files=files)
        if files.collected:
            count = "1 file" if files.collected == 1 else f"{files.collected} files"
            names = ", ".join(ascii(name)[1:-1] for name in sorted(collected)[:_MOST_NAMES])
            more = ", …" if files.collected > _MOST_NAMES else ""
            self.log.write(f"{count} collected, {size_text(files.collected_bytes)}: {names}{more}")
        if files.left:
            self.log.write(files.note(_MOST_NAMES))

    def _incomplete(self, outcome: JobOutcome, missing: set[str]) -> JobOutcome:
        """Results that cannot be fetched are a failure; single files that no store could hold are
        only reported."""
        many = f"{len(missing)} files of outputs/ ({sorted(missing)[0]}, …)"
        what = many if len(missing) > 1 else f"outputs/{next(iter(missing))}"
        why = f" ({self.outputs.error})" if self.outputs.error else ""
        kept = f"{what} could not be stored{why}: see {self.scratch.outputs} on {self.node}"
        reason = f"{outcome.reason}; {kept}" if outcome.reason else kept
        if outcome.state == "completed" and not self._state_is_stored():
            return replace(outcome, state="failed", code=FAILED, reason=reason)
        return replace(outcome, reason=reason)

    def _copy_all(self) -> set[str]:
        """What could not be copied. A file that fails while everything else works is given up."""
        deadline = time.monotonic() + self.patience_s
        refusals = 0
        for delay in delays(_DELAY_S, 15 * _DELAY_S):
            missing = self.outputs.finish()
            if self.outputs.error is None:
                return missing
            works = self._state_is_stored()
            refusals = refusals + 1 if works else 0
            hopeless = isinstance(self.outputs.error, StoreRefused) and not works
            left = deadline - time.monotonic()
            if hopeless or refusals >= _MOST_REFUSALS or left <= 0:
                return missing
            time.sleep(min(delay, left))
        raise AssertionError("delays never end")

    def _report(self, outcome: JobOutcome, complete: bool) -> bool:
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
            with_retries(action, self.patience_s)
        except EdgeloopError as error:
            self.log.write(f"{error} The job's folder is kept: {self.scratch.folder}")
            return False
        return True

    def _state_is_stored(self) -> bool:
        try:
            self.state.put()
        except STORE_ERRORS:
            return False
        return True


def recover(
    folder: Path, blobs: Blobs, reason: str, patience_s: float = 30.0, state: State = "failed"
) -> bool:
    """Whether the job is finished; False if its supervisor is still alive.

    A job that had reported its end keeps that state; only what is missing in the store is stored.
    `state` is that of any other: it has failed, unless it was canceled.
    """
    scratch = Scratch(folder)
    if not folder.is_dir():
        return True
    with scratch.locked(_DYING_S) as alone:
        if not alone:
            return False
        note = scratch.read_note()
        if note.command and start_time(note.command) == note.born:
            command.signal_group(signal.SIGKILL, note.command)
        command.kill_all(lambda: command.processes_of(scratch.job))
        progress = with_retries(lambda: stored_progress(blobs, scratch.job), patience_s)
        outcome = JobOutcome(state, KILLED, reason)
        if progress is None:
            now = time.time()
            progress = JobProgress(state, note.attempt, note.node, now, started=note.started)
        elif progress.state in FINAL_STATES:
            if progress.outputs_complete:
                shutil.rmtree(folder, ignore_errors=True)
                return True
            why = progress.reason or reason
            published = progress.published
            outcome = JobOutcome(progress.state, KILLED, why, progress.exit_code, published)
        scratch.log.touch()
        log = JobLog(scratch.log)
        created = CreatedFiles(scratch.work, scratch.before)
        created.recall()
        JobFinisher(
            scratch,
            note.node,
            log,
            LogCopier(scratch.log, blobs, scratch.job),
            OutputCopier(scratch.outputs, created, blobs, scratch.job, log.write_once),
            created,
            StateWriter(blobs, scratch.job, progress),
            patience_s,
        ).finish(outcome)
    return True
