"""The way in and the way out: the app, and what a person sees when something went wrong.

Exit codes: 0 done, 1 failed, 2 wrong use.
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


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="edgeloop %(version)s")
@click.option("--debug", is_flag=True, help="Show where in the code an error came from.")
def app(debug: bool) -> None:
    """From a training script to the best model on a real edge chip.

    \b
    Put models into a shared table, on this laptop or for a team:
      edgeloop upload net.onnx
      edgeloop status
      edgeloop download NAME
    """


for module in (
    models,
    status,
    data,
    run,
    submit,
    search,
    training,
    runner,
    devices,
    report,
    azure,
    schema,
):
    for command in module.COMMANDS:
        app.add_command(command)


def main() -> None:
    """Every error becomes one sentence and exit code 1; only --debug shows where it came from."""
    signal.signal(signal.SIGTERM, _end)
    try:
        app()
    except EdgeloopError as error:
        sys.exit(_report(f"edgeloop: {error}"))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        sys.exit(_report(f"edgeloop: {place}{error.strerror or error}"))
    except Exception as error:  # noqa: BLE001 - the edge: nothing may escape with secrets in it
        first = str(error).partition("\n")[0]
        text = f"edgeloop: unexpected {type(error).__name__}: {first}. This is a fault of Edgeloop"
        sys.exit(_report(f"{text}; 'edgeloop --debug …' shows where."))


def _report(sentence: str) -> int:
    if "--debug" in sys.argv:
        click.echo(redact(traceback.format_exc()), err=True)
    click.echo(redact(sentence), err=True)
    return 1


def _end(number: int, frame: FrameType | None) -> None:
    """SIGTERM unwinds the stack, so that what was begun is taken back."""
    raise SystemExit(128 + number)
