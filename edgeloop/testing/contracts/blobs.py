"""What every space of files promises: whole puts, exact bytes, plain prefixes, checked keys."""

from __future__ import annotations

import hashlib
import os
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from edgeloop.errors import BadName, BlobMissing, LocalFileError, StoreRefused
from edgeloop.store import Blobs
from edgeloop.store.files import open_access

ODD_NAMES = [
    "with space.txt",
    "grüße-你好.txt",
    "🚀.bin",
    "a#b.txt",
    "50%.txt",
    "%41.txt",
    "a+b.txt",
    "a&b=c;d.txt",
    "it's (1) [2] {3}.txt",
    "~tilde.txt",
    ".hidden",
    "UPPER.TXT",
    "a,b@c!d$e.txt",
    "a?b*c.txt",
    "a:b|c<d>e.txt",
    'say "hi".txt',
    "^caret`tick.txt",
]
BAD_KEYS = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../up.txt",
    "a/../b.txt",
    "a/..",
    ".",
    "./a.txt",
    "a/./b.txt",
    "a//b.txt",
    "a/",
    "/a",
    "a\\b.txt",
    "..\\up.txt",
    "a\nb.txt",
    "a\x00b.txt",
    "a\x7fb.txt",
    "tab\t.txt",
    "half\ud83d.txt",
    "photo#1",  # a folder cannot hold it: obstore keeps such names for uploads under way
]


