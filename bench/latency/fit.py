"""Fit the profiles of every chip and format to published figures, and say how good they are.

`python -m bench latency fit` writes `profiles.yaml`, the tables of docs/qnn.md and
docs/reference/latency-tables.md, and its section of RESULTS.md from `published.csv` and
`estimates.csv`, and prints the table of results; with `--check` it writes nothing and says what
would change. No network and no compiler: seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.latency import pages
from bench.latency.evaluation import ChipResult, evaluate
from bench.latency.points import Point, read_points
from bench.tables import RESULTS, ROOT, between_markers
from edgeloop.platforms.base import ErrorInterval

PROFILES = ROOT / "edgeloop" / "platforms" / "qnn" / "profiles.yaml"
CLAIMS = ROOT / "docs" / "qnn.md"
TABLES = ROOT / "docs" / "reference" / "latency-tables.md"

_HEAD = """\
# What turns the compiler's estimate into the time on a board, by chip and number format. Written by
# `python -m bench latency fit` from bench/latency/published.csv and estimates.csv.
#
# soc                   the chip whose latency model is corrected: estimate_soc of chips.yaml
# a_us, b               time ≈ a_us + b · estimate
# terms                 optional: times exp(sum of weight · term), see terms.py
# range_us              the fastest and the slowest network of the fit
# networks, families    with a published latency, that the fit and the figures below come from
# median_error_percent  and within_10_percent: of families that were left out of the fit
# intervals             by kind of network, `any` for all: of families that were left out of the
#                       fit, the share `coverage` had a time of low to high times the predicted one;
#                       without `coverage` there were too few for a share. `widened_by`: that of all
#                       networks, as wide as the errors of so many networks of the kind reach
"""


def run(*options: str) -> str:
    points = read_points()
    results = evaluate(points)
    made = outputs(points, results)
    changed = [path for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    if "--check" not in options:
        for path in changed:
            path.write_text(made[path], encoding="utf-8")
    names = ", ".join(str(path.relative_to(ROOT)) for path in changed) or "nothing"
    return f"{pages.results_table(results)}\n\nchanged: {names}"


def outputs(points: Sequence[Point], results: Sequence[ChipResult]) -> dict[Path, str]:
    """The whole text of every file that this command writes."""
    texts = {
        CLAIMS: pages.claims(results),
        TABLES: pages.tables(points, results),
        RESULTS: {"latency": pages.figures(points, results)},
    }
    return {
        PROFILES: profiles_text(results),
        **{
            path: between_markers(path.read_text(encoding="utf-8"), marked)
            for path, marked in texts.items()
        },
    }


def profiles_text(results: Sequence[ChipResult]) -> str:
    lines, last = [_HEAD], ""
    for result in sorted(results, key=lambda one: (one.chip, pages.FORMS.index(one.form))):
        if result.chip != last:
            lines.append(f"{result.chip}:")
            last = result.chip
        lines += _profile(result)
    return "\n".join(lines) + "\n"


def _profile(result: ChipResult) -> list[str]:
    scores = result.scores()
    times = [point.time_us for point in result.points if not point.doubt]
    fields = {
        "soc": str(result.soc),
        "a_us": f"{result.a_us:.1f}",
        "b": f"{result.b:.4f}",
        "terms": _mapping({name: f"{weight:.3f}" for name, weight in result.terms.items()}),
        "range_us": f"[{min(times):.0f}, {max(times):.0f}]",
        "networks": str(scores.networks),
        "families": str(scores.families),
        "median_error_percent": f"{100 * scores.median_error:.1f}",
        "within_10_percent": f"{100 * scores.within_10:.0f}",
    }
    if not result.terms:
        del fields["terms"]
    lines = [f"  {result.form}:", *(f"    {name}: {text}" for name, text in fields.items())]
    lines.append("    intervals:")
    return lines + [f"      {kind}: {_interval(one)}" for kind, one in result.intervals.items()]


def _interval(one: ErrorInterval) -> str:
    fields = {"low": f"{one.low:.3f}", "high": f"{one.high:.3f}", "networks": str(one.networks)}
    if one.coverage is not None:
        fields["coverage"] = f"{one.coverage}"
    if one.widened_by:
        fields["widened_by"] = str(one.widened_by)
    return _mapping(fields)


def _mapping(fields: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name}: {text}" for name, text in fields.items()) + "}"
