"""Azure's services that limit requests: asked again when they say so, each time a little later."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from edgeloop.jobs.computes.azureml import services

pytestmark = pytest.mark.server


@pytest.fixture
def limited() -> Iterator[tuple[str, list[float]]]:
    """An address that answers 429 once, then a row; and when it was asked."""
    asked: list[float] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(time.monotonic())
            is_first = len(asked) == 1
            self.send_response(429 if is_first else 200)
            if is_first:
                self.send_header("Retry-After", "1")
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"value": []}')

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", asked
    server.shutdown()
    server.server_close()


def test_a_request_comes_back_at_a_moment_of_its_own(
    limited: tuple[str, list[float]], monkeypatch: pytest.MonkeyPatch
):
    from azure.core import PipelineClient
    from azure.core.pipeline.policies import RetryPolicy

    url, asked = limited
    told: list[float] = []
    monkeypatch.setattr(services, "spread", lambda pause_s: told.append(pause_s) or 0.2)
    limits = services.network_limits()
    policies = [RetryPolicy(**limits), services.patience_policy(limits["timeout"])]
    with PipelineClient("", policies=policies) as client:
        services._send(client, "GET", url)
    assert told[-1] == 1.0 and len(asked) == 2
    assert asked[1] - asked[0] >= 1.2
