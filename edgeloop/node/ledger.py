"""The ledger of a dataset: one record per published or removed version.

    _data/log/<dataset>/<number>.json      each holds the whole state from then on
    _data/manifests/<dataset>/<digest>-<random>.json.gz
    _data/objects/<dataset>/<random>

A record is created, never changed and never deleted, and holds the whole list of live versions; the
one with the highest number counts. A change creates the next number: of several writers that read
the same record one succeeds, and the others read and decide again. This is compare-and-set built on
"create if absent", which folders, S3 and Azure all offer.

What makes removal safe, whichever process is suspended or killed in between:

- A published manifest references only objects that (a) versions live in the record right before its
  own reference, or (b) its push uploaded itself recently and no version ever published.
- A removal first appends its record, then decides what is garbage, then deletes: objects of the
  removed versions that no live one references, and old orphans that nothing references.
- Keys are random and never reused.

So a push that relied on (a) while a version was removed loses its record number and starts over; a
removal that continues late deletes keys that no writer can have started to use since; and an orphan
old enough to be deleted (ORPHAN_DAYS) is older than any push may still rely on (OWN_DAYS), by more
than any clock is wrong.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import secrets
import stat
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Tuple

from edgeloop._util.files import make_folder, memory_of, write_atomic
from edgeloop._util.values import close_names
from edgeloop.errors import (
    BadInput,
    BadName,
    BlobMissing,
    DatasetDamaged,
    LocalFileError,
    NoSuchDataset,
)
from edgeloop.paths import data_root
from edgeloop.store.base import Blobs

OWN_DAYS = 3
ORPHAN_DAYS = 7
LOGS = "_data/log/"
_RECORD = re.compile(r"([^/]+)/([0-9]{8})\.json")
_LAST_RECORD = 99_999_999
_LARGEST_RECORD = 8 << 20  # bytes: 25,000 versions
_LARGEST_NUMBER = 1 << 62
_MANIFEST = re.compile(r"([0-9a-f]{64})-[0-9a-f]{32}\.json\.gz")


@dataclass(frozen=True)
class Version:
    """One version, as recorded in its dataset's ledger."""

    name: str
    version: int
    manifest: str
    files: int
    bytes: int
    created: str
    node: str
    message: str = ""

    @property
    def reference(self) -> Reference:
        return Reference(self.name, self.version)

    @property
    def digest(self) -> str:
        """Digest of the content: the same files give the same digest."""
        return self.manifest.partition("-")[0]


@dataclass(frozen=True)
class Head:
    """The ledger as it was read. `by` identifies the writer of its last record; see Journal."""

    sequence: int = 0
    next_version: int = 1
    versions: tuple[Version, ...] = ()
    by: str = ""

    @property
    def newest(self) -> Version | None:
        return self.versions[-1] if self.versions else None

    def find(self, version: int) -> Version | None:
        return next((item for item in self.versions if item.version == version), None)


class Ledger:
    def __init__(self, blobs: Blobs, name: str) -> None:
        self._blobs = blobs
        self.name = name
        self._prefix = f"{LOGS}{key_part(name)}/"

    def head(self) -> Head:
        last = dict(heads(self._blobs, self._prefix))
        return self.read(last[self.name]) if self.name in last else Head()

    def read(self, sequence: int) -> Head:
        content = self._blobs.read_range(self._key(sequence), 0, _LARGEST_RECORD + 1)
        try:
            if len(content) > _LARGEST_RECORD or sequence >= _LAST_RECORD:
                raise ValueError("no dataset has so many versions")
            record = json.loads(content)
            versions = tuple(_version(self.name, item) for item in record["versions"])
            following, by = record["next_version"], record["by"]
            if not _are_counts(following) or not isinstance(by, str):
                raise ValueError("not a record of ours")
            return Head(sequence, following, versions, by)
        except (ValueError, TypeError, KeyError, RecursionError):
            reason = f"record {sequence} of its ledger cannot be read"
            raise DatasetDamaged(dataset=self.name, reason=reason) from None

    def append(
        self, head: Head, versions: Sequence[Version], next_version: int, by: str
    ) -> Head | None:
        """Append the next record, unless another writer did since `head`: then None.

        A store that says "it exists" may mean ours: its first response was lost and the request
        was sent again. So the record itself is compared.
        """
        new = Head(head.sequence + 1, next_version, tuple(versions), by)
        record = {
            "format": 1,
            "by": by,
            "next_version": next_version,
            "versions": [asdict(item) for item in versions],
        }
        content = json.dumps(record, indent=1, ensure_ascii=False).encode()
        if self._blobs.create(self._key(new.sequence), content):
            return new
        return new if self.read(new.sequence) == new else None

    def _key(self, sequence: int) -> str:
        return f"{self._prefix}{sequence:08d}.json"


