"""searches: how searches are going and what they found; and the summary that ends a search."""

from __future__ import annotations

import string
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

import click

from edgeloop.cli.context import load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeloop.search import SeenCandidate, SeenFront, SeenSearch

WIDTH = 80
_NO_SEARCH = "No search was run or fetched yet. Start one: edgeloop search laptop.yaml"
_STAR, _NO_STAR = "*", " "
_MOST_PARAMETERS = 5
_MOST_ROWS = 40
_FIXED = "\N{NO-BREAK SPACE}"
_WORDS = {"screened": "screened out", "stopped": "stopped early"}


@click.command()
@click.argument("name", metavar="[SEARCH]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def searches(name: str | None, as_json: bool) -> None:
    """Show the searches of this project.

    With SEARCH, a name, job or folder, show that one, also while it runs: its front, the
    hypervolume with its reference point, and which parameters mattered.

    Example: edgeloop searches laptop
    """
    from edgeloop.cli.output import print_json
    from edgeloop.errors import BadInput
    from edgeloop.search import find_search, found_searches, read_search

    project = load_settings().project
    if name is not None:
        folder = find_search(name, project)
        seen = read_search(folder, name if name in found_searches(project) else "")
        if as_json:
            print_json([{**summary_of(seen), **details_of(seen)}])
        else:
            say_search(seen)
        return
    found, damaged = [], []
    for known, folder in sorted(found_searches(project).items()):
        try:
            found.append(read_search(folder, known))
        except BadInput as error:
            damaged.append(str(error))
    for sentence in damaged:
        click.echo(f"Note: {sentence}.", err=True)
    if as_json:
        print_json(map(summary_of, found))
        if not found:
            click.echo(_NO_SEARCH, err=True)
    else:
        _say_searches(found)
    if damaged:
        raise SystemExit(1)


def summary_of(seen: SeenSearch) -> dict[str, object]:
    """A search for programs; `hypervolume` is that of `hypervolume.csv`."""
    return {
        "name": seen.name,
        "experiment": seen.experiment,
        "objectives": {objective.name: objective.goal for objective in seen.objectives},
        "budget": seen.budget,
        "candidates": len(seen.own),
        "states": seen.counts,
        "taken_over": seen.taken_over,
        "front": [item.arch_id for item in seen.front],
        "fronts": [
            {
                "name": front.name,
                "front": [item.arch_id for item in front.candidates],
                "hypervolume": front.hypervolume,
            }
            for front in seen.fronts
        ],
        "hypervolume": seen.hypervolume,
        "reference": seen.reference.as_json() if seen.reference is not None else None,
        "utilisation": dict(seen.utilisation),
        "folder": str(seen.folder),
    }


def details_of(seen: SeenSearch) -> dict[str, object]:
    return {
        "importance": {item.parameter: dict(item.shares) for item in seen.importances},
        "curve": [[count, volume] for count, volume, _ in seen.curve],
        "all": [candidate_json(item) for item in seen.candidates],
    }


def candidate_json(item: SeenCandidate) -> dict[str, object]:
    return {
        "number": item.number,
        "iteration": item.iteration,
        "arch_id": item.arch_id,
        "state": item.state,
        "reason": item.reason,
        "is_pareto": item.is_front,
        "fronts": list(item.fronts),
        "trained": item.trained,
        "values": dict(item.values),
        "parameters": dict(item.parameters),
    }


def say_search(seen: SeenSearch) -> None:
    """The front, counts, and the hypervolume with its reference point, in 80 columns."""
    if not seen.candidates:
        click.echo(f"No candidate of {seen.name} has ended yet.")
        return
    several = len(seen.fronts) > 1
    shown = seen.front[:_MOST_ROWS]
    click.echo(_chip_table(seen, shown) if several else _front_table(seen, shown))
    if len(seen.front) > len(shown):
        click.echo(f"… and {len(seen.front) - len(shown)} more in {seen.folder / 'front.csv'}")
    for place, front in enumerate(seen.fronts if several else ()):
        click.echo(_front_line(_letter(place), front))
    parts = (part.replace(" ", _FIXED) for part in _counts(seen))
    click.echo("\n".join(textwrap.wrap(" · ".join(parts), WIDTH)).replace(_FIXED, " "))
    volumes = [volume for _, volume, _ in seen.curve]
    if volumes:
        first = next((volume for volume in volumes if volume), volumes[-1])
        text = f"hypervolume {first:.3f} → {volumes[-1]:.3f}"
        text += f" (reference: {seen.reference})" if seen.reference else ""
        click.echo("\n".join(textwrap.wrap(text, WIDTH, subsequent_indent="  ")))
    if seen.importances:
        click.echo(_importance_line(seen))
    if "gpu" in seen.utilisation:
        click.echo(utilisation_line(seen.utilisation))


def utilisation_line(utilisation: Mapping[str, float]) -> str:
    """`The GPU was busy 91 % of the time in training, the trainers 97 % until the last …`."""
    parts = [f"The GPU was busy {utilisation['gpu']:.0%} of the time in training"]
    if "trainers" in utilisation:
        parts.append(f"the trainers {utilisation['trainers']:.0%} until the last candidate began")
    return "\n".join(textwrap.wrap(f"{', '.join(parts)}.", WIDTH))


def _counts(seen: SeenSearch) -> list[str]:
    """`12 candidates`, then those that did not get to the end, then the results."""
    is_trained = any(objective.name in ("val_iou", "val_f1") for objective in seen.objectives)
    own, counts = seen.own, Counter(seen.counts)
    parts = ["1 candidate" if len(own) == 1 else f"{len(own)} candidates"]
    if seen.budget is not None and len(own) < seen.budget:
        parts = [f"{len(own)} of {seen.budget} candidates"]
    for state in ("screened", "stopped", "failed"):
        if counts[state] or state == "screened":
            parts.append(f"{counts[state]} {_WORDS.get(state, state)}")
    parts.append(f"{counts['complete']} {'trained' if is_trained else 'measured'}")
    if seen.taken_over:
        parts.append(f"{seen.taken_over} taken over")
    return [*parts, f"front: {len(seen.front)}"]


def _front_table(seen: SeenSearch, shown: tuple[SeenCandidate, ...]) -> str:
    from edgeloop.cli.terminal.tables import listing
    from edgeloop.models import interval_heading, latency_interval
    from edgeloop.search import columns_of

    columns = [columns_of(item.values, 0) for item in shown]
    headings = ("architecture", *(objective.name for objective in seen.objectives))
    rows = [
        (item.arch_id, *(f"{item.values[o.name]:.4g}" for o in seen.objectives)) for item in shown
    ]
    if any(map(latency_interval, columns)):
        headings += (interval_heading(columns),)
        intervals = [str(latency_interval(row) or "") for row in columns]
        rows = [(*row, text) for row, text in zip(rows, intervals, strict=True)]
    return listing(headings, rows, right=headings[1:])


def _chip_table(seen: SeenSearch, shown: tuple[SeenCandidate, ...]) -> str:
    """All that are on the front of a chip. Chips are letters, which the lines below explain, and a
    star marks those whose front it is on; many chips have no room for their latencies."""
    from edgeloop.cli.terminal.tables import Screen, listing

    letters = {front.name: _letter(place) for place, front in enumerate(seen.fronts)}
    values = list(dict.fromkeys(o.value for o in seen.objectives if o.device))
    headings = ["architecture"]
    for objective in seen.objectives:
        letter = letters.get(objective.device, "")
        name = letter if len(values) == 1 else f"{objective.value} {letter}"
        headings.append(name if objective.device else objective.name)
    rows = []
    for item in shown:
        stars = [_STAR if o.device in item.fronts else _NO_STAR for o in seen.objectives]
        cells = [
            f"{item.values[o.name]:.3g}{star if o.device else ''}"
            for o, star in zip(seen.objectives, stars, strict=True)
        ]
        rows.append([item.arch_id, *cells])
    drawn = listing(headings, rows, right=headings[1:], screen=Screen())
    if max(map(len, drawn.splitlines())) <= (Screen.of_stdout().width or WIDTH):
        return drawn
    general = [objective.name for objective in seen.objectives if not objective.device]
    rows = [
        [
            item.arch_id,
            *(f"{item.values[name]:.4g}" for name in general),
            " ".join(letters[name] for name in item.fronts),
        ]
        for item in shown
    ]
    return listing(["architecture", *general, "on the front of"], rows, right=general)


def _front_line(letter: str, front: SeenFront) -> str:
    """`A htp:qcs8550: 5 networks, chip_latency_ms 0.31 to 1.2, hypervolume 0.412`."""
    if not front.candidates:
        return f"{letter} {front.name}: no network is within its limits"
    ranges = []
    for objective in front.objectives:
        if objective.device:
            values = [item.values[objective.name] for item in front.candidates]
            ranges.append(f"{objective.value} {min(values):.4g} to {max(values):.4g}")
    volume = [] if front.hypervolume is None else [f"hypervolume {front.hypervolume:.3f}"]
    count = len(front.candidates)
    networks = "1 network" if count == 1 else f"{count} networks"
    text = f"{letter} {front.name}: {', '.join([networks, *ranges, *volume])}"
    return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent="  "))


