"""portal: the farm in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from edgeloop.cli.options import common_options, demo_option, opened

if TYPE_CHECKING:
    from edgeloop.portal import Address
    from edgeloop.workspace import Workspace


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on; any but this machine's own needs a token  [default: 127.0.0.1]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8750,
    help="0 takes a free one  [default: 8750]",
)
@click.option(
    "--token",
    metavar="TEXT|auto",
    help="What visitors must know; 'auto' makes one up and prints a link with it  "
    "[default: $EDGELOOP_PORTAL_TOKEN]",
)
@click.option("--allow-changes", is_flag=True, help="Let visitors reset, delete and prioritise.")
@click.option("--open/--no-open", "open_page", default=False, help="Open it in a browser.")
@demo_option
@common_options
def portal(
    host: str,
    port: int,
    token: str | None,
    allow_changes: bool,
    open_page: bool,
    demo: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Show models, devices, jobs and searches in a browser, live. Ctrl-C ends it.

    Example: edgeloop portal --open
    """
    from edgeloop.errors import BadInput
    from edgeloop.portal import PortalOptions, checked, serve
    from edgeloop.settings import portal_token

    chosen = portal_token() if token is None else token
    options = PortalOptions(host, port, chosen, allow_changes)
    try:
        checked(options)
    except BadInput as error:
        raise click.UsageError(f"{error}.") from None
    with opened(store, experiment, demo) as workspace:
        serve(workspace, options, lambda found: _announce(workspace, found, as_json, open_page))


COMMANDS = (portal,)


def _announce(workspace: Workspace, address: Address, as_json: bool, open_page: bool) -> None:
    from edgeloop.cli.output import print_json, shown
    from edgeloop.redact import redact

    place = redact(shown(workspace.store.description))
    if as_json:
        found = {"url": address.url, "link": address.link}
        print_json([{**found, "experiment": workspace.experiment, "store": place}])
    else:
        click.echo(f"Portal of experiment '{workspace.experiment}' ({place}): {address.link}")
    if open_page:
        click.launch(address.link)
