"""devices, doctor, health, service: what this machine has and lacks, and what it runs for good."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop._util.values import plural
from edgeloop.cli.app import (
    NewPath,
    common_options,
    csv_option,
    json_option,
    load_settings,
    opened,
)
from edgeloop.cli.terminal import (
    Screen,
    TableColumn,
    fit,
    listing,
    print_csv,
    print_json,
    printable,
    say_empty,
    totals,
)
from edgeloop.cli.terminal import watch as show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeloop.runner.machines import MachineLine
    from edgeloop.workspace import Workspace


@click.group(invoke_without_command=True)
@click.option("--watch", is_flag=True, help="Show all machines, live; Ctrl-C ends it.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, help="Seconds between two looks."
)
@click.option("--device", metavar="GLOB", help="Only devices that match, such as 'adb:*'.")
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="WORD",
    help="With --watch: only devices in this state, such as busy or dead; repeatable.",
)
@common_options
@click.pass_context
def devices(
    context: click.Context,
    watch: bool,
    interval: float,
    device: str | None,
    states: tuple[str, ...],
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """List this machine's devices and chips.

    These are the host, boards over adb with their chip and model, and chips on the HTP simulator.

    A board that cannot be used says what to do about it. --watch shows the machines of all
    runners of the store, live: their devices, and whether each is busy, idle, hot, plugged in but
    not used, unplugged, unauthorized, offline or dead. With --json it prints that once.

    Example: edgeloop devices --watch
    """
    if context.invoked_subcommand is not None:
        return
    from fnmatch import fnmatchcase

    if states and not watch:
        raise click.UsageError("--state needs --watch, which asks the runners.")
    if watch:
        with opened(store, experiment) as workspace:

            def read() -> list[MachineLine]:
                return [
                    line
                    for line in _lines(workspace)
                    if (not states or line.state in states)
                    and (device is None or fnmatchcase(line.device, device))
                ]

            if as_json:
                print_json(_as_rows(workspace, read()))
            else:
                show(lambda screen: machine_table(read(), screen), interval)
        return
    from edgeloop.platforms import describe_devices

    listed = describe_devices(load_settings())
    matching = [d for d in listed if device is None or fnmatchcase(d.device, device)]
    if not matching:
        say_empty(f"No device here matches {device!r}. All of them: edgeloop devices", as_json)
    if as_json:
        keys = ("device", "chip", "model", "estimate", "profile", "state")
        print_json({key: getattr(each, key) for key in keys} for each in matching)
    elif matching:
        cells = [(d.device, d.chip, d.estimate, d.profile, d.state) for d in matching]
        columns = (
            TableColumn("device", 100, 24),
            TableColumn("chip", 75, 12),
            TableColumn("latency", 70, 8),
            TableColumn("profile", 80, 12),
            TableColumn("state", 90, 24, wraps=True),
        )
        words = [each.state.partition(":")[0] for each in matching]
        total = totals("device", words, ("ready", "simulated"))
        click.echo(listing(columns, cells, states=words, total=total))


@devices.command()
@click.argument("name")
@click.argument("csv_file", metavar="CSV", type=click.Path(path_type=Path))
@click.option("--chip", default="qcs8550", show_default=True, help="The board's chip.")
@common_options
def calibrate(
    name: str,
    csv_file: Path,
    chip: str,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Fit a latency profile to a board.

    Needs at least five models measured on the board.

    CSV has the columns model and latency_ms; the models are those of the experiment, converted.

    Example: edgeloop devices calibrate my-board measured.csv --chip snapdragon-888
    """
    from dataclasses import asdict

    from edgeloop.runner.compare import calibrate_profile

    with opened(store, experiment) as workspace:
        profile = calibrate_profile(workspace, name, csv_file, chip)
    if as_json:
        print_json([asdict(profile)])
    else:
        text = f"{profile.a_us:.0f} µs + {profile.b:.3f} × estimate"
        error = f"median error {profile.error_percent:.0f} %"
        if interval := profile.intervals.get("any"):
            stated = f"{100 * interval.coverage:.0f} % interval" if interval.coverage else "range"
            error += f", {stated} {interval.low:.2f} to "
            error += f"{interval.high:.2f} times that"
        click.echo(f"{name}: latency ≈ {text}, {error}. Use it as --device htp:{name}")


