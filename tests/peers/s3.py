"""S3 as moto plays it, in threads of this process: its objects outlive a restart."""

from __future__ import annotations

import logging
import secrets
import urllib.request
from typing import Self

from moto.server import ThreadedMotoServer

from tests.peers.ports import free_port
from tests.peers.process import START_LIMIT_S, accepts_connections, wait_until


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
