"""The same data as the pages, for programs: JSON under /api/v1, described by /api/openapi.json.

Changes follow the rules of the command line and need `--allow-changes`. Files are sent as they are,
a few megabytes at a time.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, HTTPException, Path, Query
from fastapi.requests import Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field

from edgeloop._version import __version__
from edgeloop.errors import NotFound
from edgeloop.models import LARGEST_PRIORITY, column_named, visible_columns, write_csv
from edgeloop.portal import views
from edgeloop.portal.api import streams
from edgeloop.portal.api.examples import add_examples
from edgeloop.portal.api.strict import STRICT_QUERY, Flag, StrictBody, Whole
from edgeloop.portal.auth import change_token, refuse_strangers
from edgeloop.portal.feed import Row
from edgeloop.portal.shapes import (
    PAGE_SIZES,
    DayUse,
    DevicesView,
    FileView,
    ParetoQuery,
    ParetoView,
    SearchesView,
    SearchView,
    StageView,
    TableQuery,
    Work,
)
from edgeloop.portal.state import Portal, frame_of, row_of
from edgeloop.portal.views.devices import days_of
from edgeloop.portal.views.examples import ExamplesView
from edgeloop.portal.views.model import stages_view
from edgeloop.portal.views.table import matching, work_of
from edgeloop.store import Blobs, json_safe

Cell = str | int | float | bool | None


class Problem(BaseModel):
    """What went wrong, as a sentence."""

    detail: str


class Health(BaseModel):
    status: Literal["ok", "loading", "stale"]
    version: str
    read_at: float | None = Field(description="When the store last answered.")


class Session(BaseModel):
    token: str = Field(
        description="Send it as X-Edgeloop-Token with a change, together with the cookie."
    )
    allow_changes: bool


class Experiment(BaseModel):
    name: str


class ModelRow(BaseModel):
    """`values` are the columns of the row except long ones; NaN and infinity are null."""

    name: str
    status: str
    error: str
    tags: list[str]
    device: str
    work: list[Work]
    waiting: list[str] = Field(description="Stages that a runner could claim now.")
    values: dict[str, Cell]


class ModelPage(BaseModel):
    event: str
    total: int
    matching: int
    page: int
    pages: int
    counts: dict[str, int]
    models: list[ModelRow]


class ModelDetail(BaseModel):
    model: ModelRow
    stages: list[StageView]
    files: list[FileView]
    examples: ExamplesView | None = Field(
        description="Test images with labels and what the model makes of them; null without any."
    )


class Usage(BaseModel):
    days: list[DayUse]


class Reset(StrictBody):
    stages: list[str] = Field(
        default=[],
        max_length=50,
        description="These stages and those that depend on them; empty means all.",
    )


class Priority(StrictBody):
    priority: int | None = Field(
        ge=0,
        le=LARGEST_PRIORITY,
        description="Lower is sooner; null restores the default of the stages.",
    )


class Delete(StrictBody):
    pass


class ChangeResult(BaseModel):
    name: str
    done: str
    stages: list[str] = []


CHUNK = 1 << 20  # what a slow reader keeps in memory
EVENT_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {}}}}
DOWNLOAD: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}
ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem}
    for code in (400, 401, 403, 404, 408, 409, 413, 414, 415, 421, 431, 500, 502, 503)
}

Which = Annotated[str | None, Query(alias="experiment", max_length=60)]
Text = Annotated[str, Query(max_length=200)]
Name = Annotated[str, Path(max_length=400)]


def router(portal: Portal) -> APIRouter:
    routes = APIRouter(prefix="/api/v1", responses=ERRORS, dependencies=[STRICT_QUERY])
    _add_about(routes, portal)
    _add_models(routes, portal)
    add_files(routes, portal)
    add_examples(routes, portal)
    _add_overviews(routes, portal)
    _add_events(routes, portal)
    routes.include_router(_changes(portal))
    return routes


def _add_about(routes: APIRouter, portal: Portal) -> None:
    @routes.get("/health")
    async def health() -> Health:
        """Whether the portal runs and the store answers. Needs no token, nor a thread that some
        other request may have."""
        feed = portal.feed()
        state = feed.snapshot
        status = "stale" if state.problem else "ok" if state.is_loaded else "loading"
        return Health(status=status, version=__version__, read_at=feed.read_at)  # type: ignore[arg-type]

    @routes.get("/session")
    def session(request: Request) -> Session:
        """What a program without the portal's token needs for changes, besides its cookie."""
        return Session(token=change_token(request), allow_changes=portal.options.allow_changes)

    @routes.get("/experiments")
    def experiments() -> list[Experiment]:
        return [Experiment(name=name) for name in portal.experiments()]


