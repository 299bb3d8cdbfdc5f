"""What turns the compiler's estimate into the time on a board: latency ≈ a + b · estimate.

`profiles.yaml` has the constants of chips; `fit_profile` finds those of a board of your own.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from edgeloop._util.files import parse_json, read_regular, write_atomic
from edgeloop._util.yaml import read_yaml
from edgeloop.errors import BadInput, LocalFileError
from edgeloop.platforms.base import ErrorInterval, LatencyProfile
from edgeloop.platforms.qnn.chips import DEFAULT_CHIP, Chip, chips, find_chip
from edgeloop.platforms.qnn.latency.terms import correction

DEFAULT_COVERAGE = 0.9
FEWEST_MODELS = 5
_LARGEST_FILE = 1_000_000
FEWEST_COVERED = 19  # an interval of fewer has no coverage: one more model may change it
_HUBER = 0.1  # residuals over 10 % count as outliers
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

Pair = tuple[float, float]  # the compiler's estimate, the time measured on the board; both in µs


_PUBLISHED = "{networks} public networks, the chip maker's published latency, 2026-11"


@cache
def built_in_profiles() -> dict[str, LatencyProfile]:
    """Those of `profiles.yaml`."""
    return {name: _built_in(name, forms) for name, forms in _table().items()}


def _table() -> dict[str, dict[str, dict[str, Any]]]:
    found = read_yaml(Path(__file__).with_name("profiles.yaml")).value
    return cast(dict[str, dict[str, dict[str, Any]]], found)


def _built_in(name: str, forms: Mapping[str, Mapping[str, Any]]) -> LatencyProfile:
    """The profile of 8-bit models, which has those of the other formats."""
    found = {form: _profile_from(name, form, fields) for form, fields in forms.items()}
    main = found.pop("w8a8")
    return replace(main, formats=found)


def _profile_from(name: str, form: str, fields: Mapping[str, Any]) -> LatencyProfile:
    networks = int(fields["networks"])
    return LatencyProfile(
        name,
        int(fields["soc"]),
        float(fields["a_us"]),
        float(fields["b"]),
        networks,
        float(fields["median_error_percent"]),
        _PUBLISHED.format(networks=networks),
        _intervals(fields.get("intervals", {})),
        _range_us(fields.get("range_us")),
        {str(feature): float(weight) for feature, weight in fields.get("terms", {}).items()},
        form,
    )


def _intervals(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, ErrorInterval]:
    return {
        str(kind): ErrorInterval(
            *(float(one["low"]), float(one["high"]), int(one["networks"])),
            None if one.get("coverage") is None else float(one["coverage"]),
            int(one.get("widened_by", 0)),
        )
        for kind, one in fields.items()
    }


def _range_us(limits: Sequence[Any] | None) -> tuple[float, float] | None:
    return None if limits is None else (float(limits[0]), float(limits[1]))


def find_target(device: str, folder: Path | None) -> tuple[str, Chip, LatencyProfile | None]:
    """What `htp:…` stands for: its name after the colon, the chip, and the profile that corrects
    the compiler's estimate for it, if any. A profile of the project that is not a chip's name is a
    board: the chip it was fitted on."""
    name = device.partition(":")[2] or DEFAULT_CHIP
    own = find_profile(name, folder)
    if own is not None and name not in chips():
        fitted = [chip for chip in chips().values() if chip.estimate_soc == own.soc]
        if not fitted:
            reason = f"profile {name!r} belongs to chip number {own.soc}, which has no estimate"
            raise BadInput(reason=reason)
        return name, fitted[0], own
    chip = find_chip(name)
    return name, chip, find_profile(chip.name, folder)


def calibrated(
    raw_us: float, profile: LatencyProfile, features: Mapping[str, float] | None = None
) -> float:
    """`features` are those of the estimate; without them the graph counts as an average one."""
    line = profile.a_us + profile.b * raw_us
    return line if features is None else line * correction(profile.terms, raw_us, features)


def constants_text(profile: LatencyProfile, form: str) -> str:
    """What `calibrated` depends on for models of a format: two profiles of the same name that were
    fitted at different times differ in it."""
    used = profile.for_format(form) or profile
    line = f"{used.a_us:.6g} + {used.b:.6g} x"
    if not used.terms:
        return line
    terms = json.dumps(sorted(used.terms.items()))
    return f"{line}, terms {hashlib.sha256(terms.encode()).hexdigest()[:8]}"


def fit_profile(pairs: Sequence[Pair], name: str, soc: int, source: str = "") -> LatencyProfile:
    """A profile from models measured on a board; outliers bend it little.

    Relative errors count, so the fit is of logarithms: log y = log b + log(x + a/b). For a given
    a/b the best b is a robust mean, which leaves a search along one line.
    """
    _check_name(name)
    _check_pairs(pairs)
    a_us, b = _fit(pairs)
    ratios = []
    for index, (raw, measured) in enumerate(pairs):
        left_a, left_b = _fit([*pairs[:index], *pairs[index + 1 :]])
        ratios.append(measured / (left_a + left_b * raw))
    error = round(100 * statistics.median(abs(1 / ratio - 1) for ratio in ratios), 2)
    said = source or f"{len(pairs)} models measured on the board"
    times = [measured for _, measured in pairs]
    return LatencyProfile(
        *(name, soc, a_us, b, len(pairs), error, said),
        intervals={"any": held_out_interval(ratios)},
        range_us=(min(times), max(times)),
    )


def held_out_interval(ratios: Sequence[float], coverage: float = DEFAULT_COVERAGE) -> ErrorInterval:
    """The interval of time over prediction from models that were left out of the fit (split
    conformal: of n + 1 models, the new one is as likely as any other to be the largest). Fewer than
    `FEWEST_COVERED` give their whole range, without a coverage."""
    logarithms = sorted(math.log(ratio) for ratio in ratios)
    count = len(logarithms)
    rank = (count + 1) * (1 - coverage) / 2  # of each end; between two models, between their errors
    ends = (_ranked(logarithms, rank), -_ranked([-value for value in reversed(logarithms)], rank))
    low, high = (math.exp(end) for end in ends)
    is_enough = count >= FEWEST_COVERED and rank >= 1 - 1e-9
    return ErrorInterval(low, high, count, coverage if is_enough else None)


def _ranked(ordered: Sequence[float], rank: float) -> float:
    """The value of a rank, counted from 1; the first for lower ones."""
    below = max(math.floor(rank), 1)
    if below >= len(ordered):
        return ordered[-1]
    part = max(rank - below, 0.0)
    return (1 - part) * ordered[below - 1] + part * ordered[below]


def save_profile(folder: Path, profile: LatencyProfile) -> Path:
    path = folder / f"{_check_name(profile.name)}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(asdict(profile), indent=2) + "\n")
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
    return path


def find_profile(name: str, folder: Path | None) -> LatencyProfile | None:
    """A profile of the workspace wins over the built-in one of the same name."""
    if folder is not None and _NAME.fullmatch(name) and (folder / f"{name}.json").is_file():
        return _load(folder / f"{name}.json")
    return built_in_profiles().get(name)


def list_profiles(folder: Path | None) -> dict[str, LatencyProfile]:
    own = sorted(folder.glob("*.json")) if folder is not None and folder.is_dir() else []
    return built_in_profiles() | {path.stem: _load(path) for path in own}


def _load(path: Path) -> LatencyProfile:
    try:
        fields = parse_json(read_regular(path, _LARGEST_FILE), 20 * _LARGEST_FILE)
        profile = LatencyProfile(
            name=path.stem,
            soc=int(fields["soc"]),
            a_us=float(fields["a_us"]),
            b=float(fields["b"]),
            models=int(fields["models"]),
            error_percent=float(fields["error_percent"]),
            source=str(fields["source"]),
            intervals=_intervals(fields.get("intervals", {})),
            range_us=_range_us(fields.get("range_us")),
        )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
        raise BadInput(reason=f"{path} is not a device profile: calibrate again") from None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
    if not _makes_sense(profile):
        raise BadInput(reason=f"{path} has constants that make no sense: calibrate again")
    return profile


def _makes_sense(profile: LatencyProfile) -> bool:
    fastest, slowest = profile.range_us or (0.0, 1.0)
    return (
        0 <= profile.a_us < math.inf
        and 0 < profile.b < math.inf
        and 0 <= profile.error_percent < math.inf
        and 0 <= fastest <= slowest < math.inf
        and all(
            0 < one.low <= one.high < math.inf
            and one.networks >= 1
            and (one.coverage is None or 0 < one.coverage < 1)
            for one in profile.intervals.values()
        )
    )


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        reason = f"a profile cannot be named {name!r}: use lower-case letters, digits and dashes"
        raise BadInput(reason=reason)
    return name


def _check_pairs(pairs: Sequence[Pair]) -> None:
    if not all(math.isfinite(value) and value > 0 for pair in pairs for value in pair):
        raise BadInput(reason="every estimate and every measured time must be above zero")
    different = len({raw for raw, _ in pairs})
    if different < FEWEST_MODELS:
        reason = (
            f"a profile needs {FEWEST_MODELS} or more models of different speed measured on the "
            f"board; there are {different}. Fewer give constants that change with every model"
        )
        raise BadInput(reason=reason)


def _fit(pairs: Sequence[Pair]) -> Pair:
    """a ≥ 0 and b > 0 with the least Huber loss of the logarithms' differences."""
    largest = max(raw for raw, _ in pairs)
    ratios = [0.0, *(largest * 10 ** (step / 20) for step in range(-80, 41))]
    best = min(ratios, key=lambda ratio: _loss(ratio, pairs))
    width = max(best * 0.13, ratios[1])
    for _ in range(40):
        nearby = [max(0.0, best - width), best, best + width]
        best = min(nearby, key=lambda ratio: _loss(ratio, pairs))
        width *= 0.7
    b = math.exp(_centre(_logarithms(best, pairs)))
    return best * b, b


def _logarithms(ratio: float, pairs: Sequence[Pair]) -> list[float]:
    return [math.log(measured) - math.log(raw + ratio) for raw, measured in pairs]


def _loss(ratio: float, pairs: Sequence[Pair]) -> float:
    values = _logarithms(ratio, pairs)
    centre = _centre(values)
    sizes = [abs(value - centre) for value in values]
    return sum(s * s / 2 if s <= _HUBER else _HUBER * (s - _HUBER / 2) for s in sizes)


def _centre(values: Sequence[float]) -> float:
    """Huber's mean: starts at the median, outliers pull with bounded force."""
    centre = statistics.median(values)
    for _ in range(20):
        weights = [1.0 if abs(v - centre) <= _HUBER else _HUBER / abs(v - centre) for v in values]
        centre = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    return centre
