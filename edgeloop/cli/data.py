"""data: datasets to work with, here and in the store."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.context import common_options, yes_option

if TYPE_CHECKING:
    from edgeloop.data import Datasets, Version
    from edgeloop.settings import Settings

names_argument = click.argument("names", nargs=-1, required=True, metavar="NAME…")
references_argument = click.argument(
    "references", nargs=-1, required=True, metavar="NAME[@VERSION]…"
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would move.")


@click.group()
def data() -> None:
    """Datasets: make them, and move them between this machine and the store.

    A dataset is a folder below data/working or data/raw, and its name is the path below data/, as
    working/faces128; faces128 will do where that is clear. Every push that changes something makes
    a version: working/faces128@3 stays what it is.
    """


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
    from edgeloop.cli.data_output import count_bar
    from edgeloop.cli.output import plural, print_json
    from edgeloop.demo import make_faces

    with count_bar(f"drawing {plural(count, 'face')}") as progress:
        made = make_faces(folder, count, size, seed, progress)
    if as_json:
        shown = {"count": made.count, "size": made.size, "seed": made.seed}
        print_json([{"folder": str(folder), **shown, "version": made.version}])
    else:
        what = f"{plural(made.count, 'face')} of {made.size} × {made.size}, seed {made.seed}"
        click.echo(f"{what} → {folder}")


@data.command()
@names_argument
@dry_run_option
@click.option("--message", "-m", default="", help="A word on this version, shown by 'data list'.")
@common_options
def push(
    names: tuple[str, ...],
    dry_run: bool,
    message: str,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Send folders below data/ to the store: what changed, and nothing else.

    A name or a path will do. An interrupted push goes on where it was; a version is seen by others
    when all of it is there. A folder that did not change makes no new version.

    Example: edgeloop data push working/faces128 -m 'more hats'
    """
    from edgeloop.cli.data_output import bytes_bar, moved_row, push_line
    from edgeloop.cli.output import print_json
    from edgeloop.data import find_local

    settings, datasets = _opened(store, experiment)
    found = [find_local(settings.project, name) for name in names]
    done = []
    for name, folder in found:
        began = time.monotonic()
        with bytes_bar(f"pushing {name}") as progress:
            pushed = datasets.push(
                name, folder, progress=progress, dry_run=dry_run, message=message
            )
        done.append(moved_row(pushed, dry_run) | {"new": pushed.is_new})
        if not as_json:
            click.echo(push_line(pushed, dry_run, time.monotonic() - began))
    if as_json:
        print_json(done)


