"""How long `edgeloop --help`, `status` and `job status` take, beside starting Python and Click.

The package is compiled first, as an installed one is. Processor time is the least of all runs: it
says more than the clock while other work runs on the machine.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.tables import markdown
from edgeloop.jobs.records import JobRecord, RunRecords, now
from edgeloop.jobs.watch import Status
from edgeloop.runner.health import write_health
from edgeloop.store import SqliteLocation, open_store

REPEATS = 15
JOBS = 1_000
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
EDGELOOP = Path(sys.executable).with_name("edgeloop")


def run() -> str:
    with TemporaryDirectory() as folder:
        store = open_store(SqliteLocation(Path(folder) / ".edgeloop"))
        names = [f"model-{number}" for number in range(20)]
        store.models("default").insert_many((n, {"name": n, "status": "new"}) for n in names)
        store.close()
        write_health(Path(folder) / "health", stuck="", not_ready="")
        python = [sys.executable, "-c", "pass"]
        rows = [
            ("python -c pass", *_seconds(python, folder), ""),
            ("import click", *_seconds([*python[:2], "import click"], folder), ""),
            ("edgeloop --help", *_seconds([str(EDGELOOP), "--help"], folder), "≤ 0.09"),
            ("edgeloop health", *_seconds([str(EDGELOOP), "health", "health"], folder), "≤ 0.1"),
            ("edgeloop status, 20 rows", *_seconds([str(EDGELOOP), "status"], folder), "≤ 0.12"),
            (f"edgeloop job status all, {JOBS:,} jobs", *_seconds(_jobs(folder), folder), "≤ 0.4"),
        ]
    return markdown(("command", "median, s", "processor, s", "goal, s"), rows)


def _jobs(folder: str) -> list[str]:
    """The command that lists them; all have ended, so that no compute is asked."""
    records = RunRecords(Path(folder) / "runs")
    spec = {"script": "train.py", "resources": {"cpus": 1}, "env": {"SEED": "7"}}
    for number in range(JOBS):
        run = records.add(
            f"job-{number}",
            lambda name, job: JobRecord(job, name, now(), "default", spec, "local", "local"),
        )
        records.save(replace(run, status=Status("completed", exit_code=0)))
    return [str(EDGELOOP), "job", "status", "all"]


def _seconds(command: list[str], folder: str) -> tuple[str, str]:
    environ = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    environ["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
    times, processor = [], []
    for _ in range(1 + REPEATS):
        began, used = time.perf_counter(), _processor_seconds()
        subprocess.run(command, cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
        processor.append(_processor_seconds() - used)
    return f"{statistics.median(times[1:]):.3f}", f"{min(processor):.3f}"


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
