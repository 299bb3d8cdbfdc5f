"""A batch of orders as one pipeline: a step each, and nothing but their orders differs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from edgeloop.azure import Connection, is_missing
from edgeloop.jobs.computes.azureml.options import AzureMLOptions
from edgeloop.jobs.computes.azureml.orders import (
    LIMIT_MARGIN_S,
    Handed,
    content_of,
    experiment_of,
    identity_of,
    resources_of,
    tags_of,
)
from edgeloop.jobs.computes.azureml.runs import MEMBERS, PIPELINE_TAG, digest
from edgeloop.jobs.computes.base import JobOrder

COMPONENT = "edgeloop_step"


def pipeline_name(orders: Sequence[JobOrder]) -> str:
    """The same orders are the same pipeline: a second one is never made."""
    all_ids = hashlib.sha256("\n".join(order.job for order in orders).encode()).hexdigest()[:12]
    return f"{orders[0].job}-and-{len(orders) - 1}-{all_ids}"


def alike(orders: Sequence[JobOrder], most: int) -> list[list[JobOrder]]:
    """Steps of one pipeline have one experiment and one kind of nodes; at most so many of them."""
    groups: dict[str, list[JobOrder]] = {}
    for order in orders:
        key = json.dumps(
            [
                order.experiment,
                order.resources.nodes,
                order.environment.kind,
                order.environment.file,
                order.recipe,
            ]
        )
        groups.setdefault(key, []).append(order)
    return [
        members[start : start + most]
        for members in groups.values()
        for start in range(0, len(members), most)
    ]


def ensure_component(
    connection: Connection, example: JobOrder, handed: Handed, environment: str,
    options: AzureMLOptions,
) -> str:  # fmt: skip
    """What the steps are made of, registered once per content."""
    from azure.ai.ml import Input
    from azure.ai.ml.entities import CommandComponent

    resources = resources_of(example, options)
    content = json.dumps([content_of(handed), environment, resources], sort_keys=True)
    version = hashlib.sha256(content.encode()).hexdigest()[:16]
    components = connection.ml.components
    try:
        components.get(COMPONENT, version=version)
    except Exception as error:
        if not is_missing(error):
            raise
        by_file = {"order": Input(type="uri_file", mode="download")}
        components.create_or_update(
            CommandComponent(
                name=COMPONENT,
                version=version,
                command=handed.command,
                environment=environment,
                inputs=by_file if handed.order_file else {},
                **_component_resources(resources),
            )
        )
    return f"azureml:{COMPONENT}:{version}"


def pipeline_job(
    orders: Sequence[JobOrder], handed: Sequence[Handed], component: str, options: AzureMLOptions
) -> Any:
    from azure.ai.ml.entities import PipelineJob, PipelineJobSettings

    steps = {
        f"step_{number:03d}": _step(order, each, component, options)
        for number, (order, each) in enumerate(zip(orders, handed, strict=True))
    }
    return PipelineJob(
        name=pipeline_name(orders),
        display_name=f"{orders[0].name} and {len(orders) - 1} more",
        experiment_name=experiment_of(orders[0], options),
        jobs=steps,
        compute=options.cluster.name or "serverless",
        settings=PipelineJobSettings(
            default_compute=options.cluster.name or "serverless",
            continue_on_step_failure=True,
            force_rerun=True,  # equal orders are no equal jobs
        ),
        tags={PIPELINE_TAG: "1"},
        properties={MEMBERS: " ".join(digest(order.job) for order in orders)},
    )


def _step(order: JobOrder, handed: Handed, component: str, options: AzureMLOptions) -> Any:
    from azure.ai.ml import Input
    from azure.ai.ml.entities import Command

    order_file: dict[str, Any] = {
        "order": Input(type="uri_file", path=handed.order_file, mode="download")
    }
    step = Command(
        component=component,
        compute=options.cluster.name or "serverless",
        display_name=order.job,
        inputs=order_file if handed.order_file else {},
        environment_variables=dict(handed.variables),
        tags=tags_of(order),
        properties=tags_of(order),
        identity=identity_of(options),
        queue_settings=_tier(options),
    )
    if order.timeout_s is not None:
        step.set_limits(timeout=int(order.timeout_s + LIMIT_MARGIN_S))
    return step


def _tier(options: AzureMLOptions) -> Any:
    """Spot nodes that belong to no cluster are asked for by the step."""
    from azure.ai.ml.entities import QueueSettings

    is_spot = options.is_serverless and options.cluster.spot
    return QueueSettings(job_tier="Spot") if is_spot else None


def _component_resources(resources: dict[str, Any]) -> dict[str, Any]:
    from azure.ai.ml.entities import JobResourceConfiguration

    known = {name: resources[name] for name in ("instance_count", "instance_type", "shm_size")
             if name in resources}  # fmt: skip
    found: dict[str, Any] = {"resources": JobResourceConfiguration(**known)}
    if "distribution" in resources:
        from azure.ai.ml import PyTorchDistribution

        found["distribution"] = PyTorchDistribution(process_count_per_instance=1)
    return found
