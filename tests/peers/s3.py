"""S3 as moto plays it, in threads of this process: its objects outlive a restart."""

from __future__ import annotations

import logging
import secrets
import threading
import urllib.request
from typing import Any, Self

from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

from tests.peers.ports import free_port
from tests.peers.process import START_LIMIT_S, accepts_connections, wait_until

_put_object, _putting = S3Response.put_object, threading.Lock()


def _put_object_alone(response: S3Response) -> Any:
    """S3 checks `If-None-Match: *` and stores in one step; moto looks first and stores later, so
    that of two requests at once both may create an object."""
    with _putting:
        return _put_object(response)


S3Response.put_object = _put_object_alone  # type: ignore[method-assign]


class S3:
    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: ThreadedMotoServer | None = None

    @property
    def environ(self) -> dict[str, str]:
        """What a user of a self-hosted S3 sets."""
        return {
            "AWS_ENDPOINT": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "the-secret-of-s3",
        }

    def make_bucket(self) -> str:
        name = f"test-{secrets.token_hex(6)}"
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        return name

    def start(self) -> Self:
        if self._server is None:
            logging.getLogger("werkzeug").setLevel(logging.ERROR)
            self._server = ThreadedMotoServer("127.0.0.1", port=self.port, verbose=False)
            self._server.start()
            wait_until(lambda: accepts_connections(self.port), START_LIMIT_S, "moto to start")
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
