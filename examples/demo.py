"""The closed loop on one computer, in a few minutes: `make demo`.

Draws faces, searches for architectures that are accurate and fast on a chip, evaluates the trained
models of the front with two runners, and writes a report. Everything stays in the folder demo,
which is a project of its own. It can be stopped at any moment: run it again, and it continues.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from edgeloop import Workspace

SEARCH = Path(__file__).parent / "search/demo.yaml"
FACES = "data/working/faces"
SIDE = 256
DEVICE = "htp:qcs8550"
TRAINED = "*.trained"  # the models of the front; the other rows are candidates without a file
APART = "8"  # percent: estimates of two networks of one family compare to within 7.9 %
SCORES = ("f1_onnx", "f1_1k", "f1_1k_f", "f1_10k")
STOPPED = 130  # what shells say of Ctrl-C

Rows = Sequence[Mapping[str, object]]


def main() -> None:
    given = _options()
    folder: Path = given.folder
    began = time.monotonic()
    if (folder / "report.html").exists():
        print(f"The demo has run. Its results are in {folder}; delete that folder to start again.")
        say_next(folder)
        return
    folder.mkdir(exist_ok=True)
    (folder / "edgeloop.yaml").write_text("experiment: demo\n")
    shutil.copyfile(SEARCH, folder / SEARCH.name)
    try:
        faces = ("--count", str(given.faces), "--size", str(SIDE), "--seed", "7")
        edgeloop(folder, "data", "faces", FACES, *faces)
        edgeloop(folder, "search", SEARCH.name, *given.words, "--resume")
        evaluate(folder, given.images)
        front = ("--x", "latency_ms", "--y", "f1_10k", "--apart", APART)
        edgeloop(folder, "pareto", *front, "-o", "front.png")
        edgeloop(folder, "report", *front, "-o", "report.html")
    except KeyboardInterrupt:
        print("\nStopped. Results so far are kept: run it again to continue.", file=sys.stderr)
        sys.exit(STOPPED)
    took = round(time.monotonic() - began)
    print(f"\nDone in {took // 60}:{took % 60:02}.")
    say_next(folder)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("demo"))
    parser.add_argument("--faces", type=int, default=200, help="faces to draw")
    parser.add_argument("--images", type=int, default=24, help="faces to test with")
    parser.add_argument("words", nargs="*", help="changes of the search, such as search.budget=8")
    return parser.parse_args()


def edgeloop(folder: Path, *arguments: str) -> None:
    print(f"\n$ edgeloop {' '.join(arguments)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "edgeloop", *arguments], cwd=folder, check=False)
    if done.returncode == STOPPED:
        raise KeyboardInterrupt
    if done.returncode:
        sys.exit(done.returncode)


def evaluate(folder: Path, images: int) -> None:
    """Both runners drain the same table, which is shown meanwhile."""
    arguments = ["runner", "--device", DEVICE, "--dataset", FACES, "--drain"]
    arguments += ["--calibration-images", "16", "--quick-images", "4"]
    arguments += ["--thorough-images", str(images)]
    print(f"\n$ edgeloop {' '.join(arguments)} &   (twice)", flush=True)
    logs = [folder / f"runner-{number}.log" for number in (1, 2)]
    with Workspace.open(f"sqlite:{folder / '.edgeloop'}", "demo") as workspace, shown() as show:
        runners = [_started(folder, arguments, log) for log in logs]
        try:
            while any(runner.poll() is None for runner in runners):
                show(workspace.status(TRAINED))
                time.sleep(1)
        except KeyboardInterrupt:
            for runner in runners:
                runner.wait()  # they got the same Ctrl-C, and give back what they hold
            raise
        show(workspace.status(TRAINED))
    for runner, log in zip(runners, logs, strict=True):
        if runner.returncode:
            sys.exit(f"A runner failed; {log} says why.")


def _started(folder: Path, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "edgeloop", *arguments]
    with log.open("ab") as file:
        return subprocess.Popen(command, cwd=folder, stdout=file, stderr=file)


@contextmanager
def shown() -> Iterator[Callable[[Rows], None]]:
    """A table that is updated on a terminal; elsewhere a line whenever a model is complete."""
    console = Console()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda rows: live.update(_table(rows), refresh=True)
        return
    said = -1

    def say(rows: Rows) -> None:
        nonlocal said
        complete = sum(row.get("status") == "complete" for row in rows)
        if complete > said:
            said = complete
            print(f"{complete} of {len(rows)} models evaluated", flush=True)

    yield say


def _table(rows: Rows) -> Table:
    table = Table("model", "IoU", *SCORES, "status", box=None, pad_edge=False)
    for row in sorted(rows, key=lambda row: float(str(row.get("val_iou", 0)))):
        name = str(row["name"]).removesuffix(".trained")
        scores = [_score(row.get(column)) for column in ("val_iou", *SCORES)]
        table.add_row(name, *scores, str(row.get("status", "")))
    return table


def _score(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else ""


def say_next(folder: Path) -> None:
    """Three commands, as they can be typed here."""
    program = Path(sys.executable).with_name("edgeloop")
    is_found = shutil.which("edgeloop") == str(program)
    name = "edgeloop" if is_found or not program.exists() else os.path.relpath(program, folder)
    with Workspace.open(f"sqlite:{folder / '.edgeloop'}", "demo") as workspace:
        scores = {str(row["name"]): row.get("f1_10k") for row in workspace.status(TRAINED)}
    best = max(scores, key=lambda model: float(str(scores[model] or 0)))
    print(f"Next, in the folder {folder}:\n")
    print(f"  cd {folder}")
    print(f"  {name} status '{TRAINED}'")
    print(f"  {name} portal --open")
    print(f"  {name} compare {best} --dataset {FACES} --images 40")


if __name__ == "__main__":
    main()
