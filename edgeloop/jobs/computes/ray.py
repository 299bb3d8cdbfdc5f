"""Ray Jobs on an existing cluster, through the dashboard's documented REST API.

The ray package is not needed: importing it takes longer than submitting a job. A job has the same
id in Ray. Ray has no priorities: jobs start as resources are free. And it gives up on a job that
waited for 15 minutes, unless its head was started with a larger RAY_JOB_START_TIMEOUT_SECONDS.
"""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import quote, urlsplit

from pydantic import Field, StrictBool

from edgeloop._util.retry import retry
from edgeloop._util.schema import Text, key
from edgeloop._util.values import Reads, text
from edgeloop.errors import BadSetting, ComputeUnavailable, Infeasible
from edgeloop.jobs.bundle import bootstrap_command, packed
from edgeloop.jobs.computes.base import (
    Compute,
    ComputeOptions,
    JobOrder,
    ObservedState,
    for_each,
    order_variables,
)
from edgeloop.jobs.computes.queue import listed, missing
from edgeloop.node.ticket import ORDER_VARIABLE, Resources, State

if TYPE_CHECKING:
    from http.client import HTTPMessage
    from urllib.request import OpenerDirector, Request


Job = Mapping[str, Any]

_STATES: Mapping[str, State] = {
    "PENDING": "queued",
    "RUNNING": "running",
    "SUCCEEDED": "completed",
    "FAILED": "failed",
    "STOPPED": "canceled",
}
ORDER_FILE = "order.json"
_OVER = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
_NODES_KNOWN_FOR_S = 30.0
_LOG_LIMIT_BYTES = 16 * 1024 * 1024
_MOST_NODES = 10_000
_LIMIT_S = 30.0
_TRIES, _PATIENCE_S = 3, 60.0  # a restarting head takes longer, which is an error
_LARGEST_ANSWER = 256 * 1024 * 1024
_LONGEST_SENTENCE = 300

# Ray kills what still runs this long after a stop. The wrapper ends the command after its grace
# period and then copies what is left, so this is only a last resort.
_STOP_WAIT_S = 900

# Ray cannot stop a job that waits for resources: it starts it first, whenever that is. So its actor
# in Ray's queue is removed by a job that needs no resources. If a version of Ray has no such actor,
# nothing is found, and the stop request takes effect in the end.
_CLEANUP = """\
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
_CLEANUP_PREFIX = "edgeloop-sweep-"
# Ray's messages for those; the second if one was about to start.
_CLEANED_UP = ("cancelled before it started running", "killed by `ray.kill`")
# Only a stop makes Ray look the process up, and it reports a failure if the process has just ended.
_ENDED_BEFORE_ITS_STOP = "psutil.NoSuchProcess"
# Ray may have been started by the path of its program, in an environment that is on no PATH.
_WITH_RAY = """\
module=$1; shift
words=$(tr '\\0' '\\n' </proc/${RAY_RAYLET_PID:-self}/cmdline)
own=$(echo "$words" | sed -n 's/^--python_worker_command=\\([^ ]*\\) .*/\\1/p' | head -n 1)
for python in "$@" $own python3 python; do
  has='import sys, importlib.util as u; sys.exit(u.find_spec("ray") is None)'
  if "$python" -c "$has" 2>/dev/null; then exec "$python" -m "$module"; fi
