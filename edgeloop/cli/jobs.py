"""run and job: scripts that run somewhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeloop.cli.app import common_options, open_jobs, say_if_new, workspace_option, yes_option
from edgeloop.cli.job_views import VIEWS, ChosenJobs, jobs_argument, selecting_options
from edgeloop.cli.terminal import INTERRUPTED, bytes_bar, print_json, shown

if TYPE_CHECKING:
    from edgeloop.jobs.client import Jobs
    from edgeloop.jobs.records import Run
    from edgeloop.jobs.spec import JobOption, JobSpec


# The options that describe a job, shared by `run` and `job submit`.


ARGUMENTS = "edgeloop.arguments"  # where a command finds what came after --


class ScriptCommand(click.Command):
    """A command that passes everything after the first `--` to the script unchanged."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own_args, rest = args, None
        if "--" in args:
            cut = args.index("--")
            own_args, rest = args[:cut], tuple(args[cut + 1 :])
        ctx.meta[ARGUMENTS] = rest
        return super().parse_args(ctx, own_args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENTS...]"]


def script_arguments() -> tuple[str, ...] | None:
    """The words after `--`, or None."""
    arguments: tuple[str, ...] | None = click.get_current_context().meta[ARGUMENTS]
    return arguments


class JobCommand(ScriptCommand):
    """A command with the options that the keys of a job declare; options win over the file.

    They are made when the command is used: `edgeloop --help` should not wait for them.
    """

    _job_options: list[click.Parameter] | None = None

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if self._job_options is None:
            from edgeloop.jobs.spec import job_keys

            self._job_options = [
                _click_option(option)
                for job_key in job_keys().values()
                for option in job_key.options
            ]
        declared = super().get_params(ctx)
        arguments = [each for each in declared if isinstance(each, click.Argument)]
        others = [each for each in declared if not isinstance(each, click.Argument)]
        return [*arguments, *self._job_options, *others]


no_push_option = click.option(
    "--no-push", is_flag=True, help="Use datasets as they are in the store."
)


def _click_option(option: JobOption) -> click.Option:
    kind: Any = None
    if option.choices:
        kind = click.Choice(option.choices)
    elif option.least is not None:
        kind = click.IntRange(min=option.least)
    elif option.kind == "number":
        kind = float
    return click.Option(
        [option.flag],
        type=kind,
        metavar=option.metavar,
        multiple=option.multiple,
        help=option.about,
    )


def spec_from(target: Path, words: Sequence[str], options: dict[str, Any]) -> JobSpec:
    """The job specification from a file, `key=value` overrides and options."""
    from edgeloop.errors import BadInput
    from edgeloop.jobs.spec import read_spec, spec_of_script, with_arguments

    arguments = script_arguments()
    keys = _keys(options)
    if target.suffix in (".yaml", ".yml"):
        if arguments is not None:
            keys = {"args": [], **keys, **with_arguments(keys, arguments)}
        return read_spec(target, words, keys)
    if words:
        reason = f"what the script shall get goes after --, as: {target} -- {' '.join(words)}"
        raise BadInput(reason=reason)
    return spec_of_script(str(target), arguments or (), keys)


def _keys(options: dict[str, Any]) -> dict[str, object]:
    """The given options as keys of a job specification."""
    from edgeloop.jobs.spec import job_keys

    keys: dict[str, Any] = {}
    for job_key in job_keys().values():
        for option in job_key.options:
            value = _value(option, options[option.parameter])
            if value in (None, "", [], {}):
                continue
            if option.part in ("requirements", "conda"):
                value = str(Path(value).expanduser().absolute())
            if option.part:
                value = {**keys.get(job_key.name, {}), option.part: value}
            keys[job_key.name] = value
    if len(keys.get("environment", {})) > 1:
        raise click.UsageError("choose one of --requirements, --conda and --image.")
    if options["secret"]:  # a value is given here, or is that of the environment
        values = _pairs("--secret", [text for text in options["secret"] if "=" in text])
        keys["variables"] = {**keys.get("variables", {}), **values}
        keys["secrets"] = [text.partition("=")[0] for text in options["secret"]]
    if options["experiment"]:
        keys["experiment"] = options["experiment"]
    return keys


def _value(option: JobOption, value: Any) -> Any:
    """The value of an option as a job file has it."""
    if option.kind == "pairs":
        return _pairs(option.flag, value)
    if option.kind == "sweep":
        from edgeloop.jobs.spec import parse_sweep
        from edgeloop.node.ticket import escaped

        return {name: [*map(escaped, values)] for name, values in parse_sweep(value).items()}
    if option.multiple:
        return list(value)
    return str(value) if option.part and value is not None else value


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} {text!r}: write it as NAME=VALUE.")
        pairs[name] = value
    return pairs


# job submit, resubmit, abort, remove.


STORING_S = 300.0


@click.group()
def job() -> None:
    """Submit, follow and collect jobs.

    JOB is a name, prefix, glob or folder, 'all' or 'last'.
    """


@job.command(cls=JobCommand)
@click.argument("target", metavar="SCRIPT|FILE.yaml", type=click.Path(path_type=Path))
@click.argument("words", metavar="[KEY=VALUE]...", nargs=-1)
@no_push_option
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
    may hold all of the options; KEY=VALUE changes what it says. Words after -- reach the script
    exactly as they are typed.

    Example: edgeloop job submit train.yaml epochs=30 --compute cluster
    """
    from edgeloop.cli.job_views import print_jobs

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

    Takes code and data as they are now. Words after -- replace the arguments of the script, and
    arrive as they are typed. The old attempts stay as they are.

    Example: edgeloop job resubmit lr-3 --set timeout=2h -- --lr 5e-4
    """
    from edgeloop.cli.job_views import print_jobs

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
    from edgeloop.cli.job_views import print_jobs

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


# run: submit, follow and fetch in one command.


SECOND_THOUGHTS_S = 3.0


@click.command(cls=JobCommand)
@click.argument("target", metavar="SCRIPT|FILE.yaml", type=click.Path(path_type=Path))
@click.argument("words", metavar="[KEY=VALUE]...", nargs=-1)
@no_push_option
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

    Sends code and data, prints the log, and fetches the outputs at the end. Words after -- reach
    the script exactly as they are typed.

    Ends with the script's own exit code. Ctrl-C leaves the job running and says how to come back; a
    second Ctrl-C cancels it.

    Example: edgeloop run train.py --compute cluster --data faces -- --epochs 3
    """
    from edgeloop.cli.job_views import outcome, print_jobs

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
    fetched = [jobs.fetch(each) for each in runs]
    if as_json or len(runs) > 1:
        print_jobs(jobs, runs, as_json)
    else:
        folder = shown(str(jobs.outputs(runs[0])))
        results = f" · results in {folder}" if fetched[0].files else ""
        click.echo(f"{outcome(runs[0])}{results}", err=True)
    raise SystemExit(_exit_code(runs))


def _followed(jobs: Jobs, runs: list[Run], quiet: bool) -> list[Run]:
    from edgeloop.cli.job_views import follow_logs

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


COMMANDS = (
    job,
    run,
)
