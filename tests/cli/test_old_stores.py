"""Every command works on a store that an older version of Edgeloop left."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from edgeloop import Workspace
from edgeloop.models.plan import records_of
from edgeloop.models.runners import Registry, RunnerEntry
from edgeloop.store.location import VERSION_KEY, read_version, unversioned
from edgeloop.store.upgrades import SCHEMA
from edgeloop.testing.faces import make_faces
from tests.cli.conftest import Edgeloop
from tests.store import older


@pytest.fixture(params=older.VERSIONS)
def version(request: pytest.FixtureRequest, project: Path) -> str:
    older.restore_folder(request.param, project / ".edgeloop")
    (project / "edgeloop.yaml").write_text("benchmark_runs: 2\nnode: new-machine\n")
    return str(request.param)


def content(project: Path) -> list[tuple[object, ...]]:
    database = sqlite3.connect(project / ".edgeloop/store.db")
    rows = database.execute("SELECT * FROM edgeloop_rows ORDER BY space, key").fetchall()
    database.close()
    return rows


def schema() -> int:
    with Workspace.open() as workspace:
        return read_version(workspace.store).schema


def test_commands_that_read_change_nothing(version: str, project: Path, edgeloop: Edgeloop):
    before = content(project)
    rows = {row["name"]: row for row in edgeloop("status", "--json").json}
    assert sorted(rows) == ["complete", "failed", "fresh", "held", "partly"]
    assert rows["complete"]["status"] == "complete" and rows["complete"]["f1_1k"] > 0
    assert "does not fit" in rows["failed"]["error"]
    assert rows["held"]["node"] == "old-machine:runner"
    assert edgeloop("status", "-e", "second", "--json").json[0]["priority"] == 3
    files = {row["file"] for row in edgeloop("download", "--list", "complete", "--json").json}
    assert {"complete.onnx", "complete.quant.onnx", "perf_results_2.csv"} <= files
    assert edgeloop("download", "complete", "--output", "here").code == 0
    found = {path.name for path in (project / "here").rglob("*") if path.is_file()}
    assert found >= files
    assert edgeloop("queue", "--json").code == edgeloop("devices", "usage", "--json").code == 0
    assert edgeloop("experiment", "list").code == 0
    assert content(project) == before


def test_hints_of_an_older_version_are_no_fault(version: str, project: Path, edgeloop: Edgeloop):
    before = content(project)
    said = edgeloop("store", "check", "--content")
    assert (said.code, said.out.splitlines()[-1]) == (0, "Nothing is wrong.")
    assert "note: it has schema 0, of an older version: 'edgeloop store upgrade'" in said.err
    assert content(project) == before


def test_an_upgrade_says_what_it_does_and_is_done_once(
    version: str, project: Path, edgeloop: Edgeloop
):
    changed = {"d379839": "4 rows", "565575e": "0 rows"}[version]
    step = f"Schema 1 moves the hints of waiting models to their present keys: {changed}."
    before = content(project)
    dry = edgeloop("store", "upgrade", "--dry-run")
    assert dry.out.splitlines() == [step, ".edgeloop has schema 0. Nothing was changed."]
    assert content(project) == before
    done = edgeloop("store", "upgrade")
    assert done.out.splitlines() == [step, ".edgeloop has schema 1 now; it had 0."]
    after = content(project)
    assert edgeloop("store", "upgrade").out == ".edgeloop has schema 1: nothing to do.\n"
    assert edgeloop("store", "upgrade", "--json").json == []
    assert content(project) == after
    said = edgeloop("store", "check")
    assert said.code == 0 and "schema" not in said.err


def test_reset_and_upload_bring_it_up_to_date(version: str, project: Path, edgeloop: Edgeloop):
    assert schema() == 0
    assert edgeloop("reset", "complete", "--stage", "f1_1k", "--yes").code == 0
    assert schema() == SCHEMA
    rows = {row["name"]: row for row in edgeloop("status", "--json").json}
    assert rows["complete"]["status"] == "waiting" and "f1_1k" not in rows["complete"]
    said = edgeloop("download", "complete", "--output", "here")
    assert said.code == 0
    model = next((project / "here").rglob("complete.onnx"))
    assert "complete" in edgeloop("upload", str(model)).out, "its content is known"
    assert edgeloop("store", "check").code == 0


def test_a_runner_continues_the_work(version: str, project: Path, edgeloop: Edgeloop):
    make_faces(project / "faces", 60, 32, seed=3)
    sizes = ("--quick-images", "4", "--thorough-images", "8")
    words = ("--device", "host", "--dataset", "faces", "--subset", "partly", "--once", *sizes)
    done = edgeloop("runner", *words)
    assert done.code == 0 and "1 stage done." in done.out, done
    with Workspace.open() as workspace:
        rows = {str(row["name"]): row for row in workspace.status()}
    assert len(json.loads(str(rows["partly"]["total_inference_avg"]))) == 1
    assert records_of(rows["held"])["convert"].owner == "old-machine:runner"
    assert edgeloop("store", "check").code == 0
    assert schema() == SCHEMA


# Stores of newer versions, and versions that are none.


@pytest.fixture
def said(project: Path, edgeloop: Edgeloop) -> None:
    older.restore_folder("565575e", project / ".edgeloop")


def say(**columns: int | str) -> None:
    with Workspace.open() as workspace:
        unversioned(workspace.store).version().put(VERSION_KEY, columns)


READING = (
    ("status",),
    ("status", "--json"),
    ("download", "--list"),
    ("download", "complete"),
    ("queue",),
    ("experiment", "list"),
    ("store", "check"),
    ("pareto",),
)
WRITING = (
    ("reset", "complete", "--yes"),
    ("delete", "fresh", "--yes"),
    ("priority", "fresh", "3"),
    ("unlock", "held", "--yes"),
    ("runner", "--once", "--device", "host"),
    ("gc", "--yes"),
    ("store", "repair"),
    ("store", "upgrade"),
    ("experiment", "set", "default", "--dataset", "random"),
)


@pytest.mark.usefixtures("said")
def test_a_store_of_a_newer_version_is_refused_in_one_sentence(project: Path, edgeloop: Edgeloop):
    say(schema=SCHEMA + 1, edgeloop="9.9.0")
    before = content(project)
    for words in (*READING, *WRITING):
        sentence = edgeloop(*words).sentence
        assert f"has schema {SCHEMA + 1}, which Edgeloop 9.9.0 wrote" in sentence, words
        assert sentence.endswith("pip install --upgrade edgeloop."), words
    assert content(project) == before


@pytest.mark.usefixtures("said")
def test_where_a_newer_version_allows_it_commands_that_read_go_on(
    project: Path, edgeloop: Edgeloop
):
    say(schema=SCHEMA + 1, oldest_reader=0, oldest_writer=SCHEMA + 1)
    before = content(project)
    files = sorted((project / ".edgeloop/blobs").rglob("*"))
    for words in READING:
        assert edgeloop(*words).code == 0, words
    for words in WRITING:
        assert "cannot write to it" in edgeloop(*words).err, words
    assert content(project) == before
    assert sorted((project / ".edgeloop/blobs").rglob("*")) == files


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize("schema", ["two", -1])
def test_a_version_that_is_none_is_reported_and_repaired(
    project: Path, edgeloop: Edgeloop, command: Edgeloop, schema: str | int
):
    say(schema=schema)
    status = command("status", "--json")
    assert len(status.json) == 5 and "instead of a whole number from 0" in status.err
    assert "is damaged" in edgeloop("store", "upgrade").err
    assert "is damaged" in edgeloop("priority", "fresh", "3").err
    check = edgeloop("store", "check", "--json")
    [problem] = json.loads(check.out)
    assert check.code == 1 and (problem["kind"], problem["repair"]) == ("version", True)
    assert edgeloop("store", "repair").code == 0
    assert edgeloop("store", "check", "--json").json == []
    assert edgeloop("priority", "fresh", "3").code == 0


@pytest.mark.usefixtures("said")
def test_a_saved_store_is_of_the_present_schema(project: Path, edgeloop: Edgeloop):
    assert edgeloop("store", "repair", "--to", "saved").code == 0
    assert edgeloop("store", "upgrade").out.endswith("it had 0.\n"), "the old one stays as it is"
    upgraded = edgeloop("store", "upgrade", "--store", f"sqlite:{project}/saved").out
    assert upgraded.endswith("has schema 1: nothing to do.\n")


@pytest.mark.usefixtures("said")
def test_an_upgrade_names_the_runners_of_older_versions(project: Path, edgeloop: Edgeloop):
    with Workspace.open() as workspace:
        entry = RunnerEntry("old|1", "old-machine", "default", schema=SCHEMA - 1)
        Registry(unversioned(workspace.store)).write(entry)
    said = edgeloop("store", "upgrade")
    assert said.code == 0
    assert "note: 1 runner of older versions: old-machine; they can go on." in said.err
