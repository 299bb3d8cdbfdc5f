"""How all charts look: colours that colour-blind people can tell apart, themes for white and dark
backgrounds and for pages that may be either, and the axes, legends and titles they share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, cast

from edgeloop.errors import MissingExtra
from edgeloop.models.columns import SCORE_COLUMNS, latency_interval, score_interval
from edgeloop.view.front import Pareto
from edgeloop.view.measures import LATENCY, ColumnObjective, Measure, Row, readable

if TYPE_CHECKING:
    from types import ModuleType

    import altair as alt

    Chart = alt.Chart | alt.LayerChart | alt.FacetChart


Theme = Literal["light", "dark", "page"]

# The palette of Okabe and Ito, without black and yellow, which vanish on one of the backgrounds.
BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
PURPLE, ORANGE, SKY, GREY = "#CC79A7", "#E69F00", "#56B4E9", "#888888"
OKABE_ITO = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY)
# Early to late: orange to blue is distinct for every colour blindness, and on both backgrounds.
EARLY_TO_LATE = ("#E08A00", "#C25A7C", "#7A5AB5", "#1C76C4")

# Vega shapes. Hollow ones have a real hole, so that legends show it too.
DISC = "circle"
RING = "M0,-1A1,1,0,0,1,0,1A1,1,0,0,1,0,-1ZM0,-0.55A0.55,0.55,0,0,0,0,0.55A0.55,0.55,0,0,0,0,-0.55Z"

_TEXT_COLOURS = {"light": "#1F2328", "dark": "#E6E8EB", "page": "currentColor"}
_BACKGROUNDS = {"light": "#FFFFFF", "dark": "#16181D", "page": "transparent"}
# The first is ours and always there (see fonts/); the others have letters that it has not.
_FONT = "'Edgeloop Sans', 'Liberation Sans', Arial, sans-serif"


def config(theme: Theme) -> dict[str, Any]:
    """Vega-Lite's configuration: lines in the text colour of the theme, faint grids."""
    colour = _TEXT_COLOURS[theme]
    text = {"labelColor": colour, "titleColor": colour, "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": _BACKGROUNDS[theme],
        "font": _FONT,
        "padding": 12,
        "view": {"stroke": None},
        "axis": {
            **text,
            "titleFontWeight": "normal",
            "domainColor": colour,
            "domainOpacity": 0.5,
            "tickColor": colour,
            "tickOpacity": 0.5,
            "gridColor": colour,
            "gridOpacity": 0.12,
            "labelLimit": 220,
        },
        # Labels are centred under their ticks; those that would overlap are left out.
        "axisXQuantitative": {"labelFlush": False, "labelSeparation": 10},
        "legend": {**text, "titleFontWeight": "normal", "symbolSize": 110, "labelLimit": 220},
        "header": {**text, "labelFontWeight": "normal"},
        "title": {
            "color": colour,
            "subtitleColor": colour,
            "anchor": "start",
            "fontSize": 15,
            "subtitleFontSize": 12,
            "fontWeight": "bold",
            "offset": 12,
            "subtitlePadding": 4,
        },
        "text": {"color": colour},
        "rule": {"color": colour},
        "range": {"category": list(OKABE_ITO)},
    }


WIDTH, HEIGHT = 620, 380
NARROW = 316  # a whole chart on a phone, with axes and legends
SENTENCE = "sentence"  # what an empty chart says, in its `usermeta`
_AXES_ROOM = 64  # beside the marks of a narrow chart whose layout cannot be fitted
LINE = 18  # height of a line in charts with one line per model


def altair() -> ModuleType:
    try:
        import altair
    except ImportError:
        raise MissingExtra(what="Drawing charts", extra="portal") from None
    return altair


def empty_chart(sentence: str) -> Chart:
    """A chart that says why there is nothing to show."""
    a = altair()
    chart = a.Chart(data([{"text": sentence}])).mark_text(fontSize=14, opacity=0.8)
    shown = chart.encode(text="text:N").properties(width=WIDTH, height=80)
    return cast("Chart", shown.properties(usermeta={SENTENCE: sentence}))


