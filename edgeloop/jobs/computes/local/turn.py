"""The process that waits for its turn on this machine and then becomes the job's wrapper.

Hundreds may wait at once on a small machine. So until it is the first in line this is a bare
interpreter with `os` and `fcntl`, and all it looks at are the names in a folder: they sort in the
order in which jobs start. `queue.py` tells the whole story; `local.py` starts this.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time

WAITING, RUNNING, OVER, ALIVE = "waiting", "running", "over", "alive"

# Changes show at once in a folder's time of change. A process killed outright changes nothing, and
# two changes in one tick of the clock look like one: so everybody looks again now and then.
LOOK_AGAIN_S = 3.0
_FIRST_S, _STEP_S, _LONGEST_S = 0.05, 0.02, 0.5


def main(folder: str, name: str, wrapper: str) -> int:
    """The exit code of the wrapper; 0 where the job was canceled while it waited."""
    job = job_of(name)
    if not wait(folder, name):
        return 0
    from edgeloop.jobs.computes.local.queue import Queue

    queue = Queue.at(folder)
    code = 1
    try:
        code = _become(wrapper)
    finally:
        queue.end(job, code)
    return code


def wait(folder: str, name: str) -> bool:
    """Until this job runs; False where its entry is gone, which is how it is canceled."""
    seen: tuple[int, int] | None = None
    looked, position = 0.0, 0
    while True:
        stamp = (_changed(folder, WAITING), _changed(folder, RUNNING))
        if stamp != seen or time.monotonic() - looked > LOOK_AGAIN_S:
            seen, looked = stamp, time.monotonic()
            names = sorted(os.listdir(os.path.join(folder, WAITING)))  # noqa: PTH118, PTH208
            if name not in names:
                return False
            position = names.index(name)
            if position == 0:
                if _start(folder, name):
                    return True
            elif not is_alive(folder, job_of(names[position - 1])):
                _bury(folder, names[position - 1])
        time.sleep(min(_LONGEST_S, _FIRST_S + _STEP_S * position))


def job_of(name: str) -> str:
    """The names in the line are `<priority>.<number>.<job>`."""
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
    from edgeloop.jobs.computes.local.environment import show_gpus
    from edgeloop.jobs.computes.local.queue import Queue, QueueBusy

    try:
        started = Queue.at(folder).start(name)
    except QueueBusy:
        return False
    if started is None:
        return False
    if started.capacity.gpus:  # a machine that has some: who asked for none sees none
        show_gpus(started.gpus)
    return True


def _bury(folder: str, name: str) -> None:
    from edgeloop.jobs.computes.local.queue import Queue, QueueBusy

    try:
        Queue.at(folder).bury(job_of(name))
    except QueueBusy:
        return


def _become(wrapper: str) -> int:
    """Run the wrapper in this process, as Python would: with the site's packages, without ours."""
    import runpy
    import site

    for module in [known for known in sys.modules if known.split(".")[0] == "edgeloop"]:
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
