"""What an attempt leaves in the store: its files first, under a folder of its own, then the row."""

from __future__ import annotations

from edgeloop.errors import NotFound
from edgeloop.models import ATTEMPTS_FOLDER, Lease, Leases, Outcome
from edgeloop.stages import Result
from edgeloop.workspace import Workspace


def store_and_commit(workspace: Workspace, leases: Leases, lease: Lease, result: Result) -> None:
    """Files first; the row only while the lease holds. Saying it twice does no harm."""
    folder = f"{workspace.experiment}/{lease.model}"
    keys = {name: f"{ATTEMPTS_FOLDER}/{lease.token}/{name}" for name in result.files}
    blobs = workspace.store.blobs
    blobs.put_many({f"{folder}/{keys[name]}": path for name, path in result.files.items()})
    leases.commit(lease, Outcome(result.columns, keys))


def clear_attempt(workspace: Workspace, lease: Lease) -> None:
    """What nobody will name. A row that names these files after all keeps them."""
    try:
        named = {file.key for file in workspace.catalog.files(lease.model)}
    except NotFound:
        named = set()
    folder = f"{workspace.experiment}/{lease.model}/{ATTEMPTS_FOLDER}/{lease.token}/"
    blobs = workspace.store.blobs
    blobs.delete([info.key for info in blobs.list(folder) if info.key not in named])
