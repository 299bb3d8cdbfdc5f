"""Times and sizes as people write them: `90s`, `1h30m`, `4GB`, `512MiB`."""

from __future__ import annotations

import re

TIME_FORMS = "a time like 90s, 30m, 2h or 1d"
SIZE_FORMS = "a size like 4GB or 512MiB"

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)},
}
_SIZES = {unit.lower(): factor for unit, factor in _BYTES.items()}
_NUMBER = r"(\d{1,12}(?:\.\d{1,9})?)"
_TIME = re.compile(rf"(?:{_NUMBER}([smhd]))", re.ASCII)
_TIMES = re.compile(r"(?:\d{1,12}(?:\.\d{1,9})?[smhd])+", re.ASCII)
_SIZE = re.compile(rf"{_NUMBER}\s*([A-Za-z]+)", re.ASCII)


def seconds_of(text: str) -> float | None:
    """None where it is no time. A number without a unit is none: nobody knows what it counts."""
    if not _TIMES.fullmatch(text):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _TIME.findall(text))


def bytes_of(text: str) -> int | None:
    """None where it is no size."""
    match = _SIZE.fullmatch(text)
    factor = _SIZES.get(match[2].lower()) if match else None
    return round(float(match[1]) * factor) if match and factor else None


def size_text(size: float) -> str:
    """`512 B`, `12.0 kB`, `1.5 MB`, for people: decimal units, as disks and networks count."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:.0f} B"


def duration_text(seconds: float) -> str:
    """`119 s`, `5 min`, `3 h`, `2 d`, for people."""
    seconds = max(seconds, 0.0)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def latency_text(ms: float) -> str:
    """`441 µs`, `1.32 ms`, `2.1 s`."""
    if ms < 1:
        return f"{1000 * ms:.3g} µs"
    return f"{ms:.3g} ms" if ms < 1000 else f"{ms / 1000:.3g} s"


def range_text(low_ms: float, high_ms: float) -> str:
    """In one unit: `405 – 480 µs`."""
    factor, unit = (1000, "µs") if high_ms < 1 else (1, "ms") if high_ms < 1000 else (0.001, "s")
    return f"{factor * low_ms:.3g} – {factor * high_ms:.3g} {unit}"


def interval_text(low_ms: float | None, high_ms: float | None, coverage: float | None) -> str:
    """`90 % interval 405 – 480 µs`; `range …` where no data supports a probability; empty without
    one."""
    if low_ms is None or high_ms is None:
        return ""
    name = f"{100 * coverage:.0f} % interval" if coverage else "range"
    return f"{name} {range_text(low_ms, high_ms)}"


def plural(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
