"""Jobs as resources: put, shown, listed, canceled. Each runs in a thread of its own."""

from __future__ import annotations

import threading
import traceback
from typing import Any

from tests.peers.azureml.datastores import ARTIFACT_STORE
from tests.peers.azureml.execution import Executor
from tests.peers.azureml.machines import size_of
from tests.peers.azureml.operations import Operations
from tests.peers.azureml.pipelines import Pipelines
from tests.peers.azureml.routing import Request, Response, Route, ServiceError
from tests.peers.azureml.runs import Order, Run
from tests.peers.azureml.scope import Scope, not_found, workspace_route
from tests.peers.azureml.shapes import Checker

_CHANGEABLE = ("tags", "properties", "displayName", "description", "isArchived", "status",
               "services", "outputs")  # fmt: skip


class Jobs:
    def __init__(
        self, scope: Scope, executor: Executor, operations: Operations, checker: Checker
    ) -> None:
        self._scope, self._executor = scope, executor
        self._operations, self._checker = operations, checker
        self._pipelines = Pipelines(executor.assets, executor.computes, self.begin)
        self.runs: dict[str, Run] = {}
        self.crashes: list[str] = []
        self._threads: list[threading.Thread] = []

    def routes(self) -> list[Route]:
        return [
            workspace_route("GET", "/jobs", self._list),
            workspace_route("GET", "/jobs/{name}", self._get),
            workspace_route("PUT", "/jobs/{name}", self._put),
            workspace_route("DELETE", "/jobs/{name}", self._delete),
            workspace_route("POST", "/jobs/{name}/cancel", self._cancel),
        ]

    def find(self, name: str) -> Run:
        found = self.runs.get(name)
        if found is None:
            raise not_found("job", name)
        return found

    def children(self, name: str) -> list[Run]:
        with self._scope.lock:
            return [run for run in self.runs.values() if run.parent == name]

    def begin(self, run: Run) -> None:
        """Known from now on, and on its way."""
        thread = threading.Thread(target=self._work, args=(run,), name=run.name, daemon=True)
        with self._scope.lock:
            self.runs[run.name] = run
            self._threads.append(thread)
        thread.start()

    def _work(self, run: Run) -> None:
        try:
            if run.kind == "Pipeline":
                self._pipelines.execute(run)
            else:
                self._executor.execute(run)
        except Exception as error:
            run.fail("ServiceError", f"{type(error).__name__}: {error}")
            self.crashes.append(traceback.format_exc())

    def close(self) -> None:
        for run in list(self.runs.values()):
            run.cancel.set()
        for thread in self._threads:
            thread.join(10)

    def _put(self, request: Request) -> Response:
        name, body = request.parameters["name"], self._checker.check("jobs", request)
        with self._scope.lock:
            old = self.runs.get(name)
            if old:
                return Response(200, self._update(old, body["properties"]))
            properties = dict(body["properties"])
            if properties["jobType"] == "Command":
                order = self._checked(Order.of_job(properties), properties)
                run = Run(name, "Command", properties, order)
            else:
                self._pipelines.check(properties)
                run = Run(name, "Pipeline", properties)
            self.begin(run)
        return Response(201, self.shown(run))

    def _checked(self, order: Order, properties: dict[str, Any]) -> Order:
        """The service refuses a job that names what is not there."""
        assets = self._executor.assets
        try:
            if not order.environment.startswith("azureml://registries/"):
                assets.find(order.environment, "environments")
            if order.code:
                assets.find(order.code, "codes")
            self._executor.computes.cluster(order.compute)
        except ServiceError as error:
            raise ServiceError(400, "UserError", error.message) from None
        identity = properties.get("identity") or {}
        if order.compute and identity.get("clientId"):
            cluster = self._executor.computes.cluster(order.compute)
            self._executor.computes.check_identity(cluster, identity["clientId"])
        if order.instance_type:
            size_of(order.instance_type)
        if not properties.get("computeId") and not order.instance_type:
            raise ServiceError(400, "UserError", "computeId or resources.instanceType is required")
        return order

    def _update(self, run: Run, properties: dict[str, Any]) -> dict[str, Any]:
        for name, value in properties.items():
            if name not in _CHANGEABLE and value != run.properties.get(name):
                what = (
                    f"A job with this name already exists: {run.name}. If you are trying to create "
                    "a new job, use a different name. If you are trying to update an existing "
                    f"job, the existing job's {name} cannot be changed."
                )
                raise ServiceError(409, "UserError", what)
        for name in ("tags", "properties", "displayName", "description", "isArchived"):
            if properties.get(name) is not None:
                run.properties[name] = properties[name]
        return self.shown(run)

    def _get(self, request: Request) -> Response:
        return Response(200, self.shown(self.find(request.parameters["name"])))

    def _list(self, request: Request) -> Response:
        """Newest first, steps of pipelines left out, archived ones when asked for."""
        view, tag = request.query.get("listViewType", "ActiveOnly"), request.query.get("tag")
        with self._scope.lock:
            runs = [run for run in reversed(self.runs.values()) if run.parent is None]
        rows = [
            self.shown(run)
            for run in runs
            if view == "All" or bool(run.properties.get("isArchived")) == (view == "ArchivedOnly")
            if not tag or tag.partition("=")[0] in (run.properties.get("tags") or {})
        ]
        return self._scope.page(request, rows)

    def _delete(self, request: Request) -> Response:
        run = self.find(request.parameters["name"])
        if not run.has_ended:
            raise ServiceError(409, "UserError", f"The job {run.name} has not ended.")
        with self._scope.lock:
            del self.runs[run.name]
        return self._operations.begin(lambda: True, 202)

    def _cancel(self, request: Request) -> Response:
        run = self.find(request.parameters["name"])
        if not run.has_ended:
            run.reach("CancelRequested")
            run.cancel.set()
            for child in self.children(run.name):
                child.cancel.set()
        return self._operations.begin_by_location(lambda: run.has_ended)

    def shown(self, run: Run) -> dict[str, Any]:
        if run.parent is not None:
            # Steps are known to the run history only.
            return self._scope.resource("jobs", run.name, None)
        studio = f"https://studio.localhost/runs/{run.name}"
        outputs = {
            name: dict(output) for name, output in (run.properties.get("outputs") or {}).items()
        }
        for name, where in run.outputs.items():
            outputs[name]["uri"] = where
        outputs["default"] = {
            "jobOutputType": "uri_folder",
            "uri": f"azureml://datastores/{ARTIFACT_STORE}/{run.prefix}",
            "mode": "ReadWriteMount",
        }
        properties = {
            "displayName": run.name,
            "experimentName": run.experiment,
            "isArchived": False,
            "tags": {},
            "properties": {},
            **run.properties,
            "status": run.status,
            "outputs": outputs,
            "services": {
                "Tracking": {"jobServiceType": "Tracking", "endpoint": self._scope.url},
                "Studio": {"jobServiceType": "Studio", "endpoint": studio},
            },
        }
        shown = self._scope.resource("jobs", run.name, properties)
        shown["systemData"]["createdAt"] = run.times["NotStarted"]
        return shown
