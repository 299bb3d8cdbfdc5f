"""Rungs: where trainings pause, and what a candidate has reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from edgeloop.errors import BadInput

Unit = Literal["epochs", "steps"]

_PARTS = 9  # of a training; no rung is longer than one of them


@dataclass(frozen=True)
class Rungs:
    """Trainings of `total` epochs (or steps) pause at `first`, `first·factor`, … below `total`, but
    never train for more than `longest` between two pauses: by default a ninth of the training, or
    `factor` if that is more. Forecasts become sharp late in a training: pauses there save most.

    Examples:
        >>> Rungs(total=27).pauses
        (1, 3, 6, 9, 12, 15, 18, 21, 24)
        >>> Rungs(total=27, longest=27).pauses
        (1, 3, 9)
        >>> Rungs(total=27).after(9)
        12
    """

    total: int
    first: int = 1
    factor: int = 3
    unit: Unit = "epochs"
    longest: int | None = None

    def __post_init__(self) -> None:
        if self.first < 1 or self.factor < 2 or (self.longest is not None and self.longest < 1):
            reason = "early stopping: first and longest must be 1 or more, factor 2 or more"
            raise BadInput(reason=reason)

    @property
    def pauses(self) -> tuple[int, ...]:
        longest = self.longest or max(self.factor, -(-self.total // _PARTS))
        found, at = [], self.first
        while at < self.total:
            found.append(at)
            at = min(at * self.factor, at + longest)
        return tuple(found)

    @property
    def marks(self) -> tuple[int, ...]:
        """The pauses and the end."""
        return (*self.pauses, self.total)

    def text(self, reached: int) -> str:
        return f"after {reached} of {self.total} {self.unit}"

    def after(self, reached: int) -> int:
        """Where a training that has come so far ends next."""
        return next((mark for mark in self.marks if mark > reached), self.total)


def rungs_of(train: Mapping[str, object]) -> Rungs | None:
    """From the keys of `train:`; None without early stopping. The first pause of steps is after
    1/27 of them unless it is given."""
    written = train.get("early_stopping")
    if written is None or written is False:
        return None
    given = written if isinstance(written, Mapping) else {}
    unit: Unit = "steps" if train.get("steps") else "epochs"
    total = int(str(train.get(unit) or 1))
    factor = int(str(given.get("factor") or 3))
    usual = 1 if unit == "epochs" else max(1, total // factor**3)
    longest = int(str(given["longest"])) if given.get("longest") else None
    return Rungs(total, int(str(given.get("first") or usual)), factor, unit, longest)


@dataclass(frozen=True)
class RungMember:
    """A candidate as the rule sees it. All values are minimised.

    `values` has one place per objective: the exact value, or None where only training can tell.
    `scores` has the trained objectives, in their order, at each mark that was reached. A candidate
    that `waits` is paused and may be promoted; any other is being trained or has ended, before its
    time if it `is_stopped`. `barred` are the places of fronts that it may not be on. `params` and
    `features` are what forecasts may learn from besides: what the space was given, and numbers
    that are known without training, such as MACs.
    """

    key: str
    values: tuple[float | None, ...]
    scores: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    waits: bool = False
    barred: tuple[int, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    features: Mapping[str, float] = field(default_factory=dict)
    is_stopped: bool = False

    @property
    def reached(self) -> int:
        return max(self.scores, default=0)
