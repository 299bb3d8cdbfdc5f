"""The datasets of a store: push, pull, verify, list, remove and cache them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import secrets
import shutil
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Callable, NamedTuple

from edgeloop._util.files import file_lock, mark_used
from edgeloop._util.system import O_CLOEXEC, ordered_map
from edgeloop._util.values import size_text
from edgeloop.errors import BlobMissing, Conflict, DatasetDamaged, LocalFileError, NoSuchDataset
from edgeloop.node.ledger import (
    OBJECT_BYTES,
    ORPHAN_DAYS,
    PARTIAL,
    PIECE_BYTES,
    File,
    FileChanged,
    Head,
    Index,
    Journal,
    Ledger,
    Manifest,
    Manifests,
    PieceLocation,
    Pieces,
    Reference,
    ScannedFile,
    Version,
    check_name,
    digest,
    full_names,
    hash_of,
    heads,
    key_part,
    leftovers,
    only_one,
    parse_reference,
    piece_count,
    pieces_of,
    read_piece,
    scan,
    scan_file,
    suggestion,
)
from edgeloop.store.base import Blobs

_MOST_TRIES = 30


def remove(
    blobs: Blobs,
    ledger: Ledger,
    manifests: Manifests,
    objects: str,
    versions: Collection[int] | None,
) -> tuple[Version, ...]:
    """Remove versions (None: all) and what no other version needs; `ledger` explains why this order
    is safe. Returns those removed. Raises NoSuchDataset for a version that does not exist."""
    head, removed = _unpublish(ledger, versions)
    blobs.delete(_garbage(blobs, manifests, objects, head, removed))
    return removed


def _unpublish(
    ledger: Ledger, versions: Collection[int] | None
) -> tuple[Head, tuple[Version, ...]]:
    for _ in range(_MOST_TRIES):
        head = ledger.head()
        removed = tuple(v for v in head.versions if versions is None or v.version in versions)
        missing = set(versions or ()) - {version.version for version in removed}
        if missing or not removed:
            what = f"version {min(missing)}" if missing else "version of it"
            raise NoSuchDataset(name=ledger.name, reason=f"the store has no {what}")
        remaining = tuple(version for version in head.versions if version not in removed)
        new = ledger.append(head, remaining, head.next_version, secrets.token_hex(16))
        if new is not None:
            return new, removed
    raise Conflict(reason=f"others keep changing {ledger.name}: try again in a moment")


def _garbage(
    blobs: Blobs, manifests: Manifests, objects: str, head: Head, removed: tuple[Version, ...]
) -> list[str]:
    """Keys to delete, decided by the record that was just written. A live manifest that cannot be
    read stops the removal, since what it needs is unknown."""
    needed = {objects + key for version in head.versions for key in manifests.load(version).objects}
    needed |= {manifests.prefix + version.manifest for version in head.versions}
    released = {manifests.prefix + version.manifest for version in removed}
    for version in removed:
        try:
            released |= {objects + key for key in manifests.load(version).objects}
        except (BlobMissing, DatasetDamaged):
            continue  # what it referenced is orphaned now, and removed as such later
    old = datetime.now(timezone.utc) - timedelta(days=ORPHAN_DAYS)
    for prefix in (objects, manifests.prefix):
        released |= {info.key for info in blobs.list(prefix) if info.modified < old}
    return sorted(released - needed)


_LEDGERS_AT_ONCE = 8


class Datasets:
    """Datasets in a store's files. `index_folder` is where this machine remembers what it has read
    and sent; without it all is read again each time, and a killed push starts from scratch."""

    def __init__(
        self, blobs: Blobs, index_folder: Path | None = None, node: str | None = None
    ) -> None:
        self._blobs = blobs
        self._index_folder = index_folder
        self._node = node or socket.gethostname()

    def push(
        self,
        name: str,
        folder: Path,
        *,
        progress: Progress | None = None,
        dry_run: bool = False,
        message: str = "",
    ) -> Pushed:
        """Publish the folder as a new version, unless the newest one has the same content."""
        ledger = Ledger(self._blobs, check_name(name))
        if not folder.is_dir():
            raise LocalFileError(path=folder, reason="there is no such folder")
        with file_lock(self._local(name, "lock")), file_lock(folder, shared=True):
            push = Push(
                ledger,
                self._manifests(name),
                Journal(self._local(name, "journal"), self._blobs, _objects_prefix(name)),
                self._index(name, folder),
                folder,
                progress,
            )
            return push.run(self._node, message, dry_run)

    def pull(
        self,
        reference: str | Reference,
        folder: Path,
        *,
        progress: Progress | None = None,
        dry_run: bool = False,
        delete: bool = False,
        force: bool = False,
    ) -> Pulled:
        """Make the folder hold this version. Locally changed files stop it, unless `force`; files
        that the version does not have are kept, unless `delete`."""
        version = self._version(reference)
        if not dry_run:
            _make_folder(folder)
        with self._reading(version) as manifest, file_lock(folder if folder.is_dir() else None):
            index = self._index(version.name, folder)
            pull = self._pull(version, manifest, index, folder, progress)
            return pull.run(dry_run, delete, force)

    def verify(
        self,
        reference: str | Reference,
        folder: Path | None = None,
        *,
        progress: Progress | None = None,
    ) -> Verified:
        """Compare a folder with a version; without a folder, the bytes in the store."""
        version = self._version(reference)
        with self._reading(version) as manifest:
            if folder is not None:
                return verify_folder(version.reference, manifest, folder)
            prefix = _objects_prefix(version.name)
            return verify_store(version.reference, manifest, self._blobs, prefix, progress)

    def versions(self, name: str) -> tuple[Version, ...]:
        """All live versions, oldest first. Raises NoSuchDataset if there is none."""
        return Ledger(self._blobs, self._stored_name(name)).head().versions

    def list(self) -> tuple[Version, ...]:
        """The newest version of every dataset."""
        ledgers = [Ledger(self._blobs, name) for name, _ in heads(self._blobs)]
        newest = ordered_map(
            lambda ledger: ledger.head().newest, ledgers, _LEDGERS_AT_ONCE, 4 * _LEDGERS_AT_ONCE
        )
        return tuple(version for version in newest if version is not None)

    def remove(self, name: str, versions: Collection[int] | None = None) -> tuple[Version, ...]:
        """Remove versions (None: all), and the bytes that no other version needs."""
        ledger = Ledger(self._blobs, check_name(name))
        return remove(self._blobs, ledger, self._manifests(name), _objects_prefix(name), versions)

    def resolve(self, text: str) -> Reference:
        """The version that `faces`, `working/faces` or `working/faces@3` means."""
        return self._version(text).reference

    def fetch(
        self, name: str, version: int, cache: Path, tell: Callable[[str], None] = lambda _: None
    ) -> Path:
        """A read-only copy of a version in this machine's cache, fetched once for all jobs.

        It appears under its name when it is complete. `tell` gets one sentence.
        """
        published = self._version(Reference(name, version))
        target = cache / "datasets" / f"{key_part(name)}@{version}-{published.digest[:16]}"
        with file_lock(target.with_name(f"{target.name}.lock")):
            if target.is_dir():
                mark_used(target)
                tell(f"{published.reference} is in this node's cache")
                return target
            partial = target.with_name(f"{target.name}.partial")
            _make_folder(partial)
            with self._reading(published) as manifest:
                pull = self._pull(published, manifest, Index(None), partial, None, read_only=True)
                pull.run(dry_run=False, delete=True, force=True)
            partial.replace(target)
            mark_used(target)  # fetching may take long
            size = size_text(manifest.size)
            tell(f"fetched {published.reference}: {len(manifest.files)} files, {size}")
        return target

    def _version(self, reference: str | Reference) -> Version:
        if isinstance(reference, Reference):
            name, asked = reference.name, reference.version
        else:
            text, number = parse_reference(reference)
            name, asked = self._stored_name(text), number or 0
        head = Ledger(self._blobs, check_name(name)).head()
        version = head.find(asked) if asked else head.newest
        if version is None:
            there = ", ".join(str(item.version) for item in head.versions[-10:])
            reason = f"the store has no version {asked} of it, only {there}" if there else ""
            raise NoSuchDataset(name=name, reason=reason or "the store has no version of it")
        return version

    def _stored_name(self, text: str) -> str:
        """The full name of a dataset that has versions."""
        names = [n for n in full_names(text) if Ledger(self._blobs, check_name(n)).head().versions]
        if names:
            return only_one(text, names)
        near = suggestion(text, (version.name for version in self.list()))
        raise NoSuchDataset(name=text, reason=f"the store has none of that name{near}")

    @contextmanager
    def _reading(self, version: Version) -> Iterator[Manifest]:
        """Missing bytes mean that the version was removed meanwhile, or that it is damaged."""
        try:
            yield self._manifests(version.name).load(version)
        except BlobMissing as error:
            if Ledger(self._blobs, version.name).head().find(version.version) is None:
                reason = f"version {version.version} was removed while it was being read"
                raise NoSuchDataset(name=version.name, reason=reason) from None
            reason = f"a part of it is missing in the store ({error.fields['key']}): "
            reason += "remove this version, then push the dataset again"
            raise DatasetDamaged(dataset=version.reference, reason=reason) from None

    def _pull(
        self,
        version: Version,
        manifest: Manifest,
        index: Index,
        folder: Path,
        progress: Progress | None,
        read_only: bool = False,
    ) -> Pull:
        return Pull(
            _blobs=self._blobs,
            _prefix=_objects_prefix(version.name),
            _reference=version.reference,
            _manifest=manifest,
            _index=index,
            _folder=folder,
            _progress=progress,
            _read_only=read_only,
        )

    def _manifests(self, name: str) -> Manifests:
        return Manifests(self._blobs, name, self._local(name, "manifests"))

    def _index(self, name: str, folder: Path) -> Index:
        """One per folder that holds the dataset."""
        where = hashlib.blake2b(str(folder.absolute()).encode(errors="replace"), digest_size=8)
        return Index(self._local(name, f"{where.hexdigest()}.json"))

    def _local(self, name: str, what: str) -> Path | None:
        return self._index_folder / key_part(name) / what if self._index_folder else None


def _objects_prefix(name: str) -> str:
    return f"_data/objects/{key_part(name)}/"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalFileError(path=folder, reason=error.strerror) from None


# A folder into the store as a new version.
#
# One pass: files are read once and hashed, and pieces that no live version has are sent, small
# ones packed together. The bytes sent are the bytes hashed. Then come the manifest and the record
# that makes the version visible. If an assumption failed (a file changed, another push or a
# removal was first), the pass is repeated: by then nearly everything is known, so that costs
# little.


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
        scanned = scan(self._folder)
        if not scanned:
            raise LocalFileError(path=self._folder, reason="holds no file, so there is no dataset")
        indexed = self._unread(scanned)
        if len(indexed) == len(scanned) and self._is_newest(head, list(indexed.values())):
            return self._nothing_to_do(head, scanned)
        locations = self._manifests.locations(head)
        if not dry_run:
            self._journal.open(self._ledger, head)
            locations.update(self._journal.own())
        files = self._read(scanned, indexed, locations, dry_run)
        if self._is_newest(head, files):
            return self._nothing_to_do(head, scanned)
        if dry_run:
            return self._pushed(Reference(self._ledger.name, head.next_version), files)
        return self._publish(head, files, locations, node, message)

    def _unread(self, scanned: list[ScannedFile]) -> dict[str, File]:
        """Files whose content the index knows for certain."""
        files = {}
        for item in scanned:
            pieces = self._index.pieces(item)
            if pieces is not None:
                files[item.path] = _file(item, pieces)
        return files

    def _is_newest(self, head: Head, files: Sequence[File]) -> bool:
        return head.newest is not None and head.newest.digest == digest(files)

    def _nothing_to_do(self, head: Head, scanned: list[ScannedFile]) -> Pushed:
        assert head.newest is not None
        self._remember([item.path for item in scanned])
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
            name=self._ledger.name,
            version=head.next_version,
            manifest=key,
            files=len(files),
            bytes=manifest.size,
            created=now,
            node=node,
            message=message,
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
        scanned: list[ScannedFile],
        by_path: dict[str, File],
        locations: dict[str, PieceLocation],
        dry_run: bool,
    ) -> list[File]:
        """All files, read if needed; `locations` then has all their pieces."""
        to_read = [
            item
            for item in scanned
            if item.path not in by_path
            or any(piece not in locations for piece in by_path[item.path].pieces)
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
        by_path.update((item.path, _file(item, _hashes(seen[item.path]))) for item in to_read)
        return [by_path[item.path] for item in scanned]

    def _pieces(self, files: list[ScannedFile], seen: dict[str, list[Piece]]) -> Iterator[Piece]:
        """All pieces, in the order of files; each is also added to `seen`."""
        small = [item for item in files if item.size < PACK_BELOW]
        large = [item for item in files if item.size >= PACK_BELOW]
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
        file, number = which
        now = time.time_ns()
        content = read_piece(self._folder, file, number)
        return Piece(file, number, hash_of(content), content, now)

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

    def __init__(self, progress: Progress | None, files: list[ScannedFile]) -> None:
        self._report = progress or (lambda *_: None)
        self._total = sum(item.size for item in files)
        self._files = len(files)
        self._done, self._done_files = 0, sum(not item.size for item in files)
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


def _batches(files: list[ScannedFile]) -> Iterator[list[ScannedFile]]:
    batch: list[ScannedFile] = []
    size = 0
    for item in files:
        batch.append(item)
        size += item.size
        if size >= _BATCH_BYTES or len(batch) >= _BATCH_FILES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _file(scanned: ScannedFile, pieces: Pieces) -> File:
    return File(scanned.path, scanned.size, scanned.mtime_ns, scanned.executable, pieces)


def _hashes(pieces: list[Piece]) -> Pieces:
    return tuple(piece.hash for piece in pieces)


# One version out of the store into a folder, or compared with one.
#
# A file appears under its name only when it is complete and its hashes match. What is already
# correct is not fetched, so a pull that was killed continues where it stopped; a large file
# continues at the piece it had reached. A file that was changed locally is overwritten only with
# `force`.


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
        by_object = defaultdict(list)
        for item in self._wanted(files):
            by_object[item.location.object].append(item)
        fetched = ordered_map(self._fetch_object, by_object.values(), _WORKERS, _WORKERS)
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

    def _fetch_object(self, needed: list[NeededPiece]) -> tuple[int, int]:
        """How many bytes were written, and how many files were completed."""
        needed.sort(key=lambda item: item.location.offset)
        written = ended = 0
        for start, content, items in self._ranges(needed):
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

    def _ranges(self, pieces: list[NeededPiece]) -> Iterator[tuple[int, bytes, list[NeededPiece]]]:
        key = self._prefix + pieces[0].location.object
        end = max(item.location.offset + item.location.size for item in pieces)
        needed = sum(item.location.size for item in {w.hash: w for w in pieces}.values())
        if needed >= end * _WHOLE_SHARE:
            yield 0, self._blobs.read_range(key, 0, end), pieces
            return
        for group in _close_together(pieces):
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
        """Users who may read it may execute it; the umask decides the rest."""
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
    indexed = {item.path: index.pieces(item) for item in files} if index else {}
    contents = {path: pieces for path, pieces in indexed.items() if pieces is not None}
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


def _close_together(pieces: list[NeededPiece]) -> Iterator[list[NeededPiece]]:
    group: list[NeededPiece] = []
    end = 0
    for item in pieces:
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


def _delete(folder: Path, extra: tuple[ScannedFile, ...], files: tuple[File, ...]) -> None:
    """What is behind a link stays: the link is removed unless files of the version use it."""
    prefixes = {str(parent) for file in files for parent in Path(file.path).parents}
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
    expected = {file.path: file for file in manifest.files}
    alike = [item for path, item in local.items() if path in expected]
    contents = _contents(folder, alike, None)
    return Verified(
        reference,
        len(manifest.files),
        manifest.size,
        missing=tuple(path for path in expected if path not in local),
        changed=tuple(
            item.path
            for item in alike
            if contents[item.path] != expected[item.path].pieces
            or item.executable != expected[item.path].executable
        ),
        extra=tuple(path for path in local if path not in expected),
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
