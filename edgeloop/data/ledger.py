"""The ledger of a dataset: one record per published or removed version.

    _data/log/<dataset>/<number>.json      each holds the whole state from then on
    _data/manifests/<dataset>/<digest>-<random>.json.gz
    _data/objects/<dataset>/<random>

A record is created, never changed and never deleted, and holds the whole list of live versions; the
one with the highest number counts. A change creates the next number: of several writers that read
the same record one succeeds, and the others read and decide again. This is compare-and-set built on
"create if absent", which folders, S3, GCS and Azure all offer.

What makes removal safe, whichever process is suspended or killed in between:

- A published manifest references only objects that (a) versions live in the record right before its
  own reference, or (b) its push uploaded itself recently and no version ever published.
- A removal first appends its record, then decides what is garbage, then deletes: objects of the
  removed versions that no live one references, and old orphans that nothing references.
- Keys are random and never reused.

So a push that relied on (a) while a version was removed loses its record number and starts over; a
removal that continues late deletes keys that nobody can have started to use since; and an orphan
old enough to be deleted (ORPHAN_DAYS) is older than any push may still rely on (OWN_DAYS), by more
than any clock is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from edgeloop.data.names import Reference, key_part, name_of_key_part
from edgeloop.errors import DatasetDamaged
from edgeloop.store import Blobs

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
                raise ValueError("nobody wrote so many versions")
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
