"""What is left over of models goes, and nothing that anybody still needs."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from edgeloop.errors import LeaseLost
from edgeloop.models.catalog import Catalog
from edgeloop.models.files import ModelFiles
from edgeloop.models.leases import Leases, Outcome
from edgeloop.models.plan import default_plan, records_of
from edgeloop.models.runners import Registry, RunnerEntry
from edgeloop.operate.gc import GcOptions, Report, find_leftovers, reclaim_orphans, remove_leftovers
from edgeloop.runner.loop import RunnerOptions, run
from edgeloop.settings import Settings
from edgeloop.store import BlobInfo, Store
from edgeloop.testing import MemoryStore
from edgeloop.workspace import Workspace
from tests.conftest import StoreUnderTest
from tests.models.test_files import DiedError as MachineDiedError
from tests.models.test_files import DyingBlobs
from tests.nets import save_tiny
from tests.store.passing import PassingBlobs

EXPERIMENT = "farm"
YEAR_S = 365 * 86_400.0
CONVERTED = {"quantized": True, "macs": 1, "params": 1, "shape": "[1]", "output_shape": "[1]"}


class DiedError(Exception):
    """The machine stops here."""


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project and a cache of the test's own: what is cleaned here is nobody else's."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))


def workspace_on(store: Store) -> Workspace:
    return Workspace(Settings.load(store="sqlite:own", experiment=EXPERIMENT), store)


def found_in(store: Store, later_s: float = YEAR_S, **options: object) -> Report:
    chosen = GcOptions(experiments=(EXPERIMENT,), **options)  # type: ignore[arg-type]
    return find_leftovers(workspace_on(store), chosen, store.now() + later_s)


def collect(store: Store, later_s: float = YEAR_S) -> dict[str, object]:
    report = found_in(store, later_s)
    return {finding.kind: result for finding, result in remove_leftovers(report)}


def kinds(report: Report) -> dict[str, int]:
    return {finding.kind: finding.count for finding in report.findings}


def contents(store: Store) -> object:
    """Everything in the store, byte for byte."""
    tables = (store.models(EXPERIMENT), store.queue(EXPERIMENT), store.runners(), store.fleets())
    files = {blob.key: (store.blobs.read(blob.key), blob.version) for blob in store.blobs.list("")}
    return files, [list(table.query()) for table in tables]


def add(store: Store, name: str) -> None:
    upload = {"upload": {"files": {"net.onnx": "net.onnx"}}}
    store.blobs.put(f"{EXPERIMENT}/{name}/net.onnx", name.encode())
    values = {"status": "new", "model_date": "2026-01-01", "stages": json.dumps(upload)}
    store.models(EXPERIMENT).insert(name, {"name": name, **values})


class SlowFiles(ModelFiles):
    """Leaves time between the steps of a publication."""

    def _create(
        self, model: str, stored: str, content: bytes, named: Collection[str], hidden: str = ""
    ) -> str:
        created = super()._create(model, stored, content, named, hidden)
        time.sleep(0.004)
        return created


class Worker:
    """What a runner does with a stage, with a death at a step of one's choice."""

    def __init__(self, store: Store, folder: Path, name: str = "w", lease_s: float = 120.0) -> None:
        self.folder = folder
        models, hints = store.models(EXPERIMENT), store.queue(EXPERIMENT)
        times = {"lease_s": lease_s, "margin_s": 0.05 if lease_s < 1 else 15.0}
        self.leases = Leases(models, hints, default_plan(), max_attempts=10_000, **times)
        self.files = SlowFiles(store, EXPERIMENT)
        self.name = name
        self.leases.sweep()

    def convert(self, dies: str = "") -> str:
        """The model, or nothing where there is none. A result says which attempt made it."""
        lease = self.leases.claim(("quantize",), self.name)
        if lease is None:
            return ""
        made = {}
        for name in ("net.quant.bin", "layers.csv"):
            made[name] = self.folder / f"{lease.token}-{name}"
            made[name].write_text(f"{lease.model} {lease.token} {name}")
        keys = self.files.put_attempt(lease.model, lease.token, made)
        self._die(dies, "stored")
        self.leases.commit(lease, Outcome(CONVERTED, keys))
        self._die(dies, "committed")
        if dies == "published half":
            self.files._create(lease.model, "net.quant.bin", made["net.quant.bin"].read_bytes(), ())
            raise DiedError
        self.files.publish(lease.model, lease.token, made)
        return lease.model

    def _die(self, dies: str, step: str) -> None:
        if dies == step:
            raise DiedError


