"""`azure list`: what a workspace has, as rows of plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edgeloop.azure.connection import Connection, require_packages
from edgeloop.azure.errors import explained

Row = Mapping[str, object]


def list_resources(connection: Connection, kind: str) -> list[Row]:
    """`kind` is one of KINDS; Azure's errors become ours."""
    require_packages()
    with explained("azureml", connection.address):
        return list(_LISTERS[kind](connection))


def _computes(connection: Connection) -> Iterator[Row]:
    for each in connection.ml.compute.list():
        least, most = getattr(each, "min_instances", None), getattr(each, "max_instances", None)
        yield {
            "name": each.name,
            "kind": str(each.type),
            "size": str(getattr(each, "size", "") or ""),
            "nodes": f"{least or 0} to {most}" if most is not None else "",
            "tier": str(getattr(each, "tier", "") or ""),
            "state": str(each.provisioning_state or ""),
        }


def _environments(connection: Connection) -> Iterator[Row]:
    for each in connection.ml.environments.list():
        yield {
            "name": each.name,
            "version": str(each.version or getattr(each, "latest_version", "") or ""),
            "description": str(each.description or ""),
        }


def _datastores(connection: Connection) -> Iterator[Row]:
    for each in connection.ml.datastores.list():
        credentials = getattr(getattr(each, "credentials", None), "type", "") or ""
        yield {
            "name": each.name,
            "kind": str(getattr(each.type, "value", each.type)),
            "account": str(getattr(each, "account_name", "") or ""),
            "container": str(
                getattr(each, "container_name", "")
                or getattr(each, "file_share_name", "")
                or getattr(each, "filesystem", "")
                or ""
            ),
            "access": _access(str(getattr(credentials, "value", credentials))),
        }


def _access(credentials: str) -> str:
    return "identity" if credentials.lower().replace("_", "") in ("", "none") else credentials


def _experiments(connection: Connection) -> Iterator[Row]:
    """The SDK lists jobs, not experiments."""
    found: dict[str, dict[str, Any]] = {}
    for job in connection.ml.jobs.list():
        created = getattr(job.creation_context, "created_at", None)
        at = created.isoformat() if created is not None else ""
        name = str(job.experiment_name or "")
        row = found.setdefault(name, {"name": name, "jobs": 0, "newest": "", "at": "", "state": ""})
        row["jobs"] += 1
        if at >= row["at"]:
            newest = str(job.display_name or job.name)
            row |= {"newest": newest, "at": at, "state": str(job.status or "")}
    yield from sorted(found.values(), key=lambda row: str(row["at"]), reverse=True)


_LISTERS: dict[str, Callable[[Connection], Iterator[Row]]] = {
    "computes": _computes,
    "environments": _environments,
    "datastores": _datastores,
    "experiments": _experiments,
}
KINDS = tuple(_LISTERS)