def _importance_line(seen: SeenSearch) -> str:
    """Of the first objectives of the first front: `val_iou depends most on layers 44 %, …`."""
    lines = []
    for objective in seen.fronts[0].objectives:
        ranked = sorted(seen.importances, key=lambda one: -one.shares.get(objective.name, 0.0))
        told = [
            f"{item.parameter} {100 * item.shares[objective.name]:.0f}{_FIXED}%"
            for item in ranked[:_MOST_PARAMETERS]
            if item.shares.get(objective.name, 0.0) >= 0.01
        ]
        if told:
            text = f"{objective.name} depends most on {', '.join(told)}"
            lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ")
    return "\n".join(lines).replace(_FIXED, " ")


def _letter(place: int) -> str:
    letters = string.ascii_uppercase
    return letters[place] if place < len(letters) else str(place + 1)


def _say_searches(found: list[SeenSearch]) -> None:
    from edgeloop.cli.output import plural
    from edgeloop.cli.terminal.tables import TableColumn, listing

    if not found:
        click.echo(_NO_SEARCH)
        return
    rows = [
        (
            seen.name,
            f"{len(seen.own)}/{seen.budget}" if seen.budget else str(len(seen.own)),
            f"{seen.counts.get('complete', 0)}" + (seen.taken_over > 0) * f" (+{seen.taken_over})",
            str(len(seen.front)),
            "" if seen.hypervolume is None else f"{seen.hypervolume:.3f}",
            ", ".join(dict.fromkeys(objective.value for objective in seen.objectives)),
        )
        for seen in found
    ]
    columns = (
        TableColumn("search", 100, 20),
        TableColumn("candidates", 95, right=True),
        TableColumn("complete", 80, right=True),
        TableColumn("front", 85, right=True),
        TableColumn("hypervolume", 90, right=True),
        TableColumn("objectives", 70, 16),
    )
    evaluated = sum(len(seen.own) for seen in found)
    searched = "1 search" if len(found) == 1 else f"{len(found)} searches"
    total = f"{searched}: {plural(evaluated, 'candidate')}"
    click.echo(listing(columns, rows, total=total))
    if any(seen.taken_over for seen in found):
        click.echo("(+N): results taken over from earlier searches")


COMMANDS = (searches,)