def check_results(store: Store, names: list[str]) -> None:
    """Every row names files that are there, of one attempt that it committed, by plain names."""
    files = ModelFiles(store, EXPERIMENT)
    for name in names:
        row = store.models(EXPERIMENT).get(name)
        assert row is not None
        record = records_of(row.values)["convert"]
        assert set(record.files) == {"net.quant.bin", "layers.csv"}
        told = {
            file: store.blobs.read(f"{EXPERIMENT}/{name}/{key}").decode().split()
            for file, key in record.files.items()
        }
        assert all(words[0] == name and words[2] == file for file, words in told.items())
        tokens = {words[1] for words in told.values()}
        assert len(tokens) == 1 and tokens <= set(record.committed)
        assert not any(key.startswith(".attempts") for key in record.files.values())
        assert {f.name for f in files.of(row)} == {"net.onnx", "net.quant.bin", "layers.csv"}


@pytest.fixture
def store() -> Store:
    return MemoryStore()


@pytest.mark.parametrize("step", ["stored", "committed", "published half"])
def test_what_a_runner_leaves_that_dies_is_removed_or_published(
    store: Store, tmp_path: Path, step: str
):
    add(store, "net")
    with pytest.raises(DiedError):
        Worker(store, tmp_path, lease_s=0.2).convert(step)
    before = contents(store)
    report = found_in(store)
    assert contents(store) == before, "looking changes nothing"
    if step == "stored":  # its lease is in the row: until another one takes it, it may come back
        assert kinds(report) == {}
        other = Worker(store, tmp_path, "other", lease_s=0.2)
        while not other.convert():  # the dead one's lease holds for a moment
            time.sleep(0.02)
        assert kinds(found_in(store)) == {}, "whoever came after it has cleared it away"
    else:
        assert kinds(report) == {"unpublished results": 2}
        assert collect(store) == {"unpublished results": 2}
    check_results(store, ["net"])
    assert len(list(store.blobs.list(""))) == 3, "no copies"
    assert kinds(found_in(store)) == {}


@pytest.mark.slow
def test_idle_runners_remove_lost_attempts_at_once_and_leave_those_of_live_leases(
    store: Store, tmp_path: Path
):
    """Two runners die with their files stored; the second had taken the first one's lease."""
    add(store, "net")
    with pytest.raises(DiedError):
        Worker(store, tmp_path, "first", lease_s=0.2).convert("stored")
    reclaim_orphans(workspace_on(store), 0.0)
    assert len(attempts_in(store)) == 2, "it may be alive: nobody has taken its lease"
    second = Worker(store, tmp_path, "second")
    with pytest.raises(DiedError):
        while not second.convert("stored"):
            time.sleep(0.02)
    assert len(attempts_in(store)) == 4
    row = store.models(EXPERIMENT).get("net")
    assert row is not None
    token = records_of(row.values)["convert"].token
    for _ in range(2):
        reclaim_orphans(workspace_on(store), 0.0)
        assert {key.split("/")[3] for key in attempts_in(store)} == {token}
    assert len(attempts_in(store)) == 2


def test_one_idle_runner_reclaims_for_all(store: Store):
    add(store, "net")
    for number in range(2):
        store.blobs.put(f"{EXPERIMENT}/net/.attempts/lost{number}/x", b"x")
        reclaim_orphans(workspace_on(store), 3_600.0)
        assert len(attempts_in(store)) == number, "somebody has done it within the hour"


