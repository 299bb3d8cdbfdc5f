"""inspect, bench: a model file, before it is in any store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.app import (
    ExistingPath,
    ModelFileType,
    devices_option,
    fallback_option,
    json_option,
    load_settings,
    precision_option,
    runs_option,
    shape_option,
)
from edgeloop.cli.terminal import Screen, listing, print_json, printable, short_count, waiting

if TYPE_CHECKING:
    from edgeloop.platforms import Precision, PrecisionPlan
    from edgeloop.runner.bench import BenchReport, BenchResult
    from edgeloop.runner.inspection import ChipAnswer, Inspection

model_argument = click.argument("model", metavar="FILE", type=ModelFileType())
_LABEL = 12
_WIDTH = 80


@click.command()
@model_argument
@devices_option("Chip whose compiler to ask, such as htp:qcs8550; repeatable  [default: htp]")
@shape_option
@json_option
def inspect(model: Path, devices: tuple[str, ...], shapes: tuple[str, ...], as_json: bool) -> None:
    """Show what a model is and which chips take it.

    Inputs, outputs, cost and memory, the task that fits, what chips refuse, and what runners will
    evaluate. FILE is an ONNX file, or demo:unet-large, a model shipped with Edgeloop. Needs no
    store. The exit code is 1 if the model cannot be used.

    Example: edgeloop inspect net.onnx --device htp:qcs8550
    """
    from edgeloop.graph.info import parse_shapes
    from edgeloop.runner.inspection import inspect_model

    with waiting("reading and compiling"):
        inspection = inspect_model(model, devices, parse_shapes(shapes))
    if as_json:
        print_json([inspection.to_fields()])
    else:
        for line in _inspection_lines(inspection):
            click.echo(line)
    if inspection.problem:
        raise SystemExit(1)


@click.command()
@model_argument
@devices_option(
    "host, htp:CHIP, adb:SERIAL, or a chip: all its boards; repeatable  [default: htp, host]"
)
@shape_option
@precision_option
@runs_option(default=1)
@click.option(
    "--calibration",
    type=ExistingPath(),
    metavar="FOLDER|FILE",
    help="Images, .npy, .npz or .raw  [default: random inputs]",
)
@fallback_option
@json_option
def bench(
    model: Path,
    devices: tuple[str, ...],
    shapes: tuple[str, ...],
    precision: Precision | PrecisionPlan,
    runs: int,
    calibration: Path | None,
    allow_cpu_fallback: bool,
    as_json: bool,
) -> None:
    """Time a model on several devices.

    Quantizes the file and shows its latency on each device in one table. FILE is an ONNX file, or
    demo:unet-large, a model shipped with Edgeloop. Needs neither a store nor a dataset, and leaves
    no files. The exit code is 1 if a device has no result.

    Example: edgeloop bench demo:unet-large --device htp:qcs8550 --device htp:x-elite
    """
    from dataclasses import asdict

    from edgeloop.graph.info import parse_shapes
    from edgeloop.runner.bench import BenchOptions, bench_model

    options = BenchOptions(precision, runs, calibration, parse_shapes(shapes))
    settings = load_settings(allow_cpu_fallback=allow_cpu_fallback)
    with waiting("quantizing and compiling"):
        report = bench_model(model, devices, options, settings)
    if as_json:
        shared = {"model": model.name, "precision": report.precision}
        print_json({**shared, **asdict(result)} for result in report.results)
    else:
        _print_report(report)
    if any(result.error for result in report.results):
        raise SystemExit(1)


COMMANDS = (inspect, bench)


def _inspection_lines(inspection: Inspection) -> Iterator[str]:
    from edgeloop._util.values import size_text

    summary = inspection.summary
    about = f"{size_text(summary.size)}, opset {summary.opset}"
    exporter = f", {printable(summary.exporter)}" if summary.exporter else ""
    yield f"{printable(summary.file)}: {about}{exporter}"
    yield from _labelled("inputs", _tensor_lines(inspection, "inputs"))
    yield from _labelled("outputs", _tensor_lines(inspection, "outputs"))
    if summary.info and summary.memory:
        memory = summary.memory
        counts = f"{short_count(summary.info.macs)} MACs, {short_count(summary.info.params)}"
        yield from _labelled("cost", [f"{counts} parameters"])
        weights = f"weights {size_text(memory.weights)}, {size_text(memory.weights_8bit)} in 8 bit"
        peak = f"{size_text(memory.activations)}, {size_text(memory.activations_8bit)} in 8 bit"
        yield from _labelled("memory", [weights, f"activations at most {peak}"])
    if inspection.fit:
        yield from _labelled("task", [f"{inspection.fit.task}: {inspection.fit.why}"])
    if inspection.chips:
        yield from _labelled("chips", _chip_lines(inspection))
    if summary.rewrites:
        yield from _labelled("rewritten", summary.rewrites)
    yield from _labelled("notes", summary.caveats)
    if inspection.problem:
        yield from _labelled("in the way", [printable(inspection.problem)])
    else:
        yield from _labelled("evaluated", inspection.evaluated)


def _tensor_lines(inspection: Inspection, side: str) -> list[str]:
    info = inspection.summary.info
    tensors = getattr(info or inspection.summary, side)
    cells = [
        (t.name, "x".join(map(str, t.shape)) or "scalar", t.dtype, getattr(t, "layout", ""))
        for t in tensors
    ]
    _, *lines = listing(("", "", "", ""), cells, screen=Screen()).split("\n")
    return lines


def _chip_lines(inspection: Inspection) -> list[str]:
    lines = [f"{chip.device}: {_answer(chip)}" for chip in inspection.chips]
    others = len(inspection.not_asked)
    if others and not inspection.problem:
        lines.append(f"{others} other chips: not asked; no operator is known to be in the way")
    return lines


def _answer(chip: ChipAnswer) -> str:
    from edgeloop._util.values import interval_text, latency_text

    if chip.latency_ms is not None:
        text = latency_text(chip.latency_ms)
        if chip.is_lower_bound:
            return f"takes it, at least {text} (estimate; {chip.basis})"
        interval = interval_text(chip.low_ms, chip.high_ms, chip.coverage)
        why = "no stated coverage" if chip.is_calibrated and interval else chip.basis
        parts = ("estimate", interval, "" if chip.coverage else why)
        return f"takes it, about {text} ({', '.join(part for part in parts if part)})"
    return f"{'refuses it: ' if chip.answer == 'refused' else ''}{printable(chip.text)}"


def _labelled(label: str, lines: Iterable[str]) -> Iterator[str]:
    """The label once, its lines beside it and wrapped there."""
    import textwrap

    for line in lines:
        for part in textwrap.wrap(
            line, _WIDTH - _LABEL, subsequent_indent="  ", drop_whitespace=True
        ) or [""]:
            yield f"{label:<{_LABEL}}{part}".rstrip()
            label = ""


def _print_report(report: BenchReport) -> None:
    from edgeloop._util.values import size_text

    results = report.results
    cells = [
        (
            _chip(result),
            "failed" if result.latency_ms is None else _latency(result),
            _interval(result),
            "" if result.memory_bytes is None else size_text(result.memory_bytes),
            _remark(result),
        )
        for result in results
    ]
    headings = ("chip", "latency", _interval_heading(results), "memory", "notes")
    click.echo(listing(headings, cells, right=headings[1:4]))
    for result in results:
        for text in (result.error, *result.notes):
            if text:
                click.echo(f"{_chip(result)}: {printable(text)}")
    for note in (_batch_note(report), *report.notes):
        if note:
            click.echo(f"{report.precision}, {note}" if note == report.notes[-1] else note)


def _chip(result: BenchResult) -> str:
    """`qcs8550` for `htp:qcs8550`; a board or a profile of one's own by its whole name."""
    name = result.device.partition(":")[2]
    return name if name and name == result.chip else result.device


def _interval_heading(results: Iterable[BenchResult]) -> str:
    stated = {round(100 * result.coverage) for result in results if result.coverage}
    return f"{stated.pop()} % interval" if len(stated) == 1 else "interval"


def _interval(result: BenchResult) -> str:
    """In brackets where no data supports a probability."""
    from edgeloop._util.values import range_text

    if result.low_ms is None or result.high_ms is None:
        return ""
    text = range_text(result.low_ms, result.high_ms)
    return text if result.coverage else f"({text})"


def _remark(result: BenchResult) -> str:
    if result.kind != "estimate":
        return result.kind
    if result.is_lower_bound:
        return "lower bound"
    if not result.is_calibrated:
        return "uncalibrated"
    return "" if result.coverage else "no stated coverage"


def _batch_note(report: BenchReport) -> str:
    batch = report.info.batch
    return f"latency is that of a batch of {batch}" if batch > 1 else ""


def _latency(result: BenchResult) -> str:
    from edgeloop._util.values import latency_text

    assert result.latency_ms is not None
    text = latency_text(result.latency_ms)
    if result.kind != "estimate":
        return text
    return f"≥ {text} est" if result.is_lower_bound else f"{text} est"
