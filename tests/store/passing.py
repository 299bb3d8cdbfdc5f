"""Stores that do one thing otherwise, and blobs to derive such from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from edgeloop.store import Access, BlobInfo, Blobs
from edgeloop.testing import MemoryStore


class ClockedStore(MemoryStore):
    """Its clock is moved by the test."""

    time_s = 1_000_000.0

    def now(self) -> float:
        return self.time_s


class PassingBlobs(Blobs):
    """Passes everything on."""

    def __init__(self, inner: Blobs) -> None:
        self.inner = inner

    def put(self, key: str, source: Path | bytes) -> None:
        self.inner.put(key, source)

    def read(self, key: str) -> bytes:
        return self.inner.read(key)

    def get(self, key: str, target: Path) -> None:
        self.inner.get(key, target)

    def create(self, key: str, content: bytes) -> bool:
        return self.inner.create(key, content)

    def size(self, key: str) -> int | None:
        return self.inner.size(key)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        return self.inner.read_range(key, start, length)

    def link(self, key: str, seconds: int) -> str:
        return self.inner.link(key, seconds)

    def access(self, seconds: int) -> Access:
        return self.inner.access(seconds)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        return self.inner.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self.inner.delete(keys)
