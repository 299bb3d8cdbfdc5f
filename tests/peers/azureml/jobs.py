"""Jobs as resources: put, shown, listed, canceled, each in a thread of its own; and pipelines, of
which every step is a run of its own."""

from __future__ import annotations

import re
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from typing import Any

from tests.peers.azureml.assets import ARTIFACT_STORE, DEFAULT, Assets
from tests.peers.azureml.bodies import Checker
from tests.peers.azureml.computes import Computes, size_of
from tests.peers.azureml.execution import Executor, Order, Run, docker_arguments, seconds
from tests.peers.azureml.server import (
    Operations,
    Request,
    Response,
    Route,
    Scope,
    ServiceError,
    not_found,
    workspace_route,
)

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


_OF_STEP = re.compile(r"\$\{\{\s*parent\.jobs\.([\w-]+)\.outputs\.([\w-]+)\s*\}\}")
_OF_PARENT = re.compile(r"\$\{\{\s*parent\.(inputs|outputs)\.([\w.-]+)\s*\}\}")
_POLL_S = 0.02
Step = dict[str, Any]


class Pipelines:
    def __init__(self, assets: Assets, computes: Computes, begin: Callable[[Run], None]) -> None:
        self._assets, self._computes, self._begin = assets, computes, begin

    def check(self, properties: dict[str, Any]) -> None:
        """Every step names a component and a compute that are there, and steps that are there."""
        steps: dict[str, Step] = properties.get("jobs") or {}
        if not steps:
            raise ServiceError(400, "UserError", "a pipeline needs at least one step")
        for name, step in steps.items():
            try:
                self._assets.find(step["componentId"], "components")
                self._computes.cluster(_compute(step, properties))
            except (KeyError, ServiceError) as error:
                raise ServiceError(400, "UserError", f"step {name}: {error}") from None
            unknown = _needs(step) - set(steps)
            if unknown:
                what = f"step {name} needs {', '.join(unknown)}, which the pipeline has not"
                raise ServiceError(400, "UserError", what)

    def execute(self, pipeline: Run) -> None:
        steps: dict[str, Step] = pipeline.properties["jobs"]
        settings = pipeline.properties.get("settings") or {}
        goes_on = settings.get("continue_on_step_failure", True) is not False
        begun: dict[str, Run] = {}
        pipeline.reach("Preparing")
        pipeline.reach("Running")
        while not all(run.has_ended for run in begun.values()) or len(begun) < len(steps):
            failed = [run for run in begun.values() if run.status in ("Failed", "Canceled")]
            waiting = [name for name in steps if name not in begun]
            if pipeline.cancel.is_set():
                for run in begun.values():
                    run.cancel.set()
                waiting = []
            ready = [name for name in waiting if _is_ready(steps[name], begun)]
            for name in ready if goes_on or not failed else []:
                begun[name] = self._step(pipeline, name, begun)
                self._begin(begun[name])
            if all(run.has_ended for run in begun.values()) and not (ready and not failed):
                break
            time.sleep(_POLL_S)
        self._conclude(pipeline, begun, steps)

    def _conclude(self, pipeline: Run, begun: dict[str, Run], steps: dict[str, Step]) -> None:
        for name, run in begun.items():
            for key, given in (steps[name].get("outputs") or {}).items():
                if (found := _OF_PARENT.search(_value(given))) and key in run.outputs:
                    pipeline.outputs[found[2]] = run.outputs[key]
        if pipeline.cancel.is_set():
            pipeline.reach("Canceled")
            return
        bad = [name for name, run in begun.items() if run.status != "Completed"]
        if bad or len(begun) < len(steps):
            what = f"Pipeline has some failed steps: {', '.join(bad)}. See child run for details."
            pipeline.fail("UserError", what)
        else:
            pipeline.reach("Completed")

    def _step(self, pipeline: Run, name: str, begun: dict[str, Run]) -> Run:
        properties, step = pipeline.properties, pipeline.properties["jobs"][name]
        run_name = str(uuid.uuid4())
        spec = self._assets.find(step["componentId"], "components")["properties"]["componentSpec"]
        inputs = {}
        for key, given in {**_defaults(spec), **(step.get("inputs") or {})}.items():
            inputs[key] = _bound(given, spec, key, properties, begun)
        outputs = {}
        for key, declared in (spec.get("outputs") or {}).items():
            given = (step.get("outputs") or {}).get(key) or {}
            outputs[key] = _output(given, declared, properties, run_name, key)
        order = _order(step, spec, _compute(step, properties), inputs, outputs)
        own = {
            "displayName": step.get("display_name") or step.get("name") or name,
            "experimentName": pipeline.experiment,
            "tags": step.get("tags") or {},
            "properties": step.get("properties") or {},
            "jobType": "Command",
        }
        return Run(run_name, "Command", own, order, pipeline.name, name)


