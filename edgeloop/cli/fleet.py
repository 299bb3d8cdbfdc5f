"""queue, fleet and gc: waiting work, the runners that do it, and what they leave behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeloop._util.values import plural
from edgeloop.cli.app import (
    ExistingPath,
    common_options,
    json_option,
    load_settings,
    opened,
    store_option,
    watch_option,
)
from edgeloop.cli.terminal import (
    Screen,
    TableColumn,
    listing,
    print_json,
    printable,
    say_on_interrupt,
    totals,
    waiting,
)
from edgeloop.cli.terminal import watch as show

if TYPE_CHECKING:
    from edgeloop.operate.fleet.launcher import StartedSupervisor
    from edgeloop.operate.fleet.records import FleetObservation, FleetRecord, Fleets, FleetSpec
    from edgeloop.settings import Settings


# fleet manifest: a fleet on Kubernetes, as YAML.


@click.command()
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--values",
    "file",
    type=ExistingPath(dir_okay=False),
    metavar="FILE",
    help="Values for the Helm chart, which win over the settings.",
)
@click.option("--name", default="edgeloop", show_default=True, help="What all names begin with.")
@click.option("--namespace", "-n", default="edgeloop", show_default=True, help="The namespace.")
@common_options
def manifest(
    overrides: tuple[str, ...],
    file: Path | None,
    name: str,
    namespace: str,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Print a fleet on Kubernetes as YAML.

    The objects are those of the Helm chart in deploy/chart: runners that KEDA scales by waiting
    work, and the portal that it asks. Values come from fleet.kubernetes in edgeloop.yaml, from
    --values, and from overrides such as runner.maxReplicas=50. Secrets are named, never printed.

    Example: edgeloop fleet manifest image.repository=registry.example/edgeloop > fleet.yaml
    """
    import json

    from edgeloop.operate.fleet.kubernetes import fleet_manifest, manifest_text

    settings = load_settings(store=store, experiment=experiment)
    objects = fleet_manifest(settings, overrides, file, name=name, namespace=namespace)
    if as_json:
        items = {"apiVersion": "v1", "kind": "List", "items": objects}
        click.echo(json.dumps(items, indent=2))
    else:
        click.echo(manifest_text(objects), nl=False)


# fleet up, status, scale, down: runners that are as many as the waiting work needs.


_WATCH_S = 2.0
_POLL_S = 0.5

name_option = click.option(
    "--name", metavar="NAME", help="Name of the fleet  [default: the settings, else 'fleet']"
)


@click.group()
def fleet() -> None:
    """Run as many runners as there is work.

    A fleet is a set of runners on a compute: this machine, or a Ray cluster. Its number follows the
    waiting work between two bounds. 'edgeloop queue' shows that work. For Kubernetes, 'manifest'
    prints what to apply.

    Example: edgeloop fleet up --runners 0:4
    """


