"""Clients that are silent, slow or many, on real sockets: nobody else waits for them."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from edgeloop.view.portal.auth import Guard
from edgeloop.view.portal.connections import ConnectionLimits, _group_of
from edgeloop.view.portal.state import Portal, PortalOptions
from edgeloop.view.portal.tokens import own_certificate, tls_context
from edgeloop.workspace import Workspace
from tests.peers.process import wait_until
from tests.portal.live import live
from tests.portal.serving import LIMIT_S, Served

pytestmark = pytest.mark.slow

SOON, NEVER = 0.3, 600.0
HALF = b"GET /hello HTTP/1.1\r\nHost: 127."
HALF_BODY = b"POST /hello HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nhalf"
HALF_CHUNKS = (
    b"GET /held HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"
)


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
HELD = b"GET /held HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture
def serve(workspace: Workspace) -> Iterator[Serve]:
    with ExitStack() as closing:

        def start(tls: ssl.SSLContext | None = None, **limits: Any) -> Served:
            usual = {"most": 40, "per_address": 20, "head_s": NEVER, "write_s": NEVER}
            served = Served(application(workspace), ConnectionLimits(**{**usual, **limits}), tls)
            closing.callback(served.close)
            return served

        yield start


def rest_of(connection: socket.socket) -> bytes:
    """All until the server closes it."""
    found = b""
    with suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            found += part
    return found


@contextmanager
def closing_all(connections: list[socket.socket]) -> Iterator[None]:
    try:
        yield
    finally:
        for connection in connections:
            connection.close()


# Silent and slow ones


@pytest.mark.parametrize("first", [b"", HALF, b"\r\n", b"GET"])
def test_a_head_that_does_not_come_ends_the_connection(serve: Serve, first: bytes):
    connection = serve(head_s=SOON).connect(first)
    said = rest_of(connection)
    assert said.startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 400 ")) if first else said == b""


def test_bytes_one_by_one_do_not_prolong_it(serve: Serve):
    """Neither at first nor after a response."""
    connection = serve(head_s=SOON).connect(b"GET /hello HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    dripped = b"GET /" + b"a" * 2_000
    ended = threading.Event()

    def drip() -> None:
        with suppress(OSError):
            for at in range(len(dripped)):
                connection.sendall(dripped[at : at + 1])
                if ended.wait(0.02):
                    return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    said = rest_of(connection)
    ended.set()
    thread.join()
    assert b"408" in said or b"hello" in said or said == b""


def test_a_body_that_does_not_come_ends_the_request(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("edgeloop.view.portal.auth.read_body.__defaults__", (SOON,))
    head = b"POST /hello HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\nhalf"
    said = rest_of(serve().connect(head))
    assert said.startswith(b"HTTP/1.1 408 ") and b"connection: close" in said.lower()


def test_who_does_not_read_is_cut_off(serve: Serve):
    served = serve(write_s=SOON)
    request = b"GET /endless HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with closing_all([served.connect(request, receive=4_096) for _ in range(5)]):
        assert httpx.get(f"{served.url}/hello").text == "hello"
        wait_until(lambda: served.open <= 1, LIMIT_S, "the slow readers to be cut off")


def test_who_reads_is_not(serve: Serve):
    served = serve(write_s=SOON)
    with httpx.stream("GET", f"{served.url}/endless", timeout=LIMIT_S) as got:
        size = 0
        for part in got.iter_bytes():
            size += len(part)
            if size > 50_000_000:
                break
    assert size > 50_000_000


# Many


@pytest.mark.parametrize(
    "first", [b"", HALF, HALF_BODY, HALF_CHUNKS], ids=["silent", "head", "body", "chunks"]
)
def test_half_open_ones_make_room(serve: Serve, first: bytes):
    """The ones that have been waiting the longest go; a request that is answered stays."""
    served = serve()
    stream = served.connect(HELD)
    assert stream.recv(12) == b"HTTP/1.1 200"
    clients: list[socket.socket] = [stream]
    with closing_all(clients):
        clients += [served.connect(first) for _ in range(100)]
        assert httpx.get(f"{served.url}/hello", timeout=LIMIT_S).text == "hello"
        assert served.open <= 20
        assert rest_of(clients[1]) == b""
        assert stream.recv(1 << 16).endswith(b"first\r\n")


def test_half_sent_bodies_of_several_addresses_make_room(serve: Serve):
    served = serve(most=30)
    clients: list[socket.socket] = []
    with closing_all(clients):
        for at in range(90):
            source = (f"127.0.0.{2 + at % 3}", 0)
            clients.append(socket.create_connection(served.place, LIMIT_S, source))
            clients[-1].sendall(HALF_BODY)
        assert httpx.get(f"{served.url}/hello", timeout=LIMIT_S).text == "hello"
        assert served.open <= 30
        assert rest_of(clients[0]) == b""


def test_a_body_is_awaited_since_its_head(serve: Serve):
    """A client that was silent for long and now sends a request is not the first one to go."""
    served = serve()
    clients = [served.connect() for _ in range(20)]
    with closing_all(clients):
        wait_until(lambda: served.open == 20, LIMIT_S, "all of them to be accepted")
        clients[0].sendall(b"POST /hello HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\n")
        clients[0].sendall(b"Content-Length: 5\r\n\r\n")
        assert clients[0].recv(1 << 16).startswith(b"HTTP/1.1 100 ")
        clients += [served.connect() for _ in range(10)]
        assert rest_of(clients[10]) == b""
        clients[0].sendall(b" Ada!")
        said = b""
        while not said.endswith(b"hello Ada!"):
            part = clients[0].recv(1 << 16)
            assert part, said
            said += part


def test_when_all_are_at_work_a_new_one_is_told_so(serve: Serve):
    """Others, at another address, are not concerned."""
    served = serve()
    clients = [served.connect(HELD) for _ in range(20)]
    with closing_all(clients):
        for connection in clients:
            assert connection.recv(12) == b"HTTP/1.1 200"
        clients.append(served.connect())
        assert rest_of(clients[-1]).startswith(b"HTTP/1.1 503 ")
        clients.append(socket.create_connection(served.place, LIMIT_S, ("127.0.0.2", 0)))
        clients[-1].sendall(b"GET /hello HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert clients[-1].recv(12) == b"HTTP/1.1 200"


def test_addresses_are_told_apart():
    assert _group_of(("10.0.0.1", 1)) == _group_of(("::ffff:10.0.0.1", 2, 0, 0)) == "10.0.0.1"
    one = _group_of(("2001:db8::1", 1, 0, 0))
    assert one == _group_of(("2001:db8:0:0:ffff::2", 1, 0, 0)) != _group_of(("2001:db8:1::1", 1))
    assert _group_of(("fe80::1%eth0", 1, 0, 2)) and _group_of("") == _group_of(None) == ""


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
        b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntok",
    ],
    ids=["heads", "bodies"],
)
def test_a_thousand_half_open_connections_do_not_shut_the_portal(farm: Path, first: bytes):
    with live(farm) as portal:
        url = httpx.URL(portal.address)
        held: list[socket.socket] = []
        with closing_all(held):
            for _ in range(1_100):
                held.append(socket.create_connection((url.host, url.port), LIMIT_S))
                held[-1].sendall(first)
            for path in ("api/v1/models", "", "api/v1/health"):
                assert httpx.get(url.join(path), timeout=LIMIT_S).status_code == 200
        code, err = portal.end()
        assert (code, err) == (130, "Stopped; the portal is closed.\n")


# TLS


def test_handshakes_count_and_end_too(serve: Serve, tmp_path: Path):
    certificate, key = own_certificate(("localhost", "127.0.0.1"), tmp_path)
    served = serve(tls_context(certificate, key), head_s=SOON)
    silent = served.connect()
    assert rest_of(silent) == b""
    plain = served.connect(b"GET /hello HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert b"200" not in rest_of(plain)
    many = serve(tls_context(certificate, key))
    trusted = ssl.create_default_context(cafile=certificate)
    held: list[socket.socket] = []
    with closing_all(held), httpx.Client(verify=trusted, timeout=LIMIT_S) as client:
        for _ in range(60):
            held.append(many.connect())
        assert client.get(f"{many.url}/hello").text == "hello"
        assert rest_of(held[0]) == b""
        got = client.post(f"{many.url}/hello", content=b"x" * 60_000)
        assert got.text == "hello" + "x" * 60_000
        assert client.post(f"{many.url}/hello", content=b"x" * 100_000).status_code == 413
