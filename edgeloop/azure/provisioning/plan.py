"""What `azure setup` would do, before it does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from edgeloop.azure.connection import Connection
from edgeloop.azure.provisioning.resources import (
    ClusterDescription,
    ClusterWish,
    DatastoreWish,
    EnvironmentWish,
    Needs,
    find_cluster,
    find_datastore,
    find_environment,
)

Action = Literal["create", "keep", "change", "differs", "missing"]
_SECONDS_OFF = 1.0


@dataclass(frozen=True)
class Step:
    """`differs`: there, but not as described; `missing`: not there, and cannot be made so."""

    kind: Literal["cluster", "datastore", "environment"]
    name: str
    action: Action
    text: str
    wish: ClusterWish | DatastoreWish | EnvironmentWish = field(repr=False)

    @property
    def is_work(self) -> bool:
        return self.action in ("create", "change")


def make_plan(connection: Connection, needs: Needs, change: bool = False) -> tuple[Step, ...]:
    """Reads only. `change`: what can be changed in place shall be."""
    plan = _Planner(connection, change)
    return (
        *(plan.cluster(wish) for wish in needs.clusters),
        *(plan.datastore(wish) for wish in needs.datastores),
        *(plan.environment(wish) for wish in needs.environments),
    )


class _Planner:
    def __init__(self, connection: Connection, change: bool) -> None:
        self._connection = connection
        self._change = change
        self._sizes: dict[str, Any] | None = None

    def cluster(self, wish: ClusterWish) -> Step:
        wanted = wish.cluster
        there = find_cluster(self._connection, wanted.name)
        if there is None:
            reason = self._cannot_be_made(wanted)
            if reason:
                return Step("cluster", wanted.name, "missing", reason, wish)
            return Step("cluster", wanted.name, "create", str(wanted), wish)
        fixed = list(_fixed_differences(wish, there))
        loose = list(_loose_differences(wish, there))
        if not fixed and not loose:
            return Step("cluster", wanted.name, "keep", _told(there), wish)
        told = "; ".join((*fixed, *loose))
        if fixed:
            text = f"{told}: size and tier are fixed; delete it, or choose another name"
            return Step("cluster", wanted.name, "differs", text, wish)
        if self._change:
            return Step("cluster", wanted.name, "change", told, wish)
        text = f"{told}: 'edgeloop azure setup --change' applies it"
        return Step("cluster", wanted.name, "differs", text, wish)

    def datastore(self, wish: DatastoreWish) -> Step:
        there = find_datastore(self._connection, wish.name)
        place = f"container {wish.container} of account {wish.account}"
        if there is None:
            how = "with its key" if wish.key else "by identity"
            return Step("datastore", wish.name, "create", f"{place}, {how}", wish)
        found = (getattr(there, "account_name", ""), getattr(there, "container_name", ""))
        if found == (wish.account, wish.container):
            return Step("datastore", wish.name, "keep", place, wish)
        text = f"it points to container {found[1]} of account {found[0]}, not to {place}"
        text = f"{text}: name another one with 'datastore:' in the compute's settings"
        return Step("datastore", wish.name, "differs", text, wish)

    def environment(self, wish: EnvironmentWish) -> Step:
        there = find_environment(self._connection, wish)
        name = str(wish)
        if there is not None:
            return Step("environment", name, "keep", "registered", wish)
        if not wish.image:
            text = "it is not registered: correct its name, or name a conda file instead"
            return Step("environment", name, "missing", text, wish)
        text = f"{wish.image}{' and packages' if wish.conda else ''}"
        return Step("environment", name, "create", text, wish)

    def _cannot_be_made(self, wanted: ClusterDescription) -> str:
        if not wanted.size:
            return "it does not exist, and no 'size' says how to create it"
        if self._sizes is None:
            listed = self._connection.ml.compute.list_sizes()
            self._sizes = {str(size.name).upper(): size for size in listed}
        if not self._sizes or wanted.size.upper() in self._sizes:
            return ""
        near = get_close_matches(wanted.size.upper(), self._sizes, n=1)
        hint = f": did you mean {near[0]}?" if near else ""
        return f"unknown size {wanted.size} in the workspace's region{hint}"


def _fixed_differences(wish: ClusterWish, there: Any) -> Iterator[str]:
    wanted = wish.cluster
    size = str(getattr(there, "size", "") or "")
    if "size" in wish.said and size and size.upper() != wanted.size.upper():
        yield f"its nodes are {size}, not {wanted.size}"
    is_spot = is_low_priority(there)
    if "spot" in wish.said and is_spot != wanted.spot:
        yield "it is spot, not dedicated" if is_spot else "it is dedicated, not spot"
    if "identity" in wish.said and wanted.managed_identity and not getattr(there, "identity", None):
        yield "it has no managed identity"


def _loose_differences(wish: ClusterWish, there: Any) -> Iterator[str]:
    wanted = wish.cluster
    nodes = (getattr(there, "min_instances", None), getattr(there, "max_instances", None))
    asked = (wanted.least_nodes, wanted.most_nodes)
    if "nodes" in wish.said and nodes != asked:
        yield f"it has {nodes[0]} to {nodes[1]} nodes, not {asked[0]} to {asked[1]}"
    idle = getattr(there, "idle_time_before_scale_down", None)
    if "idle" in wish.said and abs(float(idle or 0) - wanted.idle_s) > _SECONDS_OFF:
        yield f"its idle time is {idle:g} s, not {wanted.idle_s:g} s"


def is_low_priority(there: Any) -> bool:
    return str(getattr(there, "tier", "") or "").lower().replace("_", "") == "lowpriority"


def _told(there: Any) -> str:
    nodes = f"{getattr(there, 'min_instances', 0)} to {getattr(there, 'max_instances', 0)} nodes"
    return f"{getattr(there, 'size', '')}, {nodes}{', spot' if is_low_priority(there) else ''}"


def as_row(step: Step) -> Mapping[str, object]:
    """For programs; a wish may hold a key, so it is left out."""
    return {"kind": step.kind, "name": step.name, "action": step.action, "text": step.text}
