"""Options that every command has, and what they open."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from edgeloop.jobs.client import Jobs
    from edgeloop.platforms import Precision, PrecisionPlan
    from edgeloop.settings import Settings
    from edgeloop.store import Record
    from edgeloop.workspace import Workspace

Command = TypeVar("Command", bound=Callable[..., None])

_LEFT_OUT = "edgeloop.rows_left_out"
_PROJECT = "edgeloop.project"

names_argument = click.argument("names", nargs=-1, required=True)
any_names_argument = click.argument("names", nargs=-1)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


class ExistingPath(click.Path):
    """A file or folder that must be there. Where it is not, the message has its whole path: a
    relative one may have been meant from another folder."""

    def __init__(self, dir_okay: bool = True) -> None:
        super().__init__(exists=True, dir_okay=dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not Path(value).exists():
            what = "file or folder" if self.dir_okay else "file"
            self.fail(f"there is no {what} {Path(value).absolute()}.", param, ctx)
        return super().convert(value, param, ctx)


workspace_option = click.option(
    "--workspace-config",
    metavar="FILE",
    type=ExistingPath(dir_okay=False),
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


DEMO_PREFIX = "demo:"


def model_file(text: str) -> Path:
    """The file that somebody means: a path, or `demo:NAME` for a model of the package."""
    if not text.startswith(DEMO_PREFIX) or Path(text).exists():
        return Path(text)
    from edgeloop.view.demo import demo_model

    return demo_model(text.removeprefix(DEMO_PREFIX))


class ModelFileType(ExistingPath):
    """A path, or `demo:NAME`. Unless it is `checked`, the command itself says what is missing."""

    def __init__(self, checked: bool = False) -> None:
        super().__init__(dir_okay=False)
        self._is_checked = checked

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = model_file(str(value))
        return super().convert(path, param, ctx) if self._is_checked else path


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


def load_settings(
    store: str | None = None, experiment: str | None = None, workspace_config: Path | None = None
) -> Settings:
    """The settings of a command. The first one who asks also says which folder is the project."""
    from edgeloop.settings import Settings

    settings = Settings.load(store=store, experiment=experiment, workspace_config=workspace_config)
    say_project(settings.project)
    return settings


def open_jobs(
    store: str | None, experiment: str | None, workspace_config: Path | None = None
) -> Jobs:
    from edgeloop.jobs.client import Jobs

    return Jobs(load_settings(store, experiment, workspace_config))


def say_project(project: Path) -> None:
    """Store, settings, data and runs are those of the project; so where that is not the current
    folder, the first line says so. On stderr, once per command."""
    from edgeloop.cli.output import printable
    from edgeloop.paths import project_mark

    context = click.get_current_context(silent=True)
    if context is None or context.meta.get(_PROJECT) or project == Path.cwd():
        return
    context.meta[_PROJECT] = True
    click.echo(f"Project: {printable(str(project))} (it has {project_mark(project)})", err=True)


def dataset_folder(given: Path | None, settings: Settings) -> Path | None:
    """The folder that --dataset or the settings name: a path from here (in `edgeloop.yaml`: from
    the project), or the name of a dataset of the project, such as `working/faces128`. Whole, so
    that messages say where something was looked for."""
    from edgeloop.errors import EdgeloopError
    from edgeloop.node.ledger import find_local

    text = str(given or settings.dataset)
    if given is None and not settings.dataset:
        return None
    bases = (Path.cwd(), settings.project)
    bases = bases if given is not None else bases[::-1]
    path = Path(text).expanduser()
    for base in bases:
        if (base / path).exists():
            return base / path
    with contextlib.suppress(EdgeloopError):
        return find_local(settings.project, text)[1]
    return bases[0] / path


def given_dataset(given: Path | None, settings: Settings) -> Path | None:
    """For commands that take no dataset from the settings; raises NotFound if it is not there."""
    from edgeloop.errors import NotFound

    folder = dataset_folder(given, settings) if given is not None else None
    if folder is not None and not folder.exists():
        raise NotFound(reason=f"the dataset {folder} is not there: name another folder")
    return folder


@contextlib.contextmanager
def opened(
    store: str | None, experiment: str | None, demo: bool = False, makes: bool = False
) -> Iterator[Workspace]:
    """`makes`: a store that was named and is not there is begun, and that is said. Other commands
    refuse it: the disk that it is on may not be mounted."""
    from edgeloop.cli.terminal import hinting
    from edgeloop.workspace import Workspace

    if demo:
        with _demo(store, experiment) as workspace, hinting(workspace):
            yield workspace
        return
    with (
        Workspace(load_settings(store, experiment)) as workspace,
        found_or_made(workspace.settings, makes),
        noting_rows_left_out(),
        hinting(workspace),
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
    from edgeloop.view.demo import CHIP_EXPERIMENT, HOST_EXPERIMENT, open_demo

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
