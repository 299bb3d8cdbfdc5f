"""The front beside Optuna's and the naive way, and a report of 1,000 models.

Optuna's is what its studies use (`_is_pareto_front`); the naive way compares all with all, one
NumPy line a point, here for some of the points and reckoned up for all (≈). All three must agree.
Uniform points have a small front; on a sphere every point is on it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random

import numpy as np

from bench.tables import markdown
from edgeloop.pareto import hypervolume, non_dominated
from edgeloop.view.measures import objective
from edgeloop.view.report import ReportData, Source, render

ROUNDS = 3
SETS = ((100_000, 2, 0.1), (10_000, 3, 1.0))
SAMPLE = 400  # points of the naive way, which would take minutes for all
MODELS = 1000


def run() -> str:
    rows = [
        _front_row(kind, count, objectives, goal)
        for count, objectives, goal in SETS
        for kind in ("uniform", "sphere")
    ]
    headings = ("points", "on the front", "ours, s", "goal, s", "Optuna, s", "naive, s", "agree")
    return "\n\n".join([markdown(headings, rows), _volume(), _report()])


def naive(points: np.ndarray, sample: np.ndarray) -> np.ndarray:
    return np.array(
        [not ((points <= p).all(axis=1) & (points < p).any(axis=1)).any() for p in sample]
    )


def optunas(points: np.ndarray) -> np.ndarray:
    from optuna.study._multi_objective import _is_pareto_front

    return _is_pareto_front(points, assume_unique_lexsorted=False)


def _front_row(kind: str, count: int, objectives: int, goal: float) -> tuple[object, ...]:
    points = _points(kind, count, objectives)
    ours_s, ours = _timed(non_dominated, points, ROUNDS)
    optuna_s, theirs = _timed(optunas, points, ROUNDS)
    seconds, plain = _timed(lambda sample: naive(points, sample), points[:SAMPLE], 1)
    agree = bool((ours == theirs).all() and (ours[:SAMPLE] == plain).all())
    naive_s = f"≈ {seconds * count / SAMPLE:.0f}"
    name = f"{count:,} × {objectives}, {kind}"
    figures = (f"{ours.sum():,}", f"{ours_s:.3f}", f"< {goal:g}", f"{optuna_s:.3f}", naive_s)
    return name, *figures, "yes" if agree else "NO"


def _volume() -> str:
    from optuna._hypervolume import compute_hypervolume

    rows = []
    for count, objectives in ((10_000, 2), (1_000, 3), (100, 4)):
        points, corner = _points("sphere", count, objectives), np.zeros(objectives)
        ours_s, ours = _timed(lambda p, c=corner: hypervolume(p, c), points, ROUNDS)
        optuna_s, theirs = _timed(lambda p, c=corner: compute_hypervolume(p, c), points, ROUNDS)
        off = f"{abs(ours - theirs) / theirs:.0e}"
        rows.append((f"{count:,} × {objectives}", f"{ours_s:.4f}", f"{optuna_s:.4f}", off))
    return markdown(("hypervolume of a sphere", "ours, s", "Optuna, s", "differs by"), rows)


def _report() -> str:
    wanted = (objective("mean"), objective("f1_1k"))
    source = Source("bench", "bench", datetime.now(UTC))
    render(ReportData(_models(3), wanted, source))  # the drawing engine starts once a process
    seconds, page = _timed(
        lambda rows: render(ReportData(rows, wanted, source)), _models(MODELS), 1
    )
    size = len(page.encode()) / 1e6
    row = (f"{MODELS:,} models", f"{seconds:.1f}", "< 10", f"{size:.1f}", "< 10")
    return markdown(("report", "s", "goal, s", "MB", "goal, MB"), [row])


def _timed(call: Callable, points: object, rounds: int) -> tuple[float, object]:
    """The best of some rounds, and the answer."""
    best, answer = math.inf, None
    for _ in range(rounds):
        began = time.perf_counter()
        answer = call(points)
        best = min(best, time.perf_counter() - began)
    return best, answer


def _points(kind: str, count: int, objectives: int) -> np.ndarray:
    rng = np.random.default_rng(count + objectives)
    if kind == "uniform":
        return rng.random((count, objectives))
    points = -np.abs(rng.normal(size=(count, objectives)))
    return points / np.linalg.norm(points, axis=1)[:, None]


def _models(count: int) -> list[dict[str, object]]:
    """Rows with all columns that a farm fills."""
    rng = Random(5)
    rows = []
    for number in range(count):
        latency_ms = math.exp(rng.gauss(1.2, 0.5))
        f1 = 0.92 - 0.35 * math.exp(-latency_ms / 3) - abs(rng.gauss(0, 0.05))
        runs = [latency_ms / 1e3 * rng.gauss(1, 0.02) for _ in range(5)]
        rows.append(
            {
                "name": f"calm-heron-{number}",
                "status": "complete",
                "model_date": "2026-11-15T10:00:00+00:00",
                "model_name": f"net-{number}-of-a-long-search.onnx",
                "experiment": "bench",
                "iteration": number // 50,
                "shape": "[1, 3, 256, 256]",
                "output_shape": "[1, 19, 256, 256]",
                "quantized": True,
                "macs": int(latency_ms * 1e8),
                "params": int(latency_ms * 2e5),
                "total_inference_avg": str(runs),
                "mean": sum(runs) / 5,
                "stdev": 2.0,
                "completed": "2026-11-15T11:00:00+00:00",
                "f1_onnx": f1 + 0.012,
                "f1_1k": f1,
                "f1_1k_f": f1 + 0.01,
                "f1_10k": f1,
                "val_iou": 0.7 * f1,
                "final_val_iou": 0.8 * f1,
                "device": "htp:qcs8550",
                "precision": "a8w8-per-channel",
                "latency_kind": "estimate" if number % 3 else "measured",
                "content": f"{number:064x}",
            }
        )
    return rows
