"""The searches of the project, from the tables that each keeps in its folder, also while it runs;
and those that ran as jobs, once their results were fetched."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop.errors import BadInput, NotFound
from edgeloop.search.results import SeenCandidate, SeenSearch, read_search, share_reference
from edgeloop.search.study import found_searches
from edgeloop.view.charts import (
    SearchColour,
    candidates_chart,
    importance_chart,
    learning_chart,
    parallel_chart,
    reference_text,
    volume_chart,
)
from edgeloop.view.portal.shapes import ChipFront, Iteration, SearchesView, SearchLine, SearchView
from edgeloop.view.portal.state import Portal, frame_of

if TYPE_CHECKING:
    import altair as alt

MOST_SEARCHES = 200
MOST_CANDIDATES = 500
PARAMETER = "parameter:"  # before the name of a parameter, in the rows of candidates
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_READ = ("candidates.csv", "hypervolume.csv", "curves.csv", "search.yaml", "reference.json")


@dataclass(frozen=True)
class SearchQuery:
    """What the page of a search shows: the front of which chip, colours by `iteration` or `rung`,
    and the column that candidates are sorted by; newest first without one."""

    chip: str = ""
    colour: str = ""
    sort: str = ""
    descending: bool = False


@dataclass(frozen=True)
class SearchDrawings:
    """Charts as parts of a page, empty if there is nothing to draw; and the choices there are."""

    candidates: str
    volume: str
    importance: str
    parallel: str
    learning: str
    chip: str
    chips: tuple[str, ...]
    colour: str
    colours: tuple[str, ...]


_NO_QUERY = SearchQuery()


def searches_view(portal: Portal, experiment: str | None = None) -> SearchesView:
    searches, damaged = [], []
    for name, folder in _folders(portal.workspace.settings.project).items():
        try:
            searches.append(read_search(folder, name))
        except BadInput as error:
            damaged.append(str(error))
    lines = sorted(map(_line, searches), key=lambda line: -(line.updated or 0.0))
    return SearchesView(
        frame=frame_of(portal, experiment),
        searches=tuple(lines),
        damaged=tuple(damaged),
        is_comparable=share_reference(searches),
    )


def search_view(
    portal: Portal, experiment: str | None, name: str, query: SearchQuery = _NO_QUERY
) -> SearchView:
    seen = _seen(portal, name)
    rows = [_row(seen, item) for item in seen.candidates]
    by_identity = {id(item): row for item, row in zip(seen.candidates, rows, strict=True)}
    several = ("fronts",) if len(seen.fronts) > 1 else ()
    values = seen.value_names
    columns = ("number", "iteration", "name", "state", *values, *several, "is_pareto", "reason")
    newest = list(reversed(rows[-MOST_CANDIDATES:]))
    return SearchView(
        frame=frame_of(portal, experiment),
        search=_line(seen),
        columns=columns,
        front=tuple(by_identity[id(item)] for item in seen.front),
        candidates=tuple(_sorted(newest, query)),
        iterations=_iterations(seen),
        curve=tuple((count, volume) for count, volume, _ in seen.curve),
        parameters=_parameters(seen),
        importance={item.parameter: dict(item.shares) for item in seen.importances},
    )


def models_of(portal: Portal, search: SearchLine) -> Mapping[str, object]:
    """The models of its experiment, by name: candidates have a page only if they are there."""
    if search.experiment:
        with suppress(NotFound, BadInput):
            return portal.rows(search.experiment).rows
    return {}


def search_drawings(portal: Portal, name: str, query: SearchQuery = _NO_QUERY) -> SearchDrawings:
    """The charts of a search. Each is drawn again only after its files have changed."""
    seen = _seen(portal, name)
    front = next((f for f in seen.fronts if f.name == query.chip), seen.fronts[0])
    shown = seen.candidates[-MOST_CANDIDATES:]
    links = {item.number: f"#c-{item.number}" for item in shown}
    is_trained = any(item.trained is not None for item in seen.candidates)
    colour: SearchColour = "rung" if query.colour == "rung" and is_trained else "iteration"
    files = [seen.folder / name for name in _READ]
    state = tuple((s.st_mtime_ns, s.st_size) for s in (f.stat() for f in files if f.is_file()))

    def drawn(
        what: str,
        make: Callable[[], alt.TopLevelMixin],
        make_narrow: Callable[[], alt.TopLevelMixin] | None = None,
        *choices: str,
    ) -> str:
        key = (str(seen.folder), state, what, choices)
        return portal.draw_twice(key, make, f"{what}-", make_narrow)

    has_parameters = any(item.parameters for item in seen.candidates)
    return SearchDrawings(
        candidates=drawn(
            "scatter",
            lambda: candidates_chart(seen, front, colour, links),
            None,
            front.name,
            colour,
        ),
        volume=drawn("volume", lambda: volume_chart(seen)),
        importance=drawn("importance", lambda: importance_chart(seen)) if has_parameters else "",
        parallel=drawn(
            "parallel", lambda: parallel_chart(seen), lambda: parallel_chart(seen, is_narrow=True)
        )
        if has_parameters
        else "",
        learning=drawn("learning", lambda: learning_chart(seen)) if seen.learning else "",
        chip=front.name,
        chips=tuple(one.name for one in seen.fronts) if len(seen.fronts) > 1 else (),
        colour=colour,
        colours=("iteration", "rung") if is_trained else ("iteration",),
    )


def _seen(portal: Portal, name: str) -> SeenSearch:
    folders = _folders(portal.workspace.settings.project)
    if name not in folders:
        raise NotFound(reason=f"There is no search {name!r} in this project.")
    try:
        return read_search(folders[name], name)
    except BadInput as error:
        sentence = str(error)
        raise NotFound(reason=f"{sentence[0].upper()}{sentence[1:]}.") from None


def _folders(project: Path) -> dict[str, Path]:
    """Folders of searches, by name. Names are checked: they become parts of addresses."""
    by_name = {name: f for name, f in found_searches(project).items() if _NAME.fullmatch(name)}
    return dict(sorted(by_name.items())[:MOST_SEARCHES])


def _line(seen: SeenSearch) -> SearchLine:
    several = seen.fronts if len(seen.fronts) > 1 else ()
    return SearchLine(
        name=seen.name,
        experiment=seen.experiment,
        objectives=tuple(dict.fromkeys(objective.value for objective in seen.objectives)),
        counts=seen.counts | ({"taken over": seen.taken_over} if seen.taken_over else {}),
        candidates=len(seen.own),
        iterations=len({item.iteration for item in seen.own}),
        front=len(seen.front),
        hypervolume=seen.hypervolume,
        updated=seen.updated,
        reference=reference_text(seen),
        fronts=tuple(ChipFront(f.name, len(f.candidates), f.hypervolume) for f in several),
    )


def _row(seen: SeenSearch, item: SeenCandidate) -> dict[str, str]:
    return {
        "number": str(item.number),
        "iteration": str(item.iteration),
        "name": item.name,
        "arch_id": item.arch_id,
        "state": item.state,
        **{name: f"{item.values[name]:.12g}" for name in seen.value_names if name in item.values},
        **({"fronts": " ".join(item.fronts)} if len(seen.fronts) > 1 else {}),
        "is_pareto": str(int(item.is_front)),
        "reason": item.reason,
        **{f"{PARAMETER}{name}": str(value) for name, value in item.parameters.items()},
    }


def _parameters(seen: SeenSearch) -> tuple[str, ...]:
    """The most important first; without those that never differ."""
    values_of: dict[str, set[str]] = {item.parameter: set() for item in seen.importances}
    for item in seen.candidates:
        for name, value in item.parameters.items():
            values_of.setdefault(name, set()).add(str(value))
    ranked = {item.parameter for item in seen.importances}
    return tuple(name for name, values in values_of.items() if name in ranked or len(values) > 1)


def _sorted(rows: list[dict[str, str]], query: SearchQuery) -> list[dict[str, str]]:
    """By a column, numbers by their size; rows without a value come last, whatever the order."""
    column = query.sort
    having = [row for row in rows if row.get(column)]
    if not having:
        return rows
    numbers = {id(row): _number(row[column]) for row in having}
    if all(number is not None for number in numbers.values()):
        having.sort(key=lambda row: numbers[id(row)] or 0.0, reverse=query.descending)
    else:
        having.sort(key=lambda row: row[column], reverse=query.descending)
    return [*having, *(row for row in rows if not row.get(column))]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _iterations(seen: SeenSearch) -> tuple[Iteration, ...]:
    volumes = {count: volume for count, volume, _ in seen.curve}
    by_number: dict[int, list[SeenCandidate]] = {}
    for item in seen.candidates:
        by_number.setdefault(item.iteration, []).append(item)
    iterations, until = [], 0
    for number, items in sorted(by_number.items()):
        until += len(items)
        if number >= 0:  # else they were taken over
            iterations.append(_iteration(number, items, volumes.get(until)))
    return tuple(iterations)


def _iteration(number: int, items: Sequence[SeenCandidate], volume: float | None) -> Iteration:
    states: Mapping[str, int] = Counter(item.state for item in items)
    return Iteration(
        number=number,
        candidates=len(items),
        complete=states.get("complete", 0),
        failed=states.get("failed", 0),
        screened=states.get("screened", 0),
        hypervolume=volume,
        stopped=states.get("stopped", 0),
    )
