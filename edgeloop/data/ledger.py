"""The log of a dataset: who published and removed what, one record after the other.

    _data/log/<dataset>/<number>.json      each holds all that is true from then on
    _data/manifests/<dataset>/<digest>-<random>.json.gz
    _data/objects/<dataset>/<random>

A record is created, never changed and never deleted, and holds the whole list of versions that are
live; the one with the highest number is the truth. To change anything is to create the next number:
of several who read the same record one is first, and the others read again and decide again. That
is compare-and-set with nothing but "create if absent", which folders, S3, GCS and Azure all have.

What makes removal safe, whoever sleeps or dies in between:

- A published manifest names only objects that (a) are named by versions live in the record right
  before its own, or (b) its pusher uploaded itself, no version ever published, and not long ago.
- A remover first appends its record, then decides what is garbage, then deletes: objects of the
  versions it removed that no live one names, and strays that nobody names and that are old.
- Keys are random and never used again.

So a pusher who counted on (a) while a version went is refused its number and looks again; a remover
who wakes up late deletes keys that nobody can have begun to use since; and a stray old enough
to be deleted (ORPHAN_DAYS) is far older than any pusher may still count on (OWN_DAYS), by a
difference that no clock is wrong by.
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
_RECORD = re.compile(r"([^/]+)/(\d{8})\.json")
_MANIFEST = re.compile(r"([0-9a-f]{64})-[0-9a-f]{32}\.json\.gz")


@dataclass(frozen=True)
class Version:
    """One version as its dataset's log tells it."""

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
        """Of the content: the same files give the same digest."""
        return self.manifest.partition("-")[0]


@dataclass(frozen=True)
class Head:
    """The log as it was read. `by` is whoever wrote its last record; see Journal."""

    sequence: int = 0
    next_version: int = 1
    versions: tuple[Version, ...] = ()
    by: str = ""

    @property
    def newest(self) -> Version | None:
        return self.versions[-1] if self.versions else None

    def find(self, version: int) -> Version | None:
        return next((item for item in self.versions if item.version == version), None)


class Log:
    def __init__(self, blobs: Blobs, name: str) -> None:
        self._blobs = blobs
        self.name = name
        self._prefix = f"{LOGS}{key_part(name)}/"

    def head(self) -> Head:
        found = dict(heads(self._blobs, self._prefix))
        return self.read(found[self.name]) if self.name in found else Head()

    def read(self, sequence: int) -> Head:
        content = self._blobs.read(self._key(sequence))
        try:
            record = json.loads(content)
            versions = tuple(_version(self.name, item) for item in record["versions"])
            return Head(sequence, int(record["next_version"]), versions, str(record["by"]))
        except (ValueError, TypeError, KeyError):
            reason = f"record {sequence} of its log cannot be read"
            raise DatasetDamaged(dataset=self.name, reason=reason) from None

    def append(
        self, head: Head, versions: Sequence[Version], next_version: int, by: str
    ) -> Head | None:
        """The next record, if nobody wrote one since `head`; else None.

        A store that answers "there is one" may mean ours: its first answer was lost on the way and
        the request was sent again. So the record itself is looked at.
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
    """Every dataset and the number of its last record."""
    last: dict[str, int] = {}
    for info in blobs.list(prefix):
        match = _RECORD.fullmatch(info.key.removeprefix(LOGS))
        if match:
            last[match[1]] = max(last.get(match[1], 0), int(match[2]))
    for part, sequence in sorted(last.items()):
        yield name_of_key_part(part), sequence


def _version(name: str, item: dict[str, object]) -> Version:
    version = Version(**item)  # type: ignore[arg-type]
    numbers = (version.version, version.files, version.bytes)
    if version.name != name or not all(isinstance(number, int) for number in numbers):
        raise ValueError("not a version of this dataset")
    if not _MANIFEST.fullmatch(version.manifest):  # it becomes a key and a path
        raise ValueError("not the key of a manifest")
    return version
