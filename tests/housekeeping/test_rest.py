"""What is left over of jobs and on this machine, and the command that cleans it up."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from edgeloop._util.files import try_lock
from edgeloop.jobs.snapshot import CodeFile, CodeSnapshot
from edgeloop.models.files import ModelFile
from edgeloop.node.datasets import Datasets
from edgeloop.node.ticket import JobProgress, Ticket, is_fresh
from edgeloop.operate.fleet.ray.node import interpreter_in_use
from edgeloop.operate.gc import GcOptions, find_leftovers, remove_leftovers
from edgeloop.runner.resources import WorkFolder
from edgeloop.settings import Settings
from edgeloop.store import Store
from edgeloop.testing import MemoryStore
from edgeloop.workspace import Workspace
from tests.cli.conftest import Edgeloop, edgeloop, project

__all__ = ["edgeloop", "project"]

DAY_S = 86_400.0
MONTH_S = 30 * DAY_S


@pytest.fixture
def cache(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of a machine that is the test's own, like the folder it stands in."""
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def collect(store: Store, later_s: float = MONTH_S, **options: object) -> dict[str, object]:
    workspace = Workspace(Settings.load(), store)
    report = find_leftovers(
        workspace,
        GcOptions(**options),  # type: ignore[arg-type]
        store.now() + later_s,
    )
    return {finding.kind: result for finding, result in remove_leftovers(report)}


def snapshot(text: str) -> CodeSnapshot:
    return CodeSnapshot((CodeFile.of("train.py", text.encode()),))


def add_job(store: Store, job: str, code: str, state: str = "completed", log: bytes = b"") -> None:
    ticket = Ticket(job, job, "default", ("true",), code)
    store.blobs.put(f"_jobs/{job}/ticket.json", ticket.to_json())
    store.blobs.put(f"_records/default/{job}.json", b"{}")
    progress = JobProgress(state, 1, "node", 0.0)  # type: ignore[arg-type]
    store.blobs.put(f"_jobs/{job}/state.json", progress.to_json())
    if log:
        store.blobs.put(f"_jobs/{job}/log/00000000", log)


def test_files_and_code_of_jobs_without_a_record_go(cache: Path):
    store = MemoryStore()
    used, unused = snapshot("used"), snapshot("unused")
    for each in (used, unused):
        each.ensure(store.blobs)
    add_job(store, "kept", used.digest)
    add_job(store, "lost", unused.digest)
    store.blobs.delete(["_records/default/lost.json"])
    assert collect(store, DAY_S) == {}
    assert collect(store) == {"files of jobs": 1}
    assert collect(store) == {"code of jobs": 1}
    keys = {blob.key for blob in store.blobs.list("_")}
    assert f"_code/{used.digest}.tar.gz" in keys and f"_code/{unused.digest}.tar.gz" not in keys
    assert not any(key.startswith("_jobs/lost/") for key in keys)


def test_code_that_a_job_wants_again_is_made_young_and_stays(
    cache: Path, monkeypatch: pytest.MonkeyPatch
):
    store = MemoryStore()
    key, is_sent = snapshot("again").ensure(store.blobs)
    assert is_sent and is_fresh(store.blobs, key)
    assert snapshot("again").ensure(store.blobs) == (key, False)
    report = find_leftovers(Workspace(Settings.load(), store), None, store.now() + MONTH_S)
    assert [finding.kind for finding in report.findings] == ["code of jobs"]
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3 * DAY_S)
    assert snapshot("again").ensure(store.blobs) == (key, True)


def test_logs_go_by_age_and_by_size_and_never_of_jobs_that_run(cache: Path):
    store = MemoryStore()
    for number in range(3):
        add_job(store, f"ended{number}", "", log=b"x" * 100)
    add_job(store, "running", "", state="running", log=b"x" * 100)
    workspace = Workspace(Settings.load(), store)
    assert "see --keep-logs" in find_leftovers(workspace, None, store.now()).notes[0]
    assert collect(store, MONTH_S, logs_age_s=2 * MONTH_S) == {}
    assert collect(store, MONTH_S, logs_bytes=250) == {"logs": 2}
    assert collect(store, MONTH_S, logs_age_s=DAY_S) == {"logs": 1}
    left = [blob.key for blob in store.blobs.list("_jobs/") if "/log/" in blob.key]
    assert left == ["_jobs/running/log/00000000"]


