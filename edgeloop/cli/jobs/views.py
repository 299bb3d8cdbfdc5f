"""job list, status, logs, results, wait: read-only commands on jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from edgeloop.cli.context import common_options

if TYPE_CHECKING:
    from edgeloop.jobs import Jobs, Run

Command = TypeVar("Command", bound=Callable[..., None])

STATES = ("queued", "preparing", "running", "completed", "failed", "canceled")
FOLLOW_S = 0.5
LINK_S = 24 * 3600

jobs_argument = click.argument("patterns", metavar="JOBS...", nargs=-1, required=True)
any_jobs_argument = click.argument("patterns", metavar="[JOBS]...", nargs=-1)


def selecting_options(command: Command) -> Command:
    options = (
        click.option("--tag", default="", help="Only jobs with this label."),
        click.option(
            "--state",
            multiple=True,
            type=click.Choice(STATES),
            help="Only jobs in this state, as last seen; repeatable.",
        ),
    )
    for option in options:
        command = option(command)
    return command


@click.command("list")
@any_jobs_argument
@selecting_options
@common_options
def list_jobs(
    patterns: tuple[str, ...],
    tag: str,
    state: tuple[str, ...],
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """List the jobs of this project.

    Shows the last known state without asking computes or the store; 'edgeloop job status' asks.

    Example: edgeloop job list 'sweep*' --state failed
    """
    from edgeloop.jobs import Jobs

    jobs = Jobs.open(store, experiment)
    print_jobs(jobs, jobs.select(patterns, tag, state).runs, as_json)  # type: ignore[arg-type]
    _say_damaged(jobs)


@click.command()
@any_jobs_argument
@selecting_options
@click.option("--watch", is_flag=True, help="Refresh until all jobs have ended, or Ctrl-C.")
@common_options
def status(
    patterns: tuple[str, ...],
    tag: str,
    state: tuple[str, ...],
    watch: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Show the state and metrics of jobs.

    Metrics are the latest values in outputs/metrics.jsonl.

    Example: edgeloop job status 'sweep*'
    """
    from edgeloop.jobs import Jobs

    if watch and as_json:
        raise click.UsageError("choose one of --watch and --json.")
    jobs = Jobs.open(store, experiment)
    runs = jobs.refresh(jobs.select(patterns, tag).runs)
    runs = [run for run in runs if not state or run.state in state]
    if watch:
        _watch(jobs, runs)
    else:
        print_jobs(jobs, runs, as_json)
        _say_damaged(jobs)


