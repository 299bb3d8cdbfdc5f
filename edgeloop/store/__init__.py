"""State: tables of rows with compare-and-set, and files.

May import `errors`, `_util`, `paths` and `node`, which has the folder of files that jobs use too.
Start reading in `base.py`, which tells the story of a row; `sql.py` is the store most people use,
`registry.py` opens one from its URL.

To write a store of your own, implement `Store` and `Table` (and `Blobs`, unless `url_blobs`,
`FolderBlobs` or `ObjectBlobs` will do), and name a factory in the entry point group
`edgeloop.stores` under the scheme of its URLs. `check_values` and `merged` apply the rules for
rows that all stores share; the errors to raise are in `edgeloop.errors`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from edgeloop.store.base import (
    Access,
    BlobInfo,
    Blobs,
    Changes,
    Condition,
    Drift,
    Rank,
    ReadRow,
    Record,
    Store,
    Table,
    Value,
    Values,
    after_prefix,
    check_blob_key,
    check_values,
    json_safe,
    merged,
)

if TYPE_CHECKING:
    from edgeloop.node.blobs import open_from_job, url_from_job
    from edgeloop.store.blobs import FolderBlobs, ObjectBlobs, url_blobs
    from edgeloop.store.damage import LostRow, lost_rows, rows_left_out
    from edgeloop.store.location import (
        AzureLocation,
        Location,
        PluginLocation,
        PostgresLocation,
        SqliteLocation,
        datastore_location,
        location_text,
        parse_connection_string,
        parse_location,
    )
    from edgeloop.store.registry import job_access, open_access, open_blobs, open_store

__all__ = [
    "Access",
    "AzureLocation",
    "BlobInfo",
    "Blobs",
    "Changes",
    "Condition",
    "Drift",
    "FolderBlobs",
    "Location",
    "LostRow",
    "ObjectBlobs",
    "PluginLocation",
    "PostgresLocation",
    "Rank",
    "ReadRow",
    "Record",
    "SqliteLocation",
    "Store",
    "Table",
    "Value",
    "Values",
    "after_prefix",
    "check_blob_key",
    "check_values",
    "datastore_location",
    "job_access",
    "json_safe",
    "location_text",
    "lost_rows",
    "merged",
    "open_access",
    "open_blobs",
    "open_from_job",
    "open_store",
    "parse_connection_string",
    "parse_location",
    "rows_left_out",
    "url_blobs",
    "url_from_job",
]

_WHERE = {
    "edgeloop.store.blobs": ("FolderBlobs", "ObjectBlobs", "url_blobs"),
    "edgeloop.store.damage": ("LostRow", "lost_rows", "rows_left_out"),
    "edgeloop.store.location": (
        *("AzureLocation", "Location", "PluginLocation", "PostgresLocation", "SqliteLocation"),
        *("datastore_location", "location_text", "parse_connection_string", "parse_location"),
    ),
    "edgeloop.node.blobs": ("open_from_job", "url_from_job"),
    "edgeloop.store.registry": ("job_access", "open_access", "open_blobs", "open_store"),
}


def __getattr__(name: str) -> Any:
    """Most commands only read rows, and a job opens files in its own way: what else a name needs is
    loaded when it is first used."""
    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
