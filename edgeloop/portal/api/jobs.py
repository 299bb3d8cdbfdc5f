"""Jobs for programs: states, logs, files; and with `--allow-changes`, abort and resubmit."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import StreamingResponse

from edgeloop.errors import BadInput, NotFound
from edgeloop.portal import views
from edgeloop.portal.api import streams
from edgeloop.portal.api.routes import (
    DOWNLOAD,
    ERRORS,
    EVENT_STREAM,
    ChangeResult,
    Name,
    Which,
    may_change,
    sent,
    stream,
)
from edgeloop.portal.api.strict import STRICT_QUERY, StrictBody, Whole
from edgeloop.portal.job_shapes import JobsView, JobView, LogPart
from edgeloop.portal.shapes import FileView
from edgeloop.portal.state import Portal

MOST_LOG = 1 << 20


class NoOptions(StrictBody):
    pass


def router(portal: Portal) -> APIRouter:
    routes = APIRouter(prefix="/api/v1/jobs", responses=ERRORS, dependencies=[STRICT_QUERY])
    _add_views(routes, portal)
    _add_files(routes, portal)
    routes.include_router(_changes(portal))
    return routes


def _add_views(routes: APIRouter, portal: Portal) -> None:
    @routes.get("")
    def jobs(experiment: Which = None) -> JobsView:
        return views.jobs_view(portal, experiment)

    @routes.get("/{name}")
    def job(name: Name, experiment: Which = None) -> JobView:
        return views.job_view(portal, experiment, name)

    @routes.get("/{name}/log")
    def log(
        name: Name,
        offset: Annotated[Whole, Query(ge=0, le=2**62)] = 0,
        limit: Annotated[Whole, Query(ge=16, le=MOST_LOG)] = MOST_LOG,
    ) -> LogPart:
        """Part of a log; the next starts at `end`. Complete if `is_final` and `end` is `size`."""
        return views.job_log(portal, name, offset, limit)

    @routes.get("/{name}/log/events", response_class=StreamingResponse, responses=EVENT_STREAM)
    def log_events(
        name: Name,
        offset: Annotated[Whole, Query(ge=0, le=2**62)] = 0,
        last_event_id: Annotated[str, Header(max_length=60)] = "",
    ) -> StreamingResponse:
        """A log as it grows: events `log`, then `end`. Their ids are offsets to continue from."""
        portal.jobs.get(name)
        is_offset = last_event_id.isascii() and last_event_id.isdecimal()
        start = int(last_event_id) if is_offset else offset
        return stream(streams.log(portal, name, start))


def _add_files(routes: APIRouter, portal: Portal) -> None:
    @routes.get("/{name}/files")
    def files(name: Name) -> list[FileView]:
        """The outputs that are in the store by now."""
        return list(views.job_files(portal, portal.jobs.get(name)))

    @routes.get("/{name}/files/{file:path}", response_class=StreamingResponse, responses=DOWNLOAD)
    def download(name: Name, file: Name) -> StreamingResponse:
        """One file, unchanged. Only names in the list of files are looked up."""
        found = portal.jobs.outputs(portal.jobs.get(name))
        if file not in found:
            raise NotFound(reason=f"{name} has no file {file!r}.")
        info = found[file]
        return sent(portal.jobs.jobs.blobs, info.key, info.size, file)


def _changes(portal: Portal) -> APIRouter:
    routes = APIRouter(dependencies=[Depends(may_change)], tags=["changes"])

    @routes.post("/{name}/abort")
    def abort(name: Name, body: NoOptions) -> ChangeResult:
        """Ask a job to end; it has its grace period to save its work."""
        run = portal.jobs.get(name)
        if run.status.is_final:
            raise BadInput(reason=f"{name} has already ended: it is {run.state}")
        portal.jobs.jobs.cancel([run])
        portal.jobs.look_now()
        return ChangeResult(name=name, done="abort")

    @routes.post("/{name}/resubmit")
    def resubmit(name: Name, body: NoOptions) -> ChangeResult:
        """Run a job again, with code and data of the portal's project as they are now; the answer
        has the name of the new attempt."""
        again = portal.jobs.jobs.resubmit(portal.jobs.get(name))
        portal.jobs.look_now()
        return ChangeResult(name=again.name, done="resubmit")

    return routes
