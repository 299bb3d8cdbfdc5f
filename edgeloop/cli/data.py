"""data: datasets, local and in the store."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop._util.values import plural, size_text
from edgeloop.cli.app import (
    NewPath,
    common_options,
    json_option,
    load_settings,
    missing_store,
    output_option,
    say_if_new,
    yes_option,
)
from edgeloop.cli.terminal import (
    TableColumn,
    bytes_bar,
    count_bar,
    listing,
    print_json,
    printable,
    shown,
)

if TYPE_CHECKING:
    from edgeloop.node.datasets import Datasets, Pulled, Pushed, Verified
    from edgeloop.node.ledger import Version
    from edgeloop.settings import Settings

names_argument = click.argument("names", nargs=-1, required=True, metavar="NAME...")
references_argument = click.argument(
    "references", nargs=-1, required=True, metavar="NAME[@VERSION]..."
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only show what would be transferred."
)


@click.group()
def data() -> None:
    """Create datasets and sync them with the store.

    A dataset is a folder below data/working or data/raw. Its name is the path below data/, such as
    working/faces128; the short form faces128 works if it is unambiguous. The setting data_root
    names another folder than data/. Every push of a change creates a version: working/faces128@3
    never changes.
    """


@data.command()
@click.argument("folder", metavar="DIR", type=NewPath(is_folder=True))
@click.option("--count", default=200, show_default=True, help="Number of faces.")
@click.option("--size", default=128, show_default=True, help="Width and height in pixels.")
@click.option("--seed", default=7, show_default=True, help="Random seed.")
@click.option(
    "--difficulty",
    default="easy",
    show_default=True,
    metavar="LEVEL",
    help="easy, normal, hard, or a number from 0 to 1.",
)
@json_option
def faces(folder: Path, count: int, size: int, seed: int, difficulty: str, as_json: bool) -> None:
    """Draw labelled faces, without a download.

    The layout is that of FaceSynthetics, with 19 classes. The same seed draws the same faces
    everywhere. An interrupted run continues; a folder with other content is refused. A path that
    starts with data/ is below the project, where 'data push' finds it.

    With more difficulty, hands, hair, scarves and masks cover parts of faces that turn away, in
    bad light before busy backgrounds. Larger models then score clearly better than small ones.

    Example: edgeloop data faces faces/ --count 200 --size 128 --seed 7
    """
    from edgeloop.testing.faces import difficulty_of, make_faces

    level = difficulty_of(difficulty)
    if folder.parts[:1] == ("data",):  # as `push` understands it
        folder = load_settings().project / folder
    with count_bar(f"drawing {plural(count, 'face')}") as progress:
        made = make_faces(folder, count, size, seed, progress, difficulty=level)
    if as_json:
        print_json([{"folder": shown(str(folder)), **asdict(made)}])
    else:
        what = f"{plural(made.count, 'face')} of {made.size} × {made.size}, seed {made.seed}"
        what += f", difficulty {made.difficulty:g}" if made.difficulty else ""
        click.echo(f"{what} → {shown(str(folder))}")


@data.command()
@names_argument
@dry_run_option
@click.option("--message", "-m", default="", help="Message for this version, shown by 'data list'.")
@common_options
def push(
    names: tuple[str, ...],
    dry_run: bool,
    message: str,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Upload what changed in a dataset.

    Takes names or paths. An interrupted push continues where it stopped; others see a version when
    it is complete. A folder that did not change creates no version.

    Example: edgeloop data push working/faces128 -m 'more hats'
    """
    from edgeloop.node.ledger import find_local

    settings, datasets = _opened(store, experiment, makes=not dry_run)
    local_folders = [find_local(settings.project, name) for name in names]
    done = []
    for name, folder in local_folders:
        began = time.monotonic()
        with bytes_bar(f"pushing {name}") as progress:
            pushed = datasets.push(
                name, folder, progress=progress, dry_run=dry_run, message=message
            )
        done.append(_moved_row(pushed, dry_run) | {"new": pushed.is_new})
        if not as_json:
            click.echo(_push_line(pushed, dry_run, time.monotonic() - began))
    if as_json:
        print_json(done)


