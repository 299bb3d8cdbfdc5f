"""Limits of connections on real sockets, as uvicorn holds them. Clients that are slow on purpose
are for a proxy to handle: docs/how-to/portal.md."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from edgeloop.view.portal.auth import Guard
from edgeloop.view.portal.state import Portal, PortalOptions
from edgeloop.view.portal.tokens import own_certificate
from edgeloop.workspace import Workspace
from tests.peers.process import wait_until
from tests.portal.live import live
from tests.portal.serving import LIMIT_S, Served

pytestmark = pytest.mark.slow

SOON = 0.3
HELLO = b"GET /hello HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HELD = b"GET /held HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def application(workspace: Workspace) -> Starlette:
    """A few lines behind the guard of the portal."""
    routes = [Route("/hello", hello, methods=["GET", "POST"]), Route("/endless", endless)]
    routes.append(Route("/held", held))
    app = Starlette(routes=routes)
    app.add_middleware(Guard, portal=Portal(workspace, PortalOptions(token="")))
    return app


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello" + (await request.body()).decode())


async def endless(request: Request) -> Response:
    async def content() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 100_000
            await asyncio.sleep(0)

    return StreamingResponse(content())


async def held(request: Request) -> Response:
    """As an event stream is: at work, and silent."""

    async def content() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.sleep(LIMIT_S)

    return StreamingResponse(content())


Serve = Callable[..., Served]


@pytest.fixture
def serve(workspace: Workspace) -> Iterator[Serve]:
    with ExitStack() as closing:

        def start(certificate: Path | None = None, key: Path | None = None) -> Served:
            served = Served(application(workspace), certificate, key)
            closing.callback(served.close)
            return served

        yield start


def rest_of(connection: socket.socket) -> bytes:
    """All until the server closes it."""
    received = b""
    with suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            received += part
    return received


@contextmanager
def closing_all(connections: list[socket.socket]) -> Iterator[None]:
    try:
        yield
    finally:
        for connection in connections:
            connection.close()


def test_an_idle_connection_is_closed(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("edgeloop.view.portal.server.IDLE_S", SOON)
    assert rest_of(serve().connect(HELLO)).endswith(b"hello")


def test_a_body_that_does_not_come_ends_the_request(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("edgeloop.view.portal.auth.read_body.__defaults__", (SOON,))
    head = b"POST /hello HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\nhalf"
    answer = rest_of(serve().connect(head))
    assert answer.startswith(b"HTTP/1.1 408 ") and b"connection: close" in answer.lower()


def test_a_reader_gets_all_and_one_that_does_not_read_keeps_no_other_waiting(serve: Serve):
    served = serve()
    request = b"GET /endless HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with closing_all([served.connect(request, receive=4_096) for _ in range(5)]):
        assert httpx.get(f"{served.url}/hello").text == "hello"
        with httpx.stream("GET", f"{served.url}/endless", timeout=LIMIT_S) as got:
            size = 0
            for part in got.iter_bytes():
                size += len(part)
                if size > 50_000_000:
                    break
    assert size > 50_000_000


def test_too_many_connections_are_refused_until_some_leave(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("edgeloop.view.portal.server.usable_connections", lambda: 20)
    served = serve()
    clients = [served.connect(HELD) for _ in range(19)]
    with closing_all(clients):
        for connection in clients:
            assert connection.recv(12) == b"HTTP/1.1 200"
        clients.append(served.connect(HELLO))
        assert rest_of(clients[-1]).startswith(b"HTTP/1.1 503 ")
        clients.pop(0).close()
        wait_until(lambda: served.open < 19, LIMIT_S, "a connection to be closed")
        assert httpx.get(f"{served.url}/hello", timeout=LIMIT_S).text == "hello"


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
        b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntok",
    ],
    ids=["heads", "bodies"],
)
def test_half_open_connections_below_the_limit_keep_no_other_waiting(farm: Path, first: bytes):
    with live(farm) as portal:
        url = httpx.URL(portal.address)
        half_open: list[socket.socket] = []
        with closing_all(half_open):
            for _ in range(900):
                half_open.append(socket.create_connection((url.host, url.port), LIMIT_S))
                half_open[-1].sendall(first)
            for path in ("api/v1/models", "", "api/v1/health"):
                assert httpx.get(url.join(path), timeout=LIMIT_S).status_code == 200
        code, err = portal.end()
        assert (code, err) == (130, "Stopped; the portal is closed.\n")


def test_tls_answers_nothing_in_plain_text(serve: Serve, tmp_path: Path):
    certificate, key = own_certificate(("localhost", "127.0.0.1"), tmp_path)
    served = serve(certificate, key)
    assert b"200" not in rest_of(served.connect(HELLO))
    trusted = ssl.create_default_context(cafile=certificate)
    silent = [served.connect() for _ in range(60)]
    with closing_all(silent), httpx.Client(verify=trusted, timeout=LIMIT_S) as client:
        assert client.get(f"{served.url}/hello").text == "hello"
        got = client.post(f"{served.url}/hello", content=b"x" * 60_000)
        assert got.text == "hello" + "x" * 60_000
        assert client.post(f"{served.url}/hello", content=b"x" * 100_000).status_code == 413
