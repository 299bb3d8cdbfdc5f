"""The two data files as points: a network on a chip, the compiler's estimate and the truth.

`published.csv` has the chip maker's figures, `estimates.csv` what the compiler says of the rebuilt
networks and the features of their graphs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from edgeloop.platforms.qnn.chips import chips
from edgeloop.platforms.qnn.latency import FEATURES, TRAFFIC, kind_of, terms_of

HERE = Path(__file__).parent
PUBLISHED, ESTIMATES, DEVICES = (
    HERE / name for name in ("published.csv", "estimates.csv", "devices.yaml")
)


@dataclass(frozen=True)
class Point:
    """`doubt` says why the published figure may be of another graph than the rebuilt one; such a
    point is predicted and reported, but not fitted to. So is one with steps without a cost
    (`missing_ops`), whose estimate the product withholds."""

    network: str
    family: str
    form: str
    chip: str
    soc: int
    raw_us: float
    time_us: float
    kind: str
    terms: Mapping[str, float]
    missing_ops: int = 0
    doubt: str = ""


def read_points(
    published: Path = PUBLISHED, estimates: Path = ESTIMATES, devices: Path = DEVICES
) -> list[Point]:
    """Of the chips that can be estimated; in the order of the file."""
    known = yaml.safe_load(devices.read_text(encoding="utf-8"))
    estimated = {_key(row, row["soc"]): row for row in _rows(estimates)}
    points = []
    for row in _rows(published):
        chip = chips().get(known.get(row["device"], row["device"]))
        if chip is None or chip.estimate_soc is None:
            continue
        found = estimated.get(_key(row, chip.estimate_soc))
        if found is not None and found["raw_us"]:
            points.append(_point(row, found, chip.name, chip.estimate_soc))
    return points


def _point(row: Mapping[str, str], found: Mapping[str, str], chip: str, soc: int) -> Point:
    features = {name: float(found.get(name) or 0) for name in (*FEATURES, *TRAFFIC)}
    raw_us = float(found["raw_us"])
    return Point(
        network=row["network"],
        family=row["family"],
        form=row["format"],
        chip=chip,
        soc=soc,
        raw_us=raw_us,
        time_us=1000 * float(row["latency_ms"]),
        kind=kind_of(features),
        terms=terms_of(raw_us, features),
        missing_ops=int(float(found.get("missing_ops") or 0)),
        doubt=found.get("doubt") or row.get("doubt") or "",
    )


def _key(row: Mapping[str, str], soc: object) -> tuple[str, str, str]:
    return row["network"], row["format"], str(soc)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)