@devices.command()
@csv_option
@common_options
def usage(csv: Path | None, experiment: str | None, store: str | None, as_json: bool) -> None:
    """Show how busy each device was, by day.

    There is a line per machine and device: equal devices such as 'host' are one per machine. The
    machine is empty where a use was recorded by Archai or an older version. Days are in UTC.

    Example: edgeloop devices usage --csv usage.csv
    """
    from edgeloop.runner.machines import USE_COLUMNS, utilisation

    if csv is not None and as_json:
        raise click.UsageError("choose one of --csv and --json.")
    with opened(store, experiment) as workspace:
        uses = utilisation(row.values for row in workspace.store.usage().query())
    if as_json:
        print_json(use.values for use in uses)
    elif csv is not None:
        print_csv((use.values for use in uses), csv, USE_COLUMNS)
    if not uses:
        empty = "No device was used yet. Next: edgeloop runner --device host"
        say_empty(empty, as_json or csv is not None)
    if as_json or csv is not None or not uses:
        return
    cells = [
        (
            u.machine,
            u.device,
            f"{u.day}",
            str(u.uses),
            f"{u.seconds:.0f}",
            f"{100 * u.utilisation:.1f} %",
        )
        for u in uses
    ]
    columns = (
        TableColumn("machine", 90, 16),
        TableColumn("device", 100, 24),
        TableColumn("day", 95),
        *(TableColumn(name, 80, right=True) for name in ("uses", "seconds", "of the day")),
    )
    devices, days = len({(u.machine, u.device) for u in uses}), len({use.day for use in uses})
    seconds = sum(use.seconds for use in uses)
    total = f"{plural(devices, 'device')}, {plural(days, 'day')}: {seconds:.0f} s in use"
    click.echo(listing(columns, cells, total=total))


@click.command()
@common_options
def doctor(experiment: str | None, store: str | None, as_json: bool) -> None:
    """Check what this machine can do.

    Says what is missing and how to install it.

    Example: edgeloop doctor
    """
    from edgeloop.operate.doctor import examine

    load_settings()
    findings = examine(store, experiment)
    if as_json:
        print_json(vars(finding) for finding in findings)
    else:
        cells = [("ok" if f.ok else "missing", f.what, f.text) for f in findings]
        columns = (
            TableColumn("", 100),
            TableColumn("what", 90),
            TableColumn("about", 80, 24, wraps=True),
        )
        click.echo(listing(columns, cells, states=[cell[0] for cell in cells], coloured=""))
    if not all(finding.ok for finding in findings if finding.needed):
        raise SystemExit(1)


@click.group()
def service() -> None:
    """Run runners and the portal with systemd.

    They start with the machine, restart when they end, and write to its journal.

    Example: edgeloop service install runner --device adb:8c2f11d0 --dataset faces
    """


_system_option = click.option(
    "--system/--user",
    "is_system",
    default=None,
    help="For the machine or for you  [default: --system as root]",
)
_into_option = click.option(
    "--into", type=NewPath(is_folder=True), help="Folder of the files; systemd is not called."
)


