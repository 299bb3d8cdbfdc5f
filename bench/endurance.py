"""What a runner holds after 100, 500 and 1,000 models: memory, descriptors, threads, files.

    python -m bench endurance [MODELS]

One runner process scores tiny models, each with weights of its own; another one converts and
benchmarks them. Memory is what a runner and its native processes have of their own (private pages).
Temporary files are those in its folder for temporary files and in the folders of its stages; the
cache of model files, which is kept up to a size that is set, is counted apart.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.tables import markdown
from edgeloop.settings import Settings
from edgeloop.testing.faces import make_faces
from edgeloop.testing.models import save_segmentation_model
from edgeloop.workspace import Workspace

MODELS = 1_000
SIZE = 32
MARKS = (100, 500, 1_000)
POLL_S = 0.5
WINDOW = 10  # readings before a mark; the median of them counts
IMAGES = ("--calibration-images", "4", "--thorough-images", "8", "--runs", "1")
RUNNERS = {  # by the column that tells that a model is done
    "f1_onnx": ("--no-quantize",),
    "mean": ("--device", "host", "--benchmark-only"),
}


@dataclass(frozen=True)
class Reading:
    models: int
    runner_mb: float
    native_mb: float
    descriptors: int
    threads: int
    processes: int
    temporary: int
    cached: int


def run(models: str = str(MODELS)) -> str:
    count = int(models)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "edgeloop.yaml").touch()
        make_faces(folder / "faces", 24, SIZE, seed=1)
        _upload(folder, count)
        rows = []
        for column, words in RUNNERS.items():
            began = time.monotonic()
            readings = _followed(folder, column, words, count)
            wall_s = f"{time.monotonic() - began:.0f}"
            marks = [mark for mark in MARKS if mark <= count] or [count]
            rows += [[column, *_row(_at(readings, mark)), wall_s] for mark in marks]
    headings = (
        *("stages up to", "models", "runner, MB", "native processes, MB", "descriptors", "threads"),
        *("processes", "temporary files", "cached files", "all models, s"),
    )
    return markdown(headings, rows)


def _upload(folder: Path, count: int) -> None:
    net = folder / "net.onnx"
    with Workspace(Settings.load(folder)) as workspace:
        for number in range(count):
            save_segmentation_model(net, SIZE, seed=number)
            workspace.upload(net, f"net-{number:04d}", check=False)


def _followed(folder: Path, column: str, words: tuple[str, ...], count: int) -> list[Reading]:
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    command = ("runner", "--dataset", "faces", "--task", "segmentation", "--drain", *IMAGES, *words)
    with (folder / "log").open("wb") as log:
        runner = subprocess.Popen(
            [sys.executable, "-P", "-m", "edgeloop", *command],
            cwd=folder,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=log,
            stderr=log,
        )
    readings: list[Reading] = []
    with Workspace(Settings.load(folder)) as workspace:
        while runner.poll() is None:
            done = sum(column in row for row in workspace.status())
            readings.append(_reading(runner.pid, folder, done))
            for mark in MARKS:
                if done >= mark > (readings[-2].models if len(readings) > 1 else 0):
                    print(column, readings[-1], file=sys.stderr, flush=True)
            time.sleep(POLL_S)
    lines = (folder / "log").read_text().splitlines()
    assert runner.returncode == 0, lines[-5:]
    assert f"Models: 0 done, 0 failed, {count} left" in lines[-1], lines[-5:]
    return [reading for reading in readings if reading.descriptors]


def _reading(pid: int, folder: Path, done: int) -> Reading:
    below = _below(pid)
    work = folder / ".edgeloop" / "work"
    return Reading(
        done,
        _private_mb(pid),
        sum(map(_private_mb, below)),
        _count(Path(f"/proc/{pid}/fd")),
        _count(Path(f"/proc/{pid}/task")),
        1 + len(below),
        _files(folder / "tmp") + _files(work / "stages"),
        _files(work / "files"),
    )


def _at(readings: list[Reading], models: int) -> list[Reading]:
    reached = [reading for reading in readings if reading.models <= models]
    return reached[-WINDOW:]


def _row(readings: list[Reading]) -> list[object]:
    def median(name: str) -> float:
        return float(sorted(getattr(reading, name) for reading in readings)[len(readings) // 2])

    whole = ("descriptors", "threads", "processes", "temporary", "cached")
    figures = [f"{median('runner_mb'):.0f}", f"{median('native_mb'):.0f}"]
    return [readings[-1].models, *figures, *(f"{median(name):.0f}" for name in whole)]


def _below(pid: int) -> list[int]:
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in file.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *_below(child)]
    return found


def _private_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    private = (line.split() for line in lines if line.startswith("Private_"))
    return sum(int(words[1]) for words in private) / 1e3


def _count(folder: Path) -> int:
    try:
        return len(list(folder.iterdir()))
    except OSError:
        return 0


def _files(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))