def data(values: Sequence[Mapping[str, Any]]) -> Any:
    """Plain rows: needs no pandas, and has no limit on their number."""
    return altair().InlineData(values=list(values))


def axis(
    kind: Any,
    field: str,
    measure: Measure,
    domain: tuple[float, float] | None,
    is_log: bool = False,
) -> Any:
    a = altair()
    scale = a.Scale(zero=False, nice=True, padding=14)
    if domain:
        scale = a.Scale(domain=list(domain), nice=False, zero=False)
    if domain and is_log:
        scale = a.Scale(type="log", domain=list(domain), nice=False)
        return kind(f"{field}:Q", title=f"{measure.title}, logarithmic", scale=scale)
    return kind(f"{field}:Q", title=measure.title, scale=scale)


def for_narrow(spec: dict[str, Any]) -> dict[str, Any]:
    """The same chart laid out for a phone: texts keep their size, legends go below, and long lines
    are broken."""
    settings = dict(spec.get("config", {}))
    settings["legend"] = {
        **settings.get("legend", {}),
        **{"orient": "bottom", "columns": 2, "labelLimit": 130, "gradientLength": 150},
    }
    settings["axis"] = {**settings.get("axis", {}), "labelLimit": 110, "titleLimit": 300}
    settings["padding"] = 2
    found = {**spec, "config": settings}
    if isinstance(spec.get("width"), int | float):
        found |= {"width": NARROW, "autosize": {"type": "fit-x", "contains": "padding"}}
        if "row" in spec.get("encoding", {}):  # Vega fits no facets
            found |= {"width": NARROW - _AXES_ROOM, "autosize": "pad"}
        for part in ("encoding", "layer"):
            if part in spec:
                found[part] = _narrow_part(spec[part])
    if isinstance(title := spec.get("title"), dict):
        lines = {"text": _NARROW_TITLE, "subtitle": _NARROW_LINE}
        broken = {name: _broken(title[name], most) for name, most in lines.items() if name in title}
        found["title"] = {**title, **broken}
    return found


_NARROW_TITLE, _NARROW_LINE = 38, 52  # letters in a line of a narrow chart


def _narrow_part(part: Any) -> Any:
    """Legends that were placed somewhere of their own have no room there."""
    if isinstance(part, list):
        return [_narrow_part(item) for item in part]
    if not isinstance(part, dict):
        return part
    kept = {name: _narrow_part(value) for name, value in part.items() if name != "data"}
    if isinstance(legend := kept.get("legend"), dict) and legend.get("columns", 1) > 1:
        kept["legend"] = {**legend, "columns": 1, "labelLimit": 260}
    return kept if "data" not in part else {**kept, "data": part["data"]}


def _broken(text: str | list[str], most: int) -> list[str]:
    """Lines that were broken for a wide chart are broken anew."""
    return wrap(text if isinstance(text, str) else " ".join(text), most) or [""]


def by_iteration(
    points: Iterable[Mapping[str, Any]],
    known: Iterable[float] = (),
    field: str = "iteration",
    title: str = "iteration",
) -> Any:
    """Colour by iteration or another `field`; grey for a model without one, a single colour if no
    model has one. `known` are values of other charts, so that all use the same colours."""
    a = altair()
    found = sorted({p[field] for p in points if p[field] is not None} | set(known))
    if not found:
        return a.value(BLUE)
    scale = a.Scale(range=list(EARLY_TO_LATE), domain=[found[0], max(found[-1], found[0] + 1)])
    ticks = [found[0], found[-1]] if len(found) > 8 else found
    legend = a.Legend(title=title, values=ticks, format="d", gradientLength=120, gradientOpacity=1)
    colour = a.Color(f"{field}:Q", scale=scale, legend=legend)
    return a.condition(f"!isValid(datum.{field})", a.value(GREY), colour)


def numbers(**titles: str) -> list[Any]:
    """Tooltips of these fields, each under its title."""
    a = altair()
    return [a.Tooltip(f"{field}:Q", title=title, format=".4g") for field, title in titles.items()]


def padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def sized(
    chart: Any,
    title: str,
    subtitle: str | list[str],
    *,
    width: object = WIDTH,
    height: object = HEIGHT,
) -> Chart:
    titled = altair().TitleParams(title, subtitle=subtitle)
    return cast("Chart", chart.properties(width=width, height=height, title=titled))


def lines_high(lines: int) -> int:
    return max(2, lines) * LINE


def or_null(value: float) -> float | None:
    return None if math.isnan(value) else value


def count_of(count: int, noun: str, plural: str = "") -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


# What axes show: a range that outliers do not squash, linear or logarithmic, and where the names of
# points have room.


_FEWEST = 8  # of fewer values, none is an outlier
_FENCE = 3.0  # interquartile ranges: Tukey's far out
_WORTH = 0.5  # outliers are left out if the rest then needs less than this share of the axis
_MOST_OUTSIDE = 0.1
_LOG_RATIO, _LOG_MEDIAN = 30.0, 0.15  # largest to smallest; where the middle of a linear axis is
_ROOM = 0.06
_POINTS_SHARE = 0.6  # of an axis, if intervals need more of it


@dataclass(frozen=True)
class AxisRange:
    """The ends of an axis."""

    low: float
    high: float
    is_log: bool = False

    def position(self, value: float) -> float:
        """Between 0 and 1 for what the axis shows."""
        if self.is_log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(value) - low) / (high - low) if value > 0 else -1.0
        # Halves, so that the span of the largest floats is finite.
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)

    def shows(self, value: float) -> bool:
        return self.low <= value <= self.high


def axis_range(
    values: Sequence[float],
    kept: Iterable[float] = (),
    spans: Iterable[tuple[float, float]] = (),
    *,
    may_be_log: bool = False,
    whole: bool = False,
) -> AxisRange:
    """Values that are far from the others do not decide the range, unless they are in `kept` (the
    front) or the `whole` is wanted. `spans` (intervals) are shown as far as the points do not
    suffer. Magnitudes that differ by more than a factor of 30 get a logarithmic axis."""
    low, high = min(values), max(values)
    if may_be_log and low > 0 and high / low >= _LOG_RATIO and _is_skewed(values):
        room = (high / low) ** _ROOM
        return AxisRange(low / room, high * room, is_log=True)
    inside = (low, high) if whole else _inside(values, kept)
    low, high = _with_spans(*inside, spans)
    room = _ROOM * (high / 2 - low / 2) * 2 or 0.05 * abs(high) or 1.0
    start = low - room
    return AxisRange(0.0 if start < 0 <= low else start, high + room)


