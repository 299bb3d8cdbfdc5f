"""The pages: views as HTML. Nothing here reads the store, and no text of it is trusted.

Routes are plain functions, since views block. Without JavaScript, pages work but are not live, and
changes are not possible.
"""

from __future__ import annotations

import hashlib
import math
import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from fastapi import APIRouter
from fastapi.requests import Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from markupsafe import Markup, escape

from edgeloop._util.values import bare_range, close_names, latency_text, size_text
from edgeloop.errors import EdgeloopError, NotFound
from edgeloop.models.columns import AGREEMENT_COLUMNS, LATENCY, RECOVERY_HEADINGS
from edgeloop.view.drawing import FONT_FILES, FONTS
from edgeloop.view.measures import measure_of
from edgeloop.view.portal.auth import MOST_UPLOAD, UPLOADS, change_token
from edgeloop.view.portal.export import static_page
from edgeloop.view.portal.shapes import (
    PAGE_SIZES,
    Axis,
    Frame,
    Heading,
    Line,
    ParetoQuery,
    ParetoView,
    Point,
    StageView,
    TableQuery,
    TableView,
    UsePeriod,
)
from edgeloop.view.portal.views.dataset import dataset_view, thumbnail
from edgeloop.view.portal.views.devices import devices_view
from edgeloop.view.portal.views.examples import example_image, examples_view
from edgeloop.view.portal.views.jobs import job_view, jobs_view, overlay_view
from edgeloop.view.portal.views.model import box_view, model_view
from edgeloop.view.portal.views.pareto import compare_view, pareto_view
from edgeloop.view.portal.views.searches import (
    PARAMETER,
    SearchQuery,
    models_of,
    search_drawings,
    search_view,
    searches_view,
)
from edgeloop.view.portal.views.table import table_view

if TYPE_CHECKING:
    import jinja2

    from edgeloop.view.portal.state import Portal


LIMITS = ("x_min", "x_max", "y_min", "y_max")
Box = Mapping[str, float | None]


def box_of(asked: Mapping[str, str]) -> Box:
    """The limits in an address; None for a missing or invalid one. Those that a person typed are
    in the units of the axes, and come with a factor."""
    box = {}
    for name in LIMITS:
        limit, factor = number(asked.get(name, "")), number(asked.get(f"{name[0]}_factor", ""))
        box[name] = limit / factor if limit is not None and factor and factor > 0 else limit
    return box


def is_inside(point: Point, box: Box) -> bool:
    return _between(point.x, box["x_min"], box["x_max"]) and _between(
        point.y, box["y_min"], box["y_max"]
    )


def point_data(link: Link, view: ParetoView, point: Point) -> dict[str, Any]:
    """A point for the script of the page; its link identifies the mark in the chart."""
    lines = [point.name, _value(view.x, point, point.x_text), _value(view.y, point, point.y_text)]
    if point.iteration is not None:
        lines.append(f"iteration {point.iteration}")
    if point.device:
        lines.append(point.device)
    href = link(f"/models/{quote(point.name, safe='')}")
    return {"href": href, "x": point.x, "y": point.y, "lines": lines, "about": ", ".join(lines)}


def number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _value(axis: Axis, point: Point, text: str) -> str:
    if axis.column != LATENCY:
        span = point.score_interval if axis.goal == "max" else None
        ends = f" (95 % interval {span[0]:.4f} – {span[1]:.4f})" if span else ""
        return f"{axis.title}: {text}{ends}"
    spread = f" ± {axis.factor * point.sigma_ms:.2g}" if point.sigma_ms else ""
    if not point.is_estimate:
        return f"{axis.title}: {text}{spread}"
    found = point.interval
    if found is None:
        return f"{axis.title}: {text}{spread} (estimate)"
    name = f"{100 * found.coverage:.0f} % interval" if found.coverage else "range"
    ends = bare_range(found.low_ms, found.high_ms, axis.unit)
    return f"{axis.title}: {text}{spread} (estimate, {name} {ends})"