def heads(blobs: Blobs, prefix: str = LOGS) -> Iterator[tuple[str, int]]:
    """Every dataset with the number of its last record."""
    last: dict[str, int] = {}
    for info in blobs.list(prefix):
        match = _RECORD.fullmatch(info.key[len(LOGS) :])
        if match:
            last[match[1]] = max(last.get(match[1], 0), int(match[2]))
    for part, sequence in sorted(last.items()):
        yield name_of_key_part(part), sequence


def _version(name: str, item: dict[str, object]) -> Version:
    version = Version(**item)  # type: ignore[arg-type]
    texts = (version.manifest, version.created, version.node, version.message)
    if version.name != name or not _are_counts(version.version, version.files, version.bytes):
        raise ValueError("not a version of this dataset")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a text of it is none")
    if not _MANIFEST.fullmatch(version.manifest):  # it becomes a key and a path
        raise ValueError("not the key of a manifest")
    return version


def _are_counts(*values: object) -> bool:
    return all(type(value) is int and 0 <= value < _LARGEST_NUMBER for value in values)


# The content of one version: its files, and where in the store their bytes are.
#
# A file is a list of pieces: one for most, several of PIECE_BYTES for a large one. Small pieces
# share an object. Paths are part of the manifest and never of a key, so a file may have any name. A
# manifest comes from a store that others write to: all of it is checked before it is used.


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
        pieces: dict[str, PieceLocation] = {}
        for version in head.versions:
            try:
                pieces.update(self.load(version).locations)
            except (BlobMissing, DatasetDamaged):
                continue  # the pieces of a version that cannot be read are sent again
        live = {version.manifest for version in head.versions}
        for cached in self._cache.glob("*.json.gz") if self._cache and self._cache.is_dir() else ():
            if cached.name not in live:
                cached.unlink(missing_ok=True)
        return pieces

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


# Names of datasets.
#
# A dataset is a folder below `data/raw` or `data/working`, and its name is its path below `data/`
# (or the folder that the project names with `data_root`): `working/faces128`. One version of it is
# `working/faces128@4`. A bare `faces128` may be either kind.


KINDS = ("working", "raw")
_LONGEST_NAME_BYTES = 180  # the name is one part of a key, with room for what surrounds it


