"""However a test process ends, its servers, its detached processes and their folders end with it;
and no two test processes choose one port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgeloop.testing import wait_until
from tests import guard
from tests.peers.ports import free_port

pytestmark = pytest.mark.server

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 120.0
WAITING = """
import json, os, subprocess, time
from pathlib import Path
from tests import guard

def test_that_waits(postgres, azurite, adb_server):
    detached = subprocess.Popen(["sleep", "600"], start_new_session=True)
    servers = [server._process.pid for server in (postgres, azurite, adb_server)]
    seen = {"mark": os.environ[guard.MARK], "pid": os.getpid(), "started": [detached.pid, *servers]}
    Path("seen.part").write_text(json.dumps(seen))
    Path("seen.part").rename("seen.json")
    time.sleep(600)
"""


def is_there(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        pytest.param(signal.SIGINT, 0, id="interrupted"),
        pytest.param(signal.SIGTERM, 0, id="terminated", marks=pytest.mark.soak),
        pytest.param(signal.SIGKILL, 0, id="killed", marks=pytest.mark.soak),
        pytest.param(signal.SIGKILL, 1, id="killed with a worker"),
    ],
)
def test_nothing_is_left_of_a_test_process_that_is(
    number: signal.Signals, workers: int, tmp_path: Path
) -> None:
    (tmp_path / "test_waiting.py").write_text(WAITING)
    options = ["-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "-n", str(workers)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, "test_waiting.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        seen = _what_it_started(process, tmp_path)
        folders = guard.folders_of(seen["mark"])
        assert {folder.name.split("-")[1] for folder in folders} == {"postgres", "azurite", "adb"}
        assert set(seen["started"]) <= set(guard.processes_of(seen["mark"]))
    finally:
        process.send_signal(number)
        process.wait(LIMIT_S)
    started = [seen["pid"], *seen["started"]]
    wait_until(lambda: not any(map(is_there, started)), LIMIT_S, "the end of all processes")
    wait_until(lambda: not guard.folders_of(seen["mark"]), LIMIT_S, "the removal of all folders")
    assert guard.processes_of(seen["mark"]) == []


def _what_it_started(process: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    file = folder / "seen.json"

    def is_told() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        return file.exists()

    wait_until(is_told, LIMIT_S, "the servers to start")
    seen: dict[str, Any] = json.loads(file.read_text())
    return seen


TAKE = "import sys; from tests.peers import ports; print(ports._claim(int(sys.argv[1])))"


def test_a_port_that_one_process_has_chosen_is_taken_by_no_other() -> None:
    port = free_port()
    other = subprocess.run(
        [sys.executable, "-c", TAKE, str(port)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout == "False\n"
