"""The files of every store: a folder, memory, Azure (Azurite) and S3 (moto)."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgeloop._util.files import sha256_of
from edgeloop.errors import BadSetting, StoreError, StoreRefused
from edgeloop.node.files import FolderBlobs
from edgeloop.store import Blobs, open_store, parse_location
from edgeloop.store.base import IN_MEMORY_BYTES
from edgeloop.store.files import url_blobs
from edgeloop.testing import memory_blobs
from edgeloop.testing.contracts.blobs import BlobsContract, listed

if TYPE_CHECKING:
    from tests.peers.azurite import Azurite
    from tests.peers.s3 import S3


class TestFolder(BlobsContract):
    has_links = False

    @pytest.fixture
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("around") / "the folder"

    @pytest.fixture
    def blobs(self, folder: Path) -> Blobs:
        return FolderBlobs(folder)

    def test_reading_makes_no_folder(self, blobs: Blobs, folder: Path) -> None:
        assert listed(blobs) == []
        blobs.delete(["a/b"])
        assert not folder.exists()

    def test_nothing_is_written_outside(self, blobs: Blobs, folder: Path) -> None:
        blobs.put("a/b", b"x")
        assert [path.name for path in folder.parent.iterdir()] == [folder.name]

    def test_a_file_url_names_the_folder(self, folder: Path) -> None:
        url_blobs(f"file://{folder}").put("a/b", b"x")
        assert (folder / "a" / "b").read_bytes() == b"x"


class TestMemory(BlobsContract):
    has_links = False
    has_access = False

    @pytest.fixture
    def blobs(self) -> Blobs:
        return memory_blobs()


class TestAzure(BlobsContract):
    @pytest.fixture
    def blobs(self, azurite: Azurite) -> Blobs:
        address = azurite.connection_string_of(azurite.new_account())
        return open_store(parse_location(address)).blobs


class TestS3(BlobsContract):
    @pytest.fixture
    def blobs(self, s3: S3, monkeypatch: pytest.MonkeyPatch) -> Blobs:
        for name, value in s3.environ.items():
            monkeypatch.setenv(name, value)
        return url_blobs(f"s3://{s3.make_bucket()}/a/prefix")

    def test_a_bucket_that_is_not_there_is_said(
        self, s3: S3, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in s3.environ.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StoreRefused, match="no-such-bucket"):
            url_blobs("s3://no-such-bucket").put("a", b"x")

    def test_http_must_be_allowed(self, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in (s3.environ | {"AWS_ALLOW_HTTP": "false"}).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StoreError, match="s3://"):
            url_blobs(f"s3://{s3.make_bucket()}").put("a", b"x")


@pytest.mark.parametrize("url", ["", "ftp://host/x", "/srv/blobs", "s3:bucket"])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(BadSetting, match="URL"):
        url_blobs(url)


# Without a descriptor to spare: before the store's first request, or before it is opened.
_NO_DESCRIPTORS = """
import os, resource, sys
from edgeloop.errors import StoreUnavailable
from edgeloop.testing import memory_blobs
import edgeloop.store.files, obstore.exceptions, obstore.store
limit = resource.RLIMIT_NOFILE
soft, hard = resource.getrlimit(limit)
blobs = memory_blobs() if sys.argv[1] == "opened" else None
resource.setrlimit(limit, (len(os.listdir("/proc/self/fd")) - 1, hard))
try:
    found = list((blobs or memory_blobs()).list(""))
except StoreUnavailable as error:
    found = "cannot be reached"
resource.setrlimit(limit, (soft, hard))
print(found)
if blobs:
    blobs.put("a/b", b"x")
    print([blob.key for blob in blobs.list("")])
"""


@pytest.mark.parametrize(
    ("when", "said"), [("opened", ["[]", "['a/b']"]), ("opening", ["cannot be reached"])]
)
def test_a_lack_of_descriptors_ends_no_process_and_passes(when: str, said: list[str]) -> None:
    """obstore panics where it cannot start its threads, and then never works again."""
    done = subprocess.run(
        [sys.executable, "-c", _NO_DESCRIPTORS, when],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == said, done.stderr


class StreamingPlugin(FolderBlobs):
    """As a plug-in's: with the seam's own `put_hashed`. Notes the largest piece it was handed."""

    put_hashed = Blobs.put_hashed
    largest_bytes = 0

    def put(self, key: str, source: Path | bytes) -> None:
        if isinstance(source, bytes):
            self.largest_bytes = max(self.largest_bytes, len(source))
        super().put(key, source)


def test_a_plugin_that_streams_never_has_a_large_file_in_memory(tmp_path: Path) -> None:
    blobs, source = StreamingPlugin(tmp_path / "store"), tmp_path / "net.onnx"
    source.write_bytes(b"weights" * 10)
    with source.open("r+b") as file:
        file.truncate(2 * IN_MEMORY_BYTES)
    tracemalloc.start()
    try:
        digest = blobs.put_hashed("model/net.onnx", source)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert digest == sha256_of(source)
    assert blobs.size("model/net.onnx") == 2 * IN_MEMORY_BYTES
    assert blobs.largest_bytes == 0
    assert peak_bytes < IN_MEMORY_BYTES / 4


def test_a_large_file_that_changes_meanwhile_is_hashed_as_it_was_stored(tmp_path: Path) -> None:
    source = tmp_path / "net.onnx"
    with source.open("wb") as file:
        file.truncate(IN_MEMORY_BYTES + 1)

    class Overtaken(StreamingPlugin):
        def put(self, key: str, source_or_copy: Path | bytes) -> None:
            super().put(key, source_or_copy)
            source.write_bytes(b"another")

    blobs = Overtaken(tmp_path / "store")
    assert blobs.put_hashed("net.onnx", source) == sha256_of(tmp_path / "store/net.onnx")
