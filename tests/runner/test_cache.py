"""A stage works on the files that its row names, whatever the runner's cache holds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edgeloop.errors import BlobMissing, FileDamaged
from edgeloop.models.files import ModelFile
from edgeloop.models.plan import records_of
from edgeloop.runner.loop import RunnerOptions, run
from edgeloop.runner.presence import RunnerEvent
from edgeloop.runner.resources import WorkFolder
from edgeloop.runner.stages.base import Assignment, Result
from edgeloop.settings import Settings
from edgeloop.testing import MemoryStore
from edgeloop.workspace import Workspace
from tests.nets import save_external, save_tiny

NOW = datetime(2026, 11, 15, tzinfo=UTC)
KEY = "exp/net/net.onnx"


def file_of(content: bytes, *, says: bool = True) -> ModelFile:
    """Of two contents of one size, all that a store says is equal; the row says more, or not."""
    sha256 = hashlib.sha256(content).hexdigest() if says else ""
    return ModelFile("net.onnx", KEY, len(content), NOW, "version", sha256)


def store_of(content: bytes) -> MemoryStore:
    store = MemoryStore()
    store.blobs.put(KEY, content)
    return store


def fetched(work: WorkFolder, store: MemoryStore, file: ModelFile, name: str = "") -> bytes:
    with work.stage_folder() as folder:
        found = work.fetch(store.blobs, {"net.onnx": file}, folder, name)
        return found["net.onnx"].read_bytes()


def cached(work: WorkFolder) -> list[Path]:
    return [path for path in (work.cache.parent / "files").rglob("*") if path.is_file()]


@pytest.fixture
def work(tmp_path: Path) -> WorkFolder:
    return WorkFolder(tmp_path / "work")


def test_a_file_of_the_same_name_size_and_time_is_another_one(work: WorkFolder) -> None:
    for content in (b"old weights", b"new weights"):
        assert fetched(work, store_of(content), file_of(content)) == content
    assert fetched(work, MemoryStore(), file_of(b"old weights")) == b"old weights"


def test_stores_do_not_share_files_whose_content_no_row_says(work: WorkFolder) -> None:
    for content in (b"mine", b"hers"):
        file, store = file_of(content, says=False), store_of(content)
        assert fetched(work, store, file, f"store of {content!r}") == content
        assert fetched(work, MemoryStore(), file, f"store of {content!r}") == content


@pytest.mark.parametrize("says", [True, False])
def test_a_cached_file_that_was_changed_is_fetched_again(work: WorkFolder, says: bool) -> None:
    """Its size and its time say nothing."""
    store, file = store_of(b"weights"), file_of(b"weights", says=says)
    assert fetched(work, store, file) == b"weights"
    (path,) = cached(work)
    before = path.stat()
    path.write_bytes(b"WEIGHTS")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert fetched(work, store, file) == b"weights"
    store.blobs.delete([KEY])
    assert fetched(work, store, file) == b"weights"
    path.write_bytes(b"WEIGHTS")
    with pytest.raises(BlobMissing):
        fetched(work, store, file)


def test_a_damaged_file_is_not_kept(work: WorkFolder) -> None:
    store = store_of(b"damaged")
    for _ in range(2):
        with pytest.raises(FileDamaged, match=r"net\.onnx of net is damaged in the store"):
            fetched(work, store, file_of(b"weights"))
        assert cached(work) == []
    store.blobs.put(KEY, b"weights")
    assert fetched(work, store, file_of(b"weights")) == b"weights"


def test_a_hash_in_a_row_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Workspace(Settings.load(store="sqlite:store")) as workspace:
        workspace.upload(save_tiny(tmp_path / "net.onnx"), "net", check=False)
        row = workspace.catalog.get("net")
        stages = str(row.values["stages"]).replace(str(row.values["content"]), "../../../x")
        workspace.store.models("default").update(row, {"stages": stages, "content": "../x"})
        assert [file.sha256 for file in workspace.catalog.files("net")] == [""]


def test_files_are_not_counted_at_every_stage(
    work: WorkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk over the files of 5,000 models took seconds of each stage."""
    from edgeloop.runner import resources

    walks = []
    real = resources._facts

    def count(folder: Path | str) -> object:
        walks.append(folder)
        return real(folder)

    monkeypatch.setattr(resources, "_facts", count)
    for number in range(50):
        content = str(number).encode()
        assert fetched(work, store_of(content), file_of(content)) == content
    assert len([folder for folder in walks if folder == work.cache.parent / "files"]) == 1