def test_a_runner_that_waits_for_work_reclaims(store: Store, tmp_path: Path):
    add(store, "net")
    store.blobs.put(f"{EXPERIMENT}/net/.attempts/lost/x", b"x")
    workspace = workspace_on(store)
    options = RunnerOptions(idle_s=1.0, idle_work_s=0, subset=("none",), workdir=tmp_path / "work")
    run(workspace, options, lambda report: None, partial(reclaim_orphans, workspace))
    assert attempts_in(store) == []


def attempts_in(store: Store) -> list[str]:
    return [blob.key for blob in store.blobs.list("") if "/.attempts/" in blob.key]


def test_a_file_that_is_being_published_is_no_leftover(store: Store, tmp_path: Path):
    """Its runner may give it its name in the row between a look at it and its removal."""
    add(store, "net")
    worker = Worker(store, tmp_path)
    with pytest.raises(DiedError):
        worker.convert("published half")
    blobs = list(store.blobs.list(f"{EXPERIMENT}/net/"))
    row = store.models(EXPERIMENT).get("net")
    assert row is not None
    found = worker.files.leftovers(row, blobs)
    assert f"{EXPERIMENT}/net/net.quant.bin" in {blob.key for blob in blobs}
    assert found.results == [] and len(found.unpublished) == 2


def test_nothing_young_goes(store: Store, tmp_path: Path):
    add(store, "net")
    with pytest.raises(DiedError):
        Worker(store, tmp_path).convert("committed")
    store.blobs.put(f"{EXPERIMENT}/gone/net.onnx", b"x")
    before = contents(store)
    assert collect(store, 0.0) == {}
    assert collect(store, 600.0) == {}
    assert find_leftovers(workspace_on(store), GcOptions(older_s=0.0)).findings == []
    assert contents(store) == before


def test_files_and_hints_of_models_that_are_gone_go(store: Store):
    for name in ("gone", "there"):
        add(store, name)
    Leases(store.models(EXPERIMENT), store.queue(EXPERIMENT), default_plan()).sweep()
    row = store.models(EXPERIMENT).get("gone")
    assert row is not None
    store.models(EXPERIMENT).delete(row)
    store.blobs.put(f"{EXPERIMENT}/gone/.attempts/t/x", b"12345")
    store.blobs.put(f"{EXPERIMENT}/notes.txt", b"not a model")
    store.blobs.put(f"{EXPERIMENT}/papers/a.pdf", b"not a model either")
    store.blobs.put("gone/net.onnx", b"another tool's")
    report = found_in(store)
    assert kinds(report) == {"files of models": 1, "hints": 2}
    assert f"{EXPERIMENT}/papers: no model has that name" in report.notes[0]
    assert report.findings[0].size == 9
    collect(store)
    left = {blob.key for blob in store.blobs.list("")}
    own = {f"{EXPERIMENT}/{name}" for name in ("there/net.onnx", "notes.txt", "papers/a.pdf")}
    assert left == {*own, "gone/net.onnx"}
    assert {r.values.get("model") for r in store.queue(EXPERIMENT).query()} == {"there"}
    assert store.models(EXPERIMENT).get("gone") is None


def test_a_name_that_is_taken_again_keeps_its_files(store: Store):
    store.blobs.put(f"{EXPERIMENT}/net/old.onnx", b"left over")
    report = found_in(store)
    assert kinds(report) == {"files of models": 1}
    add(store, "net")
    assert [result for _, result in remove_leftovers(report)] == [0]
    assert store.blobs.read(f"{EXPERIMENT}/net/net.onnx") == b"net"


