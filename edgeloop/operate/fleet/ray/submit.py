"""How the supervisor gets onto a cluster, from a machine that needs no Ray: by a short job.

Edgeloop itself is sent as a package that Ray distributes to the nodes. What opens the store is sent
as another one, which the job reads once and removes: it stands neither in the job's variables nor
in its command, which everybody sees on the dashboard.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

from edgeloop._util.redact import redact
from edgeloop.errors import BadInput, EdgeloopError
from edgeloop.jobs.bundle import edgeloop_requirements, package_snapshot, packed
from edgeloop.jobs.computes import make_compute
from edgeloop.jobs.computes.ray import RayCompute
from edgeloop.operate.fleet.launcher import StartedSupervisor
from edgeloop.operate.fleet.ray.node import ORDER_FILE, SUPERVISOR, Shipment
from edgeloop.operate.fleet.records import FleetRecord
from edgeloop.operate.fleet.start import settings_words
from edgeloop.settings import Settings, store_credentials
from edgeloop.store.location import AzureLocation, SqliteLocation, location_text


def start_supervisor(settings: Settings, compute: str, record: FleetRecord) -> StartedSupervisor:
    """Start the supervisor of a fleet as an actor that outlives this process. Raises
    ComputeUnavailable, BadSetting or BadInput."""
    check_store(settings)
    cluster = make_compute(compute, settings.compute_settings(compute))
    if not isinstance(cluster, RayCompute):
        raise BadInput(reason=f"the compute {compute} is of kind {cluster.kind}, not ray")
    package = cluster.send_package(packed(package_contents()), is_kept=True)
    shipment = Shipment(
        id=secrets.token_hex(4),
        fleet=record.name,
        namespace=_namespace(settings, record.name),
        package=package,
        requirements=_requirements(settings),
        words=settings_words(dict(record.settings)),
        variables=_variables(settings),
    )
    order = packed({ORDER_FILE: shipment.to_json().encode()})
    job = cluster.start_driver(
        f"edgeloop-fleet-{record.name}-{shipment.id}",
        "edgeloop.operate.fleet.ray.start",
        package,
        cluster.send_package(order),
    )
    where = f"actor {SUPERVISOR} of {cluster.address}, namespace {shipment.namespace}"
    return StartedSupervisor(where, _failure(cluster, job))


def check_store(settings: Settings) -> None:
    """Raises BadInput where no other machine could open the store."""
    if isinstance(settings.location, SqliteLocation):
        raise BadInput(
            reason=f"the store {settings.location} is a folder of this machine, which the nodes of "
            "a cluster cannot open: use PostgreSQL or an Azure storage account (--store, or "
            "EDGELOOP_STORE)"
        )


def package_contents() -> dict[str, bytes]:
    """Edgeloop's own files, with its metadata."""
    return {file.path: file.content for file in package_snapshot().files}


def _failure(cluster: RayCompute, job: str) -> Callable[[], str]:
    def failure() -> str:
        try:
            reason = cluster.driver_failure(job)
        except EdgeloopError as error:
            return redact(str(error))
        return redact(reason.removeprefix("edgeloop: "))

    return failure


def _requirements(settings: Settings) -> tuple[str, ...]:
    """What runners and supervisors need on a node."""
    azure = ("azure",) if isinstance(settings.location, AzureLocation) else ()
    return edgeloop_requirements("qnn", *azure)


def _variables(settings: Settings) -> dict[str, str]:
    return {**store_credentials(), "EDGELOOP_STORE": location_text(settings.location)}


def _namespace(settings: Settings, fleet: str) -> str:
    """One per fleet and store: several teams may share a cluster."""
    digest = hashlib.blake2b(str(settings.location).encode(), digest_size=4).hexdigest()
    return f"edgeloop-{fleet}-{digest}"
