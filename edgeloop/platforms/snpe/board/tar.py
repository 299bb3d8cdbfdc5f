"""Many files through one pipe: by far the fastest way to a board and back."""

from __future__ import annotations

import struct
import tarfile
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_PIECE = 1 << 20
_BLOCK = 1 << 18
_THREADS = 4
_GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\x04\xff"  # deflate, fastest, no name, no time
_LAST_BLOCK = b"\x03\0"


@dataclass(frozen=True)
class Entry:
    """A file of a stream: its name there, its size, and its bytes when they are wanted."""

    name: str
    size: int
    pieces: Iterable[bytes]
    mode: int = 0o644


def entry_of(name: str, content: bytes) -> Entry:
    return Entry(name, len(content), (content,))


def entry_of_file(name: str, path: Path, mode: int = 0o644) -> Entry:
    return Entry(name, path.stat().st_size, pieces_of(path), mode)


def pieces_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def packed(entries: Iterable[Entry]) -> Iterator[bytes]:
    """A tar stream, made while it is sent."""
    for entry in entries:
        info = tarfile.TarInfo(entry.name)
        info.size, info.mode = entry.size, entry.mode
        yield info.tobuf(tarfile.GNU_FORMAT)
        yield from entry.pieces
        yield bytes(-entry.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def squeezed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """One gzip stream, made by several threads at its fastest level: blocks of deflate that end at
    a byte may follow each other. Most cables are slower than that."""

    def deflate(block: bytes) -> bytes:
        compressor = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
        return compressor.compress(block) + compressor.flush(zlib.Z_SYNC_FLUSH)

    yield _GZIP_HEAD
    crc = size = 0
    waiting: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(_THREADS, "squeeze") as pool:
        for block in _blocks(pieces):
            crc, size = zlib.crc32(block, crc), size + len(block)
            waiting.append(pool.submit(deflate, block))
            if len(waiting) > 2 * _THREADS:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()
    yield _LAST_BLOCK + struct.pack("<II", crc, size & 0xFFFFFFFF)


def unpacked(stream: IO[bytes], is_squeezed: bool = False) -> dict[str, bytes]:
    """The plain files of a stream by their names; links and the like are passed over."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=stream, mode="r|gz" if is_squeezed else "r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                found[member.name.removeprefix("./")] = content.read()
    return found


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    gathered, length = [], 0
    for piece in pieces:
        gathered.append(piece)
        length += len(piece)
        if length >= _BLOCK:
            yield b"".join(gathered)
            gathered, length = [], 0
    if gathered:
        yield b"".join(gathered)