def _order(
    step: Step, spec: Step, compute: str, inputs: dict[str, Any], outputs: dict[str, Any]
) -> Order:
    resources = {**(spec.get("resources") or {}), **(step.get("resources") or {})}
    distribution = step.get("distribution") or spec.get("distribution") or {}
    kind = distribution.get("distribution_type") or distribution.get("type") or ""
    return Order(
        spec["command"],
        step.get("environment") or spec["environment"],
        compute,
        spec.get("code"),
        resources.get("instance_type"),
        int(resources.get("instance_count") or 1),
        int(distribution.get("process_count_per_instance") or 1),
        kind.lower() == "pytorch",
        step.get("environment_variables") or step.get("environmentVariables") or {},
        inputs,
        outputs,
        seconds((step.get("limits") or {}).get("timeout")),
        docker_arguments(resources.get("docker_args")),
    )


def _compute(step: Step, properties: dict[str, Any]) -> str:
    settings = properties.get("settings") or {}
    found = step.get("computeId") or properties.get("computeId") or settings.get("default_compute")
    if not found:
        raise ServiceError(400, "UserError", "no compute is named")
    return str(found)


def _needs(step: Step) -> set[str]:
    """The steps whose outputs are its inputs."""
    return {found[1] for given in (step.get("inputs") or {}).values()
            if (found := _OF_STEP.search(_value(given)))}  # fmt: skip


def _is_ready(step: Step, begun: dict[str, Run]) -> bool:
    return all(name in begun and begun[name].status == "Completed" for name in _needs(step))


def _value(given: Any) -> str:
    return (
        str(given.get("value") or given.get("uri") or "") if isinstance(given, dict) else str(given)
    )


def _defaults(spec: Step) -> dict[str, Any]:
    return {
        key: {"job_input_type": "literal", "value": str(declared["default"])}
        for key, declared in (spec.get("inputs") or {}).items()
        if declared.get("default") is not None
    }


def _bound(
    given: Any, spec: Step, key: str, properties: dict[str, Any], begun: dict[str, Run]
) -> dict[str, Any]:
    """An input as a command job has it: literal, or the address that a binding stands for."""
    declared = (spec.get("inputs") or {}).get(key) or {}
    kind = declared.get("type", "string")
    if found := _OF_STEP.search(_value(given)):
        return {"jobInputType": kind, "uri": begun[found[1]].outputs[found[2]]}
    if found := _OF_PARENT.search(_value(given)):
        of_parent: dict[str, Any] = properties["inputs"][found[2]]
        return of_parent
    if kind in ("uri_file", "uri_folder", "mltable"):
        return {"jobInputType": kind, "uri": _value(given), "mode": _mode(given, declared)}
    return {"jobInputType": "literal", "value": _value(given)}


def _output(
    given: Any, declared: dict[str, Any], properties: dict[str, Any], run: str, key: str
) -> dict[str, Any]:
    where = _value(given)
    if found := _OF_PARENT.search(where):
        where = str((properties.get("outputs") or {}).get(found[2], {}).get("uri") or "")
    where = where or f"azureml://datastores/{DEFAULT}/paths/azureml/{run}/{key}/"
    kind = declared.get("type", "uri_folder")
    return {"jobOutputType": kind, "uri": where, "mode": _mode(given, declared)}


def _mode(given: Any, declared: dict[str, Any]) -> str | None:
    own = given.get("mode") if isinstance(given, dict) else None
    found = own or declared.get("mode")
    return None if found is None else str(found)
