"""What a cluster's answers mean, where a real cluster gives them only now and then."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edgeloop.jobs.computes import make_compute

pytestmark = pytest.mark.server
GONE = """Traceback (most recent call last):
  File "job_supervisor.py", line 402, in run
    job_process = psutil.Process(child_pid)
psutil.NoSuchProcess: process PID not found (pid=1107)
"""


@pytest.fixture
def answers() -> Iterator[tuple[str, list[dict[str, object]]]]:
    jobs: list[dict[str, object]] = []

    class Dashboard(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(jobs if self.path == "/api/jobs/" else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Dashboard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", jobs
        server.shutdown()


def test_a_job_that_ended_while_ray_stopped_it_is_canceled_not_failed(answers, tmp_path: Path):
    address, jobs = answers
    wrong = {"message": GONE, "error_type": "JOB_ENTRYPOINT_COMMAND_START_ERROR"}
    other = {"message": "Traceback\nOSError: no memory"}
    for name, said in (("stopped", wrong), ("broken", other)):
        jobs.append({"submission_id": name, "status": "FAILED", **said})
    compute = make_compute("ray", {"address": address}, tmp_path)
    seen = compute.states(["stopped", "broken"])
    assert (seen["stopped"].state, seen["broken"].state) == ("canceled", "failed")
