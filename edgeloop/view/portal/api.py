"""The same data as the pages, for programs: JSON under /api/v1, described by /api/openapi.json.

Changes follow the rules of the command line and need `--allow-changes`. Files are sent as they are,
a few megabytes at a time.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Depends, Header, HTTPException, Path, Query
from fastapi.exceptions import RequestValidationError
from fastapi.requests import Request
from fastapi.responses import Response, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from starlette.concurrency import run_in_threadpool

from edgeloop._util.redact import redact
from edgeloop._version import __version__
from edgeloop.errors import BadInput, EdgeloopError, NotFound
from edgeloop.models.catalog import write_csv
from edgeloop.models.columns import LARGEST_PRIORITY, column_named, visible_columns
from edgeloop.operate.fleet.demand import WaitingWork
from edgeloop.store import Blobs, json_safe
from edgeloop.view.portal import uploads
from edgeloop.view.portal.auth import BINARY, change_token, refuse_strangers
from edgeloop.view.portal.feed import Feed, Row
from edgeloop.view.portal.shapes import (
    PAGE_SIZES,
    DayUse,
    DevicesView,
    FileView,
    JobsView,
    JobView,
    LogPart,
    ParetoQuery,
    ParetoView,
    SearchesView,
    SearchView,
    StageView,
    TableQuery,
    Work,
)
from edgeloop.view.portal.state import Portal, frame_of, row_of
from edgeloop.view.portal.views.dataset import thumbnail
from edgeloop.view.portal.views.devices import busy_of, days_of, devices_view, queue_view
from edgeloop.view.portal.views.examples import ExamplesView, example_image, examples_view
from edgeloop.view.portal.views.jobs import job_files, job_log, job_view, jobs_view
from edgeloop.view.portal.views.model import files_view, stages_view
from edgeloop.view.portal.views.pareto import pareto_view
from edgeloop.view.portal.views.searches import search_view, searches_view
from edgeloop.view.portal.views.table import matching, summary_of, work_of

if TYPE_CHECKING:
    from edgeloop.operate.fleet.demand import WaitingWork
    from edgeloop.view.portal.feed import TableSnapshot
    from edgeloop.view.portal.shapes import QueueView
    from edgeloop.view.portal.state import Portal


# Waiting work for scalers: numbers that KEDA's metrics-api scaler reads by a path such as
# `linux.ready`.


Capabilities = Annotated[
    list[Annotated[str, Field(max_length=200)]] | None,
    Query(
        alias="capability",
        max_length=50,
        description="Device types, and conversions such as `convert snpe`, that are reported even "
        "if no model and no runner has them yet.",
    ),
]


class WorkNumbers(BaseModel):
    """The work for one capability."""

    ready: int = Field(description="Stages that a runner could claim now.")
    running: int = Field(description="Stages that a live lease holds.")
    blocked: int = Field(description="Stages that wait for an earlier one, a retry, another tool.")
    oldest_s: float = Field(description="For how long the oldest ready stage has waited.")
    wanted: int = Field(description="Runners that would have something to do.")
    have: int = Field(description="Machines, or devices, of live runners.")
    stages: dict[str, int] = Field(description="Ready stages by name.")


class RunnerNumbers(BaseModel):
    """The runners of the experiment by what they do; dead ones fell silent."""

    working: int
    idle: int
    dead: int


class QueueNumbers(BaseModel):
    """Work by capability: `linux`, `device`, one entry per toolchain that devices ask for, such as
    `convert snpe`, and one per device type that models are pinned to, such as `htp:qcs8550`. All of
    them are there even if nothing waits."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, WorkNumbers]

    experiment: str
    read_at: float | None = Field(description="When the store last answered.")
    runners: RunnerNumbers
    total: WorkNumbers
    linux: WorkNumbers
    device: WorkNumbers


def queue_router(portal: Portal) -> APIRouter:
    routes = APIRouter(responses=ERRORS, dependencies=[STRICT_QUERY])

    @routes.get("/api/queue")
    def queue(experiment: Which = None, capabilities: Capabilities = None) -> QueueNumbers:
        """Waiting work as numbers. Before the store has answered once it is an error: a false 0
        would stop runners."""
        view = queue_view(portal, experiment, capabilities or ())
        if not view.is_loaded:
            raise HTTPException(503, "The store has not answered yet: waiting work is unknown.")
        lines = {line.capability: _numbers(line) for line in view.lines}
        live = view.runners["working"] + view.runners["idle"]
        return QueueNumbers.model_validate(
            {
                "experiment": view.experiment,
                "read_at": view.read_at,
                "runners": RunnerNumbers(**view.runners),
                "total": _total(list(lines.values()), live, dict(view.stages)),
                **lines,
            }
        )

    return routes


