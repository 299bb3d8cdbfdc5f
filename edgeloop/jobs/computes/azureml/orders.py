"""From orders to Azure ML jobs: a command job each, or one pipeline with a step for each.

Everybody who may read the workspace sees a job's definition in the studio. So the order, which has
the access to the store, is delivered in one of three ways:

identity   it names the account and no secret; the cluster's managed identity opens the store
file       it is in the store beside the job's ticket, and the job's definition names it through a
           datastore: only who may read the store can read it
variable   an environment variable, which the studio shows, has a link to that file: a signature
           that reads this one file, which is deleted when the job ends
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from edgeloop.errors import BadJob, BadSetting
from edgeloop.jobs.bundle import bootstrap_command
from edgeloop.jobs.computes.azureml.connection import Connection, is_missing
from edgeloop.jobs.computes.azureml.options import AzureMLOptions
from edgeloop.jobs.computes.azureml.runs import JOB_TAG, MEMBERS, NAME_TAG, PIPELINE_TAG, digest
from edgeloop.jobs.computes.base import JobOrder, ServedPlace, order_variables
from edgeloop.jobs.spec import parse_url
from edgeloop.node.ticket import (
    NODE_CACHE,
    ORDER_VARIABLE,
    PLACE_PREFIX,
    expires_at,
    folder_key,
    order_key,
)
from edgeloop.store import Access
from edgeloop.store.files import open_access

LIMIT_MARGIN_S = 3600.0  # preparing and copying; the wrapper itself ends a command in time
_AZURE = ("AzureStore", "AzureIdentity")
_RIGHTS = {"r": "read", "w": "write", "d": "delete", "l": "list"}
_IN_ACCOUNT = ("container_name", "account_name", "endpoint")


@dataclass(frozen=True)
class OrderDelivery:
    """How one order reaches its node."""

    command: str
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    order_file: str = ""  # azureml://…
    results: str = ""  # azureml://…: where the outputs will be, for the studio
    places: tuple[ServedPlace, ...] = ()  # with URLs as the service knows them


class OrderDispatcher:
    def __init__(self, compute: str, connection: Connection, options: AzureMLOptions) -> None:
        self._compute = compute
        self._connection = connection
        self._options = options
        self._datastores: dict[tuple[str, str], str] = {}
        self._service_urls: dict[str, str] = {}

    def deliver(self, order: JobOrder) -> OrderDelivery:
        """Stores the order if it is delivered as a file; otherwise nothing is sent."""
        delivery = self._delivered(order)
        for url in {place.url for place in order.places} - self._service_urls.keys():
            self._service_urls[url] = self._service_url(url)
        places = tuple(replace(each, url=self._service_urls[each.url]) for each in order.places)
        variables = dict(delivery.variables)
        if not self._options.is_serverless and self._options.node_cache:
            variables[NODE_CACHE] = self._options.node_cache
        command = " ".join([*map(_assignment, places), delivery.command])
        return replace(delivery, command=command, variables=variables, places=places)

    def _delivered(self, order: JobOrder) -> OrderDelivery:
        command = bootstrap_command(self._options.python, order.access)
        paths = self._paths(order.access)
        results = f"{paths}{folder_key(order.job)}/outputs" if paths else ""
        if self._by_identity(order.access):
            bare = replace(order, access=without_secret(order.access, self._options.client_id))
            return OrderDelivery(shlex.join(command), order_variables(bare), "", results)
        if paths and not self._by_variable(order.access):
            _store(order)
            words = f"{shlex.join(command)} ${{{{inputs.order}}}}"
            return OrderDelivery(words, {}, f"{paths}{order_key(order.job)}", results)
        if self._options.delivery == "file":
            where = order.access.options.get("account_name", "another kind of store")
            reason = (
                f"access: file needs a datastore {self._options.datastore!r} that leads to the "
                f"store's container ({where}): 'edgeloop azure setup' creates it"
            )
            raise BadSetting(where=f"computes.{self._compute}", reason=reason)
        if not order.link:  # a kind of store that has no links, or nothing secret in its access
            return OrderDelivery(shlex.join(command), order_variables(order), "", results)
        _store(order)
        return OrderDelivery(shlex.join(command), {ORDER_VARIABLE: order.link}, "", results)

    def exposes(self, access: Access, has_link: bool) -> str:
        """What the definition of a job gives to all who can read it; empty for nothing."""
        signature = access.options.get("sas_key", "")
        if not signature or self._by_identity(access) or not self._by_variable(access):
            return ""
        rights = _permissions(signature)
        *verbs, last = [verb for right, verb in _RIGHTS.items() if right in rights] or ["open"]
        may = f"{', '.join(verbs)} and {last}" if verbs else last
        what, until = "signature", ["until it expires"]
        ends = expires_at(access)
        if ends is not None:
            until = [f"until {datetime.fromtimestamp(ends, UTC):%Y-%m-%d}"]
        if has_link:
            what, until = "link", ["until it ends", f"at most {until[0]}"]
        return (
            f"warning: everyone who can read the jobs of workspace "
            f"{self._connection.address.workspace} can {may} files in container "
            f"{access.options['container_name']} of account {access.options['account_name']} with "
            f"the {what} in this job's definition, {' and '.join(until)}: {self._remedy(access)}"
        )

    def _remedy(self, access: Access) -> str:
        if self._paths(access):
            return f"remove 'access: variable' from the compute {self._compute} to avoid that"
        return "'edgeloop azure setup' creates the datastore that avoids that"

    def _by_identity(self, access: Access) -> bool:
        return bool(self._options.identity) and access.make in _AZURE

    def _by_variable(self, access: Access) -> bool:
        asked = self._options.delivery
        return asked == "variable" or (asked == "auto" and not self._paths(access))

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
        found = self._find_datastore(name)
        target = (getattr(found, "account_name", ""), getattr(found, "container_name", ""))
        return name if target == (account, container) else ""

    def _find_datastore(self, name: str) -> Any | None:
        try:
            return self._connection.ml.datastores.get(name)
        except Exception as error:
            if not is_missing(error):
                raise
            return None

    def _service_url(self, url: str) -> str:
        """A container that the workspace has as a datastore is named through it, because then the
        service has the right to open it."""
        parts = parse_url(url)
        if parts.kind == "azureml":
            if not parts.workspace and self._find_datastore(parts.container) is None:
                address = self._connection.address
                reason = (
                    f"the workspace {address.workspace} has no datastore {parts.container!r}: "
                    "create it in the studio; 'edgeloop azure setup' creates that of datastore.json"
                )
                raise BadJob(where=url, reason=reason)
            return url
        for each in self._connection.ml.datastores.list():
            target = (getattr(each, "account_name", ""), getattr(each, "container_name", ""))
            if target == (parts.account, parts.container):
                return f"azureml://datastores/{each.name}/paths/{parts.path}"
        return url


def _store(order: JobOrder) -> None:
    content = order_variables(order)[ORDER_VARIABLE].encode()
    open_access(order.access).put_private(order_key(order.job), content)


def _permissions(signature: str) -> str:
    """An empty one is bound to a policy of the account, which may allow anything."""
    return parse_qs(signature).get("sp", ["rwdl"])[0]


def _assignment(place: ServedPlace) -> str:
    """For the shell that starts the command: the service fills in the path on the node."""
    kind = "outputs" if place.is_output else "inputs"
    return f'{place.variable}="${{{{{kind}.{_slot(place)}}}}}"'


def _slot(place: ServedPlace) -> str:
    return place.variable[len(PLACE_PREFIX) :].lower()


def _service_inputs(delivery: OrderDelivery) -> dict[str, Any]:
    """As the SDK has them: the order, if it is a file, and data at URLs."""
    from azure.ai.ml import Input

    found: dict[str, Any] = {}
    if delivery.order_file:
        found["order"] = Input(type="uri_file", path=delivery.order_file, mode="download")
    for place in delivery.places:
        if not place.is_output:
            mode = "download" if place.mode == "download" else "ro_mount"
            found[_slot(place)] = Input(type=_type(place), path=place.url, mode=mode)
    return found


def _service_outputs(delivery: OrderDelivery) -> dict[str, Any]:
    from azure.ai.ml import Output

    return {
        _slot(place): Output(
            type="uri_folder",
            path=place.url,
            mode="upload" if place.mode == "upload" else "rw_mount",
        )
        for place in delivery.places
        if place.is_output
    }


def _type(place: ServedPlace) -> str:
    return "uri_file" if place.is_file else "uri_folder"


def without_secret(access: Access, client_id: str = "") -> Access:
    """The same account, opened by the node's own identity."""
    options = {name: access.options[name] for name in _IN_ACCOUNT}
    return Access("AzureIdentity", {**options, **({"client_id": client_id} if client_id else {})})


