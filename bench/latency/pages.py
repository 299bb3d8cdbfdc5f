"""The tables of the documentation and RESULTS.md, from the results of a fit."""

from __future__ import annotations

from collections.abc import Sequence

from bench.latency.evaluation import ANY, ChipResult
from bench.latency.points import Point
from bench.tables import markdown
from edgeloop.platforms.base import ErrorInterval
from edgeloop.platforms.qnn.chips import DEFAULT_CHIP, chips

FORMS = ("w8a8", "w8a16", "float")
KINDS = ("convolution", "depthwise", "large-map", "attention")
GOAL_MEDIAN, GOAL_WITHIN, GOAL_COVERED = 0.04, 0.85, (0.87, 0.93)
_WORST = 8
_TITLES = {
    "w8a8": "8-bit weights and activations (`a8w8`, `a8w8-per-channel`)",
    "w8a16": "8-bit weights, 16-bit activations (`a16w8`)",
    "float": "half precision (`fp16`)",
}


def claims(results: Sequence[ChipResult]) -> dict[str, str]:
    """The text of every marked place of docs/qnn.md, by its name."""
    return {"claims": _claims(results), "uncalibrated": _uncalibrated(results)}


def tables(points: Sequence[Point], results: Sequence[ChipResult]) -> dict[str, str]:
    """The same for docs/reference/latency-tables.md."""
    return {
        "data": _data(points, results),
        "accuracy": "\n\n".join(_accuracy(form, results) for form in FORMS),
        "intervals": "\n\n".join(_intervals(form, results) for form in FORMS if _of(form, results)),
        "worst": _worst(results),
        "set-aside": _set_aside(points),
    }


def figures(points: Sequence[Point], results: Sequence[ChipResult]) -> str:
    """The section of RESULTS.md."""
    return "\n\n".join((_data(points, results), results_table(results)))


def results_table(results: Sequence[ChipResult]) -> str:
    """What was reached beside its goal: the default chip, and the five that were published best."""
    others = sorted(
        (one for one in _of("w8a8", results) if one.chip != DEFAULT_CHIP),
        key=lambda one: (-one.scores().networks, one.chip),
    )
    first = [one for one in _of("w8a8", results) if one.chip == DEFAULT_CHIP]
    headings = (
        *("w8a8, families left out", "networks", "median error, %", "goal", "within ±10 %, %"),
        *("goal", "90 % intervals hold, %", "goal", "a + b · x alone: median, within ±10 %"),
    )
    rows = []
    for one in [*first, *others[:5]]:
        scores, simple = one.scores(), one.scores(is_simple=True)
        rows.append(
            (
                *(one.chip, scores.networks, _percent(scores.median_error, 1), "≤ 4"),
                *(_percent(scores.within_10), "≥ 85", _percent(scores.covered), "87–93"),
                f"{_percent(simple.median_error, 1)}, {_percent(simple.within_10)}",
            )
        )
    return markdown(headings, rows)


def _data(points: Sequence[Point], results: Sequence[ChipResult]) -> str:
    parts = []
    for form in FORMS:
        own = [point for point in points if point.form == form]
        if own:
            names, families = ({getattr(p, key) for p in own} for key in ("network", "family"))
            doubtful = {p.network for p in own if p.doubt}
            missing = {p.network for p in own if p.missing_ops}
            parts.append(
                f"{form}: {len(names)} networks of {len(families)} families, "
                f"{len(doubtful)} of them in doubt, {len(missing)} with steps without a cost on "
                "at least one chip."
            )
    return "\n".join(f"- {part}" for part in parts)


def _accuracy(form: str, results: Sequence[ChipResult]) -> str:
    title = f"**{_TITLES[form]}**"
    chosen = _of(form, results)
    if not chosen:
        return f"{title}: no chip has enough published figures. Nothing is claimed."
    headings = (
        *("chip", "estimated as", "networks", "families", "profile", "median error, %"),
        *("within ±10 %, %", "within ±20 %, %", "intervals state, %", "and hold, %"),
        "with those in doubt",
    )
    rows = []
    for one in chosen:
        scores, every = one.scores(), one.scores(with_doubtful=True)
        rows.append(
            (
                *(f"`{one.chip}`", one.soc, scores.networks, scores.families),
                "with terms" if one.terms else "a + b · x",
                *(_percent(scores.median_error, 1), _percent(scores.within_10)),
                *(_percent(scores.within_20), _percent(one.coverage) if one.coverage else "–"),
                _percent(scores.covered),
                f"{_percent(every.median_error, 1)}, {_percent(every.within_10)}, "
                f"{_percent(every.within_20)}, {_percent(every.covered)} of {every.networks}",
            )
        )
    return f"{title}\n\n{markdown(headings, rows)}"


