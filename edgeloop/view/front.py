"""The Pareto front of a table."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from edgeloop.errors import BadInput
from edgeloop.models.columns import (
    ARCHITECTURE_ID,
    LATENCY,
    LATENCY_COLUMNS,
    Row,
    column_of,
    is_latency,
    ran_on,
    readable,
    runs_of,
    score_meaning,
    split_place,
)
from edgeloop.models.plan import STAGES
from edgeloop.pareto import (
    FIRST_RESULTS,
    Floats,
    ObjectiveScale,
    non_dominated,
    scale_of,
    share,
)
from edgeloop.view.measures import ColumnObjective

_KINDS = ("full", "trained", "")
_KIND = re.compile(r"\.(full|trained)(?:\.[0-9a-f]{12})?$")
_SHARED = ("macs", "params", "onnx_latency", "iteration", "val_iou")
_LATENCY = (LATENCY, "stdev", "total_inference_avg", "device", *LATENCY_COLUMNS)


@dataclass(frozen=True)
class Pareto:
    """`rows` are those with a number in every objective, `values` these numbers as shown, and
    `missing` is the number of other rows."""

    objectives: tuple[ColumnObjective, ...]
    rows: tuple[Row, ...]
    values: Floats
    missing: int

    @cached_property
    def is_front(self) -> list[bool]:
        best = [bool(is_best) for is_best in non_dominated(self._minimised)]
        for place, item in enumerate(self.objectives):
            if item.apart:
                best = self._told_apart(best, place, item.apart)
        return best

    def _told_apart(self, best: Sequence[bool], place: int, apart: float) -> list[bool]:
        """Of those on the front whose values in this objective differ by less, only the one that is
        best in the others. It begins there: with two objectives, that is the worst in this one."""
        if len(self.objectives) != 2:
            raise BadInput(reason="models are told apart on a front of two objectives only")
        size = np.abs(self.values[:, place])
        is_min = self.objectives[place].goal == "min"
        front = [index for index in np.argsort(-size if is_min else size) if best[index]]
        kept: list[int] = []
        for index in front:
            low, high = sorted((size[index], size[kept[-1]])) if kept else (0.0, 1.0)
            if high > low * (1 + apart):
                kept.append(int(index))
        return [index in kept for index in range(len(best))]

    @cached_property
    def front(self) -> list[Row]:
        """Best first in the first objective, then in the next; equal rows by name."""
        return [self.rows[index] for index in self.order if self.is_front[index]]

    @cached_property
    def latency(self) -> str:
        """The objective that is a latency; empty: none is."""
        return next((item.column for item in self.objectives if is_latency(item.column)), "")

    @cached_property
    def order(self) -> list[int]:
        keys = self._minimised.tolist()
        names = [str(row.get("name", "")) for row in self.rows]
        return sorted(range(len(self.rows)), key=lambda index: (keys[index], names[index]))

    @cached_property
    def devices(self) -> dict[str, int]:
        """How many of the models each device has numbers of, most first; '' for models that name
        none. Empty if no objective depends on a device."""
        if not any(_depends_on_device(item.column) for item in self.objectives):
            return {}
        counts = Counter(str(row.get("device") or "") for row in self.rows)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def on(self, device: str) -> Pareto:
        """The models of one device, which may be named by a board of it."""
        indices = [n for n, row in enumerate(self.rows) if ran_on(row, device)]  # type: ignore[arg-type]
        rows = tuple(self.rows[index] for index in indices)
        return replace(self, rows=rows, values=self.values[indices])

    @cached_property
    def scales(self) -> tuple[ObjectiveScale, ...]:
        """What the hypervolume is measured by, objective by objective. The reference point follows
        from the ten models that were uploaded first, so that others do not move it."""
        age = [(str(row.get("model_date", "")), str(row.get("name", ""))) for row in self.rows]
        first = sorted(range(len(self.rows)), key=age.__getitem__)[:FIRST_RESULTS]
        return tuple(
            scale_of(self.values[first, place].tolist(), item.goal, ideal=_ideal(item))
            for place, item in enumerate(self.objectives)
        )

    @cached_property
    def share(self) -> float:
        """The hypervolume, as a share of the box between the reference and the ideal point."""
        return share(self.values, self.scales) if len(self.rows) else 0.0

    @property
    def reference(self) -> str:
        """The reference point in words; empty if there is nothing to compare."""
        if not self.rows:
            return ""
        texts = []
        for place, (item, scale) in enumerate(zip(self.objectives, self.scales, strict=True)):
            measure, factor = readable(item.measure, self.values[:, place].tolist())
            texts.append(f"{measure.heading} {measure.text(factor * scale.worst)}")
        return ", ".join(texts)

    @property
    def _minimised(self) -> Floats:
        signs = [1.0 if item.goal == "min" else -1.0 for item in self.objectives]
        return np.asarray(self.values * np.array(signs))


ALL_DEVICES = "*"


def one_device(pareto: Pareto, device: str = "") -> tuple[Pareto, str]:
    """The front of one device, and which: that with most models where none is named and there are
    several. Numbers of two chips do not compare, so `*` (all together) must be asked for."""
    named = [name for name in pareto.devices if name]
    if device == ALL_DEVICES or not (device or len(named) > 1):
        return pareto, device
    chosen = device or named[0]
    return pareto.on(chosen), chosen


def device_note(whole: Pareto, device: str) -> str:
    """What a front says of devices, if there are several: which it is of, or that it mixes them."""
    counts = {name or "no device named": count for name, count in whole.devices.items()}
    if len(counts) < 2:
        return ""
    if device in ("", ALL_DEVICES):
        listed = ", ".join(f"{name} ({count})" for name, count in counts.items())
        return f"One front across devices, whose numbers do not compare: {listed}"
    others = ", ".join(f"{name} ({count})" for name, count in counts.items() if name != device)
    return f"Front of {device}; not shown: {others}"


def _ideal(item: ColumnObjective) -> float | None:
    """The best there can be, if that is known."""
    if item.goal == "min":
        return 0.0
    return 1.0 if column_of(item.column).places is not None else None


def pareto_of(rows: Iterable[Row], objectives: Sequence[ColumnObjective]) -> Pareto:
    """For two or more different objectives. A row without a finite number in one of them (empty,
    `n/a`, NaN, infinity) is left out: it cannot be compared. An architecture counts once."""
    columns = [item.column for item in objectives]
    if len(columns) < 2:
        raise BadInput(reason="a front needs at least two objectives")
    if len(set(columns)) < len(columns):
        raise BadInput(reason=f"an objective was named twice: {', '.join(columns)}")
    every = one_per_architecture(rows, objectives)
    numbers = [[item.of(row) for item in objectives] for row in every]
    complete = [index for index, line in enumerate(numbers) if not any(map(math.isnan, line))]
    values = np.array([numbers[index] for index in complete], dtype=np.float64)
    metric = score_meaning(every[index] for index in complete)
    return Pareto(
        tuple(replace(item, metric=metric) for item in objectives),
        tuple(every[index] for index in complete),
        values.reshape(len(complete), len(columns)),
        len(every) - len(complete),
    )


def one_per_architecture(rows: Iterable[Row], objectives: Sequence[ColumnObjective]) -> list[Row]:
    """A search leaves up to three rows per architecture: the candidate (`calm-heron`), the model
    after partial training (`calm-heron.trained`) and after full training (`calm-heron.full`). Of
    these, the best trained one with a number in every objective counts. What does not depend on
    weights, such as latency, may come from the others."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        architecture = str(row.get(ARCHITECTURE_ID) or "")
        groups.setdefault(architecture or f"row {len(groups)}", []).append(row)
    return [_combined(group, objectives) for group in groups.values()]


