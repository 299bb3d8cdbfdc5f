"""A proxy in front of a storage account that answers 'come back later' when it is told to."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BODY = b"<?xml version='1.0'?><Error><Code>ServerBusy</Code><Message>Later.</Message></Error>"
HOP = ("connection", "transfer-encoding", "content-length", "keep-alive")


class Limiter:
    """Passes requests on to `port`, except while it limits them; then it counts them."""

    def __init__(self, port: int) -> None:
        self.limited: list[str] = []
        self.passed = 0
        self._seconds = 0.0
        self._until: float | None = 0.0
        self._answer: tuple[int, Mapping[str, str]] = (503, {})
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                chunked = "chunked" in (self.headers.get("Transfer-Encoding") or "")
                body = self._chunks() if chunked else self.rfile.read(length)
                status, headers, content = owner._reply(
                    self.command, self.path, dict(self.headers.items()), body
                )
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if self.command != "HEAD":
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def _chunks(self) -> bytes:
                found = b""
                while size := int(self.rfile.readline().strip() or b"0", 16):
                    found += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return found

            def log_message(self, *_: object) -> None:
                pass

        for method in ("GET", "PUT", "POST", "DELETE", "HEAD", "PATCH", "MERGE"):
            setattr(Handler, f"do_{method}", Handler.handle_one)
        self._target = port
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        # It looks whether it is to end every so often, and `close` waits for that.
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def limit(self, seconds: float, status: int, headers: Mapping[str, str]) -> None:
        """From the next request on, for so long."""
        with self._lock:
            self.limited.clear()
            self._answer = (status, headers)
            self._seconds, self._until = seconds, None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _reply(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        with self._lock:
            if self._until is None:
                self._until = time.monotonic() + self._seconds
            if time.monotonic() < self._until:
                self.limited.append(f"{method} {path}")
                status, extra = self._answer
                return status, {"Content-Type": "application/xml", **extra}, BODY
            self.passed += 1
        connection = http.client.HTTPConnection("127.0.0.1", self._target, timeout=60)
        kept = {name: value for name, value in headers.items() if name.lower() not in HOP}
        connection.request(method, path, body, {**kept, "Content-Length": str(len(body))})
        answer = connection.getresponse()
        content = answer.read()
        found = {name: value for name, value in answer.getheaders() if name.lower() not in HOP}
        if method == "HEAD" and answer.getheader("Content-Length"):
            found["Content-Length"] = str(answer.getheader("Content-Length"))
        connection.close()
        return answer.status, found, content
