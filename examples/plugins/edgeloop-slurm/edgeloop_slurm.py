"""Slurm as a compute: one batch job per Edgeloop job, whose name is the job's id.

Slurm forgets a job minutes after its end, so each job has a folder that the nodes see, too: the
order (a secret: readable by its owner alone), the batch script, what the job printed before its
wrapper took over, its exit code, and a mark if it was canceled.
"""

from __future__ import annotations

import fcntl
import math
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from edgeloop.errors import BadName, ComputeUnavailable, Infeasible
from edgeloop.jobs.bundle import bootstrap_command
from edgeloop.jobs.computes import Resources
from edgeloop.jobs.computes.base import (
    Compute,
    ComputeOptions,
    JobOrder,
    ObservedState,
    order_variables,
)
from edgeloop.jobs.computes.queue import listed, missing
from edgeloop.node.ticket import State

LIMIT_S = 60.0
USUAL_PRIORITY = 100  # less would be a negative --nice, which only operators may ask for
LOG_TAIL_BYTES = 64 * 1024
ENDED_SILENTLY = "it left no exit code: its node went down, or it was killed"
STATES: Mapping[str, State] = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESIZING"), "queued"),
    **dict.fromkeys(("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "SUSPENDED"), "running"),
    **{"COMPLETED": "completed", "CANCELLED": "canceled"},
}
# `scancel --batch` signals this shell, which passes the signal on and waits for the real end.
SCRIPT = """\
#!/bin/sh
[ -e canceled ] && exit 1
trap 'kill -TERM $wrapper' TERM
{command} "$PWD/order.json" & wrapper=$!
while :; do wait $wrapper; code=$?; kill -0 $wrapper 2>/dev/null || break; done
rm -f order.json
echo $code > exit.part && mv exit.part exit
exit $code
"""


@dataclass(frozen=True)
class Listed:
    """A job as `squeue` shows it."""

    number: str
    state: str
    reason: str


class SlurmOptions(ComputeOptions):
    """A Slurm cluster, from a machine that has its programs."""

    partition: str = Field("", description="Where jobs go; by default the cluster's default.")
    python: str = Field("python3", description="The interpreter on the nodes.")
    options: list[str] = Field([], description="More options for `sbatch`.")
    folder: str = Field("", description="A folder that the nodes see, for orders and logs.")
    bin: str = Field("", description="The folder with Slurm's programs; by default the `PATH`.")


class SlurmCompute(Compute):
    kind = "slurm"
    Options = SlurmOptions

    def __init__(self, name: str, options: SlurmOptions, folder: Path) -> None:
        self.name = name
        self._partition = [f"--partition={options.partition}"] if options.partition else []
        self._options = options.options
        self._python = options.python
        self._bin = options.bin
        own = Path(options.folder).expanduser() if options.folder else folder
        self._folder = own.absolute()

    def check(self, resources: Resources) -> None:
        lines = self._call("sinfo", "--noheader", "--Node", "--format=%c|%m|%G", *self._partition)
        nodes = [_totals(*line.split("|")) for line in lines.splitlines()]
        if not nodes:
            raise ComputeUnavailable(compute=self.name, reason="the cluster has no nodes")
        best = min(nodes, key=lambda totals: len(missing(resources, totals)))
        lacking = missing(resources, best)
        if lacking:
            reason = f"{', '.join(lacking)}; its largest node has {listed(best)}"
            raise Infeasible(compute=self.name, reason=reason)

    def submit(self, order: JobOrder) -> None:
        self.check(order.resources)
        folder = self._of(order.job)
        folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two submissions of one job at once are one
            if (folder / "exit").exists() or order.job in self._squeue([order.job]):
                return
            try:
                self._sbatch(order, folder)
            except ComputeUnavailable:
                shutil.rmtree(folder, ignore_errors=True)
                raise

    def states(self, jobs: Sequence[str]) -> dict[str, ObservedState]:
        known = self._squeue(jobs)
        return {job: self._observed(job, known.get(job)) for job in jobs}

    def cancel(self, jobs: Sequence[str]) -> None:
        known = self._squeue(jobs)
        observed = {job: self._observed(job, known[job]).state for job in known}
        alive = [job for job, state in observed.items() if state in ("queued", "running")]
        for job in alive:
            (self._of(job) / "canceled").touch()
        numbers = [known[job].number for job in alive]
        if numbers:  # one that starts in between finds its mark
            self._call("scancel", "--quiet", "--state=PENDING", *numbers)
            self._call("scancel", "--quiet", "--batch", "--signal=TERM", *numbers)

    def logs(self, job: str) -> str:
        try:
            with (self._of(job) / "log").open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - LOG_TAIL_BYTES))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def forget(self, jobs: Sequence[str]) -> None:
        for job, seen in self.states(jobs).items():
            if seen.state in ("completed", "failed", "canceled"):
                shutil.rmtree(self._of(job), ignore_errors=True)

    def _sbatch(self, order: JobOrder, folder: Path) -> None:
        (content,) = order_variables(order).values()
        (folder / "order.json").touch(mode=0o600)
        (folder / "order.json").write_text(content)
        command = shlex.join(bootstrap_command(self._python, order.access))
        (folder / "job.sh").write_text(SCRIPT.format(command=command))
        self._call(
            "sbatch",
            *(f"--job-name={order.job}", f"--chdir={folder}", f"--output={folder / 'log'}"),
            *("--no-requeue", "--export=NIL", f"--nice={max(0, order.priority - USUAL_PRIORITY)}"),
            *(*_requests(order.resources), *self._partition, *self._options),
            str(folder / "job.sh"),
        )

    def _observed(self, job: str, shown: Listed | None) -> ObservedState:
        folder = self._of(job)
        if not folder.is_dir():
            return ObservedState(None)
        state: State
        try:
            code = int((folder / "exit").read_text())
            state = "failed" if code else "completed"
            reason = f"the wrapper ended with exit code {code}"
        except FileNotFoundError:
            if shown is None:
                state, reason = "failed", ENDED_SILENTLY
            else:
                state = STATES.get(shown.state, "failed")
                said = shown.state.lower().replace("_", " ")
                reason = f"Slurm says: {said} ({shown.reason})"
        if state == "failed" and (folder / "canceled").exists():
            return ObservedState("canceled")
        return ObservedState(state, reason if state == "failed" else "")

    def _squeue(self, jobs: Sequence[str]) -> dict[str, Listed]:
        """Those of these that Slurm still knows, in one call; of one name, the last submitted."""
        if not jobs:
            return {}
        arguments = ("--noheader", "--states=all", "--sort=i", "--format=%j|%i|%T|%r")
        lines = self._call("squeue", *arguments, f"--name={','.join(jobs)}").splitlines()
        return {name: Listed(*rest) for name, *rest in (line.split("|") for line in lines)}

    def _call(self, program: str, *arguments: str) -> str:
        path = Path(self._bin) / program
        try:
            done = subprocess.run(
                [str(path), *arguments],
                check=False,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                text=True,
                timeout=LIMIT_S,
            )
        except FileNotFoundError:
            reason = f"{path} is not installed here: submit from a login node of the cluster"
        except subprocess.TimeoutExpired:
            reason = f"{program} did not answer within {LIMIT_S:g} s"
        else:
            # `scancel --quiet` fails without a word for jobs that have ended: that is fine.
            if done.returncode == 0 or not done.stderr.strip():
                return done.stdout
            reason = f"{program} said: {done.stderr.strip().splitlines()[-1]}"
        raise ComputeUnavailable(compute=self.name, reason=reason)

    def _of(self, job: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", job):
            raise BadName(what="job", name=job, reason="it must be letters, digits and ._-")
        return self._folder / job


def _requests(resources: Resources) -> list[str]:
    """A part of a CPU or GPU is a whole one here: Slurm gives nothing less."""
    whole = {"gpu": resources.gpus, **resources.custom}
    gres = ",".join(f"{name}:{math.ceil(count)}" for name, count in whole.items() if count)
    memory = math.ceil(resources.memory_bytes / 2**20)
    return [
        f"--cpus-per-task={max(1, math.ceil(resources.cpus))}",
        *([f"--mem={memory}M"] if memory else []),
        *([f"--gres={gres}"] if gres else []),
    ]


def _totals(cpus: str, memory_mib: str, gres: str) -> dict[str, float]:
    """What a node has, from `sinfo`: a Gres is `gpu:a100:4(S:0-1)` or `board:1`."""
    counted = re.findall(r"([\w.-]+)(?::[\w.-]+)?:(\d+)", re.sub(r"\(.*?\)", "", gres))
    custom = {name: float(count) for name, count in counted}
    known = {"cpus": float(cpus), "gpus": custom.pop("gpu", 0.0)}
    return {**known, "memory": float(memory_mib) * 2**20, **custom}
