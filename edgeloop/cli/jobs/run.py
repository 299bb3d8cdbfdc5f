"""run: submit, follow and fetch in one command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeloop.cli.context import common_options, open_jobs, say_if_new, workspace_option
from edgeloop.cli.jobs.options import ScriptCommand, job_options, spec_from
from edgeloop.cli.terminal.interrupt import INTERRUPTED

if TYPE_CHECKING:
    from edgeloop.jobs import Jobs, Run

SECOND_THOUGHTS_S = 3.0


@click.command(cls=ScriptCommand)
@click.argument("target", metavar="SCRIPT|FILE.yaml", type=click.Path(path_type=Path))
@click.argument("words", metavar="[KEY=VALUE]...", nargs=-1)
@job_options
@workspace_option
@common_options
def run(
    target: Path,
    words: tuple[str, ...],
    no_push: bool,
    workspace_config: Path | None,
    store: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a script on a compute and follow it.

    Sends code and data, prints the log, and fetches the outputs at the end.

    Ends with the script's own exit code. Ctrl-C leaves the job running and says how to come back; a
    second Ctrl-C cancels it.

    Example: edgeloop run train.py --compute cluster --data faces -- --epochs 3
    """
    from edgeloop.cli.jobs.output import outcome
    from edgeloop.cli.jobs.views import print_jobs
    from edgeloop.cli.output import shown
    from edgeloop.cli.terminal.progress import bytes_bar

    jobs = open_jobs(store, options["experiment"], workspace_config)
    say_if_new(jobs.settings)
    spec = spec_from(target, words, options)
    with bytes_bar("sending data") as bar:
        runs = jobs.submit(
            spec,
            push=not no_push,
            tell=lambda line: click.echo(line, err=True),
            progress=bar,
        )
    runs = _followed(jobs, runs, quiet=as_json)
    for each in runs:
        jobs.fetch(each)
    if as_json or len(runs) > 1:
        print_jobs(jobs, runs, as_json)
    else:
        folder = shown(str(jobs.outputs(runs[0])))
        click.echo(f"{outcome(runs[0])} · results in {folder}", err=True)
    raise SystemExit(_exit_code(runs))


COMMANDS = (run,)


def _followed(jobs: Jobs, runs: list[Run], quiet: bool) -> list[Run]:
    from edgeloop.cli.jobs.views import follow_logs

    try:
        return jobs.wait(runs) if quiet else follow_logs(jobs, runs)
    except KeyboardInterrupt:
        _detach(jobs, runs)
        raise SystemExit(INTERRUPTED) from None


def _detach(jobs: Jobs, runs: list[Run]) -> None:
    """The job continues, unless a second Ctrl-C follows quickly."""
    names = " ".join(each.name for each in runs)
    try:
        click.echo(
            f"\nDetached; {names} runs on. To come back: edgeloop job logs {names} -f\n"
            f"To cancel: press Ctrl-C again now, or: edgeloop job abort {names}",
            err=True,
        )
        time.sleep(SECOND_THOUGHTS_S)
    except KeyboardInterrupt:
        click.echo("Canceling…", err=True)
        for each in jobs.wait(jobs.cancel(runs)):
            jobs.fetch(each)
            click.echo(f"{each.name}: {each.state}", err=True)


def _exit_code(runs: list[Run]) -> int:
    """The exit code of the script for one job, else whether all completed."""
    failed = [each for each in runs if each.state != "completed"]
    if not failed:
        return 0
    code = failed[0].status.exit_code if len(runs) == 1 else None
    return code or 1
