"""The proxy misbehaves as it is told to, and then no longer."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from edgeloop.testing import wait_until
from tests.peers.proxy import Proxy

LIMIT_S = 30.0
ANSWER = b"x" * 100


@dataclass
class Server:
    """Answers every request, and remembers it."""

    port: int
    requests: list[bytes] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while request := self.request.recv(1_000):
                found.requests.append(request)
                self.request.sendall(ANSWER)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        found = Server(listening.server_address[1])
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield found
        listening.shutdown()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=LIMIT_S) as client:
        client.sendall(b"hello")
        assert received(client, 100) == ANSWER
        yield client


def received(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (chunk := client.recv(size - len(found))):
        found += chunk
    return found


def until_its_end(client: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := client.recv(1_000):
            found += chunk
    return found


def test_requests_that_are_held_arrive_when_the_partition_heals(
    server: Server, proxy: Proxy, client: socket.socket
) -> None:
    proxy.hold("requests")
    client.sendall(b"late")
    wait_until(lambda: proxy.counts["held"], LIMIT_S, "the request to be held")
    assert server.requests == [b"hello"]

    proxy.heal()
    assert received(client, 100) == ANSWER
    assert server.requests == [b"hello", b"late"]


def test_answers_alone_are_held_while_requests_go_through(
    server: Server, proxy: Proxy, client: socket.socket
) -> None:
    proxy.hold("answers")
    client.sendall(b"done")
    wait_until(lambda: proxy.counts["held"], LIMIT_S, "the answer to be held")
    assert server.requests[-1] == b"done"

    proxy.heal()
    assert received(client, 100) == ANSWER


@pytest.mark.parametrize("size", [0, 40])
def test_an_answer_is_cut_in_its_middle_though_the_request_arrived(
    server: Server, proxy: Proxy, client: socket.socket, size: int
) -> None:
    proxy.lose_answers(after_bytes=size)
    client.sendall(b"done")
    assert len(until_its_end(client)) == size
    assert server.requests[-1] == b"done"


def test_a_reset_ends_connections_and_new_ones_are_served(
    proxy: Proxy, client: socket.socket
) -> None:
    proxy.reset()
    assert until_its_end(client) == b""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=LIMIT_S) as another:
        another.sendall(b"again")
        assert received(another, 100) == ANSWER


def test_other_clients_are_not_touched(proxy: Proxy, server: Server) -> None:
    proxy.hold()
    with (
        Proxy(server.port) as other,
        socket.create_connection(("127.0.0.1", other.port), timeout=LIMIT_S) as client,
    ):
        client.sendall(b"mine")
        assert received(client, 100) == ANSWER
