"""Charts as files (PNG, SVG, HTML), as parts of a page, in notebooks, and as animations.

vl-convert renders them without a browser and without a network.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from statistics import quantiles
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, cast
from xml.etree import ElementTree

from edgeloop._util.files import write_atomic
from edgeloop.errors import BadInput, LocalFileError, MissingExtra
from edgeloop.models.columns import (
    SCORE_COLUMNS,
    Column,
    Row,
    is_latency,
    latency_interval,
    readable,
    score_interval,
    seen_from,
)
from edgeloop.view.front import Pareto
from edgeloop.view.measures import ColumnObjective

if TYPE_CHECKING:
    from types import ModuleType

    import altair as alt

    Chart = alt.Chart | alt.LayerChart | alt.FacetChart


SCALE = 2.0  # PNG pixels a point, for sharp text
FRAME_MS, LAST_FRAME_MS = 700, 2500
# Vega compiles the expressions of a chart, hence unsafe-eval; nothing may be fetched.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "script-src 'unsafe-inline' 'unsafe-eval'"
)
_SVG = "http://www.w3.org/2000/svg"
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINK = "{http://www.w3.org/1999/xlink}href"
_DROPPED = ("class", "pointer-events", "role", "aria-roledescription", "aria-hidden")


FONTS = Path(__file__).parent / "fonts"
FONT_FILES = {"normal": "regular.woff2", "bold": "bold.woff2"}


@cache
def _converter() -> ModuleType:
    """Lays texts out with the font that pages and files carry, whatever a machine has."""
    try:
        import vl_convert
    except ImportError:
        raise MissingExtra(what="Drawing charts", extra="portal") from None
    vl_convert.register_font_directory(str(FONTS))
    return vl_convert


@cache
def font_faces() -> str:
    """The font of charts as CSS without addresses, for pages and files that stand alone."""
    face = "@font-face{{font-family:'Edgeloop Sans';font-weight:{};src:url({}) format('woff2')}}"
    return "".join(
        face.format(weight, f"data:font/woff2;base64,{_text((FONTS / name).read_bytes())}")
        for weight, name in FONT_FILES.items()
    )


def spec_of(chart: alt.TopLevelMixin, theme: Theme = "light") -> dict[str, Any]:
    """The Vega-Lite specification."""
    return {**_drawable(chart.to_dict()), "config": config(theme)}


def drawable(text: str) -> str:
    """Without characters that XML does not allow, such as control characters: the converter does
    not raise on them, it ends the whole process."""
    return _NO_XML.sub("\ufffd", text)


def _drawable(part: Any) -> Any:
    if isinstance(part, str):
        return drawable(part)
    if isinstance(part, dict):
        return {name: _drawable(value) for name, value in part.items()}
    return [_drawable(value) for value in part] if isinstance(part, list) else part


def to_png(chart: alt.TopLevelMixin, theme: Theme = "light", scale: float = SCALE) -> bytes:
    return bytes(_converter().vegalite_to_png(spec_of(chart, theme), scale=scale))


def to_svg(chart: alt.TopLevelMixin, theme: Theme = "light") -> str:
    """A file that looks the same everywhere: it carries its font."""
    begin, end, rest = _svg(spec_of(chart, theme)).partition(">")
    return f"{begin}{end}<defs><style>{font_faces()}</style></defs>{rest}"


def _svg(spec: dict[str, Any]) -> str:
    return str(_converter().vegalite_to_svg(spec))


def to_html(chart: alt.TopLevelMixin, title: str, theme: Theme = "light") -> str:
    """A page with tooltips. It includes Vega, and a content security policy forbids any request.

    Nothing in the data can end the script element: JSON may write `<` as `\\u003c`.
    """
    spec = json.dumps(spec_of(chart, theme)).replace("<", "\\u003c")
    script = _converter().javascript_bundle().replace("</script", "<\\/script")
    background = config(theme)["background"]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(title)}</title>"
        f"<style>{font_faces()}body{{margin:1rem;background:{background}}}</style></head>"
        f'<body><div id="chart"></div>\n<script type="module">\n{script}\n'
        f"vegaEmbed('#chart', {spec}, {{actions: false, renderer: 'svg'}});\n"
        "</script></body></html>\n"
    )


def to_page_parts(
    chart: alt.TopLevelMixin, prefix: str, narrow: alt.TopLevelMixin | None = None
) -> str:
    """A chart twice, drawn for screens and for phones, or with `narrow` another one there: CSS
    shows `.for-wide` or `.for-narrow`. Scaled down, its texts could not be read. A chart that only
    says why it is empty becomes a paragraph, which breaks its lines as any other."""
    if sentence := _sentence(chart):
        return f'<p class="faint">{escape(drawable(sentence))}</p>'
    wide = to_page_part(chart, prefix)
    other = to_page_part(narrow or chart, f"{prefix}n-", is_narrow=True)
    return f'<div class="for-wide">{wide}</div><div class="for-narrow">{other}</div>'


def to_page_part(chart: alt.TopLevelMixin, prefix: str, is_narrow: bool = False) -> str:
    """An SVG for embedding in a page: it uses the text colour and the font of the page, its ids
    start with `prefix`, its links stay in the page, and its marks have tooltips."""
    ElementTree.register_namespace("", _SVG)
    spec = spec_of(chart, "page")
    drawn = _svg(for_narrow(spec) if is_narrow else spec)
    root = ElementTree.fromstring(drawn)  # noqa: S314 - rendered above, not foreign
    for element in root.iter():
        _embed(element, prefix)
    root.set("role", "img")
    root.set("aria-label", _label(spec))
    return ElementTree.tostring(root, encoding="unicode")


def _sentence(chart: alt.TopLevelMixin) -> str:
    noted = chart.to_dict().get("usermeta")
    return str(noted.get(SENTENCE, "")) if isinstance(noted, dict) else ""


def _label(spec: dict[str, Any]) -> str:
    """The title of a chart and what stands below it, for those who do not see it."""
    title = spec.get("title")
    parts = [title.get("text"), title.get("subtitle")] if isinstance(title, dict) else [title]
    texts = [" ".join(part) if isinstance(part, list) else str(part) for part in parts if part]
    return ": ".join(texts) or str(spec.get("usermeta", {}).get(SENTENCE, "")) or "Chart"


def write_chart(chart: alt.TopLevelMixin, path: Path, title: str, theme: Theme = "light") -> None:
    """The format follows from the suffix: .png, .svg or .html."""
    makers: dict[str, Callable[[], bytes]] = {
        ".png": lambda: to_png(chart, theme),
        ".svg": lambda: to_svg(chart, theme).encode(),
        ".html": lambda: to_html(chart, title, theme).encode(),
    }
    make = makers.get(path.suffix.lower())
    if make is None:
        suffixes = ", ".join(makers)
        raise BadInput(reason=f"{path}: a chart can be written to {suffixes}")
    write_whole(path, make())


def to_gif(frames: Sequence[bytes]) -> bytes:
    """PNG frames as an animation that repeats and pauses on its last frame."""
    from PIL import Image

    if not frames:
        raise BadInput(reason="an animation needs at least one frame")
    images = [Image.open(io.BytesIO(frame)).convert("RGB") for frame in frames]
    width, height = (max(image.size[side] for image in images) for side in (0, 1))
    background = cast("tuple[int, int, int]", images[0].getpixel((0, 0)))
    whole = [Image.new("RGB", (width, height), background) for _ in images]
    for canvas, image in zip(whole, images, strict=True):
        canvas.paste(image)
    durations = [FRAME_MS] * (len(whole) - 1) + [LAST_FRAME_MS]
    target = io.BytesIO()
    whole[0].save(target, "GIF", save_all=True, append_images=whole[1:], duration=durations, loop=0)
    return target.getvalue()


def write_whole(path: Path, content: bytes) -> None:
    """The file appears whole or not at all."""
    if path.is_dir():
        raise LocalFileError(path=path, reason="is a folder; name a file")
    try:
        write_atomic(path, content)
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None


def _embed(element: ElementTree.Element, prefix: str) -> None:
    for name in _DROPPED:
        element.attrib.pop(name, None)
    for name, value in list(element.attrib.items()):
        if name == "id":
            element.set(name, prefix + value)
        elif name == _LINK:  # HTML does not know the prefix `xlink`
            del element.attrib[name]
            if place := value.partition("#")[2]:  # some marks of a chart may have no link
                element.set("href", f"#{place}")
        elif value.startswith("url(#"):
            element.set(name, value.replace("url(#", f"url(#{prefix}", 1))
    label = element.attrib.get("aria-label", "")
    if element.tag == f"{{{_SVG}}}path" and label:
        title = ElementTree.SubElement(element, f"{{{_SVG}}}title")
        title.text = label
        del element.attrib["aria-label"]


@dataclass(frozen=True)
class Shown:
    """The value of a notebook cell, in several formats of which the notebook shows the best."""

    forms: dict[str, str]

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return dict(self.forms)

    def __repr__(self) -> str:
        return f"a chart as {', '.join(self.forms)}"


def show(chart: alt.TopLevelMixin) -> Shown:
    """As SVG with tooltips in the colours of the page, light or dark; as PNG for front ends that
    show images only."""
    part = to_page_part(chart, f"n{secrets.token_hex(4)}-")
    style = f"<style>{font_faces()}</style>"
    return Shown({"text/html": style + part, "image/png": _text(to_png(chart))})


def show_animation(frames: Sequence[alt.TopLevelMixin], scale: float = 1.0) -> Shown:
    """Frames, for example of `front_frames`, as a GIF."""
    return Shown({"image/gif": _text(to_gif([to_png(frame, scale=scale) for frame in frames]))})


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


# How all charts look: colours that colour-blind people can tell apart, themes for white and dark
# backgrounds and for pages that may be either, and the axes, legends and titles they share.


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
    measure: Column,
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
        "orient": "bottom",
        "columns": 2,
        "labelLimit": 130,
        "gradientLength": 150,
    }
    settings["axis"] = {**settings.get("axis", {}), "labelLimit": 110, "titleLimit": 300}
    settings["padding"] = 2
    narrow = {**spec, "config": settings}
    if isinstance(spec.get("width"), int | float):
        narrow |= {"width": NARROW, "autosize": {"type": "fit-x", "contains": "padding"}}
        if "row" in spec.get("encoding", {}):  # Vega fits no facets
            narrow |= {"width": NARROW - _AXES_ROOM, "autosize": "pad"}
        for part in ("encoding", "layer"):
            if part in spec:
                narrow[part] = _narrow_part(spec[part])
    if isinstance(title := spec.get("title"), dict):
        lines = {"text": _NARROW_TITLE, "subtitle": _NARROW_LINE}
        broken = {name: _broken(title[name], most) for name, most in lines.items() if name in title}
        narrow["title"] = {**title, **broken}
    return narrow


_NARROW_TITLE, _NARROW_LINE = 38, 52  # letters in a line of a narrow chart


def _narrow_part(part: Any) -> Any:
    """Legends that were placed somewhere of their own have no room there."""
    if isinstance(part, list):
        return [_narrow_part(item) for item in part]
    if not isinstance(part, dict):
        return part
    narrow = {name: _narrow_part(value) for name, value in part.items() if name != "data"}
    if isinstance(legend := narrow.get("legend"), dict) and legend.get("columns", 1) > 1:
        narrow["legend"] = {**legend, "columns": 1, "labelLimit": 260}
    return narrow if "data" not in part else {**narrow, "data": part["data"]}


def _broken(text: str | list[str], most: int) -> list[str]:
    """Break the lines of a wide chart again."""
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
    values = sorted({p[field] for p in points if p[field] is not None} | set(known))
    if not values:
        return a.value(BLUE)
    scale = a.Scale(range=list(EARLY_TO_LATE), domain=[values[0], max(values[-1], values[0] + 1)])
    ticks = [values[0], values[-1]] if len(values) > 8 else values
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


def _inside(values: Sequence[float], always: Iterable[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if len(values) < _FEWEST or not math.isfinite(high - low):
        return low, high
    first, _, third = quantiles(values, n=4)
    fence = _FENCE * (third - first)
    near = [value for value in values if first - fence <= value <= third + fence]
    near.extend(always)
    if not near or len(near) < (1 - _MOST_OUTSIDE) * len(values):
        return low, high
    is_worth_it = max(near) - min(near) < _WORTH * (high - low)
    return (min(near), max(near)) if is_worth_it else (low, high)


def _with_spans(
    low: float, high: float, spans: Iterable[tuple[float, float]]
) -> tuple[float, float]:
    ends = [(one, other) for one, other in spans if math.isfinite(one) and math.isfinite(other)]
    full = min([low, *(one for one, _ in ends)]), max([high, *(other for _, other in ends)])
    if not math.isfinite(full[1] - full[0]) or high <= low:
        return low, high
    beyond = max(0.0, (high - low) * (1 / _POINTS_SHARE - 1))
    needed = (low - full[0]) + (full[1] - high)
    share = min(1.0, beyond / needed) if needed > 0 else 0.0
    return low - share * (low - full[0]), high + share * (full[1] - high)


@dataclass(frozen=True)
class ChartAxes:
    """How a front is shown: its measures in the units that read best, the factors of its values,
    and the ranges of the first two, in these units. `outside` models are beyond these.
    `iterations` are all values of the colour scale; empty: those of the points."""

    measures: tuple[Column, ...]
    factors: tuple[float, ...]
    ranges: tuple[AxisRange, AxisRange]
    outside: int = 0
    iterations: tuple[float, ...] = ()


def chart_axes(pareto: Pareto, whole: bool = False, is_moving: bool = False) -> ChartAxes:
    """The axes of a front that has rows; linear ones with room for all if the front `is_moving`."""
    measures, factors, ranges = [], [], []
    for place, item in enumerate(pareto.objectives):
        values = pareto.values[:, place].tolist()
        measure, factor = readable(item.measure, values)
        measures.append(measure)
        factors.append(factor)
        if place > 1:
            continue
        spans = [span for row in pareto.front if (span := span_of(row, item, factor))]
        on_front = [factor * item.of(row) for row in pareto.front]
        ranges.append(
            axis_range(
                [factor * value for value in values],
                on_front,
                () if is_moving else spans,
                may_be_log=item.measure.goal == "min" and not is_moving,
                whole=whole or is_moving,
            )
        )
    across, up = ranges
    outside = sum(
        not (across.shows(factors[0] * x) and up.shows(factors[1] * y))
        for x, y in pareto.values[:, :2].tolist()
    )
    return ChartAxes(tuple(measures), tuple(factors), (across, up), outside)


def span_of(row: Row, item: ColumnObjective, factor: float = 1.0) -> tuple[float, float] | None:
    """The interval of a row's value, if it has one: of an estimated latency, or of a score."""
    if is_latency(item.column):
        interval = latency_interval(seen_from(item.column, row))
        return (factor * interval.low_ms, factor * interval.high_ms) if interval else None
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
            mark = taken[index]
            if is_inside and not any(_overlap(box, other) for other in taken if other is not mark):
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
