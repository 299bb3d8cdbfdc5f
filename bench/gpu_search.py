"""A search on one GPU beside the same trainings back to back: `python -m bench gpu-search`.

The search of the facts: hourglasses at 256², 24 candidates without a pool, a constraint on
parameters, 300 steps each. Afterwards the same networks are trained by `train_many`, which a search
uses, too, so the ratio says what proposing, screening and storing cost. How busy the card is comes
from `nvidia-smi`, twice a second. Without a GPU the same is run small, to see that it works.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from bench.tables import markdown
from edgeloop import Search
from edgeloop.search.loop import Event
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.device import machine_for
from edgeloop.search.nets.plan import TrainingPaths, TrainingPlan, TrainingResult
from edgeloop.search.nets.train import TrainingItem, train_many
from edgeloop.testing.faces import make_faces

GOAL_RATIO, GOAL_BUSY = 0.85, 0.85
FIRST_S = 60.0  # libraries are loaded, images are decoded
SAMPLE_MS = 500
OUR_LIMITS = ("did not end within", "was not done after", "needed more than")
DATA = "working/faces"


@dataclass(frozen=True)
class Size:
    pictures: int
    side: int
    budget: int
    steps: int
    params: tuple[float, float]
    space: dict[str, object] = field(default_factory=dict)
    workers: int | None = None


ON_GPU = Size(2000, 256, 24, 300, (1e4, 8e6))
SMALL: dict[str, object] = {"base_channels": [8], "most_hourglasses": 1, "most_layers": 2}
ON_CPU = Size(96, 64, 6, 12, (1e4, 4e5), SMALL, 2)


@dataclass(frozen=True)
class Searched:
    """What a search did: the networks that it trained, and when."""

    seconds: float
    first_s: float  # until the first result
    states: Counter[str]
    ours: int  # candidates that a limit of ours ended
    trained: Sequence[Architecture]


def run() -> str:
    machine = machine_for(TrainingPlan())
    size = ON_GPU if machine.is_gpu else ON_CPU
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        make_faces(folder / "data" / DATA, size.pictures, size.side, 7)
        busy: list[tuple[float, float]] = []
        with _sampled(busy):
            searched = _search(folder, size)
        alone_s = _back_to_back(folder, size, searched.trained)
    count = len(searched.trained)
    per_minute, alone = 60 * count / searched.seconds, 60 * count / alone_s
    shares = [share for at_s, share in busy if at_s > FIRST_S]
    mean = sum(shares) / len(shares) if shares else None
    states = ", ".join(f"{number} {state}" for state, number in searched.states.items())
    rows = [
        ("candidates", states, ""),
        ("search, s (first result after)", f"{searched.seconds:.0f} ({searched.first_s:.0f})", ""),
        ("the same trainings back to back, s", f"{alone_s:.0f}", ""),
        ("trained per minute, search", f"{per_minute:.1f}", ""),
        ("trained per minute, back to back", f"{alone:.1f}", ""),
        ("ratio", f"{per_minute / alone:.2f}", f"≥ {GOAL_RATIO}"),
        (
            f"card busy after {FIRST_S:.0f} s",
            "unknown" if mean is None else f"{mean:.0%}",
            f"≥ {GOAL_BUSY:.0%}",
        ),
        ("ended by our own limits", searched.ours, "0"),
    ]
    head = f"{size.budget} hourglasses, {size.side}², {size.steps} steps, {machine.title}"
    return markdown((head, "", "goal"), rows)


def _search(folder: Path, size: Size) -> Searched:
    search: dict[str, object] = {
        "name": "busy",
        "space": "hourglass",
        "options": dict(size.space),
        "size": size.side,
        "budget": size.budget,
        "pool": 0,
        "constraints": {"params": list(size.params)},
    }
    if size.workers:
        search["workers"] = size.workers
    document = {
        "search": search,
        "objectives": {"params": {}, "val_iou": {"train": {"steps": size.steps}}},
        "data": DATA,
    }
    (folder / "busy.yaml").write_text(json.dumps(document))
    began, firsts, dropped = time.perf_counter(), [], []

    def hear(event: Event) -> None:
        if event.what == "complete":
            firsts.append(time.perf_counter() - began)
        if event.what == "dropped":
            dropped.append(event.candidate.arch.id)

    with _inside(folder):
        with Search.open("busy.yaml") as opened:
            result = opened.run(hear)
        seconds = time.perf_counter() - began
    failed = [item for item in result.candidates if item.state == "failed"]
    late = [item for item in failed if any(words in item.reason for words in OUR_LIMITS)]
    return Searched(
        seconds=seconds,
        first_s=firsts[0] if firsts else seconds,
        states=Counter(item.state for item in result.candidates),
        ours=len(dropped) + len(late),
        trained=[item.arch for item in result.candidates if item.state == "complete"],
    )


def _back_to_back(folder: Path, size: Size, archs: Sequence[Architecture]) -> float:
    """As many at a time as a search has by itself."""
    plan = TrainingPlan(steps=size.steps)
    faces, cache = folder / "data" / DATA, folder / "cache"
    items = [TrainingItem(arch, TrainingPaths(faces, folder / arch.id, cache)) for arch in archs]
    began = time.perf_counter()
    for _, outcome in train_many(items, plan, at_once=size.workers):
        assert isinstance(outcome, TrainingResult), outcome
    return time.perf_counter() - began


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before, state = Path.cwd(), os.environ.get("EDGELOOP_STATE")
    os.environ["EDGELOOP_STATE"] = str(folder / "state")
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.pop("EDGELOOP_STATE")
        if state is not None:
            os.environ["EDGELOOP_STATE"] = state


@contextmanager
def _sampled(busy: list[tuple[float, float]]) -> Iterator[None]:
    """Seconds from now and the share of the time in which the card did something."""
    program = shutil.which("nvidia-smi")
    if program is None:
        yield
        return
    query = ("--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", "0")
    words = [program, *query, f"--loop-ms={SAMPLE_MS}"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    began = time.perf_counter()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip().isdigit():
                busy.append((time.perf_counter() - began, int(line) / 100))

    reader = Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        process.terminate()
        process.wait()
        reader.join()
