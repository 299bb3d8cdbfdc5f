"""A web service that a test writes the answers of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

Reply = tuple[int, dict[str, str], bytes]


class Service:
    """Answers as it is told, and remembers what it was asked, with the names of headers in lower
    case. It gives `replies` one after the other, and the last one for ever."""

    def __init__(self, *replies: Reply | None) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.reply: Callable[[str, str], Reply | None]
        self.gives(*replies or ((404, {}, b""),))
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                heads = {name.lower(): value for name, value in self.headers.items()}
                service.asked.append((self.command, self.path, heads, body))
                reply = service.reply(self.command, self.path)
                if reply is None:  # as a machine that goes away
                    self.close_connection = True
                    return
                status, headers, content = reply
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def gives(self, *replies: Reply | None) -> None:
        left = list(replies)
        self.reply = lambda *_: left.pop(0) if len(left) > 1 else left[0]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
