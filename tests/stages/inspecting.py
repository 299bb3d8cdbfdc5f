"""A toolchain that only inspects: float models on the host need no other."""

from __future__ import annotations

from pathlib import Path

from edgeloop.graph.isolated import graph_pool
from edgeloop.platforms import GraphInfo


class Inspecting:
    name = "qnn"

    def inspect(self, model: Path) -> GraphInfo:
        info = graph_pool().summarize(model).info
        assert info is not None
        return info
