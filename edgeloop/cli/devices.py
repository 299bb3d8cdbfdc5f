"""devices and doctor: what this machine can measure with, and what it lacks."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.context import common_options, opened

if TYPE_CHECKING:
    from edgeloop.workspace import Workspace


@click.group(invoke_without_command=True)
@click.option("--watch", is_flag=True, help="Show live what each device does; Ctrl-C ends it.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, help="Seconds between two looks."
)
@common_options
@click.pass_context
def devices(
    context: click.Context,
    watch: bool,
    interval: float,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """List this machine's devices and chips.

    These are the host, boards over adb, and chips on the HTP simulator.

    A board that cannot be used says what to do about it. --watch shows what the devices of all
    machines do, from the table and the record of use.

    Example: edgeloop devices --watch
    """
    if context.invoked_subcommand is not None:
        return
    from edgeloop.cli.output import print_json, table

    if watch:
        with opened(store, experiment) as workspace:
            if as_json:
                print_json(_activity_rows(workspace))
            else:
                _watch(workspace, interval)
        return
    from edgeloop.platforms import list_devices
    from edgeloop.settings import Settings

    keys = ("device", "estimate", "profile", "state")
    cells = [tuple(getattr(d, key) for key in keys) for d in list_devices(Settings.load())]
    if as_json:
        print_json(dict(zip(keys, row, strict=True)) for row in cells)
    else:
        click.echo(table(("device", "latency", "profile", "state"), cells))


@devices.command()
@click.argument("name")
@click.argument("csv_file", metavar="CSV", type=click.Path(path_type=Path))
@click.option("--chip", default="snapdragon-888", show_default=True, help="The board's chip.")
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
    from edgeloop.cli.output import print_json
    from edgeloop.runner import calibrate_profile

    with opened(store, experiment) as workspace:
        profile = calibrate_profile(workspace, name, csv_file, chip)
    if as_json:
        print_json([vars(profile)])
    else:
        click.echo(
            f"{name}: latency ≈ {profile.a_us:.0f} µs + {profile.b:.3f} × estimate, median error "
            f"{profile.error_percent:.0f} %. Use it as --device htp:{name}"
        )


@click.command()
@common_options
def doctor(experiment: str | None, store: str | None, as_json: bool) -> None:
    """Check what this machine can do.

    Says what is missing and how to install it.

    Example: edgeloop doctor
    """
    from edgeloop.cli.output import print_json, table
    from edgeloop.doctor import examine

    findings = examine(store, experiment)
    if as_json:
        print_json(vars(finding) for finding in findings)
    else:
        cells = [("ok" if f.ok else "missing", f.what, f.text) for f in findings]
        click.echo(table(("", "what", ""), cells))
    if not all(finding.ok for finding in findings if finding.needed):
        raise SystemExit(1)


COMMANDS = (devices, doctor)


def _activity_rows(workspace: Workspace) -> list[dict[str, object]]:
    from datetime import UTC, datetime

    from edgeloop.platforms import list_devices
    from edgeloop.runner import activities

    now = datetime.now(UTC)
    usage = [row.values for row in workspace.store.usage().query()]
    found = activities(workspace.status(), usage, now.timestamp(), now.date())
    here = [d.device for d in list_devices(workspace.settings) if d.is_attached]
    rows: list[dict[str, object]] = [
        {
            "device": each.device,
            "machine": each.machine,
            "doing": ", ".join(each.doing) or "idle",
            "seconds": round(each.seconds, 1),
            "today_percent": round(each.today_percent, 1),
        }
        for each in found
    ]
    known = {each.device for each in found}
    for name in here:
        if name not in known:
            idle = {"doing": "idle", "seconds": 0.0, "today_percent": 0.0}
            rows.append({"device": name, "machine": "", **idle})
    return rows


def _watch(workspace: Workspace, interval: float) -> None:
    """Redraws until Ctrl-C; a store that is away for a moment is said and tried again."""
    import time

    from rich.live import Live
    from rich.text import Text

    from edgeloop._util.redact import redact
    from edgeloop.cli.output import table
    from edgeloop.errors import EdgeloopError

    def look() -> Text:
        try:
            cells = [
                (
                    str(r["device"]),
                    str(r["machine"]),
                    str(r["doing"]),
                    f"{r['seconds']} s",
                    f"{r['today_percent']} %",
                )
                for r in _activity_rows(workspace)
            ]
        except EdgeloopError as error:
            return Text(redact(str(error)))
        headings = ("device", "machine", "doing", "since", "in use today")
        return Text(table(headings, cells, right=headings[3:]), no_wrap=True)

    with contextlib.suppress(KeyboardInterrupt), Live(look(), auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(look(), refresh=True)
