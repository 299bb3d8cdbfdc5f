"""The Pareto front of the rows in memory, as a list of points and as a chart."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from edgeloop.errors import BadInput
from edgeloop.models import (
    COLUMNS,
    SCORE_COLUMNS,
    is_estimate,
    latency_interval,
    score_interval,
)
from edgeloop.portal.feed import TableSnapshot
from edgeloop.portal.shapes import Axis, ParetoQuery, ParetoView, Point
from edgeloop.portal.state import Portal, frame_of
from edgeloop.portal.views.table import filtered, summary_of
from edgeloop.report import (
    ALL_DEVICES,
    NARROW,
    ChartAxes,
    Pareto,
    chart_axes,
    check_columns,
    device_note,
    empty_chart,
    measure_of,
    objective,
    one_device,
    pareto_chart,
    pareto_of,
    quality_column,
    sigma_ms,
)

if TYPE_CHECKING:
    import altair as alt

MOST_POINTS, MOST_NARROW = 1_500, 400  # more take seconds to draw
WIDE, NARROW_PLOT = (760, 440), (NARROW - 60, 320)
_NUMBERS = ("integer", "number")


@dataclass(frozen=True)
class ParetoPoints:
    """A front, how it is shown, and the points that are. `whole` has those of all devices."""

    whole: Pareto
    device: str
    pareto: Pareto
    axes: ChartAxes | None
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
    x, y = (_axis(found, place) for place in (0, 1))
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
        _drawing(portal, found, query),
        "",
        found.device,
        found.whole.devices,
        device_note(found.whole, found.device),
        found.axes.outside if found.axes else 0,
    )


def _axis(found: ParetoPoints, place: int) -> Axis:
    item = found.pareto.objectives[place]
    if found.axes is None:
        return Axis(item.column, item.measure.title, item.goal)
    measure, factor = found.axes.measures[place], found.axes.factors[place]
    return Axis(item.column, measure.title, item.goal, factor)


def _drawing(portal: Portal, found: ParetoPoints, query: ParetoQuery) -> str:
    """On a phone, fewer of the models that are not on the front: marks have the same size there."""
    return portal.draw_twice(
        (query, found.points),
        lambda: _chart(found, found.shown, WIDE),
        "front-",
        lambda: _chart(
            found, found.shown[: max(MOST_NARROW, len(found.pareto.front))], NARROW_PLOT
        ),
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
        whole = pareto_of([{**row.values, "name": row.name} for row in rows], objectives)
        pareto, device = one_device(whole, query.device)
        axes = chart_axes(pareto, query.range == "all") if pareto.rows else None
        front = _spread([i for i in pareto.order if pareto.is_front[i]], MOST_POINTS)
        others = [index for index in pareto.order if not pareto.is_front[index]]
        shown = (*front, *_spread(others, MOST_POINTS - len(front)))
        points = tuple(_point(pareto, axes, index) for index in shown if axes)
        return ParetoPoints(whole, device, pareto, axes, shown, points)

    return portal.cache.get(key, make)


def _spread(places: list[int], most: int) -> list[int]:
    """At most so many of them, evenly spread."""
    if len(places) <= most:
        return places
    return [places[place * len(places) // most] for place in range(most)]


def _point(pareto: Pareto, axes: ChartAxes, index: int) -> Point:
    row, values = pareto.rows[index], [float(value) for value in pareto.values[index]]
    shown = zip(axes.measures, axes.factors, values, strict=True)
    texts = [measure.text(factor * value) for measure, factor, value in shown]
    up = pareto.objectives[1].column
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
        score_interval(row, up) if up in SCORE_COLUMNS else None,
    )


def _chart(found: ParetoPoints, shown: Sequence[int], size: tuple[int, int]) -> alt.TopLevelMixin:
    rows = [found.pareto.rows[index] for index in shown]
    links = {str(row["name"]): anchor(str(row["name"])) for row in rows}
    objectives = found.pareto.objectives
    title = f"Front of {found.device}" if found.device not in ("", ALL_DEVICES) else ""
    return pareto_chart(
        rows, objectives, links=links, axes=found.axes, size=size, title=title or "Front"
    )


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
