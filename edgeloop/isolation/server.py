"""The other end of a `NativeProcess`: the main function of a program that is started as
`python -m MODULE FOLDER`.

Reads calls from its standard input and answers on its standard output. Whatever the libraries
print goes into FOLDER/log, and what they drop into the current folder, or into the folder for
temporary files, is swept after each call.
It ends when its parent does: by the closed pipe between calls, by a watch on the parent's number
or, when a library keeps Python from running at all, by an alarm that no code has to serve.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeloop._util.system import step_back
from edgeloop.errors import EdgeloopError, MissingExtra
from edgeloop.isolation.messages import Array, ConnectionLost, receive, send

Answer = tuple[dict[str, Any], Sequence[Array]]
Work = Callable[..., Answer]

_GRACE_S = 5
_LARGEST_LOG = 1 << 20
TEMPORARY = "tmp"  # of what libraries call the folder for temporary files, below ours


def serve(
    make: Callable[[], Mapping[str, Work]],
    extra: str = "qnn",
    what: str = "Conversion for Qualcomm chips",
) -> None:
    """Do what the table says, call by call; it is made once the pipes are out of its way. A table
    has `hello`, which takes `warm` and says what is installed. Where an import fails, `what` needs
    the optional package `extra`."""
    step_back()
    folder = Path(sys.argv[1]).resolve()
    calls, answers = _take_over_pipes(folder / "log")
    work = folder / "work"
    work.mkdir(exist_ok=True)
    os.chdir(work)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    table = make()
    with contextlib.suppress(OSError):  # before the runner, when memory runs out
        Path("/proc/self/oom_score_adj").write_text("800")
    while True:
        try:
            body, arrays = receive(calls, None)
        except ConnectionLost:
            break
        signal.alarm(int(body["limit_s"]) + _GRACE_S)
        answer, more = _answer(table, body, arrays, MissingExtra(what=what, extra=extra))
        signal.alarm(0)
        _sweep(folder)
        try:
            send(answers, answer, more, None)
        except ConnectionLost:
            break
    shutil.rmtree(folder, ignore_errors=True)


def _answer(
    table: Mapping[str, Work], body: dict[str, Any], arrays: list[Array], missing: MissingExtra
) -> tuple[dict[str, Any], list[Array]]:
    """Errors of ours travel with their fields; any other is what a library said of the model."""
    try:
        result, more = table[body["work"]](*arrays, **body["fields"])
    except EdgeloopError as error:
        fields = {name: str(value) for name, value in error.fields.items()}
        return {"error": type(error).__name__, "fields": fields}, []
    except ImportError:
        return {"error": type(missing).__name__, "fields": missing.fields}, []
    except MemoryError:
        return {"error": "", "text": "out of memory"}, []
    except OSError as error:
        return {"error": "OSError", "text": str(error) or type(error).__name__}, []
    except Exception as error:  # noqa: BLE001  libraries raise what they like; the call has an answer
        return {"error": "", "text": f"{type(error).__name__}: {error}"}, []
    return {"result": result}, list(more)


def _take_over_pipes(log: Path) -> tuple[int, int]:
    """Keep the pipes for messages alone: libraries print to the standard ones."""
    calls, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    noise = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(noise, 1)
    os.dup2(noise, 2)
    return calls, answers


def _sweep(folder: Path) -> None:
    """What a call left in its current folder and in that for temporary files."""
    for place in (folder / "work", folder / TEMPORARY):
        for path in place.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    log = folder / "log"
    if log.stat().st_size > _LARGEST_LOG:
        os.truncate(log, 0)
