"""From values to HTML: the templates, escaped by default, and their filters."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from fastapi.requests import Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup, escape

from edgeloop._util.values import latency_text, size_text
from edgeloop.models.columns import AGREEMENT_COLUMNS
from edgeloop.view.measures import measure_of
from edgeloop.view.portal.shapes import (
    PAGE_SIZES,
    Frame,
    Heading,
    Line,
    StageView,
    TableView,
    UsePeriod,
)

if TYPE_CHECKING:
    import jinja2


HERE = Path(__file__).parent
TRACK = 1000.0  # width of a timeline's bar, in its own units
_THINNEST = 4.0
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Many states, a few signs: colour and shape follow from the class.
_CLASSES = {
    **{"new": "new", "ready": "new", "none": "new", "skipped": "canceled"},
    **{"waiting": "waiting", "queued": "waiting", "preparing": "waiting", "blocked": "waiting"},
    **{"retry": "waiting", "uploading": "running", "running": "running", "done": "complete"},
    **{"deleting": "canceled", "canceled": "canceled", "complete": "complete"},
    **{"completed": "complete", "error": "error", "failed": "error", "stalled": "error"},
    **{"busy": "running", "idle": "complete", "hot": "waiting", "plugged": "new"},
    **{"unplugged": "error", "unauthorized": "error", "offline": "error", "dead": "error"},
    **{"candidate": "candidate", "pruned": "canceled", "screened": "canceled", "fail": "error"},
    **{"stopped": "canceled"},
}
_STAGE_WORDS = {
    "done": "done",
    "ready": "waits for a runner",
    "retry": "failed, will be retried",
    "failed": "failed",
    "skipped": "not part of its plan",
    "none": "has no model file yet",
}


def environment() -> jinja2.Environment:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "ago": ago,
        "bars": bars,
        "brief": lambda number: f"{number:.4g}",
        "bytes": size_text,
        "clock": lambda moment: f"{datetime.fromtimestamp(moment, UTC):%H:%M} UTC",
        "drawn": drawn,
        "iso": iso,
        "machine": lambda node: re.split("[/:]", node)[0] or node,
        "micros": lambda time_us: latency_text(time_us / 1000),
        "percent": percent,
        "plain": lambda text: _COLOURS.sub("", text),
        "quoted": lambda text: quote(str(text), safe=""),
        "quoted_path": lambda text: quote(str(text)),
        "score": score,
        "seconds": in_seconds,
        "shell": shlex.join,
        "stage_words": stage_words,
        "stamp": stamp,
        "state_class": lambda word: _CLASSES.get(str(word).lower(), "new"),
        "short_unit": lambda unit: "M" if unit == "millions" else unit,
        "tidy": tidy,
        "whole": lambda number: "" if number is None else f"{number:g}",
    }
    return made


def drawn(svg: str) -> Markup:
    """A chart from `to_page_part`: an XML writer has escaped every text."""
    return Markup(svg)  # noqa: S704


def linked(svg: str, address: str) -> Markup:
    """Links the points of a chart to the pages of their models: `address` has a `{}` for the name.

    Names are percent-encoded, hence without a quote that could end the attribute.
    """
    before, _, after = str(escape(address)).partition("{}")
    pattern = re.compile(r'href="#model=([^"<>]*)"')
    text = pattern.sub(lambda found: f'href="{before}{found[1]}{after}"', svg)
    return grouped(text, "Models as points")


def grouped(svg: str, label: str) -> Markup:
    """A chart whose points can be reached: for screen readers, an image has no parts, but a group
    has."""
    return drawn(
        re.sub(' role="img"( aria-label="[^"]*")?', f' role="group" aria-label="{label}"', svg)
    )


def iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


def stamp(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC"


def ago(moment: float) -> str:
    """In the words of base.js, which continues from here."""
    seconds = max(0.0, time.time() - moment)
    if seconds < 60:
        return f"{int(seconds)} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min"
    if seconds < 86_400:
        return f"{int(seconds // 3600)} h"
    days = int(seconds // 86_400)
    return "1 day" if days == 1 else f"{days} days"


def in_seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02} min"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.2g} %"


def score(value: float | None, metric: str = "f1_1k") -> str:
    if value is None or math.isnan(value):
        return ""
    return f"{value:.4f}" if metric not in AGREEMENT_COLUMNS else measure_of(metric).text(value)


def tidy(text: str) -> str:
    """A number of a table, shortened; any other text unchanged."""
    try:
        value = float(text)
    except ValueError:
        return text
    if not math.isfinite(value):
        return text
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def stage_words(stage: StageView) -> str:
    """The state of a stage in words."""
    if stage.state == "running":
        return f"running on {stage.node}"
    if stage.state == "queued":
        return f"queued on {stage.node}"
    if stage.state == "stalled":
        return f"stalled: no heartbeat from {stage.node} since its lease expired"
    if stage.state == "blocked":
        return f"comes after {' and '.join(stage.needs)}"
    return _STAGE_WORDS.get(stage.state, stage.state)


def span_of(stages: Iterable[StageView]) -> tuple[float, float] | None:
    """From the first use of a device to the last, if there is any."""
    uses = [use for stage in stages for use in stage.uses]
    if not uses:
        return None
    return min(use.start for use in uses), max(use.end for use in uses)


def bars(uses: Sequence[UsePeriod], span: tuple[float, float]) -> list[tuple[str, str]]:
    """Position and width of each use in the span; never too thin to be seen."""
    first, last = span
    scale = TRACK / max(last - first, 1e-3)
    found = []
    for use in uses:
        width = min(TRACK, max(_THINNEST, use.seconds * scale))
        left = min((use.start - first) * scale, TRACK - width)
        found.append((f"{left:.1f}", f"{width:.1f}"))
    return found


Link = Callable[..., str]
_OWN_PLACE = frozenset({"name", "status", "since", "node"})  # not drawn as plain numbers


class Templates:
    """The templates, read once."""

    def __init__(self) -> None:
        self._environment = environment()

    def part(self, request: Request, template: str, **values: Any) -> str:
        """A template with the addresses of this request."""
        return self._environment.get_template(f"{template}.jinja").render(
            link=link_of(request), kept=kept_of(request), **values
        )

    def page(
        self, request: Request, template: str, frame: Frame, tab: str, **values: Any
    ) -> HTMLResponse:
        return HTMLResponse(self.part(request, template, frame=frame, tab=tab, **values))

    def bare(self, template: str, status: int, **values: Any) -> HTMLResponse:
        """A page without a frame: it neither needs nor shows anything of the store."""
        text = self._environment.get_template(f"{template}.jinja").render(**values)
        return HTMLResponse(text, status)

    def rows(self, request: Request, view: TableView) -> list[tuple[str, Markup]]:
        """Each row with a digest of its content: a browser fetches only rows it does not have."""
        template = self._environment.get_template("table_row.jinja")
        link, found = link_of(request), []
        places = [heading.name for heading in view.headings[2:]]
        free = len(list(takewhile(lambda name: name in ("since", "node"), places)))
        for line in view.lines:
            mark = hashlib.blake2b(repr(line).encode(), digest_size=8).hexdigest()
            inside = template.render(
                line=line,
                link=link,
                cells=list(zip(view.headings, line.cells, strict=True))[2:],
                shown=shown_status,
                span=free if line.error and not line.work else 0,
            )
            row = Markup('<tr data-mark="{}" data-name="{}">{}</tr>')
            found.append((mark, row.format(mark, line.name, Markup(inside))))  # noqa: S704
        return found


def link_of(request: Request) -> Link:
    """Addresses of pages, with the experiment of this one or, with `keep`, its whole query."""
    asked = {name: value for name, value in asked_values(request) if name != "known"}

    def link(path: str, keep: bool = False, **changes: object) -> str:
        query = {k: v for k, v in asked.items() if keep or k == "experiment"}
        query |= {name: str(value) for name, value in changes.items()}
        told = urlencode({name: value for name, value in query.items() if value})
        return f"{path}?{told}" if told else path

    return link


def asked_values(request: Request) -> list[tuple[str, str]]:
    """The query of an address, each name once: what a form sent several times is one list."""
    query = request.query_params
    return [(name, ",".join(query.getlist(name))) for name in dict.fromkeys(query)]


def kept_of(request: Request) -> Callable[..., list[tuple[str, str]]]:
    """The hidden fields of a form."""

    def kept(without: Iterable[str] = (), only: Iterable[str] = ()) -> list[tuple[str, str]]:
        chosen = set(only) or set(request.query_params) - set(without)
        items = asked_values(request)
        return [(name, value) for name, value in items if name in chosen and value]

    return kept


def table_values(view: TableView) -> dict[str, Any]:
    """The variables of the table page, except its rows."""
    query = view.query
    chosen = (query.text, query.status, query.tag, query.stage, query.device, query.node)
    return {
        "view": view,
        "frame": view.frame,
        "columns": view.headings[2:],
        "shown_columns": {heading.name for heading in view.headings},
        "counts": sorted(view.counts.items(), key=lambda item: (-item[1], item[0])),
        "page_sizes": PAGE_SIZES,
        "page_numbers": page_numbers(query.page, view.pages),
        "is_filtered": any(chosen),
    }


def plain_cells(headings: Sequence[Heading], line: Line) -> list[tuple[Heading, str]]:
    """The cells that are shown as they are, without those that have a place of their own."""
    return [
        (heading, cell)
        for heading, cell in zip(headings, line.cells, strict=True)
        if heading.name not in _OWN_PLACE
    ]


def shown_status(line: Line) -> str:
    return line.status or line.word


def page_numbers(page: int, pages: int) -> list[int]:
    """The first, the last and those around this one; 0 for a gap."""
    shown = sorted({1, pages, *range(max(1, page - 2), min(pages, page + 2) + 1)})
    numbers: list[int] = []
    for number in shown:
        if numbers and number - numbers[-1] > 1:
            numbers.append(0)
        numbers.append(number)
    return numbers