def _combined(group: list[Row], objectives: Sequence[ColumnObjective]) -> Row:
    if len(group) == 1:
        return group[0]
    by_date = sorted(group, key=lambda row: str(row.get("model_date", "")), reverse=True)
    best_first = sorted(by_date, key=_training)
    latency = next((row for row in best_first if runs_of(row)), None) or next(
        (row for row in best_first if LATENCY in row), {}
    )
    shared: dict[str, object] = {
        name: value
        for row in reversed(best_first)
        for name, value in row.items()
        if name in _SHARED or _is_further_latency(name)
    }
    shared |= {name: latency[name] for name in _LATENCY if name in latency}
    filled = [
        {**shared, **{n: v for n, v in row.items() if n not in _LATENCY or runs_of(row)}}
        for row in best_first
    ]
    complete = (row for row in filled if not any(math.isnan(item.of(row)) for item in objectives))
    return next(complete, filled[0])


def _is_further_latency(name: str) -> bool:
    """Of a device beside the primary one, which has columns of its own."""
    base, suffix = split_place(name)
    return bool(suffix) and base in _LATENCY


def _training(row: Row) -> int:
    match = _KIND.search(str(row.get("name", "")))
    return _KINDS.index(match[1] if match else "")


def _depends_on_device(column: str) -> bool:
    """Whether it is of the device that a row names. A column of a further device is of that one in
    every row."""
    declared = column_of(column)
    stage = STAGES.get(declared.stage)
    return declared.goal is not None and stage is not None and stage.is_on_device
