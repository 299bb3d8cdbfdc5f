"""A process that has imported Edgeloop and forks for every command: an input costs milliseconds.

One JSON object per line comes in, one goes out. The forked process is the command itself: its own
folder, environment, output, and `main`, up to the end of the interpreter.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

from edgeloop.settings import settings_model
from tests.hostile.forked import lend_forked_worker

MOST_BYTES = 8 * 2**30  # of address space: a bomb ends here, and not with this machine


_LOADED = (
    *("numpy", "obstore", "onnx.checker", "onnx.shape_inference", "PIL.Image", "pydantic", "yaml"),
    *(f"edgeloop.cli.{name}" for name in ("app", "bench", "data", "jobs", "models")),
    *(f"edgeloop.cli.{name}" for name in ("runner", "search", "status", "fleet")),
    *("edgeloop.store.files", "edgeloop.store.location", "edgeloop.store.sql"),
    *("edgeloop.jobs.client", "edgeloop.jobs.spec", "edgeloop.search.campaign"),
    *(
        "edgeloop.operate.fleet.control",
        "edgeloop.operate.fleet.records",
        "edgeloop.operate.fleet.local",
    ),
    *("edgeloop.jobs", "edgeloop.graph", "edgeloop.models.upload", "edgeloop.workspace"),
)


def _load() -> None:
    """What commands import, short of what starts threads."""
    import gc
    from importlib import import_module

    for name in _LOADED:
        import_module(name)
    settings_model().model_json_schema()
    gc.freeze()  # what is there already need not be looked at in every fork


def _become(order: dict[str, Any]) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(order["environ"])
    for number, name, flags in (
        (0, "stdin", os.O_RDONLY),
        (1, "out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, "err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        file = os.open(order[name], flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.chdir(order["cwd"])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, hard))
    sys.argv = ["edgeloop", *order["arguments"]]
    if order["forks_worker"]:
        lend_forked_worker()


def _wait(child: int, limit_s: float) -> dict[str, float]:
    began = time.monotonic()
    watch = os.pidfd_open(child)
    ready, _, _ = select.select([watch], [], [], limit_s)
    if not ready:
        os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    os.close(watch)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "wall_s": time.monotonic() - began,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mb": usage.ru_maxrss / 1024,
    }


def serve() -> bool:
    """True in a process that shall be a command."""
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(order)
            return True
        sys.stdout.write(json.dumps(_wait(child, order["limit_s"])) + "\n")
        sys.stdout.flush()
    return False


if __name__ == "__main__":
    _load()
    if serve():
        from edgeloop.cli import main

        main()
