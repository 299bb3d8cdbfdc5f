"""One registration adds a column or a stage everywhere: this file declares one of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from edgeloop.models import columns, plan
from edgeloop.models.columns import Column, register_columns
from edgeloop.models.plan import Stage, register_stages
from edgeloop.runner.loop import RunnerOptions, run
from edgeloop.runner.stages.base import Assignment, Equipment, Result
from edgeloop.settings import Settings
from edgeloop.view.portal.app import create_app
from edgeloop.workspace import Workspace
from tests.cli.running import Finished, run_main
from tests.nets import save_tiny
from tests.test_docs import script

pytestmark = pytest.mark.slow

Edgeloop = Callable[..., Finished]


def weigh(work: Assignment, equipment: Equipment) -> Result:
    """The work of the stage."""
    return Result({"energy_j": 0.0042, "energy_meter": "scales"}, {}, "4.2 mJ")


@pytest.fixture
def registered() -> Iterator[None]:
    """The registration itself, forgotten after the test."""
    energy = Column(
        "energy_j",
        "number",
        "joules per inference",
        stage="weigh",
        is_result=True,
        label="energy per inference",
        short="energy",
        unit="mJ",
        factor=1e3,
        shown="energy_mj",
        goal="min",
        weight=79,
    )
    meter = Column("energy_meter", "text", "what measured the energy", stage="weigh")
    register_columns([energy, meter])
    work = f"{__name__}:weigh"
    stage = Stage("weigh", "scales", lambda row: 10, work=work, in_benchmark_only=True)
    register_stages([stage])
    yield
    del columns.COLUMNS["energy_j"], columns.COLUMNS["energy_meter"]
    del columns._NAMES_SHOWN["energy_mj"], plan.STAGES["weigh"]


@pytest.fixture
def workspace(tmp_path: Path, registered: None) -> Iterator[Workspace]:
    with Workspace(Settings.load(tmp_path, {"HOME": str(tmp_path)})) as opened:
        opened.upload(save_tiny(tmp_path / "net.onnx"), "net", benchmark_only=True, check=False)
        yield opened


@pytest.fixture
def weighed(workspace: Workspace, tmp_path: Path) -> Workspace:
    """A runner has performed the stage, which comes first."""
    reports = []
    options = RunnerOptions(once=True, benchmark_only=True, workdir=tmp_path / "work")
    totals = run(workspace, options, reports.append)
    assert totals.done == 1, reports
    return workspace


@pytest.fixture
def edgeloop(
    weighed: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Edgeloop:
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: run_main(arguments, monkeypatch, capfd)


def test_a_stage_is_in_the_plan_and_in_the_queue(workspace: Workspace):
    assert workspace.plan["weigh"].fills == ("energy_j",)
    assert workspace.plan["weigh"].clears == ("energy_meter",)
    assert workspace.plan.capabilities(on_device=False) == ("quantize", "onnx", "scales")
    hints = [record.values.get("stage") for record in workspace.store.queue("default").query()]
    assert "weigh" in hints


def test_a_runner_performs_it(weighed: Workspace):
    (row,) = weighed.status()
    assert (row["energy_j"], row["energy_meter"]) == (0.0042, "scales")
    assert weighed.plan["weigh"].is_done(row)


def test_its_columns_are_in_the_status_table_under_their_names_and_in_their_units(
    edgeloop: Edgeloop,
):
    usual, chosen = edgeloop("status"), edgeloop("status", "--columns", "name,energy_mj")
    assert "energy_mj" in usual.out and "4.2" in usual.out
    assert chosen.out.split() == ["name", "energy_mj", "net", "4.2"]
    assert edgeloop("status", "--columns", "energy_m").sentence.endswith(
        "did you mean 'energy_mj'?"
    )
    assert edgeloop("status", "--sort", "energy_j:desc").code == 0


def test_programs_get_the_stored_columns(edgeloop: Edgeloop):
    (row,) = edgeloop("status", "--json").json
    assert (row["energy_j"], row["energy_meter"]) == (0.0042, "scales")
    assert edgeloop("status", "--columns", "energy_mj", "--json").json == [{"energy_j": 0.0042}]


def test_they_are_in_the_portal(weighed: Workspace):
    with TestClient(create_app(weighed), "http://127.0.0.1:8750") as portal:
        table = portal.get("/?columns=energy_mj").text
        model = portal.get("/models/net").text
    assert "energy" in table and "mJ" in table and "4.2" in table
    assert "joules per inference" in model and "weigh" in model


def test_they_are_in_the_report_and_on_its_axes(edgeloop: Edgeloop, tmp_path: Path):
    done = edgeloop("report", "-o", "report.html", "--x", "energy_mj", "--y", "size_mb")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert done.code == 0, done.err
    assert "energy_mj" in page and "energy per inference (mJ)" in page
    assert "joules per inference" in page


def test_a_reset_of_the_stage_empties_them(edgeloop: Edgeloop):
    assert edgeloop("reset", "net", "--stage", "weigh").code == 0
    (row,) = edgeloop("status", "--json").json
    assert not {"energy_j", "energy_meter"} & row.keys()
    assert "net" in edgeloop("status", "--stage", "weigh").out


def test_they_are_on_the_reference_page(registered: None):
    page = script("schema_docs").pages()["rows"]
    assert "| `energy_j` | joules per inference | `energy_mj` | `weigh` |" in page
