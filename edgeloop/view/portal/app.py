"""The portal as one application: authentication, pages, API and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import AsyncIterator
from dataclasses import replace
from urllib.parse import parse_qs

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.requests import Request
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from edgeloop._util.redact import redact
from edgeloop._version import __version__
from edgeloop.errors import (
    BadInput,
    Conflict,
    EdgeloopError,
    LocalFileError,
    NotFound,
    StoreError,
    StoreUnavailable,
)
from edgeloop.view.portal import api, auth, pages
from edgeloop.view.portal.api import STRICT_QUERY
from edgeloop.view.portal.auth import Guard, local_path, set_cookie
from edgeloop.view.portal.state import Portal, PortalOptions
from edgeloop.view.portal.tokens import AUTO, own_token
from edgeloop.workspace import Workspace

LONGEST_FORM = 4_096
FORM_FIELDS = 10
WRONG_DELAY_S = 0.5
WRONG = "That is not the portal's token."
OUR_FAULT = "Something went wrong. This is a bug in Edgeloop; its log says more."
_STATUSES: tuple[tuple[type[EdgeloopError], int], ...] = (
    (NotFound, 404),
    (BadInput, 400),
    (Conflict, 409),
    (StoreUnavailable, 503),
    (StoreError, 502),
    (LocalFileError, 502),  # a record that cannot be read
)

_log = logging.getLogger(__name__)


def create_app(workspace: Workspace, options: PortalOptions | None = None) -> FastAPI:
    """`app.state.portal` is closed when the server ends; the workspace is not. Without options
    no token is asked for: the application is then for tests, or behind a login of yours."""
    if options is not None and options.token == AUTO:
        options = replace(options, token=own_token().text)
    portal = Portal(workspace, options)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        portal.feed()  # starts reading, so that the first page does not wait
        try:
            yield
        finally:
            await run_in_threadpool(portal.close)

    app = FastAPI(
        title="Edgeloop portal",
        version=__version__,
        openapi_url="/api/openapi.json",
        docs_url=None,  # would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.portal = portal
    app.include_router(api.router(portal))
    app.include_router(api.jobs_router(portal))
    app.include_router(api.queue_router(portal))
    _add_login(app, portal)

    @app.get("/metrics", include_in_schema=False, dependencies=[STRICT_QUERY])
    def numbers(experiment: str | None = None, capabilities: api.Capabilities = None) -> Response:
        text = api.metrics(portal, experiment, capabilities or ())
        return PlainTextResponse(text, media_type=api.METRICS_TYPE)

    app.include_router(pages.router(portal))
    _add_errors(app, portal)
    app.add_middleware(Guard, portal=portal)
    return app


def _add_login(app: FastAPI, portal: Portal) -> None:
    @app.get("/login", include_in_schema=False)
    def form(request: Request) -> Response:
        sentence = WRONG if "wrong" in request.query_params else ""
        return pages.login_page(portal, request, sentence)

    @app.post("/login", include_in_schema=False)
    async def login(request: Request) -> Response:
        """A wrong token costs half a second, the right one nothing."""
        if auth.kind_of(request) != auth.FORM:
            raise HTTPException(415, "Send the token as a form.")
        content = await request.body()
        if len(content) > LONGEST_FORM:
            raise HTTPException(413, "That form is too long.")
        try:
            fields = parse_qs(content.decode(), max_num_fields=FORM_FIELDS)
        except ValueError:
            raise HTTPException(400, "That is not a form of this portal.") from None
        if not portal.sessions.knows(fields.get("token", [""])[0].strip()):
            await asyncio.sleep(WRONG_DELAY_S)
            return await run_in_threadpool(pages.login_page, portal, request, WRONG)
        answer = RedirectResponse(local_path(fields.get("next", ["/"])[0]), 303)
        answer.headers["set-cookie"] = set_cookie(request, portal.sessions.begin())
        return answer


def _add_errors(app: FastAPI, portal: Portal) -> None:
    def answer(request: Request, status: int, sentence: str) -> Response:
        if request.url.path.startswith("/api/") or request.url.path == "/metrics":
            return JSONResponse({"detail": sentence}, status)
        return pages.error_page(portal, request, status, sentence)

    @app.exception_handler(EdgeloopError)
    def ours(request: Request, error: EdgeloopError) -> Response:
        status = next((code for kind, code in _STATUSES if isinstance(error, kind)), 500)
        return answer(request, status, redact(str(error)))

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> Response:
        response = answer(request, error.status_code, str(error.detail))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        """Without the input, which may not be valid JSON (infinity, for example)."""
        detail = [{key: item[key] for key in ("loc", "msg", "type")} for item in error.errors()]
        return JSONResponse({"detail": detail}, 422)

    @app.exception_handler(Exception)
    def unexpected(request: Request, error: Exception) -> Response:
        _log.error("%s", redact("".join(traceback.format_exception(error))))
        return answer(request, 500, OUR_FAULT)
