"""From orders to Azure ML jobs: a command job each, or one pipeline with a step for each.

Everybody who may read the workspace sees a job's definition in the studio. So the order, which has
the access to the store, is delivered in one of three ways:

identity   it names the account and no secret; the cluster's managed identity opens the store
file       it is in the store beside the job's ticket, and the job's definition names it through a
           datastore: only who may read the store can read it
variable   it is an environment variable with a signature that expires; the studio shows it
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edgeloop.azure import Connection, is_missing
from edgeloop.errors import BadSetting
from edgeloop.jobs.computes.azureml.options import AzureMLOptions
from edgeloop.jobs.computes.azureml.runs import JOB_TAG, MEMBERS, NAME_TAG, PIPELINE_TAG, digest
from edgeloop.jobs.computes.base import JobOrder
from edgeloop.jobs.protocol.bundle import bootstrap_command
from edgeloop.jobs.protocol.ticket import ORDER_VARIABLE, folder_key, order_key, order_variables
from edgeloop.store import Access, open_access

LIMIT_MARGIN_S = 3600.0  # preparing and copying; the wrapper itself ends a command in time
_AZURE = ("AzureStore", "AzureIdentity")
_IN_ACCOUNT = ("container_name", "account_name", "endpoint")


@dataclass(frozen=True)
class OrderDelivery:
    """How one order reaches its node."""

    command: str
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    order_file: str = ""  # azureml://…
    results: str = ""  # azureml://…: where the outputs will be, for the studio


class OrderDispatcher:
    def __init__(self, compute: str, connection: Connection, options: AzureMLOptions) -> None:
        self._compute = compute
        self._connection = connection
        self._options = options
        self._datastores: dict[tuple[str, str], str] = {}

    def deliver(self, order: JobOrder) -> OrderDelivery:
        """Stores the order if it is delivered as a file; otherwise nothing is sent."""
        command = bootstrap_command(self._options.python, order.access)
        paths = self._paths(order.access)
        results = f"{paths}{folder_key(order.job)}/outputs" if paths else ""
        if self._options.identity and order.access.make in _AZURE:
            bare = replace(order, access=without_secret(order.access, self._options.client_id))
            return OrderDelivery(shlex.join(command), order_variables(bare), "", results)
        if paths and self._options.delivery != "variable":
            content = order_variables(order)[ORDER_VARIABLE].encode()
            open_access(order.access).put(order_key(order.job), content)
            words = f"{shlex.join(command)} ${{{{inputs.order}}}}"
            return OrderDelivery(words, {}, f"{paths}{order_key(order.job)}", results)
        if self._options.delivery == "file":
            where = order.access.options.get("account_name", "another kind of store")
            reason = (
                f"access: file needs a datastore {self._options.datastore!r} that leads to the "
                f"store's container ({where}): 'edgeloop azure setup' creates it"
            )
            raise BadSetting(where=f"computes.{self._compute}", reason=reason)
        return OrderDelivery(shlex.join(command), order_variables(order), "", results)

    def _paths(self, access: Access) -> str:
        """The store as the workspace names it: `azureml://datastores/edgeloop/paths/`."""
        if access.make not in _AZURE:
            return ""
        container = (access.options["account_name"], access.options["container_name"])
        if container not in self._datastores:
            self._datastores[container] = self._datastore(*container)
        name = self._datastores[container]
        return f"azureml://datastores/{name}/paths/" if name else ""

    def _datastore(self, account: str, container: str) -> str:
        name = self._options.datastore
        try:
            found = self._connection.ml.datastores.get(name)
        except Exception as error:
            if not is_missing(error):
                raise
            found = None
        target = (getattr(found, "account_name", ""), getattr(found, "container_name", ""))
        return name if target == (account, container) else ""


def without_secret(access: Access, client_id: str = "") -> Access:
    """The same account, opened by the node's own identity."""
    options = {name: access.options[name] for name in _IN_ACCOUNT}
    return Access("AzureIdentity", {**options, **({"client_id": client_id} if client_id else {})})


def command_job(
    order: JobOrder, delivery: OrderDelivery, environment: str, options: AzureMLOptions
) -> Any:
    """The SDK's entity. Its name is the job's id, so it is never created twice."""
    from azure.ai.ml import Input, Output, command

    inputs = {"order": Input(type="uri_file", path=delivery.order_file, mode="download")}
    outputs = {"results": Output(type="uri_folder", path=delivery.results, mode="direct")}
    job = command(
        name=order.job,
        display_name=order.name,
        experiment_name=experiment_of(order, options),
        command=delivery.command,
        environment=environment,
        environment_variables=dict(delivery.variables),
        compute=options.cluster.name or None,
        inputs=inputs if delivery.order_file else None,
        outputs=outputs if delivery.results else None,
        tags=tags_of(order),
        properties=tags_of(order),
        identity=identity_of(options),
        **resources_of(order, options),
    )
    if order.timeout_s is not None:
        job.set_limits(timeout=int(order.timeout_s + LIMIT_MARGIN_S))
    return job


