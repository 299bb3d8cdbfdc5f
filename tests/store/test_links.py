"""Symbolic links in the folder of a store are never followed: not by listing, reading, writing or
deleting, at no depth, and not where one is put in between. What they point at stays as it is."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from edgeloop.errors import BlobBehindLink, BlobMissing
from edgeloop.store import Access, Blobs, FolderBlobs, open_from_job
from edgeloop.testing.contracts.blobs import listed


def _in_a_job(folder: Path) -> Blobs:
    return open_from_job(Access("LocalStore", {"folder": str(folder)}))


@pytest.fixture(params=[FolderBlobs, _in_a_job], ids=["here", "in a job"])
def make(request: pytest.FixtureRequest) -> Callable[[Path], Blobs]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What is not the store's."""
    folder = tmp_path / "thesis"
    (folder / "chapters").mkdir(parents=True)
    (folder / "chapters" / "one.txt").write_text("years of work")
    (folder / "notes.txt").write_text("more work")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def blobs(make: Callable[[Path], Blobs], root: Path) -> Blobs:
    blobs = make(root)
    blobs.put("default/net/net.onnx", b"model")
    return blobs


def contents(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


LINKS = {
    "a folder": ("default/net/notes", "thesis"),
    "a folder, deep": ("default/net/a/b/c/notes", "thesis/chapters"),
    "a file": ("default/net/notes", "thesis/notes.txt"),
    "a file with the name of a model": ("default/net/other.onnx", "thesis/notes.txt"),
    "nothing": ("default/net/notes", "nowhere"),
    "itself": ("default/net/notes", "blobs/default/net/notes"),
    "the store": ("default/net/notes", "blobs"),
    "a sibling": ("default/net/notes", "blobs/default/net/net.onnx"),
}


@pytest.mark.parametrize("kind", LINKS)
def test_a_link_below_a_folder_is_passed_over_and_goes_with_it(
    blobs: Blobs, root: Path, outside: Path, kind: str
) -> None:
    name, target = LINKS[kind]
    before = contents(outside)
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).symlink_to(root.parent / target)
    assert listed(blobs) == listed(blobs, "default/net/") == ["default/net/net.onnx"]
    with pytest.raises(BlobBehindLink):
        blobs.info(name)
    with pytest.raises(BlobBehindLink, match="symbolic link"):
        blobs.read(name)
    with pytest.raises(BlobBehindLink, match="not followed"):
        blobs.get(name, root.parent / "copy")
    with pytest.raises(BlobBehindLink):
        blobs.read_range(name, 0, 4)
    assert blobs.create(name, b"x") is False
    blobs.delete_folder("default/net")
    assert listed(blobs) == [] and not os.path.lexists(root / "default")
    assert contents(outside) == before


def test_a_link_to_a_file_is_removed_or_replaced_and_its_target_is_not(
    blobs: Blobs, root: Path, outside: Path
) -> None:
    before = contents(outside)
    for number, act in enumerate(
        (lambda key: blobs.delete([key]), lambda key: blobs.put(key, b"new"))
    ):
        key = f"default/net/{number}"
        (root / key).symlink_to(outside / "notes.txt")
        act(key)
        assert not (root / key).is_symlink()
    assert blobs.read("default/net/1") == b"new" and contents(outside) == before


