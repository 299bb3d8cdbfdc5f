"""The user's side of a fleet: bring one up, and wait until a supervisor follows its record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from socket import gethostname

from edgeloop.errors import (
    BadInput,
    ComputeUnavailable,
    Conflict,
    NoSuchDataset,
    NotFound,
    WaitTimeout,
)
from edgeloop.node.datasets import Datasets
from edgeloop.operate.fleet.launcher import StartedSupervisor
from edgeloop.operate.fleet.records import DEAD_S, ExperimentShare, FleetRecord, Fleets, FleetSpec
from edgeloop.operate.fleet.start import is_folder
from edgeloop.platforms import board_kinds, platform_of
from edgeloop.settings import Settings
from edgeloop.store import Store

LOCAL, RAY = "local", "ray"
UP_S = 120.0
_POLL_S = 0.2
# What a runner of another machine is told of the project's settings; the rest is for this machine.
_CARRIED = (
    "lease_seconds",
    "clock_margin_seconds",
    "max_attempts",
    "benchmark_runs",
    "task",
    "calibration_images",
    "quick_images",
    "thorough_images",
    "curve_images",
    "toolchain",
    "board_patience_seconds",
    "stuck_seconds",
)


def place_of(settings: Settings, spec: FleetSpec) -> tuple[str, str]:
    """The kind of a fleet's compute, and its host if that is this machine."""
    kind = str(settings.compute_settings(spec.compute).get("kind", spec.compute))
    if kind not in (LOCAL, RAY):
        reason = (
            f"the compute {spec.compute!r} is of kind {kind}, which is not a place for fleets: "
            "choose one of kind local or ray, or use Kubernetes with 'edgeloop fleet manifest'"
        )
        raise BadInput(reason=reason)
    return kind, gethostname() if kind == LOCAL else ""


def completed_spec(spec: FleetSpec, settings: Settings, store: Store) -> FleetSpec:
    """With what the settings of the project say, checked, and the same on every machine: a dataset
    of the store gets its version, a folder its whole path."""
    compute = spec.compute or settings.compute
    experiments = spec.experiments or {settings.experiment: ExperimentShare()}
    quotas = [share.quota for share in experiments.values()]
    if all(quotas) and sum(quota or 0 for quota in quotas) < spec.runners.least:
        reason = f"the quotas allow fewer runners than the least of {spec.runners}: lower it"
        raise BadInput(reason=reason)
    for device in spec.devices:
        if device not in board_kinds():
            platform_of(device)
    named = spec.model_copy(update={"compute": compute, "experiments": experiments})
    kind, _ = place_of(settings, named)
    dataset = _dataset(spec.dataset or settings.dataset, settings, store, kind)
    return named.model_copy(update={"dataset": dataset})


def bring_up(
    settings: Settings, store: Store, spec: FleetSpec
) -> tuple[FleetRecord, FleetRecord | None]:
    """Want the fleet, start its supervisor if it has none, and wait until that reports. Also the
    record as it was before, if the fleet was there."""
    fleets = Fleets(store)
    kind, host = place_of(settings, spec)
    record, before = fleets.declare(spec, kind, host, carried_settings(settings))
    try:
        started = ensure_supervisor(settings, record)
        return wait_until_obeyed(fleets, record, started), before
    except (BadInput, ComputeUnavailable, Conflict, NotFound):
        if before is None and (left := fleets.get(record.name)) and not left.is_supervised:
            fleets.remove(left)
        raise


def ensure_supervisor(settings: Settings, record: FleetRecord) -> StartedSupervisor | None:
    """Start one if there is none; None: there is."""
    if record.kind == LOCAL:
        from edgeloop.operate.fleet import local

        if record.host != gethostname():
            if record.is_supervised:
                return None
            reason = (
                f"the fleet {record.name!r} is on {record.host}, where its supervisor is silent: "
                "run this command there; if that machine is gone, 'edgeloop fleet down --forget' "
                "removes the fleet's record"
            )
            raise Conflict(reason=reason)
        if local.is_supervised(settings, record.name):
            return None
        return local.start_supervisor(settings, record)
    if record.is_supervised:
        return None
    from edgeloop.operate.fleet.ray.submit import start_supervisor

    return start_supervisor(settings, record.spec.compute, record)


def wait_until_obeyed(
    fleets: Fleets,
    record: FleetRecord,
    started: StartedSupervisor | None,
    limit_s: float = UP_S,
    sleep: Callable[[float], None] = time.sleep,
) -> FleetRecord:
    """Until the supervisor has reported on this generation of the record, or a later one."""
    deadline = time.monotonic() + limit_s
    while True:
        now = fleets.named(record.name)
        if now.seen >= record.generation and now.is_supervised:
            return now
        if started is not None and (reason := started.failure()):
            raise ComputeUnavailable(compute=record.spec.compute, reason=reason)
        if started is None and not now.is_supervised and now.age_s > 2 * DEAD_S:
            reason = f"the supervisor of the fleet {record.name!r} has been silent for too long"
            raise ComputeUnavailable(compute=record.spec.compute, reason=reason)
        if time.monotonic() > deadline:
            where = f" ({started.where})" if started else ""
            what = f"the start of the fleet {record.name!r}{where}"
            raise WaitTimeout(what=what, seconds=limit_s, verb="fleet status")
        sleep(_POLL_S)


def carried_settings(settings: Settings) -> dict[str, object]:
    """Settings of the project that differ from the defaults, for machines without its file."""
    defaults = {item.name: item.default for item in fields(Settings) if item.default is not MISSING}
    values = {name: getattr(settings, name) for name in _CARRIED}
    return {name: value for name, value in values.items() if value != defaults[name]}


def _dataset(text: str, settings: Settings, store: Store, kind: str) -> str:
    if not text:
        return ""
    folder = Path(text).expanduser()
    if not folder.is_absolute():
        here = [base / folder for base in (Path.cwd(), settings.project)]
        folder = next((path for path in here if path.is_dir()), folder)
    if kind == LOCAL and folder.is_dir():
        return str(folder.absolute())
    if is_folder(text):
        if kind == LOCAL or not folder.is_absolute():
            raise BadInput(reason=f"there is no folder {text} on this machine")
        return str(folder)
    try:
        return str(Datasets(store.blobs).resolve(text))
    except NoSuchDataset as error:
        if not folder.is_dir():
            raise
        reason = (
            f"{error} {text} is a folder of this machine, which others may not have: send it with "
            f"'edgeloop data push', or give the whole path if every machine has it there"
        )
        raise BadInput(reason=reason) from None
