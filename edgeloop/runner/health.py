"""The health of a runner as a file, for the probes of containers and services: no port, no store,
and little to import.

A thread of the runner renews the file every few seconds. It says what is wrong, in words; whether
it is still renewed says the rest. Times are those of the machine's monotonic clock, which all its
processes share and which is never set.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from edgeloop._util.system import start_time
from edgeloop.errors import BadInput, LocalFileError

BEAT_S = 1.0
SILENT_S = 60.0  # on a machine that swaps, beats come late


def write_health(file: Path, stuck: str, not_ready: str) -> None:
    """`stuck`: what makes no progress, so that a restart would help; `not_ready`: why no work is
    taken now. Both empty in a healthy runner."""
    from edgeloop._util.files import write_atomic

    pid = os.getpid()
    health = {
        "pid": pid,
        "process_started": start_time(pid),
        "beat_s": time.monotonic(),
        "stuck": stuck,
        "not_ready": not_ready,
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps(health))
    except OSError as error:
        raise LocalFileError(path=file, reason=error.strerror or str(error)) from None


def health_problem(file: Path, ready: bool = False) -> str:
    """Why the runner should be restarted or, with `ready`, why it does not take work; empty if it
    is well."""
    try:
        health = json.loads(file.read_text(encoding="utf-8"))
        pid, beat_s = int(health["pid"]), float(health["beat_s"])
        stuck, not_ready = str(health["stuck"]), str(health["not_ready"])
        started = str(health["process_started"])
    except FileNotFoundError:
        return f"there is no {file}: no runner with --health {file} is running"
    except OSError as error:
        raise LocalFileError(path=file, reason=error.strerror or str(error)) from None
    except (ValueError, KeyError, TypeError):
        raise BadInput(reason=f"{file} is not the health file of a runner") from None
    if start_time(pid) != started:
        return f"the runner (process {pid}) has ended"
    silent_s = time.monotonic() - beat_s
    if not 0 <= silent_s <= SILENT_S:
        return f"the runner (process {pid}) has not renewed {file} for {abs(silent_s):.0f} s"
    return stuck or (not_ready if ready else "")
