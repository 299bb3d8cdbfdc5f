"""The figures of a model against those of a baseline: what changed, what is allowed, the verdict.

A deterministic figure (an estimate of the compiler, memory, size) is a regression when it grows by
more than is allowed. One with an interval (a score, a measured latency) must also be worse beyond
doubt: its 95 % interval leaves no change out. A change beyond what is allowed that is not beyond
doubt is `unclear`, and a figure of other conditions is `not compared`: both pass unless `strict`.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from edgeloop._util.units import plural, size_text
from edgeloop._version import __version__
from edgeloop.gate.baseline import Baseline, unpacked
from edgeloop.gate.figures import GateFigures, GateScore
from edgeloop.tasks import Interval, paired_interval, score_unit, student_t

Verdict = Literal["pass", "regression", "unclear", "not compared"]
_SMALLEST_MS = 1e-9
_MARKUP = re.compile(r"[\[\]!*_#@<>&\\~^{}|$]|://|www\.", re.IGNORECASE)


@dataclass(frozen=True)
class GateLimits:
    """What a model may be worse by. `drop` is in points: hundredths of F1, mAP and other shares,
    else the metric's own unit, such as dB. `strict`: what is unclear or not compared fails, too."""

    latency_percent: float = 2.0
    drop: float = 0.25
    memory_percent: float = 5.0
    size_percent: float = 5.0
    strict: bool = False


@dataclass(frozen=True)
class GateCheck:
    """One line of the table. `low` and `high` are the 95 % interval of `change`, where it has
    one."""

    name: str
    verdict: Verdict
    baseline: str = ""
    now: str = ""
    change: float | None = None
    unit: str = ""
    allowed: str = ""
    low: float | None = None
    high: float | None = None
    detail: str = ""

    @property
    def change_text(self) -> str:
        if self.change is None:
            return ""
        digits = 1 if self.unit == "%" else 2
        text = f"{self.change:+.{digits}f}"
        if self.low is not None and self.high is not None:
            text += f" ({self.low:+.{digits}f} … {self.high:+.{digits}f})"
        return f"{text} {self.unit}"


@dataclass(frozen=True)
class GateReport:
    model: str
    device: str
    checks: tuple[GateCheck, ...]
    notes: tuple[str, ...] = ()
    strict: bool = False

    @property
    def is_passed(self) -> bool:
        good = ("pass",) if self.strict else ("pass", "unclear", "not compared")
        return all(check.verdict in good for check in self.checks)

    @property
    def headline(self) -> str:
        bad = [check for check in self.checks if check.verdict == "regression"]
        if bad:
            return f"failed: {', '.join(check.name for check in bad)}"
        if not self.is_passed:
            kinds = {check.verdict for check in self.checks} - {"pass"}
            return f"failed, because something is {' or '.join(sorted(kinds))} (--strict)"
        return "passed"

    def to_fields(self) -> dict[str, Any]:
        return {"passed": self.is_passed, **asdict(self)}

    def markdown(self) -> str:
        """For a comment on a pull request."""
        lines = [
            f"### Edgeloop gate: {self.headline}",
            "",
            f"`{_plain(self.model)}` on {_text(self.device)}",
            "",
            "| | baseline | now | change | allowed | |",
            "|---|---:|---:|---:|---:|---|",
        ]
        for check in self.checks:
            verdict = f"**{check.verdict}**" if check.verdict == "regression" else check.verdict
            cells = (check.name, check.baseline, check.now, check.change_text, check.allowed)
            lines.append(f"| {' | '.join(map(_cell, cells))} | {verdict} |")
        about = [f"{check.name}: {check.detail}" for check in self.checks if check.detail]
        if about or self.notes:
            lines += ["", *(f"- {_text(text)}" for text in (*about, *self.notes))]
        return "\n".join(lines) + "\n"


def compare_figures(baseline: Baseline, figures: GateFigures, limits: GateLimits) -> GateReport:
    checks = (
        _latency(baseline, figures, limits),
        _score(baseline, figures, limits),
        *_sizes(baseline, figures, limits),
        _operators(baseline, figures),
    )
    notes = tuple(_notes(baseline, figures))
    return GateReport(figures.model, figures.device, checks, notes, limits.strict)


def refused_report(model: str, device: str, reason: str) -> GateReport:
    """Of a model that the device does not take any more."""
    check = GateCheck("operators", "regression", now="refused", detail=reason)
    return GateReport(model, device, (check,))


