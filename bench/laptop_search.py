"""The laptop's search, as `edgeloop search examples/search/laptop.yaml` runs it: seconds from the
command to the front, with what each part took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.tables import markdown
from edgeloop.testing.faces import make_faces

EXAMPLE = Path(__file__).parents[1] / "examples/search/laptop.yaml"
PICTURES = 600
SIDES = (64, 96)
GOAL_S = 300.0


def run() -> str:
    rows = [_row(side) for side in SIDES]
    headings = (
        f"faces of {PICTURES}, 12 candidates",
        *("trained", "screened out", "front", "best IoU", "seconds", "goal: 300"),
    )
    return markdown(headings, rows)


def _row(side: int) -> tuple[object, ...]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_faces(folder / f"data/working/faces{side}", PICTURES, side, seed=7)
        began = time.perf_counter()
        said = _search(folder, side)
        seconds = time.perf_counter() - began
    states = [item["state"] for item in said]
    return (
        f"{side} px",
        states.count("complete"),
        states.count("screened"),
        sum(bool(item["is_pareto"]) for item in said),
        f"{max(item.get('val_iou', 0.0) for item in said):.3f}",
        f"{seconds:.0f}",
        "reached" if seconds < GOAL_S else "missed",
    )


def _search(folder: Path, side: int) -> list[dict[str, float | str]]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "edgeloop", "search", str(EXAMPLE), "--json"),
            *(f"search.size={side}", f"data=working/faces{side}"),
        ],
        cwd=folder,
        env={**os.environ, "EDGELOOP_STATE": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, float | str]] = json.loads(done.stdout)
    return found
