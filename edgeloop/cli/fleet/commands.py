"""fleet: runners that some engine starts, as many as the waiting work needs."""

from __future__ import annotations

import click

from edgeloop.cli.fleet.manifest import manifest


@click.group()
def fleet() -> None:
    """Run as many runners as the work needs.

    Example: edgeloop fleet manifest > fleet.yaml
    """


fleet.add_command(manifest)

COMMANDS = (fleet,)