def command_job(
    order: JobOrder, delivery: OrderDelivery, environment: str, options: AzureMLOptions
) -> Any:
    """The SDK's entity. Its name is the job's id, so it is never created twice."""
    from azure.ai.ml import Output, command

    outputs = _service_outputs(delivery)
    if delivery.results:
        outputs["results"] = Output(type="uri_folder", path=delivery.results, mode="direct")
    job = command(
        name=order.job,
        display_name=order.name,
        experiment_name=experiment_of(order, options),
        command=delivery.command,
        environment=environment,
        environment_variables=variables_of(order, delivery, options),
        compute=options.cluster.name or None,
        inputs=_service_inputs(delivery) or None,
        outputs=outputs or None,
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
    if options.node_cache and not options.is_serverless:
        # A container ends with its job; this folder of the node's disk does not.
        # A list, since the service takes a string for one argument, whatever spaces it has.
        found["docker_args"] = [f"--volume={options.node_cache}:{options.node_cache}"]
    return found


def variables_of(
    order: JobOrder, delivery: OrderDelivery, options: AzureMLOptions
) -> dict[str, str]:
    """Those of the compute's environment, unless the job has another, and the order's."""
    is_own = order.environment.kind in ("conda", "image")
    return {**({} if is_own else dict(options.variables)), **delivery.variables}


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
    """What steps have in common: the command, and which inputs and outputs it has."""
    places = [[_slot(place), place.mode, _type(place)] for place in delivery.places]
    return json.dumps([delivery.command, bool(delivery.order_file), places])


COMPONENT = "edgeloop_step"
_RESOURCE_KEYS = ("instance_count", "instance_type", "shm_size", "docker_args")


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
                [[place.variable, place.mode, place.is_file] for place in order.places],
                order.requires,
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
    from azure.ai.ml import Input, Output
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
        inputs = _service_inputs(delivery)
        outputs = _service_outputs(delivery)
        components.create_or_update(
            CommandComponent(
                name=COMPONENT,
                version=version,
                command=delivery.command,
                environment=environment,
                inputs={n: Input(type=i.type, mode=i.mode) for n, i in inputs.items()},
                outputs={n: Output(type=o.type, mode=o.mode) for n, o in outputs.items()},
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
    from azure.ai.ml.entities import Command, QueueSettings

    is_spot = options.is_serverless and options.cluster.spot  # else the cluster's own tier

    step = Command(
        component=component,
        compute=options.cluster.name or "serverless",
        display_name=order.job,
        inputs=_service_inputs(delivery),
        outputs=_service_outputs(delivery),
        environment_variables=variables_of(order, delivery, options),
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

    known = {name: resources[name] for name in _RESOURCE_KEYS
             if name in resources}  # fmt: skip
    found: dict[str, Any] = {"resources": JobResourceConfiguration(**known)}
    if "distribution" in resources:
        from azure.ai.ml import PyTorchDistribution

        found["distribution"] = PyTorchDistribution(process_count_per_instance=1)
    return found