done
echo "edgeloop: no Python of this node has ray: name one with the key python of the compute" >&2
exit 1
"""


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
    """The node that runs a job fetches the wrapper from the store."""

    kind = "ray"
    Options = RayOptions

    def __init__(self, name: str, options: RayOptions, _: Path) -> None:
        self.name = name
        self._ray = Dashboard(name, options.address, options.headers, options.verify)
        self._python = options.python or "python3"
        self._elastic = options.elastic
        self._nodes: tuple[float, list[dict[str, float]]] = (float("-inf"), [])

    def check(self, resources: Resources) -> None:
        """A job runs on one node, which must have all its resources."""
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
        """The order, which has the access to the store, is a file in the job's working folder: the
        dashboard shows a job's variables and command to everybody."""
        self.check(order.resources)
        content = order_variables(order)[ORDER_VARIABLE].encode()
        command = [*bootstrap_command(self._python, order.access), ORDER_FILE, "once"]
        self._submit(
            {
                "submission_id": order.job,
                "entrypoint": shlex.join(command),
                "runtime_env": {
                    "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_WAIT_S)},
                    "working_dir": self.send_package(packed({ORDER_FILE: content})),
                },
                "metadata": {"name": order.name},
                "entrypoint_num_cpus": order.resources.cpus,
                "entrypoint_num_gpus": order.resources.gpus,
                "entrypoint_memory": order.resources.memory_bytes,
                "entrypoint_resources": dict(order.resources.custom),
            }
        )

    def submit_many(self, orders: Sequence[JobOrder]) -> None:
        for_each(self.submit, orders)

    def states(self, jobs: Sequence[str]) -> dict[str, ObservedState]:
        ray_jobs = self._jobs()
        return {
            job: _observed(ray_jobs[job]) if job in ray_jobs else ObservedState(None)
            for job in jobs
        }

    def cancel(self, jobs: Sequence[str]) -> None:
        if not jobs:
            return
        for_each(lambda job: self._tolerating_404("POST", f"{_path(job)}/stop"), jobs)
        ray_jobs = self._jobs()
        waiting = [job for job in jobs if ray_jobs.get(job, {}).get("status") == "PENDING"]
        if waiting:
            self._clean_up(waiting)
        self._forget_cleanups(ray_jobs)

    def logs(self, job: str) -> str:
        try:
            content = self._ray.ask("GET", f"{_path(job)}/logs", limit_bytes=_LOG_LIMIT_BYTES)
        except DashboardRefused:
            return ""
        return _log_text(content)

    def forget(self, jobs: Sequence[str]) -> None:
        if not jobs:
            return
        ray_jobs = self._jobs()
        over = [job for job in jobs if ray_jobs.get(job, {}).get("status") in _OVER]
        for_each(self._delete, over)
        self._forget_cleanups(ray_jobs)

    @property
    def address(self) -> str:
        return self._ray.address

    def send_package(self, content: bytes, is_kept: bool = False) -> str:
        """A zip file for nodes, as `ray job submit` sends a folder; its address inside Ray. One
        that is kept has a name by its content; any other is gone with the job that needs it."""
        digest = blake2b(content, digest_size=16).hexdigest()
        name = f"_ray_pkg_{digest if is_kept else secrets.token_hex(16)}.zip"
        path = f"/api/packages/gcs/{name}"
        try:
            if not (is_kept and self._has(path)):
                self._ray.ask("PUT", path, content)
        except DashboardRefused as refusal:
            raise self._said(refusal) from None
        return f"gcs://{name}"

    def start_driver(self, job: str, module: str, package: str, folder: str) -> str:
        """Run a module of `package` as a job that needs no resources, in `folder`; both are
        addresses of packages."""
        self._submit(
            {
                "submission_id": job,
                "entrypoint": shlex.join(driver_command(self._python, module)),
                "runtime_env": {"py_modules": [package], "working_dir": folder},
                "metadata": {"name": job},
            }
        )
        return job

    def driver_failure(self, job: str) -> str:
        """Why it failed; empty while it has not."""
        observed = self.states([job])[job]
        if observed.state == "completed":
            self._delete(job)
        if observed.state not in ("failed", "canceled"):
            return ""
        return last_line(self.logs(job)) or observed.reason or f"the job {job} was stopped"

    def _has(self, path: str) -> bool:
        """Asking also keeps a package for the next minutes, until a job needs it."""
        try:
            self._ray.ask("GET", path)
        except DashboardRefused as refusal:
            if refusal.status == 404:
                return False
            raise
        return True

    def _submit(self, request: Mapping[str, object]) -> None:
        try:
            self._ray.ask("POST", "/api/jobs/", request)
        except DashboardRefused as refusal:
            if "already exists" not in refusal.text:
                raise self._said(refusal) from None

    def _delete(self, job: str) -> None:
        self._tolerating_404("DELETE", _path(job))

    def _tolerating_404(self, method: str, path: str) -> None:
        try:
            self._ray.ask(method, path)
        except DashboardRefused as refusal:
            if refusal.status != 404:
                raise self._said(refusal) from None

    def _clean_up(self, waiting: Sequence[str]) -> None:
        self._submit(
            {
                "submission_id": f"{_CLEANUP_PREFIX}{secrets.token_hex(8)}",
                "entrypoint": shlex.join([self._python, "-c", _CLEANUP]),
                "runtime_env": {"env_vars": {"EDGELOOP_SWEEP": " ".join(waiting)}},
                "metadata": {"name": "removes canceled jobs from the queue"},
            }
        )

    def _forget_cleanups(self, ray_jobs: Mapping[str, Job]) -> None:
        ours = [job for job in ray_jobs if job.startswith(_CLEANUP_PREFIX)]
        for_each(self._delete, [job for job in ours if ray_jobs[job]["status"] in _OVER])

    def _jobs(self) -> dict[str, Job]:
        """All jobs of the cluster in one call. Drivers that were not submitted have no id."""
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
                nodes = [
                    _resources(row["resources_total"]) for row in rows if row["state"] == "ALIVE"
                ]
            except (TypeError, KeyError):
                raise self._ray.no_ray() from None
            self._nodes = (time.monotonic(), nodes)
        return nodes

    def _json(self, method: str, path: str) -> Any:
        try:
            return self._ray.ask_json(method, path)
        except DashboardRefused as refusal:
            raise self._said(refusal) from None

    def _said(self, refusal: DashboardRefused) -> ComputeUnavailable:
        return ComputeUnavailable(compute=self.name, reason=f"Ray said: {refusal}")


