"""Versions go, and with them what no other version needs. `log` tells why this order is safe."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from edgeloop.data.log import ORPHAN_DAYS, Head, Log, Version
from edgeloop.data.manifest import Manifests
from edgeloop.errors import BlobMissing, Conflict, DatasetDamaged, NoSuchDataset
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
