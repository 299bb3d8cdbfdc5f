"""A search that runs as a job is a search: its results are continued, trained and reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from edgeloop.errors import BadInput
from edgeloop.jobs.spec import JobSpec
from edgeloop.search.campaign import search_job, search_settings
from edgeloop.search.config import read_config
from edgeloop.search.study import find_search, found_searches, open_storage
from tests.search.program import Program

pytestmark = pytest.mark.slow

QUICK = {"steps": 4, "batch": 8, "learning_rate": 1e-2, "device": "cpu"}
TRAINED = {"params": {}, "val_iou": {"train": QUICK}}
SECRET = "postgresql://lab:hush@db.example/rows?blobs=s3://bucket/files"
FILE = """
search: {space: small-classifier, size: 32, name: lab}
objectives: {params: {goal: min}}
store: ${LAB_STORE}
"""


def test_a_search_that_ran_as_a_job_is_found_by_both_names_and_continued(program: Program):
    """It trains nothing."""
    file = program.write("faces", {"params": {}}, budget=2, publish="none")
    sent = program("search", file, "--compute", "local")
    assert sent.code == 0, sent.err
    unfetched = program("search", "train", "faces-1").sentence
    assert "not here: fetch them with 'edgeloop job results faces-1'" in unfetched
    assert program("job", "wait", "faces-1").code == 0, program("job", "logs", "faces-1").out
    assert program("job", "results", "faces-1").code == 0
    fetched = program.folder / "runs/faces-1/outputs"
    assert find_search("faces", program.folder) == fetched
    assert len((fetched / "candidates.csv").read_text().splitlines()) == 1 + 2
    here = program("search", "faces-1", "--resume", "search.budget=3")
    assert here.code == 0, here.err
    assert len(program.table("faces")) == 3
    assert "   3/3  " in here.err and "   2/3  " not in here.err
    assert set(found_searches(program.folder)) == {"faces", "faces-1"}


@pytest.mark.soak
def test_a_search_that_ran_as_a_job_is_trained_reported_and_continued(program: Program):
    file = program.write("faces", TRAINED, budget=2, publish="none")
    sent = program("search", file, "--compute", "local")
    assert sent.code == 0, sent.err
    assert program("job", "wait", "faces-1").code == 0, program("job", "logs", "faces-1").out
    assert program("job", "results", "faces-1").code == 0
    fetched = program.folder / "runs/faces-1/outputs"
    front = {path.stem for path in (fetched / "pareto").glob("id_*.json")}

    # The front is trained where its results are, by the name of the job.
    full = program("search", "train", "faces-1", "--epochs", 1, "--no-publish", "--json").json
    assert {row["arch_id"] for row in full} == front and not any(row["error"] for row in full)
    assert {path.stem for path in (fetched / "full").glob("*.onnx")} == front
    columns = ("--x", "params", "--y", "val_iou")
    [report] = program("report", "--search", "faces-1", *columns, "--json").json
    assert (report["models"], report["front"]) == (2, len(front))

    # It continues here with the models that it has, and there with what the job left.
    grown = "search.budget=3"
    here = program("search", "faces-1", "--resume", grown)
    assert here.code == 0, here.err
    home = program.folder / "searches/faces"
    assert len(program.table("faces")) == 3 and (home / "full").is_dir()
    assert len(program.trainings("faces")) == 3
    there = program("search", file, "--resume", "--compute", "local", "search.budget=4")
    assert "faces-1.2 submitted to local" in there.out, there.err
    assert program("job", "wait", "faces-1.2").code == 0, program("job", "logs", "faces-1.2").out
    assert program("job", "results", "faces-1.2").code == 0
    later = program.folder / "runs/faces-1.2/outputs"
    assert len((later / "candidates.csv").read_text().splitlines()) == 1 + 4
    old = {path.name for path in (fetched / "nets").iterdir()}
    assert old <= {path.name for path in (later / "nets").iterdir()}
    assert set(found_searches(program.folder)) == {"faces", "faces-1", "faces-1.2"}
    log = program("job", "logs", "faces-1.2").out
    assert "   4/4  " in log and "   2/4  " not in log  # two of the first job, one of here


def test_a_variable_that_names_the_store_travels_as_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_STORE", SECRET)
    monkeypatch.setenv("TOKEN", "hush")
    (tmp_path / "edgeloop.yaml").write_text(
        "computes: {far: {kind: ray, address: 'http://h:1', headers: {A: '${TOKEN}'}},"
        " other: {kind: ray, address: '${NOBODY}'}}"
    )
    (tmp_path / "lab.yaml").write_text(FILE)
    config = read_config(tmp_path / "lab.yaml")
    settings = search_settings(config)
    spec = search_job(config, Path("lab.yaml"), (), settings, "far", resume=True)
    assert spec.variables == {"LAB_STORE": "${LAB_STORE}", "TOKEN": "${TOKEN}"}
    assert "--store" not in spec.args and "hush" not in repr(spec.document())
    assert spec.filled_variables()["LAB_STORE"] == SECRET

    words = (f"store={SECRET}",)
    config = read_config(tmp_path / "lab.yaml", words)
    with pytest.raises(BadInput, match="has a password or key: write store: ") as refused:
        search_job(config, Path("lab.yaml"), words, search_settings(config), "far", resume=True)
    assert "hush" not in str(refused.value)


def test_a_search_on_a_compute_starts_from_searches_of_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    store = f"sqlite:{tmp_path / 'store'}"
    monkeypatch.setenv("LAB_STORE", store)
    (tmp_path / "lab.yaml").write_text(FILE)
    config = read_config(tmp_path / "lab.yaml")
    settings = search_settings(config)
    optuna.create_study(study_name="first", storage=open_storage(settings.location))

    def job(*earlier: str) -> JobSpec:
        named = replace(config, earlier=earlier)
        return search_job(named, Path("lab.yaml"), (), settings, "local")

    assert 'search.earlier=["first"]' in job("first").args
    assert not any("earlier" in word for word in job().args)
    with pytest.raises(BadInput, match="cannot start from 'other', which is not a search in the"):
        job("first", "other")


def test_a_store_that_no_other_machine_can_open_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_STORE", f"sqlite:{tmp_path / 'store'}")
    (tmp_path / "edgeloop.yaml").write_text("computes: {far: {kind: ray, address: 'http://h:1'}}")
    (tmp_path / "lab.yaml").write_text(FILE)
    config = read_config(tmp_path / "lab.yaml")
    with pytest.raises(BadInput, match="cannot be opened by a search on another machine"):
        search_job(config, Path("lab.yaml"), (), search_settings(config), "far", resume=True)
