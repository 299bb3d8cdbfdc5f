"""What a job needs of a machine, and what a machine has. The standard library alone: a job that
waits on this machine reads it too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_TINY = 1e-9  # sums of tenths


@dataclass(frozen=True)
class Resources:
    """What one job needs of one machine. `custom` names things that a cluster counts, as boards.
    A job of several `nodes` needs that of each of them."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int = 0
    custom: Mapping[str, float] = field(default_factory=dict)
    nodes: int = 1


@dataclass(frozen=True)
class Capacity:
    """What one machine has. GPUs have names, because a job is told which are its own."""

    cpus: float
    gpus: tuple[str, ...] = ()
    memory_bytes: int = 0
    custom: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Taken:
    """What a running job holds."""

    resources: Resources
    gpus: tuple[str, ...]


def missing(needs: Resources, totals: Mapping[str, float]) -> list[str]:
    """What could never be given, a phrase each, beside the most that one machine has of it."""
    phrases = []
    for name, wanted in _amounts(needs).items():
        there = totals.get(name, 1.0 if name == "nodes" else 0.0)
        if wanted > there + _TINY:
            phrases.append(f"{name} {shown(name, wanted)} (the most is {shown(name, there)})")
    return phrases


def listed(totals: Mapping[str, float]) -> str:
    """`cpus 8, gpus 0, memory 24.1 GB, snapdragon888 1`."""
    return ", ".join(f"{name} {shown(name, amount)}" for name, amount in totals.items())


def totals_of(capacity: Capacity) -> dict[str, float]:
    memory = float(capacity.memory_bytes)
    known = {"cpus": capacity.cpus, "gpus": float(len(capacity.gpus)), "memory": memory}
    return known | dict(capacity.custom)


def place(needs: Resources, capacity: Capacity, taken: Iterable[Taken]) -> tuple[str, ...] | None:
    """The GPUs this job gets now, perhaps none; None where it must wait for something."""
    others = list(taken)
    free = totals_of(capacity)
    for other in others:
        for name, amount in _amounts(other.resources).items():
            free[name] = free.get(name, 0.0) - amount
    if missing(needs, free):
        return None
    return _choose_gpus(needs.gpus, capacity.gpus, others)


def shown(name: str, amount: float) -> str:
    return f"{amount / 1e9:.1f} GB" if name == "memory" else f"{amount:g}"


def _choose_gpus(
    wanted: float, gpus: tuple[str, ...], others: list[Taken]
) -> tuple[str, ...] | None:
    """Whole ones are nobody else's. A part of one joins the fullest GPU that still has room."""
    used = dict.fromkeys(gpus, 0.0)
    for other in others:
        for gpu in other.gpus:
            used[gpu] = used.get(gpu, 0.0) + min(1.0, other.resources.gpus)
    if wanted <= 0:
        return ()
    if wanted < 1:
        room = [gpu for gpu in gpus if used[gpu] + wanted <= 1 + _TINY]
        return (max(room, key=lambda gpu: used[gpu]),) if room else None
    idle = [gpu for gpu in gpus if used[gpu] < _TINY]
    return tuple(idle[: int(wanted)]) if len(idle) >= wanted else None


def _amounts(resources: Resources) -> dict[str, float]:
    known = {"cpus": resources.cpus, "gpus": resources.gpus}
    if resources.nodes != 1:
        known["nodes"] = float(resources.nodes)
    return known | {"memory": float(resources.memory_bytes)} | dict(resources.custom)
