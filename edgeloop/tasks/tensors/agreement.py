"""How well the outputs of a model agree with those of its float form, output by output.

Sums of every sample, in double precision: nothing of a batch is kept.

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
from edgeloop.tasks.base import Interval, Tensors
from edgeloop.tasks.metrics import Floats, Headline, bootstrap, check_paired

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

    @property
    def counts(self) -> NDArray[np.float64]:
        """(samples, outputs, sums), for intervals and paired differences."""
        return np.stack([np.array(sums.samples) for sums in self._sums.values()], axis=1)

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


def agreement_interval(counts: NDArray[np.float64]) -> Interval:
    return bootstrap(len(counts), _worst_agreement(counts))


def agreement_difference(first: NDArray[np.float64], second: NDArray[np.float64]) -> Interval:
    """In dB of SQNR; of outputs in whole numbers the share of equal ones."""
    check_paired(first, second)
    ours, theirs = _worst_agreement(first), _worst_agreement(second)
    return bootstrap(len(first), lambda weights: ours(weights) - theirs(weights))


def _worst_agreement(counts: NDArray[np.float64]) -> Headline:
    """Of the output that agrees least; outputs in whole numbers count only where all are."""
    is_float = counts[..., _SIGNAL].any(axis=0) | counts[..., _NOISE].any(axis=0)

    def value(weights: Floats) -> Floats:
        sums = np.einsum("rs,sok->rok", weights, counts)
        if not is_float.any():
            shares: Floats = sums[..., _SAME] / np.maximum(1, sums[..., _PLACES])
            return np.asarray(shares.min(axis=1))
        signal, noise = sums[:, is_float, _SIGNAL], sums[:, is_float, _NOISE]
        with np.errstate(divide="ignore"):
            decibels = 10.0 * (np.log10(signal) - np.log10(noise))
        decibels = np.where(noise == 0.0, MOST_DB, decibels)
        return np.asarray(np.clip(decibels, -MOST_DB, MOST_DB).min(axis=1))

    return value


_SIGNAL, _NOISE, _SAME, _PLACES = 0, 2, 4, 5


@dataclass
class _OutputSums:
    """`samples` has the same sums of each sample by itself, in the order of the fields."""

    signal: float = 0.0
    power: float = 0.0
    noise: float = 0.0
    product: float = 0.0
    same: float = 0.0
    places: float = 0.0
    max_error: float = 0.0
    is_exact: bool = field(default=False)
    samples: list[tuple[float, ...]] = field(default_factory=list)

    def add(self, expected: NDArray[Any], given: NDArray[Any], axis: int | None) -> None:
        """One sample of both."""
        one = np.asarray(expected, np.float64)
        other = np.asarray(given, np.float64)
        difference = other - one
        self.max_error = max(self.max_error, float(np.abs(difference).max(initial=0.0)))
        self.is_exact = self.is_exact or expected.dtype.kind != "f"
        if self.is_exact:
            equal = np.count_nonzero(expected == given)
            self._include((0.0, 0.0, 0.0, 0.0, float(equal), float(expected.size)))
            return
        same = expected.argmax(axis) == given.argmax(axis) if axis is not None else np.zeros(0)
        powers = (np.vdot(one, one), np.vdot(other, other), np.vdot(difference, difference))
        sums = (*powers, np.vdot(one, other), np.count_nonzero(same), same.size)
        self._include(tuple(float(value) for value in sums))

    def _include(self, sums: tuple[float, ...]) -> None:
        self.samples.append(sums)
        names = ("signal", "power", "noise", "product", "same", "places")
        for name, value in zip(names, sums, strict=True):
            setattr(self, name, getattr(self, name) + value)

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
