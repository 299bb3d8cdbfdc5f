"""precision: which tensors deserve more bits, as a front of plans."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.context import (
    ExistingPath,
    common_options,
    fallback_option,
    given_dataset,
    opened,
    shape_option,
)
from edgeloop.cli.tuning.nets import net_argument, opened_net

if TYPE_CHECKING:
    from edgeloop.cli.tuning.nets import Net
    from edgeloop.platforms import PrecisionPlan
    from edgeloop.tuning import (
        PrecisionPoint,
        PrecisionReport,
        Progress,
        TensorSensitivity,
    )

_NAME_WIDTH = 34


@click.command()
@net_argument
@click.option("--device", default="htp", show_default=True, help="Chip to simulate.")
@click.option(
    "--dataset",
    type=click.Path(path_type=Path),
    help="Images for calibration and scores  [default: none, SQNR alone]",
)
@click.option("--task", default="", help="segmentation, …, tensors  [default: the settings]")
@click.option(
    "--inputs",
    type=ExistingPath(),
    metavar="FOLDER|FILE",
    help="Images, .npy, .npz or .raw in place of a dataset  [default: random inputs]",
)
@click.option(
    "--images",
    type=click.IntRange(min=1),
    help="Images to simulate  [default: 16, fewer for slow models]",
)
@click.option(
    "--choose", type=click.IntRange(min=1), metavar="N", help="Take point N of the front."
)
@click.option(
    "--budget-ms",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MS",
    help="Take the most accurate plan that is this fast.",
)
@click.option(
    "--within",
    type=click.FloatRange(min=0),
    metavar="POINTS",
    help="Take the fastest plan that loses at most so many points of the score (dB of a PSNR).",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write the plan  [default: NAME.precision.yaml]",
)
@click.option("--no-upload", is_flag=True, help="Do not add the variant to the store.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes  [default: one per CPU]")
@shape_option
@fallback_option
@common_options
def precision(
    net: str,
    device: str,
    dataset: Path | None,
    task: str,
    inputs: Path | None,
    images: int | None,
    choose: int | None,
    budget_ms: float | None,
    within: float | None,
    output: Path | None,
    no_upload: bool,
    workers: int | None,
    shapes: tuple[str, ...],
    allow_cpu_fallback: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Find the tensors that deserve 16 bits.

    NET is an ONNX file or a model of the store. Ranks every tensor by the error that its rounding
    alone makes, computed on this CPU; only the few most sensitive ones, and plans that give some
    activations 16 bits or some weights 4, are simulated. Shows the front of latency and accuracy.
    The chosen plan, by default the one that gains most for little time, is written as a file for
    --precision mixed:FILE; a model of the store gets a variant with it. Also names the first layer
    whose output on the chip is far from the float one. A run that was interrupted continues where
    it was.

    Example: edgeloop precision net.onnx --device htp:qcs8550 --inputs images
    """
    from edgeloop._util.files import sha256_of
    from edgeloop.cli.output import print_json, shown
    from edgeloop.tuning import PrecisionOptions, choose_point, tune_precision

    if sum(option is not None for option in (choose, budget_ms, within)) > 1:
        raise click.UsageError("give one of --choose, --budget-ms and --within.")
    with opened_net(net, store, experiment, shapes) as found:
        settings = found.settings
        if allow_cpu_fallback:
            settings = settings.with_keys(allow_cpu_fallback=True)
        data = given_dataset(dataset, settings)
        options = PrecisionOptions(device, data, task, images or 0, inputs, workers or 0)
        digest = sha256_of(found.uploaded)
        with _progress() as progress:
            report = tune_precision(found.path, found.name, digest, options, settings, progress)
        chosen = choose_point(report, choose, budget_ms, within)
        target = output or Path(f"{found.name}.precision.yaml")
        chosen.plan.write(target)
        variant = ""
        if found.is_stored and chosen.plan.bits and not no_upload:
            variant = _uploaded(found, chosen.plan, store, experiment)
    number = report.points.index(chosen) + 1
    if as_json:
        fields = {"chosen": number, "plan": str(target), "variant": variant}
        print_json([{**report.to_fields(), **fields}])
        return
    for line in _lines(report, chosen):
        click.echo(line)
    click.echo(f"Point {number} was written to {shown(str(target))}: use --precision mixed:FILE.")
    if variant:
        click.echo(f"It was uploaded as {variant}, for runners.")


COMMANDS = (precision,)