@dataclass(frozen=True)
class Reference:
    """One version of one dataset."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def check_name(name: str) -> str:
    """Check the full name of a dataset, which becomes part of keys and paths; raises BadName."""
    kind, _, rest = name.partition("/")
    if kind not in KINDS or not rest:
        reason = "it must begin with working/ or raw/, for example working/faces128"
        raise BadName(what="dataset", name=name, reason=reason)
    return _check_rest(name)


def parse_reference(text: str) -> tuple[str, int | None]:
    """`faces@3` is ("faces", 3). Without a version the second is None, which means the newest."""
    name, at, version = text.partition("@")
    _check_rest(name)
    if not at:
        return name, None
    if not re.fullmatch(r"[1-9][0-9]{0,8}", version):
        raise BadName(
            what="dataset", name=text, reason="after @ comes a version, for example faces@3"
        )
    return name, int(version)


def full_names(name: str) -> tuple[str, ...]:
    """What a name may mean: itself, or for a bare one a dataset of either kind."""
    start, slash, _ = name.partition("/")
    is_whole = slash and start in KINDS
    return (name,) if is_whole else tuple(f"{kind}/{name}" for kind in KINDS)


def only_one(name: str, candidates: list[str]) -> str:
    """Never guess between two datasets."""
    if len(candidates) > 1:
        reason = f"{name!r} may be {' or '.join(candidates)}: give the full name"
        raise BadInput(reason=reason)
    return candidates[0]


def suggestion(name: str, names: Iterable[str]) -> str:
    by_last = {entry.rpartition("/")[2]: entry for entry in names}
    by_last.update({entry: entry for entry in by_last.values()})
    close = close_names(name, by_last)
    return f" (did you mean {by_last[close[0]]!r}?)" if close else ""


def find_local(project: Path, text: str) -> tuple[str, Path]:
    """The dataset and its local folder, for a name or a path to a folder below `data/`."""
    folder = data_root(project)
    root = project.absolute() / folder
    as_path = Path(text).expanduser()
    if "@" not in text and not text.startswith(_PATH_STARTS) and not text.endswith("/"):
        meant = dict.fromkeys(
            (*full_names(_check_rest(text)), *full_names(below_data(text, folder)))
        )
        existing = [name for name in meant if (root / name).is_dir()]
        if existing:
            name = only_one(text, existing)
            return check_name(name), root / name
    if as_path.is_dir():
        return _name_of_folder(root, as_path)
    if as_path.is_file():
        raise NoSuchDataset(name=text, reason="that is a file, and a dataset is a folder")
    if text.startswith(_PATH_STARTS):
        raise NoSuchDataset(name=text, reason=f"there is no folder {as_path.absolute()}")
    name, version = parse_reference(text)
    if version is not None:
        raise BadName(what="dataset", name=text, reason="a push assigns the version itself")
    name = below_data(name, folder)
    if (root / name).is_dir():
        raise _misplaced(root / name, root)
    places = " or ".join(str(root / full) for full in full_names(name))
    folders = [folder for kind in KINDS for folder in (root / kind).glob("*") if folder.is_dir()]
    near = suggestion(name, (folder.relative_to(root).as_posix() for folder in folders))
    raise NoSuchDataset(name=name, reason=f"there is no folder {places}{near}")


def key_part(name: str) -> str:
    """The name as one part of a key. No name contains an @, so no two names share keys, and no
    dataset's keys are inside another's, as those of `raw/a/log` would be in `raw/a`."""
    return name.replace("/", "@")


def name_of_key_part(part: str) -> str:
    return part.replace("@", "/")


_PATH_STARTS = ("/", ".", "~")


def _check_rest(name: str) -> str:
    def refuse(reason: str) -> BadName:
        return BadName(what="dataset", name=name, reason=reason)

    if not name.isprintable() or "\\" in name or "@" in name:
        raise refuse("it has a backslash, an @ or an unprintable character")
    parts = name.split("/")
    if any(not part or part != part.strip() or part.strip(".") != part for part in parts):
        raise refuse(
            "it must be a plain path; no part may be empty, or start or end with a dot or space"
        )
    if len(name.encode(errors="replace")) > _LONGEST_NAME_BYTES:
        raise refuse(f"it is longer than {_LONGEST_NAME_BYTES} bytes")
    return name


def below_data(name: str, folder: str) -> str:
    """`data/working/faces` is a path as seen from the project, wherever the user is."""
    return name[len(folder) + 1 :] if name.startswith(f"{folder}/") else name


def _name_of_folder(root: Path, folder: Path) -> tuple[str, Path]:
    """A path may go through links, so both ends are compared as written and resolved."""
    for base, path in ((root, folder.absolute()), (root.resolve(), folder.resolve())):
        if base in path.parents and ".." not in path.parts:
            if path.relative_to(base).parts[0] not in KINDS:
                break
            return check_name(path.relative_to(base).as_posix()), path
    raise _misplaced(folder, root)


def _misplaced(folder: Path, root: Path) -> NoSuchDataset:
    places = " or ".join(str(root / kind) for kind in KINDS)
    reason = f"{folder.absolute()} is not below {places}; move it there, or link to it there"
    return NoSuchDataset(name=str(folder), reason=reason)


# The files of a folder as they are now, and what this machine remembers of them.
#
# The index holds for each file its size, times and inode when it was read, the hashes of its
# content, and whether that content is in the store. It is kept outside the folder and is only a
# cache: without it all files are read again, and a pull overwrites nothing that differs.


PARTIAL = ".edgeloop-part"  # suffix of a file that is being fetched

# A file written to within the tick of its filesystem's clock shows the same times before and after;
# the coarsest clock in use ticks every two seconds.
RACY_NS = 2_000_000_000


class ScannedFile(NamedTuple):
    """A file and its metadata: any change to the file changes one of these."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    executable: bool


