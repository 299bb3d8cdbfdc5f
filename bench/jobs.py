"""Submitting and aborting jobs: on this machine, and on Ray beside Ray's own client.

The cluster is full meanwhile, so that submissions are compared and not what they start.
"""

from __future__ import annotations

import shlex
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.tables import markdown
from edgeloop.jobs.bundle import bootstrap_command
from edgeloop.jobs.computes import Compute, Resources, make_compute
from edgeloop.jobs.computes.base import order_variables
from edgeloop.store import SqliteLocation, open_blobs
from edgeloop.testing.contracts.compute import LIMIT_S, JobHarness
from tests.peers.process import wait_until
from tests.peers.ray import CPUS, RayCluster

REPEATS = 30
JOBS = 100
RECORDS = 1_000


def run() -> str:
    with TemporaryDirectory() as name:
        rows = [*_local(Path(name) / "local"), *_ray(Path(name) / "ray")]
    return markdown(("what", "figure", "goal"), rows)


def _local(folder: Path) -> list[tuple[str, str, str]]:
    harness = _yard(make_compute("local", {"cpus": 1}, folder / "state"), folder)
    harness.hold("blocker")
    harness.wait_until_runs("blocker")
    orders = [harness.order("python", "-c", "pass") for _ in range(JOBS)]
    each = [_seconds(lambda order=order: harness.submit(order)) for order in orders]
    jobs = [order.job for order in orders]
    memory = _waiting_kilobytes(folder)
    canceled = _seconds(lambda: harness.compute.cancel(jobs))
    states = {seen.state for seen in harness.compute.states(jobs).values()}
    asked = [f"job-{number}" for number in range(RECORDS - JOBS)] + jobs
    status = statistics.median(_seconds(lambda: harness.compute.states(asked)) for _ in range(5))
    harness.close()
    return [
        ("submit to local, median", f"{statistics.median(each) * 1e3:.1f} ms", "< 500 ms"),
        ("a waiting job's memory, its own share", f"{memory / 1e3:.1f} MB", ""),
        (f"abort {JOBS} waiting jobs: {', '.join(map(str, states))}", f"{canceled:.2f} s", ""),
        (f"states of {RECORDS:,} jobs, {JOBS} known", f"{status * 1e3:.0f} ms", "< 1 s"),
    ]


def _ray(folder: Path) -> list[tuple[str, str, str]]:
    with RayCluster() as cluster:
        harness = _yard(_compute(cluster), folder)
        harness.hold("blocker", resources=Resources(cpus=CPUS))
        harness.wait_until_runs("blocker")
        ours, theirs = _submissions(cluster, harness)
        ended = _seconds(lambda: _cancel_all(harness))
    ratio = statistics.median(ours) / statistics.median(theirs)
    return [
        ("Ray's own submit_job, median", f"{statistics.median(theirs) * 1e3:.1f} ms", ""),
        ("submit to Ray, median", f"{statistics.median(ours) * 1e3:.1f} ms", ""),
        ("ratio", f"{ratio:.2f}", "≤ 1.3"),
        (f"abort {2 * REPEATS} jobs that wait on Ray, until true", f"{ended:.1f} s", ""),
    ]


def _submissions(cluster: RayCluster, harness: JobHarness) -> tuple[list[float], list[float]]:
    """In turn, and the same request. Each of ours is a compute's first: it asks for the nodes."""
    from ray.job_submission import JobSubmissionClient

    client = JobSubmissionClient(cluster.address)
    ours, theirs = [], []
    for _ in range(REPEATS):
        order = harness.order("python", "-c", "pass", resources=Resources(cpus=CPUS))
        ours.append(_seconds(lambda order=order: _compute(cluster).submit(order)))
        other = harness.order("python", "-c", "pass")
        theirs.append(
            _seconds(
                lambda other=other: client.submit_job(
                    entrypoint=shlex.join(bootstrap_command()),
                    submission_id=other.job,
                    runtime_env={"env_vars": order_variables(other)},
                    entrypoint_num_cpus=CPUS,
                )
            )
        )
        harness.sent += [order.job, other.job]
    return ours, theirs


def _cancel_all(harness: JobHarness) -> None:
    harness.compute.cancel(harness.sent)
    wait_until(
        lambda: {s.state for s in harness.compute.states(harness.sent).values()} == {"canceled"},
        LIMIT_S,
        "all to be canceled",
    )


def _yard(compute: Compute, folder: Path) -> JobHarness:
    (folder / "store/blobs").mkdir(parents=True)
    return JobHarness(compute, open_blobs(SqliteLocation(folder / "store")), folder)


def _compute(cluster: RayCluster) -> Compute:
    return make_compute("ray", {"address": cluster.address})


def _waiting_kilobytes(folder: Path) -> float:
    """The median proportional size of the processes that wait."""
    sizes = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{folder}/state/wrappers/waiter-".encode() in (process / "cmdline").read_bytes():
                lines = (process / "smaps_rollup").read_text().splitlines()
                sizes += [float(line.split()[1]) for line in lines if line.startswith("Pss:")]
        except OSError:
            continue
    return statistics.median(sizes)


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
