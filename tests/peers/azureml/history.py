"""The run history and its neighbours: details, steps, batches, addresses of outputs, artefacts."""

from __future__ import annotations

from typing import Any

from tests.peers.azureml.execution import Run
from tests.peers.azureml.jobs import Jobs
from tests.peers.azureml.server import (
    GROUP,
    SUBSCRIPTION,
    WORKSPACE,
    Request,
    Response,
    Route,
    Scope,
    now,
    workspace_route,
)
from tests.peers.azureml.storage import ARTIFACTS, Storage

_HISTORY, _ARTIFACT = "/history/v1.0", "/artifact/v2.0"
_DATA, _MODELS = "/data/v1.0", "/modelregistry/v1.0"


class History:
    def __init__(self, scope: Scope, jobs: Jobs, storage: Storage) -> None:
        self._scope, self._jobs, self._storage = scope, jobs, storage

    def routes(self) -> list[Route]:
        def history(method: str, tail: str, handler: Any) -> Route:
            return workspace_route(method, tail, handler, _HISTORY)

        return [
            history("GET", "/runs/{name}", self._run),
            history("GET", "/runs/{name}/details", self._details),
            history("GET", "/runs/{name}/children", self._children),
            history("POST", "/rundata", self._rundata),
            history("POST", "/batchrundata", self._batch_rundata),
            workspace_route("POST", "/dataversion/batchGetResolvedUris", self._resolve, _DATA),
            workspace_route("POST", "/models/batchGetResolvedUris", self._no_models, _MODELS),
            workspace_route("GET", "/artifacts/ExperimentRun/{dcid}", self._artifacts, _ARTIFACT),
        ]

    def _find(self, request: Request) -> Run:
        return self._jobs.find(request.parameters["name"])

    def _details(self, request: Request) -> Response:
        run = self._find(request)
        names = self._storage.names(ARTIFACTS, f"{run.prefix}/user_logs/")
        logs = {n.removeprefix(f"{run.prefix}/"): self._storage.signed(ARTIFACTS, n) for n in names}
        body = {**self.shown(run), "createdTimeUtc": run.times["NotStarted"], "logFiles": logs}
        return Response(200, body)

    def _children(self, request: Request) -> Response:
        rows = [self.shown(run) for run in self._jobs.children(request.parameters["name"])]
        return self._scope.page(request, rows)

    def _rundata(self, request: Request) -> Response:
        run = self._jobs.find(str(request.json.get("runId")))
        return Response(200, {"runMetadata": self.shown(run)})

    def _batch_rundata(self, request: Request) -> Response:
        """As the SDK's own client of this service spells it: a question under each key."""
        found, missing = {}, {}
        for key, asked in (request.json.get("requests") or {}).items():
            run = self._jobs.runs.get(str(asked.get("runId")))
            if run is None:
                missing[key] = {"error": {"code": "UserError", "message": f"no run {key}"}}
            else:
                found[key] = {"runMetadata": self.shown(run)}
        return Response(200, {"successfulResults": found, "failedResults": missing})

    def _run(self, request: Request) -> Response:
        return Response(200, self.shown(self._find(request)))

    def _resolve(self, request: Request) -> Response:
        values = {}
        for asset in request.json.get("values") or []:
            name, _, output = str(asset).removeprefix("azureml://outputs/").partition("/")
            short = self._jobs.find(name).outputs[output].removeprefix("azureml://")
            workspace = (
                f"subscriptions/{SUBSCRIPTION}/resourcegroups/{GROUP}/workspaces/{WORKSPACE}"
            )
            values[asset] = {"uri": f"azureml://{workspace}/{short}", "type": "uri_folder"}
        return Response(200, {"values": values})

    def _no_models(self, _request: Request) -> Response:
        return Response(200, {"values": {}})

    def _artifacts(self, request: Request) -> Response:
        prefix = f"ExperimentRun/{request.parameters['dcid']}/"
        names = self._storage.names(ARTIFACTS, prefix)
        rows = [
            {
                "artifactId": name,
                "origin": "ExperimentRun",
                "container": request.parameters["dcid"],
                "path": name.removeprefix(prefix),
            }
            for name in names
        ]
        return self._scope.page(request, rows)

    def shown(self, run: Run) -> dict[str, Any]:
        start = run.times.get("Running")
        end = next(
            (run.times[s] for s in ("Completed", "Failed", "Canceled") if s in run.times), None
        )
        kind = "azureml.PipelineRun" if run.kind == "Pipeline" else "azureml.scriptrun"
        order = run.order
        return {
            "runId": run.name,
            "runUuid": run.identity,
            "parentRunId": run.parent,
            "rootRunId": run.parent or run.name,
            "experimentId": run.experiment,
            "status": run.status,
            "createdUtc": run.times["NotStarted"],
            "startTimeUtc": start,
            "endTimeUtc": end,
            "lastModifiedUtc": now(),
            "displayName": run.properties.get("displayName") or run.name,
            "name": run.step,
            "description": run.properties.get("description"),
            "dataContainerId": f"dcid.{run.name}",
            "hidden": bool(run.properties.get("isArchived")),
            "runType": kind,
            "runTypeV2": {"orchestrator": None, "traits": [], "attribution": None,
                          "computeType": "AmlCompute"},
            "properties": {
                "azureml.runsource": "azureml.StepRun" if run.parent else "azureml.Job",
                **({"azureml.moduleName": run.step} if run.step else {}),
                **(run.properties.get("properties") or {}),
            },
            "tags": run.properties.get("tags") or {},
            "target": order.compute.rpartition("/")[2] if order else None,
            "error": run.error,
            "warnings": [{"source": "queue", "message": run.waits_for}] if run.waits_for else [],
            "queueingInfo": {"code": "Waiting", "message": run.waits_for,
                             "lastRefreshTimestamp": now()} if run.waits_for else None,
            "outputs": {
                name: {"assetId": f"azureml://outputs/{run.name}/{name}", "type": "uri_folder"}
                for name in run.outputs
            },
            "inputs": {},
        }  # fmt: skip
