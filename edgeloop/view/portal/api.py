"""The same data as the pages, for programs: JSON under /api/v1, described by /api/openapi.json.

Changes follow the rules of the command line and need `--allow-changes`. Files are sent as they are,
a few megabytes at a time.
"""

from __future__ import annotations

import io
import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Depends, Header, HTTPException, Path, Query
from fastapi.exceptions import RequestValidationError
from fastapi.requests import Request
from fastapi.responses import Response, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from edgeloop._version import __version__
from edgeloop.errors import BadInput, NotFound
from edgeloop.models.catalog import write_csv
from edgeloop.models.columns import LARGEST_PRIORITY, column_named, visible_columns
from edgeloop.operate.fleet.demand import WaitingWork
from edgeloop.store import Blobs, json_safe
from edgeloop.view.portal import streams
from edgeloop.view.portal.auth import change_token, refuse_strangers
from edgeloop.view.portal.feed import Row
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
from edgeloop.view.portal.views.devices import days_of, devices_view, queue_view
from edgeloop.view.portal.views.examples import ExamplesView, example_image, examples_view
from edgeloop.view.portal.views.jobs import job_files, job_log, job_view, jobs_view
from edgeloop.view.portal.views.model import files_view, stages_view
from edgeloop.view.portal.views.pareto import pareto_view
from edgeloop.view.portal.views.searches import search_view, searches_view
from edgeloop.view.portal.views.table import matching, summary_of, work_of

# Waiting work for scalers: numbers that KEDA's metrics-api scaler reads by a path such as
# `linux.ready`.


Capabilities = Annotated[
    list[Annotated[str, Field(max_length=200)]] | None,
    Query(
        alias="capability",
        max_length=50,
        description="Device types that are reported even if no model and no runner has them yet.",
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
    """Work by capability: `linux`, `device`, and one entry per device type that models are pinned
    to, such as `htp:qcs8550`. All of them are there even if nothing waits."""

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
            raise HTTPException(503, "The store has not answered yet: nobody knows what waits.")
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
        kept = "private, max-age=31536000, immutable" if version == current else "no-store"
        return Response(content, 200, {"cache-control": kept}, "image/png")


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
        counts, _ = summary_of(portal, snapshot, frame.experiment)
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
        query = ParetoQuery(x, y, text, status, tag, device, range)
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
        return list(files_view(portal, experiment, name))

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
        return stream(streams.log(portal, name, start))


def _add_files(routes: APIRouter, portal: Portal) -> None:
    @routes.get("/{name}/files")
    def files(name: Name) -> list[FileView]:
        """The outputs that are in the store by now."""
        return list(job_files(portal, portal.jobs.get(name)))

    @routes.get("/{name}/files/{file:path}", response_class=StreamingResponse, responses=DOWNLOAD)
    def download(name: Name, file: Name) -> StreamingResponse:
        """One file, unchanged. Only names in the list of files are looked up."""
        found = portal.jobs.outputs(portal.jobs.get(name))
        if file not in found:
            raise NotFound(reason=f"{name} has no file {file!r}.")
        info = found[file]
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
