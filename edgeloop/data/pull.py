"""One version out of the store, into a folder.

A file appears under its name when it is whole and its hashes are right, never before. What is there
and right is not fetched, so a pull that was killed goes on where it was; a large file goes on at
the piece it was at. A file that was changed here is not overwritten unless that is asked for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from edgeloop.data.index import Index, now_ns
from edgeloop.data.manifest import File, Manifest, Pieces, Place, digest, hash_of
from edgeloop.data.names import Reference
from edgeloop.data.parallel import in_parallel
from edgeloop.data.push import Progress
from edgeloop.data.scan import PARTIAL, Changed, Found, found_at, leftovers, pieces_of, scan
from edgeloop.errors import DatasetDamaged, LocalFileError
from edgeloop.store import Blobs

_WORKERS = 6
_HASHERS = 4
_GAP_BYTES = 128 << 10  # unneeded bytes between two needed ones that cost less than a request
_WHOLE_SHARE = 0.5  # of an object: more than that, and it is fetched as a whole


@dataclass(frozen=True)
class Pulled:
    """The folder now holds this version. `moved` is what had to be fetched, or would have."""

    reference: Reference
    files: int
    bytes: int
    moved_files: int
    moved_bytes: int
    deleted_files: int


class Wanted(NamedTuple):
    """Bytes of an object that belong into a file at a place."""

    file: File
    hash: str
    place: Place
    at: int


@dataclass(frozen=True)
class Difference:
    """What a folder lacks to be a version: files to write, files that may be deleted, files that
    were changed here and would be lost."""

    fetch: tuple[File, ...]
    chmod: tuple[File, ...]
    extra: tuple[Found, ...]
    changed_here: tuple[str, ...]


class Pull:
    def __init__(
        self,
        blobs: Blobs,
        prefix: str,
        reference: Reference,
        manifest: Manifest,
        index: Index,
        folder: Path,
        progress: Progress | None = None,
        read_only: bool = False,
    ) -> None:
        self._blobs = blobs
        self._prefix = prefix
        self._reference = reference
        self._manifest = manifest
        self._index = index
        self._folder = folder
        self._progress = progress or (lambda *_: None)
        self._read_only = read_only
        self._lock = threading.Lock()
        self._missing: dict[str, int] = {}  # pieces that a file still lacks

    def run(self, dry_run: bool, delete: bool, force: bool) -> Pulled:
        difference = compare(self._manifest, self._folder, self._index)
        if difference.changed_here and not force:
            _refuse(self._folder, difference.changed_here)
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
        _check_room(folder, sum(file.size for file in difference.fetch))
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
                self._index.note_pulled(found_at(folder, file.path), file.pieces)

    # Fetching

    def _fetch(self, files: tuple[File, ...]) -> None:
        total, done, ended = sum(file.size for file in files), 0, 0
        self._progress(0, total, 0, len(files))
        self._missing = {file.path: len(file.pieces) for file in files}
        for file in files:
            if not file.pieces:
                self._write_whole(file, b"")
                ended += 1
        wanted = defaultdict(list)
        for item in self._wanted(files):
            wanted[item.place.object].append(item)
        for more, more_files in in_parallel(
            self._fetch_object, wanted.values(), _WORKERS, _WORKERS
        ):
            done, ended = done + more, ended + more_files
            self._progress(done, total, ended, len(files))

    def _wanted(self, files: tuple[File, ...]) -> Iterator[Wanted]:
        for file in files:
            at = 0
            there = self._pieces_there(file)
            for piece in file.pieces:
                place = self._manifest.places[piece]
                if at not in there:
                    yield Wanted(file, piece, place, at)
                at += place.size

    def _pieces_there(self, file: File) -> set[int]:
        """Where in a large file that an earlier pull began there are right pieces already."""
        there: set[int] = set()
        if len(file.pieces) < 2:
            return there
        partial, at = _partial(self._folder, file), 0
        with _local_errors(partial):
            if partial.is_file():
                with partial.open("rb") as opened:
                    for piece in file.pieces:
                        size = self._manifest.places[piece].size
                        if hash_of(opened.read(size)) == piece:
                            there.add(at)
                        at += size
            else:
                partial.touch()
        self._missing[file.path] -= len(there)
        if not self._missing[file.path]:
            self._finish(file, partial)
        return there

    def _fetch_object(self, wanted: list[Wanted]) -> tuple[int, int]:
        """How many bytes of files were written, and how many files became whole."""
        wanted.sort(key=lambda item: item.place.offset)
        written = ended = 0
        for start, content, items in self._ranges(wanted):
            view = memoryview(content)
            for item in items:
                offset = item.place.offset - start
                piece = view[offset : offset + item.place.size]
                if len(piece) != item.place.size or hash_of(piece) != item.hash:
                    reason = f"the bytes of {item.file.path!r} in the store are not those that "
                    reason += "were pushed: remove this version, then push the dataset again"
                    raise DatasetDamaged(dataset=self._reference, reason=reason)
                ended += self._write(item, piece)
                written += len(piece)
        return written, ended

    def _ranges(self, wanted: list[Wanted]) -> Iterator[tuple[int, bytes, list[Wanted]]]:
        key = self._prefix + wanted[0].place.object
        end = max(item.place.offset + item.place.size for item in wanted)
        needed = sum(item.place.size for item in {w.hash: w for w in wanted}.values())
        if needed >= end * _WHOLE_SHARE:
            yield 0, self._blobs.read(key), wanted
            return
        for group in _close_together(wanted):
            start = group[0].place.offset
            stop = max(item.place.offset + item.place.size for item in group)
            yield start, self._blobs.read_range(key, start, stop - start), group

    def _write(self, item: Wanted, piece: memoryview) -> bool:
        """True when the file is whole with it."""
        if len(item.file.pieces) == 1:
            self._write_whole(item.file, piece)
            return True
        partial = _partial(self._folder, item.file)
        with _local_errors(partial):
            descriptor = os.open(partial, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, piece, item.at)
            finally:
                os.close(descriptor)
        with self._lock:
            self._missing[item.file.path] -= 1
            whole = not self._missing[item.file.path]
        if whole:
            self._finish(item.file, partial)
        return whole

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
            found = found_at(self._folder, file.path)
        with self._lock:
            self._index.note_pulled(found, file.pieces)

    def _set_mode(self, path: Path, executable: bool) -> None:
        """Whoever may read it may execute it; what else is allowed is for the umask to say."""
        mode = path.stat().st_mode & 0o666
        mode |= (mode & 0o444) >> 2 if executable else 0
        path.chmod(mode & ~0o222 if self._read_only else mode)


def compare(manifest: Manifest, folder: Path, index: Index) -> Difference:
    """Reads only files that the index is not sure of."""
    local = {item.path: item for item in scan_here(folder)}
    both = [(file, local.pop(file.path, None)) for file in manifest.files]
    contents = contents_of(folder, [item for _, item in both if item is not None], index)
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


def scan_here(folder: Path) -> list[Found]:
    """A folder that is not there yet is empty."""
    try:
        return scan(folder) if folder.exists() else []
    except Changed as change:
        raise _restless(folder, change.path) from None


def contents_of(folder: Path, found: list[Found], index: Index | None) -> dict[str, Pieces]:
    """What each file holds; without an index all are read."""
    known = {item.path: index.pieces(item) for item in found} if index else {}
    contents = {path: pieces for path, pieces in known.items() if pieces is not None}
    unknown = [item for item in found if item.path not in contents]
    began_ns = now_ns()
    read = in_parallel(lambda item: _read(folder, item), unknown, _HASHERS, 64)
    for item, pieces in zip(unknown, read, strict=True):
        contents[item.path] = pieces
        if index:
            index.note(item, pieces, began_ns)
    return contents


def _read(folder: Path, item: Found) -> Pieces:
    try:
        return pieces_of(folder, item)
    except Changed:
        raise _restless(folder, item.path) from None


def _restless(folder: Path, path: str) -> LocalFileError:
    reason = "it changed while it was read: wait for whatever writes to it, then try again"
    return LocalFileError(path=folder / path, reason=reason)


def _refuse(folder: Path, changed: tuple[str, ...]) -> None:
    others = f" and {len(changed) - 1} more files were" if len(changed) > 1 else " was"
    reason = f"it{others} changed here since the last push or pull: push first, or overwrite with "
    raise LocalFileError(path=folder / changed[0], reason=f"{reason}--force")


def _close_together(wanted: list[Wanted]) -> Iterator[list[Wanted]]:
    group: list[Wanted] = []
    end = 0
    for item in wanted:
        if group and item.place.offset > end + _GAP_BYTES:
            yield group
            group = []
        group.append(item)
        end = max(end, item.place.offset + item.place.size)
    yield group


def _partial(folder: Path, file: File) -> Path:
    """Beside its target, which may lie behind a link on another disk; the same name each time, so
    that another pull of the same content can go on with it."""
    return (folder / file.path).with_name(f".{digest([file])[:32]}{PARTIAL}")


def _delete(folder: Path, extra: tuple[Found, ...], wanted: tuple[File, ...]) -> None:
    """What is behind a link stays: the link goes, unless files of the version lie behind it too."""
    prefixes = {str(parent) for file in wanted for parent in Path(file.path).parents}
    for item in extra:
        parents = [p for p in reversed(Path(item.path).parents) if str(p) not in prefixes]
        link = next((folder / p for p in parents if (folder / p).is_symlink()), None)
        (link or folder / item.path).unlink(missing_ok=True)
        for parent in reversed(parents):
            with contextlib.suppress(OSError):  # not empty, or gone with its link
                (folder / parent).rmdir()


def _check_room(folder: Path, size: int) -> None:
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < size:
        reason = f"there is no room for it: {size:,} bytes are needed and {free:,} are free"
        raise LocalFileError(path=folder, reason=reason)


@contextlib.contextmanager
def _local_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename2 or error.filename or path
        raise LocalFileError(path=where, reason=error.strerror) from None
