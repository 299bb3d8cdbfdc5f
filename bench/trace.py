"""How many files of the package a reader meets when following one command.

`python -m bench trace` measures all walks; `python -m bench trace --list upload` names the files of
one. `--write` lowers the ceilings in `walks.yaml` to the present counts and updates RESULTS.md.

Every process that a command starts is traced with `sys.setprofile` and `threading.setprofile`. A
file is imported when its module code ran in the command's own process, and entered when one of its
functions ran there as well: methods, lambdas and comprehensions count, class bodies do not.
Functions that run during an import, such as decorators of the command line, count too. Files that
only child processes enter have a column of their own. The wrapper of a job runs from a bundle, not
from the package, and is not counted. Ceilings hold the counts of Python 3.11: from 3.12 on, a
comprehension is not a call, and a module that calls nothing else is not seen. Lower them with 3.11.

Each walk has its own project, home folder and caches, so that a count depends neither on the order
of the walks nor on the state of the machine.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.tables import ROOT, markdown

CEILINGS = ROOT / "bench" / "walks.yaml"
NET = "unet-small.onnx"
FACES = "data/working/faces64"
LIMIT_S = 240

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

# Python imports this when it starts. A line is written when a code object first runs, so that a
# process that is killed loses nothing. Code objects are slow to hash, hence the ids; keeping a
# reference prevents an id from being reused.
SITE_CUSTOMIZE = """
import os, sys, threading

def _trace():
    package = os.environ["BENCH_TRACE_PACKAGE"] + os.sep
    lines = open(os.path.join(os.environ["BENCH_TRACE_FOLDER"], str(os.getpid())), "a", buffering=1)
    seen = {}

    def profile(frame, event, argument):
        code = frame.f_code
        if event == "call" and id(code) not in seen:
            seen[id(code)] = code
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
class Walk:
    """A command that is traced, and the commands that must have run before it."""

    title: str
    arguments: tuple[str, ...]
    goal: int | None = None
    preparations: tuple[tuple[str, ...], ...] = ()


_UPLOAD = ("upload", NET)
_DRAW_FACES = ("data", "faces", FACES, "--count=60", "--size=64")
_RUNNER = (
    "runner",
    "--once",
    "--device=host",
    f"--dataset={FACES}",
    "--calibration-images=4",
    "--quick-images=4",
    "--thorough-images=4",
)
WALKS = {
    "upload": Walk("upload MODEL", _UPLOAD, goal=20),
    "runner": Walk("runner --once", _RUNNER, goal=42, preparations=(_DRAW_FACES, _UPLOAD)),
    "run": Walk("run SCRIPT", ("run", "hello.py"), goal=34),
    "search": Walk("search SCREENING", ("search", "screening.yaml"), goal=48),
    "status": Walk("status", ("status",), preparations=(_UPLOAD,)),
}


@dataclass(frozen=True)
class Trace:
    """The files of the package that one command met."""

    imported: set[str]
    entered: set[str]
    entered_by_children: set[str]


def run(*arguments: str) -> str:
    parser = argparse.ArgumentParser(prog="python -m bench trace")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--list", metavar="WALK", choices=WALKS)
    chosen.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    if options.list:
        return "\n".join(sorted(trace(options.list).entered))
    traces = {name: trace(name) for name in WALKS}
    if options.write:
        _write({name: len(met.entered) for name, met in traces.items()})
    rows = [
        (
            f"`{walk.title}`",
            len(traces[name].entered),
            f"≤ {walk.goal}" if walk.goal else "",
            len(traces[name].imported),
            len(traces[name].entered_by_children),
        )
        for name, walk in WALKS.items()
    ]
    return markdown(("command", "entered", "goal", "imported", "children alone"), rows)


def trace(name: str) -> Trace:
    """Run a walk in a new project."""
    walk = WALKS[name]
    # A detached process of the command may still be writing while the folder is removed.
    with tempfile.TemporaryDirectory(
        prefix="edgeloop-trace-", ignore_cleanup_errors=True
    ) as temporary:
        folder = Path(temporary)
        for part in ("project", "home", "hook", "lines"):
            (folder / part).mkdir()
        (folder / "project" / "hello.py").write_text('print("hello")\n')
        (folder / "project" / "screening.yaml").write_text(SCREENING)
        (network,) = (ROOT / "edgeloop").rglob(NET)
        shutil.copy(network, folder / "project")
        (folder / "hook" / "sitecustomize.py").write_text(SITE_CUSTOMIZE)
        environ = _environ(folder / "home")
        for arguments in walk.preparations:
            _edgeloop(arguments, folder / "project", environ)
        tracing = {
            "PYTHONPATH": f"{folder / 'hook'}{os.pathsep}{ROOT}",
            "BENCH_TRACE_PACKAGE": str(ROOT / "edgeloop"),
            "BENCH_TRACE_FOLDER": str(folder / "lines"),
        }
        command = _edgeloop(walk.arguments, folder / "project", environ | tracing)
        return _read(folder / "lines", command)


def read_ceilings() -> dict[str, int]:
    """The largest number of files that each walk may enter."""
    ceilings: dict[str, int] = yaml.safe_load(CEILINGS.read_text(encoding="utf-8"))
    return ceilings


def lower_ceilings(text: str, counts: Mapping[str, int]) -> str:
    """The text of `walks.yaml` with each ceiling lowered to its count; none is ever raised."""
    for name, count in counts.items():
        text = re.sub(
            rf"^{name}: (\d+)$",
            lambda line, name=name, count=count: f"{name}: {min(int(line[1]), count)}",
            text,
            flags=re.MULTILINE,
        )
    return text


def _write(counts: Mapping[str, int]) -> None:
    from bench import structure

    text = CEILINGS.read_text(encoding="utf-8")
    CEILINGS.write_text(lower_ceilings(text, counts), encoding="utf-8")
    structure.write(structure.Package())


def _environ(home: Path) -> dict[str, str]:
    """Leaves out the user's settings and caches, and leads imports to the package of this tree."""
    outside = ("EDGELOOP_", "MODEL_STORAGE_", "XDG_")
    environ = {key: text for key, text in os.environ.items() if not key.startswith(outside)}
    return environ | {"HOME": str(home), "PYTHONPATH": str(ROOT)}


def _edgeloop(arguments: tuple[str, ...], project: Path, environ: dict[str, str]) -> int:
    """Run a command to its end and return its process id."""
    with subprocess.Popen(
        [sys.executable, "-m", "edgeloop", *arguments],
        cwd=project,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as command:
        try:
            output, _ = command.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            command.kill()
            raise
    assert command.returncode == 0, f"edgeloop {' '.join(arguments)}:\n{output}"
    return command.pid


def _read(lines: Path, command: int) -> Trace:
    imported, entered, entered_by_children = set(), set(), set()
    for process in lines.iterdir():
        for line in process.read_text().splitlines():
            kind, _, file = line.partition(" ")
            if process.name != str(command):
                if kind == "entered":
                    entered_by_children.add(file)
            elif kind == "entered":
                entered.add(file)
            else:
                imported.add(file)
    return Trace(imported, entered, entered_by_children - entered)
