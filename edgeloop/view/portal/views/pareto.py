"""The Pareto front of the rows in memory, as a list of points and as a chart."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from edgeloop.errors import BadInput
from edgeloop.models.columns import (
    SCORE_COLUMNS,
    Column,
    ScoreMeaning,
    are_best,
    column_in_unit,
    column_of,
    interval_cell,
    is_estimate,
    is_latency,
    latency_interval,
    natural_key,
    score_interval,
    score_meaning,
    seen_from,
    sigma_ms,
    visible_columns,
)
from edgeloop.view.charts import pareto_chart
from edgeloop.view.drawing import NARROW, ChartAxes, chart_axes, empty_chart
from edgeloop.view.front import ALL_DEVICES, Pareto, device_note, one_device, pareto_of
from edgeloop.view.measures import (
    check_columns,
    measure_of,
    objective,
    quality_column,
)
from edgeloop.view.portal.feed import Row, TableSnapshot
from edgeloop.view.portal.shapes import (
    Axis,
    CompareCell,
    CompareRow,
    CompareView,
    ParetoQuery,
    ParetoView,
    Point,
)
from edgeloop.view.portal.state import Portal, frame_of
from edgeloop.view.portal.views.table import NUMBERS, cell_text, filtered, line_of, summary_of

if TYPE_CHECKING:
    import altair as alt


MOST_POINTS, MOST_NARROW = 1_500, 400  # more take seconds to draw
WIDE, NARROW_PLOT = (760, 440), (NARROW - 60, 320)


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
        plotted = _find(portal, snapshot, frame.experiment, query)
    except BadInput as error:
        svg = portal.draw(str(error), lambda: empty_chart("Choose other columns."), "front-")
        x, y = (Axis(name, measure_of(name).title, "") for name in (query.x, query.y))
        return ParetoView(
            frame=frame,
            query=query,
            x=x,
            y=y,
            points=(),
            front=0,
            hidden=0,
            missing=0,
            hypervolume=0.0,
            reference="",
            columns=columns,
            choices=choices,
            svg=svg,
            trouble=f"{error}.",
        )
    x, y = (_axis(plotted, place) for place in (0, 1))
    return ParetoView(
        frame=frame,
        query=query,
        x=x,
        y=y,
        points=plotted.points,
        front=len(plotted.pareto.front),
        hidden=len(plotted.pareto.rows) - len(plotted.shown),
        missing=plotted.pareto.missing,
        hypervolume=plotted.pareto.share,
        reference=plotted.pareto.reference,
        columns=columns,
        choices=choices,
        svg=_drawing(portal, plotted, query),
        trouble="",
        device=plotted.device,
        devices=plotted.whole.devices,
        device_note=device_note(plotted.whole, plotted.device),
        outside=plotted.axes.outside if plotted.axes else 0,
    )


def _axis(plotted: ParetoPoints, place: int) -> Axis:
    item = plotted.pareto.objectives[place]
    if plotted.axes is None:
        return Axis(item.column, item.measure.title, item.goal, unit=item.measure.unit)
    measure, factor = plotted.axes.measures[place], plotted.axes.factors[place]
    return Axis(item.column, measure.title, item.goal, factor, measure.unit)


def _drawing(portal: Portal, plotted: ParetoPoints, query: ParetoQuery) -> str:
    """On a phone, fewer of the models that are not on the front: marks have the same size there."""
    return portal.draw_twice(
        (query, plotted.points),
        lambda: _chart(plotted, plotted.shown, WIDE),
        "front-",
        lambda: _chart(
            plotted, plotted.shown[: max(MOST_NARROW, len(plotted.pareto.front))], NARROW_PLOT
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
    seen = seen_from(pareto.latency, row)
    sigma, iteration = sigma_ms(seen), measure_of("iteration").of(row)
    return Point(
        name=str(row["name"]),
        x=values[0],
        y=values[1],
        x_text=texts[0],
        y_text=texts[1],
        sigma_ms=None if math.isnan(sigma) else sigma,
        is_front=pareto.is_front[index],
        is_estimate=is_estimate(seen),
        interval=latency_interval(seen),
        iteration=None if math.isnan(iteration) else int(iteration),
        device=str(row.get("device") or ""),
        status=str(row.get("status") or ""),
        score_interval=score_interval(row, up) if up in SCORE_COLUMNS else None,
    )


def _chart(plotted: ParetoPoints, shown: Sequence[int], size: tuple[int, int]) -> alt.TopLevelMixin:
    rows = [plotted.pareto.rows[index] for index in shown]
    links = {str(row["name"]): anchor(str(row["name"])) for row in rows}
    objectives = plotted.pareto.objectives
    title = f"Front of {plotted.device}" if plotted.device not in ("", ALL_DEVICES) else ""
    return pareto_chart(
        rows, objectives, links=links, axes=plotted.axes, size=size, title=title or "Front"
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
        present = visible_columns([dict.fromkeys(numbers, 0)])
        measures = [m for m in map(measure_of, present) if m.is_number or m.kind == "unknown"]
        return tuple(Axis(m.name, m.title, m.goal or "") for m in measures)

    return portal.cache.get(key, make)


# Some models side by side: what differs between them first, and which of them is best at it.


MOST_MODELS = 12
_ELSEWHERE = frozenset({"name", "status", "node", "tags", "since", "error"})  # in the head
# Texts that say what a number is of; all other columns without a goal are made for programs.
_SAID = frozenset(
    {"device", "precision", "iteration", "shape", "output_shape", "task", "metric", "calibration"}
)


def compare_view(portal: Portal, experiment: str | None, names: Sequence[str]) -> CompareView:
    """Models that are not there are named in `missing`, and those beyond the limit left out."""
    snapshot = portal.rows(experiment)
    asked = list(dict.fromkeys(names))
    rows = [snapshot.rows[name] for name in asked if name in snapshot.rows][:MOST_MODELS]
    columns = [name for name in visible_columns(row.values for row in rows) if _is_shown(name)]
    meaning = score_meaning(row.values for row in rows)
    compared = [row for column in columns if (row := _row(rows, column, meaning)) is not None]
    first = {name: place for place, name in enumerate(NUMBERS)}
    ranked = sorted(
        compared, key=lambda row: (not row.is_number, not row.has_goal, first.get(row.column, 99))
    )
    now = time.time()
    return CompareView(
        frame=frame_of(portal, experiment),
        lines=tuple(line_of(row, now) for row in rows),
        differing=tuple(row for row in ranked if not row.is_same and _is_read(row)),
        raw=tuple(row for row in ranked if not row.is_same and not _is_read(row)),
        equal=tuple(sorted((r for r in compared if r.is_same), key=lambda r: natural_key(r.title))),
        missing=tuple(name for name in asked if name not in snapshot.rows),
        left_out=max(0, len([n for n in asked if n in snapshot.rows]) - MOST_MODELS),
        devices=tuple(sorted({row.text("device") for row in rows if row.text("device")})),
    )


def _is_shown(column: str) -> bool:
    return column not in _ELSEWHERE and column_of(column).kind != "json"


def _is_read(row: CompareRow) -> bool:
    return row.has_goal or row.column in _SAID


def _row(rows: Sequence[Row], column: str, meaning: ScoreMeaning) -> CompareRow | None:
    """None if no model has a value."""
    measure = column_in_unit(column, [row.values for row in rows])
    if measure.group == "score":
        measure = measure_of(column, meaning)
    values = [measure.of(row.values) for row in rows]
    texts = [cell_text(row, measure) for row in rows]
    if not any(texts):
        return None
    is_number = any(not math.isnan(value) for value in values)
    is_same = len(set(texts)) == 1
    best = are_best([row.values for row in rows], measure)
    return CompareRow(
        column=column,
        title=measure.label,
        unit=measure.unit,
        meaning=measure.meaning,
        is_number=is_number,
        has_goal=measure.goal is not None,
        is_same=is_same,
        cells=tuple(
            CompareCell(
                text,
                _difference(measure, values[0], value) if number else "",
                best[number] and not is_same,
                is_latency(column) and bool(text) and is_estimate(seen_from(column, row.values)),
                _interval(row, measure) if text else "",
            )
            for number, (row, text, value) in enumerate(zip(rows, texts, values, strict=True))
        ),
    )


def _interval(row: Row, measure: Column) -> str:
    if is_latency(measure.name):
        return interval_cell(row.values, measure)
    span = score_interval(row.values, measure.name) if measure.group == "score" else None
    return f"{span[0]:.3f} – {span[1]:.3f}" if span else ""


def _difference(measure: Column, first: float, value: float) -> str:
    """From the first model: in points for scores, in percent for all else."""
    if math.isnan(first) or math.isnan(value) or measure.goal is None or value == first:
        return ""
    if measure.name in SCORE_COLUMNS or measure.name.endswith("_iou"):
        return f"{value - first:+.4f}".replace("-", "−")
    return f"{100 * (value / first - 1):+.3g} %".replace("-", "−") if first > 0 else ""