def test_what_a_job_created_outside_its_outputs_is_kept_for_seven_days(cache: Path):
    """Also if --older-than is less; what was written again since it was listed stays."""
    store = MemoryStore()
    for job, state in (("ended", "completed"), ("fresh", "failed"), ("long", "running")):
        add_job(store, job, "", state=state)
        for folder in ("kept", "outputs"):
            store.blobs.put(f"_jobs/{job}/{folder}/lightning_logs/a.ckpt", b"x")
    soon, later = store.now() + 6 * DAY_S, store.now() + 8 * DAY_S
    workspace = Workspace(Settings.load(), store)
    assert not find_leftovers(workspace, GcOptions(older_s=DAY_S), soon).findings
    assert not find_leftovers(workspace, GcOptions(older_s=30 * DAY_S), later).findings
    report = find_leftovers(workspace, GcOptions(older_s=DAY_S), later)
    [finding] = report.findings
    assert (finding.kind, finding.count) == ("kept files of jobs", 3)
    store.blobs.put("_jobs/fresh/kept/lightning_logs/a.ckpt", b"it was started again")
    assert dict(remove_leftovers(report)) == {finding: 2}
    left = {blob.key for blob in store.blobs.list("_jobs/") if "/a.ckpt" in blob.key}
    outputs = {f"_jobs/{job}/outputs/lightning_logs/a.ckpt" for job in ("ended", "fresh", "long")}
    assert left == {*outputs, "_jobs/fresh/kept/lightning_logs/a.ckpt"}


def age(path: Path, seconds: float = MONTH_S) -> None:
    then = time.time() - seconds
    for place in (*path.rglob("*"), path):
        os.utime(place, (then, then))


def test_caches_of_this_machine_go_by_their_last_use_and_by_their_size(
    cache: Path, project: Path, tmp_path: Path
):
    store = MemoryStore()
    (tmp_path / "faces").mkdir()
    (tmp_path / "faces/a.txt").write_text("x" * 1000)
    datasets = Datasets(store.blobs)
    version = datasets.push("working/faces", tmp_path / "faces").reference.version
    fetched = datasets.fetch("working/faces", version, cache)
    work = WorkFolder(project / ".edgeloop/work")
    for name in ("old", "new"):
        store.blobs.put(f"default/m/{name}", name.encode())
    blobs = {blob.key: blob for blob in store.blobs.list("default/m/")}
    files = {
        key.rpartition("/")[2]: ModelFile(key, key, blob.size, blob.modified)
        for key, blob in blobs.items()
    }
    work.fetch(store.blobs, files, tmp_path / "in")
    kept = {path.read_text(): path for path in (project / ".edgeloop/work/files").rglob("*/*/*")}
    dead = project / ".edgeloop/work/stages/999999999-ab"
    dead.mkdir(parents=True)
    os.utime(dead, (0, 0))  # of a version that did not lock it
    age(kept["old"])
    age(fetched)
    (cache / "layers").mkdir()
    (cache / "layers/old.json").write_text("{}")
    age(cache / "layers/old.json")
    assert collect(store) == {
        "datasets of jobs": 1,
        "layer times": 1,
        "files of runners": 1,
        "interrupted work": 1,
    }
    assert not fetched.exists() and not kept["old"].exists() and kept["new"].exists()
    assert work.fetch(store.blobs, files, tmp_path / "again")["old"].read_text() == "old"
    fetched = datasets.fetch("working/faces", version, cache)
    age(fetched, 3 * 3600.0)
    assert collect(store, cache_bytes=10**6) == {}
    assert collect(store, cache_bytes=500) == {"datasets of jobs": 1}


