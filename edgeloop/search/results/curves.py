"""`curves.csv`: the learning curves of all candidates, a line per validation.

Lines are appended as trainings pause and end; a candidate that continues adds what is new. A reader
may see an incomplete last line, which is left out and written again when the search resumes.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from edgeloop._util.files import write_atomic

CURVES = "curves.csv"
_LARGEST_BYTES = 1 << 28


@dataclass(frozen=True)
class CurvePoint:
    """A validation of a training. `loss` is the mean since the epoch began; `seconds` count from
    the start of the training."""

    epoch: int
    step: int
    loss: float
    val_f1: float
    val_iou: float
    seconds: float


_COLUMNS = ("arch_id", *(each.name for each in fields(CurvePoint)))


class LearningCurves:
    """Writes `curves.csv` of a search that runs."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / CURVES
        known = read_curves(folder)
        self._steps = {name: {point.step for point in curve} for name, curve in known.items()}
        if known:
            rows = ((name, *astuple(point)) for name, curve in known.items() for point in curve)
            write_atomic(self._file, csv_text([_COLUMNS, *rows]))

    def add(self, arch_id: str, history: Path) -> None:
        """What is new in the `metrics.jsonl` of a training."""
        known = self._steps.setdefault(arch_id, set())
        new = [point for point in _points(history) if point.step not in known]
        if not new:
            return
        is_first = not self._file.exists()
        rows = [(arch_id, *astuple(point)) for point in new]
        with self._file.open("ab") as file:
            file.write(csv_text([_COLUMNS, *rows] if is_first else rows).encode())
        known.update(point.step for point in new)


def read_curves(folder: Path) -> dict[str, list[CurvePoint]]:
    """The learning curve of each candidate, by the id of its architecture, in order of steps."""
    found: dict[str, dict[int, CurvePoint]] = {}
    for row in _lines(folder / CURVES):
        point = _point(row)
        if point is not None and row.get("arch_id"):
            found.setdefault(row["arch_id"], {})[point.step] = point
    return {name: [curve[step] for step in sorted(curve)] for name, curve in found.items()}


def _lines(file: Path) -> list[dict[str, str]]:
    """Without one that a kill cut off."""
    try:
        if file.stat().st_size > _LARGEST_BYTES:
            return []
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    whole = text[: text.rfind("\n") + 1]
    return list(csv.DictReader(io.StringIO(whole)))


def _points(history: Path) -> list[CurvePoint]:
    found = []
    try:
        lines = history.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            entry = json.loads(line)
            renamed = {**entry, "val_f1": entry["f1"], "val_iou": entry["miou"]}
        except (ValueError, TypeError, KeyError):
            continue
        point = _point(renamed)
        if point is not None:
            found.append(point)
    return found


def _point(row: Mapping[str, object]) -> CurvePoint | None:
    try:
        epoch, step = int(str(row["epoch"])), int(str(row["step"]))
        others = [float(str(row[name])) for name in _COLUMNS[3:]]
    except (ValueError, KeyError):
        return None
    return CurvePoint(epoch, step, *others) if all(map(math.isfinite, others)) else None


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
