"""Processes of this machine: what is ended with them."""

from __future__ import annotations

import os
from pathlib import Path

from edgeloop._util.processes import kill_group, start_detached
from edgeloop._util.system import is_running
from tests.jobs.waiting import eventually


def test_a_group_is_killed_with_those_whose_parents_have_ended(tmp_path: Path):
    log = tmp_path / "log"
    script = "sh -c 'sleep 600 & echo $!'; exec sleep 600"
    process = start_detached(["sh", "-c", script], os.environ, log, ends_with="leash")
    eventually(lambda: log.read_text().endswith("\n"))
    orphan = int(log.read_text())
    assert is_running(orphan)
    kill_group(process)
    assert process.returncode == -9 and process.stdin is not None and process.stdin.closed
    eventually(lambda: not is_running(orphan))
    kill_group(process)  # one that has ended
