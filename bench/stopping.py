"""SIGTERM to a runner in the middle of a long stage, on a busy machine: the seconds until its
process has ended, against `--grace` plus the 15 s that it may take to give its work back.

A real runner on SQLite, with a model of 256²; beside it two processes that only compute. What is
under way must be free for another runner at once, and no attempt may be counted.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.tables import markdown
from edgeloop.models.plan import records_of
from edgeloop.settings import Settings
from edgeloop.testing.faces import make_faces
from edgeloop.workspace import Workspace
from tests.nets_torch import SmallUNet, export

GRACE_S = 5.0
MORE_S = 15.0
ROUNDS = 3
BURNERS = 2
SIDE = 256
IMAGES = 600
LIMIT_S = 900.0
LOOK_S = 0.1
STAGES = ("convert", "f1_1k", "f1_1k_f")
FEW = ("--calibration-images", "2", "--quick-images", "2", "--thorough-images", "2")
MANY = ("--calibration-images", str(IMAGES), "--quick-images", str(IMAGES))
EDGELOOP = (sys.executable, "-m", "edgeloop")


def run() -> str:
    headings = ("stage", "runs", "median, s", "slowest, s", "free at once", "tracebacks", "goal, s")
    goal = f"≤ {GRACE_S + MORE_S:.0f}"
    rows = []
    with TemporaryDirectory(prefix="edgeloop-bench-") as name:
        folder = Path(name)
        make_faces(folder / "faces", IMAGES, 64, seed=5)
        _call(folder, "upload", str(export(SmallUNet(), folder / "net.onnx", SIDE)))
        _call(folder, "runner", "--drain", *_options(FEW))
        for stage in STAGES:
            runs = [_stopped(folder, stage) for _ in range(ROUNDS)]
            seconds = [each[0] for each in runs]
            rows.append(
                (
                    stage,
                    str(ROUNDS),
                    f"{statistics.median(seconds):.1f}",
                    f"{max(seconds):.1f}",
                    str(sum(each[1] for each in runs)),
                    str(sum("Traceback" in each[2] for each in runs)),
                    goal,
                )
            )
    return markdown(headings, rows)


def _stopped(folder: Path, stage: str) -> tuple[float, bool, str]:
    """The seconds from the signal to the end, whether the stage is free then and none of its
    attempts counted, and what the runner printed."""
    _call(folder, "reset", "--stage", stage, "--yes", "*")
    with Workspace(Settings.load(folder, {})) as workspace, _busy_machine():
        with subprocess.Popen(
            [*EDGELOOP, "runner", "--grace", str(GRACE_S), *_options(MANY)],
            cwd=folder,
            env=_environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as runner:
            deadline = time.monotonic() + LIMIT_S
            while not any(row["status"] == f"running {stage}" for row in workspace.status()):
                assert runner.poll() is None and time.monotonic() < deadline, f"no {stage} began"
                time.sleep(LOOK_S)
            began = time.perf_counter()
            runner.send_signal(signal.SIGTERM)
            printed, _ = runner.communicate(timeout=LIMIT_S)
            seconds = time.perf_counter() - began
        assert "given back" in printed, f"{stage} ended within the grace time: {printed}"
        records = [record for row in workspace.status() for record in records_of(row).values()]
        is_free = not any(record.is_held or record.attempts for record in records)
    return seconds, is_free, printed


@contextmanager
def _busy_machine() -> Iterator[None]:
    with ExitStack() as running:
        for _ in range(BURNERS):
            burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            running.callback(burner.wait)
            running.callback(burner.kill)
        yield


def _options(sizes: tuple[str, ...]) -> tuple[str, ...]:
    return ("--device", "htp:qcs8550", "--dataset", "faces", *sizes)


def _call(folder: Path, *words: str) -> None:
    command = [*EDGELOOP, *words]
    subprocess.run(command, cwd=folder, env=_environ(), check=True, capture_output=True)


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("EDGELOOP_")}
