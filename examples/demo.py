"""The closed loop on one laptop: faces, a small search, its front measured by two runners, a live
table, four ways side by side, and the front as a picture. `make demo`; results stay in ./demo."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

EXAMPLES = Path(__file__).parent
FACES = "data/working/faces64"
DEVICE = "htp:snapdragon-888"
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


def draw_front(rows: list[dict], path: Path) -> None:
    """Latency against F1 on the simulator, the front joined by a line."""
    points = sorted((1000 * row["mean"], row["f1_1k"], row["name"][:10]) for row in rows)
    front, best = [], -1.0
    for x, y, _ in points:
        if y > best:
            front.append((x, y))
            best = y
    width, height, edge = 900, 600, 90
    picture = Image.new("RGB", (width, height), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(18)
    left, right = 0.9 * points[0][0], 1.1 * points[-1][0]
    bottom = min(y for _, y, _ in points) - 0.05
    top = max(y for _, y, _ in points) + 0.05

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - left) / (right - left) * (width - 2 * edge)
        return edge + across, height - edge - (y - bottom) / (top - bottom) * (height - 2 * edge)

    for step in range(6):
        x, y = left + (right - left) * step / 5, bottom + (top - bottom) * step / 5
        draw.line([place(left, y), place(right, y)], fill="#dddddd")
        draw.text((edge - 60, place(left, y)[1] - 10), f"{y:.2f}", "black", font)
        draw.text((place(x, bottom)[0] - 20, height - edge + 10), f"{x:.4f}", "black", font)
    draw.line([place(x, y) for x, y in front], fill="#0072b2", width=3)
    for x, y, name in points:
        across, down = place(x, y)
        draw.ellipse([across - 6, down - 6, across + 6, down + 6], outline="#d55e00", width=3)
        draw.text((across - 50, down - 32), name, "black", font)
    title = f"latency, ms (compiler's estimate, ± 20 %, {DEVICE})"
    draw.text((edge, height - 45), title, "black", font)
    draw.text((edge, 30), "F1 of the quantized model on the HTP simulator", "black", font)
    picture.save(path)


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
    draw_front(rows, folder / "front.png")
    print(f"\nThe front: {folder / 'front.png'}   The table: cd demo && edgeloop status -e demo")


if __name__ == "__main__":
    main()
