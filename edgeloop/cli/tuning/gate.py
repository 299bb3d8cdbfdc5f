"""gate: a model file against a stored baseline, for continuous integration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeloop.cli.context import (
    ModelFileType,
    PrecisionType,
    dataset_folder,
    fallback_option,
    load_settings,
    shape_option,
)

if TYPE_CHECKING:
    from edgeloop.gate import Baseline, GateFigures, GateOptions, GateReport
    from edgeloop.platforms import Precision, PrecisionPlan
    from edgeloop.settings import Settings

_FAILED, _UNUSABLE = 1, 2


class _Percent(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """`+3%`, `3%` or `3`."""

    name = "percent"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            found = float(str(value).strip().removesuffix("%"))
        except ValueError:
            self.fail(f"{value!r} is not a percentage, such as +3%", param, ctx)
        if not 0 <= found < float("inf"):
            self.fail(f"{value!r} is not a percentage of 0 or more", param, ctx)
        return found


@click.command()
@click.argument("baseline", metavar="BASELINE", type=click.Path(path_type=Path))
@click.argument("net", metavar="NET", type=ModelFileType(checked=True))
@click.option("--write", "is_writing", is_flag=True, help="Write the baseline instead.")
@click.option("--device", help="host, htp:CHIP or a board  [default: the baseline's, else htp]")
@click.option(
    "--dataset",
    type=click.Path(path_type=Path),
    help="Images for calibration and the score  [default: $INPUT_DATASET or the settings]",
)
@click.option("--task", help="What the dataset is for  [default: the baseline's, or the settings]")
@click.option(
    "--images",
    type=click.IntRange(min=2),
    help="Test images of the score  [default: the baseline's, else 200]",
)
@click.option(
    "--precision",
    type=PrecisionType(),
    metavar="NAME|mixed:FILE",
    help="Quantization, as of bench  [default: the baseline's, else a8w8-per-channel]",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Benchmark runs on devices that measure.",
)
@click.option(
    "--max-latency",
    type=_Percent(),
    default="2",
    metavar="PERCENT",
    help="Allowed growth of the latency  [default: +2%]",
)
@click.option(
    "--max-drop",
    type=click.FloatRange(min=0),
    default=0.25,
    show_default=True,
    help="Allowed drop of the score, in points.",
)
@click.option(
    "--max-memory",
    type=_Percent(),
    default="5",
    metavar="PERCENT",
    help="Allowed growth of weights and activations  [default: +5%]",
)
@click.option(
    "--max-size",
    type=_Percent(),
    default="5",
    metavar="PERCENT",
    help="Allowed growth of the file  [default: +5%]",
)
@click.option("--strict", is_flag=True, help="Fail on what is unclear or cannot be compared, too.")
@click.option(
    "--markdown",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Write the table as Markdown to this file; '-' for stdout.",
)
@shape_option
@fallback_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def gate(
    baseline: Path,
    net: Path,
    is_writing: bool,
    device: str | None,
    dataset: Path | None,
    task: str | None,
    images: int | None,
    precision: Precision | PrecisionPlan | None,
    runs: int,
    max_latency: float,
    max_drop: float,
    max_memory: float,
    max_size: float,
    strict: bool,
    markdown: Path | None,
    shapes: tuple[str, ...],
    allow_cpu_fallback: bool,
    as_json: bool,
) -> None:
    """Fail if a model is worse than a baseline.

    Compares latency, score, memory, size and operators of the ONNX file NET with those that --write
    has stored in BASELINE. Needs no store. The exit code is 0 if nothing is worse than allowed, 1
    for a regression, and 2 if the comparison could not be made.

    Example: edgeloop gate --write baseline.json net.onnx --device htp:qcs8550 --dataset faces

    Example: edgeloop gate baseline.json net.onnx --dataset faces --markdown gate.md
    """
    from edgeloop.errors import EdgeloopError, ModelFailed, UnusableModel
    from edgeloop.gate import Baseline, GateLimits, compare_figures, refused_report

    limits = GateLimits(max_latency, max_drop, max_memory, max_size, strict)
    given = {"device": device, "task": task, "images": images, "precision": precision}
    name = device or ""
    try:
        known = None if is_writing else Baseline.read(baseline)
        settings, options = _options(known, given, dataset, runs, shapes, allow_cpu_fallback)
        name = options.device
        figures = _figures(net, options, settings, known.device if known else "")
        if known is None:
            made = Baseline.of(figures)
            made.write(baseline)
            click.echo(_written(made, baseline))
            return
        report = compare_figures(known, figures, limits)
    except (ModelFailed, UnusableModel) as error:
        if is_writing:
            raise
        report = refused_report(net.name, name, str(error))
    except EdgeloopError as error:
        from edgeloop._util.redact import redact
        from edgeloop.cli.output import one_line

        click.echo(one_line(redact(f"edgeloop: {error}")), err=True)
        raise SystemExit(_UNUSABLE) from None
    _print(report, markdown, as_json)
    if not report.is_passed:
        raise SystemExit(_FAILED)


COMMANDS = (gate,)


def _options(
    known: Baseline | None,
    given: dict[str, Any],
    dataset: Path | None,
    runs: int,
    shapes: tuple[str, ...],
    allow_cpu_fallback: bool,
) -> tuple[Settings, GateOptions]:
    """What is not given is as in the baseline; a figure of another device is never compared."""
    from edgeloop.errors import BadInput
    from edgeloop.gate import GateOptions
    from edgeloop.graph import parse_shapes
    from edgeloop.platforms import MIXED

    settings = load_settings()
    if allow_cpu_fallback:
        settings = settings.with_keys(allow_cpu_fallback=True)
    place = dataset_folder(dataset, settings)
    wanted = {name: value for name, value in given.items() if value is not None}
    if known is not None:
        score = known.score
        before: dict[str, Any] = {"device": known.device, "precision": known.precision}
        before |= {"task": score.task, "images": score.images} if score else {}
        wanted = before | wanted
        if str(wanted["precision"]).startswith(MIXED):
            reason = "the baseline was quantized by a precision file: give --precision mixed:FILE"
            raise BadInput(reason=reason)
        if score is not None and place is None:
            reason = f"the baseline has a score on {score.images} images: give --dataset"
            raise BadInput(reason=reason)
    wanted.setdefault("task", settings.task)
    return settings, GateOptions(dataset=place, runs=runs, shapes=parse_shapes(shapes), **wanted)


def _figures(net: Path, options: GateOptions, settings: Settings, device: str) -> GateFigures:
    from edgeloop.cli.terminal.progress import waiting
    from edgeloop.gate import measure_model

    with waiting("quantizing, compiling and scoring"):
        return measure_model(net, options, settings, device)


def _written(made: Baseline, path: Path) -> str:
    from edgeloop._util.units import size_text

    score = "no score"
    if made.score is not None:
        score = f"{made.score.metric} {made.score.value:.4f} on {made.score.images} images"
    size = size_text(path.stat().st_size)
    return f"{path} ({size}): {made.model} on {made.device}, {made.latency_ms:.4g} ms, {score}"


def _print(report: GateReport, markdown: Path | None, as_json: bool) -> None:
    from edgeloop._util.files import write_atomic
    from edgeloop.cli.output import print_json

    if as_json:
        print_json([report.to_fields()])
    elif markdown is None or str(markdown) != "-":
        _print_table(report)
    if markdown is None:
        return
    if str(markdown) == "-":
        click.echo(report.markdown(), nl=False)
        return
    write_atomic(markdown, report.markdown())


def _print_table(report: GateReport) -> None:
    from edgeloop.cli.output import printable
    from edgeloop.cli.terminal.tables import listing

    cells = [
        (check.name, check.baseline, check.now, check.change_text, check.allowed, check.verdict)
        for check in report.checks
    ]
    headings = ("", "baseline", "now", "change", "allowed", "verdict")
    right, states = headings[1:5], [check.verdict for check in report.checks]
    click.echo(listing(headings, cells, right=right, states=states, coloured="verdict"))
    for check in report.checks:
        if check.detail:
            click.echo(printable(f"{check.name}: {check.detail}"))
    for note in report.notes:
        click.echo(printable(note))
    click.echo(f"{printable(report.model)} on {report.device}: {report.headline}")
