"""The files of a folder as they are now, and what this machine remembers of them.

The index holds for each file its size, times and inode when it was read, the hashes of its content,
and whether that content is in the store. It is kept outside the folder and is only a cache: without
it all files are read again, and a pull overwrites nothing that differs.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from edgeloop._util.files import make_folder, write_atomic
from edgeloop.errors import LocalFileError
from edgeloop.node.ledger import OWN_DAYS, PIECE_BYTES, Head, Ledger, PieceLocation, Pieces, hash_of
from edgeloop.store.base import Blobs

PARTIAL = ".edgeloop-part"  # suffix of a file that is being fetched

# A file written to within the tick of its filesystem's clock shows the same times before and after;
# the coarsest clock in use ticks every two seconds.
RACY_NS = 2_000_000_000


class ScannedFile(NamedTuple):
    """A file and its metadata: any change to the file changes one of these."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    executable: bool


class FileChanged(Exception):
    """A file is no longer what the scan saw. Caught where the scan can be repeated."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def scan(folder: Path) -> list[ScannedFile]:
    """Every file below `folder`, sorted by path. Links are followed; empty folders are ignored.
    What cannot be stored (a socket, a broken link, a name that is not UTF-8) is an error."""
    if not folder.is_dir():
        raise LocalFileError(path=folder, reason="there is no such folder")
    files = [_scanned(entry, path) for entry, path in _walk(folder) if not path.endswith(PARTIAL)]
    return sorted(files)


def leftovers(folder: Path) -> list[Path]:
    """Unfinished files of a pull that was killed."""
    return [Path(entry.path) for entry, path in _walk(folder) if path.endswith(PARTIAL)]


def read_piece(folder: Path, file: ScannedFile, number: int) -> bytes:
    """The bytes of one piece. Raises FileChanged if the file is not the one that was scanned."""
    offset = number * PIECE_BYTES
    length = min(PIECE_BYTES, file.size - offset)
    try:
        with (folder / file.path).open("rb", buffering=0) as opened:
            opened.seek(offset)
            content = opened.read(length)
            now = _from_stat(file.path, os.fstat(opened.fileno()))
    except FileNotFoundError:
        raise FileChanged(file.path) from None
    except OSError as error:
        raise LocalFileError(path=folder / file.path, reason=error.strerror) from None
    if now != file or len(content) != length:
        raise FileChanged(file.path)
    return content


def piece_count(size: int) -> int:
    return -(-size // PIECE_BYTES)


def pieces_of(folder: Path, file: ScannedFile) -> Pieces:
    """Read the whole file, one piece at a time."""
    numbers = range(piece_count(file.size))
    return tuple(hash_of(read_piece(folder, file, number)) for number in numbers)


def scan_file(folder: Path, path: str) -> ScannedFile:
    return _from_stat(path, (folder / path).stat())


def _walk(top: Path) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Everything that is not a folder, with its path below `top`."""
    folders: list[tuple[str, str, frozenset[tuple[int, int]]]] = [(str(top), "", frozenset())]
    while folders:
        folder, prefix, above = folders.pop()
        try:
            here = os.stat(folder)  # noqa: PTH116 - a hundred thousand paths would cost a second
            identity = (here.st_dev, here.st_ino)
            if identity in above:
                raise LocalFileError(path=folder, reason="is a link to a folder that contains it")
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


def _scanned(entry: os.DirEntry[str], path: str) -> ScannedFile:
    try:
        status = entry.stat()
    except FileNotFoundError:
        if not entry.is_symlink():
            raise FileChanged(path) from None
        reason = "is a broken link: remove it, or restore its target"
        raise LocalFileError(path=entry.path, reason=reason) from None
    except OSError as error:
        raise LocalFileError(path=entry.path, reason=error.strerror) from None
    if not stat.S_ISREG(status.st_mode):
        reason = "is a socket, a pipe or a device, not a file: move it away"
        raise LocalFileError(path=entry.path, reason=reason)
    return _from_stat(path, status)


def _from_stat(path: str, status: os.stat_result) -> ScannedFile:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    executable = bool(status.st_mode & stat.S_IXUSR)
    return ScannedFile(path, status.st_size, *times, status.st_ino, executable)


class IndexEntry(NamedTuple):
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    trusted: bool  # unchanged times mean unchanged content
    synced: bool  # this content was pushed or pulled
    pieces: Pieces


class Index:
    """What was read of one folder; without a file it is not kept."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._entries = _load(file)
        self._changed = False

    def pieces(self, file: ScannedFile) -> Pieces | None:
        """The file's content, if it is certain without reading it."""
        entry = self._entries.get(file.path)
        if entry is None or not entry[4] or tuple(entry[:4]) != file[1:5]:
            return None
        return tuple(entry[6])

    def record(self, file: ScannedFile, pieces: Pieces, read_at_ns: int) -> None:
        """The file was read and has this content."""
        before = self._entries.get(file.path)
        synced = before is not None and before[5] and tuple(before[6]) == pieces
        trusted = not pieces or file.ctime_ns < read_at_ns - RACY_NS  # none: its size says all
        self._entries[file.path] = IndexEntry(*file[1:5], trusted, synced, pieces)
        self._changed = True

    def record_pulled(self, file: ScannedFile, pieces: Pieces) -> None:
        """It was written just now under a name that nobody knew, so its times can be trusted."""
        self._entries[file.path] = IndexEntry(*file[1:5], True, True, pieces)
        self._changed = True

    def mark_synced(self, paths: Iterable[str]) -> None:
        """These are in the store as they were read."""
        for path in paths:
            entry = self._entries.get(path)
            if entry is not None and not entry[5]:
                self._entries[path] = IndexEntry(*entry)._replace(synced=True)
                self._changed = True

    def keep_only(self, paths: Iterable[str]) -> None:
        """Drop files that are no longer in the folder."""
        kept = {path: self._entries[path] for path in paths if path in self._entries}
        self._changed = self._changed or len(kept) != len(self._entries)
        self._entries = kept

    def is_synced(self, path: str, pieces: Pieces) -> bool:
        """Whether the current content is what was pushed or pulled last."""
        entry = self._entries.get(path)
        return entry is not None and entry[5] and tuple(entry[6]) == pieces

    def save(self) -> None:
        if self._file is None or not self._changed:
            return
        make_folder(self._file.parent)
        content = {"format": 1, "piece_bytes": PIECE_BYTES, "files": self._entries}
        write_atomic(self._file, json.dumps(content, separators=(",", ":")))
        self._changed = False


