"""The files of a folder as they are now."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from edgeloop.data.manifest import PIECE_BYTES, Pieces, hash_of
from edgeloop.errors import LocalFileError

PARTIAL = ".edgeloop-part"  # how a file's name ends while it is fetched


class Found(NamedTuple):
    """A file, and what tells whether it changed since: any change to it changes one of these."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    executable: bool


class Changed(Exception):
    """A file is no longer what the scan saw. Caught where the scan can be made again."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def scan(folder: Path) -> list[Found]:
    """Every file below `folder`, in the order of paths. Links are followed; empty folders are
    nothing. What cannot travel (a socket, a link to nowhere, a name in no encoding) is an error."""
    if not folder.is_dir():
        raise LocalFileError(path=folder, reason="there is no such folder")
    found = [_found(entry, path) for entry, path in _walk(folder) if not path.endswith(PARTIAL)]
    return sorted(found)


def leftovers(folder: Path) -> list[Path]:
    """What a pull that was killed left of files that it had not finished."""
    return [Path(entry.path) for entry, path in _walk(folder) if path.endswith(PARTIAL)]


def read_piece(folder: Path, found: Found, number: int) -> bytes:
    """The bytes of one piece, if the file is still the one that was scanned; else Changed."""
    offset = number * PIECE_BYTES
    length = min(PIECE_BYTES, found.size - offset)
    try:
        with (folder / found.path).open("rb", buffering=0) as file:
            content = os.pread(file.fileno(), length, offset)
            now = _as_found(found.path, os.fstat(file.fileno()))
    except FileNotFoundError:
        raise Changed(found.path) from None
    except OSError as error:
        raise LocalFileError(path=folder / found.path, reason=error.strerror) from None
    if now != found or len(content) != length:
        raise Changed(found.path)
    return content


def piece_count(size: int) -> int:
    return -(-size // PIECE_BYTES)


def pieces_of(folder: Path, found: Found) -> Pieces:
    """Read the whole file, one piece at a time."""
    return tuple(
        hash_of(read_piece(folder, found, number)) for number in range(piece_count(found.size))
    )


def found_at(folder: Path, path: str) -> Found:
    return _as_found(path, (folder / path).stat())


def _walk(top: Path) -> Iterator[tuple[os.DirEntry[str], str]]:
    """All that is no folder, with its path below `top`."""
    folders: list[tuple[str, str, frozenset[tuple[int, int]]]] = [(str(top), "", frozenset())]
    while folders:
        folder, prefix, above = folders.pop()
        try:
            here = os.stat(folder)  # noqa: PTH116 - a hundred thousand paths would cost a second
            identity = (here.st_dev, here.st_ino)
            if identity in above:
                raise LocalFileError(path=folder, reason="is a link to a folder that it lies in")
            with os.scandir(folder) as entries:
                for entry in entries:
                    path = prefix + _checked_name(top, prefix, entry.name)
                    if entry.is_dir():
                        folders.append((entry.path, f"{path}/", above | {identity}))
                    else:
                        yield entry, path
        except OSError as error:
            raise LocalFileError(path=folder, reason=error.strerror) from None


def _checked_name(top: Path, prefix: str, name: str) -> str:
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            readable = os.fsencode(name).decode(errors="replace")
            reason = "its name is not UTF-8, so other machines cannot have it: rename it"
            raise LocalFileError(path=top / prefix / readable, reason=reason) from None
    return name


def _found(entry: os.DirEntry[str], path: str) -> Found:
    try:
        status = entry.stat()
    except FileNotFoundError:
        if not entry.is_symlink():
            raise Changed(path) from None
        reason = "is a link to something that is not there"
        raise LocalFileError(path=entry.path, reason=reason) from None
    except OSError as error:
        raise LocalFileError(path=entry.path, reason=error.strerror) from None
    if not stat.S_ISREG(status.st_mode):
        reason = "is a socket, a pipe or a device, and no file: move it away"
        raise LocalFileError(path=entry.path, reason=reason)
    return _as_found(path, status)


def _as_found(path: str, status: os.stat_result) -> Found:
    executable = bool(status.st_mode & stat.S_IXUSR)
    inode = status.st_ino
    return Found(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode, executable)
