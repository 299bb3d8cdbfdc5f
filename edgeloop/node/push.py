"""A folder into the store as a new version.

One pass: files are read once and hashed, and pieces that no live version has are sent, small ones
packed together. The bytes sent are the bytes hashed. Then come the manifest and the record that
makes the version visible. If an assumption failed (a file changed, another push or a removal was
first), the pass is repeated: by then nearly everything is known, so that costs little.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Callable, NamedTuple

from edgeloop._util.system import ordered_map
from edgeloop.errors import Conflict, LocalFileError
from edgeloop.node.index import (
    FileChanged,
    Index,
    Journal,
    ScannedFile,
    piece_count,
    read_piece,
    scan,
)
from edgeloop.node.ledger import (
    PIECE_BYTES,
    File,
    Head,
    Ledger,
    Manifest,
    Manifests,
    PieceLocation,
    Pieces,
    Reference,
    Version,
    digest,
    hash_of,
)

Progress = Callable[[int, int, int, int], None]  # bytes done and total, files done and total

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
    """The version that holds the folder. `moved` is what was sent, or would be in a dry run."""

    reference: Reference
    is_new: bool
    files: int
    bytes: int
    moved_files: int
    moved_bytes: int


class Piece(NamedTuple):
    """A piece that was read: `content` is what was hashed."""

    found: ScannedFile
    number: int
    hash: str
    content: bytes
    read_at_ns: int


@dataclass
class Push:
    """One push of a folder; `progress` may be None."""

    _ledger: Ledger
    _manifests: Manifests
    _journal: Journal
    _index: Index
    _folder: Path
    _progress: Progress | None = None
    _moved_files: set[str] = field(default_factory=set)
    _moved_bytes: int = 0

    def run(self, node: str, message: str, dry_run: bool) -> Pushed:
        changed = taken = 0
        while True:
            try:
                pushed = self._pass(node, message, dry_run)
            except FileChanged as change:
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
                reason = f"others keep pushing to {self._ledger.name}: try again in a moment"
                raise Conflict(reason=reason)
            time.sleep(random.uniform(0, 0.05 * min(taken, 10)))

    def _pass(self, node: str, message: str, dry_run: bool) -> Pushed | None:
        """None if another writer's record came first."""
        head = self._ledger.head()
        found = scan(self._folder)
        if not found:
            raise LocalFileError(path=self._folder, reason="holds no file, so there is no dataset")
        known = self._unread(found)
        if len(known) == len(found) and self._is_newest(head, list(known.values())):
            return self._nothing_to_do(head, found)
        locations = self._manifests.locations(head)
        if not dry_run:
            self._journal.open(self._ledger, head)
            locations.update(self._journal.own())
        files = self._read(found, known, locations, dry_run)
        if self._is_newest(head, files):
            return self._nothing_to_do(head, found)
        if dry_run:
            return self._pushed(Reference(self._ledger.name, head.next_version), files)
        return self._publish(head, files, locations, node, message)

    def _unread(self, found: list[ScannedFile]) -> dict[str, File]:
        """Files whose content the index knows for certain."""
        files = {}
        for item in found:
            pieces = self._index.pieces(item)
            if pieces is not None:
                files[item.path] = _file(item, pieces)
        return files

    def _is_newest(self, head: Head, files: Sequence[File]) -> bool:
        return head.newest is not None and head.newest.digest == digest(files)

    def _nothing_to_do(self, head: Head, found: list[ScannedFile]) -> Pushed:
        assert head.newest is not None
        self._remember([item.path for item in found])
        newest = head.newest
        return Pushed(newest.reference, False, newest.files, newest.bytes, 0, 0)

    def _publish(
        self,
        head: Head,
        files: list[File],
        locations: dict[str, PieceLocation],
        node: str,
        message: str,
    ) -> Pushed | None:
        used = {piece: locations[piece] for file in files for piece in file.pieces}
        manifest = Manifest(tuple(files), used)
        key = self._manifests.store(manifest)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        version = Version(
            self._ledger.name,
            head.next_version,
            key,
            len(files),
            manifest.size,
            now,
            node,
            message,
        )
        versions = (*head.versions, version)
        if self._ledger.append(head, versions, head.next_version + 1, self._journal.id) is None:
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
        found: list[ScannedFile],
        known: dict[str, File],
        locations: dict[str, PieceLocation],
        dry_run: bool,
    ) -> list[File]:
        """All files, read if needed; `locations` then has all their pieces."""
        to_read = [
            item
            for item in found
            if item.path not in known
            or any(piece not in locations for piece in known[item.path].pieces)
        ]
        seen: dict[str, list[Piece]] = {item.path: [] for item in to_read}
        meter = _Meter(self._progress, to_read)
        send = self._count if dry_run else self._send
        try:
            for sent in send(self._pieces(to_read, seen), locations):
                for piece in sent:
                    meter.count(piece)
        finally:  # what was read is not read again if this pass fails
            for item in to_read:
                pieces = seen[item.path]
                if len(pieces) == piece_count(item.size):
                    read_at_ns = pieces[0].read_at_ns if pieces else 0
                    self._index.record(item, _hashes(pieces), read_at_ns)
        known.update((item.path, _file(item, _hashes(seen[item.path]))) for item in to_read)
        return [known[item.path] for item in found]

    def _pieces(self, found: list[ScannedFile], seen: dict[str, list[Piece]]) -> Iterator[Piece]:
        """All pieces, in the order of files; each is also added to `seen`."""
        small = [item for item in found if item.size < PACK_BELOW]
        large = [item for item in found if item.size >= PACK_BELOW]
        read_batch = lambda batch: [self._read_one((item, 0)) for item in batch if item.size]  # noqa: E731
        for batch in ordered_map(read_batch, _batches(small), _READERS, _READERS + 2):
            for piece in batch:
                seen[piece.found.path].append(piece._replace(content=b""))
                yield piece
        numbered = ((item, number) for item in large for number in range(piece_count(item.size)))
        for piece in ordered_map(self._read_one, numbered, _READERS // 2, _READERS // 2):
            seen[piece.found.path].append(piece._replace(content=b""))
            yield piece

    def _read_one(self, which: tuple[ScannedFile, int]) -> Piece:
        found, number = which
        now = time.time_ns()
        content = read_piece(self._folder, found, number)
        return Piece(found, number, hash_of(content), content, now)

    def _send(
        self, pieces: Iterable[Piece], locations: dict[str, PieceLocation]
    ) -> Iterator[list[Piece]]:
        objects = _objects(pieces, locations)
        for sent, new in ordered_map(self._upload, objects, _SENDERS, _SENDERS):
            locations.update(new)
            self._moved_files.update(piece.found.path for piece in sent if piece.content)
            self._moved_bytes += sum(len(piece.content) for piece in sent)
            yield sent

    def _upload(self, pieces: list[Piece]) -> tuple[list[Piece], dict[str, PieceLocation]]:
        content = [piece.content for piece in pieces if piece.content]
        if not content:
            return pieces, {}
        sizes = [(piece.hash, len(piece.content)) for piece in pieces if piece.content]
        whole = content[0] if len(content) == 1 else b"".join(content)
        return pieces, self._journal.upload(whole, sizes)

    def _count(
        self, pieces: Iterable[Piece], locations: dict[str, PieceLocation]
    ) -> Iterator[list[Piece]]:
        """Count what would be sent, for a dry run."""
        self._moved_files, self._moved_bytes, seen = set(), 0, set(locations)
        for piece in pieces:
            if piece.hash not in seen:
                seen.add(piece.hash)
                self._moved_files.add(piece.found.path)
                self._moved_bytes += len(piece.content)
            yield [piece]


class _Meter:
    """Reports progress: pieces count by their size in their file, sent or already known."""

    def __init__(self, progress: Progress | None, found: list[ScannedFile]) -> None:
        self._report = progress or (lambda *_: None)
        self._total = sum(item.size for item in found)
        self._files = len(found)
        self._done, self._done_files = 0, sum(not item.size for item in found)
        self._report(0, self._total, self._done_files, self._files)

    def count(self, piece: Piece) -> None:
        last = piece.number == piece_count(piece.found.size) - 1
        start = piece.number * PIECE_BYTES
        self._done += min(PIECE_BYTES, piece.found.size - start)
        self._done_files += last
        self._report(self._done, self._total, self._done_files, self._files)


def _objects(pieces: Iterable[Piece], locations: dict[str, PieceLocation]) -> Iterator[list[Piece]]:
    """Pieces that share an object. Those that are stored or being sent lose their content and are
    only counted."""
    pack: list[Piece] = []
    filled = 0
    seen: set[str] = set()
    for piece in pieces:
        if piece.hash in locations or piece.hash in seen:
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


def _batches(found: list[ScannedFile]) -> Iterator[list[ScannedFile]]:
    batch: list[ScannedFile] = []
    size = 0
    for item in found:
        batch.append(item)
        size += item.size
        if size >= _BATCH_BYTES or len(batch) >= _BATCH_FILES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _file(found: ScannedFile, pieces: Pieces) -> File:
    return File(found.path, found.size, found.mtime_ns, found.executable, pieces)


def _hashes(pieces: list[Piece]) -> Pieces:
    return tuple(piece.hash for piece in pieces)
