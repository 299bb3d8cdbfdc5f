"""The closed loop on one laptop: faces, a small search, its front measured by two runners, a live
table, four ways side by side, and the front as a picture. `make demo`; results stay in ./demo."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

EXAMPLES = Path(__file__).parent
FACES = "data/working/faces64"
DEVICE = "htp:qcs8550"
SEARCH = ("search.budget=8", "objectives.val_iou.train.steps=100", "experiment=demo")
IN = ("--experiment", "demo")
MODELS = ("*.trained",)  # not the candidates that the search left behind
SIZES = ("--calibration-images", "64", "--quick-images", "40", "--thorough-images", "80")


def edgeloop(*arguments: str, folder: Path, show: bool = True) -> str:
    if show:
        print(f"\n$ edgeloop {' '.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "edgeloop", *arguments]
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    if show:
        print(done.stdout, end="", flush=True)
    return done.stdout


def run_two_runners(folder: Path) -> None:
    """Both drain the same table; every few seconds we look at it."""
    arguments = ("runner", "--device", DEVICE, "--dataset", FACES, "--drain", *SIZES, *IN)
    print(f"\n$ edgeloop {' '.join(arguments)} &   (twice)", flush=True)
    command = [sys.executable, "-m", "edgeloop", *arguments]
    runners = [subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) for _ in range(2)]
    while any(runner.poll() is None for runner in runners):
        print(edgeloop("status", *MODELS, *IN, folder=folder, show=False), flush=True)
        time.sleep(4)
    if any(runner.returncode for runner in runners):
        sys.exit("a runner failed")


def main() -> None:
    folder = Path("demo")
    folder.mkdir(exist_ok=True)
    (folder / "edgeloop.yaml").touch()
    shutil.copyfile(EXAMPLES / "search/laptop.yaml", folder / "laptop.yaml")
    edgeloop("data", "faces", FACES, "--count", "300", "--size", "64", "--seed", "7", folder=folder)
    edgeloop("search", "laptop.yaml", *SEARCH, "--resume", folder=folder)
    run_two_runners(folder)
    rows = [
        row
        for row in json.loads(edgeloop("status", "--json", *IN, folder=folder, show=False))
        if "f1_1k" in row
    ]
    edgeloop("status", *MODELS, *IN, folder=folder)
    best = max(rows, key=lambda row: row["f1_1k"])["name"]
    edgeloop("compare", best, "--dataset", FACES, "--images", "40", *IN, folder=folder)
    edgeloop("pareto", "--x", "mean", "--y", "f1_1k", "-o", "front.png", *IN, folder=folder)
    edgeloop("report", "-o", "report.html", *IN, folder=folder)
    print("\nThe front: demo/front.png   The report: demo/report.html")


if __name__ == "__main__":
    main()
