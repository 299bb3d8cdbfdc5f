"""From the compiler's estimate to a time on the chip, with the interval that data supports.

A profile was fitted to networks with a published latency; its interval is the spread of those that
were left out of the fit. Where there is no such data, the prediction says so instead of guessing:
a chip without a profile gets the range of those that have one, a graph of mixed precision that of
the chip's 8-bit and 16-bit models, and a graph with steps that the compiler has no cost for a lower
bound only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeloop.platforms.base import ErrorInterval, LatencyProfile
from edgeloop.platforms.qnn.chips import DEFAULT_CHIP, Chip
from edgeloop.platforms.qnn.latency.forms import MIXED
from edgeloop.platforms.qnn.latency.profiles import built_in_profiles, calibrated

if TYPE_CHECKING:
    from edgeloop.platforms.qnn.toolchain import Estimate

ANY_KIND = "any"
_FORMATS = {"w8a8": "8-bit", "w8a16": "16-bit activation", "float": "float"}


@dataclass(frozen=True)
class LatencyPrediction:
    """The time on the chip is expected between `low_us` and `high_us` with the probability
    `coverage`; None: no data supports one. `basis` says where the interval comes from, or why there
    is none. `is_lower_bound`: the estimate leaves out steps, so the chip takes longer."""

    time_us: float
    low_us: float | None
    high_us: float | None
    coverage: float | None
    basis: str
    caveats: tuple[str, ...] = ()
    is_calibrated: bool = False
    is_lower_bound: bool = False


def predict(
    estimate: Estimate,
    chip: Chip,
    profile: LatencyProfile | None,
    form: str = "",
    reference: Estimate | None = None,
) -> LatencyPrediction:
    """`form` is the number format, by default that of the estimated graph. `reference` is the
    estimate of the same graph for the default chip, which is calibrated: a chip that is not gets a
    time relative to it."""
    form = form or estimate.form
    fitted = profile.for_format(form) if profile else None
    nearest = fitted or profile
    time_us = (
        calibrated(estimate.raw_us, nearest, estimate.features) if nearest else estimate.raw_us
    )
    ends = _ends(estimate, profile) if profile and form == MIXED else []
    if ends:
        time_us = _between(estimate, ends)
    if left_out := _left_out(estimate):
        return LatencyPrediction(
            *(time_us, None, None, None),
            basis=f"no interval: {left_out}, so the chip takes longer",
            caveats=estimate.caveats,
            is_calibrated=fitted is not None,
            is_lower_bound=True,
        )
    if ends:
        return _mixed(estimate, chip, ends, time_us)
    if fitted is None:
        return _uncalibrated(estimate, chip, profile, form, time_us, reference)
    return _calibrated(estimate, fitted, time_us)


def _left_out(estimate: Estimate) -> str:
    """What the estimate does not contain, in words."""
    parts = []
    if estimate.missing_ops:
        steps = "step" if estimate.missing_ops == 1 else "steps"
        parts.append(f"the compiler has no cost for {estimate.missing_ops} {steps}")
    if estimate.cpu_layers:
        layers = "layer runs" if estimate.cpu_layers == 1 else "layers run"
        parts.append(f"{estimate.cpu_layers} {layers} on the CPU")
    return " and ".join(parts)


def _calibrated(estimate: Estimate, profile: LatencyProfile, time_us: float) -> LatencyPrediction:
    kind = estimate.kind if estimate.kind in profile.intervals else ANY_KIND
    interval = profile.intervals.get(kind)
    caveats = estimate.caveats
    if interval is None:
        basis = f"no interval: the profile {profile.name} has none; calibrate it again"
        return LatencyPrediction(time_us, None, None, None, basis, caveats, True)
    low_us, high_us = time_us * interval.low, time_us * interval.high
    basis = _basis(profile, kind, interval)
    coverage = interval.coverage
    if profile.range_us and not profile.range_us[0] <= time_us <= profile.range_us[1]:
        # Below the range, the fitted offset is a guess: the chip may have less of it.
        low_us = min(low_us, interval.low * profile.b * estimate.raw_us)
        fastest, slowest = (f"{limit / 1000:.3g}" for limit in profile.range_us)
        basis = (
            f"outside the {fastest} to {slowest} ms that profile {profile.name} was fitted to, so "
            "the range has no stated coverage"
        )
        coverage = None
    return LatencyPrediction(time_us, low_us, high_us, coverage, basis, caveats, True)


def _basis(profile: LatencyProfile, kind: str, interval: ErrorInterval) -> str:
    is_own = kind != ANY_KIND and not interval.widened_by
    networks = f"{interval.networks} {kind + ' ' if is_own else ''}networks left out of the fit"
    if interval.widened_by:
        networks += f", widened to hold {interval.widened_by} {kind} ones"
    if interval.coverage is None:
        networks += ", too few for a stated coverage"
    return f"errors of {networks}, profile {profile.name}"


def _ends(estimate: Estimate, profile: LatencyProfile) -> list[tuple[float, ErrorInterval]]:
    """The time by the profiles of 8-bit and of 16-bit activations, with their intervals."""
    forms = [profile.for_format(form) for form in ("w8a8", "w8a16")]
    return [
        (calibrated(estimate.raw_us, one, estimate.features), one.intervals[ANY_KIND])
        for one in forms
        if one is not None and ANY_KIND in one.intervals
    ]


def _between(estimate: Estimate, ends: list[tuple[float, ErrorInterval]]) -> float:
    """By the share of 16-bit activations, so that a plan of either width alone fits in."""
    first, last = ends[0][0], ends[-1][0]
    return first + estimate.wide_share * (last - first)


def _mixed(
    estimate: Estimate, chip: Chip, ends: list[tuple[float, ErrorInterval]], time_us: float
) -> LatencyPrediction:
    low_us = min(time * interval.low for time, interval in ends)
    high_us = max(time * interval.high for time, interval in ends)
    known = "its 8-bit and 16-bit activation models" if len(ends) > 1 else "other models"
    basis = f"no published figures of mixed-precision models for {chip.name}; the range is that of "
    return LatencyPrediction(time_us, low_us, high_us, None, basis + known, estimate.caveats)


def _uncalibrated(
    estimate: Estimate,
    chip: Chip,
    profile: LatencyProfile | None,
    form: str,
    time_us: float,
    reference: Estimate | None,
) -> LatencyPrediction:
    """What the chips with a profile would take, from the fastest to the slowest."""
    ends = [
        (interval.low * time, interval.high * time)
        for known in built_in_profiles().values()
        if (interval := known.intervals.get(ANY_KIND)) is not None
        for time in [calibrated(estimate.raw_us, known, estimate.features)]
    ]
    low_us = min([time_us, *(low for low, _ in ends)])
    high_us = max([time_us, *(high for _, high in ends)])
    what = _FORMATS.get(form, form)
    why = f"no published figures of {what} models for {chip.name}" if profile else "uncalibrated"
    relative = ""
    if reference is not None and reference.raw_us > 0 and profile is None:
        ratio = estimate.raw_us / reference.raw_us
        relative = f", about {ratio:.2g} × the time on {DEFAULT_CHIP}"
    basis = f"{why}{relative}; the range is that of the calibrated chips"
    return LatencyPrediction(time_us, low_us, high_us, None, basis, estimate.caveats)