@data.command()
@references_argument
@click.option(
    "--to", type=click.Path(path_type=Path), help="Into this folder  [default: data/NAME]"
)
@dry_run_option
@click.option("--delete", is_flag=True, help="Delete files here that the version does not have.")
@click.option("--force", is_flag=True, help="Overwrite files that were changed here.")
@common_options
def pull(
    references: tuple[str, ...],
    to: Path | None,
    dry_run: bool,
    delete: bool,
    force: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Fetch datasets from the store: what differs, and nothing else.

    Without a version, the newest. A file appears when it is whole and right. An interrupted pull
    goes on where it was.

    Example: edgeloop data pull working/faces128@3 --to old-faces
    """
    from edgeloop.cli.data_output import bytes_bar, moved_row, pull_line
    from edgeloop.cli.output import print_json

    if to is not None and len(references) != 1:
        raise click.UsageError(f"--to goes with one dataset, not {len(references)}.")
    settings, datasets = _opened(store, experiment)
    done = []
    for text in references:
        began = time.monotonic()
        reference = datasets.resolve(text)
        folder = to or settings.project / "data" / reference.name
        with bytes_bar(f"pulling {reference}") as progress:
            pulled = datasets.pull(
                reference, folder, progress=progress, dry_run=dry_run, delete=delete, force=force
            )
        row = {"deleted_files": pulled.deleted_files, "folder": str(folder)}
        done.append(moved_row(pulled, dry_run) | row)
        if not as_json:
            click.echo(pull_line(pulled, folder, dry_run, time.monotonic() - began))
    if as_json:
        print_json(done)


@data.command()
@references_argument
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Look at this one  [default: data/NAME]"
)
@click.option("--in-store", is_flag=True, help="Read the bytes in the store, not those here.")
@common_options
def verify(
    references: tuple[str, ...],
    folder: Path | None,
    in_store: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Read everything again and compare it with what was pushed; exit code 1 where it differs.

    Looks at the folder here, or with --in-store at the bytes in the store.

    Example: edgeloop data verify working/faces128
    """
    from edgeloop.cli.data_output import bytes_bar, show_verified, verified_row
    from edgeloop.cli.output import print_json

    if folder is not None and (in_store or len(references) != 1):
        raise click.UsageError("--folder goes with one dataset, and not with --in-store.")
    settings, datasets = _opened(store, experiment)
    results = []
    for text in references:
        reference = datasets.resolve(text)
        here = None if in_store else folder or settings.project / "data" / reference.name
        with bytes_bar(f"verifying {reference}") as progress:
            verified = datasets.verify(reference, here, progress=progress)
        results.append(verified)
        if not as_json:
            show_verified(verified)
    if as_json:
        print_json(verified_row(verified) for verified in results)
    if not all(verified.is_right for verified in results):
        raise SystemExit(1)


@data.command("list")
@click.argument("name", required=False)
@common_options
def list_datasets(
    name: str | None, experiment: str | None, store: str | None, as_json: bool
) -> None:
    """List the datasets in the store; with a name, all its versions.

    Example: edgeloop data list working/faces128
    """
    from edgeloop._util.units import size_text
    from edgeloop.cli.data_output import version_row
    from edgeloop.cli.output import print_json, table

    _, datasets = _opened(store, experiment)
    found = datasets.list() if name is None else datasets.versions(name)
    if as_json:
        print_json(map(version_row, found))
    elif not found:
        click.echo("No datasets yet. Next: edgeloop data push NAME", err=True)
    else:
        cells = [
            (
                str(item.reference),
                f"{item.files:,}",
                size_text(item.bytes),
                item.created[:16].replace("T", " "),
                item.node,
                item.message,
            )
            for item in found
        ]
        headings = ("dataset", "files", "size", "pushed (UTC)", "from", "message")
        click.echo(table(headings, cells, right=("files", "size")))


@data.command()
@references_argument
@yes_option
@common_options
def remove(
    references: tuple[str, ...],
    yes: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Remove versions from the store, and the bytes that no other version needs.

    A name without a version means all its versions. Folders here stay as they are.

    Example: edgeloop data remove working/faces128@1 working/faces128@2 --yes
    """
    from edgeloop.cli.data_output import version_row
    from edgeloop.cli.output import plural, print_json

    _, datasets = _opened(store, experiment)
    chosen = _chosen(datasets, references)
    if not yes:
        _ask([version for versions in chosen.values() for version in versions])
    removed = [
        version
        for name, versions in chosen.items()
        for version in datasets.remove(name, [item.version for item in versions])
    ]
    if as_json:
        print_json(map(version_row, removed))
    else:
        for version in removed:
            click.echo(f"{version.reference} removed")
        click.echo(f"{plural(len(removed), 'version')} removed.")


COMMANDS = (data,)


def _opened(store: str | None, experiment: str | None) -> tuple[Settings, Datasets]:
    """The files of the store alone: no table is opened, so nothing of one is loaded."""
    from edgeloop.data import Datasets
    from edgeloop.settings import STORE_FOLDER, Settings
    from edgeloop.store import open_blobs

    settings = Settings.load(store=store, experiment=experiment)
    index = settings.project / STORE_FOLDER / "index"
    return settings, Datasets(open_blobs(settings.location), index, settings.node)


def _chosen(datasets: Datasets, references: tuple[str, ...]) -> dict[str, list[Version]]:
    """The versions that are meant, by dataset, each once."""
    from edgeloop.data import parse_reference

    chosen: dict[str, list[Version]] = {}
    for text in references:
        name, number = parse_reference(text)
        wanted = None if number is None else datasets.resolve(text).version
        for version in datasets.versions(name):
            mine = chosen.setdefault(version.name, [])
            if version not in mine and wanted in (None, version.version):
                mine.append(version)
    return chosen


def _ask(versions: list[Version]) -> None:
    from edgeloop._util.units import size_text
    from edgeloop.cli.output import plural

    click.echo(f"This will remove {plural(len(versions), 'version')} from the store:", err=True)
    for version in versions:
        size = f"{version.files:,} files, {size_text(version.bytes)}"
        click.echo(f"  {version.reference}  {size}", err=True)
    if sys.stdin is None:  # a job whose input is closed: nobody can answer
        raise click.Abort
    click.confirm("Go on?", abort=True, err=True)
