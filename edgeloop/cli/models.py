"""upload, download, reset, delete, restore, unlock, priority: models and their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from edgeloop._util.values import plural
from edgeloop.cli.app import (
    ModelFileType,
    any_names_argument,
    benchmark_only_option,
    common_options,
    confirm,
    confirm_deletion,
    names_argument,
    opened,
    output_option,
    shape_option,
    threshold_option,
    unsteady_option,
    yes_option,
)
from edgeloop.cli.terminal import (
    TableColumn,
    listing,
    no_models,
    print_json,
    printable,
    say_empty,
    shown,
)

if TYPE_CHECKING:
    from edgeloop.errors import EdgeloopError
    from edgeloop.models.catalog import Uploaded
    from edgeloop.models.trash import DeletedModel
    from edgeloop.models.upload import UploadOptions
    from edgeloop.store import Record
    from edgeloop.workspace import Workspace

T = TypeVar("T")

LARGEST_PRIORITY = 99_999_999  # as in edgeloop.models, which takes long to import


@click.command()
@click.argument("paths", nargs=-1, required=True, type=ModelFileType())
@click.option("--name", help="Name of the model  [default: a friendly one]")
@click.option(
    "--priority",
    type=click.IntRange(0, LARGEST_PRIORITY),
    help="Lower runs sooner; 0 runs before everything.",
)
@benchmark_only_option
@click.option("--tag", multiple=True, help="Label to filter by; repeatable.")
@shape_option
@click.option("--no-check", is_flag=True, help="Upload valid ONNX that no known chip takes, too.")
@common_options
def upload(
    paths: tuple[Path, ...],
    name: str | None,
    priority: int | None,
    benchmark_only: bool,
    tag: tuple[str, ...],
    shapes: tuple[str, ...],
    no_check: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Upload ONNX models to the store.

    Every file is checked first: what no runner could use is refused, with the reason, and for the
    others it says what will be evaluated. External data files are uploaded with their model.
    Content that is already in the experiment is recognised and not stored twice.

    A path is an ONNX file, a folder of them, or demo:unet-large, a model shipped with Edgeloop.

    A free batch becomes 1. Other sizes that a file leaves open are given with --shape, and asked
    for on a terminal.

    Example: edgeloop upload nets/*.onnx --tag unet --priority 10
    """
    from edgeloop._util.values import size_text
    from edgeloop.graph.info import parse_shapes
    from edgeloop.models.upload import UploadOptions

    files = [file for path in paths for file in _models_in(path)]
    if name is not None and len(files) != 1:
        raise click.UsageError(f"--name takes one file, not {len(files)}.")
    options = UploadOptions(
        priority, benchmark_only, tag, shapes=parse_shapes(shapes), check=not no_check
    )
    with opened(store, experiment, makes=True) as workspace:
        uploaded, failed = _upload_all(workspace, files, name, options)
        if as_json:
            print_json(_as_json(item) for item in uploaded)
        else:
            for item in uploaded:
                file, size = printable(item.path.name), size_text(item.size)
                note = item.outlook if item.is_new else "already uploaded: same content"
                click.echo(f"{item.model.name:<20} {file:<30} {size:>9}   {note}".rstrip())
            new = sum(item.is_new for item in uploaded)
            where = f"experiment '{workspace.experiment}' ({shown(workspace.store.description)})"
            chosen = f"-e {workspace.experiment}"
            next_steps = f"edgeloop runner {chosen}; then edgeloop status {chosen}"
            click.echo(f"{plural(new, 'model')} uploaded to {where}. Next: {next_steps}")
    if failed:
        raise SystemExit(1)