def _load(file: Path | None) -> dict[str, IndexEntry]:
    """An index that cannot be read counts as empty."""
    if file is None or not file.is_file():
        return {}
    try:
        content = json.loads(file.read_bytes())
        if content["format"] != 1 or content["piece_bytes"] != PIECE_BYTES:
            return {}
        entries: dict[str, IndexEntry] = content["files"]
        width = len(IndexEntry._fields)
        return entries if all(len(row) == width for row in entries.values()) else {}
    except (ValueError, TypeError, KeyError, OSError):
        return {}


# What a push has uploaded but not yet published, so that after a kill nothing is sent twice.
#
# A line is written before each upload; the store's own listing tells what arrived. The journal has
# a random id that goes into the record which publishes its objects. Once a record has that id, the
# objects belong to that version and are removed with it, so the journal is not used again.


_MOST_RECORDS_TO_READ = 50


class Journal:
    def __init__(self, file: Path | None, blobs: Blobs, prefix: str) -> None:
        self._file = file
        self._blobs = blobs
        self._prefix = prefix  # of the objects
        self._lock = threading.Lock()
        self._uploads: list[tuple[float, dict[str, PieceLocation]]] = []
        self._base = 0
        self.id = ""

    def open(self, ledger: Ledger, head: Head) -> None:
        """Continue the journal of an earlier push if its objects are unpublished; else start one.

        Called for every record that is read: a request of a push that was killed may arrive late.
        """
        if self.id and self._is_unpublished(ledger, head):
            return
        lines = [] if self.id else self._lines()
        self._uploads, self.id, self._base = [], secrets.token_hex(16), head.sequence
        if lines and self._continue(lines, ledger, head):
            return
        self._rewrite([{"format": 1, "id": self.id, "base": head.sequence}])

    def own(self) -> dict[str, PieceLocation]:
        """Pieces that this push may reference. Ask again for every record that is read."""
        since = time.time() - OWN_DAYS * 86_400
        with self._lock:
            return {
                piece: location
                for uploaded, locations in self._uploads
                if uploaded > since
                for piece, location in locations.items()
            }

    def upload(self, content: bytes, pieces: list[tuple[str, int]]) -> dict[str, PieceLocation]:
        """Upload one object made of consecutive pieces."""
        key, now = secrets.token_hex(16), time.time()
        locations = _locations(key, pieces)
        line = {"key": key, "time": now, "size": len(content), "pieces": pieces}
        if self._file is not None:
            with self._lock, self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._blobs.put(self._prefix + key, content)
        with self._lock:
            self._uploads.append((now, locations))
        return locations

    def close(self) -> None:
        """All of it is published."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        self._uploads, self.id = [], ""

    def _is_unpublished(self, ledger: Ledger, head: Head) -> bool:
        if not 0 <= head.sequence - self._base <= _MOST_RECORDS_TO_READ:
            return False
        since = range(self._base + 1, head.sequence + 1)
        return all(ledger.read(sequence).by != self.id for sequence in since)

    def _continue(self, lines: list[dict[str, object]], ledger: Ledger, head: Head) -> bool:
        new_id, (header, *uploads) = self.id, lines
        self.id, base = str(header.get("id")), header.get("base")
        self._base = base if isinstance(base, int) else -1
        if header.get("format") != 1 or self._base < 0 or not self._is_unpublished(ledger, head):
            self.id, self._base = new_id, head.sequence
            return False
        start = len(self._prefix)
        stored = {i.key[start:]: i.size for i in self._blobs.list(self._prefix)}
        arrived = [line for line in uploads if stored.get(str(line.get("key"))) == line.get("size")]
        for line in arrived:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                locations = _locations(str(line["key"]), line["pieces"])  # type: ignore[arg-type]
                self._uploads.append((float(str(line["time"])), locations))
        self._rewrite([header, *arrived])
        return True

    def _lines(self) -> list[dict[str, object]]:
        """Up to the first line that a kill truncated."""
        lines: list[dict[str, object]] = []
        if self._file is None or not self._file.is_file():
            return lines
        with contextlib.suppress(ValueError, OSError):
            for line in self._file.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                if not isinstance(entry, dict):
                    break
                lines.append(entry)
        return lines

    def _rewrite(self, lines: list[dict[str, object]]) -> None:
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._file, "".join(json.dumps(line) + "\n" for line in lines))


def _locations(key: str, pieces: list[tuple[str, int]]) -> dict[str, PieceLocation]:
    locations, offset = {}, 0
    for piece, size in pieces:
        locations[piece] = PieceLocation(key, offset, size)
        offset += size
    return locations
