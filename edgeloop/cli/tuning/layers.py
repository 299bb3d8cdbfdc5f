"""layers: which layers of a model take the time on a chip, without a board."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.context import common_options, shape_option
from edgeloop.cli.tuning.nets import net_argument

if TYPE_CHECKING:
    from edgeloop.cli.tuning.nets import Net
    from edgeloop.platforms import Device, LayerCost, LayerCosts

_WIDTH = 80
_SHORTEST_NAME = 12
_BAR_WIDTH = 8


@click.command()
@net_argument
@click.option("--device", default="htp", show_default=True, help="Chip to ask, such as htp:CHIP.")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=15,
    show_default=True,
    metavar="N",
    help="Show the N costliest layers.",
)
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop refining after this time; the next call continues.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Compile N parts at once  [default: one per CPU]",
)
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

    NET is an ONNX file, or a model of the store: its quantized file then, if it was converted. No
    board is needed: parts of the model are compiled, and differences of the compiler's estimate are
    the cost of its layers. Layers that cannot be told apart are one line. What was found is cached.

    Example: edgeloop layers net.onnx --device htp:qcs8550 --top 10
    """
    from contextlib import closing

    from edgeloop.cli.output import print_json
    from edgeloop.cli.terminal.progress import count_bar
    from edgeloop.cli.tuning.nets import opened_net
    from edgeloop.errors import BadInput
    from edgeloop.platforms import AttributesLatency, open_device
    from edgeloop.settings import cache_folder

    with (
        opened_net(net, store, experiment, shapes) as found,
        closing(open_device(device, found.settings)) as chip,
    ):
        if not isinstance(chip, AttributesLatency):
            reason = f"{chip.name} cannot tell the cost of layers: use a chip, such as htp"
            raise BadInput(reason=reason)
        with count_bar("compiling parts") as progress:
            costs = chip.attribute(
                *(_model(found, chip), workers, cache_folder() / "layers", limit_s, progress)
            )
    if as_json:
        print_json([{"model": found.name, **asdict(costs)}])
        return
    for line in _lines(found.name, costs, top):
        click.echo(line)


COMMANDS = (layers,)


def _model(net: Net, device: Device) -> Path:
    """The quantized file of a model that was converted for such devices, else the float one."""
    suffix = device.artefacts.get("quantized", "")
    converted = [path for name, path in net.files.items() if suffix and name.endswith(suffix)]
    return converted[0] if len(converted) == 1 else net.path


def _lines(name: str, costs: LayerCosts, top: int) -> Iterator[str]:
    import textwrap

    from edgeloop.cli.output import plural, printable
    from edgeloop.cli.terminal.tables import listing

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
    from edgeloop._util.units import interval_text

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