@click.command()
@jobs_argument
@selecting_options
@click.option("--follow", "-f", is_flag=True, help="Keep printing until the jobs have ended.")
@click.option("--last", "-n", type=click.IntRange(min=1), help="Only the last lines.")
@common_options
def logs(
    patterns: tuple[str, ...],
    tag: str,
    state: tuple[str, ...],
    follow: bool,
    last: int | None,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Print the logs of jobs.

    With several jobs, lines are prefixed by the job's name.

    Example: edgeloop job logs sweep-2 -f
    """
    from edgeloop.cli.jobs.output import Printer
    from edgeloop.cli.output import print_json
    from edgeloop.jobs import Jobs

    jobs = Jobs.open(store, experiment)
    runs = list(jobs.select(patterns, tag, state).runs)  # type: ignore[arg-type]
    if as_json:
        print_json({"name": run.name, "log": _whole_log(jobs, run, last)} for run in runs)
    elif follow:
        with contextlib.suppress(KeyboardInterrupt):
            follow_logs(jobs, runs)
    else:
        for run in runs:
            printer = Printer(run.name if len(runs) > 1 else "")
            printer.show(_whole_log(jobs, run, last).encode())
            printer.end()


@click.command()
@jobs_argument
@selecting_options
@click.option("--link", is_flag=True, help="Print download links instead of copying.")
@click.option(
    "--for", "valid", default="1d", metavar="TIME", help="Validity of links  [default: 1d]"
)
@common_options
def results(
    patterns: tuple[str, ...],
    tag: str,
    state: tuple[str, ...],
    link: bool,
    valid: str,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Fetch the outputs of jobs.

    Copies new files to runs/NAME/outputs. A running job gives what it has finished writing. With
    --link nothing is copied; anyone with a link can download that file until it expires.

    Example: edgeloop job results 'sweep*'
    """
    from edgeloop.cli.output import plural, print_json, printable, shown
    from edgeloop.jobs import Jobs

    jobs = Jobs.open(store, experiment)
    runs = jobs.refresh(jobs.select(patterns, tag, state).runs)  # type: ignore[arg-type]
    if link:
        _print_links(jobs, runs, valid, as_json)
        return
    rows = []
    for run in runs:
        fetched = jobs.fetch(run)
        folder = jobs.outputs(run)
        rows.append({"name": run.name, "folder": str(folder), "files": fetched.files})
        if not as_json:
            what = f"{plural(fetched.files, 'file')}, {fetched.moved} new → {shown(str(folder))}"
            still = "" if run.status.is_final else f"  ({run.state}: more may follow)"
            click.echo(f"{run.name}: {what}{still}")
        for name in fetched.refused:
            click.echo(
                f"{run.name}: skipped {printable(name)}: not a valid file name here", err=True
            )
    if as_json:
        print_json(rows)


@click.command()
@jobs_argument
@selecting_options
@click.option("--timeout", metavar="TIME", help="Stop waiting after this long; the jobs continue.")
@common_options
def wait(
    patterns: tuple[str, ...],
    tag: str,
    state: tuple[str, ...],
    timeout: str | None,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Wait until jobs have ended.

    Exits with 0 if all of them completed, else with 1.

    Example: edgeloop job wait 'sweep*' --timeout 2h && echo done
    """
    from edgeloop.jobs import Jobs

    jobs = Jobs.open(store, experiment)
    limit_s = _seconds("--timeout", timeout) if timeout else None
    chosen = jobs.select(patterns, tag, state).runs  # type: ignore[arg-type]
    runs = jobs.wait(chosen, limit_s)
    print_jobs(jobs, runs, as_json)
    if any(run.state != "completed" for run in runs):
        raise SystemExit(1)


VIEWS = (list_jobs, status, logs, results, wait)


def print_jobs(jobs: Jobs, runs: Sequence[Run], as_json: bool) -> None:
    from edgeloop.cli.jobs.output import job_json, job_table
    from edgeloop.cli.output import print_json

    if as_json:
        print_json(job_json(run, jobs.runs.path(run.name)) for run in runs)
    elif runs:
        click.echo(job_table(runs))
    else:
        click.echo("No jobs. Next: edgeloop run SCRIPT")


def follow_logs(jobs: Jobs, runs: Sequence[Run]) -> list[Run]:
    """Prints the logs until all jobs have ended. An unreachable store or a sleeping laptop delays
    the output and loses nothing."""
    from edgeloop._util.redact import redact
    from edgeloop.cli.jobs.output import Printer
    from edgeloop.errors import StoreUnavailable

    readers = {run.name: jobs.log(run) for run in runs}
    printers = {run.name: Printer(run.name if len(runs) > 1 else "") for run in runs}
    said = ""
    while True:
        try:
            runs = jobs.refresh(runs)  # first: what was printed before the end is read after it
            for name, reader in readers.items():
                for content in reader.more():
                    printers[name].show(content)
        except StoreUnavailable as error:
            if str(error) != said:
                said = str(error)
                click.echo(redact(f"edgeloop: {error} Waiting for it…"), err=True)
        else:
            if all(run.status.is_final for run in runs):
                _say_what_computes_said(
                    jobs, runs, [n for n, r in readers.items() if not r.has_read]
                )
                return list(runs)
        time.sleep(FOLLOW_S)


def _say_what_computes_said(jobs: Jobs, runs: Sequence[Run], silent: Sequence[str]) -> None:
    """A job that failed without output may never have started."""
    for run in runs:
        if run.name in silent and run.state == "failed":
            click.echo(_compute_log(jobs, run), err=True)


def _compute_log(jobs: Jobs, run: Run) -> str:
    from edgeloop._util.redact import redact
    from edgeloop.errors import ComputeUnavailable

    with contextlib.suppress(ComputeUnavailable):
        return redact(jobs.compute_log(run))
    return ""


def _whole_log(jobs: Jobs, run: Run, last: int | None) -> str:
    if last is not None:
        text = jobs.last_lines(run, last).decode(errors="replace")
    else:
        text = b"".join(jobs.log(run).more()).decode(errors="replace")
    return text or _compute_log(jobs, run)


def _print_links(jobs: Jobs, runs: Sequence[Run], valid: str, as_json: bool) -> None:
    from edgeloop.cli.output import print_json, printable

    seconds = int(_seconds("--for", valid))
    rows = [
        {"name": run.name, "file": path, "link": link}
        for run in runs
        for path, link in jobs.links(run, seconds).items()
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        click.echo(f"{row['name']}/{printable(row['file'])}\n  {row['link']}")
    if not rows:
        click.echo("No outputs yet.", err=True)


def _watch(jobs: Jobs, runs: Sequence[Run]) -> None:
    from rich.live import Live
    from rich.text import Text

    from edgeloop.cli.jobs.output import counts, job_table

    def view(seen: Sequence[Run]) -> Text:
        return Text(f"{job_table(seen)}\n{counts(seen)}", no_wrap=True)

    with contextlib.suppress(KeyboardInterrupt), Live(view(runs), auto_refresh=False) as live:
        for seen in jobs.watch(runs):
            live.update(view(seen), refresh=True)


def _say_damaged(jobs: Jobs) -> None:
    for sentence in jobs.runs.list().damaged:
        click.echo(f"edgeloop: {sentence}", err=True)


def _seconds(option: str, text: str) -> float:
    from edgeloop._util.units import TIME_FORMS, seconds_of

    found = seconds_of(text)
    if not found:
        raise click.UsageError(f"{option} must be {TIME_FORMS}, not {text!r}.")
    return found
