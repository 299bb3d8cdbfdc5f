"""Ray Jobs on an existing cluster, by the dashboard's documented REST API.

No ray package is needed here: importing it takes longer than submitting a job. Ray's own id of a
job is ours.

Ray knows no priorities: jobs start as room is found. And it gives up on a job that waited for 15
minutes, unless its head was started with a larger RAY_JOB_START_TIMEOUT_SECONDS.
"""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import Field, StrictBool

from edgeloop._util.schema import key
from edgeloop._util.values import Reads, Text, text
from edgeloop.errors import ComputeUnavailable, Infeasible
from edgeloop.jobs.computes.base import Compute, ComputeOptions, JobOrder, ObservedState, Resources
from edgeloop.jobs.computes.ray.dashboard import Dashboard, Refused, sentence
from edgeloop.jobs.protocol.bundle import bootstrap_command
from edgeloop.jobs.protocol.resources import listed, missing
from edgeloop.jobs.protocol.ticket import State, order_variables

Item = TypeVar("Item")
Job = Mapping[str, Any]

_STATES: Mapping[str, State] = {
    "PENDING": "queued",
    "RUNNING": "running",
    "SUCCEEDED": "completed",
    "FAILED": "failed",
    "STOPPED": "canceled",
}
_OVER = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
_NODES_KNOWN_FOR_S = 30.0
_AT_ONCE = 16
_LOG_LIMIT_BYTES = 16 * 1024 * 1024
_MOST_NODES = 10_000

# Ray kills what still lives this long after a stop. The wrapper itself ends the command after its
# grace period and then copies what is left, so this is no more than a last resort.
_STOP_WAIT_S = 900

# Ray cannot stop a job that waits for room: it starts it first, whenever that is. So the actor that
# stands for it in Ray's own queue is taken out by a job that needs no room. Where a version of
# Ray has no such actor, nothing is found, and the stop that was sent before works in the end.
_SWEEP = """\
import os, ray
from ray.util.state import list_actors
wanted = {"_ray_internal_job_actor_" + job for job in os.environ["EDGELOOP_SWEEP"].split()}
ray.init(address="auto", namespace="SUPERVISOR_ACTOR_RAY_NAMESPACE", log_to_driver=False)
filters = [("class_name", "=", "JobSupervisor"), ("state", "!=", "DEAD"), ("state", "!=", "ALIVE")]
for actor in list_actors(filters=filters, limit=10000):
    if actor.name in wanted:
        try:
            ray.kill(ray.get_actor(actor.name))
        except ValueError:
            pass
"""
_SWEEP_PREFIX = "edgeloop-sweep-"
# What Ray says of those: the second where one was about to start when it was taken out.
_SWEPT = ("cancelled before it started running", "killed by `ray.kill`")


def _address(value: object) -> str:
    address = text(value).rstrip("/")
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be the dashboard's, for example http://host:8265")
    return address


class RayOptions(ComputeOptions):
    """A Ray cluster that runs already."""

    address: Annotated[str, Reads(_address, {"type": "string"})] = Field(
        description="The dashboard's address, for example `http://head:8265`."
    )
    headers: dict[str, str] = key(dict, "HTTP headers for a proxy in front of the dashboard.")
    verify: StrictBool = key(True, "Whether its TLS certificate is checked.")
    python: Text = key("python3", "The interpreter on the nodes.")
    elastic: StrictBool = key(False, "Nodes come and go: refuse nothing that no node has.")


