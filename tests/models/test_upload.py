"""An upload ends with a whole model or with nothing, whatever happens on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from edgeloop.errors import EdgeloopError, ModelBusy, NameTaken, StoreUnavailable
from edgeloop.models.catalog import Catalog
from edgeloop.models.plan import default_plan, records_of
from edgeloop.models.upload import UploadOptions
from edgeloop.store import Blobs, Changes, Record, Store
from tests.cli.running import blobs_of, is_empty, notes_of, rows_of
from tests.conftest import StoreUnderTest
from tests.nets import save_external, save_tiny
from tests.store.passing import PassingBlobs

NOW = 1_800_000_000.0
HOUR = 3_600.0


def catalog_on(store: Store, now: float = NOW, node: str = "here") -> Catalog:
    return Catalog(store, "default", default_plan(), node=node, clock=lambda: now)


class BlobsThatBreak(PassingBlobs):
    """Real blobs whose nth put raises instead."""

    def __init__(self, inner: Blobs, error: BaseException, at: int) -> None:
        super().__init__(inner)
        self._error, self._left = error, at
        self._lock = threading.Lock()

    def put(self, key: str, source: Path | bytes) -> None:
        with self._lock:
            self._left -= 1
            broken = self._left == 0
        if broken:
            raise self._error
        super().put(key, source)


@pytest.fixture
def sqlite(
    make_place: Callable[[str], StoreUnderTest], make_store: Callable[[StoreUnderTest], Store]
) -> Store:
    return make_store(make_place("sqlite"))


@pytest.mark.parametrize(
    "error",
    [StoreUnavailable(store="x", reason="gone"), KeyboardInterrupt(), SystemExit(143)],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("at", [1, 2])
def test_an_upload_that_breaks_off_is_taken_back(
    store: Store, tmp_path: Path, error: BaseException, at: int
):
    path = save_external(tmp_path / "net.onnx")
    real, store.blobs = store.blobs, BlobsThatBreak(store.blobs, error, at)
    with pytest.raises(type(error)):
        catalog_on(store).upload(path, "calm-heron")
    store.blobs = real
    assert is_empty(store)


def test_after_a_failed_upload_the_next_one_works(sqlite: Store, tmp_path: Path):
    path = save_external(tmp_path / "net.onnx")
    real = sqlite.blobs
    sqlite.blobs = BlobsThatBreak(real, StoreUnavailable(store="x", reason="gone"), 2)
    with pytest.raises(StoreUnavailable):
        catalog_on(sqlite).upload(path, "calm-heron")
    sqlite.blobs = real
    assert catalog_on(sqlite).upload(path, "calm-heron").is_new
    assert len(blobs_of(sqlite)) == 2


def test_an_upload_whose_note_cannot_be_written_is_taken_back(
    sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = save_tiny(tmp_path / "net.onnx")
    notes = sqlite.queue("default")

    def refuse(key: str, values: object) -> Record:
        raise StoreUnavailable(store="x", reason="gone")

    monkeypatch.setattr(notes, "insert", refuse)
    monkeypatch.setattr(sqlite, "queue", lambda experiment: notes)
    with pytest.raises(StoreUnavailable):
        catalog_on(sqlite).upload(path)
    monkeypatch.undo()
    assert is_empty(sqlite)


def test_an_upload_whose_last_word_does_not_arrive_is_taken_back(
    sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    models = sqlite.models("default")
    real = models.update_with

    def refuse(record: Record, changes: Changes, *others: object) -> Record:
        if changes.get("status") == "new":
            raise StoreUnavailable(store="x", reason="gone")
        return real(record, changes, *others)

    monkeypatch.setattr(models, "update_with", refuse)
    monkeypatch.setattr(sqlite, "models", lambda experiment: models)
    with pytest.raises(StoreUnavailable):
        catalog_on(sqlite).upload(save_tiny(tmp_path / "net.onnx"))
    monkeypatch.undo()
    assert is_empty(sqlite)


def test_a_failed_upload_does_not_empty_the_folder_of_whoever_came_after(
    sqlite: Store, tmp_path: Path
):
    """The name is free for others only when nothing of ours is left to be cleared away."""
    ours, theirs = save_tiny(tmp_path / "a.onnx", 1), save_tiny(tmp_path / "b.onnx", 2)
    real = sqlite.blobs

    class Meddling(BlobsThatBreak):
        def delete(self, keys: Iterable[str]) -> None:
            if list(keys):
                sqlite.blobs = real
                with pytest.raises((ModelBusy, NameTaken)):
                    catalog_on(sqlite, node="other").upload(theirs, "calm-heron")
            super().delete(keys)

    class SecondPutBreaks(Meddling):
        def put(self, key: str, source: Path | bytes) -> None:
            self.inner.put(key, source)
            raise StoreUnavailable(store="x", reason="gone")

    sqlite.blobs = SecondPutBreaks(real, KeyboardInterrupt(), 0)
    with pytest.raises(StoreUnavailable):
        catalog_on(sqlite).upload(ours, "calm-heron")
    sqlite.blobs = real
    assert is_empty(sqlite)
    assert catalog_on(sqlite, node="other").upload(theirs, "calm-heron").is_new


def dead_upload(store: Store, path: Path, name: str | None, now: float = NOW) -> None:
    """What a SIGKILL in the middle of an upload leaves: nobody takes anything back."""
    catalog = catalog_on(store, now, node="dead")
    uploader = catalog._uploader
    uploader._blobs = BlobsThatBreak(store.blobs, SystemExit(), 2)
    uploader.take_back = lambda row: None  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        catalog.upload(path, name)


def test_waiting_for_an_upload_of_the_same_content_is_said_once(
    sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
):
    monkeypatch.setattr("edgeloop.models.upload.UPLOAD_PATIENCE_S", 0.5)
    monkeypatch.setattr("edgeloop.models.upload.QUIET_S", 0.0)
    path = save_external(tmp_path / "net.onnx")
    dead_upload(sqlite, path, "calm-heron")
    with pytest.raises(ModelBusy):
        catalog_on(sqlite).upload(path)
    [said] = caplog.messages
    assert said.startswith("net.onnx: the same content is being uploaded by dead:upload as calm-")


def test_a_dead_upload_says_who_began_it_and_is_not_taken_for_a_model(
    sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("edgeloop.models.upload.UPLOAD_PATIENCE_S", 0.0)
    path = save_external(tmp_path / "net.onnx")
    dead_upload(sqlite, path, "calm-heron")
    row = rows_of(sqlite)["calm-heron"]
    assert (row["status"], row["node"]) == ("uploading", "dead:upload")
    for name in ("calm-heron", None):
        with pytest.raises(
            ModelBusy, match="dead:upload uploads it; if that ended: edgeloop delete"
        ):
            catalog_on(sqlite, NOW + HOUR).upload(path, name)
    assert rows_of(sqlite)["calm-heron"] == row


def test_delete_clears_a_dead_upload_away(sqlite: Store, tmp_path: Path):
    path = save_external(tmp_path / "net.onnx")
    dead_upload(sqlite, path, "calm-heron")
    assert blobs_of(sqlite)
    catalog_on(sqlite).delete("calm-heron")
    assert rows_of(sqlite) == {} and blobs_of(sqlite) == {}
    assert catalog_on(sqlite).upload(path).is_new


@pytest.mark.parametrize("name", ["calm-heron", None])
def test_a_dead_upload_is_taken_over_once_it_has_expired(
    store: Store, tmp_path: Path, name: str | None
):
    path = save_external(tmp_path / "net.onnx", 1)
    dead_upload(store, path, "calm-heron")
    taken = catalog_on(store, NOW + 7 * HOUR).upload(path, name)
    assert taken.is_new and taken.model.name == "calm-heron"
    row = rows_of(store)["calm-heron"]
    assert (row["status"], row["node"]) == ("new", "")
    assert set(taken.model.download(tmp_path / "out")) == {
        *(tmp_path / "out" / name for name in ("net.onnx", "weights.bin"))
    }
    assert (tmp_path / "out/net.onnx").read_bytes() == path.read_bytes()
    assert len(blobs_of(store)) == 2


def test_an_expired_upload_may_be_taken_over_with_another_model(sqlite: Store, tmp_path: Path):
    dead_upload(sqlite, save_external(tmp_path / "old/net.onnx", 1), "calm-heron")
    path = save_tiny(tmp_path / "new.onnx", 2)
    options = UploadOptions(priority=3)
    catalog_on(sqlite, NOW + 7 * HOUR).upload(path, "calm-heron", options)
    (key,) = blobs_of(sqlite)
    assert key.startswith("default/calm-heron/upload-") and key.endswith("/new.onnx")
    row = rows_of(sqlite)["calm-heron"]
    assert (row["model_name"], row["priority"]) == ("new.onnx", 3)


def test_the_one_whose_upload_was_taken_over_can_write_nothing(sqlite: Store, tmp_path: Path):
    ours, theirs = save_tiny(tmp_path / "a.onnx", 1), save_tiny(tmp_path / "b.onnx", 2)
    real = sqlite.blobs

    class SleepsThroughItsLease(BlobsThatBreak):
        def put(self, key: str, source: Path | bytes) -> None:
            sqlite.blobs = real
            catalog_on(sqlite, NOW + 7 * HOUR, "other").upload(theirs, "calm-heron")

    sqlite.blobs = SleepsThroughItsLease(real, KeyboardInterrupt(), 0)
    with pytest.raises(EdgeloopError):
        catalog_on(sqlite).upload(ours, "calm-heron")
    assert rows_of(sqlite)["calm-heron"]["model_name"] == "b.onnx"
    assert [file.name for file in catalog_on(sqlite).files("calm-heron")] == ["b.onnx"]
    assert len(blobs_of(sqlite)) == 1


def test_a_model_that_is_being_deleted_is_not_taken_for_one_that_is_here(
    sqlite: Store, tmp_path: Path
):
    path = save_tiny(tmp_path / "net.onnx")
    catalog = catalog_on(sqlite)
    catalog.upload(path, "calm-heron")
    sqlite.models("default").update(catalog.get("calm-heron"), {"status": "deleting"})
    with pytest.raises(ModelBusy, match="edgeloop delete calm-heron"):
        catalog.upload(path, "calm-heron")
    fresh = catalog.upload(path)
    assert fresh.is_new and fresh.model.name != "calm-heron"


def test_a_friendly_name_that_is_taken_is_passed_over(
    sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    catalog = catalog_on(sqlite)
    catalog.upload(save_tiny(tmp_path / "a.onnx", 1), "calm-heron")
    names = ["calm-heron", "calm-heron", "brave-otter"]
    monkeypatch.setattr("edgeloop.models.upload.friendly_names", lambda: iter(names))
    assert catalog.upload(save_tiny(tmp_path / "b.onnx", 2)).model.name == "brave-otter"
    with pytest.raises(ModelBusy, match="use --name"):
        catalog.upload(save_tiny(tmp_path / "c.onnx", 3))
    assert len(rows_of(sqlite)) == 2


def test_the_row_of_a_new_model_says_all_that_is_known(sqlite: Store, tmp_path: Path):
    path = save_external(tmp_path / "My net.onnx")
    catalog_on(sqlite).upload(path, "calm-heron", UploadOptions(tags=("a",)))
    row = rows_of(sqlite)["calm-heron"]
    assert row.pop("content") and row.pop("stages")
    assert row == {
        "name": "calm-heron",
        "status": "new",
        "node": "",
        "benchmark_only": 0,
        "model_date": "2027-01-15T08:00:00+00:00",
        "model_name": "My net.onnx",
        "experiment": "default",
        "since": "2027-01-15T08:00:00+00:00",
        "size": sum(file.stat().st_size for file in tmp_path.iterdir()),
        "tags": '["a"]',
    }


def test_a_new_model_can_be_claimed_at_once_and_its_files_are_in_the_record(
    sqlite: Store, tmp_path: Path
):
    catalog_on(sqlite).upload(save_external(tmp_path / "net.onnx"), "calm-heron")
    hints = [note for note in notes_of(sqlite) if not note.startswith("content|")]
    assert {hint.split("|")[-1] for hint in hints} == {"convert", "f1_onnx"}
    record = records_of(rows_of(sqlite)["calm-heron"])["upload"]
    assert not record.is_held and set(record.files) == {"net.onnx", "weights.bin"}
