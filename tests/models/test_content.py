"""What is stored is what was checked, once, and what is handed out is what was stored."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeloop.errors import FileDamaged, LocalFileError
from edgeloop.models.plan import records_of, with_records
from edgeloop.models.upload import Uploader, UploadOptions
from edgeloop.store import Blobs, Record, Store
from tests.cli.running import blobs_of, is_empty, rows_of
from tests.conftest import StoreUnderTest
from tests.models.test_upload import NOW, catalog_on
from tests.nets import save_external, save_tiny
from tests.store.passing import PassingBlobs

AT_ONCE = 6

MakePlace = Callable[[str], StoreUnderTest]
MakeStore = Callable[[StoreUnderTest], Store]


class SavesMeanwhile(PassingBlobs):
    """A training script saves its file between the check and the upload."""

    def __init__(self, inner: Blobs, path: Path, content: bytes) -> None:
        super().__init__(inner)
        self._path, self._content = path, content

    def put_hashed(self, key: str, source: Path) -> str:
        self._path.write_bytes(self._content)
        return self.inner.put_hashed(key, source)


@pytest.mark.parametrize("changed", ["net.onnx", "weights.bin"])
@pytest.mark.parametrize("is_large", [False, True])
def test_a_file_that_changes_between_its_check_and_its_upload_is_not_stored(
    store: Store,
    tmp_path: Path,
    changed: str,
    is_large: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    if is_large:
        monkeypatch.setattr("edgeloop.store.files.IN_MEMORY_BYTES", 0)
    path = save_external(tmp_path / "net.onnx", 1)
    real, before = store.blobs, (tmp_path / changed).read_bytes()
    store.blobs = SavesMeanwhile(real, tmp_path / changed, before[::-1])
    with pytest.raises(LocalFileError, match=f"{changed}: it changed while it was uploaded"):
        catalog_on(store).upload(path)
    store.blobs = real
    assert is_empty(store)
    (tmp_path / changed).write_bytes(before)
    uploaded = catalog_on(store).upload(path)
    assert uploaded.is_new, "nothing says that it was here already"
    record = records_of(uploaded.model.row)["upload"]
    assert record.sha256.keys() == {"net.onnx", "weights.bin"}


def test_the_graph_that_is_checked_is_of_the_bytes_that_are_hashed(
    sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The file is cut off after its graph was read."""
    path = save_tiny(tmp_path / "net.onnx")
    whole = path.read_bytes()

    def cut_off(path: Path) -> None:
        path.write_bytes(whole[:-20])

    monkeypatch.setattr("edgeloop.models.upload._check_graph", cut_off)
    with pytest.raises(LocalFileError, match="changed while it was uploaded"):
        catalog_on(sqlite).upload(path, None, UploadOptions(check=False))
    assert is_empty(sqlite)


@pytest.mark.parametrize("harm", ["flipped", "cut off", "longer", "of another model"])
@pytest.mark.parametrize("file", ["net.onnx", "weights.bin", "architecture.json"])
def test_a_damaged_file_is_not_handed_out(sqlite: Store, tmp_path: Path, harm: str, file: str):
    catalog = catalog_on(sqlite)
    path = save_external(tmp_path / "net.onnx", 1)
    model = catalog.upload(path, "net", UploadOptions(architecture='{"a": 1}')).model
    content = sqlite.blobs.read(f"default/net/{file}")
    flipped = bytes([content[0] ^ 1]) + content[1:]
    other = b"x" * len(content)
    harmed = {"flipped": flipped, "cut off": content[:-1], "longer": content + b"\0"}
    sqlite.blobs.put(f"default/net/{file}", harmed.get(harm, other))
    for match in ("*", file):
        with pytest.raises(FileDamaged, match=f"{file} of net is damaged in the store"):
            model.download(tmp_path / "out", match)
        assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("mine")
    with pytest.raises(FileDamaged):
        model.download(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]
    sqlite.blobs.put(f"default/net/{file}", content)
    assert len(model.download(tmp_path / "out")) == 3


def test_rows_of_older_versions_say_enough_to_notice_damage(sqlite: Store, tmp_path: Path):
    """They have one hash over all uploaded files; with given shapes it is not the files' alone."""
    catalog = catalog_on(sqlite)
    catalog.upload(save_tiny(tmp_path / "tiny.onnx"), "tiny")
    options = UploadOptions(architecture="{}")
    catalog.upload(save_external(tmp_path / "net.onnx"), "net", options)
    for name in ("tiny", "net"):
        _forget_contents(sqlite, name)
        catalog.download(name, tmp_path / name)
    sqlite.blobs.put("default/tiny/tiny.onnx", b"x")
    with pytest.raises(FileDamaged, match=r"tiny\.onnx of tiny"):
        catalog.download("tiny", tmp_path / "tiny")
    sqlite.blobs.put("default/net/weights.bin", (tmp_path / "weights.bin").read_bytes() + b"x")
    with pytest.raises(FileDamaged, match=r"net\.onnx of net"):
        catalog.download("net", tmp_path / "net")


def _forget_contents(store: Store, name: str) -> None:
    row = catalog_on(store).get(name)
    records = records_of(row.values)
    record = dict(vars(records["upload"]), sha256={})
    records["upload"] = type(records["upload"])(**record)
    store.models("default").update(row, with_records(records))