def listed(blobs: Blobs, prefix: str = "") -> list[str]:
    return sorted(info.key for info in blobs.list(prefix))


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class BlobsContract:
    """Fixture: `blobs`, an empty one. Set `has_links` or `has_access` to False where the store
    cannot make links, or cannot be opened from another process: it must then refuse in a sentence.
    """

    has_links = True
    has_access = True

    # Putting and reading

    def test_bytes_come_back_as_they_were(self, blobs: Blobs) -> None:
        blobs.put("model/file.bin", bytes(range(256)))
        assert blobs.read("model/file.bin") == bytes(range(256))

    def test_a_file_comes_back_as_it_was(self, blobs: Blobs, tmp_path: Path) -> None:
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(os.urandom(100_000))
        blobs.put("model/file.bin", source)
        blobs.get("model/file.bin", target)
        assert target.read_bytes() == source.read_bytes()

    def test_an_empty_file_is_a_file(self, blobs: Blobs, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        blobs.put("by/bytes", b"")
        blobs.put("by/path", tmp_path / "empty")
        for key in ("by/bytes", "by/path"):
            blobs.get(key, tmp_path / "target")
            assert blobs.read(key) == (tmp_path / "target").read_bytes() == b""
        assert [info.size for info in blobs.list("by/")] == [0, 0]

    def test_a_file_of_40_megabytes_comes_back_as_it_was(
        self, blobs: Blobs, tmp_path: Path
    ) -> None:
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(os.urandom(40_000_003))
        blobs.put("model/large.onnx", source)
        blobs.get("model/large.onnx", target)
        assert digest(target) == digest(source)
        assert [info.size for info in blobs.list("model/")] == [40_000_003]

    @pytest.mark.parametrize("size", [0, 1_000, 40_000_003])
    def test_what_is_stored_is_what_its_hash_says(
        self, blobs: Blobs, tmp_path: Path, size: int
    ) -> None:
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(os.urandom(size))
        assert blobs.put_hashed("model/net.onnx", source) == digest(source)
        blobs.get("model/net.onnx", target)
        assert digest(target) == digest(source)
        with pytest.raises(LocalFileError, match="nowhere"):
            blobs.put_hashed("file", tmp_path / "nowhere")

    def test_a_second_put_takes_the_place_of_the_first(self, blobs: Blobs, tmp_path: Path) -> None:
        target = tmp_path / "target"
        blobs.put("file", b"the first and longer one")
        blobs.put("file", b"second")
        blobs.get("file", target)
        blobs.put("file", b"third")
        blobs.get("file", target)
        assert blobs.read("file") == target.read_bytes() == b"third"
        assert listed(blobs) == ["file"]

    def test_a_source_that_is_not_there_is_named(self, blobs: Blobs, tmp_path: Path) -> None:
        with pytest.raises(LocalFileError, match="nowhere"):
            blobs.put("file", tmp_path / "nowhere")
        assert listed(blobs) == []

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_a_name_may_hold_odd_characters(self, blobs: Blobs, tmp_path: Path, name: str) -> None:
        key = f"folder {name}/{name}"
        blobs.put(key, name.encode())
        assert listed(blobs) == listed(blobs, key) == [key]
        assert listed(blobs, key.rpartition("/")[0] + "/") == [key]
        assert blobs.read(key) == name.encode()
        blobs.get(key, tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == name.encode()
        blobs.delete([key])
        assert listed(blobs) == []

    # Getting

    @pytest.mark.parametrize("key", ["nobody", "no/body", "there/not"])
    def test_a_file_that_is_not_there_is_missing(
        self, blobs: Blobs, tmp_path: Path, key: str
    ) -> None:
        for _ in range(2):  # before anything was put, and after
            with pytest.raises(BlobMissing, match=key):
                blobs.read(key)
            with pytest.raises(BlobMissing, match=key):
                blobs.get(key, tmp_path / "new" / "target")
            blobs.put("there/file", b"x")
        assert list(tmp_path.rglob("*.part")) == []
        assert not (tmp_path / "new" / "target").exists()

    def test_a_folder_is_no_file(self, blobs: Blobs) -> None:
        blobs.put("folder/file", b"x")
        with pytest.raises(BlobMissing):
            blobs.read("folder")

    def test_get_makes_the_folders_on_its_way(self, blobs: Blobs, tmp_path: Path) -> None:
        blobs.put("file", b"x")
        blobs.get("file", tmp_path / "some" / "new" / "folder" / "target")
        assert (tmp_path / "some" / "new" / "folder" / "target").read_bytes() == b"x"

    def test_get_leaves_nothing_behind_but_its_target(self, blobs: Blobs, tmp_path: Path) -> None:
        blobs.put("file", b"x")
        blobs.get("file", tmp_path / "target")
        assert [path.name for path in tmp_path.iterdir()] == ["target"]

    def test_a_get_that_cannot_end_leaves_no_part(self, blobs: Blobs, tmp_path: Path) -> None:
        blobs.put("file", b"x")
        (tmp_path / "target").mkdir()
        (tmp_path / "plain").touch()
        with pytest.raises(LocalFileError, match="target"):
            blobs.get("file", tmp_path / "target")
        with pytest.raises(LocalFileError, match="below"):
            blobs.get("file", tmp_path / "plain" / "below")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "target"]

    def test_a_failed_get_leaves_the_older_file_alone(self, blobs: Blobs, tmp_path: Path) -> None:
        (tmp_path / "target").write_bytes(b"older")
        with pytest.raises(BlobMissing):
            blobs.get("nobody", tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == b"older"

    def test_a_target_may_have_the_longest_name_there_is(
        self, blobs: Blobs, tmp_path: Path
    ) -> None:
        blobs.put("file", b"x")
        target = tmp_path / ("你" * 84)
        blobs.get("file", target)
        assert target.read_bytes() == b"x"

    # Creating, sizes and ranges

    def test_a_file_is_created_once(self, blobs: Blobs) -> None:
        assert blobs.create("log/1", b"first") is True
        assert blobs.create("log/1", b"second") is False
        assert blobs.read("log/1") == b"first"
        blobs.put("log/2", b"put")
        assert blobs.create("log/2", b"created") is False
        blobs.delete(["log/1"])
        assert blobs.create("log/1", b"again") is True

    def test_of_many_who_create_the_same_file_one_is_told_so(self, blobs: Blobs) -> None:
        for key in ("log/1", "log/2", "log/3"):
            contents = [f"{key} by {number}".encode() for number in range(12)]
            with ThreadPoolExecutor(12) as pool:
                told = list(pool.map(blobs.create, [key] * 12, contents))
            assert sorted(told) == [False] * 11 + [True]
            assert blobs.read(key) == contents[told.index(True)]

    def test_the_size_of_a_file_is_known_without_reading_it(self, blobs: Blobs) -> None:
        assert blobs.size("a/file") is None
        blobs.put("a/file", b"12345")
        blobs.put("a/empty", b"")
        assert (blobs.size("a/file"), blobs.size("a/empty")) == (5, 0)
        assert blobs.size("a/other") is None
        assert blobs.size("a") is None

    def test_some_bytes_of_a_file_can_be_read(self, blobs: Blobs) -> None:
        content = os.urandom(100_000)
        blobs.put("file", content)
        for start, length in ((0, 10), (500, 70_000), (99_990, 10), (99_990, 11), (0, 10**9)):
            assert blobs.read_range("file", start, length) == content[start : start + length]
        for start, length in ((100_000, 1), (10**9, 5), (7, 0)):
            assert blobs.read_range("file", start, length) == b""
        with pytest.raises(BlobMissing, match="nobody"):
            blobs.read_range("nobody", 0, 1)

    # For others

    def test_a_link_gives_the_file_to_anybody_or_is_refused_in_a_sentence(
        self, blobs: Blobs
    ) -> None:
        blobs.put("a folder/file ü", b"content")
        if not self.has_links:
            with pytest.raises(StoreRefused, match="no links"):
                blobs.link("a folder/file ü", 60)
            return
        link = blobs.link("a folder/file ü", 60)
        with urllib.request.urlopen(link, timeout=10) as answer:  # noqa: S310
            assert answer.read() == b"content"

    def test_access_opens_the_same_files_or_is_refused_in_a_sentence(self, blobs: Blobs) -> None:
        blobs.put("mine", b"1")
        if not self.has_access:
            with pytest.raises(StoreRefused, match="this process only"):
                blobs.access(60)
            return
        access = blobs.access(60)
        assert "sig" not in repr(access)
        there = open_access(access)
        assert there.read("mine") == b"1"
        there.put("theirs", b"2")
        assert there.create("theirs", b"3") is False
        assert listed(blobs) == listed(there) == ["mine", "theirs"]
        there.delete(["mine"])
        assert listed(blobs) == ["theirs"]

    # Listing

    def test_nothing_is_listed_before_anything_was_put(self, blobs: Blobs) -> None:
        assert listed(blobs) == []
        assert listed(blobs, "model/") == []

    def test_a_folder_is_not_its_namesakes(self, blobs: Blobs) -> None:
        for key in ("m1/a", "m1/b/c", "m1.txt", "m12/a", "m1x/a", "other/m1/a"):
            blobs.put(key, b"")
        assert listed(blobs, "m1/") == ["m1/a", "m1/b/c"]
        assert listed(blobs, "m1/b/") == ["m1/b/c"]
        assert listed(blobs, "m2/") == []

    def test_a_folder_may_end_in_a_number_sign_and_digits(self, blobs: Blobs) -> None:
        blobs.put("run#1/file", b"x")
        assert listed(blobs, "run#1/") == listed(blobs, "run#") == ["run#1/file"]
        blobs.delete_folder("run#1")
        assert listed(blobs) == []

    def test_a_prefix_is_plain_text(self, blobs: Blobs) -> None:
        for key in ("run/log-1", "run/log-2", "run/model", "running/log-3", "log-4"):
            blobs.put(key, b"")
        assert listed(blobs, "run/log") == ["run/log-1", "run/log-2"]
        assert listed(blobs, "run") == ["run/log-1", "run/log-2", "run/model", "running/log-3"]
        assert listed(blobs, "log") == ["log-4"]
        assert len(listed(blobs)) == 5

    def test_a_listing_tells_size_and_time(self, blobs: Blobs) -> None:
        blobs.put("a/file", b"12345")
        [info] = blobs.list("a/")
        assert (info.key, info.size) == ("a/file", 5)
        assert abs(info.modified - datetime.now(UTC)) < timedelta(minutes=5)

    @pytest.mark.parametrize("prefix", ["../", "..", "/", "/etc/", "a/../../", "\\"])
    def test_a_listing_does_not_leave_its_place(self, blobs: Blobs, prefix: str) -> None:
        blobs.put("a/file", b"x")
        assert listed(blobs, prefix) == []

    # Deleting

    def test_a_deleted_file_is_gone(self, blobs: Blobs) -> None:
        blobs.put("a/1", b"")
        blobs.put("a/2", b"")
        blobs.delete(["a/1"])
        assert listed(blobs) == ["a/2"]
        with pytest.raises(BlobMissing):
            blobs.read("a/1")

    def test_files_that_are_not_there_may_be_deleted(self, blobs: Blobs) -> None:
        blobs.delete(["nobody", "no/body"])
        blobs.delete([])
        for key in ("a/1", "a/3", "a/5"):
            blobs.put(key, b"")
        blobs.delete([f"a/{number}" for number in range(7)])
        assert listed(blobs) == []

    def test_hundreds_of_files_go_at_once(self, blobs: Blobs) -> None:
        keys = [f"a/{number:03d}" for number in range(300)]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda key: blobs.put(key, b"x"), keys[1:]))
        blobs.put("b/stays", b"")
        assert listed(blobs, "a/") == keys[1:]
        blobs.delete(iter(keys))  # the first of them is not there
        assert listed(blobs) == ["b/stays"]

    def test_a_folder_goes_with_all_below_it(self, blobs: Blobs) -> None:
        for key in ("m1/a", "m1/b/c", "m12/a"):
            blobs.put(key, b"")
        blobs.delete_folder("m1")
        blobs.delete_folder("nobody/")
        assert listed(blobs) == ["m12/a"]

    def test_only_the_files_that_were_listed_are_deleted_late(self, blobs: Blobs) -> None:
        for key in ("folder/changed", "folder/gone", "folder/same"):
            blobs.put(key, b"first")
        seen = list(blobs.list("folder/"))
        blobs.delete(["folder/gone"])
        blobs.put("folder/changed", b"other")
        assert blobs.delete_unchanged(seen) == 1
        assert blobs.read("folder/changed") == b"other"
        assert listed(blobs) == ["folder/changed"]
        assert blobs.delete_unchanged(blobs.list("folder/")) == 1
        assert blobs.delete_unchanged(()) == 0
        assert listed(blobs) == []

    def test_a_deleted_file_may_be_put_again(self, blobs: Blobs) -> None:
        for content in (b"1", b"2", b"3"):
            blobs.put("a/b/c", content)
            assert blobs.read("a/b/c") == content
            blobs.delete(["a/b/c"])

    # Many at once

    def test_many_files_go_there_and_back(self, blobs: Blobs, tmp_path: Path) -> None:
        sources = {f"run/{n % 5}/{n}": tmp_path / "up" / str(n) for n in range(60)}
        (tmp_path / "up").mkdir()
        for path in sources.values():
            path.write_bytes(path.name.encode() * 1_000)
        blobs.put_many(sources)
        assert listed(blobs, "run/") == sorted(sources)
        targets = {key: tmp_path / "down" / key for key in sources}
        blobs.get_many(targets)
        assert all(digest(targets[key]) == digest(sources[key]) for key in sources)

    def test_many_files_of_which_one_is_missing_say_which(
        self, blobs: Blobs, tmp_path: Path
    ) -> None:
        blobs.put("a", b"x")
        with pytest.raises(BlobMissing, match="nobody"):
            blobs.get_many({"a": tmp_path / "a", "nobody": tmp_path / "b"})
        with pytest.raises(LocalFileError, match="nowhere"):
            blobs.put_many({"b": tmp_path / "a", "c": tmp_path / "nowhere"})

    def test_a_reader_sees_one_put_or_another_never_a_mixture(self, blobs: Blobs) -> None:
        contents = [bytes([65 + number]) * 200_000 for number in range(8)]
        blobs.put("file", contents[0])
        with ThreadPoolExecutor(8) as pool:
            puts = [pool.submit(blobs.put, "file", content) for content in contents]
            reads = [pool.submit(blobs.read, "file") for _ in range(16)]
            for put in puts:
                put.result()
            assert all(read.result() in contents for read in reads)
        assert blobs.read("file") in contents

    def test_puts_and_deletes_in_one_folder_do_not_meet(self, blobs: Blobs) -> None:
        """The folder of a file that goes may be the folder of one that comes."""

        def come_and_go(number: int) -> None:
            for _ in range(5):
                blobs.put(f"shared/deep/{number}", b"x")
                blobs.delete([f"shared/deep/{number}"])
            blobs.put(f"shared/deep/{number}", b"x")

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(come_and_go, range(8)))
        assert listed(blobs, "shared/") == [f"shared/deep/{number}" for number in range(8)]

    # What is refused

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_a_key_that_could_leave_its_place_is_refused(
        self, blobs: Blobs, tmp_path: Path, key: str
    ) -> None:
        for _ in range(2):  # before anything was put, and after
            with pytest.raises(BadName):
                blobs.put(key, b"x")
            with pytest.raises(BadName):
                blobs.read(key)
            with pytest.raises(BadName):
                blobs.get(key, tmp_path / "target")
            with pytest.raises(BadName):
                blobs.delete([key])
            with pytest.raises(BadName):
                blobs.create(key, b"x")
            with pytest.raises(BadName):
                blobs.size(key)
            with pytest.raises(BadName):
                blobs.read_range(key, 0, 1)
            blobs.put("fine", b"")
        assert listed(blobs) == ["fine"]
        assert not (tmp_path / "target").exists()
