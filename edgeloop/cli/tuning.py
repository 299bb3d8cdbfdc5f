"""compare, layers, advise, precision and gate: tune a model for a chip, and guard the result."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeloop._util.values import interval_text, latency_text, plural, size_text
from edgeloop.cli.app import (
    ExistingPath,
    ModelFileType,
    NewPath,
    PrecisionType,
    TimeType,
    check_new_path,
    chip_option,
    common_options,
    dataset_folder,
    dataset_option,
    fallback_option,
    given_dataset,
    json_option,
    load_settings,
    model_file,
    names_argument,
    opened,
    output_option,
    runs_option,
    shape_option,
    task_option,
    workers_option,
)
from edgeloop.cli.terminal import (
    count_bar,
    listing,
    one_line,
    print_json,
    printable,
    shown,
    step_bar,
    waiting,
)

if TYPE_CHECKING:
    from edgeloop.platforms import Device, LayerCost, LayerCosts, Precision, PrecisionPlan
    from edgeloop.runner.compare import Comparison, Variant
    from edgeloop.settings import Settings
    from edgeloop.store import Values
    from edgeloop.tuning.advice import Advice, AdvisedRewrite
    from edgeloop.tuning.gate import Baseline, GateFigures, GateOptions, GateReport
    from edgeloop.tuning.lab import Progress
    from edgeloop.tuning.precision import PrecisionPoint, PrecisionReport, TensorSensitivity


# gate: a model file against a stored baseline, for continuous integration.


_FAILED, _UNUSABLE = 1, 2


class _Percent(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """`+3%`, `3%` or `3`."""

    name = "percent"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            percent = float(str(value).strip().removesuffix("%"))
        except ValueError:
            self.fail(f"{value!r} is not a percentage, such as +3%", param, ctx)
        if not 0 <= percent < float("inf"):
            self.fail(f"{value!r} is not a percentage of 0 or more", param, ctx)
        return percent


@click.command()
@click.argument("baseline", metavar="BASELINE", type=click.Path(path_type=Path))
@click.argument("net", metavar="FILE", type=ModelFileType(checked=True))
@click.option("--write", "is_writing", is_flag=True, help="Write the baseline instead.")
@click.option("--device", help="host, htp:CHIP or a board  [default: the baseline's, else htp]")
@dataset_option
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
@runs_option(default=5)
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
    type=NewPath(allow_dash=True),
    help="Write the table as Markdown to this file; '-' for stdout.",
)
@shape_option
@fallback_option
@json_option
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

    Compares latency, score, memory, size and operators of an ONNX file with those that --write has
    stored in BASELINE. Needs no store. The exit code is 0 if nothing is worse than allowed, 1
    for a regression, and 2 if the comparison could not be written.

    Example: edgeloop gate --write baseline.json net.onnx --device htp:qcs8550 --dataset faces

    Example: edgeloop gate baseline.json net.onnx --dataset faces --markdown gate.md
    """
    from edgeloop.errors import EdgeloopError, ModelFailed, UnusableModel
    from edgeloop.tuning.gate import Baseline, GateLimits, compare_figures, refused_report

    if is_writing:
        check_new_path(baseline)
    limits = GateLimits(max_latency, max_drop, max_memory, max_size, strict)
    chosen = {"device": device, "task": task, "images": images, "precision": precision}
    name = device or ""
    try:
        reference = None if is_writing else Baseline.read(baseline)
        settings, options = _options(reference, chosen, dataset, runs, shapes, allow_cpu_fallback)
        name = options.device
        figures = _figures(net, options, settings, reference.device if reference else "")
        if reference is None:
            written = Baseline.of(figures)
            written.write(baseline)
            click.echo(_written(written, baseline))
            return
        report = compare_figures(reference, figures, limits)
    except (ModelFailed, UnusableModel) as error:
        if is_writing:
            raise
        report = refused_report(net.name, name, str(error))
    except EdgeloopError as error:
        from edgeloop._util.redact import redact

        click.echo(one_line(redact(f"edgeloop: {error}")), err=True)
        raise SystemExit(_UNUSABLE) from None
    _print(report, markdown, as_json)
    if not report.is_passed:
        raise SystemExit(_FAILED)