def _latency(baseline: Baseline, figures: GateFigures, limits: GateLimits) -> GateCheck:
    before, now = baseline.latency_ms, statistics.median(figures.runs_ms)
    texts = (_least(baseline) + _time(before), _least(figures) + _time(now))
    if reason := _incomparable(baseline, figures):
        return GateCheck("latency", "not compared", *texts, detail=reason)
    allowed = f"{limits.latency_percent:+g} %"
    detail = ""
    if baseline.latency_profile != figures.latency_profile and baseline.raw_us and figures.raw_us:
        before, now = baseline.raw_us / 1000, figures.raw_us / 1000
        detail = (
            "the profile has other constants than the baseline's, so the compiler's own estimates "
            f"are compared: {_time(before)} and {_time(now)}"
        )
    change = 100 * (max(now, _SMALLEST_MS) / max(before, _SMALLEST_MS) - 1)
    if figures.latency_kind == "estimate":
        verdict, why = _estimated(baseline, figures, change > limits.latency_percent)
        detail = "; ".join(filter(None, (why, detail)))
        return GateCheck("latency", verdict, *texts, change, "%", allowed, detail=detail)
    low, high = _ratio_interval(baseline.runs_ms, figures.runs_ms)
    verdict = _beyond_doubt(change > limits.latency_percent, is_worse=low > 0)
    runs = f"{len(baseline.runs_ms)} and {len(figures.runs_ms)} runs"
    return GateCheck("latency", verdict, *texts, change, "%", allowed, low, high, f"of {runs}")


def _least(found: Baseline | GateFigures) -> str:
    return "≥ " if found.missing_ops else ""


def _estimated(baseline: Baseline, figures: GateFigures, is_slower: bool) -> tuple[Verdict, str]:
    """A step that an estimate leaves out makes it lower: more of them are no gain, and with fewer
    than before a higher estimate is no loss."""
    before, now = baseline.missing_ops, figures.missing_ops
    verdict: Verdict = "regression" if is_slower else "pass"
    if not before and not now:
        return verdict, ""
    steps = (
        f"the estimate leaves out {plural(now, 'step')}, that of the baseline {before or 'none'}"
    )
    if now > before:
        return "regression", f"{steps}: the chip takes longer than it says"
    if now < before and is_slower:
        return "not compared", f"{steps}: write a new baseline"
    return verdict, steps


def _incomparable(baseline: Baseline, figures: GateFigures) -> str:
    """A profile with other constants is no obstacle where the compiler's own estimates are
    known."""
    has_raw = bool(baseline.raw_us and figures.raw_us)
    profiles = (baseline.latency_profile, figures.latency_profile)
    pairs = {
        "kind of latency": (baseline.latency_kind, figures.latency_kind),
        "precision": (baseline.precision, figures.precision),
        "compiler": (baseline.compiler, figures.compiler),
        "profile": ("", "") if has_raw else profiles,
        "CPU": (baseline.machine, figures.machine),
    }
    for name, (before, now) in pairs.items():
        if before != now:
            return f"another {name}: {before or 'none'} in the baseline, {now or 'none'} here"
    return ""


def _ratio_interval(before: tuple[float, ...], now: tuple[float, ...]) -> tuple[float, float]:
    """Of the change in percent, from the spread between runs: Welch's, of logarithms."""
    if len(before) < 2 or len(now) < 2:
        return -math.inf, math.inf
    logs = [[math.log(max(run, _SMALLEST_MS)) for run in runs] for runs in (before, now)]
    parts = [statistics.variance(values) / len(values) for values in logs]
    middle = statistics.mean(logs[1]) - statistics.mean(logs[0])
    total = sum(parts)
    if total == 0:
        return 100 * math.expm1(middle), 100 * math.expm1(middle)
    freedom = total**2 / sum(p**2 / (len(v) - 1) for p, v in zip(parts, logs, strict=True))
    away = student_t(max(1, int(freedom))) * math.sqrt(total)
    return 100 * math.expm1(middle - away), 100 * math.expm1(middle + away)


def _score(baseline: Baseline, figures: GateFigures, limits: GateLimits) -> GateCheck:
    before, now = baseline.score, figures.score
    if before is None and now is None:
        detail = "the baseline has no score: write it with --dataset"
        return GateCheck("score", "pass", detail=detail)
    if before is None or now is None:
        who = "the baseline has no score" if before is None else "give --dataset"
        return GateCheck("score", "not compared", detail=who)
    name, texts = now.metric, (f"{before.value:.4f}", f"{now.value:.4f}")
    if (before.task, before.metric) != (now.task.name, now.metric):
        detail = f"the baseline's task is {before.task}, here it is {now.task.name}"
        return GateCheck(name, "not compared", *texts, detail=detail)
    if before.image_set != now.image_set:
        detail = (
            f"other test images: {before.images} in the baseline, {len(now.counts)} here, not the "
            "same ones in the same preparation"
        )
        return GateCheck(name, "not compared", *texts, detail=detail)
    found = paired_interval(now.task, now.counts, unpacked(before.counts, now.counts))
    if not math.isfinite(now.value):
        return GateCheck(name, "regression", *texts, detail="the score is not a number")
    if not math.isfinite(found.value):
        detail = "the difference of the scores is not a number"
        return GateCheck(name, "not compared", *texts, detail=detail)
    return _scored(name, texts, found, now, limits)