@pytest.mark.parametrize("linked", ["default", "default/net"])
def test_behind_a_link_there_is_nothing_to_read_write_or_delete(
    make: Callable[[Path], Blobs], root: Path, outside: Path, linked: str
) -> None:
    """The folder of a whole experiment, or of a model, is a link; what is behind it looks right."""
    behind = outside / "net" if linked == "default" else outside
    behind.mkdir(exist_ok=True)
    (behind / "net.onnx").write_text("mine")
    (root / linked).parent.mkdir(parents=True)
    (root / linked).symlink_to(outside)
    before, blobs = contents(outside), make(root)
    key = "default/net/net.onnx"
    assert listed(blobs) == []
    for act in (
        lambda: blobs.size(key),
        lambda: listed(blobs, "default/net/"),
        lambda: blobs.read(key),
        lambda: blobs.get(key, root.parent / "copy"),
        lambda: blobs.put(key, b"theirs"),
        lambda: blobs.create("default/net/new", b"theirs"),
        lambda: blobs.put("default/net/a/b/new", b"theirs"),
    ):
        with pytest.raises(BlobBehindLink, match="is a symbolic link"):
            act()
    blobs.delete([key, "default/net/chapters/one.txt"])
    blobs.delete_folder("default/net")
    assert contents(outside) == before
    assert (root / linked).is_symlink() == (linked == "default")


def test_a_link_that_takes_a_folder_s_place_between_list_and_delete_is_not_followed(
    blobs: Blobs, root: Path, outside: Path
) -> None:
    """Whoever lists a folder holds keys that a moment later lead through a link."""
    blobs.put("default/net/chapters/one.txt", b"of the store")
    before = contents(outside)
    keys = [info.key for info in blobs.list("default/net/")]
    (root / "default" / "net").rename(root / "aside")
    (root / "default" / "net").symlink_to(outside)
    blobs.delete(keys)
    assert contents(outside) == before


def test_links_that_come_and_go_all_the_time_are_never_followed(
    blobs: Blobs, root: Path, outside: Path
) -> None:
    before, done = contents(outside), threading.Event()
    place = root / "default" / "chapters"

    def swap() -> None:
        while not done.is_set():
            with suppress(OSError):  # a delete removes the folder, too
                place.symlink_to(outside / "chapters")
                place.unlink()
                place.mkdir()
                (place / "one.txt").write_text("of the store")
                (place / "one.txt").unlink()
                place.rmdir()

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(300):
            with suppress(BlobMissing, BlobBehindLink):
                assert set(listed(blobs, "default/")) <= {
                    *("default/net/net.onnx", "default/chapters/one.txt")
                }
                assert blobs.read("default/chapters/one.txt") != b"years of work"
            blobs.delete(["default/chapters/one.txt"])
    finally:
        done.set()
        thread.join()
    assert contents(outside) == before


def test_pipes_and_sockets_are_no_files(blobs: Blobs, root: Path) -> None:
    os.mkfifo(root / "default" / "net" / "pipe")
    assert listed(blobs) == ["default/net/net.onnx"]
    assert blobs.size("default/net/pipe") is None
    with pytest.raises(BlobMissing):
        blobs.read("default/net/pipe")


def test_the_folder_of_a_store_may_be_a_link(make: Callable[[Path], Blobs], tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    blobs = make(tmp_path / "store" / "blobs")
    blobs.put("a/b", b"x")
    assert blobs.read("a/b") == b"x" and listed(blobs) == ["a/b"]
    assert (tmp_path / "disk" / "blobs" / "a" / "b").read_bytes() == b"x"
    blobs.delete(["a/b"])
    assert listed(blobs) == []


def test_a_folder_of_the_user_s_own_may_hold_links(outside: Path, tmp_path: Path) -> None:
    """The input of a job is no store: people collect datasets with links."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "chapters").symlink_to(outside / "chapters")
    (data / "notes.txt").symlink_to(outside / "notes.txt")
    (data / "loop").symlink_to(data)
    access = Access("LocalStore", {"folder": str(data), "links": "follow"})
    blobs = open_from_job(access)
    assert listed(blobs) == ["chapters/one.txt", "notes.txt"]
    assert blobs.read("chapters/one.txt") == b"years of work"


def test_a_new_edgeloop_folder_is_its_owner_s_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        FolderBlobs(tmp_path / ".edgeloop" / "blobs").put("a/b", b"x")
        FolderBlobs(tmp_path / "shared" / "blobs").put("a/b", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / ".edgeloop").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o755
