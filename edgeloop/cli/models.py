"""upload, download, list, reset, delete, unlock, priority: models and their files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.context import (
    any_names_argument,
    common_options,
    confirm,
    names_argument,
    opened,
    yes_option,
)

if TYPE_CHECKING:
    from edgeloop.models import Uploaded
    from edgeloop.workspace import Workspace


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--name", help="Name of the model  [default: a friendly one]")
@click.option(
    "--priority", type=click.IntRange(min=0), help="Lower runs sooner; 0 runs before everything."
)
@click.option("--benchmark-only", is_flag=True, help="Only convert and benchmark.")
@click.option("--tag", multiple=True, help="Label to filter by; repeatable.")
@common_options
def upload(
    paths: tuple[Path, ...],
    name: str | None,
    priority: int | None,
    benchmark_only: bool,
    tag: tuple[str, ...],
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Upload ONNX models to the store.

    Every file is checked first. External data files are uploaded with their model. Content that is
    already in the experiment is recognised and not stored twice.

    Example: edgeloop upload nets/*.onnx --tag unet --priority 10
    """
    from edgeloop._util.units import size_text
    from edgeloop.cli.output import plural, print_json, printable, shown
    from edgeloop.models import UploadOptions

    files = [file for path in paths for file in _models_in(path)]
    if name is not None and len(files) != 1:
        raise click.UsageError(f"--name takes one file, not {len(files)}.")
    options = UploadOptions(priority, benchmark_only, tag)
    with opened(store, experiment) as workspace:
        uploaded, failed = _upload_all(workspace, files, name, options)
        if as_json:
            print_json(_as_json(item) for item in uploaded)
        else:
            for item in uploaded:
                note = "" if item.is_new else "   already uploaded: same content"
                file = printable(item.path.name)
                click.echo(f"{item.model.name:<20} {file:<30} {size_text(item.size):>9}{note}")
            new = sum(item.is_new for item in uploaded)
            where = f"experiment '{workspace.experiment}' ({shown(workspace.store.description)})"
            click.echo(f"{plural(new, 'model')} uploaded to {where}. Next: edgeloop status")
    if failed:
        raise SystemExit(1)


