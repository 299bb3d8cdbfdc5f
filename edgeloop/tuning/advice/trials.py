"""Trials: a model with some rewrites, re-compiled for its estimate and compared by its outputs.

Several run at once, each in processes of its own. An estimate is kept by the content of the model
and by what it depends on, so that the same graph is never compiled twice.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from queue import LifoQueue
from typing import Any

from edgeloop._util.files import parse_json, read_regular, sha256_of, write_atomic
from edgeloop.errors import EdgeloopError
from edgeloop.graph import GraphInfo, GraphProcess, OutputComparison, RewriteStep
from edgeloop.platforms import EstimatesIntervals, Estimator

Steps = tuple[RewriteStep, ...]
_LONGEST_RECORD = 10_000


@dataclass(frozen=True)
class GraphEstimate:
    """What the compiler said of one graph. `raw_us` is its own number, before any calibration;
    `missing_ops` are steps that it has no cost for. `low_ms` to `high_ms` is where the time on the
    chip is expected, with the probability `coverage`."""

    latency_ms: float
    raw_us: float | None = None
    missing_ops: int = 0
    low_ms: float | None = None
    high_ms: float | None = None
    coverage: float | None = None


@dataclass(frozen=True)
class RewriteTrial:
    """A model with some rewrites. `layers` are those of the last step."""

    steps: Steps
    layers: tuple[str, ...]
    path: Path
    estimate: GraphEstimate

    def gain_over(self, other: GraphEstimate) -> float:
        """The part of the time that is saved. Nothing is, where the compiler's own number did not
        fall, or where it has no cost for more steps than before."""
        mine = self.estimate
        if mine.missing_ops > other.missing_ops:
            return -math.inf
        gain = 1 - mine.latency_ms / other.latency_ms
        if mine.raw_us is not None and other.raw_us is not None and other.raw_us:
            gain = min(gain, 1 - mine.raw_us / other.raw_us)
        return gain


@dataclass
class _Lane:
    """What one trial needs for itself."""

    estimator: Estimator
    graphs: GraphProcess
    warm: threading.Event = field(default_factory=threading.Event)


class TrialRoom:
    """Runs trials of one model; ends with `close`. `compiles` counts estimates that were not known
    from before. No new one is begun after `limit_s` or `most_compiles`."""

    def __init__(
        self,
        open_estimator: Callable[[], Estimator],
        folder: Path,
        *,
        workers: int,
        limit_s: float,
        most_compiles: int,
        call_limit_s: float,
        cache: Path | None = None,
    ) -> None:
        self._folder, self._cache = folder, cache
        self._ends = time.monotonic() + limit_s
        self._most = most_compiles
        self._lanes = [_Lane(open_estimator(), GraphProcess(call_limit_s)) for _ in range(workers)]
        self._free: LifoQueue[_Lane] = LifoQueue()
        for lane in self._lanes:
            self._free.put(lane)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="advice")
        self._lock = threading.Lock()
        self._known: dict[str, GraphEstimate] = {}
        self._count = 0
        self.compiles = 0
        self.is_cut_short = False
        self.failures: dict[str, str] = {}
        self.conditions = self._lanes[0].estimator.conditions
        self.base = folder / "base.onnx"

    def begin(self, model: Path) -> tuple[GraphInfo, GraphEstimate]:
        """Read the model, and estimate it as it is. Raises where that is not possible."""
        lane = self._free.get()
        try:
            info = lane.graphs.write_base(model, self.base)
            estimate = self._estimate(lane, self.base)
        finally:
            self._free.put(lane)
        assert estimate is not None
        return info, estimate

    def run(
        self, wanted: Sequence[Steps], done: Callable[[], None] = lambda: None
    ) -> list[RewriteTrial]:
        """Those that apply and compile, in order; `done` is called after each one. Why others did
        not is kept in `failures`, by the name of the last step."""

        def one(steps: Steps) -> RewriteTrial | None:
            lane = self._free.get()
            try:
                return self._trial(lane, steps)
            except EdgeloopError as error:  # the compiler does not take it so, or not in time
                self.failures[steps[-1].name] = str(error)
                return None
            finally:
                self._free.put(lane)
                done()

        return [trial for trial in self._pool.map(one, wanted) if trial is not None]

    def compare(
        self, after: Path, samples: Mapping[str, Any] | None, before: Path | None = None
    ) -> OutputComparison:
        lane = self._free.get()
        try:
            return lane.graphs.compare(before or self.base, after, samples)
        finally:
            self._free.put(lane)

    def estimate_file(self, model: Path) -> GraphEstimate:
        """Of a file that somebody else has written."""
        lane = self._free.get()
        try:
            return _asked(lane.estimator, model)
        finally:
            self._free.put(lane)

    def close(self) -> None:
        """Ends what is under way, too."""
        for lane in self._lanes:
            lane.estimator.kill()
            lane.graphs.kill()
        self._pool.shutdown(cancel_futures=True)
        for lane in self._lanes:
            lane.estimator.close()
            lane.graphs.close()

    def _trial(self, lane: _Lane, steps: Steps) -> RewriteTrial | None:
        with self._lock:
            self._count += 1
            target = self._folder / f"trial-{self._count}.onnx"
        layers = lane.graphs.rewrite(self.base, steps, target)
        if not all(layers):
            return None
        estimate = self._estimate(lane, target)
        if estimate is None:
            target.unlink(missing_ok=True)
            return None
        return RewriteTrial(steps, layers[-1], target, estimate)

    def _estimate(self, lane: _Lane, model: Path) -> GraphEstimate | None:
        key = hashlib.sha256(f"{sha256_of(model)} {self.conditions}".encode()).hexdigest()
        with self._lock:
            found = self._known.get(key) or self._read(key)
            if found is None and self.compiles and self._is_over():
                self.is_cut_short = True
                return None
            self.compiles += found is None
        if found is None:
            found = _asked(lane.estimator, model)
            self._write(key, found)
        self._known[key] = found
        return found

    def _is_over(self) -> bool:
        return self.compiles >= self._most or time.monotonic() > self._ends

    def _read(self, key: str) -> GraphEstimate | None:
        if self._cache is None:
            return None
        try:
            text = read_regular(self._cache / f"{key}.json", _LONGEST_RECORD)
            return estimate_of(parse_json(text, 20 * _LONGEST_RECORD))
        except (OSError, ValueError):
            return None

    def _write(self, key: str, found: GraphEstimate) -> None:
        if self._cache is None:
            return
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            write_atomic(self._cache / f"{key}.json", json.dumps(vars(found)))
        except (OSError, EdgeloopError):
            return  # the next time costs a compile


def estimate_of(record: object) -> GraphEstimate | None:
    """None for what `_write` does not write: such a record is made again."""
    names = [one.name for one in fields(GraphEstimate)]
    if not isinstance(record, dict) or set(record) != set(names):
        return None
    latency, missing = record.pop("latency_ms"), record.pop("missing_ops")
    may_lack = [value for value in record.values() if value is not None]
    if not all(_is_above_zero(value) for value in (latency, *may_lack)):
        return None
    if not isinstance(missing, int) or missing < 0:
        return None
    return GraphEstimate(latency, missing_ops=missing, **record)


def _is_above_zero(value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return 0 < value < math.inf


def _asked(estimator: Estimator, model: Path) -> GraphEstimate:
    if not isinstance(estimator, EstimatesIntervals):
        return GraphEstimate(estimator.latency_ms(model))
    found = estimator.estimate(model)
    return GraphEstimate(
        *(1000 * found.seconds, found.raw_us, found.missing_ops),
        *(found.low_ms, found.high_ms, found.coverage),
    )
