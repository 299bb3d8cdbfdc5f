"""Whoever slept through what others did meanwhile deletes and overwrites nothing of theirs.

A process is frozen (a closed lid, a slow network) by running what the others do in the middle of
one of its requests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeloop.errors import EdgeloopError, ModelBusy, StoreUnavailable
from edgeloop.models.catalog import Catalog
from edgeloop.models.leases import Leases, Outcome
from edgeloop.models.plan import default_plan
from edgeloop.store import Store
from tests.conftest import StoreUnderTest
from tests.models.test_upload import NOW, catalog_on
from tests.nets import save_tiny

CONVERTED = {"quantized": True, "macs": 1, "params": 1, "shape": "[1]", "output_shape": "[1]"}
HOUR = 3_600.0


class Scene:
    """One person whose process freezes, and another one."""

    def __init__(self, mine: Store, theirs: Store, folder: Path) -> None:
        self.mine, self.theirs, self.folder = mine, theirs, folder
        self.old = save_tiny(folder / "a/net.onnx", 1)
        self.new = save_tiny(folder / "b/net.onnx", 2)

    def freeze(self, call: str, meanwhile: Callable[[], None]) -> None:
        """What happens before the next such request of mine reaches the store."""
        blobs, real = self.mine.blobs, getattr(self.mine.blobs, call)

        def frozen(*arguments: object) -> object:
            setattr(blobs, call, real)
            meanwhile()
            return real(*arguments)

        setattr(blobs, call, frozen)

    def me(self, now: float = NOW) -> Catalog:
        return catalog_on(self.mine, now, "me")

    def them(self, now: float = NOW) -> Catalog:
        return catalog_on(self.theirs, now, "them")

    def replace(self) -> None:
        """They delete what is there, and upload and convert a model of that name."""
        self.them().delete("net")
        self.them().upload(self.new, "net")
        self.convert("new")

    def convert(self, text: str) -> None:
        models, hints = self.theirs.models("default"), self.theirs.queue("default")
        leases = Leases(models, hints, default_plan(), clock=lambda: NOW)
        lease = leases.claim(["quantize"], "n")
        assert lease is not None and lease.model == "net"
        made = self.folder / "net.dlc"
        made.write_text(text)
        stored = self.them().stored
        keys = stored.put_attempt("net", lease.token, {"net.dlc": made})
        leases.commit(lease, Outcome(CONVERTED, keys))
        stored.publish("net", lease.token, {"net.dlc": made})

    def check(self) -> None:
        """Their model is whole."""
        for path in self.them().download("net", self.folder / "out"):
            content = path.read_bytes()
            assert content == (b"new" if path.suffix == ".dlc" else self.new.read_bytes())
        assert {path.name for path in (self.folder / "out").iterdir()} == {"net.onnx", "net.dlc"}
        assert self.them().get("net").values["status"] == "waiting"


@pytest.fixture
def scene(
    place: StoreUnderTest, make_store: Callable[[StoreUnderTest], Store], tmp_path: Path
) -> Scene:
    return Scene(make_store(place), make_store(place), tmp_path)


@contextlib.contextmanager
def may_fail() -> Iterator[None]:
    """Being told that somebody else was faster is fine."""
    with contextlib.suppress(EdgeloopError):
        yield


@pytest.mark.parametrize("call", ["list", "delete_unchanged"])
def test_a_delete_that_froze_takes_nothing_of_a_later_model(scene: Scene, call: str):
    scene.me().upload(scene.old, "net")
    scene.freeze(call, scene.replace)
    with may_fail():
        scene.me().delete("net")
    scene.check()


def test_a_delete_that_froze_keeps_the_row_that_a_later_delete_needs(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    """Without its row, the remaining files of the later model would be orphaned."""

    def replace_and_begin_to_delete() -> None:
        scene.replace()
        with monkeypatch.context() as patch, pytest.raises(StoreUnavailable):
            patch.setattr(scene.theirs.blobs, "delete_unchanged", unavailable)
            scene.them().delete("net")

    def unavailable(files: object) -> None:
        raise StoreUnavailable(store="x", reason="gone")

    scene.me().upload(scene.old, "net")
    # The first listing is made before the row is marked, the second one afterwards.
    scene.freeze("list", lambda: scene.freeze("list", replace_and_begin_to_delete))
    with pytest.raises(ModelBusy, match="another command is deleting it, too"):
        scene.me().delete("net")
    scene.them().delete("net")
    assert list(scene.theirs.blobs.list("default/net/")) == []


@pytest.mark.parametrize("call", ["list", "delete_unchanged"])
def test_a_delete_that_froze_takes_nothing_of_the_same_model_uploaded_again(
    scene: Scene, call: str
):
    scene.new = scene.old
    scene.me().upload(scene.old, "net")
    scene.freeze(call, scene.replace)
    with may_fail():
        scene.me().delete("net")
    scene.check()


@pytest.mark.parametrize("call", ["list", "put_hashed", "delete_unchanged"])
def test_an_upload_that_froze_neither_overwrites_nor_deletes(scene: Scene, call: str):
    """Theirs deletes the half-made model. Before the files are sent, after, and when they go back:
    the name then belongs to another model."""
    if call == "delete_unchanged":
        scene.mine.blobs.put("default/net/left.onnx", b"by a delete that was cut off")
    scene.freeze(call, scene.replace)
    with may_fail():
        scene.me().upload(scene.old, "net")
    scene.check()


def test_an_upload_that_slept_through_its_lease_neither_overwrites_nor_deletes(scene: Scene):
    """And neither does it harm the model after that one, when all others ended in good order."""

    def take_over() -> None:
        scene.them(NOW + 7 * HOUR).upload(save_tiny(scene.folder / "c/net.onnx", 3), "net")
        scene.replace()

    scene.freeze("put_hashed", take_over)
    with may_fail():
        scene.me().upload(scene.old, "net")
    scene.check()


def test_a_failed_upload_that_froze_while_it_was_taken_back_deletes_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise StoreUnavailable(store="x", reason="gone")

    me = scene.me()
    monkeypatch.setattr(me._uploader._queue, "update", fail)
    real = me._uploader.take_back

    def freeze(row: object) -> None:
        scene.freeze("delete_unchanged", scene.replace)
        real(row)  # type: ignore[arg-type]

    monkeypatch.setattr(me._uploader, "take_back", freeze)
    with pytest.raises(StoreUnavailable):
        me.upload(scene.old, "net")
    scene.check()


@pytest.mark.parametrize("is_equal", [False, True])
def test_a_reset_that_froze_takes_nothing_of_later_results(scene: Scene, is_equal: bool):
    """Also where the new result is the old one, byte for byte, and its name is taken still."""
    scene.them().upload(scene.new, "net")
    scene.convert("new" if is_equal else "old")

    def again() -> None:
        if not is_equal:
            scene.them().reset("net")
        scene.convert("new")

    scene.freeze("delete_unchanged", again)
    scene.me().reset("net")
    scene.check()


@pytest.mark.parametrize("call", ["list", "delete_unchanged"])
def test_a_clean_up_that_froze_takes_nothing_of_a_later_model(scene: Scene, call: str):
    scene.mine.blobs.put("default/net/net.onnx", b"of a model that is gone")
    scene.freeze(call, scene.replace)
    scene.me().clear_orphans("net", NOW + 1e9)
    scene.check()


def test_files_of_an_upload_that_follows_a_broken_one_are_where_nobody_else_writes(
    scene: Scene,
):
    """And those of one that follows good uploads and deletes lie directly in the model's folder."""
    for _ in range(2):
        scene.me().upload(scene.old, "net")
        assert [file.key for file in scene.me().files("net")] == ["default/net/net.onnx"]
        scene.me().delete("net")
    scene.freeze("put_hashed", scene.replace)
    with may_fail():
        scene.me().upload(scene.old, "net")
    (file,) = [file for file in scene.me().files("net") if file.name == "net.onnx"]
    assert file.key.startswith("default/net/upload-")
