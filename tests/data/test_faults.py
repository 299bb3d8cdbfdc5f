"""Kills, changes under way, damage, hostile manifests: nothing half, nothing twice."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from edgeloop.errors import DatasetDamaged, LocalFileError, StoreUnavailable
from edgeloop.node import datasets as node_datasets
from edgeloop.node import ledger as manifest
from edgeloop.node.datasets import Datasets
from edgeloop.node.files import FolderBlobs
from edgeloop.node.ledger import PIECE_BYTES, File, Ledger, Manifest, Manifests, PieceLocation
from edgeloop.store import Blobs
from tests.data.trees import NAME, Watched, noise, objects, tree, write

LIMIT_S = 60

# A process that is stopped dead by SIGKILL in the middle of its n-th transfer.
KILLED = """
import os, signal, sys
from pathlib import Path
from edgeloop.node.datasets import Datasets
from edgeloop.node.files import FolderBlobs
from tests.data.trees import NAME, Watched

verb, stage, count, store, index, folder = sys.argv[1:]
blobs, left = Watched(FolderBlobs(Path(store))), [int(count)]

def die(seen, key):
    if seen == ("put" if verb == "push" else "read") and "/objects/" in key:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

setattr(blobs, stage, die)
datasets = Datasets(blobs, Path(index))
datasets.push(NAME, Path(folder)) if verb == "push" else datasets.pull(NAME, Path(folder))
"""


def run_killed(verb: str, stage: str, count: int, store: Path, index: Path, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, verb, stage, str(count), store, index, folder],
        cwd=Path(__file__).parents[2],
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


@pytest.fixture
def many(source: Path) -> Path:
    """About 60 MB: packs, and a file of three pieces."""
    write(source, {f"{number:03d}": noise(200_000, number) for number in range(100)})
    write(source, {"large": noise(2 * PIECE_BYTES + 2_000_000)})
    return source


@pytest.mark.parametrize("stage", ["before", "after"])
def test_a_killed_push_publishes_nothing_and_the_next_sends_the_rest_only(
    many: Path, tmp_path: Path, stage: str
):
    store, index = tmp_path / "store", tmp_path / "index"
    run_killed("push", stage, 3, store, index, many)
    blobs = Watched(FolderBlobs(store))
    datasets = Datasets(blobs, index)
    assert datasets.list() == ()
    there = objects(blobs)
    assert there or stage == "before"  # several are sent at once: none of them may have arrived
    pushed = datasets.push(NAME, many)
    assert blobs.sent == pushed.bytes - sum(there.values())
    assert sum(objects(blobs).values()) == pushed.bytes
    assert datasets.verify(NAME).is_right


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_killed_pull_leaves_no_half_file_and_the_next_fetches_the_rest(
    many: Path, tmp_path: Path, count: int
):
    store, index, target = tmp_path / "store", tmp_path / "index", tmp_path / "target"
    Datasets(FolderBlobs(store)).push(NAME, many)
    run_killed("pull", "before", count, store, index, target)
    whole = tree(many)
    for path, content in tree(target).items():
        assert path.endswith(".edgeloop-part") or content == whole[path]
    blobs = Watched(FolderBlobs(store))
    there = [path for path in tree(target) if path in whole]
    pulled = Datasets(blobs, index).pull(NAME, target)
    assert pulled.moved_files == len(whole) - len(there)
    assert tree(target) == whole


def test_a_large_file_goes_on_at_the_piece_it_was_at(many: Path, tmp_path: Path):
    blobs = Watched(FolderBlobs(tmp_path / "store"))
    Datasets(blobs).push(NAME, many)
    large = [file for file in many.iterdir() if file.name != "large"]
    for file in large:
        file.unlink()
    Datasets(blobs).push("working/large", many)
    calls: list[str] = []

    def fail(verb: str, key: str) -> None:
        if verb == "read" and "/objects/" in key:
            calls.append(key)
            if len(calls) == 3:
                raise StoreUnavailable(store="x", reason="away")

    blobs.before = fail
    with pytest.raises(StoreUnavailable):
        Datasets(blobs).pull("working/large", tmp_path / "target")
    assert not (tmp_path / "target/large").exists()
    blobs.forget()
    Datasets(blobs).pull("working/large", tmp_path / "target")
    assert blobs.fetched < 2 * PIECE_BYTES + 2_000_000
    assert tree(tmp_path / "target") == tree(many)


def test_leftovers_of_a_killed_pull_are_not_pushed_and_go_with_the_next(
    folder_blobs: Blobs, source: Path, tmp_path: Path
):
    write(source, {"a": b"1", ".0123.edgeloop-part": b"half"})
    datasets = Datasets(folder_blobs, tmp_path / "index")
    assert datasets.push(NAME, source).files == 1
    datasets.pull(NAME, source)
    assert tree(source) == {"a": b"1"}


# A dataset that changes while it is pushed


def test_a_file_that_keeps_changing_is_named_and_nothing_is_published(
    folder_blobs: Blobs, source: Path, monkeypatch: pytest.MonkeyPatch
):
    write(source, {"calm": b"1", "restless": b"2"})
    real = node_datasets.read_piece
    turns = iter(range(1_000))

    def read(folder: Path, found, number: int) -> bytes:
        if found.path == "restless":
            write(source, {"restless": b"%d" % next(turns) * 3})
        return real(folder, found, number)

    monkeypatch.setattr(node_datasets, "read_piece", read)
    with pytest.raises(LocalFileError, match=r"restless: it keeps changing.*nothing was published"):
        Datasets(folder_blobs).push(NAME, source)
    assert Datasets(folder_blobs).list() == ()


@pytest.mark.parametrize("size", [10, PIECE_BYTES + 10])
def test_a_file_that_changes_once_is_pushed_as_it_is_then(
    folder_blobs: Blobs, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
):
    write(source, {"a": noise(size, 1), "gone": b"x"})
    real, left = node_datasets.read_piece, [1]

    def read(folder: Path, found, number: int) -> bytes:
        content = real(folder, found, number)
        if left:
            left.pop()
            write(source, {"a": noise(size, 2)})
            (source / "gone").unlink()
        return content

    monkeypatch.setattr(node_datasets, "read_piece", read)
    datasets = Datasets(folder_blobs, tmp_path / "index")
    assert datasets.push(NAME, source).reference.version == 1
    datasets.pull(NAME, tmp_path / "target")
    assert tree(tmp_path / "target") == {"a": noise(size, 2)}


def test_what_is_no_file_is_named(
    folder_blobs: Blobs, source: Path, monkeypatch: pytest.MonkeyPatch
):
    datasets = Datasets(folder_blobs)
    with pytest.raises(LocalFileError, match="holds no file"):
        datasets.push(NAME, source)
    with pytest.raises(LocalFileError, match="no such folder"):
        datasets.push(NAME, source / "nowhere")
    write(source, {"a": b"1"})
    os.mkfifo(source / "pipe")
    with pytest.raises(LocalFileError, match="pipe: is a socket, a pipe or a device"):
        datasets.push(NAME, source)
    (source / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(source)  # a socket's path has a short limit
        server.bind("socket")
        with pytest.raises(LocalFileError, match="socket: is a socket"):
            datasets.push(NAME, source)
    (source / "socket").unlink()
    (source / "broken").symlink_to("nowhere")
    with pytest.raises(LocalFileError, match="broken: is a broken link"):
        datasets.push(NAME, source)
    (source / "broken").unlink()
    (source / "inside").mkdir()
    (source / "inside/loop").symlink_to(source)
    with pytest.raises(LocalFileError, match="loop: is a link to a folder that contains it"):
        datasets.push(NAME, source)
    (source / "inside/loop").unlink()
    Path(os.fsdecode(bytes(source) + b"/caf\xe9")).touch()
    with pytest.raises(LocalFileError, match=r"caf.*its name is not UTF-8"):
        datasets.push(NAME, source)


def test_links_are_followed(folder_blobs: Blobs, source: Path, tmp_path: Path):
    write(tmp_path / "elsewhere", {"x": b"1", "y/z": b"2"})
    (source / "file").symlink_to(tmp_path / "elsewhere/x")
    (source / "one").symlink_to(tmp_path / "elsewhere")
    (source / "two").symlink_to(tmp_path / "elsewhere")
    Datasets(folder_blobs).push(NAME, source)
    Datasets(folder_blobs).pull(NAME, tmp_path / "target")
    expected = {"file": b"1"}
    for link in ("one", "two"):
        expected |= {f"{link}/x": b"1", f"{link}/y/z": b"2"}
    assert tree(tmp_path / "target") == expected
    assert not any(path.is_symlink() for path in (tmp_path / "target").rglob("*"))


# Damage and malice in the store


@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
def test_damaged_bytes_are_noticed_and_nothing_of_them_appears(
    datasets: Datasets, blobs: Blobs, source: Path, tmp_path: Path, how: str
):
    write(source, {"fine": noise(2_000_000, 1), "hurt": noise(1_800_000, 2)})
    datasets.push(NAME, source)
    key = next(key for key, size in objects(blobs).items() if size == 1_800_000)
    content = blobs.read(key)
    blobs.delete([key])
    if how != "missing":
        bad = content[:-7] if how == "cut" else content[:9] + bytes([content[9] ^ 1]) + content[10:]
        blobs.put(key, bad)
    with pytest.raises(DatasetDamaged, match=r"working/faces@1: .*remove this version"):
        datasets.pull(NAME, tmp_path / "target")
    assert not (tmp_path / "target/hurt").exists()
    assert datasets.verify(NAME).damaged == ("hurt",)
    datasets.remove(NAME)
    datasets.push(NAME, source)
    assert datasets.verify(NAME).is_right


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../up", "a/../../up", "a//b", "./a", "", "a/", "nul\x00", 7, None]
)
def test_a_manifest_whose_paths_lead_out_is_refused(path: object):
    content = {"format": 1, "objects": [], "pieces": [], "files": [[path, 0, 0, 0, []]]}
    with pytest.raises(ValueError, match=r"path|named"):
        manifest.decoded(gzip.compress(json.dumps(content).encode()))


def publish(blobs: Blobs, files: tuple[File, ...], places: dict[str, PieceLocation]) -> None:
    """As somebody who may write to the store and means ill would."""
    ledger, manifests = Ledger(blobs, NAME), Manifests(blobs, NAME, None)
    from edgeloop.node.ledger import Version

    key = manifests.store(Manifest(files, places))
    head = ledger.head()
    ledger.append(head, [Version(NAME, 1, key, 1, 1, "now", "them")], 2, "them")


def test_a_hostile_manifest_writes_nothing(folder_blobs: Blobs, tmp_path: Path):
    publish(folder_blobs, (File("../up", 0, 0, False, ()),), {})
    with pytest.raises(DatasetDamaged, match="leads out of its folder"):
        Datasets(folder_blobs).pull(NAME, tmp_path / "inside" / "target")
    assert not (tmp_path / "inside" / "up").exists()


def test_a_manifest_that_was_replaced_in_the_store_is_refused(
    folder_blobs: Blobs, source: Path, tmp_path: Path
):
    write(source, {"a": b"1"})
    Datasets(folder_blobs).push(NAME, source)
    (published,) = folder_blobs.list("_data/manifests/")
    other = Manifest((File("planted", 0, 0, False, ()),), {})
    folder_blobs.put(published.key, manifest.encoded(other))
    with pytest.raises(DatasetDamaged, match="not the one that was published"):
        Datasets(folder_blobs).pull(NAME, tmp_path / "target")
    assert not (tmp_path / "target/planted").exists()


@pytest.mark.parametrize(
    "rows",
    [
        {"files": [["a", 1, 0, 0, []]]},
        {"files": [["a", 0, 0, 0, [0]]]},
        {"files": [["a", 0, 0, 0, []], ["a", 0, 0, 0, []]]},
        {"files": [["a", 0, 0, 0, []], ["a/b", 0, 0, 0, []]]},
        {"files": [["a", 0, 0, 0]]},
        {"files": 5},
        {"format": 2},
        {"objects": ["../../secret"]},
        {"objects": ["0" * 32], "pieces": [["0" * 64, 0, -1, 5]]},
        {"objects": ["0" * 32], "pieces": [["0" * 64, 1, 0, 5]]},
        {"objects": ["0" * 32], "pieces": [["zz", 0, 0, 5]]},
    ],
    ids=str,
)
def test_a_manifest_that_we_could_not_have_written_is_refused(rows: dict[str, object]):
    content = {"format": 1, "objects": [], "pieces": [], "files": []} | rows
    with pytest.raises((ValueError, TypeError, LookupError)):
        manifest.decoded(gzip.compress(json.dumps(content).encode()))


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"versions": 3}'])
def test_a_log_that_cannot_be_read_is_said(folder_blobs: Blobs, tmp_path: Path, content: bytes):
    folder_blobs.put("_data/log/working@faces/00000001.json", content)
    with pytest.raises(DatasetDamaged, match="record 1 of its ledger"):
        Datasets(folder_blobs).pull(NAME, tmp_path / "target")


def test_a_spoiled_index_journal_or_copy_of_a_manifest_is_as_good_as_none(
    folder_blobs: Blobs, source: Path, tmp_path: Path
):
    datasets = Datasets(folder_blobs, tmp_path / "index")
    write(source, {"a": b"1"})
    datasets.push(NAME, source)
    (tmp_path / "index/working@faces/journal").write_bytes(b'{"id": "x"}\n{"key')
    for file in (tmp_path / "index").rglob("*.*"):
        if file.is_file():
            file.write_bytes(b"\x00spoiled")
    write(source, {"b": b"2"})
    assert datasets.push(NAME, source).moved_bytes == 1
    assert datasets.pull(NAME, source).moved_files == 0