def _intervals(form: str, results: Sequence[ChipResult]) -> str:
    chosen = _of(form, results)
    kinds = [kind for kind in KINDS if any(kind in one.intervals for one in chosen)]
    rows = [
        (
            f"`{one.chip}`",
            *(_reach(one.intervals.get(kind)) for kind in (ANY, *kinds)),
        )
        for one in chosen
    ]
    return f"**{_TITLES[form]}**\n\n{markdown(('chip', 'any', *kinds), rows)}"


def _reach(interval: ErrorInterval | None) -> str:
    if interval is None:
        return "as any"
    low, high = 100 * (interval.low - 1), 100 * (interval.high - 1)
    count = f"{interval.networks}"
    if interval.widened_by:
        count += f", widened by {interval.widened_by}"
    stated = "" if interval.coverage else ", no coverage"
    return f"{low:+.0f} … {high:+.0f} % ({count}{stated})".replace("-", "−")


def _claims(results: Sequence[ChipResult]) -> str:
    by_chip: dict[str, dict[str, str]] = {}
    for form in FORMS:
        for one in _of(form, results):
            reach = one.intervals[ANY]
            factors = f"{reach.low:.2f} – {reach.high:.2f}"
            stated = factors if one.coverage else f"({factors})"
            error = _percent(one.scores().median_error, 1)
            by_chip.setdefault(one.chip, {})[form] = f"{error} %, {stated}"
    rows = [(f"`{chip}`", *(cells.get(f, "–") for f in FORMS)) for chip, cells in by_chip.items()]
    return markdown(("chip", "`a8w8`", "`a16w8`", "`fp16`"), rows)


def _worst(results: Sequence[ChipResult]) -> str:
    rows = []
    for one in _of("w8a8", results):
        errors = sorted(
            (
                (predicted / point.time_us - 1, point.network)
                for point, predicted in zip(one.points, one.predicted, strict=True)
                if not point.doubt
            ),
            key=lambda row: -abs(row[0]),
        )
        names = ", ".join(f"{name} {_signed(error)}" for error, name in errors[:_WORST])
        rows.append((f"`{one.chip}`", names))
    return markdown(("chip, w8a8", "the largest errors of the prediction, %"), rows)


def _set_aside(points: Sequence[Point]) -> str:
    rows = {}
    for point in points:
        if point.doubt or point.missing_ops:
            why = point.doubt or "the compiler has no cost for some of its steps: withheld"
            rows.setdefault((point.network, point.form, why), None)
    if not rows:
        return "None."
    return markdown(("network", "format", "reason"), sorted(rows))


def _uncalibrated(results: Sequence[ChipResult]) -> str:
    known = {one.chip for one in results}
    relative = [name for name, c in chips().items() if name not in known and c.estimate_soc]
    without = [name for name, chip in chips().items() if not chip.estimate_soc]
    lines = [
        f"- `{name}`: no published figures. Relative only: a multiple of the time on "
        f"`{DEFAULT_CHIP}`, with the range of the calibrated chips and no stated coverage."
        for name in relative
    ]
    lines += [f"- `{name}`: no estimate at all." for name in without]
    return "\n".join(lines)


def _of(form: str, results: Sequence[ChipResult]) -> list[ChipResult]:
    """Of one format, the default chip first, then in the order of chips.yaml."""
    order = {name: number for number, name in enumerate(chips(), 1)} | {DEFAULT_CHIP: 0}
    return sorted((r for r in results if r.form == form), key=lambda one: order[one.chip])


def _signed(share: float) -> str:
    return f"{100 * share:+.0f}".replace("-", "−")


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f}"
