"""State: tables of rows with compare-and-set, and files. `base` tells the story of a row.

To write a store of your own, implement `Store` and `Table` (and `Blobs`, unless `url_blobs`,
`FolderBlobs` or `ObjectBlobs` will do), and name a factory in the entry point group
`edgeloop.stores` under the scheme of its URLs. `check_values` and `merged` apply the rules for
rows that all stores share; the errors to raise are in `edgeloop.errors`.
"""

from __future__ import annotations

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
from edgeloop.store.location import (
    AzureLocation,
    Location,
    PluginLocation,
    PostgresLocation,
    SqliteLocation,
    datastore_location,
    parse_connection_string,
    parse_location,
)
from edgeloop.store.registry import open_access, open_blobs, open_store

if TYPE_CHECKING:
    from edgeloop.store.blobs import FolderBlobs, ObjectBlobs, url_blobs

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
    "json_safe",
    "merged",
    "open_access",
    "open_blobs",
    "open_store",
    "parse_connection_string",
    "parse_location",
    "url_blobs",
]


def __getattr__(name: str) -> Any:
    """Code for files is loaded when it is first used: most commands only read rows."""
    if name in ("FolderBlobs", "ObjectBlobs", "url_blobs"):
        from edgeloop.store import blobs

        return getattr(blobs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
