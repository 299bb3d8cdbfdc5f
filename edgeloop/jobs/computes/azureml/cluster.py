"""The cluster that jobs wait for: found, or made of its description at the first submission."""

from __future__ import annotations

from typing import Any

from edgeloop.azure import ClusterDescription, Connection, find_cluster, make_cluster
from edgeloop.errors import BadSetting, ComputeRefused, Infeasible
from edgeloop.jobs.protocol.resources import Resources, missing

_GIGABYTE = 10**9


class Cluster:
    """`made` tells what was made here, so that a later error can name it."""

    def __init__(
        self, compute: str, connection: Connection, description: ClusterDescription
    ) -> None:
        self._compute = compute
        self._connection = connection
        self._described = description
        self._sizes: dict[str, Any] | None = None
        self.made = ""

    def check(self, needs: Resources) -> None:
        """Raises Infeasible. A job that asks for nothing special is not looked at closely: then
        no call is made."""
        if needs == Resources(cpus=needs.cpus) and needs.cpus <= 1 and not needs.custom:
            return
        size, nodes = self._there()
        totals = {**self._size(size), "nodes": float(nodes)}
        lacking = missing(needs, totals)
        if lacking:
            name = self._described.name or "serverless"
            reason = f"{', '.join(lacking)}; {name} has {nodes} × {size}"
            raise Infeasible(compute=self._compute, reason=reason)

    def ensure(self) -> None:
        """Make it, unless somebody has; wait until it can take jobs."""
        wanted = self._described
        if self._find() is not None:
            return
        if not wanted.size:
            raise self.absent()
        if not make_cluster(self._connection, wanted, self._began):
            reason = f"the cluster {wanted.name} is still being made; it goes on without us"
            raise ComputeRefused(compute=self._compute, reason=reason)

    def absent(self) -> BadSetting:
        place = self._connection.place
        reason = (
            f"there is no cluster {self._described.name!r} in the workspace {place.workspace}: "
            "add its 'size', so that it is made, or run 'edgeloop azure setup'"
        )
        return BadSetting(where=f"computes.{self._compute}", reason=reason)

    def _there(self) -> tuple[str, int]:
        """The size of its nodes and the most of them."""
        wanted = self._described
        found = self._find() if wanted.name else None
        if found is None:
            if not wanted.size:
                raise self.absent()
            return wanted.size, wanted.most_nodes
        most = getattr(found, "max_instances", None)
        return str(getattr(found, "size", "") or wanted.size), int(most or wanted.most_nodes)

    def _began(self) -> None:
        self.made = f"the cluster {self._described.name} was made and is there"

    def _find(self) -> Any | None:
        return find_cluster(self._connection, self._described.name)

    def _size(self, name: str) -> dict[str, float]:
        """What one node has. A size that Azure does not list is not judged here."""
        if self._sizes is None:
            sizes = self._connection.ml.compute.list_sizes()
            self._sizes = {str(size.name).upper(): size for size in sizes}
        found = self._sizes.get(name.upper())
        if found is None:
            if not self._described.name or self._find() is None:
                reason = f"unknown instance type {name!r} in the workspace's region"
                raise BadSetting(where=f"computes.{self._compute}", reason=reason)
            return dict.fromkeys(("cpus", "gpus", "memory"), float("inf"))
        return {
            "cpus": _number(found, "v_cp_us", "vCPUs"),
            "gpus": _number(found, "gpus"),
            "memory": _number(found, "memory_gb", "memoryGB") * _GIGABYTE,
        }


def _number(size: Any, *names: str) -> float:
    """The SDK gives sizes under its own names, or (1.35) under those of the service."""
    found = (vars(size).get(name) for name in names)
    return float(next((value for value in found if value is not None), 0.0))
