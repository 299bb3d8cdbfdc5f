"""The content of one version: its files, and where in the store their bytes are.

A file is a list of pieces: one for most, several of PIECE_BYTES for a large one. Small pieces share
an object. Paths are part of the manifest and never of a key, so a file may have any name. A
manifest comes from a store that others write to: all of it is checked before it is used.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import secrets
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Tuple

from edgeloop._util.files import memory_of, write_atomic
from edgeloop.data.ledger import Head, Version
from edgeloop.data.names import key_part
from edgeloop.errors import BlobMissing, DatasetDamaged
from edgeloop.store import Blobs

PIECE_BYTES = 8 << 20
OBJECT_BYTES = 16 << 20  # what pieces share ends at 9 MB
MOST_BYTES = 1 << 30  # of a manifest in the store: some ten million files
# What a manifest may become in memory, and how much more for each of its bytes in the store. Every
# file has a hash of 32 random bytes, so that none shrinks to a tenth; files without content do.
_LEAST_TEXT, _TEXT_SHARE = 32 << 20, 30
_LEAST_MEMORY, _MEMORY_SHARE = 256 << 20, 40
_MOST_NS = 1 << 70  # no clock or disk knows such a time
_HASH = re.compile(r"[0-9a-f]{64}")
_OBJECT = re.compile(r"[0-9a-f]{32}")
_LONGEST_PATH, _MOST_FOLDERS = 4_096, 256
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)

Pieces = Tuple[str, ...]


class File(NamedTuple):
    path: str
    size: int
    mtime_ns: int
    executable: bool
    pieces: Pieces


class PieceLocation(NamedTuple):
    """The object that holds a piece, with offset and size."""

    object: str
    offset: int
    size: int


class Manifest(NamedTuple):
    files: tuple[File, ...]
    locations: Mapping[str, PieceLocation]

    @property
    def objects(self) -> set[str]:
        return {location.object for location in self.locations.values()}

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class Manifests:
    """The manifests of a dataset. They never change, so they are cached in a folder."""

    def __init__(self, blobs: Blobs, name: str, cache: Path | None) -> None:
        self._blobs = blobs
        self._name = name
        self._cache = cache
        self.prefix = f"_data/manifests/{key_part(name)}/"

    def load(self, version: Version) -> Manifest:
        """Raises BlobMissing if it is gone, DatasetDamaged if it is not what was published."""
        cached = self._cache / version.manifest if self._cache else None
        if cached is not None and cached.is_file():
            try:
                return self._checked(version, cached.read_bytes())
            except DatasetDamaged:  # only the cached copy
                cached.unlink()
        content = self._blobs.read_range(self.prefix + version.manifest, 0, MOST_BYTES + 1)
        manifest = self._checked(version, content)
        self._keep(version.manifest, content)
        return manifest

    def store(self, manifest: Manifest) -> str:
        """Store it and return its name below `prefix`."""
        name = f"{digest(manifest.files)}-{secrets.token_hex(16)}.json.gz"
        content = encoded(manifest)
        self._blobs.put(self.prefix + name, content)
        self._keep(name, content)
        return name

    def delete(self, names: Iterable[str]) -> None:
        self._blobs.delete([self.prefix + name for name in names])

    def locations(self, head: Head) -> dict[str, PieceLocation]:
        """Every piece that a live version references."""
        found: dict[str, PieceLocation] = {}
        for version in head.versions:
            try:
                found.update(self.load(version).locations)
            except (BlobMissing, DatasetDamaged):
                continue  # the pieces of a version that cannot be read are sent again
        live = {version.manifest for version in head.versions}
        for cached in self._cache.glob("*.json.gz") if self._cache and self._cache.is_dir() else ():
            if cached.name not in live:
                cached.unlink(missing_ok=True)
        return found

    def _checked(self, version: Version, content: bytes) -> Manifest:
        try:
            manifest = decoded(content)
        except (*_MALFORMED, OSError, EOFError, zlib.error) as error:
            is_told = isinstance(error, (ValueError, OSError, EOFError, zlib.error))
            reason = (
                f"its manifest cannot be used: {_short(error) if is_told else 'it is malformed'}"
            )
            raise DatasetDamaged(dataset=version.reference, reason=reason) from None
        if digest(manifest.files) != version.digest:
            reason = "its manifest is not the one that was published"
            raise DatasetDamaged(dataset=version.reference, reason=reason)
        return manifest

    def _keep(self, name: str, content: bytes) -> None:
        if self._cache is None:
            return
        self._cache.mkdir(parents=True, exist_ok=True)
        write_atomic(self._cache / name, content)


def digest(files: Iterable[File]) -> str:
    """Digest of the content alone: times and packing make no difference."""
    hasher = hashlib.sha256()
    for file in files:
        line = json.dumps([file.path, file.size, bool(file.executable), *file.pieces])
        hasher.update(line.encode() + b"\n")
    return hasher.hexdigest()


def hash_of(content: bytes | memoryview) -> str:
    """SHA-256, for which processors have instructions: then twice as fast as BLAKE2."""
    return hashlib.sha256(content).hexdigest()


def encoded(manifest: Manifest) -> bytes:
    objects = {key: number for number, key in enumerate(sorted(manifest.objects))}
    pieces = {piece: number for number, piece in enumerate(manifest.locations)}
    content = {
        "format": 1,
        "objects": list(objects),
        "pieces": [
            (piece, objects[location.object], location.offset, location.size)
            for piece, location in manifest.locations.items()
        ],
        "files": [
            (*file[:3], int(file.executable), [pieces[piece] for piece in file.pieces])
            for file in manifest.files
        ],
    }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return gzip.compress(text.encode(), compresslevel=1, mtime=0)


def decoded(content: bytes) -> Manifest:
    """Raises ValueError and similar for anything that `encoded` could not have written."""
    data = json.loads(_unpacked(content))
    if data["format"] != 1:
        raise ValueError(f"it has format {data['format']}: update Edgeloop to read it")
    objects = [_matching(_OBJECT, key) for key in data["objects"]]
    pieces = [
        (
            _matching(_HASH, piece),
            _located(objects[_number(index)], _number(offset), _number(size)),
        )
        for piece, index, offset, size in data["pieces"]
    ]
    files = tuple(_file(row, pieces) for row in data["files"])
    _check_tree([file.path for file in files])
    return Manifest(files, dict(pieces))


def _unpacked(content: bytes) -> bytes:
    """The text, once it is certain that reading it needs no more memory than it may. Kilobytes can
    unpack to gigabytes, and megabytes of brackets become gigabytes of lists."""
    most = _LEAST_TEXT + _TEXT_SHARE * len(content)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 30} GB")
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as unpacking:
        text = unpacking.read(most + 1)
    if len(text) > most or memory_of(text) > _LEAST_MEMORY + _MEMORY_SHARE * len(content):
        raise ValueError("it unpacks to more than any folder would need")
    return text


def check_path(path: object) -> str:
    """A path that stays below the folder to which it will be joined."""
    if not isinstance(path, str) or "\x00" in path:
        raise ValueError(f"a file cannot be named {_short(path)!r}")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"the path {_short(path)!r} leads out of its folder")
    if len(path) > _LONGEST_PATH or path.count("/") > _MOST_FOLDERS:
        raise ValueError(f"a file cannot be named {_short(path)!r}")
    path.encode()  # a lone surrogate raises UnicodeEncodeError, a ValueError
    return path


def _file(row: list[object], pieces: list[tuple[str, PieceLocation]]) -> File:
    path, size, mtime_ns, executable, numbers = row
    is_time = isinstance(mtime_ns, int) and -_MOST_NS < mtime_ns < _MOST_NS
    if not isinstance(numbers, list) or not isinstance(mtime_ns, int) or not is_time:
        raise ValueError(f"the entry of {_short(path)!r} is malformed")
    used = [pieces[_number(number)] for number in numbers]
    if any(location.size != PIECE_BYTES for _, location in used[:-1]):
        raise ValueError(f"{_short(path)!r} is not cut as a push does it")
    if sum(location.size for _, location in used) != _number(size):
        raise ValueError(f"the size of {_short(path)!r} does not match its pieces")
    return File(
        check_path(path), _number(size), mtime_ns, bool(executable), tuple(p for p, _ in used)
    )


def _located(key: str, offset: int, size: int) -> PieceLocation:
    """As a push writes it: so much is read at a time, and never more."""
    if not 0 < size <= PIECE_BYTES or offset + size > OBJECT_BYTES:
        raise ValueError(f"a piece of {size:,} bytes at {offset:,} is not one of ours")
    return PieceLocation(key, offset, size)


def _check_tree(paths: list[str]) -> None:
    """Sorted, without duplicates, and none both a file and a folder."""
    if sorted(set(paths)) != paths:
        raise ValueError("its files are not sorted, or one is listed twice")
    files = set(paths)
    folders = {path[: match.start()] for path in paths for match in re.finditer("/", path)}
    if files & folders:
        raise ValueError(f"{min(files & folders)!r} is both a file and a folder")


def _matching(pattern: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{_short(value)!r} is not a key")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{_short(value)!r} is not a size")
    return value


def _short(value: object) -> str:
    """What is in a manifest may have any length."""
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
