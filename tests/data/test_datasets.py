"""What is pushed comes back, only differences move, and versions stay what they are."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from edgeloop.errors import BadInput, LocalFileError, NoSuchDataset
from edgeloop.node import ledger
from edgeloop.node.datasets import Datasets
from edgeloop.node.ledger import PIECE_BYTES, Reference
from edgeloop.store import Blobs
from tests.data.trees import NAME, Watched, noise, objects, tree, write

ODD_FILES = {
    "plain.txt": b"plain",
    "with space/and  two .txt": b"spaces",
    "grüße/你好-🚀.bin": b"unicode",
    "photo#1": b"a key cannot end so",
    "back\\slash": b"backslash",
    "new\nline": b"line",
    "dots/..hidden..": b"dots",
    "a?b*c:d|e<f>\"'%41&;$": b"signs",
    "empty": b"",
    "deep/" * 20 + "file": b"deep",
    "n" * 255: b"longest",
}


@pytest.fixture
def quick_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests cannot wait until files are old: here the index trusts times at once."""
    monkeypatch.setattr(ledger, "RACY_NS", -(10**12))


@pytest.mark.slow
def test_all_kinds_of_names_and_sizes_come_back(datasets: Datasets, source: Path, tmp_path: Path):
    files = ODD_FILES | {
        "large": noise(2 * PIECE_BYTES + 5),
        "exactly one piece": noise(PIECE_BYTES, 2),
        "middling": noise(3_000_000, 3),
    }
    files |= {f"many/{number:04d}": noise(45_000, number) for number in range(200)}
    write(source, files)
    pushed = datasets.push(NAME, source)
    assert pushed.reference == Reference(NAME, 1)
    assert (pushed.files, pushed.bytes) == (len(files), sum(map(len, files.values())))
    pulled = datasets.pull(NAME, tmp_path / "target")
    assert (pulled.files, pulled.moved_bytes) == (len(files), pushed.bytes)
    assert tree(tmp_path / "target") == files
    assert datasets.verify(NAME, tmp_path / "target").is_right
    assert datasets.verify(NAME).is_right


def test_times_and_the_executable_bit_come_back(datasets: Datasets, source: Path, tmp_path: Path):
    write(source, {"run.sh": b"#!/bin/sh", "data": b"x"})
    (source / "run.sh").chmod(0o755)
    os.utime(source / "data", ns=(10**18, 10**18 + 7))
    datasets.push(NAME, source)
    datasets.pull(NAME, tmp_path / "target")
    assert (tmp_path / "target/run.sh").stat().st_mode & stat.S_IXUSR
    assert not (tmp_path / "target/data").stat().st_mode & stat.S_IXUSR
    assert (tmp_path / "target/data").stat().st_mtime_ns == 10**18 + 7


def test_a_change_of_the_executable_bit_alone_is_a_new_version_that_moves_nothing(
    datasets: Datasets, source: Path, tmp_path: Path
):
    write(source, {"run.sh": b"#!/bin/sh"})
    datasets.push(NAME, source)
    datasets.pull(NAME, tmp_path / "target")
    (source / "run.sh").chmod(0o755)
    pushed = datasets.push(NAME, source)
    assert (pushed.reference.version, pushed.moved_bytes) == (2, 0)
    assert datasets.pull(NAME, tmp_path / "target").moved_files == 0
    assert (tmp_path / "target/run.sh").stat().st_mode & stat.S_IXUSR


@pytest.mark.slow
def test_thousands_of_small_files_are_a_few_objects(blobs: Blobs, tmp_path: Path, source: Path):
    write(source, {f"{number}": noise(20_000, number) for number in range(1_000)})
    Datasets(blobs).push(NAME, source)
    assert len(objects(blobs)) == 3
    assert sum(objects(blobs).values()) == 20_000_000


def test_only_differences_are_sent_and_fetched(blobs: Blobs, source: Path, tmp_path: Path):
    watched = Watched(blobs)
    datasets = Datasets(watched, tmp_path / "index")
    write(source, {f"{number}": noise(5_000, number) for number in range(300)})
    write(source, {"large": noise(PIECE_BYTES + 1_500_000)})
    datasets.push(NAME, source)
    datasets.pull(NAME, tmp_path / "target")
    watched.forget()
    write(source, {"7": b"changed", "new/8": b"new"})
    with (source / "large").open("r+b") as file:
        file.seek(PIECE_BYTES + 3)
        file.write(b"!")
    (source / "9").unlink()
    dry = datasets.push(NAME, source, dry_run=True)
    assert watched.sent == 0
    pushed = datasets.push(NAME, source)
    assert (pushed.moved_files, pushed.moved_bytes) == (3, 7 + 3 + 1_500_000)
    assert (dry.moved_files, dry.moved_bytes) == (3, 7 + 3 + 1_500_000)
    assert watched.sent == pushed.moved_bytes
    watched.forget()
    pulled = datasets.pull(NAME, tmp_path / "target")
    assert pulled.moved_files == 3
    assert watched.fetched < PIECE_BYTES + 1_500_000 + 100
    (tmp_path / "target/9").unlink()
    assert tree(tmp_path / "target") == tree(source)


