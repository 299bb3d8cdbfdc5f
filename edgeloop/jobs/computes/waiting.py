"""The process that waits in the queue of this machine and then becomes the job's wrapper.

Thousands may wait at once on a small machine. So until it is the first in the queue this is a bare
interpreter with `os`, `fcntl` and `select`, and it only looks at the names in a folder, which sort
in the order in which jobs start. Only the first few watch the queue; all others sleep on a pipe
until they are among the first few or no longer wait. `queue.py` explains the rest and
is imported only by the process that is next: it needs three times the memory of this module.
`jobs/bundle.py` packs both into one file.
"""

from __future__ import annotations

import os
import select
import sys
import time

try:
    import fcntl
except ImportError:  # not a POSIX system: the other computes still work
    fcntl = None  # type: ignore[assignment]

WAITING, RUNNING, OVER, ALIVE, WAKE = "waiting", "running", "over", "alive", "wake"
FIRST_FEW = 4

# Changes show at once in a folder's time of change. A killed process changes nothing, and two
# changes in one tick of the clock look like one: so the first few also look now and then. So does
# everybody else, in case that all of the first few were killed.
LOOK_AGAIN_S = 3.0
SLEEP_S = 30.0
_FIRST_S, _STEP_S = 0.05, 0.02


def main(folder: str, name: str, wrapper: str) -> int:
    """The exit code of the wrapper; 0 if the job was canceled while it waited."""
    if not wait(folder, name):
        return 0

    from edgeloop.jobs.computes.queue import JobQueue

    queue = JobQueue.at(folder)
    code = 1
    try:
        code = _become(wrapper)
    finally:
        queue.end_surely(job_of(name), code)
    return code


def wait(folder: str, name: str) -> bool:
    """Until this job runs; False if its entry is gone because it was canceled. Nothing that may
    pass, such as a full disk, ends it."""
    seen: tuple[int, int] | None = None
    looked, position = 0.0, 0
    pipe = _open_pipe(folder, job_of(name))
    try:
        while True:
            try:
                changed = (_changed(folder, WAITING), _changed(folder, RUNNING))
                is_far = position >= FIRST_FEW
                if is_far or changed != seen or time.monotonic() - looked > LOOK_AGAIN_S:
                    seen, looked = changed, time.monotonic()
                    names = queue_names(folder)
                    if name not in names:
                        return False
                    position = names.index(name)
                    if _look(folder, names, position):
                        return True
            except FileNotFoundError:
                return False  # the whole queue is gone
            except OSError:
                seen = None
            _sleep(pipe, position)
    finally:
        if pipe is not None:
            os.close(pipe)


def _look(folder: str, names: list[str], position: int) -> bool:
    """Start, if this is the first; else see to it that the one before still lives."""
    if position == 0:
        return _start(folder, names[0])
    if not is_alive(folder, job_of(names[position - 1])):
        _remove_dead(folder, names[position - 1])
    return False


def _open_pipe(folder: str, job: str) -> int | None:
    """None if there is none, on a disk that was full: this process then looks now and then."""
    try:  # for both directions: else it would count as closed as soon as one has written to it
        return os.open(os.path.join(folder, WAKE, job), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # noqa: PTH118
    except OSError:
        return None


def _sleep(pipe: int | None, position: int) -> None:
    if position < FIRST_FEW:
        time.sleep(_FIRST_S + _STEP_S * position)
    elif pipe is None:
        time.sleep(LOOK_AGAIN_S)
    elif select.select([pipe], [], [], SLEEP_S)[0]:
        os.read(pipe, 4096)


def queue_names(folder: str) -> list[str]:
    """In the order in which jobs start. What else may lie there, an editor's or a network's file,
    is no job."""
    return sorted(name for name in os.listdir(os.path.join(folder, WAITING)) if _is_entry(name))  # noqa: PTH118, PTH208


def _is_entry(name: str) -> bool:
    parts = name.split(".", 2)
    return len(parts) == 3 and parts[0].isdecimal() and parts[1].isdecimal() and bool(parts[2])


def job_of(name: str) -> str:
    """Names in the queue are `<priority>.<number>.<job>`."""
    return name.split(".", 2)[2]


def is_alive(folder: str, job: str) -> bool:
    """A job's process holds a lock for as long as it lives, however it ends."""
    try:
        lock = os.open(os.path.join(folder, ALIVE, job), os.O_RDONLY | os.O_CLOEXEC)  # noqa: PTH118
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _changed(folder: str, part: str) -> int:
    return os.stat(os.path.join(folder, part)).st_mtime_ns  # noqa: PTH116, PTH118


def _start(folder: str, name: str) -> bool:
    from edgeloop.jobs.computes.queue import JobQueue, QueueBusy, show_gpus

    try:
        started = JobQueue.at(folder).start(name)
    except QueueBusy:
        return False
    if started is None:
        return False
    if started.capacity.gpus:  # on a machine with GPUs, a job that asked for none sees none
        show_gpus(started.gpus)
    return True


def _remove_dead(folder: str, name: str) -> None:
    from edgeloop.jobs.computes.queue import JobQueue, QueueBusy

    try:
        JobQueue.at(folder).remove_dead(job_of(name))
    except QueueBusy:
        return


def _become(wrapper: str) -> int:
    """Run the wrapper in this process as Python would: with site packages, without our modules."""
    import runpy
    import site

    for module in [name for name in sys.modules if name.split(".")[0] == "edgeloop"]:
        del sys.modules[module]
    site.main()
    sys.argv = [wrapper]
    try:
        runpy.run_path(wrapper, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
