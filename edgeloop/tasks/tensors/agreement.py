"""How well the outputs of a model agree with those of its float form, output by output.

Sums only, in double precision: nothing of a batch is kept.

| value            | meaning                                                                       |
|------------------|-------------------------------------------------------------------------------|
| `sqnr_db`        | power of the float output over the power of the error, in dB; at most 200     |
| `cosine`         | of the angle between the two outputs as vectors, over all samples             |
| `max_error`      | the largest absolute difference                                               |
| `top1_agreement` | share of places where the largest value is the same one; of whole numbers the |
|                  | share that is equal; NaN where an output has one value per place              |
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import ModelFailed
from edgeloop.graph import GraphInfo, Shape, TensorInfo
from edgeloop.tasks.base import Tensors

AGREEMENT = ("sqnr_db", "cosine", "max_error", "top1_agreement")
MOST_DB = 200.0  # equal outputs have no error at all


@dataclass(frozen=True)
class Agreement:
    """Of one output, or the worst of all: each value by itself."""

    sqnr_db: float
    cosine: float
    max_error: float
    top1_agreement: float

    def values(self) -> dict[str, float]:
        """Those that are numbers, by name."""
        found = {name: float(getattr(self, name)) for name in AGREEMENT}
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def __str__(self) -> str:
        words = [f"SQNR {self.sqnr_db:.1f} dB"] if not math.isnan(self.sqnr_db) else []
        words += [f"cosine {self.cosine:.5f}"] if not math.isnan(self.cosine) else []
        words += [f"largest error {self.max_error:.3g}"]
        if not math.isnan(self.top1_agreement):
            words.append(f"top-1 agreement {100 * self.top1_agreement:.2f} %")
        return ", ".join(words)


class AgreementScorer:
    """Takes batches of the outputs of both, sample by sample the same inputs."""

    def __init__(self, info: GraphInfo) -> None:
        self.samples = 0
        self._sums: dict[str, _OutputSums] = {}
        self._axes = {tensor.name: class_axis_of(tensor, info) for tensor in info.outputs}

    def add(self, outputs: Tensors, reference: Tensors) -> None:
        self.samples += len(next(iter(reference.values()), ()))
        for name, expected in reference.items():
            given = outputs[name].reshape(expected.shape)
            axis = self._axes[name]
            sums = self._sums.setdefault(name, _OutputSums())
            for one, other in zip(expected, given, strict=True):
                sums.add(one, other, None if axis is None else axis - 1)

    def outputs(self) -> dict[str, Agreement]:
        return {name: sums.agreement() for name, sums in self._sums.items()}

    def worst(self) -> Agreement:
        found = list(self.outputs().values())
        if not found:
            raise ModelFailed(reason="nothing was compared: the model gave no outputs")

        def of(name: str) -> list[float]:
            values = [float(getattr(one, name)) for one in found]
            return [value for value in values if not math.isnan(value)]

        return Agreement(
            min(of("sqnr_db"), default=math.nan),
            min(of("cosine"), default=math.nan),
            max(of("max_error"), default=math.nan),
            min(of("top1_agreement"), default=math.nan),
        )

    def write_csv(self, path: Path) -> None:
        """A row per value, a column per output, then `overall`: the worst."""
        columns = {**self.outputs(), "overall": self.worst()}
        if len(columns) == len(self._sums):  # an output that is itself called so
            columns = {**self.outputs(), "overall (worst)": self.worst()}
        rows = [["metric", *columns]]
        for name in AGREEMENT:
            values = [float(getattr(one, name)) for one in columns.values()]
            rows.append([name, *("" if math.isnan(value) else repr(value) for value in values)])
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


def class_axis_of(tensor: TensorInfo, info: GraphInfo) -> int | None:
    """Which axis of an output has the classes: the last one of vectors and sequences, the channels
    of maps. None where there is only one value along it."""
    shape = info.sample_shape(tensor)
    if not shape:
        return None
    is_first = len(shape) >= 3 and _has_channels_first(shape, info)
    axis = 1 if is_first else len(shape)
    return axis if shape[axis - 1] > 1 else None


def _has_channels_first(shape: Shape, info: GraphInfo) -> bool:
    """As the sides of the image say, else as the image has them; without one, what there is fewest
    of are the channels."""
    image = next((tensor for tensor in info.inputs if tensor.layout), None)
    if image is None:
        return shape[-1] >= shape[0]
    sides = (image.height, image.width)
    if sides in (shape[1:3], shape[:2]):
        return shape[1:3] == sides
    return image.layout == "NCHW"


@dataclass
class _OutputSums:
    signal: float = 0.0
    power: float = 0.0
    noise: float = 0.0
    product: float = 0.0
    max_error: float = 0.0
    same: int = 0
    places: int = 0
    is_exact: bool = field(default=False)

    def add(self, expected: NDArray[Any], given: NDArray[Any], axis: int | None) -> None:
        """One sample of both."""
        if expected.dtype.kind != "f":
            self.is_exact = True
            self.same += int(np.count_nonzero(expected == given))
            self.places += expected.size
            difference = expected.astype(np.float64) - given.astype(np.float64)
            self.max_error = max(self.max_error, float(np.abs(difference).max(initial=0.0)))
            return
        one = np.asarray(expected, np.float64)
        other = np.asarray(given, np.float64)
        difference = other - one
        self.signal += float(np.vdot(one, one))
        self.power += float(np.vdot(other, other))
        self.noise += float(np.vdot(difference, difference))
        self.product += float(np.vdot(one, other))
        self.max_error = max(self.max_error, float(np.abs(difference).max(initial=0.0)))
        if axis is not None:
            same = expected.argmax(axis) == given.argmax(axis)
            self.same += int(np.count_nonzero(same))
            self.places += same.size

    def agreement(self) -> Agreement:
        share = self.same / self.places if self.places else math.nan
        if self.is_exact:
            return Agreement(math.nan, math.nan, self.max_error, share)
        return Agreement(self._sqnr_db(), self._cosine(), self.max_error, share)

    def _sqnr_db(self) -> float:
        if self.noise == 0.0:
            return MOST_DB
        if self.signal == 0.0:
            return -MOST_DB
        decibels = 10.0 * (math.log10(self.signal) - math.log10(self.noise))
        return max(-MOST_DB, min(MOST_DB, decibels))

    def _cosine(self) -> float:
        length = math.sqrt(self.signal) * math.sqrt(self.power)
        if length == 0.0:
            return 1.0 if self.signal == self.power else 0.0
        return max(-1.0, min(1.0, self.product / length))
