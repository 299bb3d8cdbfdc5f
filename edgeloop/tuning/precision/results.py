"""What a search for precision finds, as plain values; and the answers that are kept for the next
one."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeloop.graph import TunableTensor
from edgeloop.platforms import PrecisionPlan
from edgeloop.tasks import Interval


@dataclass(frozen=True)
class PrecisionPoint:
    """One plan. `latency_us` is an estimate, with its interval where one is supported by data.
    `score` is the task's, `difference` the paired one to float, both only with a dataset. With
    `missing_ops`, steps that the compiler has no cost for, the latency is a lower bound."""

    plan: PrecisionPlan
    latency_us: float
    sqnr_db: float
    low_us: float | None = None
    high_us: float | None = None
    score: float | None = None
    difference: Interval | None = None
    missing_ops: int = 0

    @property
    def label(self) -> str:
        """`a8w8`, `a16w8`, or what differs from the first."""
        bits = list(self.plan.bits.values())
        if not bits:
            default = self.plan.default
            return f"a{default.activations}w{default.weights}"
        wide, narrow = bits.count(16), bits.count(4)
        words = [f"{wide} at 16 bit"] if wide else []
        words += [f"{narrow} weights at 4 bit"] if narrow else []
        return ", ".join(words)

    def to_fields(self) -> dict[str, Any]:
        fields = asdict(self)
        plan = self.plan.to_fields()
        return {"name": self.label, **fields, "plan": plan, "precision": self.plan.name}


@dataclass(frozen=True)
class TensorSensitivity:
    """What one tensor does to the outputs. `error_share` is the power of the error that its 8 bits
    (4 for weights) make, of the power of the outputs, computed on this machine. `latency_us` and
    `sqnr_db` are those of the whole model with this tensor alone at 16 bits (weights at 4): by the
    compiler, and on the simulator; None where that was not tried."""

    tensor: TunableTensor
    error_share: float
    latency_us: float | None = None
    sqnr_db: float | None = None
    score: float | None = None

    @property
    def error_db(self) -> float:
        return 10 * math.log10(self.error_share) if self.error_share > 0 else -200.0

    def to_fields(self) -> dict[str, Any]:
        tensor = self.tensor
        about = {"name": tensor.name, "kind": tensor.kind, "layer": tensor.layer}
        fields = {name: value for name, value in asdict(self).items() if name != "tensor"}
        return {**about, "operator": tensor.operator, **fields, "error_db": self.error_db}


@dataclass(frozen=True)
class LayerAgreement:
    """How well a tensor on the chip agrees with the float one: `sqnr_db` with that of the float
    model, `own_db` with what its layer gives in float from what it read on the chip. The second is
    the error of this layer alone."""

    tensor: str
    layer: str
    operator: str
    sqnr_db: float
    own_db: float


@dataclass(frozen=True)
class Divergence:
    """All tensors in the order of the graph. `first` is the first layer whose own error is much
    larger than that of the others, which is `usual_db`; None where there is none."""

    layers: tuple[LayerAgreement, ...]
    first: LayerAgreement | None = None
    usual_db: float = 0.0
    note: str = ""


class Answers:
    """Answers by their questions, in a file that only grows: what was found before a run ended is
    there for the next one, however it ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known = dict(_entries(path))

    def get(self, key: str) -> Any | None:
        return self._known.get(key)

    def put(self, key: str, value: Any) -> None:
        line = json.dumps([key, value]) + "\n"
        with self._lock:
            self._known[key] = value
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Without the last line, if somebody was killed while writing it."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            key, value = json.loads(line)
        except (ValueError, TypeError):
            continue
        if isinstance(key, str):
            yield key, value