def resources_of(order: JobOrder, options: AzureMLOptions) -> dict[str, Any]:
    """One wrapper per node; torchrun or similar starts the processes of a node."""
    nodes = order.resources.nodes
    found: dict[str, Any] = {"instance_count": nodes}
    if nodes > 1:
        found["distribution"] = {"type": "pytorch", "process_count_per_instance": 1}
    if options.is_serverless:
        found["instance_type"] = options.cluster.size
        if options.cluster.spot:
            found["job_tier"] = "Spot"
    if options.shm:
        found["shm_size"] = options.shm
    return found


def experiment_of(order: JobOrder, options: AzureMLOptions) -> str:
    return options.experiment or order.experiment or "edgeloop"


def tags_of(order: JobOrder) -> dict[str, str]:
    return {JOB_TAG: order.job, NAME_TAG: order.name}


def identity_of(options: AzureMLOptions) -> Any:
    """The identity of the node's process; None leaves it to the service."""
    if not options.identity:
        return None
    from azure.ai.ml.entities import ManagedIdentityConfiguration

    return ManagedIdentityConfiguration(client_id=options.client_id or None)


def content_of(delivery: OrderDelivery) -> str:
    """What steps have in common: the command, and whether the order comes as a file."""
    return json.dumps([delivery.command, bool(delivery.order_file)])


COMPONENT = "edgeloop_step"


def pipeline_name(orders: Sequence[JobOrder]) -> str:
    """The same orders are the same pipeline, so it is never created twice."""
    all_ids = hashlib.sha256("\n".join(order.job for order in orders).encode()).hexdigest()[:12]
    return f"{orders[0].job}-and-{len(orders) - 1}-{all_ids}"


def batches(orders: Sequence[JobOrder], most: int) -> list[list[JobOrder]]:
    """Groups of orders for one pipeline each: same experiment, nodes and environment."""
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
    connection: Connection, example: JobOrder, delivery: OrderDelivery, environment: str,
    options: AzureMLOptions,
) -> str:  # fmt: skip
    """The component of the steps, registered once per content."""
    from azure.ai.ml import Input
    from azure.ai.ml.entities import CommandComponent

    resources = resources_of(example, options)
    content = json.dumps([content_of(delivery), environment, resources], sort_keys=True)
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
                command=delivery.command,
                environment=environment,
                inputs=by_file if delivery.order_file else {},
                **_component_resources(resources),
            )
        )
    return f"azureml:{COMPONENT}:{version}"


def pipeline_job(
    orders: Sequence[JobOrder],
    delivery: Sequence[OrderDelivery],
    component: str,
    options: AzureMLOptions,
) -> Any:
    from azure.ai.ml.entities import PipelineJob, PipelineJobSettings

    steps = {
        f"step_{number:03d}": _step(order, each, component, options)
        for number, (order, each) in enumerate(zip(orders, delivery, strict=True))
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
            force_rerun=True,  # equal orders are different jobs
        ),
        tags={PIPELINE_TAG: "1"},
        properties={MEMBERS: " ".join(digest(order.job) for order in orders)},
    )


def _step(order: JobOrder, delivery: OrderDelivery, component: str, options: AzureMLOptions) -> Any:
    from azure.ai.ml import Input
    from azure.ai.ml.entities import Command, QueueSettings

    is_spot = options.is_serverless and options.cluster.spot  # else the cluster's own tier

    order_file: dict[str, Any] = {
        "order": Input(type="uri_file", path=delivery.order_file, mode="download")
    }
    step = Command(
        component=component,
        compute=options.cluster.name or "serverless",
        display_name=order.job,
        inputs=order_file if delivery.order_file else {},
        environment_variables=dict(delivery.variables),
        tags=tags_of(order),
        properties=tags_of(order),
        identity=identity_of(options),
        queue_settings=QueueSettings(job_tier="Spot") if is_spot else None,
    )
    if order.timeout_s is not None:
        step.set_limits(timeout=int(order.timeout_s + LIMIT_MARGIN_S))
    return step


def _component_resources(resources: dict[str, Any]) -> dict[str, Any]:
    from azure.ai.ml.entities import JobResourceConfiguration

    known = {name: resources[name] for name in ("instance_count", "instance_type", "shm_size")
             if name in resources}  # fmt: skip
    found: dict[str, Any] = {"resources": JobResourceConfiguration(**known)}
    if "distribution" in resources:
        from azure.ai.ml import PyTorchDistribution

        found["distribution"] = PyTorchDistribution(process_count_per_instance=1)
    return found
