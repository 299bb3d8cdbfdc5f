"""Deleted models that can be restored: a note in the folder of each holds its row.

The files stay where they are. The note is written while the row is still whole, and its own age is
the age of the deletion: `edgeloop gc` empties folders without a row, and spares those whose note is
young. An upload to the same name empties the folder first, so the older model is gone then.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from edgeloop._util.values import did_you_mean
from edgeloop.errors import BadInput, BlobMissing, NotFound
from edgeloop.models.columns import matches
from edgeloop.store import BlobInfo, Record, Store, Values

DELETED = ".deleted.json"
KEPT_S = 7 * 86_400.0  # idle runners empty it then; `gc` by its own --older-than


@dataclass(frozen=True)
class DeletedModel:
    name: str
    since: datetime
    files: int
    size: int


class Trash:
    def __init__(self, store: Store, experiment: str) -> None:
        self._store = store
        self._experiment = experiment
        self._models = store.models(experiment)

    def put(self, row: Record) -> None:
        self._store.blobs.put(self._key(row.key), json.dumps(dict(row.values)).encode())

    def has(self, name: str) -> bool:
        return self._store.blobs.size(self._key(name)) is not None

    def read(self, name: str) -> Values:
        """The row of a deleted model. Raises NotFound, and BadInput where the note is damaged."""
        try:
            values = json.loads(self._store.blobs.read_document(self._key(name)))
        except BlobMissing:
            names = [model.name for model in self.models()]
            otherwise = "'edgeloop restore --list' shows those that are left"
            hint = did_you_mean(name, names, otherwise)
            where = f"in experiment {self._experiment!r}"
            reason = f"there is no deleted model {name!r} {where} to restore: {hint}"
            raise NotFound(reason=reason) from None
        except ValueError:
            values = None
        is_row = isinstance(values, dict) and values.get("name", name) == name
        if not is_row or not all(isinstance(v, str | int | float | bool) for v in values.values()):
            reason = f"the note {self._key(name)} of the deleted model is damaged"
            raise BadInput(reason=f"{reason}: download its files from the store instead")
        return dict(values)

    def remove(self, name: str) -> None:
        self._store.blobs.delete([self._key(name)])

    def models(self, names: Collection[str] = ()) -> list[DeletedModel]:
        """Those that can be restored, the latest first."""
        folders: dict[str, list[BlobInfo]] = {}
        for blob in self._store.blobs.list(f"{self._experiment}/"):
            _, model, key = (*blob.key.split("/", 2), "", "")[:3]
            if key and (not names or any(matches(model, name) for name in names)):
                folders.setdefault(model, []).append(blob)
        deleted = []
        for name, blobs in folders.items():
            note = next((blob for blob in blobs if is_note(blob)), None)
            if note is not None and self._models.get(name) is None:
                files = [blob for blob in blobs if blob is not note]
                size = sum(blob.size for blob in files)
                deleted.append(DeletedModel(name, note.modified, len(files), size))
        return sorted(deleted, key=lambda model: model.since, reverse=True)

    def _key(self, name: str) -> str:
        return f"{self._experiment}/{name}/{DELETED}"


def is_note(blob: BlobInfo) -> bool:
    return blob.key.endswith(f"/{DELETED}") and blob.key.count("/") == 2
