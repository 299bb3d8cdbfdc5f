"""runner: evaluating models."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop._util.values import plural
from edgeloop.cli.app import (
    ExistingPath,
    NewPath,
    TimeType,
    benchmark_only_option,
    common_options,
    dataset_folder,
    dataset_option,
    devices_option,
    fallback_option,
    interrupted,
    load_settings,
    missing_store,
    noting_rows_left_out,
    precision_option,
    task_option,
)
from edgeloop.cli.terminal import (
    print_json,
    printable,
)

if TYPE_CHECKING:
    from edgeloop.platforms import Precision, PrecisionPlan
    from edgeloop.runner.loop import RunnerOptions, RunTotals
    from edgeloop.runner.presence import DrainSummary, RunnerEvent
    from edgeloop.runner.stages.base import Sizes
    from edgeloop.settings import Settings


@click.command()
@devices_option("host, htp:CHIP, adb:SERIAL, or a chip: all its boards; repeatable.")
@dataset_option
@click.option(
    "--calibration",
    type=ExistingPath(),
    metavar="FOLDER|FILE",
    help="Images, .npz, .npy or .raw for the inputs  [default: the dataset, else random]",
)
@task_option
@click.option("--drain", is_flag=True, help="Exit when no work is left; 1 if a model failed.")
@click.option("--ok-if-errors", is_flag=True, help="With --drain: exit 0 if models failed.")
@click.option("--once", is_flag=True, help="Exit after one stage; 1 if it could not be done.")
@click.option(
    "--idle",
    type=TimeType(),
    metavar="TIME",
    help="Exit after this long without work.",
)
@click.option(
    "--grace",
    type=TimeType(),
    default="30s",
    show_default=True,
    metavar="TIME",
    help="Time for the current stage to finish after a stop signal.",
)
@click.option(
    "--cpus", type=click.IntRange(min=1), metavar="N", help="Reserve N CPUs of this machine."
)
@click.option("--subset", multiple=True, metavar="GLOB", help="Only models that match; repeatable.")
@benchmark_only_option
@click.option("--no-quantize", is_flag=True, help="Leave conversion to other machines.")
@click.option(
    "--toolchain",
    metavar="NAME",
    help="Converter: qnn, snpe or a plug-in's  [default: what the devices run]",
)
@precision_option
@click.option(
    "--recover",
    is_flag=False,
    flag_value="all",
    metavar="[STEPS]",
    help="Recover accuracy lost to quantization: all, or equalize,ranges,adaround,bias; adaround "
    "is rounding by least squares and GPTQ's rule.",
)
@fallback_option
@click.option("--runs", type=click.IntRange(min=1), help="Number of benchmark runs.")
@click.option(
    "--calibration-images", type=click.IntRange(min=1), help="Number of calibration images."
)
@click.option(
    "--quick-images", type=click.IntRange(min=1), help="Test images of f1_1k and f1_1k_f."
)
@click.option(
    "--thorough-images", type=click.IntRange(min=1), help="Test images of f1_onnx and f1_10k."
)
@click.option("--layers", is_flag=True, help="Also find the cost of every layer (takes a minute).")
@click.option("--recovery-images", type=click.IntRange(min=4), help="Images to judge --recover by.")
@click.option(
    "--workdir",
    type=NewPath(is_folder=True),
    envvar="EDGELOOP_WORKDIR",
    help="Working folder  [default: $EDGELOOP_WORKDIR, else .edgeloop/work]",
)
@click.option(
    "--health",
    type=NewPath(makes_folders=True),
    envvar="EDGELOOP_HEALTH",
    metavar="FILE",
    help="File for 'edgeloop health'  [default: $EDGELOOP_HEALTH]",
)
@common_options
def runner(
    devices: tuple[str, ...],
    dataset: Path | None,
    calibration: Path | None,
    task: str | None,
    drain: bool,
    ok_if_errors: bool,
    once: bool,
    idle: float | None,
    grace: float,
    cpus: int | None,
    subset: tuple[str, ...],
    benchmark_only: bool,
    no_quantize: bool,
    toolchain: str | None,
    precision: Precision | PrecisionPlan,
    recover: str | None,
    layers: bool,
    allow_cpu_fallback: bool,
    runs: int | None,
    calibration_images: int | None,
    quick_images: int | None,
    thorough_images: int | None,
    recovery_images: int | None,
    workdir: Path | None,
    health: Path | None,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Find ready work and do it, by priority.

    Any number of runners share the work. A runner can be killed at any moment; another continues
    where it stopped. SIGTERM or the first Ctrl-C finishes the current stage if --grace is enough,
    else gives it back, and exits with 0 or, after Ctrl-C, 130; the second one stops at once.

    Models are converted for the devices that runners of the experiment have, with every toolchain
    that this machine has. A dataset that the experiment names ('edgeloop experiment set') is
    fetched from the store, and comes before --dataset.

    Without a dataset, models are calibrated on --calibration or on random inputs, and compared with
    their float form instead of scored (task tensors). So are models that do not fit the task of the
    dataset, unless --task names it: then they fail.

    With --drain, and on Ctrl-C, it ends with how many models are done, failed, and left: who holds
    them, or what they wait for. With --drain the exit code is 1 if any model is in error, or if
    work is left that this runner was to do: a conversion that this machine cannot do, for example.
    --idle 60s waits a minute for more work before it ends, with and without --drain.

    With --recover, accuracy that a model lost to quantization is recovered where possible, step by
    step. A step is kept only if the score on the device rises beyond its paired interval.

    With --cpus, runners on one machine quantize at the same time, each on CPUs of its own. If they
    are taken, it waits and says so. Without, one of them quantizes, on the CPUs that are left.

    Example: edgeloop runner --device htp:qcs8550 --dataset faces --drain
    """
    from dataclasses import replace

    from edgeloop.errors import StoreUnavailable
    from edgeloop.runner.loop import RunnerOptions, run
    from edgeloop.tuning.recovery import parse_steps
    from edgeloop.workspace import Workspace

    settings = load_settings(store, experiment, allow_cpu_fallback=allow_cpu_fallback)
    if runs:
        settings = replace(settings, benchmark_runs=runs)
    options = RunnerOptions(
        devices=devices,
        dataset=dataset_folder(dataset, settings),
        calibration=calibration,
        task=task or "",
        drain=drain,
        once=once,
        subset=subset,
        benchmark_only=benchmark_only,
        quantize=not no_quantize,
        toolchain=toolchain or "",
        precision=precision,
        layers=layers,
        recover=() if recover is None else parse_steps(recover),
        sizes=_sizes(settings, calibration_images, quick_images, thorough_images, recovery_images),
        workdir=workdir,
        grace_s=grace,
        idle_s=idle,
        cpus=cpus or 0,
        health=health,
    )
    reports: list[RunnerEvent] = []
    missing_store(settings, makes=False)
    with Workspace(settings) as workspace, noting_rows_left_out(once or drain):
        with contextlib.suppress(StoreUnavailable):  # it may come back
            workspace.store.begin_writing()

        def reclaim() -> None:
            from edgeloop.operate.gc import reclaim_orphans

            reclaim_orphans(workspace)

        if as_json:
            totals = run(workspace, options, reports.append, reclaim)
        else:
            with _screen() as show:

                def listen(report: RunnerEvent) -> None:
                    reports.append(report) if report.summary else show(report)

                totals = run(workspace, options, listen, reclaim)
    summary = next((report.summary for report in reports if report.summary), None)
    if as_json:
        print_json(_as_json(report) for report in reports if report.state in _JSON_STATES)
    else:
        click.echo(_ended(totals))
        if summary is not None:
            click.echo(str(summary))
    code = _exit_code(totals, summary, options, ok_if_errors)
    ending = KeyboardInterrupt() if totals.was_interrupted else SystemExit(code)
    if totals.has_abandoned:
        _exit_at_once(ending)
    if totals.was_interrupted or code:
        raise ending


