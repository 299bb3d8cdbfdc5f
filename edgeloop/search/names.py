"""The names of values: `chip_latency_ms`, or `chip_latency_ms@htp:x-elite` where a search is for
several chips, each with a value of its own; and the status table's columns for them."""

from __future__ import annotations

from collections.abc import Mapping

from edgeloop.store import Value

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


def columns_of(values: Mapping[str, float], iteration: int) -> dict[str, Value]:
    """Results under the column names of the status table."""
    columns: dict[str, Value] = {"iteration": iteration}
    for name in ("val_iou", "training_time"):
        if name in values:
            columns[name] = float(values[name])
    for name in ("params", "macs", "epochs"):
        if name in values:
            columns[name] = int(values[name])
    if "host_latency_ms" in values:
        columns["onnx_latency"] = values["host_latency_ms"] / 1000.0
    latency = next((name for name in values if value_of(name) == "chip_latency_ms"), None)
    if latency is not None:  # until a runner measures it; of several chips, the first one's
        columns |= {"mean": values[latency] / 1000.0, "latency_kind": "estimate"}
        for end in ("low_ms", "high_ms", "coverage"):
            name = on_device(f"chip_latency_{end}", device_of(latency))
            if name in values:
                columns[f"latency_{end}"] = values[name]
    return columns
