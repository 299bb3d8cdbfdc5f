"""The HTTPS server: a thread a connection, a log of what was asked, faults before answers."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import traceback
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.peers.azureml.faults import Faults, NetworkAway
from tests.peers.azureml.routing import Request, Response, Route, Router, ServiceError
from tests.peers.certificate import Certificate

IDLE_LIMIT_S = 60.0
Authenticate = Callable[[Request, Route], str]


@dataclass(frozen=True)
class Logged:
    method: str
    path: str
    query: dict[str, str]
    status: int
    body: Any
    who: str


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is no event."""


class Server:
    def __init__(self, certificate: Certificate | None, faults: Faults) -> None:
        self.log: list[Logged] = []
        self.crashes: list[str] = []
        self._faults = faults
        self._router = Router()
        self._authenticate: Authenticate = lambda _request, _route: ""
        self._http = _Server(("127.0.0.1", 0), self._handler())
        self.port = int(self._http.server_address[1])
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self.port}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.file, certificate.key)
            # The handshake happens in the connection's own thread, at its first read.
            self._http.socket = context.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )

    def serve(self, router: Router, authenticate: Authenticate) -> None:
        self._router, self._authenticate = router, authenticate
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, request: Request) -> Response:
        who, shown = "", request
        try:
            self._faults.before(request)
            route, parameters = self._router.find(request.method, request.path)
            shown = replace(request, parameters=parameters)
            who = self._authenticate(shown, route)
            self._faults.permission(shown, who)
            response = route.handler(replace(shown, who=who))
            self._faults.after(request)
        except ServiceError as error:
            response = error.response()
        except NetworkAway:
            raise
        except Exception:
            self.crashes.append(traceback.format_exc())
            response = Response(500, {"error": {"code": "Crash", "message": self.crashes[-1]}})
        self.log.append(
            Logged(
                *(request.method, request.path, dict(request.query), response.status),
                *(_readable(request.body), who),
            )
        )
        return response

    def _handler(server: Server) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = IDLE_LIMIT_S
            # Headers and body in one packet: a body behind its headers waits 40 ms for the client
            # to acknowledge those.
            wbufsize = -1
            disable_nagle_algorithm = True

            def _serve(self) -> None:
                parts = urllib.parse.urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
                request = Request(
                    *(self.command, urllib.parse.unquote(parts.path).rstrip("/"), query),
                    *(dict(self.headers), self.rfile.read(length)),
                )
                try:
                    self._send(server.answer(request))
                except NetworkAway:
                    self.close_connection = True
                    with contextlib.suppress(OSError):
                        self.connection.shutdown(socket.SHUT_RDWR)

            do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = do_HEAD = _serve  # noqa: N815

            def _send(self, response: Response) -> None:
                data = b"" if response.body is None else json.dumps(response.body).encode()
                self.send_response(response.status)
                self.send_header("Content-Type", "application/json; charset=utf-8")
                self.send_header("Content-Length", str(len(data)))
                for name, value in response.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """The log is ours."""

        return Handler


def _readable(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode(errors="replace")