def _exit_code(
    totals: RunTotals, summary: DrainSummary | None, options: RunnerOptions, ok_if_errors: bool
) -> int:
    has_failed = bool(totals.failed or (summary and summary.failed)) and not ok_if_errors
    is_in_vain = not totals.done and (has_failed or totals.released + totals.unreachable > 0)
    is_short = has_failed or totals.unreachable > 0 or bool(summary and summary.ready)
    ends = options.once or options.drain
    is_failure = (options.drain and is_short) or (ends and is_in_vain and not totals.was_stopped)
    return 1 if is_failure else 0


def _exit_at_once(ending: BaseException) -> None:
    """Python would first wait for the threads of an abandoned stage, to the end of its work."""
    if isinstance(ending, KeyboardInterrupt):
        ending = interrupted(click.get_current_context())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(ending.code or 0) if isinstance(ending, SystemExit) else 1)


COMMANDS = (runner,)


_JSON_STATES = ("done", "failed", "released", "note", "drained")


def _ended(totals: RunTotals) -> str:
    failed = f", {totals.failed} failed" if totals.failed else ""
    released = f", {totals.released} given back" if totals.released else ""
    unreachable = f", {totals.unreachable} out of reach" if totals.unreachable else ""
    return f"{plural(totals.done, 'stage')} done{failed}{released}{unreachable}."


def _as_json(report: RunnerEvent) -> dict[str, object]:
    fields = {name: value for name, value in vars(report).items() if name != "summary"}
    if report.summary is None:
        return fields
    left = [{"count": count, "reason": reason} for reason, count in report.summary.left]
    return {
        "state": report.state,
        "text": report.text,
        "done": report.summary.done,
        "failed": list(report.summary.failed),
        "left": left,
    }


def _sizes(
    settings: Settings,
    calibration: int | None,
    quick: int | None,
    thorough: int | None,
    recovery: int | None,
) -> Sizes:
    from edgeloop.runner.stages.base import Sizes

    return Sizes(
        calibration or settings.calibration_images,
        quick or settings.quick_images,
        thorough or settings.thorough_images,
        settings.curve_images,
        recovery or Sizes.recovery,
    )


@contextlib.contextmanager
def _screen() -> Iterator[Callable[[RunnerEvent], None]]:
    """A terminal shows the current work on its last line; a log gets plain lines only."""
    if not sys.stdout.isatty():
        yield lambda report: _print_report(report, click.echo)
        return
    from rich.console import Console

    console = Console(highlight=False)
    running: dict[tuple[str, str], float] = {}
    with console.status("waiting for work") as status:

        def show(report: RunnerEvent) -> None:
            if report.state == "begun":
                running[report.model, report.stage] = report.seconds
            else:
                running.pop((report.model, report.stage), None)
                _print_report(report, lambda line: console.print(line, markup=False))
            busy = ", ".join(f"{stage} {model}" for model, stage in running)
            status.update(busy or "waiting for work")

        yield show


def _print_report(report: RunnerEvent, echo: Callable[[str], None]) -> None:
    from edgeloop._util.redact import redact

    text = printable(redact(report.text))
    if not report.model:
        echo(text)
    elif report.state != "begun":
        mark = " " if report.state == "done" else "!"
        echo(f"{mark} {report.stage:<10} {report.model:<20} {report.seconds:6.1f} s   {text}")