@service.command("install", context_settings={"ignore_unknown_options": True})
@click.argument("kind", type=click.Choice(["runner", "portal"]))
@click.argument("arguments", metavar="[OPTIONS OF IT]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--name", help="Name of the service  [default: runner or portal]")
@_system_option
@click.option("--as-user", "account", default="", help="Account that a system service runs as.")
@_into_option
@click.option("--dry-run", "only_print", is_flag=True, help="Print the unit only.")
@json_option
def service_install(
    kind: str,
    arguments: tuple[str, ...],
    name: str | None,
    is_system: bool | None,
    account: str,
    into: Path | None,
    only_print: bool,
    as_json: bool,
) -> None:
    """Install and start a service.

    It runs in the current folder with these options. Store, keys and SDK are taken from the
    environment now, into a file that only its owner can read; the unit holds no secret.

    Example: edgeloop service install runner --name board-1 --device adb:8c2f11d0
    """
    from edgeloop.cli.report import portal
    from edgeloop.cli.runner import runner
    from edgeloop.operate import service as services
    from edgeloop.settings import service_environment

    command = {"runner": runner, "portal": portal}[kind]
    root = click.get_current_context().find_root()
    command.make_context(kind, list(arguments), parent=root)  # reports a wrong option now
    services.check_unused(arguments)
    place = services.service_place(_is_system(is_system), into)
    unit = services.ServiceUnit(name or kind, kind, arguments, Path.cwd(), account)
    if only_print:
        click.echo(unit.text(place), nl=False)
        return
    is_new = services.install(unit, place, service_environment())
    file, environment = place.unit(unit.name), place.environment(unit.name)
    if into is None:
        services.systemctl(place, "daemon-reload")
        services.systemctl(place, "enable", file.name)
        services.systemctl(place, "restart", file.name)
    if as_json:
        print_json([{"name": unit.name, "unit": str(file), "environment": str(environment)}])
        return
    click.echo(f"{file} written")
    click.echo(f"{environment} {'written' if is_new else 'kept as it is'} (mode 600)")
    if into is None:
        user = "" if place.is_system else "--user "
        click.echo(f"started; its log: journalctl {user}-u {file.stem} -f")
        if not place.is_system:
            click.echo("it ends when you log out, unless: loginctl enable-linger", err=True)


@service.command("uninstall")
@click.argument("name")
@_system_option
@_into_option
@json_option
def service_uninstall(name: str, is_system: bool | None, into: Path | None, as_json: bool) -> None:
    """Stop and remove a service.

    Its environment file is removed, too.

    Example: edgeloop service uninstall board-1
    """
    from edgeloop.operate import service as services

    place = services.service_place(_is_system(is_system), into)
    if into is None and place.unit(name).exists():
        services.systemctl(place, "disable", "--now", place.unit(name).name)
    services.uninstall(name, place)
    if into is None:
        services.systemctl(place, "daemon-reload")
    if as_json:
        print_json([{"name": name, "removed": True}])
    else:
        click.echo(f"{name} removed")


@service.command("status")
@_system_option
@_into_option
@json_option
def service_status(is_system: bool | None, into: Path | None, as_json: bool) -> None:
    """List the installed services.

    Shows whether each runs, since when, and how often it was restarted.

    Example: edgeloop service status --json
    """
    from edgeloop.operate import service as services

    place = services.service_place(_is_system(is_system), into)
    rows = [{"name": n, **services.state_of(n, place)} for n in services.installed(place)]
    if as_json:
        print_json(rows)
    elif rows:
        headings = ("name", "state", "since", "restarts")
        cells = [tuple(row[key] for key in headings) for row in rows]
        click.echo(listing(headings, cells, states=[row["state"] for row in rows]))
    else:
        click.echo(f"No service of Edgeloop is installed in {place.units}.")


@click.command()
@click.argument(
    "file",
    required=False,
    envvar="EDGELOOP_HEALTH",
    type=click.Path(path_type=Path, dir_okay=False),
)
@click.option("--ready", is_flag=True, help="Whether it takes work now, not only whether it lives.")
@json_option
def health(file: Path | None, ready: bool, as_json: bool) -> None:
    """Check whether a local runner is healthy.

    For the probes of containers: exits with 0 or 1, and uses neither a port nor the store. FILE is
    the runner's --health file  [default: $EDGELOOP_HEALTH].

    A runner is healthy while its threads make progress, also while the store is unreachable or a
    stage takes hours, since a restart would not help. It is ready when its devices are open, the
    store has answered recently, and it has not been told to stop.

    Example: edgeloop health /tmp/runner-health --ready
    """
    from edgeloop.runner.health import health_problem

    if file is None:
        raise click.UsageError("name the runner's health file, or set EDGELOOP_HEALTH")
    problem = health_problem(file, ready)
    if as_json:
        print_json([{"ok": not problem, "reason": problem}])
    else:
        click.echo(problem or ("ready" if ready else "healthy"))
    if problem:
        raise SystemExit(1)