def _options(
    reference: Baseline | None,
    chosen: dict[str, Any],
    dataset: Path | None,
    runs: int,
    shapes: tuple[str, ...],
    allow_cpu_fallback: bool,
) -> tuple[Settings, GateOptions]:
    """Options that were not chosen are those of the baseline: figures of another device are never
    compared."""
    from edgeloop.errors import BadInput
    from edgeloop.graph.info import parse_shapes
    from edgeloop.platforms import MIXED
    from edgeloop.tuning.gate import GateOptions

    settings = load_settings(allow_cpu_fallback=allow_cpu_fallback)
    folder = dataset_folder(dataset, settings)
    values = {name: value for name, value in chosen.items() if value is not None}
    if reference is not None:
        score = reference.score
        before: dict[str, Any] = {"device": reference.device, "precision": reference.precision}
        before |= {"task": score.task, "images": score.images} if score else {}
        values = before | values
        if str(values["precision"]).startswith(MIXED):
            reason = "the baseline was quantized by a precision file: give --precision mixed:FILE"
            raise BadInput(reason=reason)
        if score is not None and folder is None:
            reason = f"the baseline has a score on {score.images} images: give --dataset"
            raise BadInput(reason=reason)
    values.setdefault("task", settings.task)
    return settings, GateOptions(dataset=folder, runs=runs, shapes=parse_shapes(shapes), **values)


def _figures(net: Path, options: GateOptions, settings: Settings, device: str) -> GateFigures:
    from edgeloop.tuning.gate import measure_model

    with waiting("quantizing, compiling and scoring"):
        return measure_model(net, options, settings, device)


def _written(baseline: Baseline, path: Path) -> str:
    score = "no score"
    if baseline.score is not None:
        score = (
            f"{baseline.score.metric} {baseline.score.value:.4f} on {baseline.score.images} images"
        )
    size = size_text(path.stat().st_size)
    about = f"{baseline.model} on {baseline.device}, {baseline.latency_ms:.4g} ms, {score}"
    return f"{path} ({size}): {about}"


def _print(report: GateReport, markdown: Path | None, as_json: bool) -> None:
    from edgeloop._util.files import write_atomic

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


# compare: a model as float and quantized, side by side.


