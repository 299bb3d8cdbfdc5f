"""job list, status, logs, results, wait: read-only commands on jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from edgeloop._util.values import plural
from edgeloop.cli.app import common_options, open_jobs
from edgeloop.cli.terminal import (
    Screen,
    StateLine,
    TableColumn,
    as_drawn,
    fit,
    print_json,
    printable,
    shown,
    totals,
)

if TYPE_CHECKING:
    from edgeloop.errors import EdgeloopError
    from edgeloop.jobs.client import Jobs
    from edgeloop.jobs.records import Listing, Run
    from edgeloop.jobs.watch import Fetched, Status


# Which jobs a command is about. What goes wrong with one of them hides no other.


Command = TypeVar("Command", bound=Callable[..., None])

STATES = ("queued", "preparing", "running", "completed", "failed", "canceled")

jobs_argument = click.argument("patterns", metavar="JOB...", nargs=-1, required=True)
any_jobs_argument = click.argument("patterns", metavar="[JOB]...", nargs=-1)


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


class ChosenJobs:
    """The selected jobs. Names that no job has and errors of single jobs are printed as they come;
    `end` then exits with 1."""

    def __init__(
        self,
        jobs: Jobs,
        patterns: Sequence[str],
        tag: str,
        states: Sequence[str] = (),
        listing: Listing | None = None,
    ) -> None:
        from edgeloop.jobs.records import select

        runs = (listing or jobs.runs.list()).runs
        selection = select(runs, patterns, tag, states, jobs.runs.folder)  # type: ignore[arg-type]
        self._jobs = jobs
        self._failed = False
        self.runs = list(selection.runs)
        self.are_named = bool(patterns)
        self.exact = selection.exact
        for error in selection.unknown:
            self.say(error)
        if selection.unknown and not self.runs:
            self.end()

    def refresh(self) -> None:
        """Ask the computes. A job that cannot be asked about stays in the list, with a note."""
        self.runs, errors = self._jobs.survey(self.runs)
        self._failed = self._failed or (self.are_named and bool(errors))

    def keep_reachable(self) -> None:
        """Refresh, and drop those that cannot be asked about: a command that waits for jobs would
        wait for them forever."""
        runs, errors = self._jobs.survey(self.runs)
        for error in {str(error): error for error in errors.values()}.values():
            self.say(error)
        self.runs = [run for run in runs if run.name not in errors]

    def keep(self, check: Callable[[Run], None]) -> None:
        """Drop the jobs for which `check` raises."""
        passed = []
        for run in self.runs:
            with self.handling():
                check(run)
                passed.append(run)
        self.runs = passed

    def each(self, action: Callable[[Run], None]) -> None:
        """Do it for every job, whatever happens to the others."""
        for run in self.runs:
            with self.handling():
                action(run)

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """An error of one job is printed. That of the store concerns all, and is raised."""
        from edgeloop.errors import EdgeloopError, StoreError

        try:
            yield
        except StoreError:
            raise
        except EdgeloopError as error:
            self.say(error)

    def say(self, error: EdgeloopError) -> None:
        from edgeloop._util.redact import redact

        self._failed = True
        click.echo(redact(f"edgeloop: {error}"), err=True)

    def end(self) -> None:
        """Exit with 1 if one of the jobs could not be handled."""
        if self._failed:
            raise SystemExit(1)


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
    With --all-users, reads the experiment's jobs of all users and machines from the store.

    Example: edgeloop job list 'sweep*' --state failed
    """
    from edgeloop.jobs.records import shared_runs

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
    if watch and as_json:
        raise click.UsageError("choose one of --watch and --json.")
    jobs = open_jobs(store, experiment)
    listing = jobs.runs.list()
    chosen = ChosenJobs(jobs, patterns, tag, listing=listing)
    chosen.keep_reachable() if watch else chosen.refresh()
    runs = [run for run in chosen.runs if not state or run.state in state]
    chosen_columns = [name.strip() for name in columns.split(",") if name.strip()]
    if watch:
        _watch(jobs, runs, sort or "state", chosen_columns)
    else:
        if sort or not as_json:
            runs = in_order(runs, sort or "state")
        print_jobs(jobs, runs, as_json, chosen=chosen_columns)
        _say_damaged(listing)
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
@click.option(
    "--all",
    "with_kept",
    is_flag=True,
    help="Also what they created outside outputs/, which is kept for 7 days.",
)
@click.option("--link", is_flag=True, help="Print download links instead of copying.")
@click.option(
    "--for", "valid", default="1d", metavar="TIME", help="Validity of links  [default: 1d]"
)
@common_options
def results(
    patterns: tuple[str, ...],
    tag: str,
    state: tuple[str, ...],
    with_kept: bool,
    link: bool,
    valid: str,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Fetch the outputs of jobs.

    Copies new files to runs/NAME/outputs. A running job gives what it has finished writing. With
    --link nothing is copied; anyone with a link can download that file until it expires.

    With --all, files that the jobs created elsewhere in their folders, such as lightning_logs/,
    go to runs/NAME/kept. The store has them for seven days after the end of the job, up to
    kept_limit_mb in edgeloop.yaml; what is over that limit is named in the job's log.

    Example: edgeloop job results 'sweep*'

    Example: edgeloop job results --all lr-3
    """
    from edgeloop.node.ticket import KEPT_DAYS

    jobs = open_jobs(store, experiment)
    chosen = ChosenJobs(jobs, patterns, tag, state)
    chosen.keep_reachable()
    if link:
        _print_links(jobs, chosen, valid, as_json, with_kept)
        return
    rows: list[dict[str, object]] = []

    def say(run: Run, fetched: Fetched, folder: Path) -> None:
        if not as_json:
            what = f"{plural(fetched.files, 'file')}, {fetched.moved} new → {shown(str(folder))}"
            still = "" if run.status.is_final else f"  ({run.state}: more may follow)"
            click.echo(f"{run.name}: {what}{still}")
        for name in fetched.refused:
            click.echo(
                f"{run.name}: skipped {printable(name)}: not a valid file name here", err=True
            )

    def fetch(run: Run) -> None:
        fetched, folder = jobs.fetch(run), jobs.outputs(run)
        row = {"name": run.name, "folder": str(folder), "files": fetched.files}
        say(run, fetched, folder)
        files = run.status.files
        if with_kept:
            kept, kept_folder = jobs.fetch_kept(run), jobs.kept(run)
            row |= {"kept_folder": str(kept_folder), "kept_files": kept.files}
            if kept.files or not files.kept:
                say(run, kept, kept_folder)
            else:
                what = "the files outside outputs/ are no longer in the store"
                click.echo(f"{run.name}: {what}: they are kept for {KEPT_DAYS} days", err=True)
        elif files.kept and not as_json:
            more = f"{plural(files.kept, 'file')} outside outputs/"
            click.echo(f"{run.name}: {more}: edgeloop job results --all {run.name}", err=True)
        rows.append(row)

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
    nothing = "No jobs. Next: edgeloop run SCRIPT"
    if as_json:
        newest = jobs.runs.newest_attempts(run.record for run in runs)
        print_json(job_json(run, jobs.runs.path(run.name), newest.get(run.name)) for run in runs)
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


def _print_links(
    jobs: Jobs, chosen: ChosenJobs, valid: str, as_json: bool, with_kept: bool
) -> None:
    seconds = int(_seconds("--for", valid))
    rows: list[dict[str, str]] = []

    def add(run: Run) -> None:
        for path, link in jobs.links(run, seconds, with_kept).items():
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

    def view(seen: Sequence[Run]) -> Text:
        ordered_runs = in_order(seen, sort)
        return as_drawn(job_table(ordered_runs, Screen.of_stdout(), chosen=columns, live=True))

    with Live(view(runs), auto_refresh=False) as live:
        for seen in jobs.watch(runs):
            live.update(view(seen), refresh=True)


def _say_newer(jobs: Jobs, runs: Sequence[Run]) -> None:
    shown = {run.name for run in runs}
    for name, newest in jobs.runs.newest_attempts(run.record for run in runs).items():
        if newest not in shown:
            click.echo(f"{name} was submitted again; its newest attempt is {newest}", err=True)


def _say_damaged(listing: Listing) -> None:
    for sentence in listing.damaged:
        click.echo(f"edgeloop: {sentence}", err=True)


def _seconds(option: str, text: str) -> float:
    from edgeloop._util.values import TIME_FORMS, seconds_of

    seconds = seconds_of(text)
    if not seconds:
        raise click.UsageError(f"{option} must be {TIME_FORMS}, not {text!r}.")
    return seconds


# Jobs as a table and as JSON.


METRICS_SHOWN = 5
_RANKS = {**dict.fromkeys(STATES, 2), "running": 0, "preparing": 0, "queued": 0, "failed": 1}


def job_table(
    jobs: Sequence[Run],
    screen: Screen,
    with_users: bool = False,
    chosen: Sequence[str] = (),
    live: bool = False,
) -> str:
    """One line per job; a sweep shows the varied parameters and the metrics. A terminal also gets
    the totals. `chosen` are columns by their headings."""
    columns = _columns(jobs, with_users)
    if chosen:
        for name in chosen:
            _check_column(name, columns)
        columns = {name: columns[name] for name in chosen}
    cells = [[text_of(job) for _, text_of in columns.values()] for job in jobs]
    states = [job.status.state for job in jobs]
    table = fit([column for column, _ in columns.values()], cells, screen, states, "state")
    if screen.width is None:
        return table.text(screen)
    below = [totals("job", states, STATES), *table.remark]
    most = screen.height - len(below) - 3 if live and screen.height else None
    return table.text(screen, below, most)


def in_order(jobs: Sequence[Run], sort: str = "state") -> list[Run]:
    """By a column of the table, `COLUMN` or `COLUMN:desc`, or by `created`. By state, those that
    have not ended come first, then failed ones; then names in the order that people count in."""
    from edgeloop.models.columns import natural_key

    name, _, way = sort.partition(":")
    if way not in ("", "asc", "desc"):
        raise click.UsageError(f"--sort is COLUMN, COLUMN:asc or COLUMN:desc, not {sort!r}.")
    by_name = sorted(jobs, key=lambda job: natural_key(job.name))
    if name == "state":
        return sorted(by_name, key=lambda job: _RANKS[job.status.state], reverse=way == "desc")
    if name == "created":
        return sorted(by_name, key=lambda job: job.record.created, reverse=way == "desc")
    columns = _columns(jobs, with_users=True)
    _check_column(name, columns)

    def key(job: Run) -> tuple[int, float, str]:
        if name == "took":
            return (0, _output_seconds(job.status), "")
        text = columns[name][1](job)
        try:
            return (0, float(text), "")
        except ValueError:
            return (1, 0.0, natural_key(text))

    return sorted(by_name, key=key, reverse=way == "desc")


def _columns(
    jobs: Sequence[Run], with_users: bool
) -> dict[str, tuple[TableColumn, Callable[[Run], str]]]:
    """The columns by their headings, and what each shows of a job."""
    names = dict.fromkeys(name for job in jobs for name in job.record.params)
    varied = [n for n in names if len({job.record.params.get(n) for job in jobs}) > 1]

    def parameter(name: str) -> Callable[[Run], str]:
        return lambda job: job.record.params.get(name, "")

    def metric(name: str) -> Callable[[Run], str]:
        return lambda job: _number(job.status.metrics.get(name))

    user = (TableColumn("user", 60, 8), lambda job: job.record.user)
    return {
        "name": (TableColumn("name", 100, 20), lambda job: job.name),
        **({"user": user} if with_users else {}),
        **{n: (TableColumn(n, 75, right=True), parameter(n)) for n in varied},
        "state": (TableColumn("state", 95), lambda job: job.status.state),
        "took": (TableColumn("took", 80, right=True), lambda job: duration(job.status)),
        "compute": (TableColumn("compute", 65, 8), lambda job: job.record.compute),
        **{n: (TableColumn(n, 70, right=True), metric(n)) for n in _measured(jobs)},
        "": (TableColumn("", 85, 16), _remark),
    }


def _check_column(name: str, columns: Mapping[str, object]) -> None:
    from edgeloop.errors import BadInput

    if name not in columns or not name:
        names = ", ".join(filter(None, columns))
        raise BadInput(reason=f"there is no column {name!r}; the columns are {names}")


def job_json(job: Run, folder: Path, newest: str | None = None) -> dict[str, object]:
    """Everything known about a job; times are ISO 8601 in UTC. `newest` is the name of its newest
    attempt, if that is another one."""
    record, status = job.record, job.status
    return {
        "name": record.name,
        "id": record.id,
        "state": status.state,
        "exit_code": status.exit_code,
        "reason": status.reason,
        "note": status.note,
        "experiment": record.experiment,
        "user": record.user,
        "compute": record.compute,
        "node": status.node,
        "tags": list(record.tags),
        "params": dict(record.params),
        "command": list(record.command),
        "attempt": max(record.attempt, status.attempt),
        "parent": record.parent,
        "newest_attempt": newest,
        "created": record.created.isoformat(),
        "started": _time(status.started),
        "ended": _time(status.ended),
        "metrics": dict(status.metrics),
        "published": dict(status.published),
        "files": asdict(status.files),
        "folder": str(folder),
    }


def outcome(job: Run) -> str:
    """The last line of `run`: completed in 2:14 · exit code 0."""
    status = job.status
    parts = [f"{status.state} in {duration(status)}" if status.started else status.state]
    if status.exit_code is not None:
        parts.append(f"exit code {status.exit_code}")
    if reason := _reason(status):
        parts.append(printable(reason))
    for name, version in status.published.items():
        parts.append(f"made {printable(name)}@{version}")
    if note := status.files.note(name=job.name):
        parts.append(note)
    return " · ".join(parts)


def state_text(jobs: Sequence[Run]) -> str:
    """What one waits for: `long: queued on cluster`, `3 jobs: 1 queued, 2 running`."""
    if len(jobs) != 1:
        return totals("job", [job.status.state for job in jobs], STATES)
    [job] = jobs
    took = f" ({duration(job.status)})" if job.status.started else ""
    return f"{job.name}: {job.status.state} on {job.record.compute}{took}"


def duration(status: Status, now: float | None = None) -> str:
    if status.started is None:
        return ""
    minutes, seconds = divmod(round(_output_seconds(status, now)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _output_seconds(status: Status, now: float | None = None) -> float:
    if status.started is None:
        return 0.0
    end = status.ended if status.ended is not None else (now or time.time())
    return max(0.0, end - status.started)


class Printer:
    """Output as it is; with several jobs, whole lines prefixed by the job's name."""

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._begun = b""

    def show(self, content: bytes) -> None:
        if not self._name:
            click.echo(content, nl=False)
            return
        *lines, self._begun = (self._begun + content).split(b"\n")
        for line in lines:
            click.echo(f"{self._name} │ {line.decode(errors='replace')}")

    def end(self) -> None:
        if self._begun:
            self.show(b"\n")


def _measured(jobs: Sequence[Run]) -> list[str]:
    names = dict.fromkeys(
        name
        for job in jobs
        for name, value in job.status.metrics.items()
        if isinstance(value, int | float) and name.isprintable()
    )
    return list(names)[:METRICS_SHOWN]


def _remark(job: Run) -> str:
    status = job.status
    parts = [_reason(status)]
    parts += [f"made {name}@{version}" for name, version in status.published.items()]
    return "; ".join(part for part in (*parts, status.files.note(1, job.name), status.note) if part)


def _reason(status: Status) -> str:
    """Empty if it says no more than the state."""
    return "" if status.state in ("completed", status.reason) else status.reason


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
