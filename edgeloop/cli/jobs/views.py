"""job list, status, logs, results, wait: read-only commands on jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from edgeloop.cli.context import common_options, open_jobs
from edgeloop.cli.jobs.selection import (
    ChosenJobs,
    any_jobs_argument,
    jobs_argument,
    selecting_options,
)

if TYPE_CHECKING:
    from pathlib import Path

    from edgeloop.jobs import Jobs, Listing, Run

FOLLOW_S = 0.5
LINK_S = 24 * 3600
LOG_FILE = "log.txt"


@click.command("list")
@any_jobs_argument
@selecting_options
@click.option("--all-users", is_flag=True, help="All jobs of the experiment that the store has.")
@common_options
def list_jobs(
    patterns: tuple[str, ...],
    tag: str,
    state: tuple[str, ...],
    all_users: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """List the jobs of this project.

    Shows the last known state without asking computes or the store; 'edgeloop job status' asks.
    With --all-users, reads the jobs of the experiment from the store, whoever submitted them and
    from wherever.

    Example: edgeloop job list 'sweep*' --state failed
    """
    from edgeloop.jobs import shared_runs

    jobs = open_jobs(store, experiment)
    listing = jobs.runs.list()
    if all_users:
        listing = shared_runs(jobs.blobs, jobs.settings.experiment, listing.runs)
    chosen = ChosenJobs(jobs, patterns, tag, state, listing)
    print_jobs(jobs, chosen.runs, as_json, with_users=all_users)
    _say_damaged(listing)
    chosen.end()


@click.command()
@any_jobs_argument
@selecting_options
@click.option(
    "--sort",
    metavar="COLUMN[:desc]",
    help="Column to sort by, or 'created'  [default: state, running and failed first]",
)
@click.option("--columns", default="", metavar="NAMES", help="Columns to show: name,state,loss.")
@click.option("--watch", is_flag=True, help="Refresh until all jobs have ended, or Ctrl-C.")
@common_options
def status(
    patterns: tuple[str, ...],
    tag: str,
    state: tuple[str, ...],
    sort: str | None,
    columns: str,
    watch: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Show the state and metrics of jobs.

    Metrics are the latest values in outputs/metrics.jsonl. A job that was submitted again says
    which attempt is the newest.

    In a terminal the table is as wide as the window, as that of 'edgeloop status' is; a file or a
    pipe gets every column in full.

    Example: edgeloop job status 'sweep*' --sort loss
    """
    from edgeloop.cli.jobs.output import in_order

    if watch and as_json:
        raise click.UsageError("choose one of --watch and --json.")
    jobs = open_jobs(store, experiment)
    chosen = ChosenJobs(jobs, patterns, tag)
    chosen.keep_reachable() if watch else chosen.refresh()
    runs = [run for run in chosen.runs if not state or run.state in state]
    chosen_columns = [name.strip() for name in columns.split(",") if name.strip()]
    if watch:
        _watch(jobs, runs, sort or "state", chosen_columns)
    else:
        if sort or not as_json:
            runs = in_order(runs, sort or "state")
        print_jobs(jobs, runs, as_json, chosen=chosen_columns)
        _say_damaged(jobs.runs.list())
        if not as_json:
            _say_newer(jobs, runs)
    chosen.end()