def _scored(
    name: str, texts: tuple[str, str], found: Interval, now: GateScore, limits: GateLimits
) -> GateCheck:
    factor, unit = score_unit(now.value, name)
    change, low, high = (factor * value for value in (found.value, found.low, found.high))
    verdict = _beyond_doubt(change < -limits.drop, is_worse=high < 0)
    images = len(now.counts)
    detail = f"on {images} images"
    doubt = change - low
    if verdict != "regression" and limits.drop > 0 and doubt > limits.drop:
        needed = math.ceil(images * (doubt / limits.drop) ** 2) if math.isfinite(doubt) else 0
        enough = f"about {needed:,} would show one of {limits.drop:g}" if needed else "more are due"
        most = f"{doubt:.2f}" if math.isfinite(doubt) else "any size"
        detail += f", which may miss a drop of {most} {unit}: {enough}"
    allowed = f"−{limits.drop:g} {unit}"
    return GateCheck(name, verdict, *texts, change, unit, allowed, low, high, detail)


def _beyond_doubt(is_beyond: bool, is_worse: bool) -> Verdict:
    if not is_beyond:
        return "pass"
    return "regression" if is_worse else "unclear"


def _sizes(baseline: Baseline, figures: GateFigures, limits: GateLimits) -> Iterator[GateCheck]:
    before = _memory(baseline.weight_bytes, baseline.peak_memory_bytes)
    now = _memory(figures.weight_bytes, figures.peak_memory_bytes)
    reason = ""
    if baseline.precision != figures.precision:
        reason = f"another precision: {baseline.precision} in the baseline"
    yield _size("memory", before, now, limits.memory_percent, reason)
    yield _size("size", baseline.size_bytes, figures.size_bytes, limits.size_percent)


def _memory(weights: int | None, peak: int | None) -> int | None:
    return None if weights is None or peak is None else weights + peak


def _size(
    name: str, before: int | None, now: int | None, percent: float, reason: str = ""
) -> GateCheck:
    first, second = ("" if value is None else size_text(value) for value in (before, now))
    if before is None or now is None or reason:
        why = reason or "it is not known"
        return GateCheck(name, "not compared", first, second, detail=why)
    change = 100 * (now / max(before, 1) - 1)
    verdict: Verdict = "regression" if change > percent else "pass"
    return GateCheck(name, verdict, first, second, change, "%", f"{percent:+g} %")


def _operators(baseline: Baseline, figures: GateFigures) -> GateCheck:
    """New operators are named; those that newly run on the CPU are a regression."""
    new = sorted(set(figures.operators) - set(baseline.operators))
    fallen = sorted(set(figures.cpu_operators) - set(baseline.cpu_operators))
    before, now = (f"{sum(found.operators.values())} layers" for found in (baseline, figures))
    detail = f"new: {', '.join(new)}" if new else ""
    if fallen:
        detail = f"the chip leaves {', '.join(fallen)} to the CPU"
    verdict: Verdict = "regression" if fallen else "pass"
    return GateCheck("operators", verdict, before, now, detail=detail)


def _notes(baseline: Baseline, figures: GateFigures) -> Iterator[str]:
    if baseline.calibration != figures.calibration:
        yield f"calibrated on {figures.calibration} samples, the baseline on {baseline.calibration}"
    if figures.ddr_bytes is not None and baseline.ddr_bytes is not None:
        before, now = size_text(baseline.ddr_bytes), size_text(figures.ddr_bytes)
        if before != now:
            yield f"DDR traffic per inference: {before} in the baseline, {now} now"
    if baseline.edgeloop != __version__:
        yield f"the baseline is of Edgeloop {baseline.edgeloop}, this is {__version__}"


def _time(milliseconds: float) -> str:
    if milliseconds < 1:
        return f"{1000 * milliseconds:.4g} µs"
    return f"{milliseconds:.4g} ms"


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    """Nothing that a model, a layer or a file is called may be markup: links, pictures, mentions
    and references work in escaped text, too, but not in code."""
    safe = _plain(text)
    return f"`{safe}`" if _MARKUP.search(safe) else safe


def _plain(text: str) -> str:
    """One line, which does not end the code that it is put in."""
    return "".join(letter if letter.isprintable() else " " for letter in text).replace("`", "'")
