"""What a job requires of a machine, and what a machine has. Needs only the standard library: the
process of a waiting job uses it too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_TINY = 1e-9  # sums of tenths


@dataclass(frozen=True)
class Resources:
    """What one job requires of one machine. `custom` names other things that a cluster counts, for
    example boards. A job of several `nodes` requires it of each."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int = 0
    custom: Mapping[str, float] = field(default_factory=dict)
    nodes: int = 1


@dataclass(frozen=True)
class Capacity:
    """What one machine has. GPUs have names, because each job gets certain ones."""

    cpus: float
    gpus: tuple[str, ...] = ()
    memory_bytes: int = 0
    custom: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Allocation:
    """What a running job holds."""

    resources: Resources
    gpus: tuple[str, ...]


def missing(requested: Resources, totals: Mapping[str, float]) -> list[str]:
    """Phrases for what exceeds the most that one machine has."""
    phrases = []
    for name, wanted in _amounts(requested).items():
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


def allocate(
    requested: Resources, capacity: Capacity, allocations: Iterable[Allocation]
) -> tuple[str, ...] | None:
    """The GPUs this job gets now, perhaps none; None if it has to wait."""
    others = list(allocations)
    free = totals_of(capacity)
    for other in others:
        for name, amount in _amounts(other.resources).items():
            free[name] = free.get(name, 0.0) - amount
    if missing(requested, free):
        return None
    return _choose_gpus(requested.gpus, capacity.gpus, others)


def shown(name: str, amount: float) -> str:
    return f"{amount / 1e9:.1f} GB" if name == "memory" else f"{amount:g}"


def _choose_gpus(
    wanted: float, gpus: tuple[str, ...], others: list[Allocation]
) -> tuple[str, ...] | None:
    """Whole GPUs are exclusive. A fraction goes to the fullest GPU with enough left."""
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
