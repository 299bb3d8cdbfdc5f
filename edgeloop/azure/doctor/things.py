"""The things in the workspace: enough quota for them, whether they are there, and well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from edgeloop.azure.connection import Connection
from edgeloop.azure.doctor.findings import Finding
from edgeloop.azure.provisioning.plan import Step, make_plan
from edgeloop.azure.provisioning.resources import (
    ClusterDescription,
    Needs,
    find_cluster,
    find_environment,
    state_of,
)

_SETUP = "'edgeloop azure setup' creates it"


def quotas(connection: Connection, needs: Needs) -> Iterator[Finding]:
    """A cluster above its quota is refused, or stays at fewer nodes than it was made for."""
    wanted = [wish.cluster for wish in needs.clusters if wish.cluster.size]
    if not wanted:
        return
    sizes = {str(size.name).upper(): size for size in connection.ml.compute.list_sizes()}
    families: dict[str, list[ClusterDescription]] = {}
    for cluster in wanted:
        size = sizes.get(cluster.size.upper())
        if size is None:
            text = f"unknown size {cluster.size} ({cluster.name}) in the workspace's region: "
            yield Finding("quota", False, f"{text}choose another with 'size:'")
        elif cluster.spot:
            text = f"{cluster.name}: spot nodes have a separate quota, which is not checked"
            yield Finding("quota", None, text, needed=False)
        else:
            families.setdefault(str(figure(size, "family")), []).append(cluster)
    usages = {_family(usage): usage for usage in connection.ml.compute.list_usage()}
    for family, members in families.items():
        cores = sum(
            float(figure(sizes[each.size.upper()], "v_cp_us", "vCPUs") or 0) * each.most_nodes
            for each in members
        )
        yield _quota(connection, family, members, cores, usages.get(family.lower()))


def _quota(
    connection: Connection,
    family: str,
    members: Sequence[ClusterDescription],
    needed: float,
    usage: Any,
) -> Finding:
    told = " and ".join(f"{each.name} ({each.most_nodes} × {each.size})" for each in members)
    if usage is None:
        return Finding("quota", None, f"Azure reports none for {family}: {told}", needed=False)
    limit = float(figure(usage, "limit") or 0)
    used = float(figure(usage, "current_value", "currentValue") or 0)
    if any(find_cluster(connection, each.name) is not None for each in members):
        used = 0.0  # whose nodes those are is not told: they may well be its own
    told = f"{told}: {needed:g} cores, {family} has {limit - used:g} free of {limit:g}"
    if used + needed <= limit:
        return Finding("quota", True, told)
    text = f"{told}: ask for more in the portal under Quotas, or use fewer or smaller nodes"
    return Finding("quota", False, text)


def clusters(connection: Connection, needs: Needs) -> Iterator[Finding]:
    only = Needs(needs.place, needs.store, clusters=needs.clusters)
    for step in make_plan(connection, only):
        if step.action != "keep":
            yield _of_step(step)
            continue
        there = find_cluster(connection, step.name)
        state = state_of(there)
        if state == "Failed":
            why = getattr(there, "provisioning_errors", "") or "Azure gives no reason"
            text = f"{step.name} failed ({why}): delete it in the studio; {_SETUP} again"
            yield Finding("cluster", False, text)
        else:
            told = "" if state == "Succeeded" else f", {state.lower()}"
            yield Finding("cluster", True, f"{step.name}: {step.text}{told}")


def datastores(connection: Connection, needs: Needs) -> Iterator[Finding]:
    only = Needs(needs.place, needs.store, datastores=needs.datastores)
    yield from map(_of_step, make_plan(connection, only))


def environments(connection: Connection, needs: Needs) -> Iterator[Finding]:
    """Its image is built when the first job wants it; how that ended is in that job's log."""
    only = Needs(needs.place, needs.store, environments=needs.environments)
    for step, wish in zip(make_plan(connection, only), needs.environments, strict=True):
        if step.action != "keep":
            yield _of_step(step)
            continue
        there = find_environment(connection, wish)
        state = state_of(there)
        if state == "Failed":
            text = f"{step.name}: its image could not be built; the studio shows the log"
            yield Finding("environment", False, text)
        else:
            yield Finding("environment", True, f"{step.name}: registered")


def _of_step(step: Step) -> Finding:
    if step.action == "keep":
        return Finding(step.kind, True, f"{step.name}: {step.text}")
    if step.action == "create":
        return Finding(step.kind, False, f"{step.name} does not exist: {_SETUP} ({step.text})")
    is_needed = step.action == "missing"
    return Finding(step.kind, False, f"{step.name}: {step.text}", needed=is_needed)


def _family(usage: Any) -> str:
    name = getattr(usage, "name", None)
    value = name.get("value") if isinstance(name, dict) else getattr(name, "value", name)
    return str(value or "").lower()


def figure(thing: Any, *names: str) -> Any:
    """The SDK gives figures under its own names, or (1.35) under those of the service."""
    values = (vars(thing).get(name) for name in names)
    return next((value for value in values if value is not None), None)
