"""How many files of the package a reader meets on the way of one command.

`python -m bench trace --list upload` names the files for one command.

Every process that a command starts is traced with `sys.setprofile` and `threading.setprofile`. A
file is imported when its module code ran in the command's own process, and entered when a function
of it ran there as well: methods, lambdas and comprehensions count, class bodies do not. Functions
that run during an import, such as decorators of the command line, count too. Files that only
processes started by the command enter are in a column of their own. The wrapper of a job runs from
a bundle, not from the package, and is not counted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.tables import markdown

ROOT = Path(__file__).parents[1]
NET = ROOT / "examples" / "nets" / "unet-w8.onnx"
FACES = "data/working/faces64"
FEW_IMAGES = [f"--{which}-images=4" for which in ("calibration", "quick", "thorough")]

# The command, files entered before the restructuring, the goal.
COMMANDS: dict[str, tuple[list[str], int, int]] = {
    "upload": (["upload", str(NET)], 25, 16),
    "runner": (
        ["runner", "--once", "--device=host", f"--dataset={FACES}", *FEW_IMAGES],
        53,
        32,
    ),
    "run": (["run", "hello.py"], 46, 28),
    "search": (["search", "screening.yaml"], 54, 36),
}

SCREENING = """
search:
  space: hourglass
  options: {base_channels: [8, 12], stems: [4], kernels: [conv3x3], most_layers: 1}
  size: 64
  budget: 4
objectives:
  chip_latency_ms: {device: htp:qcs8550, goal: min}
  params: {goal: min}
"""

# Python imports this at its start. A line is written for each code object when it first runs, so
# that processes that are killed have said everything.
SITE_CUSTOMIZE = """
import os, sys, threading

def _trace():
    package = os.environ["BENCH_TRACE_PACKAGE"] + os.sep
    lines = open(os.path.join(os.environ["BENCH_TRACE_FOLDER"], str(os.getpid())), "a", buffering=1)
    seen = set()

    def profile(frame, event, argument):
        code = frame.f_code
        if event == "call" and code not in seen:
            seen.add(code)
            if code.co_filename.startswith(package):
                is_function = code.co_flags & 1  # CO_OPTIMIZED: no module, no body of a class
                kind = "entered" if is_function else "imported"
                lines.write(kind + " " + code.co_filename[len(package):] + "\\n")

    threading.setprofile(profile)
    sys.setprofile(profile)

_trace()
os.register_at_fork(after_in_child=_trace)
"""


@dataclass(frozen=True)
class Trace:
    """The files of the package that one command met."""

    imported: set[str]
    entered: set[str]
    entered_by_children: set[str]


def run(*arguments: str) -> str:
    parser = argparse.ArgumentParser(prog="python -m bench trace")
    parser.add_argument("--list", metavar="COMMAND", choices=COMMANDS)
    listed = parser.parse_args(arguments).list
    with tempfile.TemporaryDirectory(prefix="edgeloop-bench-") as name:
        project = Path(name)
        _prepare(project)
        traces = {command: _trace(project, command) for command in COMMANDS}
    if listed:
        return "\n".join(sorted(traces[listed].entered))
    rows = [_row(name, traces[name]) for name in COMMANDS]
    headings = ("command", "entered before", "entered now", "goal", "imported", "children alone")
    return markdown(headings, rows)


def _prepare(project: Path) -> None:
    (project / "hello.py").write_text('print("hello")\n')
    (project / "screening.yaml").write_text(SCREENING)
    faces = ["data", "faces", FACES, "--count=60", "--size=64"]
    subprocess.run(
        [sys.executable, "-m", "edgeloop", *faces],
        cwd=project,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _trace(project: Path, name: str) -> Trace:
    arguments, _, _ = COMMANDS[name]
    with tempfile.TemporaryDirectory(prefix="edgeloop-trace-") as folder:
        hook, lines = Path(folder, "hook"), Path(folder, "lines")
        hook.mkdir()
        lines.mkdir()
        (hook / "sitecustomize.py").write_text(SITE_CUSTOMIZE)
        tracing = {
            "PYTHONPATH": str(hook),
            "BENCH_TRACE_PACKAGE": str(ROOT / "edgeloop"),
            "BENCH_TRACE_FOLDER": str(lines),
        }
        command = subprocess.Popen(
            [sys.executable, "-m", "edgeloop", *arguments],
            cwd=project,
            env={**os.environ, **tracing},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        output, _ = command.communicate(timeout=300)
        assert command.returncode == 0, output
        met: dict[tuple[bool, str], set[str]] = {}
        for process in lines.iterdir():
            for line in process.read_text().splitlines():
                kind, _, file = line.partition(" ")
                met.setdefault((process.name == str(command.pid), kind), set()).add(file)
    entered = met[True, "entered"]
    return Trace(met[True, "imported"], entered, met.get((False, "entered"), set()) - entered)


def _row(name: str, trace: Trace) -> tuple[object, ...]:
    arguments, before, goal = COMMANDS[name]
    title = "runner --once" if name == "runner" else f"{name} {Path(arguments[-1]).name}"
    return (
        f"`{title}`",
        before,
        len(trace.entered),
        f"≤ {goal}",
        len(trace.imported),
        len(trace.entered_by_children),
    )
