"""State: tables of rows with compare-and-set, and files. `base` tells the story of a row."""

from __future__ import annotations

from edgeloop.store.base import (
    Access,
    BlobInfo,
    Blobs,
    Changes,
    Condition,
    Drift,
    Record,
    Store,
    Table,
    Value,
    Values,
    check_blob_key,
    json_safe,
)
from edgeloop.store.location import (
    AzureLocation,
    Location,
    PostgresLocation,
    SqliteLocation,
    datastore_location,
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
    "Location",
    "PostgresLocation",
    "Record",
    "SqliteLocation",
    "Store",
    "Table",
    "Value",
    "Values",
    "check_blob_key",
    "datastore_location",
    "json_safe",
    "open_access",
    "open_blobs",
    "open_store",
    "parse_connection_string",
    "parse_location",
]


def open_store(location: Location) -> Store:
    """A store at a place. Nothing is contacted or made before it is used."""
    if isinstance(location, AzureLocation):
        from edgeloop.store.azure import AzureStore

        return AzureStore(location)
    from edgeloop.store import sql

    if isinstance(location, PostgresLocation):
        return sql.open_postgresql(location)
    return sql.open_sqlite(location)


def open_blobs(location: Location) -> Blobs:
    """The files of a store alone: jobs and data need no table, so nothing of one is loaded."""
    from edgeloop.store.blobs import FolderBlobs, url_blobs

    if isinstance(location, AzureLocation):
        from edgeloop.store.azure.blobs import azure_blobs

        return azure_blobs(location)
    if isinstance(location, PostgresLocation):
        return url_blobs(location.blobs)
    return FolderBlobs(location.folder / "blobs")


def open_access(access: Access) -> Blobs:
    """The files that somebody gave access to; see `Blobs.access`."""
    from edgeloop.store import blobs

    return blobs.open_access(access)
