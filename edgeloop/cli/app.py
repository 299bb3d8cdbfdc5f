"""The entry point: the groups of commands, how errors reach the user, and what commands share:
options, and what those open.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 ended by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgeloop._util.values import seconds_of, suggestion
from edgeloop._version import __version__
from edgeloop.cli.terminal import INTERRUPTED, hinting, one_line, printable, sentence_of, shown
from edgeloop.errors import EdgeloopError

if TYPE_CHECKING:
    from edgeloop.jobs.client import Jobs
    from edgeloop.platforms import Precision, PrecisionPlan
    from edgeloop.settings import Settings
    from edgeloop.store import Record
    from edgeloop.workspace import Workspace

SECTIONS = {
    "Models": {
        "upload": "models",
        "status": "status",
        "download": "models",
        "reset": "models",
        "delete": "models",
        "restore": "models",
        "experiment": "experiments",
    },
    "Evaluate": {
        "inspect": "bench",
        "bench": "bench",
        "compare": "tuning",
        "runner": "runner",
        "queue": "queue",
        "devices": "devices",
    },
    "Tune": {
        "layers": "tuning",
        "advise": "tuning",
        "precision": "tuning",
        "gate": "tuning",
    },
    "Train and search": {
        "run": "jobs",
        "job": "jobs",
        "data": "data",
        "search": "search",
        "arch": "training",
    },
    "Look": {
        "pareto": "report",
        "report": "report",
        "portal": "report",
    },
    "Set up": {
        "doctor": "devices",
    },
}
"""The commands of the first screen by their purpose, and the module of each."""

OPERATIONS = {
    "priority": "models",
    "unlock": "models",
    "fleet": "fleet",
    "service": "devices",
    "health": "devices",
    "store": "store",
    "gc": "gc",
    "secrets": "store",
    "azure": "azure",
    "schema": "schema",
    "completion": "completion",
    "notebook": "notebook",
}
"""The commands that only `edgeloop --help --all` lists, and the module of each."""

_MODULES = {
    name: module for names in (*SECTIONS.values(), OPERATIONS) for name, module in names.items()
}
_AFTER_THE_COMMAND = ("--store", "--experiment", "-e", "--json", "--device", "--dataset", "--yes")
_SHOWS_ALL = "edgeloop.shows_all"


class _Sections(click.Group):
    """Imports the module of a command when it is used, and lists commands by section."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _MODULES:
            return None
        commands: tuple[click.Command, ...]
        commands = import_module(f"edgeloop.cli.{_MODULES[name]}").COMMANDS
        return next(command for command in commands if command.name == name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """--help ends the parsing, so --all counts also behind it."""
        ctx.meta[_SHOWS_ALL] = "--all" in args
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            names = [word for word in args if word in _MODULES]
            if names and error.option_name in _AFTER_THE_COMMAND:
                name = error.option_name
                ctx.fail(f"{name} goes behind the command: edgeloop {names[0]} {name} …")
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Ctrl-C ends every command alike; click would call it a failure."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise interrupted(ctx) from None
        except click.Abort as abort:  # by Ctrl-C or the end of the input, at a question
            if isinstance(abort.__context__, KeyboardInterrupt):
                raise interrupted(ctx) from None
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's own, with the nearest name where there is no such command."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"no such command {args[0]!r}; {self._instead(ctx, args[0])}")
        return super().resolve_command(ctx, args)

    def _instead(self, ctx: click.Context, name: str) -> str:
        """The commands below a group that have this name, else the nearest name."""
        commands = ((each, self.get_command(ctx, each)) for each in self.list_commands(ctx))
        below = [
            f"'edgeloop {each} {name}'"
            for each, command in commands
            if isinstance(command, click.Group) and name in command.commands
        ]
        if below:
            return f"did you mean {' or '.join(below)}?"
        return suggestion(name, self.list_commands(ctx), "the commands are")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shows_all = ctx.meta.get(_SHOWS_ALL, False)
        for title, names in {**SECTIONS, **({"Operate": OPERATIONS} if shows_all else {})}.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            lines = [
                (name, command.get_short_help_str(60))
                for name, command in commands.items()
                if command
            ]
            with formatter.section(title):
                formatter.write_dl(lines)
        if not shows_all:
            formatter.write_paragraph()
            formatter.write_text("Commands for operators: edgeloop --help --all")


def _show_all(context: click.Context, parameter: click.Parameter, is_given: bool) -> None:
    if is_given and not context.resilient_parsing:
        click.echo(context.get_help())
        context.exit()


@click.group(
    cls=_Sections,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="edgeloop %(version)s")
@click.option("--debug", is_flag=True, help="Print the traceback of an error.")
@click.option(
    "--all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="With --help: also list the commands for operators.",
)
def app(debug: bool) -> None:
    """From a training script to the best model on a real edge chip.

    \b
    Upload models to a shared table, on this laptop or for a team:
      edgeloop upload net.onnx
      edgeloop status
      edgeloop download NAME
    """


@app.result_callback()
def _end(result: object, **options: object) -> None:
    """The command succeeded, but its answer lacks rows, which stderr has named: exit code 1."""
    context = click.get_current_context()
    if not has_all_rows(context):
        context.exit(1)


def main() -> None:
    """Every error becomes one sentence and exit code 1; only --debug prints a traceback."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except EdgeloopError as error:
        sys.exit(_report(f"edgeloop: {error}"))
    except OSError as error:
        named = isinstance(error.filename, str) and error.filename
        place = f"{Path(error.filename).absolute()}: " if named else ""
        sys.exit(_report(f"edgeloop: {place}{error.strerror or error}"))
    except ImportError as error:
        what = "a package that Edgeloop needs is missing or damaged"
        sys.exit(_report(f"edgeloop: {what} ({error}): install Edgeloop again."))
    except Exception as error:  # noqa: BLE001 - the edge: nothing may escape with secrets in it
        first = str(error).partition("\n")[0]
        text = f"edgeloop: unexpected {type(error).__name__}: {first}. This is a bug in Edgeloop"
        sys.exit(_report(f"{text}; run 'edgeloop --debug …' for the traceback."))


def interrupted(context: click.Context) -> SystemExit:
    """A second Ctrl-C may come while the first is being handled; it changes nothing."""
    with contextlib.suppress(KeyboardInterrupt):
        start = "\n" if sys.stderr.isatty() else ""  # the terminal has shown ^C
        click.echo(start + sentence_of(context, sys.argv[1:]), err=True)
    return SystemExit(INTERRUPTED)


def _report(sentence: str) -> int:
    from edgeloop._util.redact import redact

    if "--debug" in sys.argv:
        click.echo(redact(traceback.format_exc()), err=True)
    click.echo(one_line(redact(sentence)), err=True)
    return 1


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM unwinds the stack, so that unfinished work is cleaned up."""
    raise SystemExit(128 + number)


# Options that commands share, and what they open.


Command = TypeVar("Command", bound=Callable[..., None])

_LEFT_OUT = "edgeloop.rows_left_out"
_PROJECT = "edgeloop.project"


class NewPath(click.Path):
    """A file or folder to be written. Whether that can be is asked before the work begins."""

    def __init__(
        self, is_folder: bool = False, allow_dash: bool = False, makes_folders: bool = False
    ) -> None:
        """`makes_folders`: the command makes those above a file. Above a folder it always does."""
        super().__init__(path_type=Path, allow_dash=allow_dash)
        self._is_folder = is_folder
        self._makes_folders = makes_folders

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        is_asked = ctx is None or not ctx.resilient_parsing  # completion only reads
        if is_asked and not (self.allow_dash and str(value) == "-"):
            check_new_path(path, self._is_folder, self._makes_folders)
        return path


def check_new_path(path: Path, is_folder: bool = False, makes_folders: bool = False) -> None:
    """Raises LocalFileError where no file or folder of that path can be written."""
    import os

    from edgeloop.errors import LocalFileError

    whole = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - '..' is taken as it is typed
    if whole.is_dir() and not is_folder:
        raise LocalFileError(path=whole, reason="this is a folder: name a file in it")
    place = whole if is_folder else whole.parent
    while (is_folder or makes_folders) and not place.exists() and place != place.parent:
        place = place.parent
    if not place.exists():
        reason = f"there is no folder {place}: make it first, or name a file elsewhere"
    elif not place.is_dir():
        reason = f"{place} is a file, not a folder: choose another path"
    elif not os.access(place, os.W_OK | os.X_OK):
        is_disk = bool(os.statvfs(place).f_flag & os.ST_RDONLY)
        what = "Read-only file system" if is_disk else "You may not write there"
        reason = f"{what}: choose a path that is not below {place}"
    else:
        return
    raise LocalFileError(path=whole, reason=reason)


names_argument = click.argument("names", metavar="NAME...", nargs=-1, required=True)
any_names_argument = click.argument("names", metavar="[NAME]...", nargs=-1)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
store_option = click.option(
    "--store",
    metavar="URL",
    help="sqlite:FOLDER, postgresql://…?blobs=URL or azure:URL  [default: $EDGELOOP_STORE, "
    "$MODEL_STORAGE_CONNECTION_STRING, else the folder .edgeloop]",
)
tag_option = click.option("--tag", help="Only models with this label.")
csv_option = click.option(
    "--csv",
    type=NewPath(allow_dash=True),
    help="Write CSV to this file; '-' for stdout.",
)
unsteady_option = click.option(
    "--unsteady",
    is_flag=True,
    help="Only models whose runs on the same board or device vary by more than --threshold.",
)
threshold_option = click.option(
    "--threshold",
    type=click.FloatRange(min=0),
    metavar="PERCENT",
    default=5.0,
    show_default=True,
    help="With --unsteady: standard deviation between runs, in percent of the mean.",
)
watch_option = click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
interval_option = click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, help="Seconds between refreshes."
)
benchmark_only_option = click.option(
    "--benchmark-only", is_flag=True, help="Only convert and benchmark."
)
dataset_option = click.option(
    "--dataset",
    type=click.Path(path_type=Path),
    help="Images for calibration and tests  [default: $INPUT_DATASET or the settings]",
)
task_option = click.option(
    "--task",
    help="segmentation, classification, detection, tensors, …  [default: the settings]",
)
chip_option = click.option(
    "--device", default="htp", show_default=True, help="Chip, such as htp:qcs8550."
)
workers_option = click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of processes  [default: one per CPU]",
)


