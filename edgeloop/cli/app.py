"""The entry point: the groups of commands, and how errors reach the user.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 ended by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import click

from edgeloop._util.redact import redact
from edgeloop._util.values import suggestion
from edgeloop._version import __version__
from edgeloop.cli.context import has_all_rows
from edgeloop.errors import EdgeloopError

SECTIONS = {
    "Models": {
        **{"upload": "models", "status": "status", "list": "models", "download": "models"},
        **{"reset": "models", "priority": "models", "unlock": "models", "delete": "models"},
        "experiments": "status",
    },
    "Evaluate": {
        **{"inspect": "bench", "bench": "bench"},
        **{"runner": "runner", "compare": "tuning", "devices": "devices"},
        **{"steady": "runner", "usage": "runner", "queue": "queue"},
    },
    "Tune": {
        "layers": "tuning",
        "advise": "tuning",
        "precision": "tuning",
        "gate": "tuning",
    },
    "Jobs and data": {"run": "jobs", "job": "jobs", "data": "data"},
    "Search": {
        **{"search": "search", "train-pareto": "search"},
        **{"searches": "search", "train": "training", "export": "training"},
    },
    "Look": {"pareto": "report", "report": "report", "portal": "report", "notebook": "notebook"},
    "Set up": {
        "doctor": "devices",
        "health": "devices",
        "service": "devices",
        "fleet": "fleet",
        "azure": "azure",
        "gc": "gc",
        "secrets": "store",
        "store": "store",
        "schema": "schema",
        "completion": "completion",
    },
}
"""The commands by what they are for, and the module of each."""


class _Sections(click.Group):
    """Imports the module of a command when it is used, and lists commands by section."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in SECTIONS.values() for name in names]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        for names in SECTIONS.values():
            if name in names:
                commands: tuple[click.Command, ...]
                commands = import_module(f"edgeloop.cli.{names[name]}").COMMANDS
                return next(command for command in commands if command.name == name)
        return None

    def invoke(self, ctx: click.Context) -> Any:
        """Ctrl-C ends every command alike; click would call it a failure."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _interrupted(ctx) from None
        except click.Abort as abort:  # by Ctrl-C or the end of the input, at a question
            if isinstance(abort.__context__, KeyboardInterrupt):
                raise _interrupted(ctx) from None
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's own, with the nearest name where there is no such command."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = suggestion(args[0], self.list_commands(ctx), "the commands are")
            ctx.fail(f"no such command {args[0]!r}; {near}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in SECTIONS.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            lines = [
                (name, found.get_short_help_str(60)) for name, found in commands.items() if found
            ]
            with formatter.section(title):
                formatter.write_dl(lines)


@click.group(
    cls=_Sections,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="edgeloop %(version)s")
@click.option("--debug", is_flag=True, help="Print the traceback of an error.")
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
    """What was asked for is done, but the answer lacks rows, as was said on stderr."""
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


def _interrupted(context: click.Context) -> SystemExit:
    """A second Ctrl-C may come while the first is being handled; it changes nothing."""
    from edgeloop.cli.terminal import INTERRUPTED, sentence_of

    with contextlib.suppress(KeyboardInterrupt):
        start = "\n" if sys.stderr.isatty() else ""  # the terminal has shown ^C
        click.echo(start + sentence_of(context, sys.argv[1:]), err=True)
    return SystemExit(INTERRUPTED)


def _report(sentence: str) -> int:
    if "--debug" in sys.argv:
        click.echo(redact(traceback.format_exc()), err=True)
    from edgeloop.cli.output import one_line

    click.echo(one_line(redact(sentence)), err=True)
    return 1


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM unwinds the stack, so that unfinished work is cleaned up."""
    raise SystemExit(128 + number)
