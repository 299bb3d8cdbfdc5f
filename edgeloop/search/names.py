"""The names of values: `chip_latency_ms`, or `chip_latency_ms@htp:x-elite` where a search is for
several chips, each with a value of its own."""

from __future__ import annotations

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