def _numbers(line: WaitingWork) -> WorkNumbers:
    return WorkNumbers(
        ready=line.ready,
        running=line.running,
        blocked=line.blocked,
        oldest_s=round(line.oldest_s, 3),
        wanted=line.runners,
        have=line.have,
        stages=dict(line.stages),
    )


def _total(lines: list[WorkNumbers], live: int, stages: dict[str, int]) -> WorkNumbers:
    """Of all capabilities; it has the live runners, of which each may have several."""
    return WorkNumbers(
        ready=sum(line.ready for line in lines),
        running=sum(line.running for line in lines),
        blocked=sum(line.blocked for line in lines),
        oldest_s=max(line.oldest_s for line in lines),
        wanted=sum(line.wanted for line in lines),
        have=live,
        stages=stages,
    )


# Images of a model's examples, drawn by the portal from files that it has checked.


MOST_IMAGES = 16
PNG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}}}
Column = Literal["input", "label", "float", "quantized", "difference"]


def add_examples(routes: APIRouter, portal: Portal) -> None:
    @routes.get(
        "/models/{name}/examples/{number}/{column}.png", response_class=Response, responses=PNG
    )
    def example(
        name: Annotated[str, Path(max_length=400)],
        number: Annotated[Whole, Path(ge=1, le=MOST_IMAGES)],
        column: Column,
        experiment: Annotated[str | None, Query(max_length=60)] = None,
        version: Annotated[str, Query(max_length=40)] = "",
    ) -> Response:
        """A test image (`input`), its label, what a model makes of it, or where float and quantized
        differ. `GET models/NAME` has the addresses; those with a `version` never change."""
        content, current = example_image(portal, experiment, name, number, column)
        caching = "private, max-age=31536000, immutable" if version == current else "no-store"
        return Response(content, 200, {"cache-control": caching}, "image/png")


JPEG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}}}


def add_dataset(routes: APIRouter, portal: Portal) -> None:
    @routes.get("/dataset/images/{number}.jpg", response_class=Response, responses=JPEG)
    def image(
        number: Annotated[Whole, Path(ge=0, le=10**9)],
        experiment: Annotated[str | None, Query(max_length=60)] = None,
        name: Annotated[str, Query(max_length=300)] = "",
        version: Annotated[str, Query(max_length=40)] = "",
    ) -> Response:
        """One of the images that the page of a dataset shows, at most 160 pixels wide and high."""
        content, current = thumbnail(portal, experiment, name, number)
        caching = "private, max-age=3600" if version == current else "no-store"
        return Response(content, 200, {"cache-control": caching}, "image/jpeg")


# Queries and bodies as they are written, not as they could be meant: `true` is not 1.


class StrictBody(BaseModel):
    """Types are not converted, and keys that are not known are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _whole(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"0|-?[1-9][0-9]{0,18}", value):
        raise ValueError("write a whole number in digits")
    return value


def _flag(value: object) -> object:
    if isinstance(value, str) and value not in ("true", "false", "1", "0"):
        raise ValueError("write true or false")
    return value


Whole = Annotated[int, BeforeValidator(_whole)]
Flag = Annotated[bool, BeforeValidator(_flag)]


def known_query(request: Request) -> None:
    """Refuses parameters that the route does not have, and those that are there twice without being
    a list: the first and the last of them would be taken for the truth by different programs."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    fields = {field.alias: field for field in route.dependant.query_params}
    asked = Counter(name for name, _ in _pairs(request))
    wrong = [
        {"loc": ("query", name), "msg": sentence, "type": kind}
        for name, count in asked.items()
        for is_wrong, sentence, kind in (
            (name not in fields, f"There is no such parameter: {_known(fields)}.", "unknown"),
            (name in fields and count > 1 and not _is_list(fields[name]), "Give it once.", "twice"),
        )
        if is_wrong
    ]
    if wrong:
        raise RequestValidationError(wrong)


