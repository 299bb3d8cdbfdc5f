"""Pipelines: every step is a run of its own, begun when what it needs is there."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from tests.peers.azureml.assets import Assets
from tests.peers.azureml.computes import Computes
from tests.peers.azureml.datastores import DEFAULT
from tests.peers.azureml.routing import ServiceError
from tests.peers.azureml.runs import Order, Run, seconds

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
        str(resources.get("docker_args") or ""),
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