def test_a_few_files_of_a_pack_are_fetched_by_range(blobs: Blobs, source: Path, tmp_path: Path):
    watched = Watched(blobs)
    write(source, {f"{number:03d}": noise(20_000, number) for number in range(200)})
    datasets = Datasets(watched, tmp_path / "index")
    datasets.push(NAME, source)
    shutil.copytree(source, tmp_path / "target")
    for name in ("003", "150", "199"):
        (tmp_path / "target" / name).unlink()
    pulled = datasets.pull(NAME, tmp_path / "target")
    assert pulled.moved_files == 3
    assert watched.fetched == 60_000
    assert tree(tmp_path / "target") == tree(source)


def test_nothing_changed_makes_no_version_and_reads_no_file(
    folder_blobs: Blobs, source: Path, tmp_path: Path, quick_trust: None, monkeypatch
):
    datasets = Datasets(folder_blobs, tmp_path / "index")
    write(source, {"a": b"1", "b/c": b"2"})
    assert datasets.push(NAME, source).is_new
    monkeypatch.setattr("edgeloop.node.ledger.read_piece", lambda *_: pytest.fail("was read"))
    again = datasets.push(NAME, source)
    assert (again.is_new, again.reference.version, again.moved_bytes) == (False, 1, 0)
    assert len(datasets.versions(NAME)) == 1


