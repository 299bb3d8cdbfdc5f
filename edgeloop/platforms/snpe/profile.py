"""Reads the profile of a run on a board: `snpe-diagview` turns its log into a table, here.

The table's columns changed over the versions, so cells are found by what they hold: a name, then
the first number behind it, then its unit. On the DSP layers are counted in cycles, which have no
fixed length; their times are then their shares of the whole, and the profile says so.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from edgeloop.errors import ModelFailed
from edgeloop.platforms.snpe.sdk import Sdk, run_tool

_TOTALS = ("avg_total_inference_time", "total_inference_time")
_LAYER = re.compile(r"(?:avg_)?layer[_ ]?(?:time[_ ]?)?:?\s*(.+)")
_NUMBERED = re.compile(r"\d+")
_NUMBERED_LAYER = re.compile(r"layer (\d+)")
_UNITS = {"us": 1.0, "usec": 1.0, "µs": 1.0, "microseconds": 1.0, "ms": 1e3, "ns": 1e-3, "s": 1e6}
_RUNTIMES = ("cpu", "gpu", "dsp", "aip", "htp", "none")


class ProfiledLayer(NamedTuple):
    name: str
    operator: str
    time_us: float


@dataclass(frozen=True)
class RunProfile:
    """`total_us` is an inference's mean over the run. `from_cycles`: the layers' times are shares
    of the total by their cycles, not measured times."""

    total_us: float
    layers: tuple[ProfiledLayer, ...] = ()
    from_cycles: bool = False


def with_names(profile: RunProfile, model: Path) -> RunProfile:
    """Layers that the tool knows by number only, named by the table that conversion laid beside
    the DLC; left as they are where there is none."""
    stem = model.name.removesuffix(".dlc").removesuffix(".quant")
    try:
        with model.with_name(f"{stem}.layers.csv").open(newline="", encoding="utf-8") as file:
            rows = [(row["name"], row["operator"]) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError):
        return profile
    numbers = [_NUMBERED_LAYER.fullmatch(layer.name) for layer in profile.layers]
    layers = tuple(
        ProfiledLayer(*rows[int(number[1])], layer.time_us)
        if number and int(number[1]) < len(rows)
        else layer
        for layer, number in zip(profile.layers, numbers, strict=True)
    )
    return replace(profile, layers=layers)


class _DiagEntry(NamedTuple):
    name: str
    value: float
    unit: str


def profile_of(log: Path, sdk: Sdk, limit_s: float = 60.0) -> RunProfile:
    """The profile in `SNPEDiag_0.log`; raises ModelFailed where no time can be read from it."""
    if not log.is_file() or not log.stat().st_size:
        raise ModelFailed(reason="the board's tool left no profile, so there is no latency")
    with TemporaryDirectory(prefix="edgeloop-profile-") as folder:
        table = Path(folder) / "profile.csv"
        arguments = ["--input_log", str(log.resolve()), "--output", str(table)]
        text = run_tool(sdk, "snpe-diagview", arguments, limit_s)
        if table.is_file():
            text = table.read_text(encoding="utf-8", errors="replace") or text
    return read_profile(text)


def read_profile(text: str) -> RunProfile:
    """The text of diagview's CSV or, failing that, of what it prints."""
    entries = list(_cells(text)) or list(_lines(text))
    totals = {entry.name: entry for entry in reversed(entries)}  # the first of a name wins
    total = next((totals[name] for name in _TOTALS if name in totals), None)
    if total is None or not math.isfinite(total.value) or total.value <= 0:
        raise ModelFailed(reason="the board's profile has no total inference time")
    total_us = total.value * _UNITS.get(total.unit, 1.0)
    found = [(match[1], e) for e in entries if (match := _LAYER.fullmatch(e.name)) is not None]
    cycles = sum(entry.value for _, entry in found if entry.unit == "cycles")
    layers = tuple(
        ProfiledLayer(
            f"layer {name}" if _NUMBERED.fullmatch(name) else name,
            "",
            entry.value / cycles * total_us
            if entry.unit == "cycles" and cycles
            else entry.value * _UNITS.get(entry.unit, 1.0),
        )
        for name, entry in found
    )
    return RunProfile(total_us, layers, from_cycles=cycles > 0)


def _cells(text: str) -> Iterable[_DiagEntry]:
    """Rows of a CSV. Where name and value stand is said by a header; without one the second and
    the fourth cell are tried, as older versions have them, then a name and the number behind it."""
    places: tuple[int, int] | None = None
    for row in csv.reader(text.replace("\0", "").splitlines()):
        cells = [cell.strip() for cell in row]
        folded = [cell.lower().replace(" ", "_") for cell in cells]
        if "message_name" in folded and "message_value" in folded:
            places = folded.index("message_name"), folded.index("message_value")
            continue
        for name, value in (places,) if places else ((1, 3), *_pairs(cells)):
            if name < len(cells) > value and _is_name(cells[name]):
                number = _number(cells[value])
                if number is not None:
                    unit = next((cell for cell in folded if cell in (*_UNITS, "cycles")), "us")
                    yield _DiagEntry(_plain(cells[name]), number, unit)
                    break


def _pairs(cells: list[str]) -> Iterable[tuple[int, int]]:
    name = next((place for place, cell in enumerate(cells) if _is_name(cell)), len(cells))
    return ((name, value) for value in range(name + 1, len(cells)))


def _lines(text: str) -> Iterable[_DiagEntry]:
    """What diagview prints: `Total Inference Time: 3318 us`, `0: 162014 cycles : DSP`."""
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        value = _number(words[0]) if words else None
        if not colon or value is None:
            continue
        unit = words[1].lower() if len(words) > 1 else "us"
        name = _plain(name)
        yield _DiagEntry(f"layer_{name}" if _NUMBERED.fullmatch(name) else name, value, unit)


def _plain(name: str) -> str:
    folded = name.strip().lower().replace(" ", "_")
    return folded if folded in _TOTALS else _layer_name(name.strip(), folded)


def _layer_name(name: str, folded: str) -> str:
    """A layer keeps the spelling of its own name; only what stands before it is folded."""
    match = _LAYER.match(folded)
    return f"layer_{name[len(name) - len(match[1]) :]}" if match else folded


def _is_name(cell: str) -> bool:
    return bool(cell) and _number(cell) is None and cell.lower() not in (*_UNITS, *_RUNTIMES)


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