@click.command()
@jobs_argument
@selecting_options
@click.option("--follow", "-f", is_flag=True, help="Keep printing until the jobs have ended.")
@click.option("--last", "-n", type=click.IntRange(min=1), help="Only the last lines.")
@click.option("--save", is_flag=True, help=f"Save as runs/NAME/{LOG_FILE} instead of printing.")
@common_options
def logs(
    patterns: tuple[str, ...],
    tag: str,
    state: tuple[str, ...],
    follow: bool,
    last: int | None,
    save: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Print the logs of jobs.

    With several jobs, lines are prefixed by the job's name. With --save and -f, logs are saved
    when the jobs have ended.

    Example: edgeloop job logs sweep-2 -f
    """
    from edgeloop.cli.jobs.output import Printer
    from edgeloop.cli.output import print_json, shown

    if save and last is not None:
        raise click.UsageError("choose one of --save and --last: whole logs are saved.")
    jobs = open_jobs(store, experiment)
    chosen = ChosenJobs(jobs, patterns, tag, state)
    several = len(chosen.runs) > 1
    rows: list[dict[str, object]] = []

    def show(run: Run) -> None:
        if as_json:
            rows.append({"name": run.name, "log": _whole_log(jobs, run, last)})
            return
        printer = Printer(run.name if several else "")
        printer.show(_whole_log(jobs, run, last).encode())
        printer.end()

    def keep(run: Run) -> None:
        path = _saved_log(jobs, run)
        rows.append({"name": run.name, "file": str(path)})
        if not as_json:
            click.echo(f"{run.name}: {shown(str(path))}")

    if follow:
        chosen.keep_reachable()
        if as_json or save:
            chosen.runs = jobs.wait(chosen.runs)
        else:
            chosen.keep(jobs.check_store)
            follow_logs(jobs, chosen.runs)
    if save or as_json or not follow:
        chosen.each(keep if save else show)
    if as_json:
        print_json(rows)
    chosen.end()


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

    jobs = open_jobs(store, experiment)
    chosen = ChosenJobs(jobs, patterns, tag, state)
    chosen.keep_reachable()
    if link:
        _print_links(jobs, chosen, valid, as_json)
        return
    rows: list[dict[str, object]] = []

    def fetch(run: Run) -> None:
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

    chosen.each(fetch)
    if as_json:
        print_json(rows)
    chosen.end()


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

    jobs = open_jobs(store, experiment)
    limit_s = _seconds("--timeout", timeout) if timeout else None
    chosen = ChosenJobs(jobs, patterns, tag, state)
    chosen.keep_reachable()
    runs = jobs.wait(chosen.runs, limit_s)
    print_jobs(jobs, runs, as_json)
    chosen.end()
    if any(run.state != "completed" for run in runs):
        raise SystemExit(1)


VIEWS = (list_jobs, status, logs, results, wait)


def print_jobs(
    jobs: Jobs,
    runs: Sequence[Run],
    as_json: bool,
    with_users: bool = False,
    chosen: Sequence[str] = (),
) -> None:
    from edgeloop.cli.jobs.output import job_json, job_table
    from edgeloop.cli.output import print_json
    from edgeloop.cli.terminal.tables import Screen

    nothing = "No jobs. Next: edgeloop run SCRIPT"
    if as_json:
        newest = jobs.runs.newest_attempt
        print_json(job_json(run, jobs.runs.path(run.name), newest(run.record)) for run in runs)
        if not runs:
            click.echo(nothing, err=True)
    elif runs:
        click.echo(job_table(runs, Screen.of_stdout(), with_users, chosen))
    else:
        click.echo(nothing)


def follow_logs(jobs: Jobs, runs: Sequence[Run]) -> list[Run]:
    """Prints the logs until all jobs have ended. An unreachable store or a sleeping laptop delays
    the output and loses nothing. Until the first output, a terminal shows what the jobs wait for.
    """
    from edgeloop._util.redact import redact
    from edgeloop.cli.jobs.output import Printer, state_text
    from edgeloop.cli.terminal.progress import StateLine
    from edgeloop.errors import StoreUnavailable

    readers = {run.name: jobs.log(run) for run in runs}
    printers = {run.name: Printer(run.name if len(runs) > 1 else "") for run in runs}
    said = ""
    with contextlib.closing(StateLine()) as line:
        while True:
            try:
                runs = jobs.refresh(runs)  # first: what was printed before the end is read after it
                is_over = all(run.status.is_final for run in runs)
                if not is_over:
                    line.update(state_text(runs))
                for name, reader in readers.items():
                    for content in reader.more():
                        line.close()
                        printers[name].show(content)
            except StoreUnavailable as error:
                if str(error) != said:
                    said = str(error)
                    click.echo(redact(f"edgeloop: {error} Waiting for it…"), err=True)
            else:
                if is_over:
                    break
            time.sleep(FOLLOW_S)
    _say_what_computes_said(jobs, runs, [n for n, r in readers.items() if not r.has_read])
    return list(runs)


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


def _saved_log(jobs: Jobs, run: Run) -> Path:
    """Written piece by piece beside its place, then renamed: logs may be large."""
    path = jobs.runs.path(run.name) / LOG_FILE
    partial = path.with_name(f".{LOG_FILE}.part")
    reader = jobs.log(run)
    with partial.open("wb") as file:
        for content in reader.more():
            file.write(content)
        if not reader.has_read:
            file.write(_compute_log(jobs, run).encode())
    partial.replace(path)
    return path


def _print_links(jobs: Jobs, chosen: ChosenJobs, valid: str, as_json: bool) -> None:
    from edgeloop.cli.output import print_json, printable

    seconds = int(_seconds("--for", valid))
    rows: list[dict[str, str]] = []

    def add(run: Run) -> None:
        for path, link in jobs.links(run, seconds).items():
            rows.append({"name": run.name, "file": path, "link": link})

    chosen.each(add)
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            click.echo(f"{row['name']}/{printable(row['file'])}\n  {row['link']}")
    chosen.end()
    if not rows and not as_json:
        click.echo("No outputs yet.", err=True)


def _watch(jobs: Jobs, runs: Sequence[Run], sort: str, columns: Sequence[str]) -> None:
    from rich.live import Live
    from rich.text import Text

    from edgeloop.cli.jobs.output import in_order, job_table
    from edgeloop.cli.terminal.live import as_drawn
    from edgeloop.cli.terminal.tables import Screen

    def view(seen: Sequence[Run]) -> Text:
        found = in_order(seen, sort)
        return as_drawn(job_table(found, Screen.of_stdout(), chosen=columns, live=True))

    with Live(view(runs), auto_refresh=False) as live:
        for seen in jobs.watch(runs):
            live.update(view(seen), refresh=True)


def _say_newer(jobs: Jobs, runs: Sequence[Run]) -> None:
    shown = {run.name for run in runs}
    for run in runs:
        newest = jobs.runs.newest_attempt(run.record)
        if newest is not None and newest not in shown:
            click.echo(f"{run.name} was submitted again; its newest attempt is {newest}", err=True)


def _say_damaged(listing: Listing) -> None:
    for sentence in listing.damaged:
        click.echo(f"edgeloop: {sentence}", err=True)


def _seconds(option: str, text: str) -> float:
    from edgeloop._util.units import TIME_FORMS, seconds_of

    found = seconds_of(text)
    if not found:
        raise click.UsageError(f"{option} must be {TIME_FORMS}, not {text!r}.")
    return found