@click.command()
@names_argument
@chip_option
@dataset_option
@task_option
@click.option(
    "--images",
    type=click.IntRange(min=2),
    default=40,
    show_default=True,
    help="Number of test images.",
)
@common_options
def compare(
    names: tuple[str, ...],
    device: str,
    dataset: Path | None,
    task: str | None,
    images: int,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Compare float and quantized side by side.

    Variants: float, quantized on the CPU, quantized and fp16 on the HTP simulator. Columns: F1 (or
    the metric of another task) and the paired difference to float with bootstrap intervals,
    agreement with float per pixel (or the cosine of the outputs), size and latency. Without a
    dataset, and for models that do not fit its task: SQNR, cosine, largest error and top-1
    agreement with float.

    Example: edgeloop compare calm-heron --dataset faces --images 40
    """
    from edgeloop.runner.compare import compare_model

    with opened(store, experiment) as workspace:
        settings = workspace.settings
        data = dataset_folder(dataset, settings)
        comparisons = []
        for row in workspace.find(names):
            with step_bar(f"comparing {row.key}, images") as bar:
                comparison = compare_model(
                    workspace,
                    row.key,
                    device=device,
                    dataset=data,
                    task=task or "",
                    images=images,
                    progress=bar.update,
                )
            comparisons.append(comparison)
    if as_json:
        print_json(row for comparison in comparisons for row in comparison.rows())
        return
    for comparison in comparisons:
        _print_comparison(comparison)


_AGAINST_FLOAT = ("Δ to float [95 %]", "agreement")


def _print_comparison(comparison: Comparison) -> None:
    cells = [
        [*_compare_figures(variant), size_text(variant.size), variant.latency]
        for variant in comparison.variants
    ]
    metric = "F1" if comparison.metric == "f1" else comparison.metric
    if metric:
        headings: tuple[str, ...] = ("variant", f"{metric} [95 %]", *_AGAINST_FLOAT)
        right: tuple[str, ...] = ("agreement", "size", "latency")
    else:
        headings = ("variant", "SQNR", "cosine", "max error", "top-1")
        right = (*headings[1:], "size", "latency")
    what = "test images" if metric else "inputs, compared with float"
    click.echo(f"{comparison.model}, {comparison.images} {what}")
    click.echo(listing((*headings, "size", "latency"), cells, right=right))
    layers = ", ".join(f"{one.name} {100 * one.share:.0f} %" for one in comparison.costliest)
    if layers:
        click.echo(f"costliest layers (estimate): {printable(layers)}")


def _compare_figures(variant: Variant) -> list[str]:
    score, delta = variant.f1, variant.delta
    if score is not None:
        against = f"{delta.value:+.4f} [{delta.low:+.4f}, {delta.high:+.4f}]" if delta else ""
        value = f"{score.value:.4f} [{score.low:.4f}, {score.high:.4f}]"
        return [variant.name, value, against, f"{variant.agreement:.4f}"]
    top1 = variant.top1_agreement
    return [
        variant.name,
        "" if variant.sqnr_db is None else f"{variant.sqnr_db:.1f} dB",
        f"{variant.agreement:.5f}",
        "" if variant.max_error is None else f"{variant.max_error:.3g}",
        "" if top1 is None else f"{top1:.4f}",
    ]


# What layers, advise and precision take: an ONNX file, a model of the package (`demo:NAME`), or one
# of the store by its name.


net_argument = click.argument("net", metavar="FILE|NAME")


@dataclass(frozen=True)
class Net:
    """`path` is what toolchains take: float32, with fixed sizes. `uploaded` is the file as it was
    given or uploaded. A file has no `row` and no other `files`."""

    name: str
    path: Path
    uploaded: Path
    settings: Settings
    row: Values | None = None
    files: Mapping[str, Path] = field(default_factory=dict)

    @property
    def is_stored(self) -> bool:
        return self.row is not None


@contextlib.contextmanager
def opened_net(
    net: str, store: str | None, experiment: str | None, shapes: tuple[str, ...] = ()
) -> Iterator[Net]:
    """Files that had to be fetched or prepared are deleted at the end. A file that exists takes
    precedence over a model's name."""
    from tempfile import TemporaryDirectory

    from edgeloop.graph.info import parse_shapes, shapes_from

    with TemporaryDirectory(prefix="edgeloop-net-") as name:
        folder = Path(name)
        path = model_file(net)
        if path.is_file() or _is_file_name(net):
            settings = load_settings(store=store, experiment=experiment)
            opened_model = Net(path.stem, path, path, settings)
            fixed_shapes = parse_shapes(shapes)
        else:
            opened_model = _fetched(net, store, experiment, folder / "files")
            fixed_shapes = parse_shapes(shapes) or shapes_from(
                (opened_model.row or {}).get("shapes")
            )
        yield _prepared(opened_model, fixed_shapes, folder / "prepared")


def _is_file_name(net: str) -> bool:
    """A missing file is not reported as a missing model."""
    return net.endswith(".onnx") or "/" in net


def _fetched(net: str, store: str | None, experiment: str | None, folder: Path) -> Net:
    from edgeloop.runner.compare import fetched

    with opened(store, experiment) as workspace:
        work = fetched(workspace, net, folder)
        return Net(net, work.uploaded, work.uploaded, workspace.settings, work.row, work.files)


def _prepared(net: Net, shapes: Mapping[str, tuple[int, ...]], folder: Path) -> Net:
    from dataclasses import replace

    from edgeloop.graph.isolated import graph_pool
    from edgeloop.graph.read import check_file

    check_file(net.path)
    return replace(net, path=graph_pool().prepare(net.path, dict(shapes), folder))


# layers: which layers of a model take the time on a chip, without a board.


_WIDTH = 80
_SHORTEST_NAME = 12
_BAR_WIDTH = 8


@click.command()
@net_argument
@chip_option
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=15,
    show_default=True,
    metavar="N",
    help="Show the N costliest layers.",
)
@click.option(
    "--timeout",
    "limit_s",
    type=TimeType(least_s=1),
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Stop refining after this long; the next call continues.",
)
@workers_option
@shape_option
@common_options
def layers(
    net: str,
    device: str,
    top: int,
    limit_s: float,
    workers: int | None,
    shapes: tuple[str, ...],
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Show which layers take the time on a chip.

    FILE is an ONNX model, and NAME one of the store: its quantized file, if it was converted. No
    board is needed: parts of the model are compiled, and differences of the compiler's estimate are
    the cost of its layers. Layers that cannot be told apart are one line. Results are cached.

    Example: edgeloop layers net.onnx --device htp:qcs8550 --top 10
    """
    from contextlib import closing

    from edgeloop.errors import BadInput
    from edgeloop.platforms import AttributesLatency, open_device
    from edgeloop.settings import cache_folder

    with (
        opened_net(net, store, experiment, shapes) as opened_model,
        closing(open_device(device, opened_model.settings)) as chip,
    ):
        if not isinstance(chip, AttributesLatency):
            reason = f"{chip.name} cannot tell the cost of layers: use a chip, such as htp"
            raise BadInput(reason=reason)
        with count_bar("compiling parts") as progress:
            costs = chip.attribute(
                _model_for(chip, opened_model),
                workers=workers,
                cache=cache_folder() / "layers",
                limit_s=limit_s,
                progress=progress,
            )
    if as_json:
        print_json([{"model": opened_model.name, **asdict(costs)}])
        return
    for line in _layer_lines(opened_model.name, costs, top):
        click.echo(line)


def _model_for(device: Device, net: Net) -> Path:
    """The quantized file of a model that was converted for such devices, else the float one."""
    suffix = device.artefacts.get("quantized", "")
    converted = [path for name, path in net.files.items() if suffix and name.endswith(suffix)]
    return converted[0] if len(converted) == 1 else net.path


def _layer_lines(name: str, costs: LayerCosts, top: int) -> Iterator[str]:
    import textwrap

    least = "≥ " if costs.missing_ops else ""
    about = ", ".join(_about(costs))
    yield f"{printable(name)}: {least}{_time(costs.total_us)} on {costs.device} ({about})"
    slowest = sorted(costs.layers, key=lambda layer: -layer.time_us)
    largest = slowest[0].share if slowest else 0.0
    rows = [_row(layer, largest) for layer in slowest[:top]]
    rest = slowest[top:]
    if rest:
        share = sum(layer.share for layer in rest)
        time_us = sum(layer.time_us for layer in rest)
        rows.append((plural(len(rest), "other layer"), "", "", _time(time_us), _percent(share), ""))
    if costs.unattributed_us:
        share = costs.unattributed_us / costs.total_us
        cells = ("", "", _time(costs.unattributed_us), _percent(share), "")
        rows.append(("(not attributed)", *cells))
    headings = ("layer", "operator", "output", "time", "share", "")
    yield listing(headings, _fitted(rows), right=("time", "share"))
    for note in costs.notes:
        yield from textwrap.wrap(printable(note), _WIDTH, subsequent_indent="  ")


def _about(costs: LayerCosts) -> Iterator[str]:
    yield "estimate"
    if not costs.is_calibrated:
        yield "not calibrated"
    if costs.low_us is not None and costs.high_us is not None:
        yield interval_text(costs.low_us / 1000, costs.high_us / 1000, costs.coverage)


def _row(layer: LayerCost, largest: float) -> tuple[str, ...]:
    more = f" +{len(layer.members) - 1}" if len(layer.members) > 1 else ""
    shape = layer.output[1:] if layer.output[:1] == (1,) else layer.output
    bar = "█" * round(_BAR_WIDTH * layer.share / largest) if largest else ""
    operator = layer.operator
    return (
        layer.name + more,
        operator if len(operator) <= 12 else f"{operator[:11]}…",
        "x".join(map(str, shape)),
        _time(layer.time_us),
        _percent(layer.share),
        bar,
    )


def _fitted(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Names shortened so that the table fits; the end of a name tells it from the others."""
    others = [max(len(row[column]) for row in rows) for column in range(1, 6)] if rows else []
    width = max(_SHORTEST_NAME, _WIDTH - sum(others) - 2 * len(others))
    return [
        (name if len(name) <= width else f"…{name[1 - width :]}", *cells) for name, *cells in rows
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _time(time_us: float) -> str:
    return f"{time_us:.1f} µs" if time_us < 1000 else f"{time_us / 1000:.2f} ms"


# advise: exact rewrites that make a model faster on a chip.


_LAYER_WIDTH = 28


@click.command()
@net_argument
@chip_option
@click.option(
    "--apply",
    "target",
    type=NewPath(),
    metavar="FILE",
    help="Write the rewritten model to this ONNX file.",
)
@click.option(
    "--only",
    "names",
    multiple=True,
    metavar="REWRITE",
    help="Try only this rewrite, by name; repeatable.",
)
@click.option(
    "--dataset",
    type=click.Path(path_type=Path),
    metavar="FOLDER|FILE",
    help="Inputs to compare outputs on, and to check the quantized model with.",
)
@click.option(
    "--images",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Samples of the dataset to use.",
)
@workers_option
@shape_option
@common_options
def advise(
    net: str,
    device: str,
    target: Path | None,
    names: tuple[str, ...],
    dataset: Path | None,
    images: int,
    workers: int | None,
    shapes: tuple[str, ...],
    store: str | None,
    experiment: str | None,
    as_json: bool,
) -> None:
    """Find exact rewrites that make a model faster.

    FILE is an ONNX model, and NAME one of the store. Every rewrite keeps the outputs as they
    are, which is checked by running both models, and is re-compiled; those that lower the estimate
    are shown with their gain. Nothing is changed unless --apply names a file to write.

    Example: edgeloop advise net.onnx --apply better.onnx
    """
    from edgeloop.tuning.advice import AdviceOptions, advise_model

    with (
        opened_net(net, store, experiment, shapes) as opened_model,
        count_bar("rewriting and compiling") as progress,
    ):
        data = given_dataset(dataset, opened_model.settings)
        options = AdviceOptions(names, data, images, workers)
        advice = advise_model(
            opened_model.path, device, options, opened_model.settings, target, progress
        )
    if as_json:
        print_json([{"model": opened_model.name, **advice.to_fields()}])
        return
    for line in _advise_lines(opened_model.name, advice):
        click.echo(line)
    if target is not None:
        click.echo(_applied(advice, target))


def _advise_lines(name: str, advice: Advice) -> Iterator[str]:
    compiles = plural(advice.compiles, "new compile")
    least = "≥ " if advice.before and advice.before.missing_ops else ""
    about = f"{least}{latency_text(advice.before_ms)}, an estimate ({compiles})"
    yield f"{printable(name)} on {advice.device}: {about}"
    yield ""
    if advice.rewrites:
        yield _table(advice.rewrites)
        if not advice.applies_others:
            yield _total(advice)
        yield from _texts(advice.rewrites)
    elif not advice.applies_others:
        yield "nothing found that helps"
    if advice.others:
        how = "named by --only" if advice.applies_others else "applied only with --only"
        if advice.rewrites or not advice.applies_others:
            yield ""
        yield f"changes what the model returns ({how}):"
        yield _table(advice.others)
        if advice.applies_others:
            yield _total(advice)
        yield from _texts(advice.others)
    yield from _notes(advice)


def _total(advice: Advice) -> str:
    """With where the time on the chip is expected, before and after."""
    total = f"{latency_text(advice.before_ms)} → {latency_text(advice.after_ms)}"
    expected = [
        f"{word}: {text}"
        for word, one in (("before", advice.before), ("after", advice.after))
        if one and (text := interval_text(one.low_ms, one.high_ms, one.coverage))
    ]
    lines = ["", f"total: {total}, {advice.gain_percent:.1f} % less"]
    return "\n".join([*lines, "; ".join(expected)] if expected else lines)


def _table(rewrites: tuple[AdvisedRewrite, ...]) -> str:
    headings = ("rewrite", "layers", "estimate", "gain")
    cells = [
        (
            one.name,
            _layers(one.layers),
            f"{latency_text(one.before_ms)} → {latency_text(one.after_ms)}",
            f"{one.gain_percent:.1f} %",
        )
        for one in rewrites
    ]
    return listing(headings, cells, right=("estimate", "gain"))


def _layers(names: tuple[str, ...]) -> str:
    """The first one, from its end, where names differ; and how many more."""
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    room = _LAYER_WIDTH - len(more)
    first = names[0] if len(names[0]) <= room else f"…{names[0][1 - room :]}"
    return f"{first}{more}"


def _texts(rewrites: tuple[AdvisedRewrite, ...]) -> Iterator[str]:
    import textwrap

    for text in dict.fromkeys(f"{one.name}: {one.text}" for one in rewrites):
        yield from textwrap.wrap(
            text, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
        )


def _notes(advice: Advice) -> Iterator[str]:
    import textwrap

    offered = {one.name for one in (*advice.rewrites, *advice.others)}
    without = [name for name in advice.tried if name not in offered and name not in advice.rejected]
    notes = [f"tried and not offered: {', '.join(without)}"] if without else []
    notes += [f"not offered: {name}, since {why}" for name, why in advice.rejected.items()]
    if advice.is_cut_short:
        notes.append("the search ended at its limit of compiles or time; run it again to go on")
    if advice.missing_ops:
        notes.append(
            f"the compiler has no cost for {advice.missing_ops} steps: the estimate is too low"
        )
    if advice.rewrites:
        notes.append(_equality(advice))
    if notes:
        yield ""
    for note in notes:
        yield from textwrap.wrap(note, _WIDTH, subsequent_indent="  ")


def _equality(advice: Advice) -> str:
    largest = max(one.difference for one in advice.rewrites)
    equal = f"outputs are equal to {largest:.0e} of their spread"
    if advice.quantized is None:
        return f"{equal}; the accuracy of the quantized model was not checked: give a --dataset"
    checked = advice.quantized
    return (
        f"{equal}; quantized, on {checked.samples} samples: SQNR {checked.before_db:.1f} → "
        f"{checked.after_db:.1f} dB, {latency_text(checked.before_ms)} → "
        f"{latency_text(checked.after_ms)}"
    )


def _applied(advice: Advice, target: Path) -> str:
    if advice.written is None:
        return f"\n{shown(str(target))} was not written: there is nothing to apply"
    return f"\nwrote {shown(str(target))}: read, compared and estimated again"


# precision: which tensors deserve more bits, as a front of plans.


_NAME_WIDTH = 34


@click.command()
@net_argument
@chip_option
@click.option(
    "--dataset",
    type=click.Path(path_type=Path),
    help="Images for calibration and scores  [default: none, SQNR alone]",
)
@task_option
@click.option(
    "--calibration",
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
@output_option("Where to write the plan  [default: NAME.precision.yaml]")
@click.option("--no-upload", is_flag=True, help="Do not add the variant to the store.")
@workers_option
@shape_option
@fallback_option
@common_options
def precision(
    net: str,
    device: str,
    dataset: Path | None,
    task: str | None,
    calibration: Path | None,
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

    FILE is an ONNX model, and NAME one of the store. Ranks every tensor by the error that its
    rounding alone makes, computed on this CPU; only the few most sensitive ones, and plans that
    give some activations 16 bits or some weights 4, are simulated. Shows the front of latency and
    accuracy. The chosen plan, by default the one that gains most for little time, is written as a
    file for --precision mixed:FILE; a model of the store gets a variant with it. Also names the
    first layer whose output on the chip is far from the float one. A run that was interrupted
    continues where it was.

    Example: edgeloop precision net.onnx --device htp:qcs8550 --calibration images
    """
    from edgeloop._util.files import sha256_of
    from edgeloop.tuning.precision import PrecisionOptions, choose_point, tune_precision

    if sum(option is not None for option in (choose, budget_ms, within)) > 1:
        raise click.UsageError("give one of --choose, --budget-ms and --within.")
    with opened_net(net, store, experiment, shapes) as opened_model:
        settings = opened_model.settings
        if allow_cpu_fallback:
            settings = settings.with_keys(allow_cpu_fallback=True)
        data = given_dataset(dataset, settings)
        options = PrecisionOptions(device, data, task or "", images or 0, calibration, workers or 0)
        digest = sha256_of(opened_model.uploaded)
        with _progress() as progress:
            report = tune_precision(
                opened_model.path, opened_model.name, digest, options, settings, progress
            )
        chosen = choose_point(report, choose, budget_ms, within)
        target = output or Path(f"{opened_model.name}.precision.yaml")
        chosen.plan.write(target)
        variant = ""
        if opened_model.is_stored and chosen.plan.bits and not no_upload:
            variant = _uploaded(opened_model, chosen.plan, store, experiment)
    number = report.points.index(chosen) + 1
    if as_json:
        fields = {"chosen": number, "plan": str(target), "variant": variant}
        print_json([{**report.to_fields(), **fields}])
        return
    for line in _precision_lines(report, chosen):
        click.echo(line)
    click.echo(f"Point {number} was written to {shown(str(target))}: use --precision mixed:FILE.")
    if variant:
        click.echo(f"It was uploaded as {variant}, for runners.")


def _uploaded(net: Net, plan: PrecisionPlan, store: str | None, experiment: str | None) -> str:
    """A model of its own: the same file, with the plan beside it."""
    from edgeloop.graph.info import shapes_from
    from edgeloop.models.upload import UploadOptions
    from edgeloop.platforms import PLAN_FILE

    name = f"{net.name}.mixed-{plan.digest[:6]}"
    shapes = shapes_from((net.row or {}).get("shapes"))
    texts = {PLAN_FILE: plan.text()}
    options = UploadOptions(tags=("mixed",), shapes=shapes, check=False, texts=texts)
    with opened(store, experiment) as workspace:
        return workspace.catalog.upload(net.uploaded, name, options).model.name


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


def _precision_lines(report: PrecisionReport, chosen: PrecisionPoint) -> Iterator[str]:
    import textwrap

    metric = report.metric
    yield f"{printable(report.model)} on {report.device}, {_images(report)}; latency is estimated"
    headings = ("", "plan", "latency", "SQNR", *((metric, f"{metric} − float") if metric else ()))
    cells = [
        (
            f"{number}{' *' if point is chosen else ''}",
            point.label,
            f"{'≥ ' if point.missing_ops else ''}{latency_text(point.latency_us / 1000)}",
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
    name = printable(one.tensor.name)
    if len(name) > _NAME_WIDTH:
        name = f"…{name[1 - _NAME_WIDTH :]}"
    return (
        name,
        one.tensor.operator or "input",
        "8 → 16" if one.tensor.kind == "activation" else "8 → 4",
        f"{one.error_db:.0f} dB",
        "" if one.latency_us is None else latency_text(one.latency_us / 1000),
        "" if one.sqnr_db is None else f"{one.sqnr_db:.1f}",
    )


def _score(point: PrecisionPoint) -> tuple[str, str]:
    if point.score is None or point.difference is None:
        return "", ""
    difference = point.difference
    return (
        f"{point.score:.4f}",
        f"{difference.value:+.4f} ({difference.low:+.4f} … {difference.high:+.4f})",
    )


COMMANDS = (
    gate,
    compare,
    layers,
    advise,
    precision,
)
