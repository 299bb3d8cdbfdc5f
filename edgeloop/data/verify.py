"""Is it what was pushed? Everything is read again; no memory of earlier reads is trusted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from edgeloop.data.manifest import Manifest, Place, hash_of
from edgeloop.data.names import Reference
from edgeloop.data.parallel import in_parallel
from edgeloop.data.pull import contents_of, scan_here
from edgeloop.data.push import Progress
from edgeloop.errors import BlobMissing
from edgeloop.store import Blobs

_WORKERS = 6


@dataclass(frozen=True)
class Verified:
    """Paths that differ. `damaged` are files whose bytes in the store are not right."""

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
    local = {item.path: item for item in scan_here(folder)}
    wanted = {file.path: file for file in manifest.files}
    alike = [item for path, item in local.items() if path in wanted]
    contents = contents_of(folder, alike, None)
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
    """Read every object that the version needs."""
    by_object: dict[str, list[tuple[str, Place]]] = defaultdict(list)
    for piece, place in manifest.places.items():
        by_object[place.object].append((piece, place))

    def damaged_in(key: str) -> list[str]:
        try:
            content = memoryview(blobs.read(prefix + key))
        except BlobMissing:
            return [piece for piece, _ in by_object[key]]
        return [
            piece
            for piece, (_, offset, size) in by_object[key]
            if hash_of(content[offset : offset + size]) != piece
        ]

    damaged: set[str] = set()
    total = sum(place.size for place in manifest.places.values())
    done = 0
    for key, bad in zip(
        by_object, in_parallel(damaged_in, list(by_object), _WORKERS, _WORKERS), strict=True
    ):
        damaged.update(bad)
        done += sum(place.size for _, place in by_object[key])
        if progress:
            progress(done, total, 0, len(manifest.files))
    hurt = tuple(file.path for file in manifest.files if damaged.intersection(file.pieces))
    return Verified(reference, len(manifest.files), manifest.size, damaged=hurt)