def _add_models(routes: APIRouter, portal: Portal) -> None:
    @routes.get("/models")
    def models(
        experiment: Which = None,
        text: Text = "",
        status: Text = "",
        tag: Text = "",
        stage: Text = "",
        device: Text = "",
        node: Text = "",
        sort: Text = "name",
        descending: Flag = False,
        page: Annotated[Whole, Query(ge=1, le=1_000_000)] = 1,
        size: Annotated[Whole, Query(ge=1, le=PAGE_SIZES[-1])] = PAGE_SIZES[0],
    ) -> ModelPage:
        """The table, filtered and sorted; rows without the column sorted by come last."""
        query = TableQuery(text, status, tag, stage, device, node, sort, descending)
        snapshot = portal.rows(experiment)
        frame = frame_of(portal, experiment)
        found = matching(portal, snapshot, frame.experiment, query)
        pages = max(1, -(-len(found) // size))
        first = (min(page, pages) - 1) * size
        counts, _ = views.summary_of(portal, snapshot, frame.experiment)
        return ModelPage(
            event=frame.event,
            total=len(snapshot.rows),
            matching=len(found),
            page=min(page, pages),
            pages=pages,
            counts=dict(counts),
            models=[_row(row) for row in found[first : first + size]],
        )

    @routes.get("/models.csv", response_class=Response, responses=CSV)
    def models_csv(
        experiment: Which = None,
        text: Text = "",
        status: Text = "",
        tag: Text = "",
        stage: Text = "",
        device: Text = "",
        node: Text = "",
        sort: Text = "",
        descending: Flag = False,
        columns: Annotated[str, Query(max_length=4000)] = "",
    ) -> Response:
        """All models of a filter as CSV, as `edgeloop status --csv` writes it: with these columns,
        separated by commas, or with all but long ones."""
        query = TableQuery(text, status, tag, stage, device, node, sort, descending)
        snapshot = portal.rows(experiment)
        name = experiment or portal.workspace.experiment
        rows = [row.values for row in matching(portal, snapshot, name, query)]
        chosen = [column_named(column) for column in columns.split(",") if column]
        shown = list(dict.fromkeys(("name", "status", *chosen, "error")))
        file = io.StringIO()
        write_csv(rows, shown if chosen else visible_columns(rows), file)
        return Response(
            file.getvalue(), 200, _as_download(f"{name}.csv"), "text/csv; charset=utf-8"
        )

    @routes.get("/models/{name}")
    def model(name: Name, experiment: Which = None) -> ModelDetail:
        """The current state of a model and its stages, its files and examples."""
        workspace = portal.workspace_of(experiment)
        record = workspace.catalog.get(name)
        return ModelDetail(
            model=_row(row_of(workspace, record)),
            stages=list(stages_view(portal, experiment, record)),
            files=list(views.files_view(portal, experiment, name)),
            examples=views.examples_view(portal, experiment, name),
        )


def _add_overviews(routes: APIRouter, portal: Portal) -> None:
    @routes.get("/pareto")
    def pareto(
        experiment: Which = None,
        x: Text = "latency_ms",
        y: Text = "",
        text: Text = "",
        status: Text = "",
        tag: Text = "",
        device: Text = "",
        range: Text = "",  # noqa: A002 - the name in the address
    ) -> ParetoView:
        """The front of two columns; `COLUMN:min` or `COLUMN:max` if the goal is not known. Without
        `y`, `f1_1k` or, where no model has it, `sqnr_db`. Without `device`, the one with most
        models, if the columns depend on it; `*` for one front across all. `range=all` draws axes
        that show outliers, too."""
        query = ParetoQuery(x, y, text, status, tag, device, range)
        return views.pareto_view(portal, experiment, query)

    @routes.get("/devices")
    def devices(experiment: Which = None) -> DevicesView:
        """What each machine does now, and how many models wait, by stage."""
        return views.devices_view(portal, experiment)

    @routes.get("/usage")
    def usage(days: Annotated[Whole, Query(ge=1, le=30)] = 14) -> Usage:
        """How long each device was in use, by UTC day."""
        return Usage(days=list(days_of(portal.usage.rows().values(), days)))

    @routes.get("/searches")
    def searches(experiment: Which = None) -> SearchesView:
        return views.searches_view(portal, experiment)

    @routes.get("/searches/{name}")
    def search(name: Name, experiment: Which = None) -> SearchView:
        return views.search_view(portal, experiment, name)


def _add_events(routes: APIRouter, portal: Portal) -> None:
    @routes.get("/events", response_class=StreamingResponse, responses=EVENT_STREAM)
    def events(
        experiment: Which = None,
        after: Annotated[str, Query(max_length=60)] = "",
        last_event_id: Annotated[str, Header(max_length=60)] = "",
    ) -> StreamingResponse:
        """Changes of the table as they happen, after the given event."""
        portal.feed(experiment)  # an unknown experiment is an error now, not in the stream
        return stream(streams.changes(portal, experiment, last_event_id or after))


def stream(events: Any) -> StreamingResponse:
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(events, 200, headers, "text/event-stream")


def _row(row: Row) -> ModelRow:
    now = time.time()
    return ModelRow(
        name=row.name,
        status=row.text("status"),
        error=row.text("error"),
        tags=list(row.tags),
        device=row.text("device"),
        work=list(work_of(row, now)),
        waiting=list(row.waiting(now)),
        values={name: json_safe(value) for name, value in row.values.items()},
    )


def add_files(routes: APIRouter, portal: Portal) -> None:
    @routes.get("/models/{name}/files")
    def files(name: Name, experiment: Which = None) -> list[FileView]:
        return list(views.files_view(portal, experiment, name))

    @routes.get(
        "/models/{name}/files/{file:path}",
        response_class=StreamingResponse,
        responses=DOWNLOAD,
    )
    def download(name: Name, file: Name, experiment: Which = None) -> StreamingResponse:
        """One file, unchanged. Only names in the list of files are looked up."""
        workspace = portal.workspace_of(experiment)
        found = {item.name: item for item in workspace.catalog.files(name)}
        if file not in found:
            raise NotFound(reason=f"{name} has no file {file!r}.")
        return sent(workspace.store.blobs, found[file].key, found[file].size, file)


def sent(blobs: Blobs, key: str, size: int, name: str) -> StreamingResponse:
    """A file as a download, under the last part of its name, so that no browser opens it here."""
    first = blobs.read_range(key, 0, CHUNK)
    headers = {**_as_download(name.rpartition("/")[2]), "content-length": str(size)}
    chunks = _chunks(blobs, key, size, first)
    return StreamingResponse(chunks, 200, headers, "application/octet-stream")


def _as_download(name: str) -> dict[str, str]:
    return {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "content-security-policy": "default-src 'none'; sandbox",
    }


def _chunks(blobs: Blobs, key: str, size: int, first: bytes) -> Iterator[bytes]:
    yield first
    at = len(first)
    while at < size:
        content = blobs.read_range(key, at, min(CHUNK, size - at))
        if not content:
            return
        at += len(content)
        yield content


def may_change(request: Request) -> None:
    if sentence := refuse_strangers(request):
        raise HTTPException(403, sentence)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "Send changes as JSON: Content-Type: application/json.")


def _changes(portal: Portal) -> APIRouter:
    routes = APIRouter(dependencies=[Depends(may_change)], tags=["changes"])

    @routes.post("/models/{name}/reset")
    def reset(name: Name, body: Reset, experiment: Which = None) -> ChangeResult:
        """Test a model again: clear results and stale files, so that runners redo them."""
        workspace = portal.workspace_of(experiment)
        for stage in body.stages:
            workspace.plan[stage]  # an unknown stage is an error before anything is cleared
        cleared = workspace.catalog.reset(name, body.stages)
        portal.feed(experiment).look_now()
        order = [stage.name for stage in workspace.plan.stages if stage.name in cleared]
        return ChangeResult(name=name, done="reset", stages=order)

    @routes.post("/models/{name}/priority")
    def priority(name: Name, body: Priority, experiment: Which = None) -> ChangeResult:
        """Set the priority of a model: 0 goes first."""
        portal.workspace_of(experiment).catalog.set_priority(name, body.priority)
        portal.feed(experiment).look_now()
        return ChangeResult(name=name, done="priority")

    @routes.post("/models/{name}/delete")
    def delete(name: Name, body: Delete, experiment: Which = None) -> ChangeResult:
        """Delete a model: its row and all its files."""
        workspace = portal.workspace_of(experiment)
        workspace.catalog.get(name)
        workspace.catalog.delete(name)
        portal.feed(experiment).look_now()
        return ChangeResult(name=name, done="delete")

    return routes