class RayCompute(Compute):
    """A job is Ray's; its wrapper is fetched from the store by the node that runs it."""

    kind = "ray"
    Options = RayOptions

    def __init__(self, name: str, options: RayOptions, _: Path | None = None) -> None:
        self.name = name
        self._ray = Dashboard(name, options.address, options.headers, options.verify)
        self._python = options.python or "python3"
        self._elastic = options.elastic
        self._nodes: tuple[float, list[dict[str, float]]] = (float("-inf"), [])

    def check(self, resources: Resources) -> None:
        """A job runs on one node, so one node must have it all."""
        if self._elastic:
            return
        nodes = self._totals()
        if not nodes:
            raise ComputeUnavailable(compute=self.name, reason="the cluster has no living node")
        if all(missing(resources, totals) for totals in nodes):
            best = min(nodes, key=lambda totals: len(missing(resources, totals)))
            reason = f"{', '.join(missing(resources, best))}; its nodes have "
            raise Infeasible(compute=self.name, reason=reason + _described(nodes))

    def submit(self, order: JobOrder) -> None:
        self.check(order.resources)
        variables = {**order_variables(order), "RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_WAIT_S)}
        self._submit(
            {
                "submission_id": order.job,
                "entrypoint": shlex.join(bootstrap_command(self._python)),
                "runtime_env": {"env_vars": variables},
                "metadata": {"name": order.name},
                "entrypoint_num_cpus": order.resources.cpus,
                "entrypoint_num_gpus": order.resources.gpus,
                "entrypoint_memory": order.resources.memory_bytes,
                "entrypoint_resources": dict(order.resources.custom),
            }
        )

    def submit_many(self, orders: Sequence[JobOrder]) -> None:
        self._each(self.submit, orders)

    def states(self, jobs: Sequence[str]) -> dict[str, ObservedState]:
        known = self._jobs()
        return {job: _seen(known[job]) if job in known else ObservedState(None) for job in jobs}

    def cancel(self, jobs: Sequence[str]) -> None:
        if not jobs:
            return
        self._each(self._stop, jobs)
        known = self._jobs()
        waiting = [job for job in jobs if known.get(job, {}).get("status") == "PENDING"]
        if waiting:
            self._sweep(waiting)
        self._forget_sweeps(known)

    def logs(self, job: str) -> str:
        try:
            content = self._ray.ask("GET", f"{_path(job)}/logs", limit_bytes=_LOG_LIMIT_BYTES)
        except Refused:
            return ""
        return _log_text(content)

    def forget(self, jobs: Sequence[str]) -> None:
        if not jobs:
            return
        known = self._jobs()
        over = [job for job in jobs if known.get(job, {}).get("status") in _OVER]
        self._each(self._delete, over)
        self._forget_sweeps(known)

    def _submit(self, request: Mapping[str, object]) -> None:
        try:
            self._ray.ask("POST", "/api/jobs/", request)
        except Refused as refusal:
            if "already exists" not in refusal.text:
                raise self._said(refusal) from None

    def _stop(self, job: str) -> None:
        self._tolerating_404("POST", f"{_path(job)}/stop")

    def _delete(self, job: str) -> None:
        self._tolerating_404("DELETE", _path(job))

    def _tolerating_404(self, method: str, path: str) -> None:
        try:
            self._ray.ask(method, path)
        except Refused as refusal:
            if refusal.status != 404:
                raise self._said(refusal) from None

    def _sweep(self, waiting: Sequence[str]) -> None:
        self._submit(
            {
                "submission_id": f"{_SWEEP_PREFIX}{secrets.token_hex(8)}",
                "entrypoint": shlex.join([self._python, "-c", _SWEEP]),
                "runtime_env": {"env_vars": {"EDGELOOP_SWEEP": " ".join(waiting)}},
                "metadata": {"name": "takes canceled jobs out of the queue"},
            }
        )

    def _forget_sweeps(self, known: Mapping[str, Job]) -> None:
        ours = [job for job in known if job.startswith(_SWEEP_PREFIX)]
        self._each(self._delete, [job for job in ours if known[job]["status"] in _OVER])

    def _jobs(self) -> dict[str, Job]:
        """All of the cluster's in one call. Drivers that nobody submitted have no such id."""
        listing = self._json("GET", "/api/jobs/")
        try:
            return {job["submission_id"]: job for job in listing if job["submission_id"]}
        except (TypeError, KeyError):
            raise self._ray.no_ray() from None

    def _totals(self) -> list[dict[str, float]]:
        asked, nodes = self._nodes
        if time.monotonic() - asked > _NODES_KNOWN_FOR_S:
            answer = self._json("GET", f"/api/v0/nodes?detail=1&limit={_MOST_NODES}")
            try:
                rows = answer["data"]["result"]["result"]
                nodes = [_ours(row["resources_total"]) for row in rows if row["state"] == "ALIVE"]
            except (TypeError, KeyError):
                raise self._ray.no_ray() from None
            self._nodes = (time.monotonic(), nodes)
        return nodes

    def _json(self, method: str, path: str) -> Any:
        try:
            return self._ray.ask_json(method, path)
        except Refused as refusal:
            raise self._said(refusal) from None

    def _said(self, refusal: Refused) -> ComputeUnavailable:
        return ComputeUnavailable(compute=self.name, reason=f"Ray said: {refusal}")

    def _each(self, action: Callable[[Item], None], items: Iterable[Item]) -> None:
        """All are tried, and then the first error is raised."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            futures = [pool.submit(action, item) for item in items]
        for future in futures:
            future.result()


def _seen(job: Job) -> ObservedState:
    state = _STATES.get(job["status"])
    message = str(job.get("message") or "")
    if state != "failed":
        return ObservedState(state)
    if any(words in message for words in _SWEPT):
        return ObservedState("canceled", "canceled while it waited")
    if job.get("error_type") == "JOB_SUPERVISOR_ACTOR_START_TIMEOUT":
        limit = "RAY_JOB_START_TIMEOUT_SECONDS of its head"
        return ObservedState(
            "failed", f"Ray gave up after it had waited for room too long: raise {limit}"
        )
    if job.get("driver_exit_code") is not None:
        return ObservedState(
            "failed", f"the wrapper ended with exit code {job['driver_exit_code']}"
        )
    return ObservedState("failed", sentence(message))


def _ours(totals: Mapping[str, float]) -> dict[str, float]:
    """A node's resources under our names, less those that Ray makes up for itself."""
    names = {"CPU": "cpus", "GPU": "gpus", "memory": "memory"}
    known = {ours: float(totals.get(rays, 0.0)) for rays, ours in names.items()}
    hidden = ("node:", "accelerator_type:", "object_store_memory")
    others = {n: float(v) for n, v in totals.items() if n not in names and not n.startswith(hidden)}
    return known | dict(sorted(others.items()))


def _described(nodes: Sequence[Mapping[str, float]]) -> str:
    """`2 × (cpus 8, gpus 1, memory 33.0 GB), cpus 4, …`: kinds of nodes, not each of fifty."""
    kinds: dict[str, int] = {}
    for totals in nodes:
        kinds[listed(totals)] = kinds.get(listed(totals), 0) + 1
    return "; ".join(f"{count} × ({kind})" for kind, count in kinds.items())


def _path(job: str) -> str:
    return f"/api/jobs/{quote(job, safe='')}"


def _log_text(content: bytes) -> str:
    """The answer's beginning is enough, even where the rest was cut off."""
    try:
        return str(json.loads(content)["logs"])
    except (ValueError, KeyError, TypeError):
        cut = content.decode(errors="replace").rsplit("\\n", 1)[0]
    try:
        return str(json.loads(f'{cut}"}}')["logs"])
    except (ValueError, KeyError, TypeError):
        return ""