@data.command()
@references_argument
@output_option("Folder of the files  [default: NAME in the project's data folder]", "FOLDER")
@dry_run_option
@click.option("--delete", is_flag=True, help="Delete local files that the version does not have.")
@click.option("--force", is_flag=True, help="Overwrite files that were changed locally.")
@common_options
def pull(
    references: tuple[str, ...],
    output: Path | None,
    dry_run: bool,
    delete: bool,
    force: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Download what differs in a dataset.

    Takes the newest version if none is given. Files appear when they are complete and verified. An
    interrupted pull continues where it stopped.

    Example: edgeloop data pull working/faces128@3 -o old-faces
    """
    if output is not None and len(references) != 1:
        raise click.UsageError(f"--output takes one dataset, not {len(references)}.")
    from edgeloop.node.ledger import below_data

    settings, datasets = _opened(store, experiment)
    done = []
    for text in references:
        began = time.monotonic()
        reference = datasets.resolve(below_data(text, settings.data_root))
        folder = output or settings.project / settings.data_root / reference.name
        with bytes_bar(f"pulling {reference}") as progress:
            pulled = datasets.pull(
                reference, folder, progress=progress, dry_run=dry_run, delete=delete, force=force
            )
        row = {"deleted_files": pulled.deleted_files, "folder": str(folder)}
        done.append(_moved_row(pulled, dry_run) | row)
        if not as_json:
            click.echo(_pull_line(pulled, folder, dry_run, time.monotonic() - began))
    if as_json:
        print_json(done)


@data.command()
@references_argument
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Folder to check  [default: NAME in the project's data folder]",
)
@click.option("--in-store", is_flag=True, help="Check the copy in the store.")
@common_options
def verify(
    references: tuple[str, ...],
    folder: Path | None,
    in_store: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Compare a dataset with what was pushed.

    Reads every file of the local folder again, or every byte in the store with --in-store. Exits
    with 1 if anything differs.

    Example: edgeloop data verify working/faces128
    """
    if folder is not None and (in_store or len(references) != 1):
        raise click.UsageError("--folder takes one dataset, and excludes --in-store.")
    from edgeloop.node.ledger import below_data

    settings, datasets = _opened(store, experiment)
    results = []
    for text in references:
        reference = datasets.resolve(below_data(text, settings.data_root))
        here = (
            None if in_store else folder or settings.project / settings.data_root / reference.name
        )
        with bytes_bar(f"verifying {reference}") as progress:
            verified = datasets.verify(reference, here, progress=progress)
        results.append(verified)
        if not as_json:
            _show_verified(verified, "in the store" if here is None else "here")
    if as_json:
        print_json(_verified_row(verified) for verified in results)
    if not all(verified.is_right for verified in results):
        raise SystemExit(1)


@data.command("list")
@click.argument("name", required=False)
@common_options
def list_datasets(
    name: str | None, experiment: str | None, store: str | None, as_json: bool
) -> None:
    """List datasets, or the versions of one.

    Example: edgeloop data list working/faces128
    """
    from edgeloop._util.values import size_text

    _, datasets = _opened(store, experiment)
    versions = datasets.list() if name is None else datasets.versions(name)
    if as_json:
        print_json(map(_version_row, versions))
    if not versions:
        click.echo("No datasets yet. Next: edgeloop data push NAME", err=True)
    elif not as_json:
        cells = [
            (
                str(item.reference),
                f"{item.files:,}",
                size_text(item.bytes),
                item.created[:16].replace("T", " "),
                item.node,
                item.message,
            )
            for item in versions
        ]
        columns = (
            TableColumn("dataset", 100, 20),
            TableColumn("files", 80, right=True),
            TableColumn("size", 90, right=True),
            TableColumn("pushed (UTC)", 70),
            TableColumn("from", 50, 8),
            TableColumn("message", 60, 12),
        )
        what = "dataset" if name is None else "version"
        files, size = sum(item.files for item in versions), sum(item.bytes for item in versions)
        total = f"{plural(len(versions), what)}: {plural(files, 'file')}, {size_text(size)}"
        click.echo(listing(columns, cells, total=total))


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
    """Remove versions from the store.

    Files that no other version needs are deleted in the store. A name without a version means all
    its versions. Local folders stay as they are.

    Example: edgeloop data remove working/faces128@1 working/faces128@2 --yes
    """
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
        print_json(map(_version_row, removed))
    else:
        for version in removed:
            click.echo(f"{version.reference} removed")
        click.echo(f"{plural(len(removed), 'version')} removed.")


COMMANDS = (data,)


def _opened(
    store: str | None, experiment: str | None, makes: bool = False
) -> tuple[Settings, Datasets]:
    """Opens only the blobs of the store, no table."""
    from edgeloop.node.datasets import Datasets
    from edgeloop.settings import STORE_FOLDER
    from edgeloop.store.location import open_blobs

    settings = load_settings(store=store, experiment=experiment)
    if makes:
        say_if_new(settings)
    else:
        missing_store(settings, makes)
    index = settings.project / STORE_FOLDER / "index"
    return settings, Datasets(open_blobs(settings.location), index, settings.node)


def _chosen(datasets: Datasets, references: tuple[str, ...]) -> dict[str, list[Version]]:
    """The selected versions by dataset, each once."""
    from edgeloop.node.ledger import parse_reference

    chosen: dict[str, list[Version]] = {}
    for text in references:
        name, number = parse_reference(text)
        chosen_version = None if number is None else datasets.resolve(text).version
        for version in datasets.versions(name):
            mine = chosen.setdefault(version.name, [])
            if version not in mine and chosen_version in (None, version.version):
                mine.append(version)
    return chosen


def _ask(versions: list[Version]) -> None:
    from edgeloop._util.values import size_text

    click.echo(f"This will remove {plural(len(versions), 'version')} from the store:", err=True)
    for version in versions:
        size = f"{version.files:,} files, {size_text(version.bytes)}"
        click.echo(f"  {version.reference}  {size}", err=True)
    if sys.stdin is None:  # a job with its input closed: there is no one to answer
        raise click.Abort
    click.confirm("Continue?", abort=True, err=True)


def _push_line(pushed: Pushed, dry_run: bool, seconds: float) -> str:
    whole = _amount(pushed.files, pushed.bytes)
    if not pushed.is_new:
        return f"{pushed.reference}: nothing to do ({whole})"
    moved = _amount(pushed.moved_files, pushed.moved_bytes)
    if dry_run:
        return f"{pushed.reference.name}: would send {moved}, of {whole}"
    return f"{pushed.reference}: {whole}; sent {moved} in {seconds:.1f} s"


def _pull_line(pulled: Pulled, folder: Path, dry_run: bool, seconds: float) -> str:
    where = f"{pulled.reference} → {shown(str(folder))}"
    whole = _amount(pulled.files, pulled.bytes)
    deleted = f", {'delete' if dry_run else 'deleted'} {plural(pulled.deleted_files, 'file')}"
    deleted = deleted if pulled.deleted_files else ""
    if not pulled.moved_files and not deleted:
        return f"{where}: nothing to do ({whole})"
    moved = _amount(pulled.moved_files, pulled.moved_bytes)
    if dry_run:
        return f"{where}: would fetch {moved}{deleted}, of {whole}"
    return f"{where}: {whole}; fetched {moved}{deleted} in {seconds:.1f} s"


def _amount(files: int, size: int) -> str:
    return f"{files:,} file{'' if files == 1 else 's'}, {size_text(size)}"


def _moved_row(moved: Pushed | Pulled, dry_run: bool) -> dict[str, object]:
    return {
        "name": moved.reference.name,
        "version": moved.reference.version,
        "files": moved.files,
        "bytes": moved.bytes,
        "moved_files": moved.moved_files,
        "moved_bytes": moved.moved_bytes,
        "dry_run": dry_run,
    }


def _version_row(version: Version) -> dict[str, object]:
    return {
        "name": version.name,
        "version": version.version,
        "files": version.files,
        "bytes": version.bytes,
        "created": version.created,
        "node": version.node,
        "message": version.message,
    }


def _differences(verified: Verified) -> dict[str, tuple[str, ...]]:
    return {
        "missing": verified.missing,
        "changed": verified.changed,
        "extra": verified.extra,
        "damaged": verified.damaged,
    }


def _verified_row(verified: Verified) -> dict[str, object]:
    return {
        "name": verified.reference.name,
        "version": verified.reference.version,
        "right": verified.is_right,
        **{kind: list(paths) for kind, paths in _differences(verified).items()},
    }


def _show_verified(verified: Verified, where: str) -> None:
    """`where` it was read: the other copy may still be damaged."""
    for kind, paths in _differences(verified).items():
        for path in paths:
            click.echo(f"{kind:<8} {printable(path)}")
    counts = [f"{len(p):,} {kind}" for kind, p in _differences(verified).items() if p]
    whole = _amount(verified.files, verified.bytes)
    click.echo(f"{verified.reference}: {', '.join(counts) or f'all right {where}'} ({whole})")