def _uploaded(found: Net, plan: PrecisionPlan, store: str | None, experiment: str | None) -> str:
    """A model of its own: the same file, with the plan beside it."""
    from edgeloop.graph import shapes_from
    from edgeloop.models import UploadOptions
    from edgeloop.platforms import PLAN_FILE

    name = f"{found.name}.mixed-{plan.digest[:6]}"
    shapes = shapes_from((found.row or {}).get("shapes"))
    texts = {PLAN_FILE: plan.text()}
    options = UploadOptions(tags=("mixed",), shapes=shapes, check=False, texts=texts)
    with opened(store, experiment) as workspace:
        return workspace.catalog.upload(found.uploaded, name, options).model.name


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A bar per step on a terminal; nothing in logs and pipes."""
    if not sys.stderr.isatty():
        yield lambda about, done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, int] = {}

        def show(about: str, done: int, total: int) -> None:
            if about not in tasks:
                tasks[about] = bar.add_task(about)
            bar.update(tasks[about], completed=done, total=total)  # type: ignore[arg-type]

        yield show


def _lines(report: PrecisionReport, chosen: PrecisionPoint) -> Iterator[str]:
    import textwrap

    from edgeloop.cli.output import printable
    from edgeloop.cli.terminal.tables import listing

    metric = report.metric
    yield f"{printable(report.model)} on {report.device}, {_images(report)}; latency is estimated"
    headings = ("", "plan", "latency", "SQNR", *((metric, f"{metric} − float") if metric else ()))
    cells = [
        (
            f"{number}{' *' if point is chosen else ''}",
            point.label,
            f"{'≥ ' if point.missing_ops else ''}{_time(point.latency_us)}",
            f"{point.sqnr_db:.1f} dB",
            *(_score(point) if metric else ()),
        )
        for number, point in enumerate(report.points, 1)
    ]
    yield listing(headings, cells, right=("latency", "SQNR", metric, f"{metric} − float"))
    shares = report.shares(chosen)
    if shares is not None and chosen.plan.bits:
        gain, premium = (round(100 * share) for share in shares)
        yield f"* {gain} % of what a16w8 gains, for {premium} % of what it costs"
    missing = max(point.missing_ops for point in report.points)
    if missing:
        yield f"≥: it takes longer; the compiler has no cost for up to {missing} of its steps"
    yield ""
    yield "Most sensitive tensors (error: their own part of it in the outputs)"
    yield listing(
        ("tensor", "operator", "bits", "error", "latency", "SQNR"),
        [_tensor(one) for one in _most(report)],
        right=("error", "latency", "SQNR"),
    )
    yield ""
    first = report.divergence.first
    if first is None and report.divergence.layers:
        yield "No layer diverges: each loses about as much as the others."
    if first is not None:
        kind = f" ({first.operator})" if first.operator else ""
        yield f"First diverging layer: {printable(first.layer)}{kind}"
        usual = report.divergence.usual_db
        yield f"  by itself {first.own_db:.1f} dB, where layers of this model have {usual:.1f} dB"
    for note in filter(None, report.notes):
        yield from textwrap.wrap(printable(note), 80)


def _images(report: PrecisionReport) -> str:
    return f"{report.images} {'images' if report.metric else 'samples'}"


def _most(report: PrecisionReport) -> list[TensorSensitivity]:
    wide = [one for one in report.tensors if one.tensor.kind == "activation"][:5]
    return [*wide, *[one for one in report.tensors if one.tensor.kind == "weights"][:3]]


def _tensor(one: TensorSensitivity) -> tuple[str, ...]:
    from edgeloop.cli.output import printable

    name = printable(one.tensor.name)
    if len(name) > _NAME_WIDTH:
        name = f"…{name[1 - _NAME_WIDTH :]}"
    return (
        name,
        one.tensor.operator or "input",
        "8 → 16" if one.tensor.kind == "activation" else "8 → 4",
        f"{one.error_db:.0f} dB",
        "" if one.latency_us is None else _time(one.latency_us),
        "" if one.sqnr_db is None else f"{one.sqnr_db:.1f}",
    )


def _score(point: PrecisionPoint) -> tuple[str, str]:
    if point.score is None or point.difference is None:
        return "", ""
    found = point.difference
    return f"{point.score:.4f}", f"{found.value:+.4f} ({found.low:+.4f} … {found.high:+.4f})"


def _time(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.3g} µs"
    return f"{microseconds / 1000:.3g} ms"