def test_a_folder_that_got_a_young_file_stays(store: Store):
    """Other tools may write the files of a model before its row, after the gc has looked."""
    catalog = Catalog(store, EXPERIMENT, default_plan(), node="here")
    store.blobs.put(f"{EXPERIMENT}/net/net.onnx", b"new")
    store.blobs.put(f"{EXPERIMENT}/net/old.onnx", b"left over")

    class OneIsOld(PassingBlobs):
        def list(self, prefix: str) -> Iterator[BlobInfo]:
            for blob in super().list(prefix):
                is_old = blob.key.endswith("/old.onnx")
                yield replace(blob, modified=blob.modified - timedelta(days=is_old))

    real, store.blobs = store.blobs, OneIsOld(store.blobs)
    assert not catalog.clear_orphans("net", store.now() - 3600.0)
    store.blobs = real
    assert store.blobs.read(f"{EXPERIMENT}/net/net.onnx") == b"new"
    assert store.blobs.read(f"{EXPERIMENT}/net/old.onnx") == b"left over"
    assert store.models(EXPERIMENT).get("net") is None, "the name is free"
    assert catalog.clear_orphans("net", store.now() + 3600.0)
    assert list(store.blobs.list("")) == []
    assert store.models(EXPERIMENT).get("net") is None


def test_copies_that_the_row_no_longer_names_go_and_those_of_another_tool_stay(store: Store):
    add(store, "net")
    row = store.models(EXPERIMENT).get("net")
    assert row is not None
    stages = json.loads(str(row.values["stages"]))
    stages["benchmark"] = {"files": {"runs.csv": "runs~2.csv", "model.dlc": "model~dlc"}}
    row = store.models(EXPERIMENT).update(row, {"stages": json.dumps(stages)})
    names = ("runs.csv", "runs~2.csv", "runs~3.csv", "model~dlc", "model.dlc", "theirs.csv")
    for name in names:
        store.blobs.put(f"{EXPERIMENT}/net/{name}", b"x")
    row = store.models(EXPERIMENT).update(row, {"node": "archai-host"})
    assert kinds(found_in(store)) == {}, "another tool works on it"
    store.models(EXPERIMENT).update(row, {"node": ""})
    assert collect(store) == {"replaced results": 2}
    left = {blob.key.rpartition("/")[2] for blob in store.blobs.list(f"{EXPERIMENT}/net/")}
    assert left == {"net.onnx", "runs~2.csv", "model~dlc", "model.dlc", "theirs.csv"}


def test_uploads_and_deletes_that_broke_off_are_finished(store: Store, tmp_path: Path):
    models = store.models(EXPERIMENT)
    workspace = workspace_on(store)
    workspace.upload(save_tiny(tmp_path / "net.onnx"), "deleted", check=False)
    row = models.get("deleted")
    assert row is not None
    models.update(row, {"status": "deleting", "stages": None})
    held = {"upload": {"token": "t", "owner": "dead:upload", "expires": store.now() + 3600}}
    columns = {"status": "uploading", "since": "2026-01-01T00:00:00+00:00", "content": "abc"}
    models.insert("half", {"name": "half", **columns, "stages": json.dumps(held)})
    models.insert(
        "found", {"name": "found", **columns, "results": "{}", "stages": json.dumps(held)}
    )
    store.blobs.put(f"{EXPERIMENT}/half/net.onnx", b"half")
    assert collect(store, 3600.0 + 1.0) == {}, "they may still be under way"
    assert collect(store) == {"unfinished uploads": 2, "unfinished deletes": 1}
    assert collect(store).keys() == {"hints"}, "of the one that is gone now"
    assert {row.key: row.values["status"] for row in models.query()} == {"found": "candidate"}
    assert list(store.blobs.list("")) == []


