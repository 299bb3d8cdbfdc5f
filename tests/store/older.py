"""The stores in `old_stores/` that `make_old_store.py` made, put into a place of any kind."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from collections.abc import Iterator
from pathlib import Path

from edgeloop.store import Store, Values
from edgeloop.store.location import unversioned

VERSIONS = ("d379839", "565575e")
_FOLDER = Path(__file__).with_name("old_stores")


def restore_folder(version: str, folder: Path) -> None:
    """An embedded store as that version left it, down to the schema of its database."""
    (folder / "blobs").mkdir(parents=True)
    database = sqlite3.connect(folder / "store.db")
    database.executescript((_FOLDER / version / "store.sql").read_text())
    database.execute("PRAGMA journal_mode=WAL")
    database.close()
    with zipfile.ZipFile(_FOLDER / version / "blobs.zip") as archive:
        archive.extractall(folder / "blobs")


def restore(version: str, store: Store) -> None:
    """The same rows and files in an empty store of any kind, which then says no schema either."""
    plain = unversioned(store)
    for space, key, values in rows_of(version):
        kind, _, experiment = space.partition("/")
        tables = {"models": plain.models, "queue": plain.queue}
        table = plain.usage() if kind == "usage" else tables[kind](experiment)
        table.insert(key, values)
    with zipfile.ZipFile(_FOLDER / version / "blobs.zip") as archive:
        for name in archive.namelist():
            plain.blobs.put(name, archive.read(name))


def rows_of(version: str) -> Iterator[tuple[str, str, Values]]:
    """Table, key and columns of every row."""
    database = sqlite3.connect(":memory:")
    database.executescript((_FOLDER / version / "store.sql").read_text())
    rows = database.execute("SELECT space, key, data FROM edgeloop_rows").fetchall()
    database.close()
    return ((space, key, json.loads(data)) for space, key, data in rows)
