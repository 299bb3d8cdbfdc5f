"""data: datasets to work with."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from edgeloop.tasks import Progress


@click.group()
def data() -> None:
    """Make datasets to train and test with."""


@data.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--count", default=200, show_default=True, help="How many faces.")
@click.option("--size", default=128, show_default=True, help="Their width and height in pixels.")
@click.option("--seed", default=7, show_default=True, help="Another seed draws other faces.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def faces(folder: Path, count: int, size: int, seed: int, as_json: bool) -> None:
    """Draw faces with labels, in the layout of FaceSynthetics: 19 classes, no download.

    The same seed draws the same faces everywhere. An interrupted run goes on where it was; a folder
    that holds anything else is left alone.

    Example: edgeloop data faces faces/ --count 200 --size 128 --seed 7
    """
    from edgeloop.cli.output import plural, print_json
    from edgeloop.tasks import make_faces

    with _bar(f"drawing {plural(count, 'face')}") as progress:
        made = make_faces(folder, count, size, seed, progress)
    if as_json:
        shown = {"count": made.count, "size": made.size, "seed": made.seed}
        print_json([{"folder": str(folder), **shown, "version": made.version}])
    else:
        what = f"{plural(made.count, 'face')} of {made.size} × {made.size}, seed {made.seed}"
        click.echo(f"{what} → {folder}")


COMMANDS = (data,)


@contextlib.contextmanager
def _bar(title: str) -> Iterator[Progress | None]:
    """A moving bar for a person at a terminal; logs and pipes get the last line only."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title)
        yield lambda done, total: bar.update(task, completed=done, total=total)
