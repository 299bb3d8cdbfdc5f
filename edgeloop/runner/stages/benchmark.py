"""benchmark: one run on the device, added to those before it. An estimate is the same each time, so
one run of it is enough."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from edgeloop._util.values import interval_text, latency_text
from edgeloop.models.columns import LATENCY_COLUMNS, boards_of, runs_by_board, runs_of
from edgeloop.platforms import Measurement, device_type
from edgeloop.runner.stages.base import Assignment, Equipment, Result, with_layers
from edgeloop.store import Changes, Value


def benchmark(work: Assignment, equipment: Equipment) -> Result:
    info = equipment.toolchain.inspect(work.onnx)
    model = work.artefact(equipment.device.artefacts.get("quantized", ""), equipment.toolchain.name)
    measured = with_layers(equipment.device.measure(model, info), equipment, model)
    before = [] if measured.is_deterministic else runs_of(work.row)
    runs = [*before, measured.seconds]
    mean = statistics.mean(runs)
    device = equipment.device
    by_board: dict[str, list[float]] = {}
    if device_type(device) != device.name:
        by_board = runs_by_board(work.row)
        by_board.setdefault(device.name, []).append(measured.seconds)
    columns: dict[str, Value | None] = {
        "total_inference_avg": json.dumps(runs),
        "mean": mean,
        "stdev": _percent(statistics.stdev(runs), mean) if len(runs) > 1 else 0.0,
        "run_spread": _run_spread(list(by_board.values()) or [runs], measured),
        "device": device_type(device),
        **dict.fromkeys(LATENCY_COLUMNS),
        **_board_columns(work, by_board),
        "latency_kind": "estimate" if measured.is_estimate else "measured",
        "runs": "1, deterministic" if measured.is_deterministic else str(len(runs)),
        **_estimate_columns(measured),
        **_memory_columns(measured, work),
    }
    path = work.folder / f"perf_results_{len(runs)}.csv"
    _write_csv(path, measured)
    return Result(columns, {path.name: path}, _summary(measured, equipment.device.name))


def _run_spread(groups: Sequence[Collection[float]], measured: Measurement) -> Value:
    """How much runs differ on the same board: the standard deviation within `groups`, pooled, in
    percent of their mean. `n/a` while no board has two runs."""
    if measured.is_deterministic:
        return 0.0
    freedom = sum(len(group) - 1 for group in groups)
    if not freedom:
        return "n/a"
    squares = sum((run - statistics.mean(group)) ** 2 for group in groups for run in group)
    mean = statistics.mean(run for group in groups for run in group)
    return _percent(math.sqrt(squares / freedom), mean)


def _board_columns(work: Assignment, by_board: Mapping[str, Sequence[float]]) -> Changes:
    """Equal boards may share the runs of a model, and each has its own speed. Boards of earlier
    runs that are not told apart keep their names."""
    if not by_board:
        return {}
    means = [statistics.mean(runs) for runs in by_board.values()]
    spread = _percent(statistics.stdev(means), statistics.mean(means)) if len(means) > 1 else None
    return {
        "boards": ", ".join(dict.fromkeys([*boards_of(work.row), *by_board])),
        "board_runs": json.dumps(by_board),
        "board_spread": spread,
    }


def _percent(deviation: float, mean: float) -> float:
    return 100.0 * deviation / mean if mean else 0.0


def _memory_columns(measured: Measurement, work: Assignment) -> dict[str, Value]:
    """Of all runs the most memory, and the mean power."""
    columns: dict[str, Value] = {}
    if measured.ddr_bytes is not None:
        columns["ddr_bytes"] = measured.ddr_bytes
    if measured.peak_rss_bytes is not None:
        before = work.row.get("peak_rss_bytes")
        most = before if isinstance(before, int) else 0
        columns["peak_rss_bytes"] = max(most, measured.peak_rss_bytes)
    if measured.power_mw is not None:
        before, runs = work.row.get("power_mw"), len(runs_of(work.row))
        total = runs * before if isinstance(before, int | float) else 0.0
        count = runs + 1 if isinstance(before, int | float) else 1
        columns["power_mw"] = (total + measured.power_mw) / count
    return columns


def _estimate_columns(measured: Measurement) -> Changes:
    if not measured.is_estimate:
        return {}
    return {
        "latency_raw_us": measured.raw_us,
        "latency_low_us": measured.low_us,
        "latency_high_us": measured.high_us,
        "latency_low_ms": measured.low_ms,
        "latency_high_ms": measured.high_ms,
        "latency_coverage": measured.coverage,
        "latency_basis": measured.basis,
        "latency_missing_ops": measured.missing_ops or None,
        "latency_profile": measured.profile,
        "latency_calibrated": measured.is_calibrated,
    }


def _summary(measured: Measurement, device: str) -> str:
    if not measured.is_estimate:
        return f"{1000 * measured.seconds:.3g} ms on {device}"
    text = latency_text(1000 * measured.seconds)
    interval = interval_text(measured.low_ms, measured.high_ms, measured.coverage)
    least = "at least " if measured.missing_ops else ""
    where = f", {interval}," if interval else ""
    why = "" if measured.is_calibrated else " (uncalibrated)"
    if not interval:
        why = f" ({measured.basis})"
    return f"estimate {least}{text}{where} on {device}{why}"


def _write_csv(path: Path, measured: Measurement) -> None:
    """Every sample, then every layer whose time is known: one row each."""
    kind = "estimate" if measured.is_estimate else "measured"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("what", "name", "operator", "time_us", "kind"))
        writer.writerow(("total", "", "", measured.seconds * 1e6, kind))
        for number, sample in enumerate(measured.samples_s):
            writer.writerow(("sample", number, "", sample * 1e6, kind))
        for layer in measured.layers:
            time = "" if layer.time_us is None else layer.time_us
            writer.writerow(("layer", layer.name, layer.operator, time, kind))
        for name, value in measured.conditions.items():
            writer.writerow(("condition", name, "", value, kind))
