"""The interface between a search and its evaluators, and a result as the sampler sees it.

An evaluator is asynchronous: `send` hands it an architecture and returns at once, `collect` returns
the evaluations that are finished, in any order. A search asks cheap evaluators first and drops a
candidate that violates a constraint before it asks expensive ones.

Values have names such as `chip_latency_ms`. The `conditions` of an evaluator describe how they are
obtained; another search reuses a result only if its conditions are the same.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.architecture import Value as ParamValue
from edgeloop.store import Value


@dataclass(frozen=True)
class Evaluation:
    """The values of one architecture, or an `error`.

    `is_final` says that another attempt would end the same way: a model that diverges, a graph that
    cannot be compiled. Any other error (a lost node, a store that was away) may be retried.
    `files` are worth keeping, by name, for example `model.onnx` and `metrics.json`. A training that
    is `paused_at` so many epochs or steps has the values that it had there. One that `lacks_memory`
    did not get enough of this machine's, and one that `overran` a time limit of ours was stopped:
    both say little about the model.
    """

    arch_id: str
    values: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    is_final: bool = False
    paused_at: int = 0
    lacks_memory: bool = False
    overran: bool = False

    @property
    def is_unjudged(self) -> bool:
        """Whether a limit of this machine ended it: no failure of the candidate is recorded."""
        return self.lacks_memory or self.overran


class Evaluator(ABC):
    """`gives` names the values it returns. `cost` orders evaluators: 0 for what takes a moment, 1
    for what takes long, 2 for what needs the trained model of an evaluator before it.
    """

    gives: tuple[str, ...]
    beside: tuple[str, ...] = ()  # what comes along where it is known, such as an interval
    cost: int
    conditions: str  # what a result depends on besides the architecture, as one line
    label: str = "in evaluation"  # where a candidate failed, for messages
    together: int = 1  # how many architectures it prefers to get at once
    can_pause: bool = False  # whether `pause` has an effect

    @abstractmethod
    def send(self, arch: Architecture, files: Mapping[str, Path] | None = None) -> None:
        """Accept an architecture, with the files that earlier evaluators made of it."""

    def send_all(self, several: Sequence[tuple[Architecture, Mapping[str, Path]]]) -> None:
        """Accept architectures that belong together."""
        for arch, files in several:
            self.send(arch, files)

    def warm(self) -> None:  # noqa: B027
        """Start now what the first architecture would wait for."""

    def pause(self, arch: Architecture, until: int | None) -> None:  # noqa: B027
        """Where the training of this architecture ends when it is sent next: after so many epochs
        or steps, continuing from where it is; at its end with None."""

    def discard(self, arch: Architecture) -> None:  # noqa: B027
        """The training of this architecture, which paused, never continues: what only its next part
        would need is removed."""

    @abstractmethod
    def collect(self, timeout_s: float) -> list[Evaluation]:
        """Finished evaluations; waits up to `timeout_s` for the first one."""

    @abstractmethod
    def close(self) -> None:
        """Stop what runs; leave nothing behind that costs money."""

    def depends_on(self, name: str) -> str:
        """The conditions of one of its values."""
        return self.conditions

    def known(self, results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """What stored results, by their conditions, say about the values that it returns."""
        stored = results.get(self.conditions, {})
        return {name: stored[name] for name in (*self.gives, *self.beside) if name in stored}

    def stored(self, values: Mapping[str, float]) -> Mapping[str, Mapping[str, float]]:
        """Its values, by the conditions under which others may use them."""
        return {self.conditions: values}

    @property
    def capacity(self) -> int | None:
        """How many architectures it evaluates at a time, if known."""
        return None

    def busy_share(self, places: int) -> float | None:
        """How busy so many places were until the last architecture came, from 0 to 1, if known."""
        return None

    @property
    def gpu_utilisation(self) -> float | None:
        """Of the GPUs that it uses, while it uses them, from 0 to 1, if known."""
        return None


Limits = Mapping[str, tuple[float, float]]
"""Constraints by the names of values: the least and the most."""


def broken_constraint(values: Mapping[str, float], constraints: Limits) -> str:
    """Which limit these values violate, in words; empty if none. Values not known yet pass. In a
    search for several chips, a candidate that is within the limits of one of them is wanted."""
    broken = _broken(values, constraints)
    for name, reason in broken.items():
        if not device_of(name):
            return reason
    devices = {device_of(name) for name in constraints} - {""}
    if devices and devices == {device_of(name) for name in broken}:
        return "; ".join(broken.values())
    return ""


def barred_devices(values: Mapping[str, float], constraints: Limits) -> frozenset[str]:
    """The chips of several whose limits these values violate: it is on no front of theirs."""
    return frozenset(device_of(name) for name in _broken(values, constraints)) - {""}


def _broken(values: Mapping[str, float], constraints: Limits) -> dict[str, str]:
    """A sentence for each value that is outside of its limits."""
    return {
        name: f"{name} is {values[name]:.4g}, not within {low:g} to {high:g}"
        for name, (low, high) in constraints.items()
        if name in values and not low <= values[name] <= high
    }


def expected(evaluators: Sequence[Evaluator]) -> tuple[str, ...]:
    """The names of all results that these evaluators return, in order."""
    every = (name for one in evaluators for name in (*one.gives, *one.beside))
    return tuple(name for name in dict.fromkeys(every) if is_result(name))


PROXY = "proxy_"  # before the names of zero-cost proxies


def is_result(name: str) -> bool:
    """Whether a value is worth showing: proxies are features for a sampler and nothing else."""
    return not name.startswith(PROXY)


@dataclass(frozen=True)
class Observation:
    """A result. All values are minimised, in any unit; a candidate that failed has none.

    A candidate that violates a constraint is not feasible, but the sampler learns from its values.
    `features` are other quantities that are known without training, by name: counts, latencies,
    proxies. `barred` are the places of fronts that it may not be on. The values of a training that
    was stopped early are what it was heading for, not what was measured (`is_partial`).
    """

    params: Mapping[str, ParamValue]
    values: tuple[float, ...] | None
    feasible: bool = True
    features: Mapping[str, float] = field(default_factory=dict)
    is_partial: bool = False
    barred: tuple[int, ...] = ()

    @property
    def measured(self) -> bool:
        return self.values is not None and all(math.isfinite(value) for value in self.values)

    @property
    def eligible(self) -> bool:
        """Whether it may be on a front or be a parent."""
        return self.feasible and self.measured and not self.is_partial


@dataclass(frozen=True)
class ScreenedMember:
    """A member of the space whose cheap values are known, and who may be trained.

    `values` has one place per objective, minimised; None where only a training can tell. A member
    that violates a constraint, or could not be built, is not feasible. `barred` are the places of
    fronts that it cannot join, because it violates the limits of their chips alone.
    """

    params: Mapping[str, ParamValue]
    values: tuple[float | None, ...]
    feasible: bool = True
    features: Mapping[str, float] = field(default_factory=dict)
    barred: tuple[int, ...] = ()


def values_of(results: Sequence[Observation]) -> NDArray[np.float64]:
    """One row per result; all of them must be measured."""
    rows = [result.values for result in results if result.values is not None]
    if len({len(row) for row in rows}) > 1:
        raise BadInput(reason="Results have different numbers of objectives; give each the same.")
    return np.array(rows, dtype=np.float64)


# The names of values: `chip_latency_ms`, or `chip_latency_ms@htp:x-elite` where a search is for
# several chips, each with a value of its own; and the status table's columns for them.


_AT = "@"


def on_device(value: str, device: str) -> str:
    """The name of a value on a chip; without a chip, the value's own."""
    return f"{value}{_AT}{device}" if device else value


def value_of(name: str) -> str:
    """Which value it is, on whatever chip."""
    return name.partition(_AT)[0]


def device_of(name: str) -> str:
    """The chip that a value belongs to; empty for one that belongs to all."""
    return name.partition(_AT)[2]


def columns_of(values: Mapping[str, float], iteration: int) -> dict[str, Value]:
    """Results under the column names of the status table."""
    columns: dict[str, Value] = {"iteration": iteration}
    for name in ("val_iou", "training_time"):
        if name in values:
            columns[name] = float(values[name])
    for name in ("params", "macs", "epochs"):
        if name in values:
            columns[name] = int(values[name])
    if "host_latency_ms" in values:
        columns["onnx_latency"] = values["host_latency_ms"] / 1000.0
    latency = next((name for name in values if value_of(name) == "chip_latency_ms"), None)
    if latency is not None:  # until a runner measures it; of several chips, the first one's
        columns |= {"mean": values[latency] / 1000.0, "latency_kind": "estimate"}
        for end in ("low_ms", "high_ms", "coverage"):
            name = on_device(f"chip_latency_{end}", device_of(latency))
            if name in values:
                columns[f"latency_{end}"] = values[name]
    return columns
