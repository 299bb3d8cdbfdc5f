"""One version out of the store into a folder, or compared with one.

A file appears under its name only when it is complete and its hashes match. What is already correct
is not fetched, so a pull that was killed continues where it stopped; a large file continues at the
piece it had reached. A file that was changed locally is overwritten only with `force`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from edgeloop._util.system import O_CLOEXEC, ordered_map
from edgeloop.errors import BlobMissing, DatasetDamaged, LocalFileError
from edgeloop.node.index import (
    PARTIAL,
    FileChanged,
    Index,
    ScannedFile,
    leftovers,
    pieces_of,
    scan,
    scan_file,
)
from edgeloop.node.ledger import (
    OBJECT_BYTES,
    File,
    Manifest,
    PieceLocation,
    Pieces,
    Reference,
    digest,
    hash_of,
)
from edgeloop.node.push import Progress
from edgeloop.store.base import Blobs

_WORKERS = 6
_HASHERS = 4
_GAP_BYTES = 128 << 10  # unneeded bytes between two needed ones that cost less than a request
_WHOLE_SHARE = 0.5  # of an object: above this it is fetched as a whole


@dataclass(frozen=True)
class Pulled:
    """The folder now holds this version. `moved` is what was fetched, or would be in a dry run."""

    reference: Reference
    files: int
    bytes: int
    moved_files: int
    moved_bytes: int
    deleted_files: int


class NeededPiece(NamedTuple):
    """Bytes of an object that belong into a file at an offset."""

    file: File
    hash: str
    location: PieceLocation
    offset: int


@dataclass(frozen=True)
class Difference:
    """What makes a folder differ from a version: files to write, files that may be deleted, and
    files whose local changes would be lost."""

    fetch: tuple[File, ...]
    chmod: tuple[File, ...]
    extra: tuple[ScannedFile, ...]
    changed_here: tuple[str, ...]


@dataclass
class Pull:
    """One pull into a folder."""

    _blobs: Blobs
    _prefix: str
    _reference: Reference
    _manifest: Manifest
    _index: Index
    _folder: Path
    _progress: Progress | None = None
    _read_only: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _missing: dict[str, int] = field(default_factory=dict)  # pieces that a file still lacks

    def run(self, dry_run: bool, delete: bool, force: bool) -> Pulled:
        difference = compare(self._manifest, self._folder, self._index)
        if difference.changed_here and not force:
            changed = difference.changed_here
            others = f" and {len(changed) - 1} more files were" if len(changed) > 1 else " was"
            reason = (
                f"it{others} changed here since the last push or pull: push first, or overwrite "
            )
            raise LocalFileError(path=self._folder / changed[0], reason=f"{reason}with --force")
        fetched = sum(file.size for file in difference.fetch)
        try:
            if not dry_run:
                self._change(difference, delete)
        finally:
            self._index.save()
        return Pulled(
            self._reference,
            len(self._manifest.files),
            self._manifest.size,
            len(difference.fetch),
            fetched,
            len(difference.extra) if delete else 0,
        )

    def _change(self, difference: Difference, delete: bool) -> None:
        folder = self._folder
        size = sum(file.size for file in difference.fetch)
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        free = shutil.disk_usage(existing).free
        if free < size:
            reason = f"not enough disk space: {size:,} bytes are needed and {free:,} are free"
            raise LocalFileError(path=folder, reason=reason)
        keep = {_partial(folder, file) for file in difference.fetch}
        with _local_errors(folder):
            for path in leftovers(folder):
                if path not in keep:
                    path.unlink(missing_ok=True)
            if delete:
                _delete(folder, difference.extra, self._manifest.files)
            for parent in {(folder / file.path).parent for file in difference.fetch}:
                parent.mkdir(parents=True, exist_ok=True)
        self._fetch(difference.fetch)
        with _local_errors(folder):
            for file in difference.chmod:
                self._set_mode(folder / file.path, file.executable)
                self._index.record_pulled(scan_file(folder, file.path), file.pieces)

    # Fetching

    def _fetch(self, files: tuple[File, ...]) -> None:
        total, done, ended = sum(file.size for file in files), 0, 0
        report = self._progress or (lambda *_: None)
        report(0, total, 0, len(files))
        self._missing = {file.path: len(file.pieces) for file in files}
        for file in files:
            if not file.pieces:
                self._write_whole(file, b"")
                ended += 1
        wanted = defaultdict(list)
        for item in self._wanted(files):
            wanted[item.location.object].append(item)
        fetched = ordered_map(self._fetch_object, wanted.values(), _WORKERS, _WORKERS)
        for more, more_files in fetched:
            done, ended = done + more, ended + more_files
            report(done, total, ended, len(files))

    def _wanted(self, files: tuple[File, ...]) -> Iterator[NeededPiece]:
        for file in files:
            offset = 0
            present = self._pieces_present(file)
            for piece in file.pieces:
                location = self._manifest.locations[piece]
                if offset not in present:
                    yield NeededPiece(file, piece, location, offset)
                offset += location.size

    def _pieces_present(self, file: File) -> set[int]:
        """Offsets of the correct pieces in a large file that an earlier pull started."""
        present: set[int] = set()
        if len(file.pieces) < 2:
            return present
        partial, offset = _partial(self._folder, file), 0
        with _local_errors(partial):
            if partial.is_file():
                with partial.open("rb") as opened:
                    for piece in file.pieces:
                        size = self._manifest.locations[piece].size
                        if hash_of(opened.read(size)) == piece:
                            present.add(offset)
                        offset += size
            else:
                partial.touch()
        self._missing[file.path] -= len(present)
        if not self._missing[file.path]:
            self._finish(file, partial)
        return present

    def _fetch_object(self, wanted: list[NeededPiece]) -> tuple[int, int]:
        """How many bytes were written, and how many files were completed."""
        wanted.sort(key=lambda item: item.location.offset)
        written = ended = 0
        for start, content, items in self._ranges(wanted):
            view = memoryview(content)
            for item in items:
                offset = item.location.offset - start
                piece = view[offset : offset + item.location.size]
                if len(piece) != item.location.size or hash_of(piece) != item.hash:
                    reason = f"the bytes of {item.file.path!r} in the store are not those "
                    reason += "that were pushed: remove this version, then push the dataset again"
                    raise DatasetDamaged(dataset=self._reference, reason=reason)
                ended += self._write(item, piece)
                written += len(piece)
        return written, ended

    def _ranges(self, wanted: list[NeededPiece]) -> Iterator[tuple[int, bytes, list[NeededPiece]]]:
        key = self._prefix + wanted[0].location.object
        end = max(item.location.offset + item.location.size for item in wanted)
        needed = sum(item.location.size for item in {w.hash: w for w in wanted}.values())
        if needed >= end * _WHOLE_SHARE:
            yield 0, self._blobs.read_range(key, 0, end), wanted
            return
        for group in _close_together(wanted):
            start = group[0].location.offset
            stop = max(item.location.offset + item.location.size for item in group)
            yield start, self._blobs.read_range(key, start, stop - start), group

    def _write(self, item: NeededPiece, piece: memoryview) -> bool:
        """Whether this completed the file."""
        if len(item.file.pieces) == 1:
            self._write_whole(item.file, piece)
            return True
        partial = _partial(self._folder, item.file)
        with _local_errors(partial):
            descriptor = os.open(partial, os.O_WRONLY | O_CLOEXEC)
            try:
                os.lseek(descriptor, item.offset, os.SEEK_SET)
                os.write(descriptor, piece)
            finally:
                os.close(descriptor)
        with self._lock:
            self._missing[item.file.path] -= 1
            is_complete = not self._missing[item.file.path]
        if is_complete:
            self._finish(item.file, partial)
        return is_complete

    def _write_whole(self, file: File, content: bytes | memoryview) -> None:
        partial = _partial(self._folder, file)
        with _local_errors(partial):
            partial.unlink(missing_ok=True)  # an earlier pull may have left it read-only
            with partial.open("wb") as opened:
                opened.write(content)
        self._finish(file, partial)

    def _finish(self, file: File, partial: Path) -> None:
        target = self._folder / file.path
        with _local_errors(target):
            self._set_mode(partial, file.executable)
            os.utime(partial, ns=(file.mtime_ns, file.mtime_ns))
            try:
                partial.replace(target)
            except OSError:
                partial.unlink()
                raise
            written = scan_file(self._folder, file.path)
        with self._lock:
            self._index.record_pulled(written, file.pieces)

    def _set_mode(self, path: Path, executable: bool) -> None:
        """Whoever may read it may execute it; the umask decides the rest."""
        mode = path.stat().st_mode & 0o666
        mode |= (mode & 0o444) >> 2 if executable else 0
        path.chmod(mode & ~0o222 if self._read_only else mode)


def compare(manifest: Manifest, folder: Path, index: Index) -> Difference:
    """Reads only files whose content the index does not know for certain."""
    local = {item.path: item for item in _scan(folder)}
    both = [(file, local.pop(file.path, None)) for file in manifest.files]
    contents = _contents(folder, [item for _, item in both if item is not None], index)
    fetch, chmod, changed = [], [], []
    for file, item in both:
        pieces = contents.get(file.path)
        if item is None or pieces != file.pieces:
            fetch.append(file)
            if pieces is not None and not index.is_synced(file.path, pieces):
                changed.append(file.path)
            continue
        index.mark_synced([file.path])
        if item.executable != file.executable:
            chmod.append(file)
    return Difference(tuple(fetch), tuple(chmod), tuple(local.values()), tuple(changed))


def _scan(folder: Path) -> list[ScannedFile]:
    """A folder that does not exist yet counts as empty."""
    try:
        return scan(folder) if folder.exists() else []
    except FileChanged as change:
        raise _changing(folder, change.path) from None


def _contents(folder: Path, files: list[ScannedFile], index: Index | None) -> dict[str, Pieces]:
    """The content of each file; without an index all are read."""
    known = {item.path: index.pieces(item) for item in files} if index else {}
    contents = {path: pieces for path, pieces in known.items() if pieces is not None}
    unknown = [item for item in files if item.path not in contents]
    began_ns = time.time_ns()
    read = ordered_map(lambda item: pieces_of(folder, item), unknown, _HASHERS, 64)
    try:
        for item, pieces in zip(unknown, read):
            contents[item.path] = pieces
            if index:
                index.record(item, pieces, began_ns)
    except FileChanged as change:
        raise _changing(folder, change.path) from None
    return contents


def _changing(folder: Path, path: str) -> LocalFileError:
    reason = "it changed while it was being read: wait for whatever writes to it, then try again"
    return LocalFileError(path=folder / path, reason=reason)


def _close_together(wanted: list[NeededPiece]) -> Iterator[list[NeededPiece]]:
    group: list[NeededPiece] = []
    end = 0
    for item in wanted:
        if group and item.location.offset > end + _GAP_BYTES:
            yield group
            group = []
        group.append(item)
        end = max(end, item.location.offset + item.location.size)
    yield group


def _partial(folder: Path, file: File) -> Path:
    """Beside its target, which may be on another disk behind a link; always the same name, so that
    another pull of the same content can continue it."""
    return (folder / file.path).with_name(f".{digest([file])[:32]}{PARTIAL}")


def _delete(folder: Path, extra: tuple[ScannedFile, ...], wanted: tuple[File, ...]) -> None:
    """What is behind a link stays: the link is removed unless files of the version use it."""
    prefixes = {str(parent) for file in wanted for parent in Path(file.path).parents}
    for item in extra:
        parents = [p for p in reversed(Path(item.path).parents) if str(p) not in prefixes]
        link = next((folder / p for p in parents if (folder / p).is_symlink()), None)
        (link or folder / item.path).unlink(missing_ok=True)
        for parent in reversed(parents):
            with contextlib.suppress(OSError):  # not empty, or gone with its link
                (folder / parent).rmdir()


@contextlib.contextmanager
def _local_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename2 or error.filename or path
        raise LocalFileError(path=where, reason=error.strerror) from None


@dataclass(frozen=True)
class Verified:
    """Paths that differ. `damaged` are files whose bytes in the store are wrong."""

    reference: Reference
    files: int
    bytes: int
    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        return not (self.missing or self.changed or self.extra or self.damaged)


def verify_folder(reference: Reference, manifest: Manifest, folder: Path) -> Verified:
    """Read every file of the folder again, without trusting an index."""
    local = {item.path: item for item in _scan(folder)}
    wanted = {file.path: file for file in manifest.files}
    alike = [item for path, item in local.items() if path in wanted]
    contents = _contents(folder, alike, None)
    return Verified(
        reference,
        len(manifest.files),
        manifest.size,
        missing=tuple(path for path in wanted if path not in local),
        changed=tuple(
            item.path
            for item in alike
            if contents[item.path] != wanted[item.path].pieces
            or item.executable != wanted[item.path].executable
        ),
        extra=tuple(path for path in local if path not in wanted),
    )


def verify_store(
    reference: Reference,
    manifest: Manifest,
    blobs: Blobs,
    prefix: str,
    progress: Progress | None = None,
) -> Verified:
    """Read every object that the version references."""
    by_object: dict[str, list[tuple[str, PieceLocation]]] = defaultdict(list)
    for piece, location in manifest.locations.items():
        by_object[location.object].append((piece, location))

    def damaged_in(key: str) -> list[str]:
        try:
            content = memoryview(blobs.read_range(prefix + key, 0, OBJECT_BYTES))
        except BlobMissing:
            return [piece for piece, _ in by_object[key]]
        return [
            piece
            for piece, (_, offset, size) in by_object[key]
            if hash_of(content[offset : offset + size]) != piece
        ]

    damaged: set[str] = set()
    total = sum(location.size for location in manifest.locations.values())
    done = 0
    checked = ordered_map(damaged_in, list(by_object), _WORKERS, _WORKERS)
    for key, bad in zip(by_object, checked):
        damaged.update(bad)
        done += sum(location.size for _, location in by_object[key])
        if progress:
            progress(done, total, 0, len(manifest.files))
    paths = tuple(file.path for file in manifest.files if damaged.intersection(file.pieces))
    return Verified(reference, len(manifest.files), manifest.size, damaged=paths)
