"""The store that comes with the package."""

from __future__ import annotations

import socket
import time
import zipfile
from pathlib import Path

import pytest

from edgeloop import Workspace
from edgeloop.jobs.client import Jobs
from edgeloop.models.columns import is_estimate, sigma_ms
from edgeloop.models.plan import records_of
from edgeloop.search.results import read_search
from edgeloop.view.charts import evidence_of
from edgeloop.view.demo import (
    CHIP_EXPERIMENT,
    DEMO_FILE,
    FARM_FILE,
    HOST_EXPERIMENT,
    open_demo,
    open_demo_farm,
    open_or_demo,
    pack,
    unpacked,
)
from edgeloop.view.front import pareto_of
from edgeloop.view.measures import objective, quality_column

TWO = (objective("mean"), objective("f1_1k"))


def test_the_demo_is_small_and_has_all_that_charts_need():
    assert DEMO_FILE.stat().st_size < 600_000
    with open_demo() as workspace:
        rows = workspace.status()
        found = pareto_of(rows, TWO)
        assert len(found.rows) >= 10 and len(found.front) >= 3
        assert len({row["iteration"] for row in found.rows}) >= 3
        assert sum("final_val_iou" in row for row in rows) >= 3
        assert all(is_estimate(row) for row in found.rows)
        for row in found.front:
            evidence = evidence_of(workspace, str(row["name"]))
            assert evidence.curves and evidence.scores["f1_low"]["overall"] > 0
        assert list(workspace.store.usage().query())


def test_the_second_experiment_was_measured_with_its_spread():
    with open_demo(HOST_EXPERIMENT) as workspace:
        found = pareto_of(workspace.status(), TWO)
        assert len(found.rows) >= 3
        assert not any(is_estimate(row) for row in found.rows)
        assert all(sigma_ms(row) > 0 for row in found.rows)
        for row in found.rows:
            layers = evidence_of(workspace, str(row["name"])).layers
            assert layers and layers.times_us


@pytest.mark.parametrize("experiment", [CHIP_EXPERIMENT, HOST_EXPERIMENT])
def test_every_file_that_a_row_names_is_there(experiment: str):
    with open_demo(experiment) as workspace:
        named = [
            f"{experiment}/{row['name']}/{key}"
            for row in workspace.status()
            for record in records_of(row).values()
            for key in record.files.values()
        ]
        there = {info.key for info in workspace.store.blobs.list(f"{experiment}/")}
    assert named and set(named) == there


def test_packing_what_was_unpacked_gives_the_same_file():
    store = unpacked(DEMO_FILE.read_bytes())
    again = pack(store, (CHIP_EXPERIMENT, HOST_EXPERIMENT), lambda _: True)
    assert again == DEMO_FILE.read_bytes()


def test_a_row_names_no_file_that_was_left_out():
    store = unpacked(DEMO_FILE.read_bytes())
    bare = unpacked(pack(store, (CHIP_EXPERIMENT,), lambda key: "perf_results" in key))
    rows = [row.values for row in bare.models(CHIP_EXPERIMENT).query()]
    named = {name for row in rows for record in records_of(row).values() for name in record.files}
    assert named and all(name.startswith("perf_results") for name in named)
    assert bare.experiments() == [CHIP_EXPERIMENT]


def test_the_demo_names_no_machine_and_no_folder():
    rows = [row for name in (CHIP_EXPERIMENT, HOST_EXPERIMENT) for row in open_demo(name).status()]
    assert not {row["node"] for row in rows if "node" in row} - {"", "laptop", "edgeloop search"}
    rows += [row.values for row in open_demo().store.usage().query()]
    assert not [value for row in rows for value in row.values() if "/tmp" in str(value)]


def test_the_portal_has_the_demo_in_the_middle_of_its_work():
    """Recorded while it ran; the moment of the recording is now, and stays so."""
    with open_demo_farm() as workspace:
        project, now = workspace.settings.project, time.time()
        states = [runner.state for runner in workspace.runners()]
        assert states.count("working") >= 2 and {"idle", "dead"} <= {*states}
        rows = workspace.status()
        words = {str(row.get("status")).partition(" ")[0] for row in rows}
        assert {"complete", "running"} <= words and words & {"new", "waiting", "queued"}
        held = [r for row in rows for r in records_of(row).values() if r.is_held]
        assert any(record.expires > now + 86_400 for record in held), "they work for ever"
        assert all(now - 86_400 < record.since <= now + 1 for record in held)
        [search] = (project / "searches").iterdir()
        seen = read_search(search)
        assert len(seen.candidates) >= 10 and seen.learning and seen.reference
        jobs = Jobs(workspace.settings, workspace.store.blobs)
        runs = jobs.runs.list().runs
        assert sorted(str(run.status.state) for run in runs) == ["completed"] * 3 + ["failed"]
        for run in runs:
            assert jobs.log_size(run) and abs(now - run.record.created.timestamp()) < 86_400
        used = [row.values for row in workspace.store.usage().query()]
        assert used and all(now - 86_400 < float(key) for key in _keys(workspace))
    assert not project.exists()


def _keys(workspace: Workspace) -> list[str]:
    return [row.key.partition("-")[0].partition("|")[0] for row in workspace.store.usage().query()]


def test_the_recording_names_no_machine_and_no_folder():
    with zipfile.ZipFile(FARM_FILE) as packed:
        texts = b"".join(map(packed.read, packed.namelist()))
    assert FARM_FILE.stat().st_size < 500_000
    names = {socket.gethostname().encode(), str(Path.home()).encode() + b"/", b"/tmp/", b"/work/"}
    assert [name for name in names if name in texts] == []


def test_without_a_store_one_sees_the_demo_and_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("EDGELOOP_STORE", "EDGELOOP_EXPERIMENT", "MODEL_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    with open_or_demo() as workspace:
        assert workspace.experiment == CHIP_EXPERIMENT and workspace.status()
    assert list(tmp_path.iterdir()) == []


def test_a_store_of_ones_own_comes_first_even_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGELOOP_EXPERIMENT", raising=False)
    with open_or_demo(f"sqlite:{tmp_path / 'mine'}") as workspace:
        assert workspace.experiment == "default" and workspace.status() == []
    with Workspace.open(f"sqlite:{tmp_path / '.edgeloop'}") as own:
        own.store.models("default").insert("mine", {"name": "mine"})
    monkeypatch.delenv("EDGELOOP_STORE", raising=False)
    monkeypatch.delenv("MODEL_STORAGE_CONNECTION_STRING", raising=False)
    with open_or_demo() as workspace:
        assert [row["name"] for row in workspace.status()] == ["mine"]


def test_results_are_looked_at_in_the_one_experiment_that_has_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("EDGELOOP_STORE", "EDGELOOP_EXPERIMENT", "MODEL_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    searched = {"name": "id_1", "mean": 0.002, "val_iou": 0.5}
    with Workspace.open(experiment="laptop") as own:
        own.store.models("laptop").insert("id_1", searched)
    with open_or_demo() as workspace:
        assert workspace.experiment == "laptop"
        assert quality_column(workspace.status()) == "val_iou", "all that a search knows"
    with open_or_demo(experiment="default") as workspace:
        assert workspace.experiment == "default"
    with Workspace.open(experiment="other") as own:
        own.store.models("other").insert("a", {"name": "a"})
    with open_or_demo() as workspace:
        assert workspace.experiment == "default", "which of two, nobody said"
