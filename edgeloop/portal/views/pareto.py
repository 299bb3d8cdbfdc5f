"""The Pareto front of the rows in memory, as a list of points and as a chart."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from edgeloop.errors import BadInput
from edgeloop.models import COLUMNS, is_estimate, latency_interval
from edgeloop.portal.feed import TableSnapshot
from edgeloop.portal.shapes import Axis, ParetoQuery, ParetoView, Point
from edgeloop.portal.state import Portal, frame_of
from edgeloop.portal.views.table import filtered, summary_of
from edgeloop.report import (
    Pareto,
    check_columns,
    empty_chart,
    measure_of,
    objective,
    pareto_chart,
    pareto_of,
    quality_column,
    sigma_ms,
)

if TYPE_CHECKING:
    import altair as alt

MOST_POINTS = 1_500  # more take seconds to draw
_NUMBERS = ("integer", "number")


@dataclass(frozen=True)
class ParetoPoints:
    """A front, and the points that are shown."""

    pareto: Pareto
    shown: tuple[int, ...]
    points: tuple[Point, ...]


def pareto_view(
    portal: Portal, experiment: str | None = None, query: ParetoQuery | None = None
) -> ParetoView:
    query = query or ParetoQuery()
    snapshot = portal.rows(experiment)
    frame = frame_of(portal, experiment)
    if not query.y:
        query = replace(query, y=_quality(portal, snapshot, frame.experiment))
    choices = summary_of(portal, snapshot, frame.experiment)[1]
    columns = _columns(portal, snapshot, frame.experiment)
    try:
        found = _find(portal, snapshot, frame.experiment, query)
    except BadInput as error:
        svg = portal.draw(str(error), lambda: empty_chart("Choose other columns."), "front-")
        x, y = (Axis(name, measure_of(name).title, "") for name in (query.x, query.y))
        return ParetoView(
            frame, query, x, y, (), 0, 0, 0, 0.0, "", columns, choices, svg, f"{error}."
        )
    x, y = (Axis(item.column, item.measure.title, item.goal) for item in found.pareto.objectives)
    return ParetoView(
        frame,
        query,
        x,
        y,
        found.points,
        len(found.pareto.front),
        len(found.pareto.rows) - len(found.shown),
        found.pareto.missing,
        found.pareto.share,
        found.pareto.reference,
        columns,
        choices,
        portal.draw((query, found.points), lambda: _chart(found), "front-"),
        "",
    )


def _quality(portal: Portal, snapshot: TableSnapshot, experiment: str) -> str:
    key = ("quality", experiment, snapshot.generation, id(snapshot.rows))
    rows = snapshot.rows.values()
    return portal.cache.get(key, lambda: quality_column(row.values for row in rows))


def anchor(name: str) -> str:
    return f"#model={quote(name, safe='')}"


def _find(
    portal: Portal, snapshot: TableSnapshot, experiment: str, query: ParetoQuery
) -> ParetoPoints:
    objectives = [objective(query.x), objective(query.y)]
    key = ("pareto", experiment, snapshot.generation, id(snapshot.rows), query)

    def make() -> ParetoPoints:
        rows = filtered(snapshot.rows.values(), query)
        check_columns([row.values for row in snapshot.rows.values()], objectives)
        # The key is the name of a model; a foreign row may have another one in its column.
        pareto = pareto_of([{**row.values, "name": row.name} for row in rows], objectives)
        front = _spread([i for i in pareto.order if pareto.is_front[i]], MOST_POINTS)
        others = [index for index in pareto.order if not pareto.is_front[index]]
        shown = (*front, *_spread(others, MOST_POINTS - len(front)))
        return ParetoPoints(pareto, shown, tuple(_point(pareto, index) for index in shown))

    return portal.cache.get(key, make)


def _spread(places: list[int], most: int) -> list[int]:
    """At most so many of them, evenly spread."""
    if len(places) <= most:
        return places
    return [places[place * len(places) // most] for place in range(most)]


def _point(pareto: Pareto, index: int) -> Point:
    row, values = pareto.rows[index], [float(value) for value in pareto.values[index]]
    texts = [item.measure.text(v) for item, v in zip(pareto.objectives, values, strict=True)]
    sigma, iteration = sigma_ms(row), measure_of("iteration").of(row)
    return Point(
        str(row["name"]),
        values[0],
        values[1],
        texts[0],
        texts[1],
        None if math.isnan(sigma) else sigma,
        pareto.is_front[index],
        is_estimate(row),
        latency_interval(row),
        None if math.isnan(iteration) else int(iteration),
        str(row.get("device") or ""),
        str(row.get("status") or ""),
    )


def _chart(found: ParetoPoints) -> alt.TopLevelMixin:
    rows = [found.pareto.rows[index] for index in found.shown]
    links = {str(row["name"]): anchor(str(row["name"])) for row in rows}
    return pareto_chart(rows, found.pareto.objectives, links=links)


def _columns(portal: Portal, snapshot: TableSnapshot, experiment: str) -> tuple[Axis, ...]:
    """Columns with numbers, known ones first; cached for half a minute."""
    key = ("columns", experiment, len(snapshot.rows), int(time.time() // 30))

    def make() -> tuple[Axis, ...]:
        numbers = {
            name
            for row in snapshot.rows.values()
            for name, value in row.values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        known = [c.name for c in COLUMNS if c.kind in _NUMBERS and c.name in numbers]
        others = sorted(numbers.difference(column.name for column in COLUMNS))
        measures = [measure_of(name) for name in (*known, *others)]
        return tuple(Axis(m.column, m.title, m.goal or "") for m in measures)

    return portal.cache.get(key, make)
