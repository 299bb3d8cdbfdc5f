"""Where a report's figures come from: versions, devices, conditions, when."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version

from edgeloop._version import __version__
from edgeloop.report.measures import Row, is_estimate

_PACKAGES = ("numpy", "onnx", "onnxruntime", "onnxruntime-qnn", "altair", "vl-convert-python")


@dataclass(frozen=True)
class Source:
    """Where rows were read, and when. `place` names the store and holds no secret."""

    place: str
    experiment: str
    when: datetime


def provenance(
    rows: Sequence[Row], source: Source, conditions: Iterable[Mapping[str, str]] = ()
) -> list[tuple[str, str]]:
    """Lines of a table: what, and what is known of it; what is not known has no line."""
    dates = sorted(str(row["model_date"]) for row in rows if row.get("model_date"))
    known = {
        "made": f"{source.when:%Y-%m-%d %H:%M} UTC",
        "store": source.place,
        "experiment": source.experiment,
        "uploads": f"{dates[0]} to {dates[-1]}" if dates else "",
        "devices": _counted(str(row["device"]) for row in rows if row.get("device")),
        "latencies": _counted(
            "estimate" if is_estimate(row) else "measured" for row in rows if row.get("mean")
        ),
        "estimates calibrated by": _counted(_profile(row) for row in rows if is_estimate(row)),
        "precisions": _counted(str(row["precision"]) for row in rows if row.get("precision")),
        "test images prepared with Pillow": _counted(
            "yes" if str(row["use_pillow"]) in ("True", "1") else "no"
            for row in rows
            if "use_pillow" in row
        ),
        **_conditions(conditions),
        "Edgeloop": __version__,
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        **{name: _version(name) for name in _PACKAGES},
    }
    return [(name, text) for name, text in known.items() if text]


def _conditions(found: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Each condition once, with all values that occurred."""
    values: dict[str, Counter[str]] = {}
    for conditions in found:
        for name, value in conditions.items():
            values.setdefault(f"condition: {name}", Counter())[str(value)] += 1
    return {name: ", ".join(sorted(counts)) for name, counts in values.items()}


def _profile(row: Row) -> str:
    name = str(row.get("latency_profile") or "no profile")
    fitted = str(row.get("latency_calibrated")) in ("True", "1")
    return f"{name} (fitted on a device)" if fitted else f"{name} (not fitted on a device)"


def _counted(texts: Iterable[str]) -> str:
    counts = Counter(texts)
    return ", ".join(f"{text} ({count})" for text, count in sorted(counts.items()))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