@fleet.command()
@click.option(
    "--compute",
    metavar="NAME",
    help="Where: a compute of kind local or ray  [default: the settings]",
)
@click.option(
    "--runners", metavar="LEAST:MOST", help="How many, such as 2:16, 0:8 or 4  [default: 0:4]"
)
@click.option("--cpus", type=click.IntRange(min=1), metavar="N", help="CPU cores of each runner.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME",
    help="host, htp:CHIP, adb:SERIAL, or adb: all boards of the compute; repeatable.",
)
@click.option(
    "--dataset",
    metavar="FOLDER|NAME",
    help="A folder that every machine has, or a dataset of the store such as faces@3.",
)
@click.option("--task", help="What the dataset is for  [default: the settings]")
@click.option(
    "--experiment",
    "-e",
    "experiments",
    multiple=True,
    metavar="NAME[=WEIGHT]",
    help="Experiment that it serves; repeatable  [default: $EDGELOOP_EXPERIMENT, else 'default']",
)
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    metavar="NAME=N",
    help="The most runners of an experiment; repeatable.",
)
@name_option
@store_option
@json_option
def up(
    compute: str | None,
    runners: str | None,
    cpus: int | None,
    devices: tuple[str, ...],
    dataset: str | None,
    task: str | None,
    experiments: tuple[str, ...],
    quotas: tuple[str, ...],
    name: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Start a fleet, or change one that runs.

    What is not given is taken from the section 'fleet' of edgeloop.yaml. What is not there either
    stays as it is, if the fleet runs. The fleet continues when this command has ended; runners that
    die are started again. Several experiments share a fleet by their weights, and none gets more
    runners than its quota.

    Example: edgeloop fleet up --compute cluster --runners 2:16 -e faces=2 -e hands --quota hands=4
    """
    from edgeloop.operate.fleet.control import bring_up, completed_spec
    from edgeloop.operate.fleet.records import Fleets, read_spec

    options: dict[str, Any] = {
        "compute": compute,
        "runners": runners,
        "cpus": cpus,
        "dataset": dataset,
        "task": task,
        "name": name,
        "devices": list(devices) or None,
    }
    with opened(store, None, makes=True) as workspace:
        settings = workspace.settings
        there = Fleets(workspace.store).get(_name(name, settings))
        current = {} if there is None else there.spec.to_json()
        base = {**current, **settings.fleet}
        requested = read_spec(base, {k: v for k, v in options.items() if v is not None})
        requested = _with_shares(requested, experiments, quotas, settings)
        spec = completed_spec(requested, settings, workspace.store)
        with waiting(f"starting the fleet {spec.name}"):
            record, before = bring_up(settings, workspace.store, spec)
    if as_json:
        print_json([_row(record)])
        return
    verb = "is up" if before is None else "was up and is changed"
    click.echo(f"Fleet {record.name} {verb}: {_described(record)}.")
    click.echo(f"Supervisor: {record.where}.")


@fleet.command()
@watch_option
@name_option
@store_option
@json_option
def status(watch: bool, name: str | None, store: str | None, as_json: bool) -> None:
    """Show fleets, their runners and shares.

    'running' runners are at work or look for it, 'waiting' ones have no place yet or are being
    started again, 'ending' ones finish their stage. The second table has the work and the runners
    of each experiment. All fleets of the store are shown, unless --name chooses one.

    Example: edgeloop fleet status --watch
    """
    from edgeloop.operate.fleet.records import Fleets

    if watch and as_json:
        raise click.UsageError("choose one of --watch and --json.")
    with opened(store, None) as workspace:
        fleets = Fleets(workspace.store)

        def read() -> list[FleetRecord]:
            return [fleets.named(name)] if name else fleets.all()

        if watch:
            show(lambda screen: _tables(read(), screen), _WATCH_S)
        elif as_json:
            print_json(map(_row, read()))
        else:
            click.echo(_tables(read(), Screen.of_stdout()))


@fleet.command()
@click.argument("runners", metavar="LEAST:MOST")
@name_option
@store_option
@json_option
def scale(runners: str, name: str | None, store: str | None, as_json: bool) -> None:
    """Change the bounds of a fleet.

    The supervisor obeys within seconds. Runners that are too many end after their stage.

    Example: edgeloop fleet scale 4:32
    """
    from edgeloop.operate.fleet.control import ensure_supervisor
    from edgeloop.operate.fleet.records import Bounds, Fleets

    try:
        bounds = Bounds.parse(runners)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="LEAST:MOST") from None
    with opened(store, None) as workspace:
        settings = workspace.settings
        record = Fleets(workspace.store).scale(_name(name, settings), bounds)
        ensure_supervisor(settings, record)
    if as_json:
        print_json([_row(record)])
    else:
        click.echo(f"Fleet {record.name}: {_described(record)}.")


@fleet.command()
@click.option("--now", is_flag=True, help="Kill runners; their stages are done again later.")
@click.option("--no-wait", is_flag=True, help="Return at once; the fleet ends in the background.")
@click.option("--forget", is_flag=True, help="Only remove the record of a fleet that is gone.")
@name_option
@store_option
@json_option
def down(
    now: bool, no_wait: bool, forget: bool, name: str | None, store: str | None, as_json: bool
) -> None:
    """End a fleet.

    Runners finish their stages and end; no result is lost. With --now they are killed. Ctrl-C
    stops the waiting only, and the fleet ends in the background.

    Example: edgeloop fleet down --name night
    """
    from edgeloop.errors import Conflict
    from edgeloop.operate.fleet.records import Fleets

    with opened(store, None) as workspace:
        settings, fleets = workspace.settings, Fleets(workspace.store)
        if forget:
            record = fleets.named(_name(name, settings))
            if record.is_supervised:
                reason = f"the fleet {record.name!r} has a supervisor: leave out --forget"
                raise Conflict(reason=reason)
            if not fleets.remove(record):
                reason = f"the fleet {record.name!r} was changed just now: look at it with"
                raise Conflict(reason=f"{reason} 'edgeloop fleet status'")
        else:
            record = fleets.end(_name(name, settings), now)
            started = _supervised(settings, record)
            if not no_wait:
                _wait_for_end(fleets, record, started.failure if started else lambda: "", as_json)
    verb = "is going down" if no_wait and not forget else "is down"
    if as_json:
        print_json([{"name": record.name, "state": verb.removeprefix("is ")}])
    else:
        click.echo(f"Fleet {record.name} {verb}.")


fleet.add_command(manifest)

COMMANDS = (fleet,)


def _name(name: str | None, settings: Settings) -> str:
    from edgeloop.operate.fleet.records import read_spec

    return name or read_spec(settings.fleet).name


def _with_shares(
    spec: FleetSpec, experiments: tuple[str, ...], quotas: tuple[str, ...], settings: Settings
) -> FleetSpec:
    """With the experiments and quotas of the command line, which replace those of the file."""
    from edgeloop.operate.fleet.records import read_spec

    shares: dict[str, dict[str, object]] = {
        name: {"weight": share.weight, "quota": share.quota}
        for name, share in spec.experiments.items()
    }
    if experiments:
        shares = {}
        for text in experiments:
            name, equals, weight = text.partition("=")
            shares[name] = {"weight": weight if equals else None}
    if quotas and not shares:
        shares = {settings.experiment: {}}
    for text in quotas:
        name, equals, quota = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} must be NAME=N", param_hint="--quota")
        if name not in shares:
            served = ", ".join(shares)
            message = f"the fleet does not serve the experiment {name!r}, only {served}"
            raise click.BadParameter(message, param_hint="--quota")
        shares[name]["quota"] = quota
    return read_spec({**spec.to_json(), "experiments": shares})


def _described(record: FleetRecord) -> str:
    spec = record.spec
    bounds = record.bounds
    count = f"{bounds.least} to {bounds.most}" if bounds.least < bounds.most else f"{bounds.most}"
    names = ", ".join(spec.experiments)
    return (
        f"{count} runners with {plural(spec.cpus, 'core')} each on {spec.compute}, for "
        f"{'experiment' if len(spec.experiments) == 1 else 'experiments'} {names}"
    )


def _supervised(settings: Settings, record: FleetRecord) -> StartedSupervisor | None:
    from edgeloop.errors import ComputeUnavailable
    from edgeloop.operate.fleet.control import ensure_supervisor

    try:
        return ensure_supervisor(settings, record)
    except ComputeUnavailable as error:
        reason = (
            f"{error}; if it is gone, 'edgeloop fleet down --forget' removes the fleet's record"
        )
        raise ComputeUnavailable(compute=record.spec.compute, reason=reason) from None


def _wait_for_end(
    fleets: Fleets, record: FleetRecord, failure: Callable[[], str], is_quiet: bool
) -> None:
    from edgeloop.errors import ComputeUnavailable
    from edgeloop.operate.fleet.control import UP_S

    shown = ""
    began = time.monotonic()
    try:
        while True:
            current = fleets.get(record.name)
            if current is None:
                return
            if current.state == "up" and current.generation > record.generation:
                raise ComputeUnavailable(
                    compute=current.spec.compute, reason="the fleet was brought up again"
                )
            seen = current.observed
            if current.seen >= record.generation:
                shown = _progress(seen, shown, is_quiet)
            # A new supervisor gets as long to start as one of a new fleet.
            silent = not current.is_supervised and time.monotonic() - began > UP_S
            if reason := failure() or ("its supervisor is silent" if silent else ""):
                if fleets.get(record.name) is None:
                    return
                raise ComputeUnavailable(compute=current.spec.compute, reason=reason)
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        say_on_interrupt("The fleet ends in the background: see 'edgeloop fleet status'.")
        raise


def _progress(seen: FleetObservation, shown: str, is_quiet: bool) -> str:
    note = f", {seen.note}" if seen.note else ""
    line = f"{plural(seen.draining, 'runner')} left{note}"
    if line != shown and seen.draining and not is_quiet:
        click.echo(line, err=True)
    return line


def _tables(records: list[FleetRecord], screen: Screen) -> str:
    if not records:
        return "No fleet. 'edgeloop fleet up' starts one."
    cells = [
        [
            record.name,
            record.spec.compute,
            _state(record),
            f"{record.bounds}",
            str(record.observed.running),
            str(record.observed.waiting),
            str(record.observed.draining),
            str(record.observed.boards),
        ]
        for record in records
    ]
    numbers = {"bounds": 70, "running": 90, "waiting": 85, "ending": 65, "boards": 60}
    columns = (
        TableColumn("fleet", 100, 12),
        TableColumn("compute", 80, 10),
        TableColumn("state", 95),
        *(TableColumn(name, weight, right=True) for name, weight in numbers.items()),
    )
    states = [_state(record) for record in records]
    total = totals("fleet", states, ("up", "going down", "killing", "unsupervised"))
    parts = [listing(columns, cells, screen=screen, states=states, total=total)]
    shares = [
        [
            record.name,
            name,
            f"{share.weight:g}",
            "" if share.quota is None else str(share.quota),
            *(str(record.observed.shares.get(name, {}).get(key, "")) for key in _SHARE_KEYS),
        ]
        for record in records
        for name, share in record.spec.experiments.items()
    ]
    numbers = {"weight": 60, "quota": 55, "ready": 90, "in work": 85, "share": 65, "runners": 80}
    columns = (
        TableColumn("fleet", 95, 12),
        TableColumn("experiment", 100, 16),
        *(TableColumn(name, weight, right=True) for name, weight in numbers.items()),
    )
    parts.append(listing(columns, shares, screen=screen))
    parts += [f"{r.name}: {printable(r.observed.note)}" for r in records if r.observed.note]
    parts += [_advice(record) for record in records if not record.is_supervised]
    return "\n\n".join(parts)


_SHARE_KEYS = ("ready", "running", "share", "runners")


def _state(record: FleetRecord) -> str:
    if not record.is_supervised:
        return "unsupervised"
    return {"up": "up", "draining": "going down", "ending": "killing"}[record.state]


def _advice(record: FleetRecord) -> str:
    from edgeloop._util.values import duration_text

    since = f" for {duration_text(record.age_s)}" if record.beat else ""
    where = f" on {record.host}" if record.host else ""
    taken = "takes over" if record.kind == "local" else "replaces, after their stage,"
    return (
        f"{record.name}: its supervisor has been silent{since}; 'edgeloop fleet up' starts a new "
        f"one{where}, which {taken} the runners that are there."
    )


def _row(record: FleetRecord) -> dict[str, object]:
    seen = record.observed
    return {
        "name": record.name,
        "compute": record.spec.compute,
        "kind": record.kind,
        "host": record.host,
        "state": record.state,
        "supervised": record.is_supervised,
        "supervisor": record.where,
        "silent_s": round(record.age_s, 1) if record.beat else None,
        "least": record.bounds.least,
        "most": record.bounds.most,
        "wanted": seen.wanted,
        "running": seen.running,
        "waiting": seen.waiting,
        "ending": seen.draining,
        "boards": seen.boards,
        "note": seen.note,
        "spec": record.spec.to_json(),
        "experiments": {name: dict(line) for name, line in seen.shares.items()},
    }
