"""Finish a job whose keeper died, out of the folder it left."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from pathlib import Path

from edgeloop.errors import BadInput, BlobMissing
from edgeloop.jobs.ticket import FINAL_STATES, Progress, state_key
from edgeloop.jobs.wrapper import processes
from edgeloop.jobs.wrapper.ending import KILLED, Ending, Outcome
from edgeloop.jobs.wrapper.log import Log, LogCopier
from edgeloop.jobs.wrapper.outputs import OutputCopier
from edgeloop.jobs.wrapper.repeat import patiently
from edgeloop.jobs.wrapper.scratch import Note, Scratch
from edgeloop.jobs.wrapper.state import StateWriter
from edgeloop.store import Blobs

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
