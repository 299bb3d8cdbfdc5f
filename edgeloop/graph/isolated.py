"""Graphs read by a process of its own: a model that crashes the ONNX library costs one call."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from edgeloop._util.isolation import DEFAULT_LIMIT_S, LendingPool, WorkerProcess, register_calls
from edgeloop._util.system import available_cpus
from edgeloop.graph.info import GraphInfo, GraphSummary, Shape, info_from, summary_from
from edgeloop.graph.rewrites.registry import OutputComparison, RewriteStep

_MOST_IN_POOL = 2

register_calls("graph", "edgeloop.graph.worker", what="Reading models")


class GraphProcess:
    """`limit_s` is the time that one call may take."""

    def __init__(self, limit_s: float = DEFAULT_LIMIT_S) -> None:
        self._limit_s = limit_s
        self._process = WorkerProcess()

    def warm(self) -> None:
        self._process.warm("graph")

    def inspect(self, model: Path, shapes: Mapping[str, Shape] | None = None) -> GraphInfo:
        """`shapes` gives sizes that the file leaves open. Raises UnusableModel (a BadModel) with
        the reason in plain words."""
        answer = self._call("inspect", model=model, shapes=_plain(shapes))
        return info_from(answer["info"])

    def summarize(
        self, model: Path, shapes: Mapping[str, Shape] | None = None, rewrites: bool = False
    ) -> GraphSummary:
        """What the file says of itself; where it cannot be used, with the reason."""
        fields = {"shapes": _plain(shapes), "rewrites": rewrites}
        return summary_from(self._call("summarize", model=model, **fields))

    def prepare(self, model: Path, shapes: Mapping[str, Shape] | None, folder: Path) -> Path:
        """The same model with fixed sizes and in float32: a copy in `folder`, or the file itself if
        it is so already."""
        answer = self._call("prepare", model=model, shapes=_plain(shapes), folder=folder)
        prepared = Path(answer["model"])
        return model if prepared == model.resolve() else prepared

    def write_variants(self, model: Path, folder: Path) -> tuple[GraphInfo, int, list[str]]:
        """Write the simplified model, variants that end in class maps, and the layer table to
        `folder`; also returns how many samples those take at a time, and reasons to doubt a latency
        estimate."""
        answer = self._call("write_variants", model=model, folder=folder)
        return info_from(answer["info"]), int(answer["batch"]), list(answer["caveats"])

    def write_outline(self, model: Path, target: Path) -> None:
        """Write the network as a drawing needs it."""
        self._call("outline", model=model, target=target)

    def write_base(self, model: Path, target: Path) -> GraphInfo:
        """Write the simplified model, which exact rewrites start from."""
        return info_from(self._call("advice_base", model=model, target=target)["info"])

    def rewrite(
        self, base: Path, steps: Sequence[RewriteStep], target: Path
    ) -> list[tuple[str, ...]]:
        """Write the base with these rewrites; the layers of each. Nothing is written where one of
        them does not apply, and has no layers."""
        fields = [(step.name, step.layers) for step in steps]
        answer = self._call("advice_rewrite", base=base, steps=fields, target=target)
        return [tuple(layers) for layers in answer["layers"]]

    def compare(
        self, before: Path, after: Path, samples: Mapping[str, Any] | None = None
    ) -> OutputComparison:
        """Run both models on the same inputs; `samples` are arrays in files, by input."""
        answer = self._call("advice_compare", before=before, after=after, samples=samples)
        return OutputComparison(**answer)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.close()

    def _call(self, work: str, **fields: Any) -> dict[str, Any]:
        """Paths are made absolute: the worker process has another current folder."""
        plain: dict[str, Any] = {
            name: str(value.resolve()) if isinstance(value, Path) else value
            for name, value in fields.items()
        }
        return self._process.call(f"graph.{work}", limit_s=self._limit_s, **plain)[0]


class GraphPool:
    """Processes for several threads at once; the first one is started by the first call, another
    only while that is busy."""

    def __init__(self, count: int) -> None:
        self._processes = LendingPool(GraphProcess() for _ in range(count))

    def summarize(self, model: Path, shapes: Mapping[str, Shape] | None = None) -> GraphSummary:
        with self._processes.borrow() as process:
            return process.summarize(model, shapes)

    def prepare(self, model: Path, shapes: Mapping[str, Shape] | None, folder: Path) -> Path:
        with self._processes.borrow() as process:
            return process.prepare(model, shapes, folder)

    def write_outline(self, model: Path, target: Path) -> None:
        with self._processes.borrow() as process:
            process.write_outline(model, target)

    def close(self) -> None:
        for process in self._processes.items:
            process.close()


@cache
def graph_pool() -> GraphPool:
    """One for this whole program, kept until it ends: starting it costs more than most models."""
    pool = GraphPool(max(1, min(available_cpus(), _MOST_IN_POOL)))
    atexit.register(pool.close)
    return pool


os.register_at_fork(after_in_child=graph_pool.cache_clear)


def _plain(shapes: Mapping[str, Shape] | None) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in (shapes or {}).items()}