@click.command()
@any_names_argument
@output_option("Folder of the files  [default: the model's name]", "FOLDER")
@click.option(
    "--match", default="*", metavar="GLOB", help="Only files that match, such as '*.csv'."
)
@click.option("--list", "only_lists", is_flag=True, help="List the files; download none.")
@common_options
def download(
    names: tuple[str, ...],
    output: Path | None,
    match: str,
    only_lists: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Download or list the files of models.

    With several models, each gets a folder named after it below --output. --list shows what there
    is, of all models unless some are named.

    Example: edgeloop download calm-heron -o calm/ --match '*.dlc'

    Example: edgeloop download --list 'brave-*'
    """
    if only_lists:
        if output is not None:
            raise click.UsageError("choose one of --list and --output.")
        with opened(store, experiment) as workspace:
            _list_files(workspace, names, match, as_json)
        return
    if not names:
        raise click.UsageError("name models to download, or use --list.")
    fetched: list[dict[str, object]] = []
    with opened(store, experiment) as workspace:
        rows = workspace.find(names)
        for row in rows:
            folder = (output or Path()) / row.key
            if output is not None and len(rows) == 1:
                folder = output
            paths = workspace.catalog.download(row.key, folder, match)
            fetched += [{"name": row.key, "file": str(path)} for path in paths]
            if not as_json:
                click.echo(f"{row.key}: {plural(len(paths), 'file')} → {folder}")
    if as_json:
        print_json(fetched)
    elif not fetched:
        everything = f"'edgeloop download --list -e {workspace.experiment}' shows all files."
        click.echo(f"No file matches {match!r}. {everything}", err=True)
    if not fetched:
        raise SystemExit(1)


def _list_files(workspace: Workspace, names: tuple[str, ...], match: str, as_json: bool) -> None:
    from fnmatch import fnmatchcase

    from edgeloop._util.values import size_text

    listed = [
        (row.key, file)
        for row in workspace.catalog.rows(names)
        for file in workspace.catalog.files(row.key)
    ]
    files = [(name, file) for name, file in listed if fnmatchcase(file.name, match)]
    if not listed:
        say_empty(no_models(workspace), as_json)
    elif not files:
        say_empty(f"No file matches {match!r}.", as_json)
    if as_json:
        print_json(
            {"name": n, "file": f.name, "size": f.size, "modified": f.modified.isoformat()}
            for n, f in files
        )
        return
    if not files:
        return
    cells = [(n, f.name, size_text(f.size), f"{f.modified:%Y-%m-%d %H:%M}") for n, f in files]
    columns = (
        TableColumn("model", 100, 16),
        TableColumn("file", 95, 24),
        TableColumn("size", 90, right=True),
        TableColumn("modified", 80),
    )
    models, size = len({name for name, _ in files}), sum(file.size for _, file in files)
    total = f"{plural(len(files), 'file')} of {plural(models, 'model')}, {size_text(size)}"
    click.echo(listing(columns, cells, total=total))


def _models_in(path: Path) -> list[Path]:
    """A folder stands for the .onnx files directly in it."""
    from edgeloop.errors import BadInput

    if not path.is_dir():
        return [path]
    models = sorted(path.glob("*.onnx"))
    if not models:
        raise BadInput(reason=f"there is no .onnx file in {path}: name a model or another folder")
    return models


def _upload_all(
    workspace: Workspace, files: list[Path], name: str | None, options: UploadOptions
) -> tuple[list[Uploaded], int]:
    """The uploaded models, and the number of failures; each failure is printed at once."""
    from edgeloop._util.redact import redact
    from edgeloop.errors import EdgeloopError
    from edgeloop.models.catalog import Uploaded

    if len(files) == 1:
        try:
            return [workspace.catalog.upload(files[0], name, options)], 0
        except EdgeloopError as error:
            completed = _asked_shapes(files[0], options, error)
            if completed is None:
                raise
            return [workspace.catalog.upload(files[0], name, completed)], 0
    uploaded: list[Uploaded] = []
    for file, item in zip(files, workspace.upload_many(files, options), strict=True):
        result: Uploaded | Exception = item
        completed = None
        if isinstance(item, EdgeloopError):
            completed = _asked_shapes(file, options, item)
        if completed is not None:
            (result,) = workspace.upload_many([file], completed)
        if isinstance(result, Uploaded):
            uploaded.append(result)
        elif isinstance(result, EdgeloopError):
            click.echo(redact(f"edgeloop: {result}"), err=True)
        else:
            raise result
    return uploaded, len(files) - len(uploaded)


def _asked_shapes(file: Path, options: UploadOptions, error: EdgeloopError) -> UploadOptions | None:
    """The same options with sizes typed at a prompt; None if no size is missing, or there is no
    terminal to ask at."""
    import sys
    from dataclasses import replace

    from edgeloop.errors import UnusableModel
    from edgeloop.graph.info import parse_shapes
    from edgeloop.graph.isolated import graph_pool

    asked = isinstance(error, UnusableModel) and "--shape" in str(error)
    if not asked or sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    shapes = dict(options.shapes)
    for tensor in graph_pool().summarize(file, shapes).inputs:
        if tensor.name in shapes or not tensor.needs_shape:
            continue
        words = "x".join(map(str, tensor.shape))
        text = f"{printable(file.name)}: shape of input {printable(tensor.name)} ({words})"
        typed = click.prompt(text, default=tensor.example, err=True)
        shapes |= parse_shapes([f"{tensor.name}={typed.strip()}"])
    return replace(options, shapes=shapes)


def _as_json(item: Uploaded) -> dict[str, object]:
    from edgeloop.graph.info import fitting_task

    info = item.summary.info if item.summary else None
    fit = fitting_task(info) if info else None
    return {
        "name": item.model.name,
        "model_name": item.path.name,
        "experiment": item.model.catalog.experiment,
        "size": item.size,
        "new": item.is_new,
        "task": fit.task if fit else None,
        "task_reason": fit.why if fit else None,
    }


@click.command()
@any_names_argument
@click.option(
    "--stage", multiple=True, help="Only this stage and those that depend on it; repeatable."
)
@click.option("--failed", is_flag=True, help="Only models in error, and only what failed.")
@unsteady_option
@threshold_option
@yes_option
@common_options
def reset(
    names: tuple[str, ...],
    stage: tuple[str, ...],
    failed: bool,
    unsteady: bool,
    threshold: float,
    yes: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Clear results so that runners redo them.

    Clears all stages, or those named with --stage, together with their files. A model that another
    tool holds, such as Archai, is left alone until it is free or unlocked.

    With --failed, models in error are tried again: all of them, or those named. Only the stages
    that failed are cleared, and those that depend on them.

    With --unsteady, models whose benchmark varies too much from run to run are benchmarked again.

    Example: edgeloop reset 'brave-*' --stage f1_1k

    Example: edgeloop reset --failed
    """
    if not names and not failed and not unsteady:
        raise click.UsageError("name models, or use --failed or --unsteady.")
    if unsteady and (failed or stage):
        raise click.UsageError("--unsteady clears benchmarks only: leave out --failed and --stage.")
    if unsteady:
        stage = ("benchmark",)
    from edgeloop.models.columns import run_spread

    with opened(store, experiment) as workspace:
        for chosen in stage:
            workspace.plan[chosen]
        rows = workspace.find(names)
        if failed:
            rows = [row for row in rows if row.values.get("status") == "error"]
        if unsteady:
            rows = [row for row in rows if run_spread(row.values) > threshold]
        hint = "" if rows or failed or unsteady else no_models(workspace)
        confirm("reset", rows, yes)
        done = []

        def clear(row: Record) -> set[str]:
            chosen_stages = stage or (workspace.catalog.failed_stages(row.values) if failed else ())
            return workspace.catalog.reset(row.key, chosen_stages)

        for row, cleared in _changed(rows, clear):
            order = workspace.plan.in_order(cleared)
            done.append({"name": row.key, "reset": order})
            if not as_json:
                click.echo(f"{row.key}: reset {', '.join(order)}")
    if as_json:
        print_json(done)
    elif not rows:
        no_error = f"No model is in error in experiment '{workspace.experiment}'."
        no_spread = f"No model's benchmark varies by more than {threshold:g} %."
        click.echo(no_error if failed else no_spread if unsteady else hint)
    if len(done) < len(rows):
        raise SystemExit(1)


@click.command()
@names_argument
@click.option("--purge", is_flag=True, help="Delete the files at once; nothing can be restored.")
@yes_option
@common_options
def delete(
    names: tuple[str, ...],
    purge: bool,
    yes: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Delete models with all their files.

    Asks first; without a terminal it needs --yes. 'edgeloop restore NAME' brings a model back with
    its results for seven days, unless a model is uploaded under the same name, or the space is
    freed: by --purge, or by 'edgeloop gc' with a shorter --older-than.

    A model that another tool holds, such as Archai, is left alone until it is free or unlocked.

    Example: edgeloop delete lucky-marten --yes
    """
    with opened(store, experiment) as workspace:
        rows = workspace.find(names)
        confirm_deletion(rows, yes)
        deleted = []

        def remove(row: Record) -> bool:
            if not purge:
                return workspace.catalog.discard(row.key)
            workspace.catalog.delete(row.key)
            return False

        for row, can_restore in _changed(rows, remove):
            deleted.append({"name": row.key, "deleted": True, "can_restore": can_restore})
            if not as_json:
                click.echo(f"{row.key}: deleted{'' if can_restore else ' for good'}")
        kept = [str(item["name"]) for item in deleted if item["can_restore"]]
        if kept and not as_json:
            which = kept[0] if len(kept) == 1 else "NAME"
            undo = f"edgeloop restore {which} -e {workspace.experiment}"
            click.echo(f"For seven days, this brings it back: {undo}", err=True)
    if as_json:
        print_json(deleted)
    if len(deleted) < len(rows):
        raise SystemExit(1)


@click.command()
@any_names_argument
@click.option("--list", "only_lists", is_flag=True, help="List what can be restored.")
@common_options
def restore(
    names: tuple[str, ...],
    only_lists: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Bring back deleted models.

    A deleted model can be restored with its files and results for seven days. Stages that were
    running when it was deleted are run again.

    Example: edgeloop restore lucky-marten

    Example: edgeloop restore --list
    """
    from edgeloop.models.columns import is_pattern

    if not names and not only_lists:
        raise click.UsageError("name models to restore, or use --list.")
    with opened(store, experiment) as workspace:
        catalog = workspace.catalog
        if only_lists:
            _list_deleted(catalog.trash.models(names), workspace.experiment, as_json)
            return
        chosen = [name for name in names if not is_pattern(name)]
        patterns = [name for name in names if is_pattern(name)]
        if patterns:
            chosen += [model.name for model in catalog.trash.models(patterns)]
        if not chosen:
            click.echo("No deleted model matches. See: edgeloop restore --list", err=True)
            raise SystemExit(1)
        restored = []
        for name in dict.fromkeys(chosen):
            catalog.restore(name)
            restored.append({"name": name, "restored": True})
            if not as_json:
                click.echo(f"{name}: restored")
    if as_json:
        print_json(restored)


def _list_deleted(deleted: list[DeletedModel], experiment: str, as_json: bool) -> None:
    from edgeloop._util.values import size_text

    if as_json:
        print_json({**vars(model), "since": model.since.isoformat()} for model in deleted)
    if not deleted:
        say_empty(f"No deleted model can be restored in experiment '{experiment}'.", as_json)
    if as_json or not deleted:
        return
    cells = [
        (model.name, f"{model.since:%Y-%m-%d %H:%M}", str(model.files), size_text(model.size))
        for model in deleted
    ]
    columns = (
        TableColumn("name", 100, 20),
        TableColumn("deleted", 90),
        TableColumn("files", 80, right=True),
        TableColumn("size", 85, right=True),
    )
    click.echo(listing(columns, cells, total=plural(len(deleted), "deleted model")))


def _changed(rows: list[Record], change: Callable[[Record], T]) -> Iterator[tuple[Record, T]]:
    """The rows that were changed, each with what `change` returned. A busy one among several is
    reported and left alone; on its own it is an error."""
    from edgeloop._util.redact import redact
    from edgeloop.errors import ModelBusy

    for row in rows:
        try:
            result = change(row)
        except ModelBusy as error:
            if len(rows) == 1:
                raise
            click.echo(redact(f"edgeloop: {error}"), err=True)
            continue
        yield row, result


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
    is_number = value.isdecimal() and len(value) < 20 and int(value) <= LARGEST_PRIORITY
    if value != "auto" and not is_number:
        allowed = f"a whole number from 0 to {LARGEST_PRIORITY}, or 'auto'"
        raise click.UsageError(f"a priority is {allowed}, not {value[:40]!r}.")
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


COMMANDS = (upload, download, reset, delete, restore, unlock, priority)