def test_a_file_written_just_before_it_was_read_is_read_again(
    folder_blobs: Blobs, source: Path, tmp_path: Path
):
    """Its times may not show a second change within the same tick of the clock."""
    datasets = Datasets(folder_blobs, tmp_path / "index")
    write(source, {"a": b"first"})
    datasets.push(NAME, source)
    before = (source / "a").stat()
    real = ledger.Index.pieces

    def same_times(self: ledger.Index, found):
        changed = found._replace(mtime_ns=before.st_mtime_ns, ctime_ns=before.st_ctime_ns)
        return real(self, changed)

    write(source, {"a": b"other"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger.Index, "pieces", same_times)
        assert datasets.push(NAME, source).reference.version == 2


def test_the_same_content_under_another_name_is_not_sent(blobs: Blobs, source: Path):
    watched = Watched(blobs)
    write(source, {"a": noise(50_000), "copy": noise(50_000)})
    Datasets(watched).push(NAME, source)
    assert watched.sent == 50_000
    (source / "a").rename(source / "moved")
    assert Datasets(watched).push(NAME, source).moved_bytes == 0


def test_versions_stay_what_they_were(datasets: Datasets, source: Path, tmp_path: Path):
    for number in (1, 2, 3):
        write(source, {"a": b"%d" % number, f"only {number}": b"x"})
        assert datasets.push(NAME, source, message=f"no {number}").reference.version == number
    for number in (1, 2, 3):
        datasets.pull(f"faces@{number}", tmp_path / str(number))
        assert (tmp_path / str(number) / "a").read_bytes() == b"%d" % number
        assert len(tree(tmp_path / str(number))) == 1 + number
    assert [item.message for item in datasets.versions(NAME)] == ["no 1", "no 2", "no 3"]
    assert [item.reference for item in datasets.list()] == [Reference(NAME, 3)]
    assert datasets.versions(NAME)[0].node == "here"


def test_removal_frees_what_nobody_needs_and_only_that(
    datasets: Datasets, blobs: Blobs, source: Path, tmp_path: Path
):
    write(source, {"shared": noise(2_000_000, 1), "old": noise(3_000_000, 2)})
    datasets.push(NAME, source)
    (source / "old").unlink()
    write(source, {"new": noise(4_000_000, 3)})
    datasets.push(NAME, source)
    assert [item.version for item in datasets.remove(NAME, [1])] == [1]
    assert sorted(objects(blobs).values()) == [2_000_000, 4_000_000]
    assert datasets.verify(NAME).is_right
    with pytest.raises(NoSuchDataset, match="no version 1 of it, only 2"):
        datasets.pull("faces@1", tmp_path / "target")
    datasets.remove(NAME)
    assert objects(blobs) == {} and list(blobs.list("_data/manifests/")) == []
    assert datasets.list() == ()
    assert datasets.push(NAME, source).reference.version == 3  # numbers are not used again
    datasets.pull(NAME, tmp_path / "target")
    assert tree(tmp_path / "target") == tree(source)


def test_a_version_that_is_not_there_cannot_be_removed(datasets: Datasets, source: Path):
    write(source, {"a": b"x"})
    datasets.push(NAME, source)
    with pytest.raises(NoSuchDataset, match="version 7"):
        datasets.remove(NAME, [1, 7])
    with pytest.raises(NoSuchDataset, match="raw/nothing"):
        datasets.remove("raw/nothing")
    assert len(datasets.versions(NAME)) == 1


def test_a_name_inside_another_is_another_dataset(datasets: Datasets, source: Path):
    write(source, {"a": b"x"})
    for name in ("working/a", "working/a/b", "working/a/log", "working/a/00000001.json"):
        assert datasets.push(name, source).reference == Reference(name, 1)
    datasets.remove("working/a")
    assert [v.name for v in datasets.list()] == [
        "working/a/00000001.json",
        "working/a/b",
        "working/a/log",
    ]
    assert datasets.verify("working/a/b").is_right


def test_a_bare_name_is_looked_up_and_never_guessed(datasets: Datasets, source: Path):
    write(source, {"a": b"x"})
    with pytest.raises(NoSuchDataset, match="none of that name"):
        datasets.resolve("faces")
    datasets.push("raw/faces", source)
    assert datasets.resolve("faces") == Reference("raw/faces", 1)
    with pytest.raises(NoSuchDataset, match="did you mean 'raw/faces'"):
        datasets.resolve("face")
    datasets.push("working/faces", source)
    with pytest.raises(BadInput, match="working/faces or raw/faces"):
        datasets.resolve("faces")
    assert datasets.resolve("raw/faces@1") == Reference("raw/faces", 1)


# Pulling over what is there


def test_a_pull_leaves_other_files_alone_unless_told(
    datasets: Datasets, source: Path, tmp_path: Path
):
    write(source, {"a": b"x"})
    datasets.push(NAME, source)
    target, outside = tmp_path / "target", tmp_path / "outside"
    write(target, {"mine/notes": b"mine"})
    write(outside, {"precious": b"kept"})
    (target / "link").symlink_to(outside)
    assert datasets.pull(NAME, target).deleted_files == 0
    assert (target / "mine/notes").exists()
    dry = datasets.pull(NAME, target, delete=True, dry_run=True)
    assert dry.deleted_files == 2 and (target / "mine/notes").exists()
    datasets.pull(NAME, target, delete=True)
    assert [path.name for path in target.iterdir()] == ["a"]
    assert (outside / "precious").read_bytes() == b"kept"


def test_a_pull_does_not_overwrite_what_was_changed_here(
    datasets: Datasets, source: Path, tmp_path: Path
):
    target = tmp_path / "target"
    write(source, {"a": b"1", "b": b"1"})
    datasets.push(NAME, source)
    datasets.pull(NAME, target)
    write(source, {"a": b"2", "b": b"2"})
    datasets.push(NAME, source)
    write(target, {"b": b"my own work"})
    with pytest.raises(LocalFileError, match=r"target/b: it was changed here .*--force"):
        datasets.pull(NAME, target)
    assert tree(target) == {"a": b"1", "b": b"my own work"}
    datasets.push(NAME, target, dry_run=True)  # reading it does not make it known to the store
    with pytest.raises(LocalFileError, match="changed here"):
        datasets.pull(NAME, target)
    datasets.pull(NAME, target, force=True)
    assert tree(target) == tree(source)


def test_a_pull_overwrites_what_was_pushed_or_pulled_and_not_touched_since(
    datasets: Datasets, source: Path, tmp_path: Path
):
    write(source, {"a": b"1"})
    datasets.push(NAME, source)
    write(source, {"a": b"2"})
    datasets.push(NAME, source)
    datasets.pull("faces@1", source)
    assert tree(source) == {"a": b"1"}
    datasets.pull("faces@2", source)
    assert tree(source) == {"a": b"2"}


def test_a_folder_in_the_way_is_named(datasets: Datasets, source: Path, tmp_path: Path):
    write(source, {"a": b"1", "b/c": b"2"})
    datasets.push(NAME, source)
    write(tmp_path / "one", {"a/inside": b""})
    write(tmp_path / "two", {"b": b""})
    with pytest.raises(LocalFileError, match="one/a"):
        datasets.pull(NAME, tmp_path / "one")
    with pytest.raises(LocalFileError, match="two/b"):
        datasets.pull(NAME, tmp_path / "two")
    assert not list(tmp_path.rglob("*.edgeloop-part"))


def test_a_pull_writes_through_a_folder_that_is_a_link(
    datasets: Datasets, source: Path, tmp_path: Path
):
    write(source, {"images/a": b"1", "b": b"2"})
    datasets.push(NAME, source)
    target = tmp_path / "target"
    (tmp_path / "large disk").mkdir()
    target.mkdir()
    (target / "images").symlink_to(tmp_path / "large disk")
    datasets.pull(NAME, target)
    assert (tmp_path / "large disk/a").read_bytes() == b"1"


# Verifying


def test_verify_tells_what_differs(datasets: Datasets, source: Path, tmp_path: Path):
    write(source, {"same": b"1", "changed": b"2", "missing": b"3", "bit": b"4"})
    datasets.push(NAME, source)
    target = tmp_path / "target"
    datasets.pull(NAME, target)
    assert datasets.verify(NAME, target).is_right
    times = (target / "changed").stat()
    write(target, {"changed": b"X", "extra": b""})
    os.utime(target / "changed", ns=(times.st_atime_ns, times.st_mtime_ns))
    (target / "missing").unlink()
    (target / "bit").chmod(0o755)
    found = datasets.verify(NAME, target)
    assert not found.is_right
    assert (found.missing, found.changed, found.extra) == (
        ("missing",),
        ("bit", "changed"),
        ("extra",),
    )
