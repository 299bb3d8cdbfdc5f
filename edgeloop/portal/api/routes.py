"""The same as the pages show, for programs: JSON under /api/v1, described by /api/openapi.json."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from fastapi.requests import Request
from fastapi.responses import StreamingResponse

from edgeloop._version import __version__
from edgeloop.portal.api import changes, streams
from edgeloop.portal.api.downloads import add_files
from edgeloop.portal.api.shapes import (
    Experiment,
    Health,
    ModelDetail,
    ModelPage,
    ModelRow,
    Problem,
    Session,
    Usage,
)
from edgeloop.portal.auth import change_token
from edgeloop.portal.rows import Row, read_row
from edgeloop.portal.state import Portal
from edgeloop.portal.views import index as views
from edgeloop.portal.views.devices import days_of
from edgeloop.portal.views.model import stages_view
from edgeloop.portal.views.shapes import PAGE_SIZES, LogPart, ParetoQuery, TableQuery
from edgeloop.portal.views.table import matching, work_of
from edgeloop.store import json_safe

MOST_LOG = 1 << 20
EVENT_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem} for code in (400, 401, 403, 404, 409, 415, 421, 500, 502, 503)
}

Which = Annotated[str | None, Query(alias="experiment", max_length=60)]
Text = Annotated[str, Query(max_length=200)]
Name = Annotated[str, Path(max_length=400)]


def router(portal: Portal) -> APIRouter:
    routes = APIRouter(prefix="/api/v1", responses=ERRORS)
    _add_about(routes, portal)
    _add_models(routes, portal)
    add_files(routes, portal)
    _add_overviews(routes, portal)
    _add_jobs(routes, portal)
    _add_events(routes, portal)
    routes.include_router(changes.router(portal))
    return routes


def _add_about(routes: APIRouter, portal: Portal) -> None:
    @routes.get("/health")
    def health() -> Health:
        """Whether the portal runs and the store answers. Needs no token and tells nothing else."""
        feed = portal.feed()
        state = feed.snapshot
        status = "stale" if state.problem else "ok" if state.is_loaded else "loading"
        return Health(status=status, version=__version__, read_at=feed.read_at)  # type: ignore[arg-type]

    @routes.get("/session")
    def session(request: Request) -> Session:
        """What a program without the portal's token needs for changes, beside its cookie."""
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
        descending: bool = False,
        page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
        size: Annotated[int, Query(ge=1, le=PAGE_SIZES[-1])] = PAGE_SIZES[0],
    ) -> ModelPage:
        """The table, filtered and sorted; rows without the column sorted by come last."""
        query = TableQuery(text, status, tag, stage, device, node, sort, descending)
        snapshot = portal.rows(experiment)
        frame = views.frame_of(portal, experiment)
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

    @routes.get("/models/{name}")
    def model(name: Name, experiment: Which = None) -> ModelDetail:
        """A model as it is now, how far each stage is, and its files."""
        workspace = portal.workspace_of(experiment)
        record = workspace.catalog.get(name)
        margin_s = workspace.settings.clock_margin_seconds
        return ModelDetail(
            model=_row(read_row(record, workspace.plan, margin_s)),
            stages=list(stages_view(portal, experiment, record)),
            files=list(views.files_view(portal, experiment, name)),
        )


def _add_overviews(routes: APIRouter, portal: Portal) -> None:
    @routes.get("/pareto")
    def pareto(
        experiment: Which = None,
        x: Text = "mean",
        y: Text = "f1_1k",
        text: Text = "",
        status: Text = "",
        tag: Text = "",
        device: Text = "",
    ) -> views.ParetoView:
        """The front of two columns; `COLUMN:min` or `COLUMN:max` where the goal is not known."""
        query = ParetoQuery(x, y, text, status, tag, device)
        return views.pareto_view(portal, experiment, query)

    @routes.get("/devices")
    def devices(experiment: Which = None) -> views.DevicesView:
        """What each machine does now, and how many models wait, by stage."""
        return views.devices_view(portal, experiment)

    @routes.get("/usage")
    def usage(days: Annotated[int, Query(ge=1, le=30)] = 14) -> Usage:
        """How long each device was in use, by UTC day."""
        return Usage(days=list(days_of(portal, days)))

    @routes.get("/searches")
    def searches(experiment: Which = None) -> views.SearchesView:
        return views.searches_view(portal, experiment)

    @routes.get("/searches/{name}")
    def search(name: Name, experiment: Which = None) -> views.SearchView:
        return views.search_view(portal, experiment, name)


def _add_jobs(routes: APIRouter, portal: Portal) -> None:
    @routes.get("/jobs")
    def jobs(experiment: Which = None) -> views.JobsView:
        return views.jobs_view(portal, experiment)

    @routes.get("/jobs/{name}")
    def job(name: Name, experiment: Which = None) -> views.JobView:
        return views.job_view(portal, experiment, name)

    @routes.get("/jobs/{name}/log")
    def log(
        name: Name,
        offset: Annotated[int, Query(ge=0, le=2**62)] = 0,
        limit: Annotated[int, Query(ge=16, le=MOST_LOG)] = MOST_LOG,
    ) -> LogPart:
        """Part of a log; the next one begins at `end`. Over when `is_final` and `end` is `size`."""
        return views.job_log(portal, name, offset, limit)

    @routes.get("/jobs/{name}/log/events", response_class=StreamingResponse, responses=EVENT_STREAM)
    def log_events(
        name: Name,
        offset: Annotated[int, Query(ge=0, le=2**62)] = 0,
        last_event_id: Annotated[str, Header(max_length=60)] = "",
    ) -> StreamingResponse:
        """A log as it grows: events `log`, then `end`. Their ids are where to go on from."""
        portal.jobs.get(name)
        start = int(last_event_id) if last_event_id.isdecimal() else offset
        return _stream(streams.log(portal, name, start))


def _add_events(routes: APIRouter, portal: Portal) -> None:
    @routes.get("/events", response_class=StreamingResponse, responses=EVENT_STREAM)
    def events(
        experiment: Which = None,
        after: Annotated[str, Query(max_length=60)] = "",
        last_event_id: Annotated[str, Header(max_length=60)] = "",
    ) -> StreamingResponse:
        """Changes of the table as they happen; goes on after the event that is named."""
        portal.feed(experiment)  # an experiment that is not there is said now, not in the stream
        return _stream(streams.changes(portal, experiment, last_event_id or after))


def _stream(events: Any) -> StreamingResponse:
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
