"""Azure ML: clusters of a workspace, by Azure's own SDK. Settings: `options.py`.

A job of ours is a command job of the same name; a batch may be one pipeline with a step for each.
Code, data, log, outputs and state go through our store as everywhere, so the SDK uploads nothing
and a job's definition holds no more than how to reach its order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from edgeloop.azure import MAKING_S, Connection, connect, explained, is_missing
from edgeloop.errors import ComputeRefused, MissingExtra
from edgeloop.jobs.computes.azureml.cluster import Cluster
from edgeloop.jobs.computes.azureml.environment import ensure_environment, recipe_for
from edgeloop.jobs.computes.azureml.options import AzureMLKeys, resolved
from edgeloop.jobs.computes.azureml.orders import JOB_TAG, Hander, command_job
from edgeloop.jobs.computes.azureml.pipeline import (
    alike,
    ensure_component,
    pipeline_job,
    pipeline_name,
)
from edgeloop.jobs.computes.azureml.runs import OVER, WAITING, Found, Runs, seen, waited_s
from edgeloop.jobs.computes.base import Compute, JobOrder, ObservedState, Resources

Item = TypeVar("Item")

_AT_ONCE = 16
_DELETING_S = 60.0
_USER_LOG = "user_logs/std_log"
_DAY_S = 24 * 3600


class AzureMLCompute(Compute):
    kind = "azureml"
    builds = frozenset({"conda", "image"})
    Options = AzureMLKeys

    def __init__(self, name: str, keys: AzureMLKeys, _: Path | None = None) -> None:
        self.name = name
        self._options = options = resolved(name, keys)
        self._environments: dict[object, str] = {}
        # Whoever submits may be making the cluster first, and may wait for Azure.
        self.on_its_way_s = MAKING_S + 2 * options.patience_s

    def access_s(self, timeout_s: float | None) -> int:
        """As long as it may wait and run, a day more, and a week at most: what Azure allows a
        signature that an identity made. No signature at all where the cluster has an identity."""
        if self._options.identity:
            return 0
        longest = self._options.start_limit_s + (timeout_s or 7 * _DAY_S) + _DAY_S
        return int(min(longest, 7 * _DAY_S))

    def check(self, resources: Resources) -> None:
        with self._explained():
            self._cluster.check(resources)

    def submit(self, order: JobOrder) -> None:
        self.check(order.resources)
        with self._explained():
            environment = self._environment(order)
            handed = self._hander.hand(order)
            job = command_job(order, handed, environment, self._options)
            self._send(order.job, job, JOB_TAG)

    def submit_many(self, orders: Sequence[JobOrder]) -> None:
        """One pipeline for the whole batch, where the settings or whoever submits ask for it."""
        together = self._options.pipeline or all(order.together for order in orders)
        if not together or len(orders) < 2:
            self._each(self.submit, orders)
            return
        for batch in alike(orders, self._options.steps):
            self._submit_pipeline(batch)

    def states(self, jobs: Sequence[str]) -> dict[str, ObservedState]:
        if not jobs:
            return {}
        with self._explained():
            found = self._runs.find(jobs)
            return {job: self._seen(job, found.get(job)) for job in jobs}

    def cancel(self, jobs: Sequence[str]) -> None:
        if not jobs:
            return
        with self._explained():
            found = self._runs.find(jobs)
            names = self._names_to_end(found)
            self._each(self._cancel, names)

    def logs(self, job: str) -> str:
        """What the command's process printed, else what the service says of its image and node."""
        with self._explained():
            found = self._runs.find([job]).get(job)
            if found is None or found.run is None:
                return ""
            history = self._connection.history
            files = history.log_files(found.run.id) if found.run.id else {}
            own = sorted(name for name in files if name.startswith(_USER_LOG))
            texts = [history.read(files[name]) for name in own or sorted(files)]
            return "\n".join([*filter(None, texts)]) or found.run.error

    def forget(self, jobs: Sequence[str]) -> None:
        if not jobs:
            return
        with self._explained():
            found = self._runs.find(jobs)
            over = {job: it for job, it in found.items() if it.run and seen(it.run).state in OVER}
            alone = [job for job, it in over.items() if not it.pipeline]
            whole = {it.pipeline for it in over.values() if it.pipeline}
            ended = [name for name in whole if self._runs.is_whole(name, over)]
            self._each(self._delete, [*alone, *ended])
            self._runs.forget(over)

    @cached_property
    def _connection(self) -> Connection:
        return connect(self._options.place, self._options.patience_s)

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(self.name, self._connection, self._options.cluster)

    @cached_property
    def _hander(self) -> Hander:
        return Hander(self.name, self._connection, self._options)

    @cached_property
    def _runs(self) -> Runs:
        return Runs(self._connection)

    def _submit_pipeline(self, orders: Sequence[JobOrder]) -> None:
        self.check(orders[0].resources)
        with self._explained():
            environment = self._environment(orders[0])
            handed = [self._hander.hand(order) for order in orders]
            component = ensure_component(
                self._connection, orders[0], handed[0], environment, self._options
            )
            name = pipeline_name(orders)
            self._send(name, pipeline_job(orders, handed, component, self._options), "")
            self._runs.remember(name, [order.job for order in orders])

    def _environment(self, order: JobOrder) -> str:
        """Asked for once a process."""
        recipe = recipe_for(order, self._options)
        if recipe not in self._environments:
            self._environments[recipe] = ensure_environment(self._connection, recipe)
        return self._environments[recipe]

    def _send(self, name: str, job: Any, tag: str) -> None:
        """A cluster that is missing is made first; a job that is there already is fine."""
        jobs = self._connection.ml.jobs
        try:
            try:
                jobs.create_or_update(job, skip_validation=True)
            except Exception as error:
                if not self._is_cluster_missing(error):
                    raise
                self._cluster.ensure()
                jobs.create_or_update(job, skip_validation=True)
        except Exception as error:
            if not _is_there_already(error):
                raise
            there = jobs.get(name)
            if tag and (there.tags or {}).get(tag) != name:
                reason = f"the workspace has another job called {name}: submit this one again"
                raise ComputeRefused(compute=self.name, reason=reason) from None

    def _is_cluster_missing(self, error: Exception) -> bool:
        """Whether it may be: the service's words for it differ, and looking costs one call."""
        refused = getattr(error, "status_code", None) in (400, 404)
        about_compute = "compute" in str(error).lower() and not _is_there_already(error)
        return refused and about_compute and not self._options.is_serverless

    def _seen(self, job: str, found: Found | None) -> ObservedState:
        if found is None or found.run is None:
            return ObservedState(None)
        view = seen(found.run)
        limit_s = self._options.start_limit_s
        if waited_s(found.run) < limit_s:
            return view
        why = found.run.warnings[-1] if found.run.warnings else "Azure ML gives no reason"
        text = f"it did not start within {limit_s:g} s: {why}"
        if view.state == "canceled":
            return ObservedState("failed", text)
        if view.state in WAITING and found.run.id:
            self._cancel(found.run.id)
            return replace(view, reason=f"{text}; it is being canceled")
        return view

    def _names_to_end(self, found: dict[str, Found]) -> list[str]:
        """A pipeline of which all is to end is ended as one; else each run by its own name."""
        open_ones = {j: f for j, f in found.items() if f.run and seen(f.run).state not in OVER}
        whole = {f.pipeline for f in open_ones.values() if f.pipeline}
        whole = {name for name in whole if self._runs.is_whole(name, found)}
        single = [
            f.run.id for f in open_ones.values() if f.run and f.run.id and f.pipeline not in whole
        ]
        return [*sorted(whole), *single]

    def _cancel(self, run: str) -> None:
        self._unless_missing(lambda: self._connection.ml.jobs.begin_cancel(run, polling=False))

    def _delete(self, run: str) -> None:
        self._unless_missing(lambda: self._connection.ml.jobs.begin_delete(run).result(_DELETING_S))

    def _unless_missing(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            if not is_missing(error):
                raise

    def _each(self, action: Callable[[Item], None], items: Iterable[Item]) -> None:
        """All are tried, and then the first error is raised. The first goes alone, so that what it
        finds out or makes is there for the others."""
        from concurrent.futures import ThreadPoolExecutor

        several = list(items)
        if not several:
            return
        action(several[0])
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            futures = [pool.submit(action, item) for item in several[1:]]
        for future in futures:
            future.result()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            import azure.core.exceptions  # noqa: F401
        except ImportError:
            raise MissingExtra(what="Azure ML", extra="azureml") from None
        with explained(self.name, self._options.place, lambda: self._cluster.made):
            yield


def _is_there_already(error: Exception) -> bool:
    return "already exists" in str(error)
