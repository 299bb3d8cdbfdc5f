"""Options that every command has, and what they open."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from edgeloop.platforms import Precision, PrecisionPlan
    from edgeloop.settings import Settings
    from edgeloop.store import Record
    from edgeloop.workspace import Workspace

Command = TypeVar("Command", bound=Callable[..., None])

_LEFT_OUT = "edgeloop.rows_left_out"

names_argument = click.argument("names", nargs=-1, required=True)
any_names_argument = click.argument("names", nargs=-1)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


workspace_option = click.option(
    "--workspace-config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="config.json of the Azure ML workspace  [default: .azureml/config.json]",
)


def common_options(command: Command) -> Command:
    """--experiment, --store, --json: the same for every command."""
    default = "$EDGELOOP_EXPERIMENT, else 'default'"
    return _common_options(command, f"The experiment  [default: {default}]")


def all_experiments_options(command: Command) -> Command:
    """The same for a command that means every experiment unless it is told one."""
    return _common_options(command, "Only this experiment  [default: every one of the store]")


def _common_options(command: Command, experiment_help: str) -> Command:
    options = (
        click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs."),
        click.option(
            "--store",
            metavar="URL",
            help="sqlite:FOLDER, postgresql://…?blobs=URL or azure:URL  [default: $EDGELOOP_STORE, "
            "$MODEL_STORAGE_CONNECTION_STRING, else the folder .edgeloop]",
        ),
        click.option("--experiment", "-e", metavar="NAME", help=experiment_help),
    )
    for option in options:
        command = option(command)
    return command


shape_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=SIZES",
    help="Shape of an input that the file leaves open, such as x=1x3x224x224; repeatable.",
)


class PrecisionType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """The name of a precision, or `mixed:` and the file of a plan, which is read here."""

    name = "precision"
    names = ("a8w8", "a8w8-per-channel", "a16w8")

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Precision | PrecisionPlan:
        from edgeloop.platforms import MIXED, PrecisionPlan, parse_precision

        if isinstance(value, PrecisionPlan):
            return value
        if value not in self.names and not value.startswith(MIXED):
            choices = ", ".join(map(repr, self.names))
            self.fail(f"{value!r} is not one of {choices}, or 'mixed:FILE'.", param, ctx)
        return parse_precision(value)


precision_option = click.option(
    "--precision",
    type=PrecisionType(),
    default="a8w8-per-channel",
    show_default=True,
    metavar="NAME|mixed:FILE",
    help="a8w8, a8w8-per-channel, a16w8, or a file of 'edgeloop precision'.",
)


fallback_option = click.option(
    "--allow-cpu-fallback", is_flag=True, help="Leave operators that a chip lacks to the CPU."
)


demo_option = click.option("--demo", is_flag=True, help="Show the results shipped with Edgeloop.")


@contextlib.contextmanager
def opened(
    store: str | None, experiment: str | None, demo: bool = False, makes: bool = False
) -> Iterator[Workspace]:
    """`makes`: a store that was named and is not there is begun, and that is said. Other commands
    refuse it: the disk that it is on may not be mounted."""
    from edgeloop.workspace import Workspace

    if demo:
        with _demo(store, experiment) as workspace:
            yield workspace
        return
    with (
        Workspace.open(store, experiment) as workspace,
        found_or_made(workspace.settings, makes),
        noting_rows_left_out(),
    ):
        yield workspace


@contextlib.contextmanager
def noting_rows_left_out(is_noted: bool = True) -> Iterator[None]:
    """A command whose answer lacks rows that cannot be read ends with exit code 1 (`has_all_rows`);
    a runner that works until it is stopped ends as ever."""
    from edgeloop.store import rows_left_out

    before = rows_left_out()
    yield
    if is_noted and rows_left_out() > before:
        click.get_current_context().meta[_LEFT_OUT] = True


def has_all_rows(context: click.Context) -> bool:
    return not context.meta.get(_LEFT_OUT)


@contextlib.contextmanager
def found_or_made(settings: Settings, makes: bool) -> Iterator[None]:
    from edgeloop.cli.output import shown

    missing = missing_store(settings, makes)
    try:
        yield
    finally:
        if missing is not None and any((missing / name).exists() for name in ("store.db", "blobs")):
            click.echo(f"edgeloop: a new store was made at {shown(str(missing))}.", err=True)


def check_folder(workspace: Workspace) -> None:
    """For a command that would go on with errors: raises StoreError if what is in place of a store
    in a folder is no store. A database that is locked, or a server, may be back later."""
    from edgeloop.errors import StoreUnavailable
    from edgeloop.store import SqliteLocation

    if isinstance(workspace.settings.location, SqliteLocation):
        with contextlib.suppress(StoreUnavailable):
            workspace.store.experiments()


def say_if_new(settings: Settings) -> None:
    """For commands that go on for long, or may well come before the first upload."""
    from edgeloop.cli.output import shown

    folder = missing_store(settings, makes=True)
    if folder is not None:
        place = shown(str(folder))
        click.echo(f"edgeloop: there is no store at {place} yet: a new one is made.", err=True)


def missing_store(settings: Settings, makes: bool) -> Path | None:
    """The folder of a store that was named and has not been begun. Raises StoreMissing unless a
    command `makes` it, and even then where a disk should be mounted and is not."""
    from edgeloop._util.system import unmounted_above
    from edgeloop.errors import StoreMissing
    from edgeloop.settings import STORE_FOLDER
    from edgeloop.store import SqliteLocation

    location = settings.location
    if not isinstance(location, SqliteLocation):
        return None
    location.check()
    if location.folder.name == STORE_FOLDER:
        return None
    folder = location.folder
    if (folder / "store.db").exists() or (folder / "blobs").exists():
        return None
    place = unmounted_above(folder)
    if place is not None:
        reason = f"{place} is not mounted on this machine. Mount it, then try again."
        raise StoreMissing(store=folder, reason=reason)
    if not makes:
        reason = "it is not there. If it is on a disk or a share, check that it is mounted; "
        raise StoreMissing(store=folder, reason=f"{reason}'edgeloop upload' begins a new one.")
    return folder


def _demo(store: str | None, experiment: str | None) -> Workspace:
    from edgeloop.demo import CHIP_EXPERIMENT, HOST_EXPERIMENT, open_demo

    if store is not None:
        raise click.UsageError("--demo brings its own store: leave out --store or --demo.")
    known = (CHIP_EXPERIMENT, HOST_EXPERIMENT)
    if experiment is not None and experiment not in known:
        raise click.UsageError(f"the demo store has the experiments {' and '.join(known)}.")
    return open_demo(experiment or CHIP_EXPERIMENT)


def confirm(verb: str, rows: list[Record], yes: bool) -> None:
    """Lists what a change to several models will touch, and asks."""
    if yes or len(rows) < 2:
        return
    click.echo(f"This will {verb} {len(rows)} models:", err=True)
    for row in rows:
        click.echo(f"  {row.key}", err=True)
    if sys.stdin is None:  # a job with its input closed: nobody can answer
        raise click.Abort
    click.confirm("Continue?", abort=True, err=True)
