"""`python -m edgeloop.operate.fleet.ray.supervise`: the supervisor of a fleet, inside its cluster.

An actor keeps this process alive. It ends with 0 when the fleet has ended or is somebody else's.
"""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from edgeloop._util.redact import redact
from edgeloop.errors import EdgeloopError, NotFound
from edgeloop.operate.fleet.ray.environment import (
    SHIPMENT_VARIABLE,
    SUPERVISOR,
    Shipment,
    own_variables,
)
from edgeloop.operate.fleet.ray.launcher import RayLauncher
from edgeloop.operate.fleet.records import Fleets
from edgeloop.operate.fleet.start import prepared
from edgeloop.operate.fleet.supervisor import drain_orphans, supervise
from edgeloop.settings import Settings
from edgeloop.store.location import open_store

if TYPE_CHECKING:
    from edgeloop.operate.fleet.launcher import Launcher
    from edgeloop.operate.fleet.records import FleetRecord


def main() -> None:
    prepared(sys.argv[1:])
    environ = own_variables()
    shipment = Shipment.from_json(environ[SHIPMENT_VARIABLE], environ)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def make_launcher(_: FleetRecord) -> Launcher:
        launcher = RayLauncher(shipment)
        _report(shipment)
        return launcher

    where = f"actor {SUPERVISOR} in Ray's namespace {shipment.namespace}"
    try:
        settings = Settings.load()
        try:
            check_fleet(settings, shipment.fleet)
            # Ray has one actor of this name. Should an older one live on behind a broken network,
            # it finds another's token in the record and ends.
            supervise(
                settings,
                shipment.fleet,
                make_launcher,
                where=where,
                stop=stop,
                is_alone=True,
                tell=_tell,
            )
        except NotFound:
            _end(settings, shipment, stop)
    except EdgeloopError as error:
        sys.exit(f"edgeloop: {redact(str(error))}")


def check_fleet(settings: Settings, fleet: str) -> None:
    """Raises NotFound, or StoreError where this node cannot open the store: whoever starts the
    fleet is then told, instead of waiting with it."""
    store = open_store(settings.location)
    try:
        Fleets(store).named(fleet)
    finally:
        store.close()


def _end(settings: Settings, shipment: Shipment, stop: threading.Event) -> None:
    """The fleet has ended, or somebody has removed its record while it had runners."""
    store, launcher = open_store(settings.location), RayLauncher(shipment)
    try:
        drain_orphans(Fleets(store), shipment.fleet, launcher, stop.wait)
    finally:
        launcher.close()
        store.close()


def _tell(sentence: str) -> None:
    sys.stderr.write(f"edgeloop: {redact(sentence)}\n")


def _report(shipment: Shipment) -> None:
    """Tell the actor, which tells whoever waits for the fleet to come up."""
    import ray

    with suppress(ValueError, ray.exceptions.RayError):
        ray.get_actor(SUPERVISOR, namespace=shipment.namespace).is_ready.remote()


if __name__ == "__main__":
    main()