def driver_command(python: str, module: str) -> list[str]:
    """Run a module with the first Python that has Ray: the one that is named, or what the node's
    raylet itself starts workers with."""
    named = [] if python in ("python", "python3") else [python]
    return ["/bin/sh", "-c", _WITH_RAY, "edgeloop", module, *named]


def _observed(job: Job) -> ObservedState:
    state = _STATES.get(job["status"])
    message = str(job.get("message") or "")
    if state != "failed":
        return ObservedState(state)
    if any(words in message for words in _CLEANED_UP):
        return ObservedState("canceled", "canceled while it waited")
    if _ENDED_BEFORE_ITS_STOP in message:
        return ObservedState("canceled")
    if job.get("error_type") == "JOB_SUPERVISOR_ACTOR_START_TIMEOUT":
        limit = "RAY_JOB_START_TIMEOUT_SECONDS of its head"
        return ObservedState(
            "failed", f"Ray gave up after it had waited too long for resources: increase {limit}"
        )
    if job.get("driver_exit_code") is not None:
        return ObservedState(
            "failed", f"the wrapper ended with exit code {job['driver_exit_code']}"
        )
    return ObservedState("failed", last_line(message))


def _resources(totals: Mapping[str, float]) -> dict[str, float]:
    """A node's resources under our names, without those that Ray adds itself."""
    names = {"CPU": "cpus", "GPU": "gpus", "memory": "memory"}
    amounts = {ours: float(totals.get(rays, 0.0)) for rays, ours in names.items()}
    hidden = ("node:", "accelerator_type:", "object_store_memory")
    others = {n: float(v) for n, v in totals.items() if n not in names and not n.startswith(hidden)}
    return amounts | dict(sorted(others.items()))


def _described(nodes: Sequence[Mapping[str, float]]) -> str:
    """`2 × (cpus 8, gpus 1, memory 33.0 GB), cpus 4, …`: kinds of nodes, not each of fifty."""
    kinds: dict[str, int] = {}
    for totals in nodes:
        kinds[listed(totals)] = kinds.get(listed(totals), 0) + 1
    return "; ".join(f"{count} × ({kind})" for kind, count in kinds.items())


def _path(job: str) -> str:
    return f"/api/jobs/{quote(job, safe='')}"


