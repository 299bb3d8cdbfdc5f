"""The chip maker's published figures: `python -m bench latency published WHEEL` writes
published.csv from the `perf.yaml` files of its package qai-hub-models (BSD-3, on PyPI).

Only the runtime `qnn_dlc` is taken, since that is what an estimate is for, and only what ran on
the chip's neural processor alone. `layers` is the number of layers that the vendor's own compiler
found, by which a rebuilt graph can be checked. A network of several parts is one network a part.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from bench.latency.catalog import FORMATS, PUBLISHED, known_networks

COLUMNS = (
    *("network", "family", "kind", "format", "device", "latency_ms", "layers"),
    *("source", "date", "tool_version"),
)
_RUNTIME = "qnn_dlc"


def run(*options: str) -> str:
    if len(options) != 1:
        return "give the wheel: pip download --no-deps qai-hub-models==0.65.0"
    rows = list(read_wheel(Path(options[0])))
    with PUBLISHED.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    networks = {row["network"] for row in rows}
    return f"{len(rows)} figures of {len(networks)} networks"


def read_wheel(wheel: Path) -> Iterator[dict[str, Any]]:
    """Every figure, sorted by network, format and device."""
    package, version = wheel.name.split("-")[:2]
    known = known_networks()
    with zipfile.ZipFile(wheel) as archive:
        files = sorted(name for name in archive.namelist() if name.endswith("/perf.yaml"))
        for name in files:
            model = name.split("/")[-2]
            year, month, day = archive.getinfo(name).date_time[:3]
            shared = {"source": f"{package.replace('_', '-')} {version}"}
            shared["date"] = f"{year}-{month:02}-{day:02}"
            content = yaml.load(archive.read(name), yaml.CSafeLoader) or {}
            for row in _figures(model, content):
                about = known.get(row["network"])
                family, kind = (about.family, about.kind) if about else ("", "")
                yield {**row, "family": family, "kind": kind, **shared}


def _figures(model: str, content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    precisions = content.get("precisions") or {}
    for form in FORMATS:
        components = precisions.get(form, {}).get("components", {})
        for part, measured in sorted(components.items()):
            network = model if len(components) == 1 else f"{model}.{part}"
            for device, by_runtime in sorted(measured["performance_metrics"].items()):
                found = by_runtime.get(_RUNTIME) or {}
                time = found.get("inference_time_milliseconds")
                layers = found.get("layer_counts", {})
                if not time or layers.get("npu") != layers.get("total"):
                    continue
                yield {
                    "network": network,
                    "format": form,
                    "device": device,
                    "latency_ms": time,
                    "layers": layers.get("total", ""),
                    "tool_version": found.get("tool_versions", {}).get("qairt", ""),
                }
