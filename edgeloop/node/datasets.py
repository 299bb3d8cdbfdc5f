"""The datasets of a store: push, pull, verify, list, remove and cache them."""

from __future__ import annotations

import hashlib
import secrets
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

from edgeloop._util.files import file_lock, mark_used
from edgeloop._util.system import ordered_map
from edgeloop._util.values import size_text
from edgeloop.errors import BlobMissing, Conflict, DatasetDamaged, LocalFileError, NoSuchDataset
from edgeloop.node.index import Index, Journal
from edgeloop.node.ledger import (
    ORPHAN_DAYS,
    Head,
    Ledger,
    Manifest,
    Manifests,
    Reference,
    Version,
    check_name,
    full_names,
    heads,
    key_part,
    only_one,
    parse_reference,
    suggestion,
)
from edgeloop.node.pull import Pull, Pulled, Verified, verify_folder, verify_store
from edgeloop.node.push import Progress, Push, Pushed
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
        kept = tuple(version for version in head.versions if version not in removed)
        new = ledger.append(head, kept, head.next_version, secrets.token_hex(16))
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


_READERS = 8


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
                Journal(self._local(name, "journal"), self._blobs, _objects(name)),
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
            prefix = _objects(version.name)
            return verify_store(version.reference, manifest, self._blobs, prefix, progress)

    def versions(self, name: str) -> tuple[Version, ...]:
        """All live versions, oldest first. Raises NoSuchDataset if there is none."""
        return Ledger(self._blobs, self._stored_name(name)).head().versions

    def list(self) -> tuple[Version, ...]:
        """The newest version of every dataset."""
        ledgers = [Ledger(self._blobs, name) for name, _ in heads(self._blobs)]
        newest = ordered_map(lambda ledger: ledger.head().newest, ledgers, _READERS, 4 * _READERS)
        return tuple(version for version in newest if version is not None)

    def remove(self, name: str, versions: Collection[int] | None = None) -> tuple[Version, ...]:
        """Remove versions (None: all), and the bytes that no other version needs."""
        ledger = Ledger(self._blobs, check_name(name))
        return remove(self._blobs, ledger, self._manifests(name), _objects(name), versions)

    def resolve(self, text: str) -> Reference:
        """The version that `faces`, `working/faces` or `working/faces@3` means."""
        return self._version(text).reference

    def fetch(
        self, name: str, version: int, cache: Path, tell: Callable[[str], None] = lambda _: None
    ) -> Path:
        """A read-only copy of a version in this machine's cache, fetched once for all jobs.

        It appears under its name when it is complete. `tell` gets one sentence.
        """
        wanted = self._version(Reference(name, version))
        target = cache / "datasets" / f"{key_part(name)}@{version}-{wanted.digest[:16]}"
        with file_lock(target.with_name(f"{target.name}.lock")):
            if target.is_dir():
                mark_used(target)
                tell(f"{wanted.reference} is in this node's cache")
                return target
            partial = target.with_name(f"{target.name}.partial")
            _make_folder(partial)
            with self._reading(wanted) as manifest:
                pull = self._pull(wanted, manifest, Index(None), partial, None, read_only=True)
                pull.run(dry_run=False, delete=True, force=True)
            partial.replace(target)
            mark_used(target)  # fetching may take long
            size = size_text(manifest.size)
            tell(f"fetched {wanted.reference}: {len(manifest.files)} files, {size}")
        return target

    def _version(self, reference: str | Reference) -> Version:
        if isinstance(reference, Reference):
            name, wanted = reference.name, reference.version
        else:
            text, number = parse_reference(reference)
            name, wanted = self._stored_name(text), number or 0
        head = Ledger(self._blobs, check_name(name)).head()
        version = head.find(wanted) if wanted else head.newest
        if version is None:
            there = ", ".join(str(item.version) for item in head.versions[-10:])
            reason = f"the store has no version {wanted} of it, only {there}" if there else ""
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
            self._blobs,
            _objects(version.name),
            version.reference,
            manifest,
            index,
            folder,
            progress,
            read_only,
        )

    def _manifests(self, name: str) -> Manifests:
        return Manifests(self._blobs, name, self._local(name, "manifests"))

    def _index(self, name: str, folder: Path) -> Index:
        """One per folder that holds the dataset."""
        where = hashlib.blake2b(str(folder.absolute()).encode(errors="replace"), digest_size=8)
        return Index(self._local(name, f"{where.hexdigest()}.json"))

    def _local(self, name: str, what: str) -> Path | None:
        return self._index_folder / key_part(name) / what if self._index_folder else None


def _objects(name: str) -> str:
    return f"_data/objects/{key_part(name)}/"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalFileError(path=folder, reason=error.strerror) from None
