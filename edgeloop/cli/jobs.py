"""run and job: scripts that run somewhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgeloop.cli.app import common_options, open_jobs, say_if_new, workspace_option, yes_option
from edgeloop.cli.job_views import VIEWS, ChosenJobs, jobs_argument, selecting_options
from edgeloop.cli.terminal import INTERRUPTED, bytes_bar, print_json, shown

if TYPE_CHECKING:
    from edgeloop.jobs.client import Jobs
    from edgeloop.jobs.records import Run
    from edgeloop.jobs.spec import JobSpec


# The options that describe a job, shared by `run` and `job submit`.


Command = TypeVar("Command", bound=Callable[..., None])
ARGUMENTS = "edgeloop.arguments"  # where a command finds what came after --


class ScriptCommand(click.Command):
    """A command that passes everything after the first `--` to the script unchanged."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, rest = args, None
        if "--" in args:
            cut = args.index("--")
            own, rest = args[:cut], tuple(args[cut + 1 :])
        ctx.meta[ARGUMENTS] = rest
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENTS...]"]


def script_arguments() -> tuple[str, ...] | None:
    """The words after `--`, or None."""
    found: tuple[str, ...] | None = click.get_current_context().meta[ARGUMENTS]
    return found


def job_options(command: Command) -> Command:
    """Each is also a key of the job file; options win over the file."""
    options = (
        click.option("--name", help="Name of the job  [default: script name and a number]"),
        click.option("--compute", help="Compute, by its name in edgeloop.yaml  [default: local]"),
        click.option("--data", multiple=True, metavar="DATASET|[NAME=]URL", help=_DATA),
        click.option("--writes", multiple=True, metavar="DATASET|[NAME=]URL", help=_WRITES),
        click.option("--mode", type=click.Choice(("mount", "download")), help=_MODE),
        click.option("--outputs", multiple=True, metavar="PATTERN", help=_OUTPUTS),
        click.option("--no-push", is_flag=True, help="Use datasets as they are in the store."),
        click.option("--sweep", multiple=True, metavar="PARAM=VALUES", help=_SWEEP),
        click.option("--cpus", type=float, help=_CPUS),
        click.option("--gpus", type=float, help="GPUs  [default: 0]"),
        click.option("--memory", metavar="SIZE", help="Memory, such as 8GB."),
        click.option("--nodes", type=click.IntRange(min=1), help=_NODES),
        click.option("--resource", multiple=True, metavar="NAME=COUNT", help=_RESOURCE),
        click.option(
            "--requirements", metavar="FILE", help="pip requirements of the job's environment."
        ),
        click.option("--conda", metavar="FILE", help="Conda file of the job's environment."),
        click.option(
            "--image", metavar="NAME", help="Container image, if the compute supports it."
        ),
        click.option("--env", multiple=True, metavar="NAME=VALUE", help=_ENV),
        click.option("--secret", multiple=True, metavar="NAME[=VALUE]", help=_HIDDEN),
        click.option("--code", metavar="DIR", help="Code folder to send  [default: the project]"),
        click.option("--tag", multiple=True, help="Label to filter by; repeatable."),
        click.option("--timeout", metavar="TIME", help="Time limit, such as 90s, 30m or 2h."),
        click.option("--retries", type=click.IntRange(min=0), help="Restarts after a failure."),
        click.option(
            "--priority", type=click.IntRange(min=0), help="Lower runs sooner  [default: 100]"
        ),
        click.option(
            "--grace", metavar="TIME", help="Time between SIGTERM and SIGKILL  [default: 30s]"
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


_DATA = (
    "A dataset it reads, as working/faces or faces@3 (changes here are pushed first), or data at a "
    "URL, as faces=s3://bucket/faces; repeatable."
)
_WRITES = (
    "A dataset it makes, as working/faces64 (published when the job succeeds), or a URL to write "
    "to, as crops=az://container/crops; repeatable."
)
_MODE = "How data at URLs is provided  [default: as the compute can]"
_OUTPUTS = "Files to collect besides outputs/, as results or '**/*.ckpt'; repeatable."
_SWEEP = "A job for each value, as lr=1e-3,1e-4; several make all combinations."
_CPUS = "CPUs; on local also the threads of numerical libraries  [default: 1]"
_NODES = "Machines for the one job; each runs the script, and RANK tells which it is  [default: 1]"
_RESOURCE = "Something else that the compute counts, as snapdragon888=1."
_ENV = "A variable for the script. Write ${NAME} for a value of your environment."
_HIDDEN = (
    "A secret variable: no record shows it. Without VALUE, that of your environment; repeatable."
)


def spec_from(target: Path, words: Sequence[str], options: dict[str, Any]) -> JobSpec:
    """The job specification from a file, `key=value` overrides and options."""
    from edgeloop.errors import BadInput
    from edgeloop.jobs.spec import read_spec, spec_of_script

    arguments = script_arguments()
    keys = _keys(options)
    if target.suffix in (".yaml", ".yml"):
        if arguments is not None:
            keys["args"] = list(arguments)
        return read_spec(target, words, keys)
    if words:
        reason = f"what the script shall get goes after --, as: {target} -- {' '.join(words)}"
        raise BadInput(reason=reason)
    return spec_of_script(str(target), arguments or (), keys)


def _keys(options: dict[str, Any]) -> dict[str, object]:
    """The given options as keys of a job specification."""
    from edgeloop.jobs.spec import parse_sweep

    given = {key: options[key] for key in ("cpus", "gpus", "memory", "nodes")}
    resources = {key: str(value) for key, value in given.items() if value is not None}
    custom = _pairs("--resource", options["resource"])
    keys: dict[str, object] = {
        **{key: options[key] for key in ("name", "compute", "code", "timeout", "grace", "mode")},
        **{key: list(options[key]) for key in ("data", "writes", "outputs")},
        "tags": list(options["tag"]),
        "sweep": parse_sweep(options["sweep"]),
        "resources": {**resources, **({"custom": custom} if custom else {})},
        "environment": _environment(options),
        "variables": {**_pairs("--env", options["env"]), **_secrets(options["secret"])},
        "secrets": [text.partition("=")[0] for text in options["secret"]],
        "retries": options["retries"],
        "priority": options["priority"],
        "experiment": options["experiment"],
    }
    return {key: value for key, value in keys.items() if value not in (None, "", [], {})}


def _environment(options: dict[str, Any]) -> dict[str, str]:
    given = {kind: options[kind] for kind in ("requirements", "conda", "image") if options[kind]}
    if len(given) > 1:
        raise click.UsageError("choose one of --requirements, --conda and --image.")
    return given


def _secrets(texts: Sequence[str]) -> dict[str, str]:
    """Those that are given with a value; the others come from the environment."""
    return _pairs("--secret", [text for text in texts if "=" in text])


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} {text!r}: write it as NAME=VALUE.")
        found[name] = value
    return found


# job submit, resubmit, abort, remove.


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

    Takes code and data as they are now. Words after -- replace the arguments of the script. The
    old attempts stay as they are.

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
    for each in runs:
        jobs.fetch(each)
    if as_json or len(runs) > 1:
        print_jobs(jobs, runs, as_json)
    else:
        folder = shown(str(jobs.outputs(runs[0])))
        click.echo(f"{outcome(runs[0])} · results in {folder}", err=True)
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