def test_dead_runners_and_fleets_are_forgotten(store: Store):
    registry = Registry(store)
    registry.write(RunnerEntry("live|1", "live", EXPERIMENT))
    store.runners().insert("dead|1", {"node": "dead", "beat": store.now() - 3 * 86_400})
    spec = json.dumps({"name": "old", "runners": "0:2"})
    for name, age_s in (("old", YEAR_S), ("new", 60.0)):
        told = {"spec": spec.replace("old", name), "state": "up", "generation": 1}
        store.fleets().insert(name, {**told, "started": store.now() - age_s})
    assert collect(store) == {"dead runners": 1, "dead fleets": 1}
    assert [row.key for row in store.runners().query()] == ["live|1"]
    assert [row.key for row in store.fleets().query()] == ["new"]
    assert kinds(found_in(store, older_s=0.0)) == {}, "its supervisor may be briefly away"


def _mess(store: Store, folder: Path) -> None:
    """Something of every kind that is in files."""
    for name, step in (("a", "committed"), ("b", "published half"), ("c", "")):
        add(store, name)
        with contextlib.suppress(DiedError):
            Worker(store, folder).convert(step)
    store.blobs.put(f"{EXPERIMENT}/c/.attempts/lost/x", b"x")
    store.blobs.put(f"{EXPERIMENT}/gone/net.onnx", b"x")
    columns = {"status": "uploading", "since": "2026-01-01T00:00:00+00:00", "content": "abc"}
    store.models(EXPERIMENT).insert("half", {"name": "half", **columns})
    store.blobs.put(f"{EXPERIMENT}/half/net.onnx", b"x")


def test_a_gc_that_is_killed_anywhere_is_finished_by_the_next(tmp_path: Path):
    for changes in range(20):
        store = MemoryStore()
        _mess(store, tmp_path)
        real, store.blobs = store.blobs, DyingBlobs(store.blobs, changes)
        is_killed = True
        with contextlib.suppress(MachineDiedError):
            collect(store)
            is_killed = False
        store.blobs = real
        for _ in range(2):
            collect(store)
        check_results(store, ["a", "b", "c"])
        assert {row.key for row in store.models(EXPERIMENT).query()} == {"a", "b", "c"}
        assert len(list(store.blobs.list(""))) == 9
        if not is_killed:
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize(
    "kind",
    [
        "memory",
        "postgresql",
        pytest.param("sqlite", marks=pytest.mark.soak),
        pytest.param("azure", marks=pytest.mark.soak),
    ],
)
def test_runners_that_die_everywhere_lose_nothing_to_a_gc_that_waits_for_nobody(
    kind: str,
    tmp_path: Path,
    make_place: Callable[[str], StoreUnderTest],
    make_store: Callable[[StoreUnderTest], Store],
):
    """The gc believes that all files are a year old, so that no age protects them: only what the
    rows say does."""
    store: Store = MemoryStore() if kind == "memory" else make_store(make_place(kind))
    names = [f"net{number}" for number in range(60 if kind == "memory" else 6)]
    for name in names:
        add(store, name)
    chance, done, faults = random.Random(16), threading.Event(), []

    def work(number: int) -> None:
        worker = Worker(store, tmp_path, f"w{number}", lease_s=0.3)
        while not done.is_set():
            steps = ["stored", "committed", "published half", *[""] * 3]
            try:
                if not worker.convert(chance.choice(steps)):
                    rows = store.models(EXPERIMENT).query()
                    if all(row.values.get("quantized") for row in rows):
                        return
                    time.sleep(0.02)
            except (DiedError, LeaseLost):
                continue
            except BaseException as error:
                faults.append(error)
                raise

    def sweep() -> None:
        while not done.is_set():
            try:
                for _, result in remove_leftovers(found_in(store)):
                    assert isinstance(result, int), result
                reclaim_orphans(workspace_on(store), 0.0)
            except BaseException as error:
                faults.append(error)
                raise

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    sweepers = [threading.Thread(target=sweep) for _ in range(2)]
    for thread in (*workers, *sweepers):
        thread.start()
    for thread in workers:
        thread.join(120)
    done.set()
    for thread in sweepers:
        thread.join(120)
    assert faults == []
    for _ in range(2):  # copies go once a row is at rest
        collect(store)
    check_results(store, names)
    assert len(list(store.blobs.list(""))) == 3 * len(names)
