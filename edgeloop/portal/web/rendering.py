"""Fills in templates: what every page has, the addresses in it, and the rows of the table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlencode

from fastapi.requests import Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from edgeloop.portal.views.shapes import PAGE_SIZES, Frame, Heading, Line, TableView
from edgeloop.portal.web.markup import environment

Link = Callable[..., str]
_OWN_PLACE = frozenset({"name", "status", "since", "node"})  # not drawn as plain cells


class Templates:
    """The templates, read once, ready to be filled in."""

    def __init__(self) -> None:
        self._environment = environment()

    def part(self, request: Request, template: str, **values: Any) -> str:
        """A template with the addresses that belong to this request."""
        return self._environment.get_template(f"{template}.jinja").render(
            link=link_of(request), kept=kept_of(request), **values
        )

    def page(
        self, request: Request, template: str, frame: Frame, tab: str, **values: Any
    ) -> HTMLResponse:
        return HTMLResponse(self.part(request, template, frame=frame, tab=tab, **values))

    def bare(self, template: str, status: int, **values: Any) -> HTMLResponse:
        """A page without a frame: nothing of the store is needed for it, nor shown."""
        text = self._environment.get_template(f"{template}.jinja").render(**values)
        return HTMLResponse(text, status)

    def rows(self, request: Request, view: TableView) -> list[tuple[str, Markup]]:
        """Each row with a mark of what is in it: a row that a browser has need not travel."""
        template = self._environment.get_template("table_row.jinja")
        link, found = link_of(request), []
        for line in view.lines:
            mark = hashlib.blake2b(repr(line).encode(), digest_size=8).hexdigest()
            inside = template.render(
                line=line, link=link, cells=plain_cells(view.headings, line), shown=shown_status
            )
            row = Markup('<tr data-mark="{}" data-name="{}">{}</tr>')
            found.append((mark, row.format(mark, line.name, Markup(inside))))  # noqa: S704
        return found


def link_of(request: Request) -> Link:
    """Addresses of pages: with this one's experiment, or with `keep` its whole query."""
    asked = {name: value for name, value in request.query_params.items() if name != "known"}

    def link(path: str, keep: bool = False, **changes: object) -> str:
        query = {k: v for k, v in asked.items() if keep or k == "experiment"}
        query |= {name: str(value) for name, value in changes.items()}
        told = urlencode({name: value for name, value in query.items() if value})
        return f"{path}?{told}" if told else path

    return link


def kept_of(request: Request) -> Callable[..., list[tuple[str, str]]]:
    """What a form carries along in hidden fields."""

    def kept(without: Iterable[str] = (), only: Iterable[str] = ()) -> list[tuple[str, str]]:
        chosen = set(only) or set(request.query_params) - set(without)
        items = request.query_params.items()
        return [(name, value) for name, value in items if name in chosen and value]

    return kept


def table_values(view: TableView) -> dict[str, Any]:
    """What the parts of the table's page need besides its rows."""
    query = view.query
    chosen = (query.text, query.status, query.tag, query.stage, query.device, query.node)
    return {
        "view": view,
        "frame": view.frame,
        "columns": [heading for heading in view.headings if heading.name not in _OWN_PLACE],
        "counts": sorted(view.counts.items(), key=lambda item: (-item[1], item[0])),
        "page_sizes": PAGE_SIZES,
        "page_numbers": page_numbers(query.page, view.pages),
        "is_filtered": any(chosen),
    }


def plain_cells(headings: Sequence[Heading], line: Line) -> list[tuple[Heading, str]]:
    """The cells that are shown as they are: not those that stand at a place of their own."""
    return [
        (heading, cell)
        for heading, cell in zip(headings, line.cells, strict=True)
        if heading.name not in _OWN_PLACE
    ]


def shown_status(line: Line) -> str:
    return line.status or line.word


def page_numbers(page: int, pages: int) -> list[int]:
    """The first, the last and those around this one; 0 where some are left out."""
    shown = sorted({1, pages, *range(max(1, page - 2), min(pages, page + 2) + 1)})
    numbers: list[int] = []
    for number in shown:
        if numbers and number - numbers[-1] > 1:
            numbers.append(0)
        numbers.append(number)
    return numbers
