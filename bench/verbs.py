"""Whole commands on jobs, as a person waits for them: start of Python, imports and all."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.tables import markdown
from edgeloop.jobs.client import Jobs
from edgeloop.node.ticket import JobProgress, state_key
from edgeloop.settings import Settings
from tests.jobs.runs import record

REPEATS = 9
JOBS = 100
RECORDS = 1_000
SCRIPT = "import time\ntime.sleep(600)\n"


def run() -> str:
    with TemporaryDirectory() as name:
        rows = [*_submit_and_abort(Path(name) / "jobs"), *_status(Path(name) / "records")]
    return markdown(("what", "figure", "goal"), rows)


def _submit_and_abort(folder: Path) -> list[tuple[str, str, str]]:
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    _command(folder, "job", "submit", "train.py", "--name", "first")
    each = [_command(folder, "job", "submit", "train.py") for _ in range(REPEATS)]
    values = ",".join(map(str, range(JOBS - REPEATS - 1)))
    sweep = _command(folder, "job", "submit", "train.py", "--sweep", f"n={values}", "--name", "s")
    abort = _command(folder, "job", "abort", "all", "--yes")
    states = [run.state for run in Jobs(Settings.load(folder)).select(()).runs]
    alive = _left(folder)
    return [
        ("`job submit` to local, median", f"{statistics.median(each):.2f} s", "< 0.5 s"),
        (f"the other {JOBS - REPEATS - 1} jobs as a sweep", f"{sweep:.2f} s", ""),
        (
            f"`job abort all --yes`: {states.count('canceled')} of {JOBS} canceled, {alive} left",
            f"{abort:.2f} s",
            f"{JOBS}, 0",
        ),
    ]


def _status(folder: Path) -> list[tuple[str, str, str]]:
    """All have ended in the store since they were last looked at; then nothing is new."""
    folder.mkdir()
    jobs = Jobs(Settings.load(folder))
    for number in range(RECORDS):
        made = jobs.runs.add(f"job-{number:04d}", _record(jobs))
        done = JobProgress("completed", 1, "node", time.time(), 1.0, 2.0, 0)
        jobs.blobs.put(state_key(made.record.id), done.to_json())
    first = _command(folder, "job", "status", "all")
    again = statistics.median(_command(folder, "job", "status", "all") for _ in range(REPEATS))
    return [
        (f"`job status all`, {RECORDS:,} that ended just now", f"{first:.2f} s", ""),
        (f"`job status all`, {RECORDS:,} records", f"{again:.2f} s", "< 1 s"),
    ]


def _record(jobs: Jobs):
    here = str(jobs.settings.location)
    return lambda name, job: record(name, job, store=here, compute="local", kind="local")


def _command(folder: Path, *arguments: str) -> float:
    own = {"EDGELOOP_STATE": str(folder / ".state"), "EDGELOOP_CACHE": str(folder / ".cache")}
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "edgeloop", *arguments],
        cwd=folder,
        env={**os.environ, **own},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=300,
    )
    return time.perf_counter() - began


def _left(folder: Path) -> int:
    """Processes that still stand in a folder of ours."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += (process / "cwd").readlink().is_relative_to(folder)
        except OSError:
            continue
    return found
