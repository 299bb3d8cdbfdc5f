"""The entry point: the groups of commands, and how errors reach the user.

Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

from __future__ import annotations

import signal
import sys
import traceback
from types import FrameType

import click

from edgeloop._util.redact import redact
from edgeloop._version import __version__
from edgeloop.cli import (
    azure,
    data,
    devices,
    models,
    report,
    runner,
    schema,
    search,
    status,
    training,
)
from edgeloop.cli.jobs import run, submit
from edgeloop.errors import EdgeloopError

SECTIONS = {
    "Models": "upload status list download reset priority unlock delete experiments",
    "Evaluate": "runner compare devices steady usage",
    "Jobs and data": "run job data",
    "Search": "search train-pareto train export",
    "Look": "pareto report portal",
    "Set up": "doctor azure schema",
}


class _Sections(click.Group):
    """Lists the commands by what they are for."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in SECTIONS.items():
            commands = [self.commands[name] for name in names.split() if name in self.commands]
            with formatter.section(title):
                formatter.write_dl(
                    [(command.name or "", command.get_short_help_str(60)) for command in commands]
                )


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


for module in (
    *(models, status, data, run, submit, search, training, runner, devices, report, azure),
    schema,
):
    for command in module.COMMANDS:
        app.add_command(command)


def main() -> None:
    """Every error becomes one sentence and exit code 1; only --debug prints a traceback."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except EdgeloopError as error:
        sys.exit(_report(f"edgeloop: {error}"))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        sys.exit(_report(f"edgeloop: {place}{error.strerror or error}"))
    except Exception as error:  # noqa: BLE001 - the edge: nothing may escape with secrets in it
        first = str(error).partition("\n")[0]
        text = f"edgeloop: unexpected {type(error).__name__}: {first}. This is a bug in Edgeloop"
        sys.exit(_report(f"{text}; run 'edgeloop --debug …' for the traceback."))


def _report(sentence: str) -> int:
    if "--debug" in sys.argv:
        click.echo(redact(traceback.format_exc()), err=True)
    click.echo(redact(sentence), err=True)
    return 1


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM unwinds the stack, so that unfinished work is cleaned up."""
    raise SystemExit(128 + number)