@click.command()
@names_argument
@click.option(
    "--to", type=click.Path(path_type=Path), help="Target folder  [default: the model's name]"
)
@click.option(
    "--match", default="*", metavar="GLOB", help="Only files that match, such as '*.csv'."
)
@common_options
def download(
    names: tuple[str, ...],
    to: Path | None,
    match: str,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Download the files of models.

    With several models, each gets a folder named after it below --to.

    Example: edgeloop download calm-heron --to calm/ --match '*.dlc'
    """
    from edgeloop.cli.output import plural, print_json

    fetched: list[dict[str, object]] = []
    with opened(store, experiment) as workspace:
        rows = workspace.find(names)
        for row in rows:
            folder = to if to is not None and len(rows) == 1 else (to or Path()) / row.key
            paths = workspace.catalog.download(row.key, folder, match)
            fetched += [{"name": row.key, "file": str(path)} for path in paths]
            if not as_json:
                click.echo(f"{row.key}: {plural(len(paths), 'file')} → {folder}")
    if as_json:
        print_json(fetched)
    elif not fetched:
        click.echo(f"No file matches {match!r}. 'edgeloop list' shows all files.", err=True)
    if not fetched:
        raise SystemExit(1)


@click.command("list")
@any_names_argument
@common_options
def list_files(
    names: tuple[str, ...], experiment: str | None, store: str | None, as_json: bool
) -> None:
    """List the files of models.

    Example: edgeloop list 'brave-*'
    """
    from edgeloop._util.units import size_text
    from edgeloop.cli.output import print_json, table

    with opened(store, experiment) as workspace:
        found = [
            (row.key, file)
            for row in workspace.catalog.rows(names)
            for file in workspace.catalog.files(row.key)
        ]
    if as_json:
        print_json(
            {"name": n, "file": f.name, "size": f.size, "modified": f.modified.isoformat()}
            for n, f in found
        )
        return
    cells = [(n, f.name, size_text(f.size), f"{f.modified:%Y-%m-%d %H:%M}") for n, f in found]
    click.echo(table(("model", "file", "size", "modified"), cells, right=("size",)))


def _models_in(path: Path) -> list[Path]:
    """A folder stands for the .onnx files directly in it."""
    from edgeloop.errors import BadInput

    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.onnx"))
    if not found:
        raise BadInput(reason=f"there is no .onnx file in {path}: name a model or another folder")
    return found


def _upload_all(
    workspace: Workspace, files: list[Path], name: str | None, options: object
) -> tuple[list[Uploaded], int]:
    """The uploaded models, and the number of failures; each failure is printed at once."""
    from edgeloop._util.redact import redact
    from edgeloop.errors import EdgeloopError
    from edgeloop.models import Uploaded, UploadOptions

    assert isinstance(options, UploadOptions)
    if len(files) == 1:
        return [workspace.catalog.upload(files[0], name, options)], 0
    uploaded: list[Uploaded] = []
    for item in workspace.upload_many(files, options):
        if isinstance(item, Uploaded):
            uploaded.append(item)
        elif isinstance(item, EdgeloopError):
            click.echo(redact(f"edgeloop: {item}"), err=True)
        else:
            raise item
    return uploaded, len(files) - len(uploaded)


def _as_json(item: Uploaded) -> dict[str, object]:
    return {
        "name": item.model.name,
        "model_name": item.path.name,
        "experiment": item.model.catalog.experiment,
        "size": item.size,
        "new": item.is_new,
    }


@click.command()
@names_argument
@click.option(
    "--stage", multiple=True, help="Only this stage and those that depend on it; repeatable."
)
@yes_option
@common_options
def reset(
    names: tuple[str, ...],
    stage: tuple[str, ...],
    yes: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Clear results so that runners redo them.

    Clears all stages, or those named with --stage, together with their files. A model that another
    tool holds, such as Archai, is left alone until it is free or unlocked.

    Example: edgeloop reset 'brave-*' --stage f1_1k
    """
    from edgeloop._util.redact import redact
    from edgeloop.cli.output import print_json
    from edgeloop.errors import ModelBusy

    with opened(store, experiment) as workspace:
        for chosen in stage:
            workspace.plan[chosen]
        rows = workspace.find(names)
        confirm("reset", rows, yes)
        done = []
        for row in rows:
            try:
                cleared = workspace.catalog.reset(row.key, stage)
            except ModelBusy as error:
                if len(rows) == 1:
                    raise
                click.echo(redact(f"edgeloop: {error}"), err=True)
                continue
            order = [s.name for s in workspace.plan.stages if s.name in cleared]
            done.append({"name": row.key, "reset": order})
            if not as_json:
                click.echo(f"{row.key}: reset {', '.join(order)}")
    if as_json:
        print_json(done)
    if len(done) < len(rows):
        raise SystemExit(1)


@click.command()
@names_argument
@yes_option
@common_options
def delete(
    names: tuple[str, ...], yes: bool, experiment: str | None, store: str | None, as_json: bool
) -> None:
    """Delete models with all their files.

    Example: edgeloop delete lucky-marten
    """
    from edgeloop.cli.output import print_json

    with opened(store, experiment) as workspace:
        rows = workspace.find(names)
        confirm("delete", rows, yes)
        for row in rows:
            workspace.catalog.delete(row.key)
            if not as_json:
                click.echo(f"{row.key}: deleted")
    if as_json:
        print_json({"name": row.key, "deleted": True} for row in rows)


@click.command()
@any_names_argument
@click.option("--node", help="Only the claims of this machine, on any model.")
@yes_option
@common_options
def unlock(
    names: tuple[str, ...],
    node: str | None,
    yes: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Release the claims of a dead machine.

    Others need not wait until the claims expire. If the machine turns out to be alive, the results
    of the released claims are discarded.

    Example: edgeloop unlock --node bench-1
    """
    from edgeloop.cli.output import print_json

    if not names and node is None:
        raise click.UsageError("name models, or a machine with --node.")
    with opened(store, experiment) as workspace:
        held = workspace.catalog.held_by(node) if node is not None else None
        rows = workspace.find(names) if names else held or []
        confirm("unlock", rows, yes)
        done = [
            {"name": row.key, "unlocked": workspace.catalog.unlock(row.key, node)} for row in rows
        ]
    if as_json:
        print_json(done)
        return
    for item in done:
        freed = item["unlocked"]
        assert isinstance(freed, list)
        click.echo(f"{item['name']}: {'unlocked ' + ', '.join(freed) if freed else 'was not held'}")
    if not done:
        click.echo(f"{node} holds nothing in experiment '{workspace.experiment}'.")


@click.command()
@names_argument
@click.argument("value", metavar="N|auto")
@yes_option
@common_options
def priority(
    names: tuple[str, ...],
    value: str,
    yes: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Set the priority of models.

    Lower runs sooner and 0 before everything; 'auto' restores the priorities of the stages.

    Example: edgeloop priority calm-heron 0
    """
    from edgeloop.cli.output import print_json

    if value != "auto" and not value.isdecimal():
        raise click.UsageError(f"a priority is 0 or more, or 'auto', not {value!r}.")
    number = None if value == "auto" else int(value)
    with opened(store, experiment) as workspace:
        rows = workspace.find(names)
        confirm("set the priority of", rows, yes)
        for row in rows:
            workspace.catalog.set_priority(row.key, number)
            if not as_json:
                click.echo(f"{row.key}: priority {value}")
    if as_json:
        print_json({"name": row.key, "priority": number} for row in rows)


COMMANDS = (upload, download, list_files, reset, delete, unlock, priority)
