"""Which candidates are on which front: one of all objectives or, in a search for several chips, one
per chip."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from edgeloop._util.files import write_atomic
from edgeloop.pareto import FIRST_RESULTS, Floats, ObjectiveScale, non_dominated, scale_of, share
from edgeloop.search.base import barred_devices
from edgeloop.search.config import Objective, SearchConfig, SearchFront
from edgeloop.search.study import Candidate


class WithResult(Protocol):
    """A candidate of a study, or one that was read from a table."""

    @property
    def number(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def values(self) -> Mapping[str, float]: ...


Item = TypeVar("Item", bound=WithResult)


def fronts_of(config: SearchConfig, candidates: Iterable[Item]) -> dict[str, list[Item]]:
    """The Pareto front of every chip by its name, best first in the first objective; one front
    without a name where there are not several chips."""
    every = list(candidates)
    return {front.name: _front(config, front, every) for front in config.fronts}


def front_of(config: SearchConfig, candidates: Iterable[Item]) -> list[Item]:
    """The candidates that are on any front, best first in the first objective."""
    found = fronts_of(config, candidates)
    joined = {item.number: item for front in found.values() for item in front}
    return sorted(joined.values(), key=lambda item: minimised(config.objectives, item))


def front_names(fronts: Mapping[str, Sequence[Item]], item: Item) -> list[str]:
    """The fronts that a candidate is on."""
    return [name for name, front in fronts.items() if any(item.number == o.number for o in front)]


def minimised(objectives: Sequence[Objective], item: WithResult) -> tuple[float, ...]:
    return tuple(o.minimised(item.values[o.name]) for o in objectives)


def is_eligible(config: SearchConfig, front: SearchFront, item: WithResult) -> bool:
    """Whether it may be on a front: complete, finite, and within the limits of the chip."""
    if item.state != "complete" or front.name in barred_devices(item.values, config.constraints):
        return False
    return all(map(math.isfinite, minimised(front.objectives, item)))


def _front(config: SearchConfig, front: SearchFront, candidates: Sequence[Item]) -> list[Item]:
    eligible = [item for item in candidates if is_eligible(config, front, item)]
    points = [minimised(front.objectives, item) for item in eligible]
    kept = non_dominated(points)
    found = [
        (point, item) for point, item, stays in zip(points, eligible, kept, strict=True) if stays
    ]
    return [item for _, item in sorted(found, key=lambda pair: pair[0])]


# The hypervolume of a search: one definition, with a reference point that is fixed once.
#
# The reference point has the worst value that counts of each objective: `objectives.NAME.worst`, or
# the worst of the first ten results and a tenth of their range beyond it. It is chosen with the
# tenth result, or at the end of a search that has fewer, is kept in `reference.json` and with the
# study, and then stays. The hypervolume is the share of the box between it and the ideal point
# (`objectives.NAME.best`; by default 0 for what is minimised and 1 for a score) that the front
# dominates: it never falls, and searches with the same reference point can be compared. In a search
# for several chips every chip has a hypervolume, and that of the search is their mean.


REFERENCE = "reference.json"
_PLACES = 6  # as in tables: all views show the same number


@dataclass(frozen=True)
class ReferencePoint:
    """The scale of each objective by its name, and the number of results it follows from."""

    scales: Mapping[str, ObjectiveScale]
    results: int = 0

    def share(self, names: Sequence[str], points: Floats) -> float:
        """The hypervolume of points that have the values of these objectives."""
        return round(share(points, [self.scales[name] for name in names]), _PLACES)

    def as_json(self) -> dict[str, object]:
        scales = {name: {"worst": s.worst, "best": s.best} for name, s in self.scales.items()}
        return {"objectives": scales, "results": self.results}

    def __str__(self) -> str:
        return ", ".join(f"{name} {scale.worst:.4g}" for name, scale in self.scales.items())


def reference_from(document: object) -> ReferencePoint | None:
    """What `as_json` returned; None for anything else."""
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        scales = {
            str(name): ObjectiveScale(float(found["worst"]), float(found["best"]))
            for name, found in document["objectives"].items()  # type: ignore[index]
        }
        every = [end for scale in scales.values() for end in (scale.worst, scale.best)]
        if all(map(math.isfinite, every)) and all(s.worst != s.best for s in scales.values()):
            return ReferencePoint(scales, int(document.get("results", 0)))  # type: ignore[attr-defined]
    return None


def read_reference(folder: Path) -> ReferencePoint | None:
    """The reference point of a search, if it has one yet."""
    with suppress(OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        return reference_from(json.loads((folder / REFERENCE).read_text(encoding="utf-8")))
    return None


def write_reference(folder: Path, reference: ReferencePoint) -> None:
    write_atomic(folder / REFERENCE, json.dumps(reference.as_json(), indent=1) + "\n")


def reference_of(
    config: SearchConfig,
    results: Iterable[Mapping[str, float]] = (),
    known: ReferencePoint | None = None,
) -> ReferencePoint | None:
    """From what the configuration says, what is `known` already, and results, in this order. None
    if that is not enough."""
    every = list(results)
    found: dict[str, ObjectiveScale] = {}
    for objective in config.objectives:
        worst, best = objective.limit("worst"), objective.limit("best")
        kept = known.scales.get(objective.name) if known is not None else None
        if kept is not None:
            worst = kept.worst if worst is None else worst
            best = kept.best if best is None else best
        values = [values[objective.name] for values in every]
        if worst is None and not values:
            return None
        if best is None and not values and objective.ideal is None:
            return None
        found[objective.name] = scale_of(
            values, objective.goal, ideal=objective.ideal, worst=worst, best=best
        )
    return ReferencePoint(found, known.results if known is not None else len(every))


class VolumeCurve:
    """The hypervolume after each candidate that ended: `shares` has a line per candidate, with the
    share of each front, or is empty while there is no reference point. `fixed` is called when there
    is one."""

    def __init__(
        self,
        config: SearchConfig,
        known: ReferencePoint | None = None,
        fixed: Callable[[ReferencePoint], None] = lambda _: None,
    ) -> None:
        self._config, self._fixed = config, fixed
        self._known = known
        self._ended: list[Candidate] = []  # until there is a reference point
        self._results: list[Mapping[str, float]] = []
        self._growing: list[_GrowingFront] = []
        self.shares: list[tuple[float, ...]] = []
        self.reference: ReferencePoint | None = None
        reference = reference_of(config, (), known)
        if reference is not None:
            self._fix(reference)

    @property
    def volumes(self) -> list[float]:
        """That of the search after each candidate: the mean of its fronts."""
        return [mean_of(shares) for shares in self.shares]

    @property
    def latest(self) -> float | None:
        return mean_of(self.shares[-1]) if self.shares else None

    def add(self, candidate: Candidate) -> None:
        if self.reference is not None:
            self._grow(candidate)
            return
        self._ended.append(candidate)
        if _is_result(self._config, candidate):
            self._results.append(candidate.values)
        if len(self._results) >= FIRST_RESULTS:
            self.settle()

    def settle(self) -> None:
        """Choose the reference point from the results there are, if none is chosen yet."""
        if self.reference is None and self._results:
            reference = reference_of(self._config, self._results, self._known)
            assert reference is not None
            self._fix(reference)

    def _fix(self, reference: ReferencePoint) -> None:
        self.reference = reference
        self._growing = [_GrowingFront() for _ in self._config.fronts]
        for candidate in self._ended:
            self._grow(candidate)
        self._ended = []
        self._fixed(reference)

    def _grow(self, candidate: Candidate) -> None:
        assert self.reference is not None
        for front, growing in zip(self._config.fronts, self._growing, strict=True):
            if is_eligible(self._config, front, candidate):
                names = [objective.name for objective in front.objectives]
                growing.add([candidate.values[name] for name in names], names, self.reference)
        self.shares.append(tuple(growing.share for growing in self._growing))


class _GrowingFront:
    """A point that others dominate changes nothing and costs nothing."""

    def __init__(self) -> None:
        self._points: Floats = np.empty((0, 0))
        self._placed: Floats = np.empty((0, 0))
        self.share = 0.0

    def add(self, values: Sequence[float], names: Sequence[str], reference: ReferencePoint) -> None:
        scales = [reference.scales[name] for name in names]
        placed = np.array([float(s.position(v)) for s, v in zip(scales, values, strict=True)])
        if not len(self._points):
            self._points = self._placed = np.empty((0, len(names)))
        if (placed >= 1).any() or (self._placed <= placed).all(axis=1).any():
            return
        stays = ~(placed <= self._placed).all(axis=1)
        self._placed = np.vstack([self._placed[stays], placed])
        self._points = np.vstack([self._points[stays], values])
        self.share = reference.share(names, self._points)


def mean_of(shares: Sequence[float]) -> float:
    return round(sum(shares) / len(shares), _PLACES)


def _is_result(config: SearchConfig, candidate: Candidate) -> bool:
    values = [candidate.values.get(objective.name, math.nan) for objective in config.objectives]
    return candidate.state == "complete" and all(map(math.isfinite, values))
