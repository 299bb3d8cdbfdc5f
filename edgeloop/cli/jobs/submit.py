"""job submit, resubmit, abort, remove."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeloop.cli.context import common_options, open_jobs, say_if_new, workspace_option, yes_option
from edgeloop.cli.jobs.options import ScriptCommand, job_options, script_arguments, spec_from
from edgeloop.cli.jobs.selection import ChosenJobs, jobs_argument, selecting_options
from edgeloop.cli.jobs.views import VIEWS

if TYPE_CHECKING:
    from edgeloop.jobs import Jobs, Run


STORING_S = 300.0


@click.group()
def job() -> None:
    """Submit, follow and collect jobs.

    JOBS are names, prefixes, globs, folders, 'all' or 'last'.
    """


@job.command(cls=ScriptCommand)
@click.argument("target", metavar="SCRIPT|FILE.yaml", type=click.Path(path_type=Path))
@click.argument("words", metavar="[KEY=VALUE]...", nargs=-1)
@job_options
@workspace_option
@click.option("--pipeline", is_flag=True, help="Submit a sweep as one pipeline, if supported.")
@common_options
def submit(
    target: Path,
    words: tuple[str, ...],
    no_push: bool,
    pipeline: bool,
    workspace_config: Path | None,
    store: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Submit a script and return at once.

    The script runs there as it would here: its code, data/ and outputs/ lie around it. A YAML file
    may hold all of the options; KEY=VALUE changes what it says.

    Example: edgeloop job submit train.yaml epochs=30 --compute cluster
    """
    from edgeloop.cli.jobs.views import print_jobs
    from edgeloop.cli.terminal.progress import bytes_bar

    jobs = open_jobs(store, options["experiment"], workspace_config)
    say_if_new(jobs.settings)
    spec = spec_from(target, words, options)
    with bytes_bar("sending data") as bar:
        runs = jobs.submit(
            spec, push=not no_push, pipeline=pipeline, tell=_teller(as_json), progress=bar
        )
    if as_json:
        print_jobs(jobs, runs, as_json=True)
        return
    for run in runs:
        click.echo(f"{run.name} submitted to {run.record.compute}")
    what = runs[0].name if len(runs) == 1 else f"'{runs[0].name.rpartition('-')[0]}-*'"
    click.echo(f"Next: edgeloop job status {what}  ·  edgeloop job logs {what} -f", err=True)


@job.command(cls=ScriptCommand)
@jobs_argument
@selecting_options
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the job; repeatable.",
)
@click.option("--with-outputs", is_flag=True, help="Start with the outputs of the old attempt.")
@click.option("--no-push", is_flag=True, help="Use datasets as the store has them.")
@yes_option
@common_options
def resubmit(
    patterns: tuple[str, ...],
    tag: str,
    state: tuple[str, ...],
    changes: tuple[str, ...],
    with_outputs: bool,
    no_push: bool,
    yes: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Run jobs again, optionally with changes.

    Takes code and data as they are now. Words after -- replace the arguments of the script. The
    old attempts stay as they are.

    Example: edgeloop job resubmit lr-3 --set timeout=2h -- --lr 5e-4
    """
    from edgeloop.cli.jobs.views import print_jobs
    from edgeloop.cli.terminal.progress import bytes_bar

    jobs = open_jobs(store, experiment)
    old = _chosen(jobs, "resubmit", patterns, tag, state, yes)
    again: list[Run] = []

    def send(run: Run) -> None:
        with bytes_bar("sending data") as bar:
            new = jobs.resubmit(
                run,
                changes,
                script_arguments(),
                push=not no_push,
                with_outputs=with_outputs,
                tell=_teller(as_json),
                progress=bar,
            )
        again.append(new)
        if not as_json:
            attempt = f"attempt {new.record.attempt} of {run.name}"
            click.echo(f"{new.name} submitted to {new.record.compute} ({attempt})")

    old.each(send)
    if as_json:
        print_jobs(jobs, again, as_json=True)
    old.end()


@job.command()
@jobs_argument
@selecting_options
@click.option("--no-wait", is_flag=True, help="Do not wait until the jobs have ended.")
@yes_option
@common_options
def abort(
    patterns: tuple[str, ...],
    tag: str,
    state: tuple[str, ...],
    no_wait: bool,
    yes: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Cancel jobs and wait until they have ended.

    A script gets SIGTERM and its grace period to save its work. Everything that it wrote to
    outputs/ is in the store.

    Example: edgeloop job abort 'sweep*' --yes
    """
    from edgeloop.cli.jobs.views import print_jobs

    jobs = open_jobs(store, experiment)
    selection = ChosenJobs(jobs, patterns, tag, state)
    selection.keep_reachable()
    chosen = selection.runs
    alive = [run for run in chosen if not run.status.is_final]
    _confirm("abort", alive, yes or selection.exact or len(alive) < 2)
    ended = jobs.cancel(alive)
    if not no_wait:
        grace_s = max((jobs.grace_s(run) for run in ended), default=0.0)
        ended = jobs.wait(ended, timeout_s=grace_s + STORING_S)
    if as_json:
        now = {run.name: run for run in ended}
        print_jobs(jobs, [now.get(run.name, run) for run in chosen], as_json=True)
        selection.end()
        return
    over = {run.name for run in chosen} - {run.name for run in alive}
    for run in chosen:
        if run.name in over:
            click.echo(f"{run.name}: had already ended ({run.state})")
    for run in ended:
        said = run.state if run.status.is_final else "cancel requested"
        late = " before it could be canceled" if run.state in ("completed", "failed") else ""
        click.echo(f"{run.name}: {said}{late}")
    selection.end()


@job.command()
@jobs_argument
@selecting_options
@yes_option
@common_options
def remove(
    patterns: tuple[str, ...],
    tag: str,
    state: tuple[str, ...],
    yes: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Delete finished jobs.

    Deletes their local folders and their files in the store.

    Example: edgeloop job remove 'sweep*' --state failed
    """
    from edgeloop.cli.output import print_json

    jobs = open_jobs(store, experiment)
    chosen = _chosen(jobs, "remove", patterns, tag, state, yes)
    chosen.keep_reachable()
    chosen.keep(jobs.check_removable)
    jobs.remove(chosen.runs)
    if as_json:
        print_json({"name": run.name, "removed": True} for run in chosen.runs)
    else:
        for run in chosen.runs:
            click.echo(f"{run.name}: removed")
    chosen.end()


for view in VIEWS:
    job.add_command(view)

COMMANDS = (job,)


def _chosen(
    jobs: Jobs, verb: str, patterns: tuple[str, ...], tag: str, state: tuple[str, ...], yes: bool
) -> ChosenJobs:
    """The jobs to change. Jobs that were not named one by one are listed and confirmed."""
    chosen = ChosenJobs(jobs, patterns, tag, state)
    _confirm(verb, chosen.runs, yes or chosen.exact or len(chosen.runs) < 2)
    return chosen


def _confirm(verb: str, runs: tuple[Run, ...] | list[Run], yes: bool) -> None:
    if yes:
        return
    click.echo(f"This will {verb} {len(runs)} jobs:", err=True)
    for run in runs:
        click.echo(f"  {run.name}  ({run.state})", err=True)
    if sys.stdin is None:
        raise click.Abort
    click.confirm("Continue?", abort=True, err=True)


def _teller(as_json: bool) -> Any:
    return None if as_json else lambda line: click.echo(line, err=True)