def test_a_full_cache_is_emptied_by_more_than_it_must_be(tmp_path: Path) -> None:
    """So that the next stages need not count; and what lay there before counts, too."""
    work = WorkFolder(tmp_path / "work", cap_bytes=20 * 1000)
    for number in range(25):
        content = number.to_bytes(2, "big") * 500
        assert fetched(work, store_of(content), file_of(content)) == content
    assert 18 <= len(cached(work)) <= 20
    again = WorkFolder(tmp_path / "work", cap_bytes=10 * 1000)
    assert fetched(again, store_of(b"x"), file_of(b"x")) == b"x"
    assert len(cached(again)) == 9, "eight of a thousand bytes, and the new one"


class Stages:
    """Stands in for the stages: what each got to work on."""

    def __init__(self) -> None:
        self.inputs: list[dict[str, bytes]] = []

    def perform(self, work: Assignment, equipment: object) -> Result:
        found = {name: path.read_bytes() for name, path in work.files.items()}
        self.inputs.append(found)
        links = {path.stat().st_nlink for path in work.files.values()}
        assert links == {1}, "onnx refuses external data that has several names"
        made = work.folder / "net.quant.onnx"
        made.write_bytes(hashlib.sha256(found["net.onnx"]).hexdigest().encode())
        columns = {"quantized": True, "macs": 1, "params": 1, "shape": "[1]", "output_shape": "[1]"}
        scores = {"f1_onnx": 0.5, "total_inference_avg": "[1.0]", "mean": 1.0, "stdev": 0.0}
        return Result({**columns, **scores}, {"net.quant.onnx": made}, "done")


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Stages:
    stages = Stages()
    monkeypatch.setattr("edgeloop.runner.worker.perform", stages.perform)
    return stages


@pytest.fixture
def drain(tmp_path: Path) -> Callable[[Workspace], list[RunnerEvent]]:
    def run_to_the_end(workspace: Workspace) -> list[RunnerEvent]:
        reports: list[RunnerEvent] = []
        options = RunnerOptions(drain=True, workdir=tmp_path / "work")
        run(workspace, options, reports.append)
        return reports

    return run_to_the_end


def workspace_on(folder: Path) -> Workspace:
    settings = Settings.load(folder.parent, {"HOME": str(folder.parent)})
    return Workspace(replace(settings, location=replace(settings.location, folder=folder)))


def test_a_model_uploaded_again_under_its_name_is_evaluated_itself(
    tmp_path: Path, stages: Stages, drain: Callable[[Workspace], list[RunnerEvent]]
) -> None:
    """New weights, as a retraining gives them; and the same name in another store. Files that were
    made of the old ones are gone."""
    old, new = (
        save_tiny(tmp_path / name / "net.onnx", seed) for name, seed in (("a", 1), ("b", 2))
    )
    assert old.stat().st_size == new.stat().st_size
    with workspace_on(tmp_path / "store") as here, workspace_on(tmp_path / "other") as there:
        for workspace, path in ((here, old), (here, new), (there, old)):
            if "net" in {row["name"] for row in workspace.status()}:
                workspace.model("net").delete()
            workspace.upload(path, "net", check=False)
            stages.inputs.clear()
            drain(workspace)
            assert {found["net.onnx"] for found in stages.inputs} == {path.read_bytes()}
            quantized, model = workspace.model("net").download(tmp_path / "out", "net*")
            assert model.read_bytes() == path.read_bytes()
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            assert quantized.read_text() == workspace.model("net").row["content"] == digest


def test_damage_in_the_store_is_said_in_the_row_and_nothing_is_measured(
    tmp_path: Path, stages: Stages, drain: Callable[[Workspace], list[RunnerEvent]]
) -> None:
    with workspace_on(tmp_path / "store") as workspace:
        workspace.upload(save_external(tmp_path / "net.onnx"), "net", check=False)
        workspace.upload(save_tiny(tmp_path / "fine/net.onnx"), "fine", check=False)
        content = workspace.store.blobs.read("default/net/weights.bin")
        workspace.store.blobs.put("default/net/weights.bin", content[:-1] + b"!")
        drain(workspace)
        row = workspace.model("net").row
        assert row["status"] == "error", "after one attempt: another would find the same"
        assert {record.attempts for record in records_of(row).values()} == {0}, "not its fault"
        assert "weights.bin of net is damaged in the store" in str(row["error"])
        assert workspace.model("fine").row["status"] != "error"
        assert all("weights.bin" not in found for found in stages.inputs)
        workspace.store.blobs.put("default/net/weights.bin", content)
        workspace.model("net").reset()
        drain(workspace)
        assert workspace.model("net").row["status"] != "error"
