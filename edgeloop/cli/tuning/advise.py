"""advise: exact rewrites that make a model faster on a chip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.context import common_options, given_dataset, shape_option
from edgeloop.cli.tuning.nets import net_argument, opened_net

if TYPE_CHECKING:
    from edgeloop.tuning import Advice, AdvisedRewrite

_WIDTH = 80
_LAYER_WIDTH = 28


@click.command()
@net_argument
@click.option(
    "--device",
    default="htp",
    show_default=True,
    metavar="NAME",
    help="Chip to compile for, such as htp:qcs8550.",
)
@click.option(
    "--apply",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
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
@click.option(
    "--workers", type=click.IntRange(min=1), help="Compilers at once  [default: one per CPU]"
)
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

    NET is an ONNX file or the name of a model in the store. Every rewrite keeps the outputs as they
    are, which is checked by running both models, and is re-compiled; those that lower the estimate
    are shown with their gain. Nothing is changed unless --apply names a file to write.

    Example: edgeloop advise net.onnx --apply better.onnx
    """
    from edgeloop.cli.output import print_json
    from edgeloop.cli.terminal.progress import count_bar
    from edgeloop.tuning import AdviceOptions, advise_model

    with (
        opened_net(net, store, experiment, shapes) as opened,
        count_bar("rewriting and compiling") as progress,
    ):
        data = given_dataset(dataset, opened.settings)
        options = AdviceOptions(names, data, images, workers)
        found = advise_model(opened.path, device, options, opened.settings, target, progress)
    if as_json:
        print_json([{"model": opened.name, **found.to_fields()}])
        return
    for line in _lines(opened.name, found):
        click.echo(line)
    if target is not None:
        click.echo(_applied(found, target))


COMMANDS = (advise,)


def _lines(name: str, found: Advice) -> Iterator[str]:
    from edgeloop.cli.output import plural, printable

    compiles = plural(found.compiles, "new compile")
    least = "≥ " if found.before and found.before.missing_ops else ""
    about = f"{least}{_time(found.before_ms)}, an estimate ({compiles})"
    yield f"{printable(name)} on {found.device}: {about}"
    yield ""
    if found.rewrites:
        yield _table(found.rewrites)
        if not found.applies_others:
            yield _total(found)
        yield from _texts(found.rewrites)
    elif not found.applies_others:
        yield "nothing found that helps"
    if found.others:
        how = "named by --only" if found.applies_others else "applied only with --only"
        if found.rewrites or not found.applies_others:
            yield ""
        yield f"changes what the model returns ({how}):"
        yield _table(found.others)
        if found.applies_others:
            yield _total(found)
        yield from _texts(found.others)
    yield from _notes(found)


def _total(found: Advice) -> str:
    """With where the time on the chip is expected, before and after."""
    from edgeloop._util.units import interval_text

    total = f"{_time(found.before_ms)} → {_time(found.after_ms)}"
    expected = [
        f"{word}: {text}"
        for word, one in (("before", found.before), ("after", found.after))
        if one and (text := interval_text(one.low_ms, one.high_ms, one.coverage))
    ]
    lines = ["", f"total: {total}, {found.gain_percent:.1f} % less"]
    return "\n".join([*lines, "; ".join(expected)] if expected else lines)


def _table(rewrites: tuple[AdvisedRewrite, ...]) -> str:
    from edgeloop.cli.terminal.tables import listing

    headings = ("rewrite", "layers", "estimate", "gain")
    cells = [
        (
            one.name,
            _layers(one.layers),
            f"{_time(one.before_ms)} → {_time(one.after_ms)}",
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


def _notes(found: Advice) -> Iterator[str]:
    import textwrap

    kept = {one.name for one in (*found.rewrites, *found.others)}
    without = [name for name in found.tried if name not in kept and name not in found.rejected]
    notes = [f"tried and not kept: {', '.join(without)}"] if without else []
    notes += [f"not offered: {name}, since {why}" for name, why in found.rejected.items()]
    if found.is_cut_short:
        notes.append("the search ended at its limit of compiles or time; run it again to go on")
    if found.missing_ops:
        notes.append(
            f"the compiler has no cost for {found.missing_ops} steps: the estimate is too low"
        )
    if found.rewrites:
        notes.append(_equality(found))
    if notes:
        yield ""
    for note in notes:
        yield from textwrap.wrap(note, _WIDTH, subsequent_indent="  ")


def _equality(found: Advice) -> str:
    largest = max(one.difference for one in found.rewrites)
    equal = f"outputs are equal to {largest:.0e} of their spread"
    if found.quantized is None:
        return f"{equal}; the accuracy of the quantized model was not checked: give a --dataset"
    checked = found.quantized
    return (
        f"{equal}; quantized, on {checked.samples} samples: SQNR {checked.before_db:.1f} → "
        f"{checked.after_db:.1f} dB, {_time(checked.before_ms)} → {_time(checked.after_ms)}"
    )


def _applied(found: Advice, target: Path) -> str:
    from edgeloop.cli.output import shown

    if found.written is None:
        return f"\n{shown(str(target))} was not written: there is nothing to apply"
    return f"\nwrote {shown(str(target))}: read, compared and estimated again"


def _time(milliseconds: float) -> str:
    if milliseconds < 1:
        return f"{1000 * milliseconds:.3g} µs"
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"