def _log_text(content: bytes) -> str:
    """The beginning of the response is enough, even if the rest was cut off."""
    try:
        return str(json.loads(content)["logs"])
    except (ValueError, KeyError, TypeError):
        cut = content.decode(errors="replace").rsplit("\\n", 1)[0]
    try:
        return str(json.loads(f'{cut}"}}')["logs"])
    except (ValueError, KeyError, TypeError):
        return ""


class DashboardRefused(Exception):
    """The dashboard responded with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(last_line(text) or f"status {status}")
        self.status = status
        self.text = text


@dataclass(frozen=True)
class Dashboard:
    """One cluster's address and the headers for it: time limits, a few retries, clear errors."""

    compute: str
    address: str
    headers: Mapping[str, str] = field(repr=False)
    verify: bool = True

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        limit_bytes: int = _LARGEST_ANSWER,
    ) -> bytes:
        """Every request may be repeated: submitting or stopping a job twice is harmless."""
        from http.client import HTTPException
        from urllib.error import HTTPError

        def once() -> bytes:
            try:
                with self._opener().open(self._request(method, path, body), timeout=_LIMIT_S) as it:
                    return bytes(it.read(limit_bytes))
            except HTTPError as error:
                with error:
                    self._judge(error.code, error.read(1 << 20).decode(errors="replace"))

        try:
            return retry(
                once,
                (OSError, HTTPException),
                _PATIENCE_S,
                first_s=0.3,
                most_tries=_TRIES,
                unless=lambda error: isinstance(getattr(error, "reason", error), TimeoutError),
            )
        except (OSError, HTTPException) as error:
            raise self._unavailable(error) from None

    def ask_json(self, method: str, path: str, body: object = None) -> Any:
        content = self.ask(method, path, body)
        try:
            return json.loads(content)
        except ValueError:
            raise self.no_ray() from None

    def no_ray(self) -> ComputeUnavailable:
        reason = f"what responds at {self.address} is not Ray's dashboard"
        return ComputeUnavailable(compute=self.compute, reason=reason)

    def _request(self, method: str, path: str, body: object) -> Request:
        from urllib.request import Request

        content, kind = None, "application/json"
        if isinstance(body, bytes):
            content, kind = body, "application/octet-stream"
        elif body is not None:
            content = json.dumps(body).encode()
        headers = {"Content-Type": kind, **self.headers}
        return Request(self.address + path, content, headers, method=method)  # noqa: S310

    def _opener(self) -> OpenerDirector:
        """Follows no redirect: the headers may hold a token, which is for this address only."""
        import ssl
        from urllib.request import HTTPRedirectHandler, HTTPSHandler, build_opener

        class Stay(HTTPRedirectHandler):
            def redirect_request(
                self, req: Request, fp: Any, code: int, msg: str, headers: HTTPMessage, newurl: str
            ) -> None:
                return None

        if not self.address.startswith("https:"):
            return build_opener(Stay)
        context = ssl.create_default_context()
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return build_opener(Stay, HTTPSHandler(context=context))

    def _judge(self, status: int, text: str) -> NoReturn:
        if status in (401, 403) or 300 <= status < 400:
            reason = f"{self.address} refuses access (status {status}): check 'headers'"
            raise BadSetting(where=f"computes.{self.compute}", reason=reason)
        raise DashboardRefused(status, text)

    def _unavailable(self, error: Exception) -> ComputeUnavailable:
        cause = getattr(error, "reason", error)
        text = "no response in time" if isinstance(cause, TimeoutError) else str(cause)
        strerror = getattr(cause, "strerror", None) or text or type(cause).__name__
        return ComputeUnavailable(compute=self.compute, reason=f"{self.address}: {strerror}")


def last_line(text: str) -> str:
    """The last meaningful line of a traceback."""
    lines = [line.strip() for line in text.splitlines()]
    sentences = [
        line for line in lines if len(line) > 1 and not line.startswith(("File ", "^", "~"))
    ]
    return sentences[-1][:_LONGEST_SENTENCE] if sentences else ""
