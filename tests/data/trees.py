"""Folders with files, and files of a store that can be watched and interrupted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from edgeloop.store import BlobInfo, Blobs
from tests.store.passing import PassingBlobs

NAME = "working/faces"


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def objects(blobs: Blobs) -> dict[str, int]:
    return {info.key: info.size for info in blobs.list("_data/objects/")}


class Watched(PassingBlobs):
    """Passes everything on; counts what is put, and calls hooks before and after."""

    def __init__(self, inner: Blobs) -> None:
        super().__init__(inner)
        self.put_bytes: dict[str, int] = {}
        self.got_bytes: dict[str, int] = {}
        self.before: Callable[[str, str], None] = lambda verb, key: None
        self.after: Callable[[str, str], None] = lambda verb, key: None

    @property
    def sent(self) -> int:
        """Bytes of content, without manifests and records."""
        return sum(size for key, size in self.put_bytes.items() if "/objects/" in key)

    @property
    def fetched(self) -> int:
        return sum(size for key, size in self.got_bytes.items() if "/objects/" in key)

    def forget(self) -> None:
        self.put_bytes, self.got_bytes = {}, {}

    def put(self, key: str, source: Path | bytes) -> None:
        self.before("put", key)
        assert isinstance(source, bytes) and key not in self.put_bytes, "a key is used once"
        self.put_bytes[key] = len(source)
        self.inner.put(key, source)
        self.after("put", key)

    def read(self, key: str) -> bytes:
        self.before("read", key)
        content = self.inner.read(key)
        self.got_bytes[key] = self.got_bytes.get(key, 0) + len(content)
        return content

    def create(self, key: str, content: bytes) -> bool:
        self.before("create", key)
        created = self.inner.create(key, content)
        self.after("create", key)
        return created

    def read_range(self, key: str, start: int, length: int) -> bytes:
        self.before("read", key)
        content = self.inner.read_range(key, start, length)
        self.got_bytes[key] = self.got_bytes.get(key, 0) + len(content)
        return content

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        self.before("list", prefix)
        return self.inner.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.before("delete", key)
            self.inner.delete([key])


def once(action: Callable[[], object]) -> Callable[[], None]:
    """The first call does it, later ones do nothing: also calls from within the action."""
    left = [action]

    def call() -> None:
        if left:
            left.pop()()

    return call