class FileChanged(Exception):
    """A file is no longer what the scan saw. Caught where the scan can be repeated."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def scan(folder: Path) -> list[ScannedFile]:
    """Every file below `folder`, sorted by path. Links are followed; empty folders are ignored.
    What cannot be stored (a socket, a broken link, a name that is not UTF-8) is an error."""
    if not folder.is_dir():
        raise LocalFileError(path=folder, reason="there is no such folder")
    files = [_scanned(entry, path) for entry, path in _walk(folder) if not path.endswith(PARTIAL)]
    return sorted(files)


def leftovers(folder: Path) -> list[Path]:
    """Unfinished files of a pull that was killed."""
    return [Path(entry.path) for entry, path in _walk(folder) if path.endswith(PARTIAL)]


def read_piece(folder: Path, file: ScannedFile, number: int) -> bytes:
    """The bytes of one piece. Raises FileChanged if the file is not the one that was scanned."""
    offset = number * PIECE_BYTES
    length = min(PIECE_BYTES, file.size - offset)
    try:
        with (folder / file.path).open("rb", buffering=0) as opened:
            opened.seek(offset)
            content = opened.read(length)
            now = _from_stat(file.path, os.fstat(opened.fileno()))
    except FileNotFoundError:
        raise FileChanged(file.path) from None
    except OSError as error:
        raise LocalFileError(path=folder / file.path, reason=error.strerror) from None
    if now != file or len(content) != length:
        raise FileChanged(file.path)
    return content


def piece_count(size: int) -> int:
    return -(-size // PIECE_BYTES)


def pieces_of(folder: Path, file: ScannedFile) -> Pieces:
    """Read the whole file, one piece at a time."""
    numbers = range(piece_count(file.size))
    return tuple(hash_of(read_piece(folder, file, number)) for number in numbers)


def scan_file(folder: Path, path: str) -> ScannedFile:
    return _from_stat(path, (folder / path).stat())


def _walk(top: Path) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Everything that is not a folder, with its path below `top`."""
    folders: list[tuple[str, str, frozenset[tuple[int, int]]]] = [(str(top), "", frozenset())]
    while folders:
        folder, prefix, above = folders.pop()
        try:
            here = os.stat(folder)  # noqa: PTH116 - a hundred thousand paths would cost a second
            identity = (here.st_dev, here.st_ino)
            if identity in above:
                raise LocalFileError(path=folder, reason="is a link to a folder that contains it")
            with os.scandir(folder) as entries:
                for entry in entries:
                    path = prefix + _checked_name(top, prefix, entry.name)
                    if entry.is_dir():
                        folders.append((entry.path, f"{path}/", above | {identity}))
                    else:
                        yield entry, path
        except OSError as error:
            raise LocalFileError(path=folder, reason=error.strerror) from None


def _checked_name(top: Path, prefix: str, name: str) -> str:
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            readable = os.fsencode(name).decode(errors="replace")
            reason = "its name is not UTF-8, so other machines cannot have it: rename it"
            raise LocalFileError(path=top / prefix / readable, reason=reason) from None
    return name


