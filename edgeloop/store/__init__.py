"""State: tables of rows with compare-and-set, and files.

May import `errors`, `_util`, `paths` and `node`, which has the folder of files that jobs use too.
Start reading in `base.py`, which tells the story of a row; `sql.py` is the store most people use,
`location.py` opens one from its URL.

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
    LostRow,
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
    lost_rows,
    merged,
    projected,
    rows_left_out,
)

if TYPE_CHECKING:
    from edgeloop.node.blobs import open_from_job, url_from_job
    from edgeloop.node.files import FolderBlobs
    from edgeloop.store.files import ObjectBlobs, open_access, url_blobs
    from edgeloop.store.location import (
        AzureLocation,
        Location,
        PluginLocation,
        PostgresLocation,
        SqliteLocation,
        datastore_location,
        job_access,
        location_text,
        open_blobs,
        open_store,
        parse_connection_string,
        parse_location,
    )

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
    "projected",
    "rows_left_out",
    "url_blobs",
    "url_from_job",
]

_HOMES = {
    "FolderBlobs": "edgeloop.node.files",
    "ObjectBlobs": "edgeloop.store.files",
    "open_access": "edgeloop.store.files",
    "open_from_job": "edgeloop.node.blobs",
    "url_blobs": "edgeloop.store.files",
    "url_from_job": "edgeloop.node.blobs",
}


def __getattr__(name: str) -> Any:
    """A job has `base.py` alone, so the other names are imported on first use."""
    if name in __all__:
        return getattr(import_module(_HOMES.get(name, "edgeloop.store.location")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
