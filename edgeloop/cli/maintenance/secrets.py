"""secrets scan: secrets in files where they should not be."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.context import load_settings

if TYPE_CHECKING:
    from edgeloop.housekeeping import Leak, SecretScan


@click.group()
def secrets() -> None:
    """Find secrets where they should not be."""


@secrets.command()
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="Also files made for secrets, as .env.")
@click.option("--processes", is_flag=True, help="Also read the command lines of processes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.pass_context
def scan(
    ctx: click.Context,
    paths: tuple[Path, ...],
    everything: bool,
    processes: bool,
    as_json: bool,
) -> None:
    """Find secrets in files.

    Looks for private keys, keys and tokens of cloud services, signatures, connection strings and
    addresses with passwords, and for the secrets that your environment and the project's settings
    hold. Reads archives of code too. Without PATH, the current folder; - is the standard input.

    Each is printed as FILE:LINE with the secret masked. The exit code is 1 if there are any.

    Example: edgeloop secrets scan

    Example: curl -s http://127.0.0.1:8080/api/jobs | edgeloop secrets scan -
    """
    from edgeloop.cli.output import print_json, printable
    from edgeloop.errors import EdgeloopError
    from edgeloop.housekeeping import SecretScan, known_secrets

    settings = None
    with suppress(EdgeloopError):  # what cannot be read now has no secrets to compare with
        settings = load_settings()
    found = _leaks(SecretScan(known_secrets(settings), everything), paths or (Path(),), processes)
    if as_json:
        leaks = list(found)
        print_json(asdict(leak) for leak in leaks)
        ctx.exit(1 if leaks else 0)
    count = 0
    for leak in found:
        count += 1
        click.echo(printable(leak.sentence))
    if count:
        what = "1 secret" if count == 1 else f"{count} secrets"
        hint = "remove them there, and replace those that others may have seen"
        click.echo(f"edgeloop: {what} found: {hint}", err=True)
        ctx.exit(1)
    click.echo("No secrets found.")


def _leaks(scan: SecretScan, paths: tuple[Path, ...], processes: bool) -> Iterator[Leak]:
    parts = [
        scan.stream(sys.stdin.buffer, "-") if str(path) == "-" else scan.path(path)
        for path in paths
    ]
    return chain(*parts, scan.processes() if processes else ())


COMMANDS = (secrets,)
