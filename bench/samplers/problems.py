"""Problems for samplers: all NAS-Bench-201 cells on several devices, and two hourglass spaces.

A problem is a space and what its members cost; nothing is trained. Errors of the cells come from
the benchmark, latencies from three sources:

- `cifar100`: the GPU latency that the benchmark has itself (development);
- `cifar100:3`: made-up devices: a cost per operation and edge, interactions, floors, noise
  (development);
- `cifar100@qcs8550`: what we compiled or measured, see `measure`. These are held out: no sampler is
  tuned on them.

`hourglass` is a conditional toy space, `table@htp:qcs8550` our own table of trained hourglasses.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.samplers.cells import CELLS, EDGES, OPERATIONS, counts
from bench.samplers.tables import DATASETS, read_accuracies, read_devices
from edgeloop.pareto import hypervolume
from edgeloop.search.sampler.members import key_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEPTH = 5

Features = Callable[[Mapping[str, Any]], dict[str, float]]


@dataclass(frozen=True)
class Problem:
    """`cost` is (error, latency); `best` is the true hypervolume up to the corner, None if nobody
    knows it. `features` is what a compiled, untrained network tells besides its latency."""

    name: str
    space: Callable[[Any], object]
    cost: Callable[[Mapping[str, Any]], tuple[float, float]]
    features: Features
    corner: tuple[float, float]
    best: float | None
    table: NDArray[np.float64] | None = None  # (error, latency) of every cell, in their order


def held_out() -> list[str]:
    """Three datasets on every device that was compiled for or measured."""
    return [f"{dataset}@{device}" for device in read_devices() for dataset in DATASETS]


@cache
def problem(name: str) -> Problem:
    if name == "hourglass":
        return Problem(name, hourglass, _hourglass_cost, _hourglass_features, (0.5, 200.0), None)
    if name.startswith("table@"):
        return _own_table(name)
    dataset = name.partition("@")[0].partition(":")[0]
    accuracies, latencies = read_accuracies(dataset)
    if "@" in name:
        latencies = read_devices()[name.partition("@")[2]]
    elif ":" in name:
        latencies = _made_up(int(name.partition(":")[2]))
    return cells_problem(name, 100 - accuracies, latencies)


def cells_problem(
    name: str, errors: NDArray[np.float64], latencies: NDArray[np.float64]
) -> Problem:
    values = np.c_[errors, latencies]
    places = {cell: place for place, cell in enumerate(CELLS)}

    def cost(params: Mapping[str, Any]) -> tuple[float, float]:
        first, second = values[places[cell_of(params)]]
        return float(first), float(second)

    corner = float(errors.max()), float(latencies.max())
    best = hypervolume(values, corner)
    return Problem(name, cells, cost, lambda given: counts(cell_of(given)), corner, best, values)


def cells(trial: Any) -> None:
    for edge in range(len(EDGES)):
        trial.suggest_categorical(f"edge{edge}", OPERATIONS)


def cell_of(params: Mapping[str, Any]) -> str:
    return "".join(str(OPERATIONS.index(params[f"edge{edge}"])) for edge in range(len(EDGES)))


def params_of(cell: str) -> dict[str, str]:
    return {f"edge{edge}": OPERATIONS[int(letter)] for edge, letter in enumerate(cell)}


def hourglass(trial: Any) -> None:
    """In the manner of the stacked hourglass: the second one and most layers are conditional."""
    trial.suggest_categorical("stem_stride", (1, 2, 4))
    trial.suggest_categorical("base_ch", (16, 24, 32, 48))
    for glass in range(trial.suggest_int("hourglasses", 1, 2)):
        for level in range(DEPTH):
            _layers(trial, f"g{glass}.down{level}", 1, 4)
            trial.suggest_categorical(f"g{glass}.factor{level}", (1.0, 1.2, 1.5, 1.6, 2.0, 2.2))
        for level in range(DEPTH - 1):
            _layers(trial, f"g{glass}.skip{level}", 0, 2)
            _layers(trial, f"g{glass}.up{level}", 1, 4)
    _layers(trial, "post", 0, 2)


def _layers(trial: Any, name: str, low: int, high: int) -> None:
    if trial.suggest_int(f"{name}.layers", low, high):
        trial.suggest_categorical(f"{name}.op", ("conv3x3", "conv5x5", "conv7x7"))


def _hourglass_cost(params: Mapping[str, Any]) -> tuple[float, float]:
    """Error falls with the logarithm of what each level can express; latency is MACs and layers."""
    macs, layers, merit = _hourglass_sums(params)
    digest = hashlib.sha256(key_of(params).encode()).digest()
    luck = int.from_bytes(digest[:4], "big") / 2**32 - 0.5
    error = 0.02 + 1 / (1 + math.exp(0.35 * (merit - 6))) + 0.01 * luck
    return error, macs / 1e8 + layers * 0.3


def _hourglass_features(params: Mapping[str, Any]) -> dict[str, float]:
    return {"macs": _hourglass_sums(params)[0]}


def _hourglass_sums(params: Mapping[str, Any]) -> tuple[float, int, float]:
    macs, layers, merit = 0.0, 0, 0.0
    side = 256 / params["stem_stride"]
    for glass in range(params["hourglasses"]):
        channels = float(params["base_ch"])
        for level in range(DEPTH):
            here = side / 2**level
            for kind in ("down", "skip", "up"):
                count = params.get(f"g{glass}.{kind}{level}.layers", 0)
                if not count:
                    continue
                kernel = int(params[f"g{glass}.{kind}{level}.op"][4])
                macs += count * (kernel * channels * here) ** 2
                layers += count
                weight = {"down": 1.0, "skip": 0.5, "up": 0.8}[kind] * (0.7 if glass else 1.0)
                merit += weight * math.log1p(count * channels * kernel / 60) / (1 + level / 3)
            channels *= params[f"g{glass}.factor{level}"]
    layers += params["post.layers"]
    merit += 0.3 * params["post.layers"] - 0.8 * math.log2(params["stem_stride"])
    return macs, layers, merit


def _own_table(name: str) -> Problem:
    from bench.nas_table import read_table

    found = read_table().problem(chip=name.partition("@")[2], score="f1")

    def features(params: Mapping[str, Any]) -> dict[str, float]:
        cheap = found.cheap(params)
        return {count: float(cheap[count]) for count in ("params", "macs", "memory_bytes")}

    return Problem(name, found.space, found.cost, features, found.reference, found.hypervolume)


def _made_up(device: int) -> NDArray[np.float64]:
    """Odd devices have a floor under which nothing gets faster; noise is 0, 2 or 5 %."""
    rng = np.random.default_rng(device)
    operations = np.array([[int(letter) for letter in cell] for cell in CELLS])
    each = rng.gamma(1.0, 1.0, len(OPERATIONS)) * (0.1, 0.3, 1, 1, 1)
    latency = np.full(len(CELLS), 2.0)
    for edge in range(len(EDGES)):
        latency += (each * rng.uniform(0.3, 1.7))[operations[:, edge]]
    together = rng.uniform(0, 1)
    for edge in range(len(EDGES)):
        for other in range(edge):
            pair = rng.gamma(0.5, 0.3, (len(OPERATIONS),) * 2)
            latency += together * pair[operations[:, edge], operations[:, other]]
    if device % 2:
        latency = np.maximum(latency, np.quantile(latency, 0.4)) + 0.1 * latency
    return latency * np.exp(rng.normal(0, (0.0, 0.02, 0.05)[device % 3], len(CELLS)))
