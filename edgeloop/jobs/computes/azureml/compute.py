"""Azure ML: clusters of a workspace, through Azure's SDK.

A job is a command job of the same name; a batch may be one pipeline with a step for each job. Code,
data, log, outputs and state go through the store as everywhere, so the SDK uploads nothing and a
job's definition only holds how to reach its order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from edgeloop._util.retry import retry
from edgeloop.errors import ComputeRefused, MissingExtra
from edgeloop.jobs.computes.azureml.connection import Connection, connect, explained, is_missing
from edgeloop.jobs.computes.azureml.options import AzureMLKeys, resolved
from edgeloop.jobs.computes.azureml.orders import (
    OrderDispatcher,
    batches,
    command_job,
    ensure_component,
    pipeline_job,
    pipeline_name,
)
from edgeloop.jobs.computes.azureml.requirements import Cluster, ensure_environment, recipe_for
from edgeloop.jobs.computes.azureml.resources import CREATION_S
from edgeloop.jobs.computes.azureml.runs import (
    JOB_TAG,
    OVER,
    WAITING,
    AzureRuns,
    FoundRun,
    observed,
    waited_s,
)
from edgeloop.jobs.computes.base import Compute, JobOrder, ObservedState, for_each
from edgeloop.node.ticket import Resources
from edgeloop.store import Access

Item = TypeVar("Item")

_DELETING_S = 60.0
_ENDING_S = 30.0
_USER_LOG = "user_logs/std_log"
_DAY_S = 24 * 3600


class AzureMLCompute(Compute):
    kind = "azureml"
    builds = frozenset({"conda", "image", "name"})
    serves = frozenset({"azureml", "azure"})
    sees_folders = False
    Options = AzureMLKeys

    def __init__(self, name: str, keys: AzureMLKeys, _: Path) -> None:
        self.name = name
        self._options = options = resolved(name, keys)
        self._environments: dict[object, str] = {}
        # The submission may have to create the cluster and wait for Azure.
        self.on_its_way_s = CREATION_S + 2 * options.patience_s

    @property
    def place(self) -> Mapping[str, str]:
        address = self._options.address
        return {
            "subscription": address.subscription,
            "resource_group": address.resource_group,
            "workspace": address.workspace,
        }

    def access_s(self, timeout_s: float | None) -> int:
        """As long as it may wait and run plus a day, and at most a week, which is Azure's limit for
        signatures by an identity. Without a signature if the cluster has an identity."""
        if self._options.identity:
            return 0
        longest = self._options.start_limit_s + (timeout_s or 7 * _DAY_S) + _DAY_S
        return int(min(longest, 7 * _DAY_S))

    def exposes(self, access: Access, has_link: bool) -> str:
        with self._explained():
            return self._dispatcher.exposes(access, has_link)

    def check(self, resources: Resources) -> None:
        with self._explained():
            self._cluster.check(resources)

    def submit(self, order: JobOrder) -> None:
        self.check(order.resources)
        with self._explained():
            environment = self._environment(order)
            delivery = self._dispatcher.deliver(order)
            job = command_job(order, delivery, environment, self._options)
            self._send(order.job, job, JOB_TAG)

    def submit_many(self, orders: Sequence[JobOrder]) -> None:
        """One pipeline for the whole batch, if the settings or the submission ask for it."""
        together = self._options.pipeline or all(order.together for order in orders)
        if not together or len(orders) < 2:
            self._each(self.submit, orders)
            return
        for batch in batches(orders, self._options.steps):
            self._submit_pipeline(batch)

    def states(self, jobs: Sequence[str]) -> dict[str, ObservedState]:
        if not jobs:
            return {}
        with self._explained():
            found = self._runs.find(jobs)
            return {job: self._observed(job, found.get(job)) for job in jobs}

    def cancel(self, jobs: Sequence[str]) -> None:
        if not jobs:
            return
        with self._explained():
            self._each(self._cancel, self._names_to_end(self._runs.find(jobs)))

    def logs(self, job: str) -> str:
        """The output of the command's process, else the service's logs about its image and node."""
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
            over = {
                job: it for job, it in found.items() if it.run and observed(it.run).state in OVER
            }
            alone = [job for job, it in over.items() if not it.pipeline]
            whole = {it.pipeline for it in over.values() if it.pipeline}
            ended = [name for name in whole if self._runs.is_whole(name, over)]
            self._each(self._delete, [*alone, *ended])
            self._runs.forget(over)

    @cached_property
    def _connection(self) -> Connection:
        return connect(self._options.address, self._options.patience_s)

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(self.name, self._connection, self._options.cluster)

    @cached_property
    def _dispatcher(self) -> OrderDispatcher:
        return OrderDispatcher(self.name, self._connection, self._options)

    @cached_property
    def _runs(self) -> AzureRuns:
        return AzureRuns(self._connection)

    def _submit_pipeline(self, orders: Sequence[JobOrder]) -> None:
        self.check(orders[0].resources)
        with self._explained():
            environment = self._environment(orders[0])
            delivery = [self._dispatcher.deliver(order) for order in orders]
            component = ensure_component(
                self._connection, orders[0], delivery[0], environment, self._options
            )
            name = pipeline_name(orders)
            self._send(name, pipeline_job(orders, delivery, component, self._options), "")
            self._runs.remember(name, [order.job for order in orders])

    def _environment(self, order: JobOrder) -> str:
        """Registered once per process."""
        recipe = recipe_for(order, self._options)
        if recipe not in self._environments:
            self._environments[recipe] = ensure_environment(self._connection, recipe)
        return self._environments[recipe]

    def _send(self, name: str, job: Any, tag: str) -> None:
        """A missing cluster is created first; a job that exists already is ignored."""
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
            if not _exists_already(error):
                raise
            existing = jobs.get(name)
            if tag and (existing.tags or {}).get(tag) != name:
                reason = f"the workspace has another job called {name}: submit this one again"
                raise ComputeRefused(compute=self.name, reason=reason) from None

    def _is_cluster_missing(self, error: Exception) -> bool:
        """Whether it may be: the service's wording varies, and checking takes one call."""
        refused = getattr(error, "status_code", None) in (400, 404)
        about_compute = "compute" in str(error).lower() and not _exists_already(error)
        return refused and about_compute and not self._options.is_serverless

    def _observed(self, job: str, found: FoundRun | None) -> ObservedState:
        if found is None or found.run is None:
            return ObservedState(None)
        view = observed(found.run)
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

    def _names_to_end(self, found: dict[str, FoundRun]) -> list[str]:
        """A pipeline that is to end completely is ended as one; otherwise each run by its name."""
        open_ones = {j: f for j, f in found.items() if f.run and observed(f.run).state not in OVER}
        whole = {f.pipeline for f in open_ones.values() if f.pipeline}
        whole = {name for name in whole if self._runs.is_whole(name, found)}
        single = [
            f.run.id for f in open_ones.values() if f.run and f.run.id and f.pipeline not in whole
        ]
        return [*sorted(whole), *single]

    def _cancel(self, run: str) -> None:
        self._unless_missing(lambda: self._connection.ml.jobs.begin_cancel(run, polling=False))

    def _delete(self, run: str) -> None:
        """Azure refuses until a run has ended, which a pipeline does a moment after its steps."""
        from azure.core.exceptions import ResourceExistsError

        delete = self._connection.ml.jobs.begin_delete
        retry(
            lambda: self._unless_missing(lambda: delete(run).result(_DELETING_S)),
            ResourceExistsError,  # status 409
            _ENDING_S,
            first_s=0.1,
        )

    def _unless_missing(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            if not is_missing(error):
                raise

    def _each(self, action: Callable[[Item], None], items: Iterable[Item]) -> None:
        """The first item goes alone, so that what it finds or creates is available to the
        others."""
        several = list(items)
        if several:
            action(several[0])
        for_each(action, several[1:])

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            import azure.core.exceptions  # noqa: F401
        except ImportError:
            raise MissingExtra(what="Azure ML", extra="azureml") from None
        with explained(self.name, self._options.address, lambda: self._cluster.made):
            yield


def _exists_already(error: Exception) -> bool:
    return "already exists" in str(error)
