"""The pages: views as HTML. Nothing here reads the store, and no text of it is trusted.

Routes are plain functions, since views block. Without JavaScript, pages work but are not live, and
changes are not possible.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter
from fastapi.requests import Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from markupsafe import escape

from edgeloop._util.values import interval_text
from edgeloop.errors import NotFound
from edgeloop.view.drawing import FONT_FILES, FONTS
from edgeloop.view.measures import LATENCY
from edgeloop.view.portal.auth import change_token
from edgeloop.view.portal.rendering import (
    HERE,
    Link,
    Templates,
    asked_values,
    grouped,
    link_of,
    linked,
    plain_cells,
    span_of,
    table_values,
)
from edgeloop.view.portal.shapes import PAGE_SIZES, Axis, ParetoQuery, ParetoView, Point, TableQuery
from edgeloop.view.portal.views.devices import devices_view
from edgeloop.view.portal.views.examples import examples_view
from edgeloop.view.portal.views.jobs import job_view, jobs_view
from edgeloop.view.portal.views.model import model_view
from edgeloop.view.portal.views.pareto import compare_view, pareto_view
from edgeloop.view.portal.views.searches import (
    PARAMETER,
    SearchQuery,
    search_drawings,
    search_view,
    searches_view,
)
from edgeloop.view.portal.views.table import table_view

if TYPE_CHECKING:
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
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _value(axis: Axis, point: Point, text: str) -> str:
    if axis.column != LATENCY:
        span = point.score_interval if axis.goal == "max" else None
        ends = f" (95 % interval {span[0]:.4f} – {span[1]:.4f})" if span else ""
        return f"{axis.title}: {text}{ends}"
    spread = f" ± {axis.factor * point.sigma_ms:.2g}" if point.sigma_ms else ""
    if not point.is_estimate:
        return f"{axis.title}: {text}{spread}"
    known = point.interval
    interval = f", {interval_text(known.low_ms, known.high_ms, known.coverage)}" if known else ""
    return f"{axis.title}: {text}{spread} (estimate{interval})"


def _between(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


MOST_NEAR = 8  # experiments that an error page names
LONGEST_NAME = 100  # that others are compared with
MOST_POINTS = 300  # in the table below the chart
MOST_COLUMNS = 100
_TYPES = {
    **{".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"},
    ".woff2": "font/woff2",
}
_PAGES = re.compile("/$|/(compare|devices|jobs|models|pareto|searches)(/|$)")
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
        known = _known_experiment(portal, request)
        home = f"/?{urlencode({'experiment': known})}" if known else "/"
    sentence = f"{sentence[:1].upper()}{sentence[1:]}"
    return Templates().bare("error", status, title=title, sentence=sentence, near=near, home=home)


def _known_experiment(portal: Portal, request: Request) -> str:
    asked = request.query_params.get("experiment", "")
    return asked if asked in portal.experiments() else ""


def _near(portal: Portal, request: Request) -> list[tuple[str, str]]:
    """Experiments or models with names like the one in the address, with links to them."""
    asked = _experiment(request)
    if asked and not _known_experiment(portal, request):
        names = get_close_matches(asked[:LONGEST_NAME], portal.experiments(), n=3)
        names = names or list(portal.experiments())[:MOST_NEAR]
        return [(name, f"/?{urlencode({'experiment': name})}") for name in names]
    prefix, _, name = request.scope["path"].partition("/models/")
    if prefix or not name:
        return []
    models = get_close_matches(name[:LONGEST_NAME], portal.rows(asked).rows, n=3)
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
        elsewhere = {} if view.total else portal.elsewhere(_experiment(request))
        return templates.page(request, "table", elsewhere=elsewhere, **values)

    @routes.get("/parts/table")
    def table_parts(request: Request) -> JSONResponse:
        """For the live table: its rows in order, with content only for those it does not have."""
        view = table_view(portal, _experiment(request), table_query(dict(asked_values(request))))
        known = set(request.query_params.get("known", "").split(","))
        rows = templates.rows(request, view)
        values = table_values(view)
        return JSONResponse(
            {
                "columns": " ".join(heading.name for heading in view.headings),
                "marks": [mark for mark, _ in rows],
                "html": "".join(row for mark, row in rows if mark not in known),
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
            metrics=list(dict.fromkeys(m for scores in view.scores.values() for m in scores)),
            examples=examples_view(portal, _experiment(request), name),
            change_token=change_token(request) if view.frame.allow_changes else "",
        )


def _add_pareto(routes: APIRouter, portal: Portal, templates: Templates) -> None:
    @routes.get("/pareto")
    def pareto(request: Request) -> HTMLResponse:
        asked = request.query_params
        names = ("x", "y", "text", "status", "tag", "device", "range")
        query = ParetoQuery(**_texts(asked, *names))
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


def _add_jobs(routes: APIRouter, portal: Portal, templates: Templates) -> None:
    @routes.get("/jobs")
    def jobs(request: Request) -> HTMLResponse:
        view = jobs_view(portal, _experiment(request))
        return templates.page(request, "jobs", view.frame, "/jobs", view=view)

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
            numeric={
                column
                for column, cells in texts.items()
                if any(cells) and all(number(cell) is not None for cell in cells if cell)
            },
        )


def search_query(asked: Mapping[str, str]) -> SearchQuery:
    texts = _texts(asked, "chip", "colour", "sort")
    return SearchQuery(**texts, descending=asked.get("descending", "") in ("1", "true"))


def table_query(asked: Mapping[str, str]) -> TableQuery:
    """Invalid values in the address of a page are ignored."""
    texts = _texts(asked, "text", "status", "tag", "stage", "device", "node", "sort")
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


def _texts(asked: Mapping[str, str], *names: str) -> dict[str, Any]:
    return {name: asked[name] for name in names if asked.get(name)}
