"""Opens stores: the built-in ones, and those of plug-ins.

A plug-in is an entry point of the group `edgeloop.stores`. Its name is the scheme of the URLs that
it opens; it loads a function that takes a `PluginLocation` and returns a `Store`.
"""

from __future__ import annotations

from collections.abc import Callable

from edgeloop.errors import BadSetting
from edgeloop.store.base import Access, Blobs, Store
from edgeloop.store.location import (
    AzureLocation,
    Location,
    PluginLocation,
    PostgresLocation,
    plugin_entry_points,
)

Factory = Callable[[PluginLocation], Store]


def open_store(location: Location) -> Store:
    """Open the store at a location. Nothing is contacted or created before it is used."""
    if isinstance(location, PluginLocation):
        return _open_plugin(location)
    if isinstance(location, AzureLocation):
        from edgeloop.store.azure import AzureStore

        return AzureStore(location)
    from edgeloop.store import sql

    if isinstance(location, PostgresLocation):
        return sql.open_postgresql(location)
    return sql.open_sqlite(location)


def open_blobs(location: Location) -> Blobs:
    """Open only the files of a store: jobs and data need no table, so no code for one is loaded.
    Raises StoreError if a file is where the folder of a store should be."""
    from edgeloop.store.blobs import FolderBlobs, url_blobs

    if isinstance(location, PluginLocation):
        return open_store(location).blobs
    if isinstance(location, AzureLocation):
        from edgeloop.store.azure import azure_blobs

        return azure_blobs(location)
    if isinstance(location, PostgresLocation):
        return url_blobs(location.blobs)
    location.check()
    return FolderBlobs(location.folder / "blobs")


def open_access(access: Access) -> Blobs:
    """Open the files that somebody gave access to; see `Blobs.access`."""
    from edgeloop.store import blobs

    return blobs.open_access(access)


def job_access(location: AzureLocation, seconds: int, writes: bool) -> Access:
    """Access for a job to a container of Azure that need not be the store's. Only reading is
    allowed unless it `writes`."""
    from edgeloop.store.azure import azure_access

    return azure_access(location, seconds, writes)


def _open_plugin(location: PluginLocation) -> Store:
    for entry_point in plugin_entry_points(location.scheme):
        try:
            factory: Factory = entry_point.load()
        except (ImportError, AttributeError) as error:
            reason = f"the plug-in {entry_point.value!r} cannot be loaded: {error}"
            raise BadSetting(where="EDGELOOP_STORE", reason=reason) from None
        return factory(location)
    reason = f"the plug-in for {location.scheme}: URLs is not installed"
    raise BadSetting(where="EDGELOOP_STORE", reason=reason)