COMMANDS = (devices, doctor, health, service)


def _is_system(chosen: bool | None) -> bool:
    import os

    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    return is_root if chosen is None else chosen


def _lines(workspace: Workspace) -> list[MachineLine]:
    """The devices of all runners of the store, and the boards of this machine that none uses."""
    import socket

    from edgeloop.models.columns import natural_key
    from edgeloop.models.runners import Registry
    from edgeloop.platforms import list_devices
    from edgeloop.runner.machines import MachineLine, held_stages, machine_lines

    entries = Registry(workspace.store).entries()
    now_s = workspace.store.now()
    lines = machine_lines(entries, workspace.plan, now_s, held_stages(workspace.status()))
    node, host = workspace.settings.node, socket.gethostname()
    served = {line.device for line in lines if line.machine == node or line.host == host}
    for listed in list_devices(workspace.settings):
        if listed.is_attached and listed.device not in served:
            state, detail = listed.condition.state, listed.condition.detail
            state_word = "plugged" if state in ("ready", "hot") else state
            lines.append(MachineLine(node, listed.device, state_word, detail=detail))
    return sorted(lines, key=lambda line: (natural_key(line.machine), natural_key(line.device)))


def _as_rows(workspace: Workspace, lines: Sequence[MachineLine]) -> list[dict[str, object]]:
    from datetime import UTC, datetime

    from edgeloop.runner.machines import use_today

    now = datetime.now(UTC)
    first_key = f"{now.timestamp() - 2 * 86_400:015.3f}"  # a use may have begun before midnight
    usage = use_today((row.values for row in workspace.store.usage().query(after=first_key)), now)
    return [
        {
            **{name: value for name, value in vars(line).items() if name != "work"},
            "doing": list(line.doing),
            "stages": list(line.stages),
            "seconds": round(line.seconds, 1),
            "today_percent": round(100 * usage.share(line.machine, line.device), 1),
        }
        for line in lines
    ]


def machine_table(lines: Sequence[MachineLine], screen: Screen) -> str:
    """The devices of each machine below its name, so that 80 columns have room for what they do."""
    from itertools import groupby

    from edgeloop._util.values import duration_text

    if not lines:
        return "No runner is registered in this store; start one: edgeloop runner --device htp"
    columns = (
        TableColumn("  device", 100, 24),
        TableColumn("state", 95),
        TableColumn("since", 70, right=True),
        TableColumn("doing", 90, 16),
    )
    cells = [
        (
            f"  {line.device or 'itself'}",
            line.state,
            duration_text(line.seconds) if line.seconds else "",
            line.text,
        )
        for line in lines
    ]
    states = [line.state for line in lines]
    aligned = fit(columns, cells, screen, states, "state")
    shown = [aligned.heading]
    for machine, numbered in groupby(enumerate(lines), lambda pair: pair[1].machine):
        group = list(numbered)
        versions = dict.fromkeys(line.version for _, line in group if line.version)
        serving = dict.fromkeys(line.experiment for _, line in group if line.experiment)
        about = [*(f"edgeloop {v}" for v in versions), *(f"experiment {name}" for name in serving)]
        shown.append(screen.clipped(printable(" · ".join([machine, *about]))))
        shown += [aligned.lines[number] for number, _ in group]
    if screen.width is not None:
        counted = [line.state for line in lines if line.device]
        shown.append(screen.clipped(totals("device", counted, ("busy", "idle", "hot", "dead"))))
    return "\n".join(shown)
