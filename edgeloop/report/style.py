"""How all charts look: colours that colour-blind people can tell apart, themes for white and dark
backgrounds and for pages that may be either, and the axes, legends and titles they share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, cast

from edgeloop.errors import MissingExtra
from edgeloop.report.measures import Measure

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
