"""A folder into the store, as a new version.

One pass: files are read once, hashed, and those of their pieces that no live version has are sent,
small ones packed together. The bytes that are sent are the bytes that were hashed. Then the
manifest, then the record that makes the version visible. If anything was different from what it
counted on (a file changed, another push or a removal was first), the pass is made again: by then
nearly all is known, so that costs little.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from edgeloop.data.index import Index, now_ns
from edgeloop.data.journal import Journal
from edgeloop.data.ledger import Head, Log, Version
from edgeloop.data.manifest import (
    PIECE_BYTES,
    File,
    Manifest,
    Manifests,
    Pieces,
    Place,
    digest,
    hash_of,
)
from edgeloop.data.names import Reference
from edgeloop.data.parallel import in_parallel
from edgeloop.data.scan import Changed, Found, piece_count, read_piece, scan
from edgeloop.errors import Conflict, LocalFileError

Progress = Callable[[int, int, int, int], None]  # bytes done and in all, files done and in all

PACK_BELOW = 1 << 20
PACK_BYTES = 8 << 20
_BATCH_BYTES = 2 << 20
_BATCH_FILES = 256
_READERS = 4
_SENDERS = 8
_MOST_PASSES_CHANGED = 4
_MOST_PASSES_TAKEN = 30


@dataclass(frozen=True)
class Pushed:
    """The version that now holds the folder. `moved` is what had to be sent, or would have."""

    reference: Reference
    is_new: bool
    files: int
    bytes: int
    moved_files: int
    moved_bytes: int


class Piece(NamedTuple):
    """A piece that was read: `content` is what was hashed."""

    found: Found
    number: int
    hash: str
    content: bytes
    read_at_ns: int


class Push:
    def __init__(
        self,
        log: Log,
        manifests: Manifests,
        journal: Journal,
        index: Index,
        folder: Path,
        progress: Progress | None = None,
    ) -> None:
        self._log = log
        self._manifests = manifests
        self._journal = journal
        self._index = index
        self._folder = folder
        self._progress = progress or (lambda *_: None)
        self._moved_files: set[str] = set()
        self._moved_bytes = 0

    def run(self, node: str, message: str, dry_run: bool) -> Pushed:
        changed = taken = 0
        while True:
            try:
                pushed = self._pass(node, message, dry_run)
            except Changed as change:
                changed += 1
                if changed >= _MOST_PASSES_CHANGED:
                    reason = "it keeps changing while it is pushed, so nothing was published: "
                    reason += "wait for whatever writes to it, then push again"
                    path = self._folder / change.path
                    raise LocalFileError(path=path, reason=reason) from None
                time.sleep(0.2 * changed)
                continue
            finally:
                self._index.save()
            if pushed is not None:
                return pushed
            taken += 1
            if taken >= _MOST_PASSES_TAKEN:
                reason = f"others push to {self._log.name} all the time: try again in a moment"
                raise Conflict(reason=reason)
            time.sleep(random.uniform(0, 0.05 * min(taken, 10)))

    def _pass(self, node: str, message: str, dry_run: bool) -> Pushed | None:
        """None: somebody else's record came first."""
        head = self._log.head()
        found = scan(self._folder)
        if not found:
            raise LocalFileError(path=self._folder, reason="holds no file, so there is no dataset")
        known = self._unread(found)
        if len(known) == len(found) and self._is_newest(head, list(known.values())):
            return self._nothing_to_do(head, found)
        places = self._manifests.places(head)
        if not dry_run:
            self._journal.open(self._log, head)
            places |= self._journal.own()
        files = self._read(found, known, places, dry_run)
        if self._is_newest(head, files):
            return self._nothing_to_do(head, found)
        if dry_run:
            return self._pushed(Reference(self._log.name, head.next_version), files)
        return self._publish(head, files, places, node, message)

    def _unread(self, found: list[Found]) -> dict[str, File]:
        """Files whose content the index is sure of."""
        files = {}
        for item in found:
            pieces = self._index.pieces(item)
            if pieces is not None:
                files[item.path] = _file(item, pieces)
        return files

    def _is_newest(self, head: Head, files: Sequence[File]) -> bool:
        return head.newest is not None and head.newest.digest == digest(files)

    def _nothing_to_do(self, head: Head, found: list[Found]) -> Pushed:
        assert head.newest is not None
        self._remember([item.path for item in found])
        newest = head.newest
        return Pushed(newest.reference, False, newest.files, newest.bytes, 0, 0)

    def _publish(
        self, head: Head, files: list[File], places: dict[str, Place], node: str, message: str
    ) -> Pushed | None:
        used = {piece: places[piece] for file in files for piece in file.pieces}
        manifest = Manifest(tuple(files), used)
        key = self._manifests.store(manifest)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        version = Version(
            self._log.name,
            head.next_version,
            key,
            len(files),
            manifest.size,
            now,
            node,
            message,
        )
        versions = (*head.versions, version)
        if self._log.append(head, versions, head.next_version + 1, self._journal.id) is None:
            self._manifests.delete([key])  # ours alone, and no record names it
            return None
        self._journal.close()
        self._remember([file.path for file in files])
        return self._pushed(version.reference, files)

    def _pushed(self, reference: Reference, files: Sequence[File]) -> Pushed:
        size = sum(file.size for file in files)
        moved = len(self._moved_files)
        return Pushed(reference, True, len(files), size, moved, self._moved_bytes)

    def _remember(self, paths: list[str]) -> None:
        self._index.keep_only(paths)
        self._index.mark_synced(paths)

    # Reading and sending

    def _read(
        self,
        found: list[Found],
        known: dict[str, File],
        places: dict[str, Place],
        dry_run: bool,
    ) -> list[File]:
        """Every file, read where need be; `places` then has all their pieces."""
        to_read = [
            item
            for item in found
            if item.path not in known
            or any(piece not in places for piece in known[item.path].pieces)
        ]
        seen: dict[str, list[Piece]] = {item.path: [] for item in to_read}
        meter = _Meter(self._progress, to_read)
        send = self._count if dry_run else self._send
        try:
            for sent in send(self._pieces(to_read, seen), places):
                for piece in sent:
                    meter.count(piece)
        finally:  # what was read need not be read again when this pass goes no further
            for item in to_read:
                pieces = seen[item.path]
                if len(pieces) == piece_count(item.size):
                    read_at_ns = pieces[0].read_at_ns if pieces else 0
                    self._index.note(item, _hashes(pieces), read_at_ns)
        known |= {item.path: _file(item, _hashes(seen[item.path])) for item in to_read}
        return [known[item.path] for item in found]

    def _pieces(self, found: list[Found], seen: dict[str, list[Piece]]) -> Iterator[Piece]:
        """All pieces, in the order of files; what was seen is noted on the way."""
        small = [item for item in found if item.size < PACK_BELOW]
        large = [item for item in found if item.size >= PACK_BELOW]
        for batch in in_parallel(self._read_batch, _batches(small), _READERS, _READERS + 2):
            for piece in batch:
                seen[piece.found.path].append(piece._replace(content=b""))
                yield piece
        numbered = ((item, number) for item in large for number in range(piece_count(item.size)))
        for piece in in_parallel(self._read_one, numbered, _READERS // 2, _READERS // 2):
            seen[piece.found.path].append(piece._replace(content=b""))
            yield piece

    def _read_batch(self, batch: list[Found]) -> list[Piece]:
        return [self._read_one((item, 0)) for item in batch if item.size]

    def _read_one(self, which: tuple[Found, int]) -> Piece:
        found, number = which
        now = now_ns()
        content = read_piece(self._folder, found, number)
        return Piece(found, number, hash_of(content), content, now)

    def _send(self, pieces: Iterable[Piece], places: dict[str, Place]) -> Iterator[list[Piece]]:
        objects = _objects(pieces, places)
        for sent, new in in_parallel(self._upload, objects, _SENDERS, _SENDERS):
            places |= new
            self._moved_files.update(piece.found.path for piece in sent if piece.content)
            self._moved_bytes += sum(len(piece.content) for piece in sent)
            yield sent

    def _upload(self, pieces: list[Piece]) -> tuple[list[Piece], dict[str, Place]]:
        content = [piece.content for piece in pieces if piece.content]
        if not content:
            return pieces, {}
        sizes = [(piece.hash, len(piece.content)) for piece in pieces if piece.content]
        whole = content[0] if len(content) == 1 else b"".join(content)
        return pieces, self._journal.upload(whole, sizes)

    def _count(self, pieces: Iterable[Piece], places: dict[str, Place]) -> Iterator[list[Piece]]:
        """A dry run: what would be sent."""
        self._moved_files, self._moved_bytes, seen = set(), 0, set(places)
        for piece in pieces:
            if piece.hash not in seen:
                seen.add(piece.hash)
                self._moved_files.add(piece.found.path)
                self._moved_bytes += len(piece.content)
            yield [piece]


class _Meter:
    """Tells the progress: pieces count for what they are of their file, sent or known already."""

    def __init__(self, progress: Progress, found: list[Found]) -> None:
        self._tell = progress
        self._total = sum(item.size for item in found)
        self._files = len(found)
        self._done, self._done_files = 0, sum(not item.size for item in found)
        self._tell(0, self._total, self._done_files, self._files)

    def count(self, piece: Piece) -> None:
        last = piece.number == piece_count(piece.found.size) - 1
        start = piece.number * PIECE_BYTES
        self._done += min(PIECE_BYTES, piece.found.size - start)
        self._done_files += last
        self._tell(self._done, self._total, self._done_files, self._files)


def _objects(pieces: Iterable[Piece], places: dict[str, Place]) -> Iterator[list[Piece]]:
    """Pieces that go into one object together. Those that are in the store, or on their way, lose
    their content and ride along for the count."""
    pack: list[Piece] = []
    filled = 0
    seen: set[str] = set()
    for piece in pieces:
        if piece.hash in places or piece.hash in seen:
            pack.append(piece._replace(content=b""))
            if not filled and len(pack) >= _BATCH_FILES:
                yield pack
                pack = []
            continue
        seen.add(piece.hash)
        if len(piece.content) >= PACK_BELOW:
            yield [piece]
            continue
        pack.append(piece)
        filled += len(piece.content)
        if filled >= PACK_BYTES:
            yield pack
            pack, filled = [], 0
    if pack:
        yield pack


def _batches(found: list[Found]) -> Iterator[list[Found]]:
    batch: list[Found] = []
    size = 0
    for item in found:
        batch.append(item)
        size += item.size
        if size >= _BATCH_BYTES or len(batch) >= _BATCH_FILES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _file(found: Found, pieces: Pieces) -> File:
    return File(found.path, found.size, found.mtime_ns, found.executable, pieces)


def _hashes(pieces: list[Piece]) -> Pieces:
    return tuple(piece.hash for piece in pieces)