def _scanned(entry: os.DirEntry[str], path: str) -> ScannedFile:
    try:
        status = entry.stat()
    except FileNotFoundError:
        if not entry.is_symlink():
            raise FileChanged(path) from None
        reason = "is a broken link: remove it, or restore its target"
        raise LocalFileError(path=entry.path, reason=reason) from None
    except OSError as error:
        raise LocalFileError(path=entry.path, reason=error.strerror) from None
    if not stat.S_ISREG(status.st_mode):
        reason = "is a socket, a pipe or a device, not a file: move it away"
        raise LocalFileError(path=entry.path, reason=reason)
    return _from_stat(path, status)


def _from_stat(path: str, status: os.stat_result) -> ScannedFile:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    executable = bool(status.st_mode & stat.S_IXUSR)
    return ScannedFile(path, status.st_size, *times, status.st_ino, executable)


class IndexEntry(NamedTuple):
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    trusted: bool  # unchanged times mean unchanged content
    synced: bool  # this content was pushed or pulled
    pieces: Pieces


class Index:
    """What was read of one folder; without a file it is not kept."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._entries = _load(file)
        self._changed = False

    def pieces(self, file: ScannedFile) -> Pieces | None:
        """The file's content, if it is certain without reading it."""
        entry = self._entries.get(file.path)
        if entry is None or not entry[4] or tuple(entry[:4]) != file[1:5]:
            return None
        return tuple(entry[6])

    def record(self, file: ScannedFile, pieces: Pieces, read_at_ns: int) -> None:
        """The file was read and has this content."""
        before = self._entries.get(file.path)
        synced = before is not None and before[5] and tuple(before[6]) == pieces
        trusted = not pieces or file.ctime_ns < read_at_ns - RACY_NS  # none: its size says all
        self._entries[file.path] = IndexEntry(*file[1:5], trusted, synced, pieces)
        self._changed = True

    def record_pulled(self, file: ScannedFile, pieces: Pieces) -> None:
        """It was written just now under a new random name, so its times can be trusted."""
        self._entries[file.path] = IndexEntry(*file[1:5], True, True, pieces)
        self._changed = True

    def mark_synced(self, paths: Iterable[str]) -> None:
        """These are in the store as they were read."""
        for path in paths:
            entry = self._entries.get(path)
            if entry is not None and not entry[5]:
                self._entries[path] = IndexEntry(*entry)._replace(synced=True)
                self._changed = True

    def keep_only(self, paths: Iterable[str]) -> None:
        """Drop files that are no longer in the folder."""
        remaining = {path: self._entries[path] for path in paths if path in self._entries}
        self._changed = self._changed or len(remaining) != len(self._entries)
        self._entries = remaining

    def is_synced(self, path: str, pieces: Pieces) -> bool:
        """Whether the current content is what was pushed or pulled last."""
        entry = self._entries.get(path)
        return entry is not None and entry[5] and tuple(entry[6]) == pieces

    def save(self) -> None:
        if self._file is None or not self._changed:
            return
        make_folder(self._file.parent)
        content = {"format": 1, "piece_bytes": PIECE_BYTES, "files": self._entries}
        write_atomic(self._file, json.dumps(content, separators=(",", ":")))
        self._changed = False


def _load(file: Path | None) -> dict[str, IndexEntry]:
    """An index that cannot be read counts as empty."""
    if file is None or not file.is_file():
        return {}
    try:
        content = json.loads(file.read_bytes())
        if content["format"] != 1 or content["piece_bytes"] != PIECE_BYTES:
            return {}
        entries: dict[str, IndexEntry] = content["files"]
        width = len(IndexEntry._fields)
        return entries if all(len(row) == width for row in entries.values()) else {}
    except (ValueError, TypeError, KeyError, OSError):
        return {}