def output_option(
    text: str, metavar: str = "FILE", required: bool = False, makes_folders: bool = False
) -> Callable[[Command], Command]:
    """-o, --output of a command that writes one file or folder, with its help text."""
    return click.option(
        "--output",
        "-o",
        type=NewPath(is_folder=metavar == "FOLDER", makes_folders=makes_folders),
        metavar=metavar,
        required=required,
        help=text,
    )


class TimeType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A time such as 90s or 1h30m, in seconds; a plain number is seconds already."""

    name = "time"

    def __init__(self, least_s: float = 0.0) -> None:
        self._least_s = least_s

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = seconds_of(str(value))
        with contextlib.suppress(ValueError):
            seconds = float(value) if seconds is None else seconds
        if seconds is None or not self._least_s <= seconds < math.inf:
            least = f" of at least {self._least_s:g} s" if self._least_s else ""
            self.fail(f"{value!r} is no time{least}: write 90s, 5m or 1h30m.", param, ctx)
        return seconds


def devices_option(text: str) -> Callable[[Command], Command]:
    """--device of a command that takes several, with its help text."""
    return click.option("--device", "devices", multiple=True, metavar="NAME", help=text)


def runs_option(default: int) -> Callable[[Command], Command]:
    return click.option(
        "--runs",
        type=click.IntRange(min=1),
        default=default,
        show_default=True,
        help="Benchmark runs on devices that measure.",
    )


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
    experiment_option = click.option("--experiment", "-e", metavar="NAME", help=experiment_help)
    return experiment_option(store_option(json_option(command)))


DEMO_PREFIX = "demo:"


def model_file(text: str) -> Path:
    """The path that was typed, or `demo:NAME` for a model of the package."""
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
    store: str | None = None,
    experiment: str | None = None,
    workspace_config: Path | None = None,
    allow_cpu_fallback: bool = False,
) -> Settings:
    """The settings of a command. The first call also prints which folder is the project."""
    from edgeloop.settings import Settings

    settings = Settings.load(store=store, experiment=experiment, workspace_config=workspace_config)
    say_project(settings.project)
    return settings.with_keys(allow_cpu_fallback=True) if allow_cpu_fallback else settings


def open_jobs(
    store: str | None, experiment: str | None, workspace_config: Path | None = None
) -> Jobs:
    from edgeloop.jobs.client import Jobs

    return Jobs(load_settings(store, experiment, workspace_config))


def say_project(project: Path) -> None:
    """Store, settings, data and runs are those of the project; so where that is not the current
    folder, the first line says so. On stderr, once per command."""
    from edgeloop.paths import project_mark

    context = click.get_current_context(silent=True)
    if context is None or context.meta.get(_PROJECT) or project == Path.cwd():
        return
    context.meta[_PROJECT] = True
    click.echo(f"Project: {printable(str(project))} (it has {project_mark(project)})", err=True)


def dataset_folder(chosen: Path | None, settings: Settings) -> Path | None:
    """The folder that --dataset or the settings name: a path from here (in `edgeloop.yaml`: from
    the project), or the name of a dataset of the project, such as `working/faces128`. Whole, so
    that messages say where something was looked for."""
    text = str(chosen or settings.dataset)
    if chosen is None and not settings.dataset:
        return None
    bases = (Path.cwd(), settings.project)
    bases = bases if chosen is not None else bases[::-1]
    path = Path(text).expanduser()
    for base in bases:
        if (base / path).exists():
            return base / path
    from edgeloop.node.ledger import find_local

    with contextlib.suppress(EdgeloopError):
        return find_local(settings.project, text)[1]
    return bases[0] / path


def given_dataset(chosen: Path | None, settings: Settings) -> Path | None:
    """For commands that take no dataset from the settings. Raises NotFound if it does not exist."""
    from edgeloop.errors import NotFound

    folder = dataset_folder(chosen, settings) if chosen is not None else None
    if folder is not None and not folder.exists():
        raise NotFound(reason=f"the dataset {folder} is not there: name another folder")
    return folder


@contextlib.contextmanager
def opened(
    store: str | None, experiment: str | None, demo: bool = False, makes: bool = False
) -> Iterator[Workspace]:
    """`makes`: a named store that does not exist is created, with a message. Other commands refuse
    it: the disk that it is on may not be mounted."""
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
    from edgeloop.store.location import SqliteLocation

    if isinstance(workspace.settings.location, SqliteLocation):
        with contextlib.suppress(StoreUnavailable):
            workspace.store.experiments()


def say_if_new(settings: Settings) -> None:
    """For commands that run for long, or often come before the first upload."""
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
    from edgeloop.store.location import SqliteLocation

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


@contextlib.contextmanager
def opened_demo_farm(store: str | None, experiment: str | None) -> Iterator[Workspace]:
    """The demo with its search, its jobs and machines at work."""
    from edgeloop.view.demo import open_demo_farm

    with open_demo_farm(_demo_experiment(store, experiment)) as workspace, hinting(workspace):
        yield workspace


def _demo(store: str | None, experiment: str | None) -> Workspace:
    from edgeloop.view.demo import open_demo

    return open_demo(_demo_experiment(store, experiment))


def _demo_experiment(store: str | None, experiment: str | None) -> str:
    from edgeloop.view.demo import CHIP_EXPERIMENT, HOST_EXPERIMENT

    if store is not None:
        raise click.UsageError("--demo brings its own store: leave out --store or --demo.")
    experiments = (CHIP_EXPERIMENT, HOST_EXPERIMENT)
    if experiment is not None and experiment not in experiments:
        names = " and ".join(experiments)
        raise click.UsageError(f"the demo store has the experiments {names}.")
    return experiment or CHIP_EXPERIMENT


def confirm_deletion(rows: list[Record], yes: bool) -> None:
    """Asks also for one model. Without a terminal there is nobody to ask."""
    if yes or not rows:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        what = rows[0].key if len(rows) == 1 else f"{len(rows)} models"
        raise click.UsageError(f"{what} cannot be deleted without a question: add --yes.")
    if len(rows) == 1:
        click.confirm(f"Delete {rows[0].key} and its results?", abort=True, err=True)
    else:
        confirm("delete", rows, yes)


def confirm(verb: str, rows: list[Record], yes: bool) -> None:
    """Lists what a change to several models will touch, and asks."""
    if yes or len(rows) < 2:
        return
    click.echo(f"This will {verb} {len(rows)} models:", err=True)
    for row in rows:
        click.echo(f"  {row.key}", err=True)
    if sys.stdin is None:  # a job with its input closed cannot answer
        raise click.Abort
    click.confirm("Continue?", abort=True, err=True)
