"""compare: a model as float and quantized, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.context import common_options, dataset_folder, names_argument, opened
from edgeloop.cli.runner import dataset_option

if TYPE_CHECKING:
    from edgeloop.runner import Comparison, Variant


@click.command()
@names_argument
@click.option("--device", default="htp", show_default=True, help="Chip to compare on.")
@dataset_option
@click.option(
    "--task",
    help="segmentation, classification, detection, tensors, …  [default: the settings]",
)
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
    from edgeloop.cli.output import print_json
    from edgeloop.cli.terminal.progress import step_bar
    from edgeloop.runner import compare_model

    with opened(store, experiment) as workspace:
        settings = workspace.settings
        data = dataset_folder(dataset, settings)
        found = []
        for row in workspace.find(names):
            with step_bar(f"comparing {row.key}, images") as bar:
                found.append(
                    compare_model(workspace, row.key, device, data, task or "", images, bar.update)
                )
    if as_json:
        print_json(row for comparison in found for row in comparison.rows())
        return
    for comparison in found:
        _print_comparison(comparison)


COMMANDS = (compare,)


_AGAINST_FLOAT = ("Δ to float [95 %]", "agreement")


def _print_comparison(comparison: Comparison) -> None:
    from edgeloop._util.units import size_text
    from edgeloop.cli.output import printable
    from edgeloop.cli.terminal.tables import listing

    cells = [
        [*_figures(variant), size_text(variant.size), variant.latency]
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


def _figures(variant: Variant) -> list[str]:
    score, delta = variant.f1, variant.delta
    if score is not None:
        against = f"{delta.value:+.4f} [{delta.low:+.4f}, {delta.high:+.4f}]" if delta else ""
        own = f"{score.value:.4f} [{score.low:.4f}, {score.high:.4f}]"
        return [variant.name, own, against, f"{variant.agreement:.4f}"]
    top1 = variant.top1_agreement
    return [
        variant.name,
        "" if variant.sqnr_db is None else f"{variant.sqnr_db:.1f} dB",
        f"{variant.agreement:.5f}",
        "" if variant.max_error is None else f"{variant.max_error:.3g}",
        "" if top1 is None else f"{top1:.4f}",
    ]
