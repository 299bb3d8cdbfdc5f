"""What is to be done to a model, in which order, and who can do it: one small table.

| stage     | needs              | capability      | priority            |
|-----------|--------------------|-----------------|---------------------|
| convert   |                    | quantize        | 20                  |
| benchmark | convert            | device          | 30 + runs done      |
| f1_onnx   |                    | onnx            | 60                  |
| f1_1k     | convert, benchmark | device-accuracy | 100 + latency       |
| f1_1k_f   | convert, benchmark | device-float    | 100 + 10 × latency  |
| f1_10k    | convert, benchmark | device-accuracy | 100 + 100 × latency |

Latency is the mean in milliseconds, so quick models come first. A row's own priority comes
before all of these; among rows of the same one, and among the stages of a row, they decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edgeloop.errors import BadInput
from edgeloop.models.row import (
    AGREEMENT_COLUMNS,
    filled,
    is_deterministic,
    is_true,
    mean_latency_ms,
    own_priority,
    runs_of,
)
from edgeloop.store import Values

Priority = Callable[[Values], float]

LATENCY_COLUMNS = (
    "latency_kind",
    "latency_raw_us",
    "latency_low_us",
    "latency_high_us",
    "latency_low_ms",
    "latency_high_ms",
    "latency_coverage",
    "latency_basis",
    "latency_missing_ops",
    "latency_margin_percent",  # of rows from before there were intervals
    "latency_profile",
    "latency_calibrated",
    "runs",
)

_SIZE_COLUMNS = ("peak_memory_bytes", "weight_bytes")
_RUN_COLUMNS = ("ddr_bytes", "peak_rss_bytes", "power_mw")
RECOVERY_COLUMNS = ("recovery", "f1_before_recovery", "f1_after_recovery")


@dataclass(frozen=True)
class Stage:
    """One kind of work. It is done when all columns it fills are filled or, where runs are
    counted, when `count` has reached `runs`; sooner where `enough` says that more runs would only
    repeat the first.

    `clears` are columns that say how it was done, and go with a reset.
    `artefacts` are the names that tools before Edgeloop gave to its files, at the top of the
    model's folder; files of our own are in the row's record of the stage.
    """

    name: str
    fills: tuple[str, ...]
    capability: str
    priority: Priority
    needs: tuple[str, ...] = ()
    artefacts: tuple[str, ...] = ()
    clears: tuple[str, ...] = ()
    runs: int = 1
    count: Callable[[Values], int] | None = None
    enough: Callable[[Values], bool] | None = None
    in_benchmark_only: bool = False

    def progress(self, row: Values) -> int:
        """How many runs are done; each commit must raise it."""
        if self.count is not None:
            return self.count(row)
        values = [row.get(column) for column in self.fills]  # `quantized` may be False
        return int(all(filled(value) and value is not False for value in values))

    def is_done(self, row: Values) -> bool:
        is_enough = self.enough is not None and self.enough(row)
        return is_enough or self.progress(row) >= self.runs


@dataclass(frozen=True)
class Plan:
    stages: tuple[Stage, ...]

    def __getitem__(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        known = ", ".join(stage.name for stage in self.stages)
        raise BadInput(reason=f"there is no stage {name!r}; the stages are {known}")

    def __contains__(self, name: object) -> bool:
        return any(stage.name == name for stage in self.stages)

    def for_model(self, row: Values) -> Iterator[Stage]:
        """The stages this model goes through."""
        short = is_true(row.get("benchmark_only"))
        return (stage for stage in self.stages if stage.in_benchmark_only or not short)

    def capability(self, row: Values, stage: Stage) -> str:
        """What a runner must have. All device stages of a model run on one type of device, the one
        that benchmarked it first: numbers of two types do not belong into one row."""
        device = row.get("device")
        pinned = stage.capability.startswith("device") and filled(device)
        return f"{stage.capability}@{device}" if pinned else stage.capability

    def is_complete(self, row: Values) -> bool:
        return all(stage.is_done(row) for stage in self.for_model(row))

    def is_ready(self, row: Values, stage: Stage) -> bool:
        """Whether the stage is still to be done and nothing it needs is missing."""
        if stage not in self.for_model(row) or stage.is_done(row):
            return False
        return all(self[name].is_done(row) for name in stage.needs)

    def priority(self, row: Values, stage: Stage) -> float:
        own = own_priority(row)
        return stage.priority(row) if own is None else own

    def and_those_after(self, names: set[str]) -> set[str]:
        """Stages that must be done again when these are: they stand on their results."""
        found = set(names)
        for stage in self.stages:  # in order, so one pass reaches everything
            if found.intersection(stage.needs):
                found.add(stage.name)
        return found


def default_plan(benchmark_runs: int = 5) -> Plan:
    on_device = ("convert", "benchmark")
    return Plan(
        (
            Stage(
                name="convert",
                fills=("quantized", "macs", "params", "shape", "output_shape"),
                capability="quantize",
                priority=lambda row: 20,
                artefacts=("*.dlc", "*.info.csv"),
                clears=("calibration", "notes", "task", *_SIZE_COLUMNS, *RECOVERY_COLUMNS),
                in_benchmark_only=True,
            ),
            Stage(
                name="benchmark",
                fills=("total_inference_avg", "mean", "stdev"),
                capability="device",
                priority=lambda row: 30 + len(runs_of(row)),
                needs=("convert",),
                artefacts=("perf_results*.csv",),
                clears=("device", "boards", *LATENCY_COLUMNS, *_RUN_COLUMNS),
                runs=benchmark_runs,
                count=lambda row: len(runs_of(row)),
                enough=is_deterministic,
                in_benchmark_only=True,
            ),
            _f1("f1_onnx", "onnx", lambda row: 60, ()),
            _f1("f1_1k", "device-accuracy", _by_latency(1), on_device, AGREEMENT_COLUMNS),
            _f1("f1_1k_f", "device-float", _by_latency(10), on_device),
            _f1("f1_10k", "device-accuracy", _by_latency(100), on_device),
        )
    )


def _f1(
    name: str,
    capability: str,
    priority: Priority,
    needs: tuple[str, ...],
    clears: tuple[str, ...] = (),
) -> Stage:
    artefacts = (f"test_results_{name}.csv", f"pr_curve_{name}.png")
    about = tuple(f"{name}_{what}" for what in ("images", "set", "low", "high"))
    return Stage(name, (name,), capability, priority, needs, artefacts, (*clears, *about))


def _by_latency(factor: float) -> Priority:
    return lambda row: 100 + factor * mean_latency_ms(row)
