"""The command line starts without what it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edgeloop.jobs.records import JobRecord, RunRecords, now
from edgeloop.jobs.watch import Status
from edgeloop.runner.health import write_health
from edgeloop.workspace import Workspace
from tests.nets import save_tiny

HEAVY = {"azure", "torch", "onnxruntime", "pandas", "onnx", "ray", "optuna", "altair", "fastapi"}
HEAVY |= {"pydantic"}

PROBE = """
import json, sys
from edgeloop.cli import main
sys.argv = ["edgeloop", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert end.code in (0, None), end.code
print("\\n" + json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with Workspace.open() as workspace:
        workspace.upload(save_tiny(tmp_path / "net.onnx"), "calm-heron")
    records = RunRecords(tmp_path / "runs")
    records.save(replace(records.add("lr-3", ended_job), status=Status("completed", exit_code=0)))
    return tmp_path


def ended_job(name: str, job: str) -> JobRecord:
    return JobRecord(job, name, now(), "default", {"script": "train.py"}, "local", "local")


def modules_after(folder: Path, *arguments: str) -> tuple[set[str], str]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1])), done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["upload", "--help"],
        ["status"],
        ["status", "--json"],
        ["download", "--list"],
        ["experiment", "list"],
        ["job", "list"],
        ["job", "status", "all"],
    ],
    ids=" ".join,
)
def test_reading_commands_import_nothing_heavy(project: Path, arguments: list[str]):
    modules, output = modules_after(project, *arguments)
    assert not modules & HEAVY
    assert "edgeloop" in modules
    shown = ("calm-heron", "default", "lr-3")
    assert "--help" in arguments or any(word in output for word in shown)


def test_a_file_of_plain_settings_costs_little(project: Path):
    (project / "edgeloop.yaml").write_text("lease_seconds: 30\ncomputes: {gpu: {kind: ray}}")
    modules, output = modules_after(project, "status")
    assert not modules & HEAVY and "calm-heron" in output


def test_help_does_not_even_import_the_store(project: Path):
    modules, _ = modules_after(project, "--help")
    assert not modules & {"sqlalchemy", "obstore", "psycopg", "numpy", "yaml", "rich"}


def test_a_probe_of_a_runner_needs_next_to_nothing(project: Path):
    """Probes run every few seconds, on a CPU that the runner needs."""
    write_health(project / "health", stuck="", not_ready="")
    modules, output = modules_after(project, "health", "health", "--ready")
    assert output.startswith("ready")
    light = HEAVY | {"sqlalchemy", "obstore", "psycopg", "numpy", "yaml", "rich", "sqlite3"}
    assert not modules & light


def test_the_probe_sees_a_heavy_import(project: Path):
    modules, _ = modules_after(project, "upload", "net.onnx")
    assert "onnx" in modules