def _is_skewed(values: Sequence[float]) -> bool:
    low, high = min(values), max(values)
    middle = sorted(values)[len(values) // 2]
    return (middle - low) / (high - low) < _LOG_MEDIAN


def _inside(values: Sequence[float], kept: Iterable[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if len(values) < _FEWEST or not math.isfinite(high - low):
        return low, high
    first, _, third = quantiles(values, n=4)
    fence = _FENCE * (third - first)
    near = [value for value in values if first - fence <= value <= third + fence]
    near.extend(kept)
    if not near or len(near) < (1 - _MOST_OUTSIDE) * len(values):
        return low, high
    is_worth_it = max(near) - min(near) < _WORTH * (high - low)
    return (min(near), max(near)) if is_worth_it else (low, high)


def _with_spans(
    low: float, high: float, spans: Iterable[tuple[float, float]]
) -> tuple[float, float]:
    ends = [(one, other) for one, other in spans if math.isfinite(one) and math.isfinite(other)]
    wanted = min([low, *(one for one, _ in ends)]), max([high, *(other for _, other in ends)])
    if not math.isfinite(wanted[1] - wanted[0]) or high <= low:
        return low, high
    beyond = max(0.0, (high - low) * (1 / _POINTS_SHARE - 1))
    needed = (low - wanted[0]) + (wanted[1] - high)
    share = min(1.0, beyond / needed) if needed > 0 else 0.0
    return low - share * (low - wanted[0]), high + share * (wanted[1] - high)


@dataclass(frozen=True)
class ChartAxes:
    """How a front is shown: its measures in the units that read best, the factors of its values,
    and the ranges of the first two, in these units. `outside` models are beyond these."""

    measures: tuple[Measure, ...]
    factors: tuple[float, ...]
    ranges: tuple[AxisRange, AxisRange]
    outside: int = 0


def chart_axes(found: Pareto, whole: bool = False, is_moving: bool = False) -> ChartAxes:
    """The axes of a front that has rows; linear ones with room for all if the front `is_moving`."""
    measures, factors, ranges = [], [], []
    for place, item in enumerate(found.objectives):
        values = found.values[:, place].tolist()
        measure, factor = readable(item.measure, values)
        measures.append(measure)
        factors.append(factor)
        if place > 1:
            continue
        spans = [span for row in found.front if (span := span_of(row, item, factor))]
        kept = [factor * item.of(row) for row in found.front]
        ranges.append(
            axis_range(
                [factor * value for value in values],
                kept,
                () if is_moving else spans,
                may_be_log=item.measure.goal == "min" and not is_moving,
                whole=whole or is_moving,
            )
        )
    across, up = ranges
    outside = sum(
        not (across.shows(factors[0] * x) and up.shows(factors[1] * y))
        for x, y in found.values[:, :2].tolist()
    )
    return ChartAxes(tuple(measures), tuple(factors), (across, up), outside)


def span_of(row: Row, item: ColumnObjective, factor: float = 1.0) -> tuple[float, float] | None:
    """The interval of a row's value, if it has one: of an estimated latency, or of a score."""
    if item.column == LATENCY:
        known = latency_interval(row)
        return (factor * known.low_ms, factor * known.high_ms) if known else None
    return score_interval(row, item.column) if item.column in SCORE_COLUMNS else None


MOST_NAMES = 14
NAME_SIZE = 11
_LETTER, _LINE = 6.0, 13.0  # of a name at that size, in pixels
_LONGEST = 22
_MARK = 9.0  # half the width of a mark of the front
# Place, anchor of the text, and the offset of its anchor from the mark.
# The line of the front mostly leaves a mark to the right and upwards.
PLACES = {
    "left": ("right", -11, 0),
    "right": ("left", 11, 0),
    "above left": ("right", -8, -12),
    "below right": ("left", 8, 12),
    "below": ("center", 0, 17),
    "above": ("center", 0, -16),
}
Box = tuple[float, float, float, float]


def short_name(name: str) -> str:
    """As much of a name as a chart has room for; an architecture by the first letters of its id."""
    stem, dot, kind = name.partition(".")
    if stem.startswith("id_") and len(stem) > 12:
        stem = stem[:10]
    text = f"{stem}{dot}{kind}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def placed_names(
    points: Sequence[tuple[float, float]], names: Sequence[str], size: tuple[float, float]
) -> dict[int, str]:
    """Where the name of each point goes, by its index: `points` are in pixels from the top left
    corner of a plot of this `size`. A name that would cover a point, another name or an edge is
    left out; pointing at its mark still shows it."""
    taken: list[Box] = [(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in points]
    placed: dict[int, str] = {}
    for index, ((x, y), name) in enumerate(zip(points, names, strict=True)):
        if len(placed) >= MOST_NAMES:
            break
        for place in PLACES:
            box = _box(x, y, name, place)
            is_inside = box[0] >= 0 and box[1] >= 0 and box[2] <= size[0] and box[3] <= size[1]
            own = taken[index]
            if is_inside and not any(_overlap(box, other) for other in taken if other is not own):
                placed[index] = place
                taken.append(box)
                break
    return placed


def _box(x: float, y: float, name: str, place: str) -> Box:
    align, dx, dy = PLACES[place]
    width = _LETTER * len(name)
    left = x + dx - {"left": 0.0, "center": width / 2, "right": width}[align]
    return left, y + dy - _LINE / 2, left + width, y + dy + _LINE / 2


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