def test_a_download_that_arrives_damaged_is_asked_for_once_more(sqlite: Store, tmp_path: Path):
    catalog = catalog_on(sqlite)
    catalog.upload(save_tiny(tmp_path / "net.onnx"), "net")
    real = sqlite.blobs

    class FirstTimeDamaged(PassingBlobs):
        times = 0

        def get(self, key: str, target: Path) -> None:
            super().get(key, target)
            self.times += 1
            if self.times == 1:
                target.write_bytes(b"x")

    sqlite.blobs = FirstTimeDamaged(real)
    (path,) = catalog.download("net", tmp_path / "out")
    assert path.read_bytes() == (tmp_path / "net.onnx").read_bytes()


def test_the_same_content_uploaded_at_once_is_stored_once(
    place: StoreUnderTest, make_store: MakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """All of them have seen that nobody has it before one of them says that it will."""
    path = save_external(tmp_path / "net.onnx")
    everybody = threading.Barrier(AT_ONCE)
    answers: list[tuple[str, bool]] = []
    faults: list[BaseException] = []
    monkeypatch.setattr("edgeloop.models.upload.NOTE_PATIENCE_S", 600.0)

    def upload(store: Store) -> None:
        notes = store.queue("default")
        real, looks = notes.get, iter([True])

        def get(key: str) -> Record | None:
            found = real(key)
            if next(looks, False):
                everybody.wait(60)
            return found

        notes.get = get  # type: ignore[method-assign]
        store.queue = lambda experiment: notes  # type: ignore[method-assign]
        try:
            uploaded = catalog_on(store).upload(path)
            answers.append((uploaded.model.name, uploaded.is_new))
        except BaseException as error:
            faults.append(error)
            raise

    stores = [make_store(place) for _ in range(AT_ONCE)]
    threads = [threading.Thread(target=upload, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert faults == []
    (name,) = rows_of(stores[0])
    assert sorted(answers) == sorted([(name, True), *[(name, False)] * (AT_ONCE - 1)])
    assert len(blobs_of(stores[0])) == 2


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeloop.models.upload.NOTE_PATIENCE_S", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_note_whose_owner_died_before_its_row_is_taken_over(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = save_tiny(tmp_path / "net.onnx")

    def die(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(Uploader, "_reserve", die)
        patched.setattr("edgeloop.models.upload.ContentNotes.withdraw", lambda *_: None)
        with pytest.raises(SystemExit):
            catalog_on(store, node="dead").upload(path)
    assert rows_of(store) == {}
    assert catalog_on(store).upload(path).is_new
    assert not catalog_on(store).upload(path).is_new
    assert len(rows_of(store)) == 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("step", ["before its row", "after its row"])
def test_one_that_was_only_slow_takes_its_row_back(
    store: Store, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
):
    path = save_tiny(tmp_path / "net.onnx")
    slow = catalog_on(store, node="slow")
    reserve = slow._uploader._reserve
    names: list[str] = []

    def sleep_and_reserve(*arguments: object) -> object:
        monkeypatch.setattr(slow._uploader, "_reserve", reserve)
        row = reserve(*arguments) if step == "after its row" else None  # type: ignore[arg-type]
        uploaded = catalog_on(store, node="quick").upload(path)
        assert uploaded.is_new
        names.append(uploaded.model.name)
        return row or reserve(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(slow._uploader, "_reserve", sleep_and_reserve)
    uploaded = slow.upload(path)
    assert (uploaded.model.name, uploaded.is_new) == (names[0], False)
    assert list(rows_of(store)) == names and len(blobs_of(store)) == 1


def test_a_note_of_a_model_that_was_deleted_holds_nobody_up(store: Store, tmp_path: Path):
    path = save_tiny(tmp_path / "net.onnx")
    catalog_on(store).upload(path, "net")
    catalog_on(store).delete("net")
    again = catalog_on(store).upload(path)
    assert again.is_new and again.model.name != "net"
    beside = catalog_on(store).upload(path, "beside")
    assert beside.is_new, "a name of its own was asked for"
    assert catalog_on(store).upload(path).model.name == again.model.name


def test_an_upload_of_the_same_content_is_waited_for(
    sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = save_tiny(tmp_path / "net.onnx")
    begun, waited = threading.Event(), threading.Event()
    monkeypatch.setattr("edgeloop.models.upload.time.sleep", lambda _: waited.set())
    real = sqlite.blobs

    class Slow(PassingBlobs):
        def put(self, key: str, source: Path | bytes) -> None:
            begun.set()
            assert waited.wait(60)
            super().put(key, source)

    sqlite.blobs = Slow(real)
    first = threading.Thread(target=catalog_on(sqlite).upload, args=(path, "net"))
    sqlite_names = []
    first.start()
    assert begun.wait(60)
    for name in (None, "net"):
        uploaded = catalog_on(sqlite, NOW).upload(path, name)
        sqlite_names.append((uploaded.model.name, uploaded.is_new))
    first.join(60)
    assert sqlite_names == [("net", False)] * 2


@pytest.fixture
def sqlite(make_place: MakePlace, make_store: MakeStore) -> Store:
    return make_store(make_place("sqlite"))
