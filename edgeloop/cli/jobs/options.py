"""The options that describe a job, shared by `run` and `job submit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from edgeloop.jobs import JobSpec

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
    from edgeloop.jobs import read_spec, spec_of_script

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
    from edgeloop.jobs import parse_sweep

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