def _between(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


MOST_NEAR = 8  # experiments that an error page names
LONGEST_NAME = 100  # that others are compared with
MOST_POINTS = 300  # in the table below the chart
MOST_COLUMNS = 100
_TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_PAGES = re.compile("/$|/(compare|curves|dataset|devices|jobs|models|pareto|searches)(/|$)")
_EXAMPLE = re.compile(r"/api/v1/models/([^/]+)/examples/([0-9]{1,3})/([a-z]+)\.png")
_OF_DATASET = re.compile(r"/api/v1/dataset/images/([0-9]{1,9})\.jpg")
_TITLES = {400: "That does not work", 403: "Not allowed", 404: "Not found"}


def router(portal: Portal) -> APIRouter:
    """All pages, and the files that they need."""
    routes = APIRouter(include_in_schema=False)
    templates = Templates()
    _add_static(routes)
    _add_table(routes, portal, templates)
    _add_compare(routes, portal, templates)
    _add_model(routes, portal, templates)
    _add_pareto(routes, portal, templates)
    _add_dataset(routes, portal, templates)
    _add_devices(routes, portal, templates)
    _add_jobs(routes, portal, templates)
    _add_searches(routes, portal, templates)
    return routes


def error_page(portal: Portal, request: Request, status: int, sentence: str) -> Response:
    """Leads on to what has nearly the name that was asked for. An address that is open without a
    token tells nothing of the store."""
    title = _TITLES.get(status, "Something went wrong")
    near: list[tuple[str, str]] = []
    home = "/"
    if status in (400, 404) and _PAGES.match(request.scope["path"]):
        near = _near(portal, request)
        experiment = _known_experiment(portal, request)
        home = f"/?{urlencode({'experiment': experiment})}" if experiment else "/"
    sentence = f"{sentence[:1].upper()}{sentence[1:]}"
    return Templates().bare("error", status, title=title, sentence=sentence, near=near, home=home)


def _known_experiment(portal: Portal, request: Request) -> str:
    asked = request.query_params.get("experiment", "")
    return asked if asked in portal.experiments() else ""


def _near(portal: Portal, request: Request) -> list[tuple[str, str]]:
    """Experiments or models with names like the one in the address, with links to them."""
    asked = _experiment(request)
    if asked and not _known_experiment(portal, request):
        names = close_names(asked[:LONGEST_NAME], portal.experiments(), most=3)
        names = names or list(portal.experiments())[:MOST_NEAR]
        return [(name, f"/?{urlencode({'experiment': name})}") for name in names]
    prefix, _, name = request.scope["path"].partition("/models/")
    if prefix or not name:
        return []
    models = close_names(name[:LONGEST_NAME], portal.rows(asked).rows, most=3)
    return [(model, link_of(request)(f"/models/{quote(model, safe='')}")) for model in models]


def login_page(portal: Portal, request: Request, sentence: str) -> Response:
    asked = request.query_params.get("next", "/")
    return Templates().bare("login", 401 if sentence else 200, sentence=sentence, next=asked)


def _add_static(routes: APIRouter) -> None:
    """Read once: no path of a request becomes a path of a file."""
    files = {
        path.name: (path.read_bytes(), _TYPES[path.suffix])
        for path in (
            *sorted((HERE / "static").iterdir()),
            *(FONTS / n for n in FONT_FILES.values()),
        )
        if path.suffix in _TYPES
    }
    tags = {name: f'"{hashlib.sha256(body).hexdigest()[:20]}"' for name, (body, _) in files.items()}

    @routes.get("/static/{name}")
    def static(request: Request, name: str) -> Response:
        if name not in files:
            raise NotFound(reason=f"There is no file {name!r} here.")
        headers = {"ETag": tags[name], "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tags[name]:
            return Response(status_code=304, headers=headers)
        body, kind = files[name]
        return Response(body, media_type=kind, headers=headers)


def _add_table(routes: APIRouter, portal: Portal, templates: Templates) -> None:
    @routes.get("/")
    def table(request: Request) -> HTMLResponse:
        view = table_view(portal, _experiment(request), table_query(dict(asked_values(request))))
        rows = [row for _, row in templates.rows(request, view)]
        shown = escape("").join(rows)
        values = table_values(view) | {"tab": "/", "rows": shown}
        token = change_token(request) if view.frame.allow_changes else ""
        values |= {"change_token": token, "uploads": UPLOADS, "most_upload": MOST_UPLOAD}
        elsewhere = {} if view.total else portal.elsewhere(_experiment(request))
        return templates.page(request, "table", elsewhere=elsewhere, **values)

    @routes.get("/parts/table")
    def table_parts(request: Request) -> JSONResponse:
        """For the live table: its rows in order, with content only for those it does not have."""
        view = table_view(portal, _experiment(request), table_query(dict(asked_values(request))))
        known_marks = set(request.query_params.get("known", "").split(","))
        rows = templates.rows(request, view)
        values = table_values(view)
        return JSONResponse(
            {
                "columns": " ".join(heading.name for heading in view.headings),
                "marks": [mark for mark, _ in rows],
                "html": "".join(row for mark, row in rows if mark not in known_marks),
                "chips": templates.part(request, "table_chips", **values),
                "pages": templates.part(request, "table_pages", **values),
                "banner": templates.part(request, "banner", **values),
            }
        )


def _add_compare(routes: APIRouter, portal: Portal, templates: Templates) -> None:
    @routes.get("/compare")
    def compare(request: Request) -> HTMLResponse:
        names = request.query_params.getlist("name")
        view = compare_view(portal, _experiment(request), names)
        return templates.page(request, "compare", view.frame, "/", view=view)


def _add_model(routes: APIRouter, portal: Portal, templates: Templates) -> None:
    @routes.get("/models/{name:path}")
    def model(request: Request, name: str) -> HTMLResponse:
        view = model_view(portal, _experiment(request), name)
        cells = plain_cells(view.headings, view.line)
        numbers = [(h, cell) for h, cell in cells if h.is_number and cell]
        return templates.page(
            request,
            "model",
            view.frame,
            "/",
            view=view,
            numbers=numbers,
            span=span_of(view.stages),
            recovery_headings=RECOVERY_HEADINGS,
            metrics=list(dict.fromkeys(m for scores in view.scores.values() for m in scores)),
            examples=examples_view(portal, _experiment(request), name),
            change_token=change_token(request) if view.frame.allow_changes else "",
        )

    @routes.get("/parts/network/{name:path}")
    def box(request: Request, name: str, box: str = "") -> HTMLResponse:
        """What is behind one box of a model's graph, for the panel beside it."""
        number = int(box) if re.fullmatch("[0-9]{1,4}", box) else -1
        view = box_view(portal, _experiment(request), name, number)
        return HTMLResponse(templates.part(request, "model_layers", view=view))


def _add_pareto(routes: APIRouter, portal: Portal, templates: Templates) -> None:
    @routes.get("/pareto")
    def pareto(request: Request) -> HTMLResponse:
        asked = request.query_params
        names = ("x", "y", "text", "status", "tag", "device", "range")
        query = ParetoQuery(**_texts(asked, names))
        view = pareto_view(portal, _experiment(request), query)
        box = box_of(asked)
        is_boxed = any(limit is not None for limit in box.values())
        is_filtered = any((query.text, query.status, query.tag, query.device))
        has_none = not (view.points or view.missing or is_filtered)
        front = [point for point in view.points if point.is_front]
        inside = [point for point in view.points if is_inside(point, box)]
        return templates.page(
            request,
            "pareto",
            view.frame,
            "/pareto",
            view=view,
            box={
                name: "" if limit is None else f"{getattr(view, name[0]).factor * limit:.12g}"
                for name, limit in box.items()
            },
            is_boxed=is_boxed,
            front=front,
            chosen=inside if is_boxed else front,
            most=MOST_POINTS,
            has_none=has_none,
            elsewhere=portal.elsewhere(_experiment(request)) if has_none else {},
            columns={axis.column for axis in view.columns},
            drawing=linked(view.svg, link_of(request)("/models/{}")),
            points=[point_data(link_of(request), view, point) for point in view.points],
        )


def _add_devices(routes: APIRouter, portal: Portal, templates: Templates) -> None:
    @routes.get("/devices")
    def devices(request: Request) -> HTMLResponse:
        state = request.query_params.get("state", "")
        view = devices_view(portal, _experiment(request), state=state)
        waiting = [(stage, count) for stage, count in view.waiting.items() if count]
        return templates.page(
            request, "devices", view.frame, "/devices", view=view, waiting=waiting
        )


def _add_dataset(routes: APIRouter, portal: Portal, templates: Templates) -> None:
    @routes.get("/dataset")
    def dataset(request: Request) -> HTMLResponse:
        view = dataset_view(portal, _experiment(request), request.query_params.get("name", ""))
        return templates.page(request, "dataset", view.frame, "/", view=view)


def _add_jobs(routes: APIRouter, portal: Portal, templates: Templates) -> None:
    @routes.get("/jobs")
    def jobs(request: Request) -> HTMLResponse:
        view = jobs_view(portal, _experiment(request))
        return templates.page(request, "jobs", view.frame, "/jobs", view=view)

    @routes.get("/curves")
    def curves(request: Request) -> HTMLResponse:
        view = overlay_view(portal, _experiment(request), request.query_params.getlist("name"))
        return templates.page(request, "curves", view.frame, "/jobs", view=view)

    @routes.get("/jobs/{name}")
    def job(request: Request, name: str) -> HTMLResponse:
        view = job_view(portal, _experiment(request), name)
        token = change_token(request) if view.frame.allow_changes else ""
        values = {"view": view, "job": view.job, "change_token": token}
        return templates.page(request, "job", view.frame, "/jobs", **values)


def _add_searches(routes: APIRouter, portal: Portal, templates: Templates) -> None:
    @routes.get("/searches")
    def searches(request: Request) -> HTMLResponse:
        view = searches_view(portal, _experiment(request))
        return templates.page(request, "searches", view.frame, "/searches", view=view)

    @routes.get("/searches/{name}")
    def search(request: Request, name: str) -> HTMLResponse:
        query = search_query(request.query_params)
        view = search_view(portal, _experiment(request), name, query)
        drawings = search_drawings(portal, name, query)
        names = [*view.columns, *(f"{PARAMETER}{name}" for name in view.parameters)]
        texts = {column: [row.get(column, "") for row in view.candidates] for column in names}
        return templates.page(
            request,
            "search",
            view.frame,
            "/searches",
            view=view,
            search=view.search,
            query=query,
            drawings=drawings,
            scatter=grouped(drawings.candidates, "Candidates as points"),
            prefix=PARAMETER,
            models=models_of(portal, view.search),
            numeric={
                column
                for column, cells in texts.items()
                if any(cells) and all(number(cell) is not None for cell in cells if cell)
            },
        )


def search_query(asked: Mapping[str, str]) -> SearchQuery:
    texts = _texts(asked, ("chip", "colour", "sort"))
    return SearchQuery(**texts, descending=asked.get("descending", "") in ("1", "true"))


def table_query(asked: Mapping[str, str]) -> TableQuery:
    """Invalid values in the address of a page are ignored."""
    texts = _texts(asked, ("text", "status", "tag", "stage", "device", "node", "sort"))
    page, size = number(asked.get("page", "")), number(asked.get("size", ""))
    columns = tuple(name for name in asked.get("columns", "").split(",")[:MOST_COLUMNS] if name)
    return TableQuery(
        **texts,
        columns=columns,
        descending=asked.get("descending", "") in ("1", "true"),
        page=int(max(1, min(page or 1, 1_000_000))),
        size=int(size) if size in PAGE_SIZES else PAGE_SIZES[0],
    )


def _experiment(request: Request) -> str | None:
    return request.query_params.get("experiment") or None


def _texts(asked: Mapping[str, str], names: Sequence[str]) -> dict[str, Any]:
    return {name: asked[name] for name in names if asked.get(name)}


# From values to HTML: the templates, escaped by default, and their filters.


HERE = Path(__file__).parent
TRACK = 1000.0  # width of a timeline's bar, in its own units
_THINNEST = 4.0
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Many states, a few signs: colour and shape follow from the class.
_CLASSES = {
    "new": "new",
    "ready": "new",
    "none": "new",
    "skipped": "canceled",
    "waiting": "waiting",
    "queued": "waiting",
    "preparing": "waiting",
    "blocked": "waiting",
    "retry": "waiting",
    "uploading": "running",
    "running": "running",
    "done": "complete",
    "deleting": "canceled",
    "canceled": "canceled",
    "complete": "complete",
    "completed": "complete",
    "error": "error",
    "failed": "error",
    "stalled": "error",
    "busy": "running",
    "idle": "complete",
    "hot": "waiting",
    "plugged": "new",
    "unplugged": "error",
    "unauthorized": "error",
    "offline": "error",
    "dead": "error",
    "candidate": "candidate",
    "pruned": "canceled",
    "screened": "canceled",
    "fail": "error",
    "stopped": "canceled",
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
        "age": lambda moment: time.time() - moment,
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
    text = pattern.sub(lambda point: f'href="{before}{point[1]}{after}"', svg)
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
    positions = []
    for use in uses:
        width = min(TRACK, max(_THINNEST, use.seconds * scale))
        left = min((use.start - first) * scale, TRACK - width)
        positions.append((f"{left:.1f}", f"{width:.1f}"))
    return positions


Link = Callable[..., str]
EXPORTED = ("compare", "dataset", "model", "pareto", "search")
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
        """With `export=1` in its address, as one file to share."""
        is_export = template in EXPORTED and request.query_params.get("export") == "1"
        items = [item for item in request.query_params.multi_items() if item[0] != "export"]
        address = f"{quote(request.scope['path'])}?{urlencode([*items, ('export', '1')])}"
        text = self.part(request, template, frame=frame, tab=tab, export=address, **values)
        if not is_export:
            return HTMLResponse(text)
        return exported(request, text, template, frame)

    def bare(self, template: str, status: int, **values: Any) -> HTMLResponse:
        """A page without a frame: it neither needs nor shows anything of the store."""
        text = self._environment.get_template(f"{template}.jinja").render(**values)
        return HTMLResponse(text, status)

    def rows(self, request: Request, view: TableView) -> list[tuple[str, Markup]]:
        """Each row with a digest of its content: a browser fetches only rows it does not have."""
        template = self._environment.get_template("table_row.jinja")
        link, marked_rows = link_of(request), []
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
            marked_rows.append((mark, row.format(mark, line.name, Markup(inside))))  # noqa: S704
        return marked_rows


def exported(request: Request, page: str, template: str, frame: Frame) -> HTMLResponse:
    """The page as a download. Its images are those that the page shows, read as a visitor would."""
    portal: Portal = request.app.state.portal
    experiment = _experiment(request)

    def read_image(address: str) -> tuple[bytes, str] | None:
        path, _, query = address.partition("?")
        try:
            if example := _EXAMPLE.fullmatch(path):
                name, number, column = unquote(example[1]), int(example[2]), example[3]
                return example_image(portal, experiment, name, number, column)[0], "image/png"
            if image := _OF_DATASET.fullmatch(path):
                name = dict(parse_qsl(query)).get("name", "")
                return thumbnail(portal, experiment, name, int(image[1]))[0], "image/jpeg"
        except EdgeloopError:
            return None
        return None

    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    about = f"Experiment {frame.experiment}, {when}, Edgeloop {frame.version}"
    folders = [portal.workspace.settings.project]
    folders += [Path(frame.store)] if frame.store.startswith("/") else []
    text = static_page(page, about, read_image, folders)
    last = re.sub(r"[^A-Za-z0-9._-]+", "-", request.scope["path"].rpartition("/")[2])[:80]
    file = "-".join(dict.fromkeys((template, last or template)))
    headers = {
        "content-disposition": f'attachment; filename="{file}.html"',
        "content-security-policy": "default-src 'none'; sandbox",
    }
    return HTMLResponse(text, headers=headers)


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