STRICT_QUERY = Depends(known_query)


def _pairs(request: Request) -> list[tuple[str, str]]:
    query = bytes(request.scope.get("query_string", b"")).decode("latin-1")
    return parse_qsl(query, keep_blank_values=True)


def _known(fields: object) -> str:
    names = ", ".join(sorted(map(str, fields)))  # type: ignore[call-overload]
    return f"this takes {names}" if names else "this takes none"


def _is_list(field: object) -> bool:
    return "list" in str(getattr(getattr(field, "field_info", None), "annotation", ""))


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


Tag = Annotated[str, StringConstraints(min_length=1, max_length=60, pattern=r"^[^\s,].*$")]


class Annotation(StrictBody):
    """Replaces what is there."""

    tags: list[Tag] = Field(max_length=20)
    comment: str = Field(max_length=2_000, description="What people note about the model.")


class Delete(StrictBody):
    pass


class UploadResult(BaseModel):
    """`is_new` is false where the experiment has the same content already, as the model `name`."""

    name: str
    is_new: bool
    size: int
    outlook: str = Field(description="What runners will evaluate, in a few words.")


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
    for code in (400, 401, 403, 404, 408, 409, 411, 413, 414, 415, 421, 431, 500, 502, 503, 507)
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
    add_dataset(routes, portal)
    _add_overviews(routes, portal)
    _add_events(routes, portal)
    _add_upload(routes, portal)
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
        query = TableQuery(
            text=text,
            status=status,
            tag=tag,
            stage=stage,
            device=device,
            node=node,
            sort=sort,
            descending=descending,
        )
        snapshot = portal.rows(experiment)
        frame = frame_of(portal, experiment)
        rows_matching = matching(portal, snapshot, frame.experiment, query)
        pages = max(1, -(-len(rows_matching) // size))
        first = (min(page, pages) - 1) * size
        counts, _ = summary_of(portal, snapshot, frame.experiment)
        return ModelPage(
            event=frame.event,
            total=len(snapshot.rows),
            matching=len(rows_matching),
            page=min(page, pages),
            pages=pages,
            counts=dict(counts),
            models=[_row(row) for row in rows_matching[first : first + size]],
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
        query = TableQuery(
            text=text,
            status=status,
            tag=tag,
            stage=stage,
            device=device,
            node=node,
            sort=sort,
            descending=descending,
        )
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
            files=list(files_view(portal, experiment, name)),
            examples=examples_view(portal, experiment, name),
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
        query = ParetoQuery(x=x, y=y, text=text, status=status, tag=tag, device=device, range=range)
        return pareto_view(portal, experiment, query)

    @routes.get("/devices")
    def devices(experiment: Which = None) -> DevicesView:
        """What each machine does now, and how many models wait, by stage."""
        return devices_view(portal, experiment)

    @routes.get("/usage")
    def usage(days: Annotated[Whole, Query(ge=1, le=30)] = 14) -> Usage:
        """How long each device was in use, by UTC day."""
        return Usage(days=list(days_of(portal.usage.rows().values(), days)))

    @routes.get("/searches")
    def searches(experiment: Which = None) -> SearchesView:
        return searches_view(portal, experiment)

    @routes.get("/searches/{name}")
    def search(name: Name, experiment: Which = None) -> SearchView:
        return search_view(portal, experiment, name)


def _add_events(routes: APIRouter, portal: Portal) -> None:
    @routes.get("/events", response_class=StreamingResponse, responses=EVENT_STREAM)
    def events(
        experiment: Which = None,
        after: Annotated[str, Query(max_length=60)] = "",
        last_event_id: Annotated[str, Header(max_length=60)] = "",
    ) -> StreamingResponse:
        """Changes of the table as they happen, after the given event."""
        portal.feed(experiment)  # an unknown experiment is an error now, not in the stream
        return stream(change_stream(portal, experiment, last_event_id or after))


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
        return list(files_view(portal, experiment, name))

    @routes.get(
        "/models/{name}/files/{file:path}",
        response_class=StreamingResponse,
        responses=DOWNLOAD,
    )
    def download(name: Name, file: Name, experiment: Which = None) -> StreamingResponse:
        """One file, unchanged. Only names in the list of files are looked up."""
        workspace = portal.workspace_of(experiment)
        files_by_name = {item.name: item for item in workspace.catalog.files(name)}
        if file not in files_by_name:
            raise NotFound(reason=f"{name} has no file {file!r}.")
        return sent(workspace.store.blobs, files_by_name[file].key, files_by_name[file].size, file)


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
        order = workspace.plan.in_order(cleared)
        return ChangeResult(name=name, done="reset", stages=order)

    @routes.post("/models/{name}/priority")
    def priority(name: Name, body: Priority, experiment: Which = None) -> ChangeResult:
        """Set the priority of a model: 0 goes first."""
        portal.workspace_of(experiment).catalog.set_priority(name, body.priority)
        portal.feed(experiment).look_now()
        return ChangeResult(name=name, done="priority")

    @routes.post("/models/{name}/annotation")
    def annotation(name: Name, body: Annotation, experiment: Which = None) -> ChangeResult:
        """Set the tags of a model, and what people note about it."""
        catalog = portal.workspace_of(experiment).catalog
        catalog.annotate(name, body.tags, body.comment.strip())
        portal.feed(experiment).look_now()
        return ChangeResult(name=name, done="annotation")

    @routes.post("/models/{name}/delete")
    def delete(name: Name, body: Delete, experiment: Which = None) -> ChangeResult:
        """Delete a model. 'edgeloop restore' can bring it back for seven days."""
        workspace = portal.workspace_of(experiment)
        workspace.catalog.get(name)
        workspace.catalog.discard(name)
        portal.feed(experiment).look_now()
        return ChangeResult(name=name, done="delete")

    return routes


BINARY_BODY = {
    "requestBody": {
        "required": True,
        "content": {BINARY: {"schema": {"type": "string", "format": "binary"}}},
    }
}


def _stranger(request: Request) -> None:
    if sentence := refuse_strangers(request):
        raise HTTPException(403, sentence)


def _add_upload(routes: APIRouter, portal: Portal) -> None:
    @routes.post(
        "/uploads", tags=["changes"], dependencies=[Depends(_stranger)], openapi_extra=BINARY_BODY
    )
    async def upload(
        request: Request,
        file: Annotated[str, Query(max_length=240, description="The name of the file.")],
        name: Annotated[str | None, Query(max_length=400)] = None,
        experiment: Which = None,
    ) -> UploadResult:
        """Upload an ONNX file of up to 512 MB as a model: the body is the file. It is checked as
        `edgeloop upload` checks it, and gets a friendly name without `name`."""
        uploaded = await uploads.upload(portal, experiment, request, file, name)
        return UploadResult(
            name=uploaded.model.name,
            is_new=uploaded.is_new,
            size=uploaded.size,
            outlook=uploaded.outlook,
        )


# Jobs for programs: states, logs, files; and with `--allow-changes`, abort and resubmit.


MOST_LOG = 1 << 20


class NoOptions(StrictBody):
    pass


def jobs_router(portal: Portal) -> APIRouter:
    routes = APIRouter(prefix="/api/v1/jobs", responses=ERRORS, dependencies=[STRICT_QUERY])
    _add_views(routes, portal)
    _add_files(routes, portal)
    routes.include_router(_jobs_changes(portal))
    return routes


def _add_views(routes: APIRouter, portal: Portal) -> None:
    @routes.get("")
    def jobs(experiment: Which = None) -> JobsView:
        return jobs_view(portal, experiment)

    @routes.get("/{name}")
    def job(name: Name, experiment: Which = None) -> JobView:
        return job_view(portal, experiment, name)

    @routes.get("/{name}/log")
    def log(
        name: Name,
        offset: Annotated[Whole, Query(ge=0, le=2**62)] = 0,
        limit: Annotated[Whole, Query(ge=16, le=MOST_LOG)] = MOST_LOG,
    ) -> LogPart:
        """Part of a log; the next starts at `end`. Complete if `is_final` and `end` is `size`."""
        return job_log(portal, name, offset, limit)

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
        return stream(log_stream(portal, name, start))


def _add_files(routes: APIRouter, portal: Portal) -> None:
    @routes.get("/{name}/files")
    def files(name: Name) -> list[FileView]:
        """The outputs that are in the store by now."""
        return list(job_files(portal, portal.jobs.get(name)))

    @routes.get("/{name}/files/{file:path}", response_class=StreamingResponse, responses=DOWNLOAD)
    def download(name: Name, file: Name) -> StreamingResponse:
        """One file, unchanged. Only names in the list of files are looked up."""
        outputs = portal.jobs.outputs(portal.jobs.get(name))
        if file not in outputs:
            raise NotFound(reason=f"{name} has no file {file!r}.")
        info = outputs[file]
        return sent(portal.jobs.jobs.blobs, info.key, info.size, file)


def _jobs_changes(portal: Portal) -> APIRouter:
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


# Server-sent events: changes of the table and output of jobs, as they happen.


HEARTBEAT_S = 15.0
LOOK_S = 0.5  # how often to check a log, and whether the portal is closing
AGAIN_MS = 2_000
LOG_BYTES = 256 << 10


async def change_stream(portal: Portal, experiment: str | None, after: str) -> AsyncIterator[str]:
    """The first event summarises what happened since `after`."""
    feed = await run_in_threadpool(portal.feed, experiment)
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def hear() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(woken.set)

    end = feed.listen(hear)
    try:
        yield f"retry: {AGAIN_MS}\n\n"
        which, _, number = after.rpartition("-")
        is_ours = which == feed.id and number.isdecimal() and len(number) < 16
        sent = int(number) if is_ours else None
        silent = 0.0
        while not portal.closing.is_set() and not feed.is_stopped:
            now = feed.snapshot.generation
            if sent != now:
                yield _event(feed, -1 if sent is None else sent)
                sent, silent = now, 0.0
            woken.clear()
            if feed.snapshot.generation != sent:
                continue
            try:
                await asyncio.wait_for(woken.wait(), LOOK_S)
            except TimeoutError:
                silent += LOOK_S
            if silent >= HEARTBEAT_S:
                silent = 0.0
                yield ": still here\n\n"
    finally:
        end()


async def log_stream(portal: Portal, name: str, offset: int) -> AsyncIterator[str]:
    """Parts of a log until the job is over. A store that is away only delays them."""
    yield f"retry: {AGAIN_MS}\n\n"
    silent = 0.0
    while not portal.closing.is_set():
        try:
            part = await run_in_threadpool(job_log, portal, name, offset, LOG_BYTES)
        except EdgeloopError as error:
            yield _message("trouble", str(offset), {"reason": redact(str(error))})
            await asyncio.sleep(AGAIN_MS / 1000)
            continue
        if part.end > part.start:
            offset, silent = part.end, 0.0
            content = {"start": part.start, "end": part.end, "size": part.size, "text": part.text}
            yield _message("log", str(offset), content)
            continue
        if part.is_final:
            yield _message("end", str(offset), {"size": part.size})
            return
        await asyncio.sleep(LOOK_S)
        silent += LOOK_S
        if silent >= HEARTBEAT_S:
            silent = 0.0
            yield ": still here\n\n"


def _event(feed: Feed, generation: int) -> str:
    change = feed.since(generation)
    identity = f"{feed.id}-{change.generation}"
    content = {
        "event": identity,
        "changed": sorted(change.changed),
        "gone": sorted(change.gone),
        "all": change.is_all,
        "banner": feed.snapshot.problem,
        "read_at": feed.read_at,
    }
    return _message("change", identity, content)


def _message(kind: str, identity: str, content: object) -> str:
    """JSON escapes line breaks, so it is one line."""
    return f"event: {kind}\nid: {identity}\ndata: {json.dumps(content)}\n\n"


# Metrics for Prometheus, from memory: frequent scrapes cost the store nothing.
#
# `edgeloop_waiting_total{experiment, capability}` is what an autoscaler needs: how many stages wait
# for a runner, by what it must have.


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
Sample = tuple[Labels, float]
Family = tuple[str, str, list[Sample]]


def metrics(
    portal: Portal, experiment: str | None = None, capabilities: Collection[str] = ()
) -> str:
    """Of one experiment. Stages and capabilities without work are reported as 0, which an
    autoscaler must see, too; `capabilities` are further ones to report. Before the
    store has answered once, nothing is reported: a false 0 would stop runners."""
    began = time.perf_counter()
    feed = portal.feed(experiment)
    snapshot = portal.rows(experiment)
    of = {"experiment": experiment or portal.workspace.experiment}
    stages = [stage.name for stage in portal.workspace.plan.stages]
    queue = queue_view(portal, experiment, capabilities)
    is_known = snapshot.is_loaded and queue.is_loaded
    is_up = is_known and not snapshot.problem
    age = time.time() - feed.read_at if feed.read_at is not None else float("nan")
    families: list[Family] = [
        *((*_of_rows(snapshot, queue, of, stages), *_of_queue(queue, of)) if is_known else ()),
        ("edgeloop_store_up", "1 while the store answers.", [(of, float(is_up))]),
        ("edgeloop_feed_age_seconds", "Since the store last answered.", [(of, age)]),
        ("edgeloop_build_info", "The version.", [({"version": __version__}, 1.0)]),
    ]
    took: list[Sample] = [({}, time.perf_counter() - began)]
    families.append(("edgeloop_scrape_seconds", "How long these numbers took.", took))
    return "".join(line for family in families for line in _lines(*family))


def _of_queue(queue: QueueView, of: Labels) -> list[Family]:
    def each(value: Callable[[WaitingWork], float]) -> list[Sample]:
        return [({**of, "capability": line.capability}, value(line)) for line in queue.lines]

    return [
        (
            "edgeloop_waiting_total",
            "Stages that a runner could claim now, by capability.",
            each(lambda line: line.ready),
        ),
        (
            "edgeloop_work_running",
            "Stages that a live lease holds, by capability.",
            each(lambda line: line.running),
        ),
        (
            "edgeloop_work_blocked",
            "Stages that wait for an earlier one, a retry or another tool, by capability.",
            each(lambda line: line.blocked),
        ),
        (
            "edgeloop_oldest_seconds",
            "For how long the oldest ready stage has waited, by capability.",
            each(lambda line: line.oldest_s),
        ),
        (
            "edgeloop_runners_wanted",
            "Runners that would have something to do, by capability.",
            each(lambda line: line.runners),
        ),
        (
            "edgeloop_runners_able",
            "Machines, or devices, of live runners, by capability.",
            each(lambda line: line.have),
        ),
        (
            "edgeloop_runners",
            "Runners by what they do; dead ones fell silent without having ended.",
            _counted(of, "state", queue.runners),
        ),
    ]


def _of_rows(
    snapshot: TableSnapshot, queue: QueueView, of: Labels, stages: list[str]
) -> list[Family]:
    busy = busy_of(snapshot)
    alive = [item for item in busy if not item.is_stalled]
    return [
        (
            "edgeloop_waiting",
            "Models that a runner could claim now, by stage.",
            _counted(of, "stage", queue.stages, stages),
        ),
        (
            "edgeloop_running",
            "Models that a machine works on, by stage.",
            _counted(of, "stage", Counter(item.stage for item in alive), stages),
        ),
        (
            "edgeloop_stalled",
            "Claims whose lease expired without a heartbeat, by stage.",
            _counted(of, "stage", Counter(b.stage for b in busy if b.is_stalled), stages),
        ),
        (
            "edgeloop_models",
            "Models by the first word of their status.",
            _counted(of, "status", Counter(row.word for row in snapshot.rows.values())),
        ),
        (
            "edgeloop_busy_nodes",
            "Machines that hold a claim.",
            [(of, float(len({item.node for item in alive})))],
        ),
        (
            "edgeloop_busy_devices",
            "Devices that a held stage is pinned to.",
            [(of, float(len({item.device for item in alive if item.device})))],
        ),
    ]


def _counted(
    of: Labels, label: str, counts: Mapping[str, int], always: list[str] | None = None
) -> list[Sample]:
    names = list(dict.fromkeys([*(always or ()), *sorted(counts)]))
    return [({**of, label: name}, float(counts.get(name, 0))) for name in names]


def _lines(name: str, meaning: str, samples: list[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {meaning}\n# TYPE {name} gauge\n"
    for labels, value in samples:
        escaped = {
            key: text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
            for key, text in labels.items()
        }
        inside = ",".join(f'{key}="{text}"' for key, text in escaped.items())
        shown = "NaN" if math.isnan(value) else f"{value:.10g}"
        yield f"{name}{{{inside}}} {shown}\n" if inside else f"{name} {shown}\n"
