"""Live views: a text that is drawn again and again until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from edgeloop.cli.terminal.interrupt import kept
from edgeloop.cli.terminal.tables import Screen

if TYPE_CHECKING:
    from rich.text import Text

STOPPED_WATCHING = "Stopped watching; nothing was changed and runners continue."


def watch(look: Callable[[Screen], str], interval_s: float, at_end: str = STOPPED_WATCHING) -> None:
    """Redraws a text until Ctrl-C, for the terminal as it then is. An unreachable store is reported
    and tried again. Output that goes elsewhere gets the text whenever it has changed."""
    from edgeloop._util.redact import redact
    from edgeloop.errors import EdgeloopError

    kept(at_end)

    def text() -> str:
        try:
            return look(Screen.of_stdout())
        except EdgeloopError as error:
            return redact(str(error))

    if not sys.stdout.isatty():
        _print_changes(text, interval_s)
        return
    from rich.live import Live

    with Live(as_drawn(text()), auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            live.update(as_drawn(text()), refresh=True)


def as_drawn(text: str) -> Text:
    """With the colours that the text has; lines are cut where the terminal ends."""
    from rich.text import Text

    drawn = Text.from_ansi(text)
    drawn.no_wrap, drawn.overflow = True, "ellipsis"
    return drawn


def _print_changes(text: Callable[[], str], interval_s: float) -> None:
    shown = ""
    while True:
        now = text()
        if now != shown:
            click.echo(now)
            shown = now
        time.sleep(interval_s)
