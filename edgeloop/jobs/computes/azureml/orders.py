"""From an order to what Azure ML starts: the bootstrap, and a way to the store without a key.

What a job's definition holds, everybody who may read the workspace sees in the studio. So the
order, in which the access to the store is, goes there in one of three ways:

identity   it names the account and no secret; the cluster's managed identity opens the store
file       it lies in the store itself, beside the job's ticket, and the job's definition names it
           through a datastore: only who may read the store can read it
variable   it is an environment variable with a signature that ends by itself; the studio shows it
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edgeloop.azure import Connection, is_missing
from edgeloop.errors import BadSetting
from edgeloop.jobs.computes.azureml.options import AzureMLOptions
from edgeloop.jobs.computes.base import JobOrder
from edgeloop.jobs.protocol.bundle import bootstrap_command
from edgeloop.jobs.protocol.ticket import ORDER_VARIABLE, folder_key, order_key, order_variables
from edgeloop.store import Access, open_access

JOB_TAG, NAME_TAG = "edgeloop_job", "edgeloop_name"
LIMIT_MARGIN_S = 3600.0  # preparing and copying; the wrapper itself ends a command in time
_AZURE = ("AzureStore", "AzureIdentity")
_IN_ACCOUNT = ("container_name", "account_name", "endpoint")


@dataclass(frozen=True)
class Handed:
    """How one order reaches its node."""

    command: str
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    order_file: str = ""  # azureml://…
    results: str = ""  # azureml://…: where the outputs will be, for the studio


class Hander:
    def __init__(self, compute: str, connection: Connection, options: AzureMLOptions) -> None:
        self._compute = compute
        self._connection = connection
        self._options = options
        self._datastores: dict[tuple[str, str], str] = {}

    def hand(self, order: JobOrder) -> Handed:
        """Puts the order into the store where it goes by file; else nothing is moved."""
        command = bootstrap_command(self._options.python)
        paths = self._paths(order.access)
        results = f"{paths}{folder_key(order.job)}/outputs" if paths else ""
        if self._options.identity and order.access.make in _AZURE:
            bare = replace(order, access=without_secret(order.access, self._options.client_id))
            return Handed(shlex.join(command), order_variables(bare), "", results)
        if paths and self._options.hand != "variable":
            content = order_variables(order)[ORDER_VARIABLE].encode()
            open_access(order.access).put(order_key(order.job), content)
            words = f"{shlex.join(command)} ${{{{inputs.order}}}}"
            return Handed(words, {}, f"{paths}{order_key(order.job)}", results)
        if self._options.hand == "file":
            raise BadSetting(where=f"computes.{self._compute}", reason=self._no_datastore(order))
        return Handed(shlex.join(command), order_variables(order), "", results)

    def _paths(self, access: Access) -> str:
        """The store as the workspace names it: `azureml://datastores/edgeloop/paths/`."""
        if access.make not in _AZURE:
            return ""
        place = (access.options["account_name"], access.options["container_name"])
        if place not in self._datastores:
            self._datastores[place] = self._datastore(*place)
        name = self._datastores[place]
        return f"azureml://datastores/{name}/paths/" if name else ""

    def _datastore(self, account: str, container: str) -> str:
        name = self._options.datastore
        try:
            found = self._connection.ml.datastores.get(name)
        except Exception as error:
            if not is_missing(error):
                raise
            found = None
        there = (getattr(found, "account_name", ""), getattr(found, "container_name", ""))
        if there == (account, container):
            return name
        return ""

    def _no_datastore(self, order: JobOrder) -> str:
        where = order.access.options.get("account_name", "another kind of store")
        return (
            f"access: file needs a datastore {self._options.datastore!r} that leads to the store's "
            f"container ({where}): 'edgeloop azure setup' creates it"
        )


def without_secret(access: Access, client_id: str = "") -> Access:
    """The same account, opened by the identity of whoever opens it."""
    options = {name: access.options[name] for name in _IN_ACCOUNT}
    return Access("AzureIdentity", {**options, **({"client_id": client_id} if client_id else {})})


def command_job(order: JobOrder, handed: Handed, environment: str, options: AzureMLOptions) -> Any:
    """The SDK's own entity. Its name is the job's id, so a second one is never made."""
    from azure.ai.ml import Input, Output, command

    inputs = {"order": Input(type="uri_file", path=handed.order_file, mode="download")}
    outputs = {"results": Output(type="uri_folder", path=handed.results, mode="direct")}
    job = command(
        name=order.job,
        display_name=order.name,
        experiment_name=experiment_of(order, options),
        command=handed.command,
        environment=environment,
        environment_variables=dict(handed.variables),
        compute=options.cluster.name or None,
        inputs=inputs if handed.order_file else None,
        outputs=outputs if handed.results else None,
        tags=tags_of(order),
        properties=tags_of(order),
        identity=identity_of(options),
        **resources_of(order, options),
    )
    if order.timeout_s is not None:
        job.set_limits(timeout=int(order.timeout_s + LIMIT_MARGIN_S))
    return job


def resources_of(order: JobOrder, options: AzureMLOptions) -> dict[str, Any]:
    """One wrapper a node; torchrun or the like starts the processes of a node."""
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
    """Whom the node's process acts for; None leaves it to the service."""
    if not options.identity:
        return None
    from azure.ai.ml.entities import ManagedIdentityConfiguration

    return ManagedIdentityConfiguration(client_id=options.client_id or None)


def content_of(handed: Handed) -> str:
    """What makes steps alike: the command, and whether the order comes as a file."""
    return json.dumps([handed.command, bool(handed.order_file)])
