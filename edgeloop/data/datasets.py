"""The datasets of a store: all that a person or a job does with them.

Versions go, and with them what no other version needs. `log` tells why this order is safe.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from edgeloop.data import ledger as logs
from edgeloop.data.index import Index
from edgeloop.data.journal import Journal
from edgeloop.data.ledger import ORPHAN_DAYS, Head, Log, Version
from edgeloop.data.manifest import Manifest, Manifests
from edgeloop.data.names import (
    Reference,
    check_name,
    full_names,
    key_part,
    only_one,
    parse_reference,
    suggestion,
)
from edgeloop.data.parallel import in_parallel, locked
from edgeloop.data.pull import Pull, Pulled
from edgeloop.data.push import Progress, Push, Pushed
from edgeloop.data.verify import Verified, verify_folder, verify_store
from edgeloop.errors import BlobMissing, Conflict, DatasetDamaged, LocalFileError, NoSuchDataset
from edgeloop.store import Blobs

_MOST_TRIES = 30


def remove(
    blobs: Blobs, log: Log, manifests: Manifests, objects: str, versions: Collection[int] | None
) -> tuple[Version, ...]:
    """Those that are gone now; None means all. Raises NoSuchDataset for one that is not there."""
    head, removed = _unpublish(log, versions)
    garbage = _garbage(blobs, manifests, objects, head, removed)
    blobs.delete(garbage)
    return removed


def _unpublish(log: Log, versions: Collection[int] | None) -> tuple[Head, tuple[Version, ...]]:
    for _ in range(_MOST_TRIES):
        head = log.head()
        removed = tuple(v for v in head.versions if versions is None or v.version in versions)
        missing = set(versions or ()) - {version.version for version in removed}
        if missing or not removed:
            what = f"version {min(missing)}" if missing else "version of it"
            raise NoSuchDataset(name=log.name, reason=f"the store has no {what}")
        kept = tuple(version for version in head.versions if version not in removed)
        new = log.append(head, kept, head.next_version, secrets.token_hex(16))
        if new is not None:
            return new, removed
    raise Conflict(reason=f"others change {log.name} all the time: try again in a moment")


def _garbage(
    blobs: Blobs, manifests: Manifests, objects: str, head: Head, removed: tuple[Version, ...]
) -> list[str]:
    """Keys to delete. Decided by the record that was just written; a live manifest that cannot be
    read stops it, for nobody knows what that one needs."""
    needed = {objects + key for version in head.versions for key in manifests.load(version).objects}
    needed |= {manifests.prefix + version.manifest for version in head.versions}
    released = {manifests.prefix + version.manifest for version in removed}
    for version in removed:
        try:
            released |= {objects + key for key in manifests.load(version).objects}
        except (BlobMissing, DatasetDamaged):
            continue  # what it named is a stray now, and goes as strays do
    old = datetime.now(UTC) - timedelta(days=ORPHAN_DAYS)
    for prefix in (objects, manifests.prefix):
        released |= {info.key for info in blobs.list(prefix) if info.modified < old}
    return sorted(released - needed)


_READERS = 8


class Datasets:
    """Datasets in these files. `index_folder` is where this machine remembers what it has read and
    sent; without it everything is read anew each time, and a push that was killed starts anew."""

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
        """Publish the folder as a new version, unless the newest one holds the same."""
        log = Log(self._blobs, check_name(name))
        if not folder.is_dir():
            raise LocalFileError(path=folder, reason="there is no such folder")
        with locked(self._local(name, "lock")), locked(folder, shared=True):
            push = Push(
                log,
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
        """Make the folder hold this version. Files that were changed here stop it, unless `force`;
        files that the version does not have stay, unless `delete`."""
        version = self._version(reference)
        if not dry_run:
            _make_folder(folder)
        with self._reading(version) as manifest, locked(folder if folder.is_dir() else None):
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
        """All that are live, oldest first. Raises NoSuchDataset where there is none."""
        full = self._stored_name(name)
        return Log(self._blobs, full).head().versions

    def list(self) -> tuple[Version, ...]:
        """The newest version of every dataset."""
        found = [Log(self._blobs, name) for name, _ in logs.heads(self._blobs)]
        newest = in_parallel(lambda log: log.head().newest, found, _READERS, 4 * _READERS)
        return tuple(version for version in newest if version is not None)

    def remove(self, name: str, versions: Collection[int] | None = None) -> tuple[Version, ...]:
        """Remove versions (None: all), and the bytes that no other version needs."""
        log = Log(self._blobs, check_name(name))
        return remove(self._blobs, log, self._manifests(name), _objects(name), versions)

    def resolve(self, text: str) -> Reference:
        """`faces`, `working/faces` or `working/faces@3`: the version that is meant."""
        return self._version(text).reference

    def fetch(self, name: str, version: int, cache: Path) -> Path:
        """A read-only copy of a version in this machine's cache, fetched once however many ask.

        It appears under its name when it is complete; until then it is built up beside.
        """
        found = self._version(Reference(name, version))
        target = cache / "datasets" / f"{key_part(name)}@{version}-{found.digest[:16]}"
        if target.is_dir():
            return target
        with locked(target.with_name(f"{target.name}.lock")):
            if target.is_dir():
                return target
            partial = target.with_name(f"{target.name}.partial")
            _make_folder(partial)
            with self._reading(found) as manifest:
                pull = self._pull(found, manifest, Index(None), partial, None, read_only=True)
                pull.run(dry_run=False, delete=True, force=True)
            partial.replace(target)
        return target

    def _version(self, reference: str | Reference) -> Version:
        if isinstance(reference, Reference):
            name, wanted = reference.name, reference.version
        else:
            text, number = parse_reference(reference)
            name, wanted = self._stored_name(text), number or 0
        head = Log(self._blobs, check_name(name)).head()
        version = head.find(wanted) if wanted else head.newest
        if version is None:
            there = ", ".join(str(item.version) for item in head.versions[-10:])
            reason = f"the store has no version {wanted} of it, but {there}" if there else ""
            raise NoSuchDataset(name=name, reason=reason or "the store has no version of it")
        return version

    def _stored_name(self, text: str) -> str:
        """The full name of a dataset that has versions."""
        names = [n for n in full_names(text) if Log(self._blobs, check_name(n)).head().versions]
        if names:
            return only_one(text, names)
        near = suggestion(text, (version.name for version in self.list()))
        raise NoSuchDataset(name=text, reason=f"the store has none of that name{near}")

    @contextmanager
    def _reading(self, version: Version) -> Iterator[Manifest]:
        """Bytes that are missing mean that the version was removed meanwhile, or damage."""
        try:
            yield self._manifests(version.name).load(version)
        except BlobMissing as error:
            if Log(self._blobs, version.name).head().find(version.version) is None:
                reason = f"version {version.version} was removed while it was read"
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
        """One for each folder that holds the dataset."""
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
