"""Entry points of platforms: the built-in ones, by name only, before those of plug-ins."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint

PLATFORMS = "edgeloop.platforms"
_BUILT_IN = {
    "host": "edgeloop.platforms.host:HostPlatform",
    "qnn": "edgeloop.platforms.qnn:QnnPlatform",
    "snpe": "edgeloop.platforms.snpe:SnpePlatform",
}


def platform_points() -> tuple[EntryPoint, ...]:
    """Nothing is imported until a point is loaded. A plug-in cannot replace a built-in platform."""
    built_in = [EntryPoint(name, value, PLATFORMS) for name, value in _BUILT_IN.items()]
    installed = importlib.metadata.entry_points(group=PLATFORMS)
    plug_ins = [point for point in installed if point.name not in _BUILT_IN]
    return (*built_in, *sorted(plug_ins, key=lambda point: point.name))
