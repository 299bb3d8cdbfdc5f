"""devices and doctor: what this machine can measure with, and what it lacks."""

from __future__ import annotations

from pathlib import Path

import click

from edgeloop.cli.options import common_options, opened


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.pass_context
def devices(context: click.Context, as_json: bool) -> None:
    """List the devices there are: the host, and chips on the HTP simulator.

    Example: edgeloop devices --json
    """
    if context.invoked_subcommand is not None:
        return
    from edgeloop.cli.output import print_json, table
    from edgeloop.devices import find_profile
    from edgeloop.settings import Settings
    from edgeloop.toolchains import CHIPS

    folder = _profiles(Settings.load().project)
    rows = [{"device": "host", "estimate": "measured", "profile": ""}]
    for chip in CHIPS.values():
        profile = find_profile(chip.name, folder)
        kind = "compiler's estimate" if chip.estimate_soc else "none"
        rows.append(
            {
                "device": f"htp:{chip.name}",
                "estimate": kind,
                "profile": f"error {profile.error_percent:.0f} %" if profile else "uncalibrated",
            }
        )
    if as_json:
        print_json(rows)
    else:
        click.echo(table(("device", "latency", "profile"), [tuple(row.values()) for row in rows]))


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
    """Fit a profile NAME from models measured on a board; five or more are needed.

    CSV has the columns model and latency_ms; the models are those of the experiment, converted.

    Example: edgeloop devices calibrate my-board measured.csv --chip snapdragon-888
    """
    from edgeloop.cli.output import print_json
    from edgeloop.evaluate import calibrate_profile

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
    """Say what this machine can do, what is missing, and how to get it.

    Example: edgeloop doctor
    """
    from edgeloop.cli.output import print_json, table
    from edgeloop.evaluate import examine

    findings = examine(store, experiment)
    if as_json:
        print_json(vars(finding) for finding in findings)
    else:
        cells = [("ok" if f.ok else "missing", f.what, f.text) for f in findings]
        click.echo(table(("", "what", ""), cells))
    if not all(finding.ok for finding in findings if finding.needed):
        raise SystemExit(1)


COMMANDS = (devices, doctor)


def _profiles(project: Path) -> Path:
    return project / ".edgeloop" / "profiles"
