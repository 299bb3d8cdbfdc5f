"""Parts of the wrapper that need no process: what it reads, what it keeps, and what it hides."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edgeloop.node import command
from edgeloop.node.environment import JobLog, JobSecrets, LogCopier, NodeEnvironment, Scratch
from edgeloop.node.files import FolderBlobs
from edgeloop.node.layout import fetch_outputs
from edgeloop.node.outputs import CreatedFiles, latest_metrics, recover, stored_progress
from edgeloop.node.supervisor import LOOK_S, AccessRenewal, Supervisor, supervise
from edgeloop.node.ticket import (
    LOG_PIECE,
    ORDER_VARIABLE,
    EarlierOutputs,
    JobProgress,
    State,
    WrapperOrder,
    access_key,
    log_key,
    outputs_folder,
    state_key,
    to_json,
)
from edgeloop.store import Access


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "store")


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    scratch = Scratch.of(tmp_path / "cache", "job-1")
    scratch.create()
    scratch.outputs.mkdir(parents=True)
    return scratch


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ('{"epoch": 1}\n{"epoch": 2}\n', 2),
        ('{"epoch": 1}\n{"epoch": 2}\n{"epoch": 3', 2),
        ('{"epoch": 1}\n{"epoch": 2}', 1),
        ('{"epoch": 1}\nnonsense\n', 1),
    ],
)
def test_the_last_complete_line_has_the_latest_metrics(tmp_path: Path, text: str, epoch: int):
    (tmp_path / "metrics.jsonl").write_text(text)
    assert latest_metrics(tmp_path / "metrics.jsonl") == {"epoch": epoch}


def test_the_last_line_of_a_command_is_not_one_of_the_wrapper(scratch: Scratch):
    log = JobLog(scratch.log, JobSecrets(scratch))
    log.restore(b"ValueError: no such layer\n")
    log.write("the outputs could not be copied yet")
    assert log.last_line(0) == "ValueError: no such layer"


def test_a_log_of_several_pieces_is_stored_whole(scratch: Scratch, blobs: FolderBlobs):
    content = b"x" * LOG_PIECE + b"the end\n"
    scratch.log.write_bytes(content)
    copier = LogCopier(scratch.log, blobs, "job-1", JobSecrets(scratch))
    copier.copy()
    assert copier.bytes_sent == len(content)
    assert blobs.read(log_key("job-1", 1)) == b"the end\n"


def test_the_order_reaches_the_command_in_no_variable():
    config = {"runtime_env": {"env_vars": {ORDER_VARIABLE: "secret", "KEPT": "1"}}}
    environ = {
        ORDER_VARIABLE: "secret",
        "OTHER": json.dumps({"env_vars": {ORDER_VARIABLE: "secret"}}),
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(config),
        "HOME": "/home/lab",
    }
    variables = NodeEnvironment.current(environ).variables
    assert set(variables) == {"RAY_JOB_CONFIG_JSON_ENV_VAR", "HOME"}
    assert "secret" not in str(variables)


def test_local_files_take_precedence_over_stored_outputs(scratch: Scratch, blobs: FolderBlobs):
    for name in ("checkpoint", "report"):
        blobs.put(f"{outputs_folder('job-0')}{name}", b"stored")
    (scratch.outputs / "checkpoint").write_bytes(b"newer")
    created = CreatedFiles(scratch.work, scratch.before)
    fetch_outputs(EarlierOutputs("job-0"), scratch, created, blobs)
    assert (scratch.outputs / "checkpoint").read_bytes() == b"newer"
    assert (scratch.outputs / "report").read_bytes() == b"stored"


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize(
    ("state", "exit_code", "reason"),
    [("completed", 0, ""), ("canceled", 5, "canceled"), ("failed", 3, "exit code 3")],
)
def test_recovering_a_job_that_has_ended_keeps_its_state(
    scratch: Scratch, blobs: FolderBlobs, state: State, exit_code: int, reason: str, complete: bool
):
    (scratch.outputs / "late").write_bytes(b"not stored yet")
    ended = JobProgress(
        state, 1, "node", 1.0, exit_code=exit_code, reason=reason, outputs_complete=complete
    )
    blobs.put(state_key("job-1"), ended.to_json())
    assert recover(scratch.folder, blobs, "found dead")
    found = stored_progress(blobs, "job-1")
    assert found is not None
    assert (found.state, found.exit_code) == (state, exit_code)
    assert reason in found.reason
    assert found.outputs_complete and not scratch.folder.exists()
    stored = [info.key for info in blobs.list(outputs_folder("job-1"))]
    assert stored == ([] if complete else [f"{outputs_folder('job-1')}late"])


def test_a_second_supervisor_of_a_job_does_nothing(
    scratch: Scratch, blobs: FolderBlobs, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(command, "adopt_orphans", lambda: None)
    monkeypatch.setattr(Supervisor, "__init__", lambda *_: None)
    monkeypatch.setattr(Supervisor, "run", lambda _: 0)
    monkeypatch.setattr("edgeloop.node.command.Events", lambda _: None)
    order = WrapperOrder("job-1", "_wrapper/x.pyz", blobs.access(3600))
    here = NodeEnvironment(scratch.folder, None, "node", {})
    with scratch.locked() as alone:
        assert alone
        assert supervise(order, scratch, here, lifeline=-1) == 75
    assert "this job already runs here" in scratch.log.read_text()
    assert supervise(order, scratch, here, lifeline=-1) == 0


class RenewedBlobs(FolderBlobs):
    taken: Access | None = None

    def renew(self, access: Access) -> None:
        self.taken = access


def signed_until(moment: float) -> Access:
    ends = datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Access("AzureStore", {"sas_key": f"se={ends}"})


def test_only_access_that_ends_later_is_taken(tmp_path: Path):
    blobs = RenewedBlobs(tmp_path / "store")
    now = time.time()
    renewal = AccessRenewal(blobs, signed_until(now + 7200), "job-1", lambda: now)
    blobs.put(access_key("job-1"), to_json(signed_until(now + 3600)))
    renewal.look()
    assert blobs.taken is None
    blobs.put(access_key("job-1"), to_json(signed_until(now + 10_000)))
    now += LOOK_S
    renewal.look()
    assert blobs.taken == signed_until(now - LOOK_S + 10_000)
