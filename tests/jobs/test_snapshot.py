"""Code is stored once per content, whole, and never with what must stay here."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgeloop.errors import BadJob, LocalFileError
from edgeloop.jobs import snapshot
from edgeloop.jobs import snapshot as module
from edgeloop.jobs.snapshot import CodeSnapshot
from edgeloop.store import Store
from edgeloop.testing import memory_blobs


def code(folder: Path, files: dict[str, bytes]) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def unpacked(archive: bytes) -> dict[str, tuple[bytes, int]]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {
            item.name: (file.read(), item.mode)
            for item in tar
            if (file := tar.extractfile(item)) is not None
        }


def test_the_archive_holds_the_files_and_who_may_run(tmp_path: Path):
    names = ["train.py", "deep/er/x.bin", "grüße 你好.txt", "n" * 200, "go.sh"]
    code(tmp_path, {name: name.encode() for name in names})
    (tmp_path / "go.sh").chmod(0o755)
    source = unpacked(CodeSnapshot.take(tmp_path).archive())
    assert source == {n: (n.encode(), 0o755 if n == "go.sh" else 0o644) for n in names}


def test_the_same_code_elsewhere_and_later_is_the_same_bytes(tmp_path: Path):
    files = {"b.py": b"1", "a/c.py": b"2", "a.py": b"3"}
    one = code(tmp_path / "one", files)
    two = code(tmp_path / "two", dict(reversed(files.items())))
    os.utime(two / "b.py", (1, 1))
    first, second = CodeSnapshot.take(one), CodeSnapshot.take(two)
    assert first.digest == second.digest and first.archive() == second.archive()
    assert first.archive()[4:8] == bytes(4)  # the time in the header of gzip
    with tarfile.open(fileobj=io.BytesIO(first.archive())) as tar:
        assert {(item.mtime, item.uid, item.uname) for item in tar} == {(0, 0, "")}


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "a.py").write_bytes(b"2"),
        lambda root: (root / "a.py").rename(root / "b.py"),
        lambda root: (root / "a.py").chmod(0o755),
        lambda root: (root / "new.py").touch(),
    ],
    ids=["content", "name", "mode", "a file more"],
)
def test_every_change_gives_another_digest(tmp_path: Path, change: Callable[[Path], object]):
    code(tmp_path, {"a.py": b"1"})
    before = CodeSnapshot.take(tmp_path).digest
    change(tmp_path)
    assert CodeSnapshot.take(tmp_path).digest != before


def test_unchanged_code_is_sent_once_to_every_store(tmp_path: Path, store: Store):
    root = code(tmp_path / "code", {"a.py": b"1" * 5000})
    key, sent = CodeSnapshot.take(root).ensure(store.blobs)
    again, sent_again = CodeSnapshot.take(root).ensure(store.blobs)
    assert (sent, sent_again, again) == (True, False, key)
    assert key.startswith("_code/") and key.endswith(".tar.gz")
    assert unpacked(store.blobs.read(key)) == {"a.py": (b"1" * 5000, 0o644)}
    code(root, {"a.py": b"2"})
    assert CodeSnapshot.take(root).ensure(store.blobs)[1]
    assert len(list(store.blobs.list("_code/"))) == 2


def test_code_that_was_sent_already_is_not_even_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    blobs, root = memory_blobs(), code(tmp_path, {"a.py": b"1"})
    CodeSnapshot.take(root).ensure(blobs)
    monkeypatch.setattr(CodeSnapshot, "archive", lambda self: pytest.fail("packed"))
    assert CodeSnapshot.take(root).ensure(blobs)[1] is False


def test_a_file_that_is_a_private_key_stays_here_and_is_named(tmp_path: Path):
    key = b"-----BEGIN RSA PRIVATE KEY-----\nMIIE\n"
    code(tmp_path, {"a.py": b"1", "deploy.txt": key})
    taken = CodeSnapshot.take(tmp_path)
    assert "a.py" in taken and "deploy.txt" not in taken
    assert taken.withheld == ("deploy.txt",)
    assert b"MIIE" not in b"".join(content for content, _ in unpacked(taken.archive()).values())


def test_what_is_not_sent_is_one_clause_with_a_way_to_send_it(tmp_path: Path):
    late = b"#" * 100_000 + b"\n-----BEGIN PRIVATE KEY-----\nMIIE\n"
    code(tmp_path, {"a.py": b"1", "notes.txt": late, ".env": b"T=1", ".aws/config": b"x"})
    taken = CodeSnapshot.take(tmp_path)
    assert [file.path for file in taken.files] == ["a.py"]
    assert taken.withheld_note == (
        "without .aws/, .env, notes.txt, which may hold secrets (to send one anyway: a line '!.aws'"
        " in .edgeloopignore)"
    )
    (tmp_path / ".edgeloopignore").write_text("!notes.txt\n!.aws/config\n")
    again = CodeSnapshot.take(tmp_path)
    assert again.withheld == (".aws/", ".env") and "notes.txt" in again and ".aws/config" in again
    with_secret = CodeSnapshot.take(tmp_path, secrets=["1", "# nothing"])
    assert "a.py" in with_secret  # too short a text is no mark of anything
    code(tmp_path, {"job.yaml": b"variables: {TOKEN: abcdef-123}"})
    assert "job.yaml" not in CodeSnapshot.take(tmp_path, secrets=["abcdef-123"])


class Vanishing:
    """`os.open` while somebody clears up: files go after they were listed."""

    def __init__(self, folder: Path, replace: bool) -> None:
        self.folder, self.replace, self.real = folder, replace, os.open

    def __call__(self, path: Path, *more: int) -> int:
        if Path(path).name == "log.tmp":
            Path(path).unlink()
            if self.replace:
                os.mkfifo(path)
        return self.real(path, *more)


@pytest.mark.parametrize("replace", [False, True], ids=["gone", "now a pipe"])
def test_a_file_that_vanishes_is_no_part_of_it(tmp_path: Path, monkeypatch, replace: bool):
    code(tmp_path, {"a.py": b"1", "log.tmp": b"2"})
    monkeypatch.setattr(module.os, "open", Vanishing(tmp_path, replace))
    assert [file.path for file in CodeSnapshot.take(tmp_path).files] == ["a.py"]


def test_a_folder_that_vanishes_is_no_part_of_it(tmp_path: Path, monkeypatch):
    code(tmp_path, {"a.py": b"1", "build/x": b"2", "build/.gitignore": b"y"})
    really = os.scandir

    def scandir(path):
        if str(path).endswith("build") and Path(path).exists():
            for file in Path(path).iterdir():
                file.unlink()
            Path(path).rmdir()
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [file.path for file in CodeSnapshot.take(tmp_path).files] == ["a.py"]


def test_a_file_that_grew_since_it_was_listed_is_not_read_whole(tmp_path: Path, monkeypatch):
    code(tmp_path, {"a.log": b"x" * 3_000_000})
    really = snapshot.CodeFolder.files
    smaller = lambda self: (replace(file, size=10) for file in really(self))  # noqa: E731
    monkeypatch.setattr(snapshot.CodeFolder, "files", smaller)
    with pytest.raises(BadJob, match=r"the code is 1\.0 MB, over the limit"):
        CodeSnapshot.take(tmp_path, limit_bytes=1_000_000)


def test_too_much_code_is_refused_with_the_largest_files(tmp_path: Path):
    code(tmp_path, {"train.py": b"1", "ckpt/best.pt": b"x" * 3_000_000, "b.bin": b"x" * 1_500_000})
    with pytest.raises(BadJob) as caught:
        CodeSnapshot.take(tmp_path, limit_bytes=2_000_000)
    said = str(caught.value)
    assert "the code is 4.5 MB, over the limit of 2.0 MB" in said
    assert said.index("ckpt/best.pt (3.0 MB)") < said.index("b.bin (1.5 MB)")
    assert ".edgeloopignore" in said and "code_limit_mb" in said and "\n" not in said
    (tmp_path / ".edgeloopignore").write_text("ckpt/\n*.bin\n")
    assert "train.py" in CodeSnapshot.take(tmp_path, limit_bytes=2_000_000)


def test_too_many_small_files_are_refused_with_their_folder(tmp_path: Path):
    code(tmp_path, {f"images/{index}.png": b"x" * 1000 for index in range(50)})
    with pytest.raises(BadJob, match=r"the largest are images/ \(50\.0 kB\)"):
        CodeSnapshot.take(tmp_path, limit_bytes=20_000)


class Meddled:
    """`os.fstat` as it would answer while somebody writes: another time for the first reads."""

    def __init__(self, changes: int) -> None:
        self.left, self.real = 2 * changes, os.fstat

    def __call__(self, descriptor: int) -> os.stat_result:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if self.left and path.name == "a.py":
            self.left -= 1
            os.utime(path, ns=(self.left, self.left))
            path.write_bytes(b"content %d" % (self.left // 2))
            os.utime(path, ns=(self.left, self.left))
        return self.real(descriptor)


def test_a_file_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code(tmp_path, {"a.py": b"first", "b.py": b"b"})
    monkeypatch.setattr(module.os, "fstat", Meddled(changes=3))
    taken = CodeSnapshot.take(tmp_path)
    assert taken.files[0].content == (tmp_path / "a.py").read_bytes() == b"content 0"


def test_a_file_that_never_rests_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code(tmp_path, {"a.py": b"first"})
    monkeypatch.setattr(module.os, "fstat", Meddled(changes=100))
    with pytest.raises(LocalFileError, match=r"a\.py: keeps changing"):
        CodeSnapshot.take(tmp_path)


def test_a_code_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(LocalFileError, match="nowhere"):
        CodeSnapshot.take(tmp_path / "nowhere")