def test_the_folder_of_a_stage_goes_when_its_runner_is_gone(cache: Path, project: Path):
    with WorkFolder(project / ".edgeloop/work").stage_folder() as folder:
        assert collect(MemoryStore()) == {}
        left = folder.with_name(f"{folder.name[:-12]}abcdefabcdef")
        left.mkdir()
        assert collect(MemoryStore()) == {"interrupted work": 1}
        assert folder.is_dir() and not left.exists()


def test_a_dataset_that_is_being_fetched_stays(cache: Path):
    partial = cache / "datasets" / "working-faces@1-abc.partial"
    partial.mkdir(parents=True)
    age(partial)
    lock = try_lock(partial.with_name("working-faces@1-abc.lock"))
    assert lock is not None
    assert collect(MemoryStore(), cache_bytes=0) == {"datasets of jobs": 0}
    os.close(lock)
    assert partial.exists()
    assert collect(MemoryStore(), cache_bytes=0) == {"datasets of jobs": 1}
    assert not partial.exists()


def test_a_dataset_stays_that_a_runner_uses(edgeloop: Edgeloop, cache: Path):
    """It was fetched long ago, by the start of the runner."""
    dataset = cache / "datasets" / "working-faces@1-abc"
    dataset.mkdir(parents=True)
    np.save(dataset / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    age(dataset)
    done = edgeloop("runner", "--once", "--task", "tensors", "--dataset", str(dataset))
    assert done.code == 0, done.err
    assert collect(MemoryStore(), older_s=0.0) == {}


def test_an_environment_stays_that_a_process_of_ray_runs_in(cache: Path):
    used, unused = (cache / "envs" / name for name in ("fleet-used", "fleet-unused"))
    for folder in (used, unused):
        folder.mkdir(parents=True)
        (folder / ".ready").touch()
        age(folder)
    with interpreter_in_use(str(used / "bin/python")), interpreter_in_use(sys.executable):
        pass
    assert collect(MemoryStore()) == {"environments": 1}
    assert used.exists() and not unused.exists()


def test_nothing_goes_that_a_job_may_use_which_runs_here(cache: Path, tmp_path: Path):
    store = MemoryStore()
    package = cache / "packages" / "abc"
    scratch = cache / "jobs" / "job-1"
    for folder in (package, scratch):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
        age(folder, 2 * MONTH_S)
    lock = try_lock(scratch / "lock")
    assert lock is not None
    os.utime(scratch / "lock", (0, time.time() - 2 * MONTH_S + 60))
    assert collect(store) == {}
    os.close(lock)
    assert collect(store) == {"packages of jobs": 1}
    assert scratch.exists(), "its outputs may be nowhere else"
    add_job(store, "job-1", "")
    done = JobProgress("completed", 1, "node", 0.0, outputs_complete=True)
    store.blobs.put("_jobs/job-1/state.json", done.to_json())
    age(scratch)
    assert collect(store, 0.0) == {"folders of jobs": 1}
    assert not scratch.exists()


def test_the_command_shows_asks_and_removes(edgeloop: Edgeloop, project: Path, cache: Path):
    assert edgeloop("gc", "--dry-run").out == "Nothing to clean up.\n"
    old = cache / "packages" / "abc"
    old.mkdir(parents=True)
    (old / "file").write_text("x" * 5_000)
    age(old)
    shown = edgeloop("gc", "--dry-run")
    assert shown.code == 0 and old.exists()
    assert shown.out.splitlines()[0].split() == ["what", "where", "count", "size", "why"]
    assert "1 item would be removed, 5.0 kB." in shown.out
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    refused = edgeloop("gc")
    assert refused.code == 2 and "add --yes or --dry-run" in refused.err and old.exists()
    for wrong in (("--older-than", "7"), ("--keep-logs", "many"), ("--keep-cache", "7d")):
        assert edgeloop("gc", "--dry-run", *wrong).code == 2
    found = json.loads(edgeloop("gc", "--yes", "--json").out)
    assert found == [
        {
            **{"what": "packages of jobs", "where": "machine", "action": "remove", "count": 1},
            **{"bytes": 5_000, "why": "can be fetched or made again", "removed": 1, "error": ""},
            "items": [str(old)],
        }
    ]
    assert not old.exists()
    assert edgeloop("gc", "--yes").out == "Nothing to clean up.\n"