# What a push has uploaded but not yet published, so that after a kill nothing is sent twice.
#
# A line is written before each upload; the store's own listing tells what arrived. The journal has
# a random id that goes into the record which publishes its objects. Once a record has that id, the
# objects belong to that version and are removed with it, so the journal is not used again.


_MOST_RECORDS_TO_READ = 50


class Journal:
    def __init__(self, file: Path | None, blobs: Blobs, prefix: str) -> None:
        self._file = file
        self._blobs = blobs
        self._prefix = prefix  # of the objects
        self._lock = threading.Lock()
        self._uploads: list[tuple[float, dict[str, PieceLocation]]] = []
        self._base = 0
        self.id = ""

    def open(self, ledger: Ledger, head: Head) -> None:
        """Continue the journal of an earlier push if its objects are unpublished; else start one.

        Called for every record that is read: a request of a push that was killed may arrive late.
        """
        if self.id and self._is_unpublished(ledger, head):
            return
        lines = [] if self.id else self._lines()
        self._uploads, self.id, self._base = [], secrets.token_hex(16), head.sequence
        if lines and self._continue(lines, ledger, head):
            return
        self._rewrite([{"format": 1, "id": self.id, "base": head.sequence}])

    def own(self) -> dict[str, PieceLocation]:
        """Pieces that this push may reference. Ask again for every record that is read."""
        since = time.time() - OWN_DAYS * 86_400
        with self._lock:
            return {
                piece: location
                for uploaded, locations in self._uploads
                if uploaded > since
                for piece, location in locations.items()
            }

    def upload(self, content: bytes, pieces: list[tuple[str, int]]) -> dict[str, PieceLocation]:
        """Upload one object made of consecutive pieces."""
        key, now = secrets.token_hex(16), time.time()
        locations = _locations(key, pieces)
        line = {"key": key, "time": now, "size": len(content), "pieces": pieces}
        if self._file is not None:
            with self._lock, self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._blobs.put(self._prefix + key, content)
        with self._lock:
            self._uploads.append((now, locations))
        return locations

    def close(self) -> None:
        """All of it is published."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        self._uploads, self.id = [], ""

    def _is_unpublished(self, ledger: Ledger, head: Head) -> bool:
        if not 0 <= head.sequence - self._base <= _MOST_RECORDS_TO_READ:
            return False
        since = range(self._base + 1, head.sequence + 1)
        return all(ledger.read(sequence).by != self.id for sequence in since)

    def _continue(self, lines: list[dict[str, object]], ledger: Ledger, head: Head) -> bool:
        new_id, (header, *uploads) = self.id, lines
        self.id, base = str(header.get("id")), header.get("base")
        self._base = base if isinstance(base, int) else -1
        if header.get("format") != 1 or self._base < 0 or not self._is_unpublished(ledger, head):
            self.id, self._base = new_id, head.sequence
            return False
        start = len(self._prefix)
        stored = {i.key[start:]: i.size for i in self._blobs.list(self._prefix)}
        arrived = [line for line in uploads if stored.get(str(line.get("key"))) == line.get("size")]
        for line in arrived:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                locations = _locations(str(line["key"]), line["pieces"])  # type: ignore[arg-type]
                self._uploads.append((float(str(line["time"])), locations))
        self._rewrite([header, *arrived])
        return True

    def _lines(self) -> list[dict[str, object]]:
        """Up to the first line that a kill truncated."""
        lines: list[dict[str, object]] = []
        if self._file is None or not self._file.is_file():
            return lines
        with contextlib.suppress(ValueError, OSError):
            for line in self._file.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                if not isinstance(entry, dict):
                    break
                lines.append(entry)
        return lines

    def _rewrite(self, lines: list[dict[str, object]]) -> None:
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._file, "".join(json.dumps(line) + "\n" for line in lines))


def _locations(key: str, pieces: list[tuple[str, int]]) -> dict[str, PieceLocation]:
    locations, offset = {}, 0
    for piece, size in pieces:
        locations[piece] = PieceLocation(key, offset, size)
        offset += size
    return locations
