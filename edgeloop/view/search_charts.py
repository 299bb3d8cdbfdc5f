"""Charts of a search: its candidates and fronts, the hypervolume, what its parameters did, and the
learning curves. Like all charts, they accept a search without results and then say what is missing.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from edgeloop.view.measures import MEASURES, Measure
from edgeloop.view.style import (
    BLUE,
    DISC,
    EARLY_TO_LATE,
    GREY,
    OKABE_ITO,
    RING,
    VERMILLION,
    WIDTH,
    altair,
    axis,
    by_iteration,
    count_of,
    data,
    empty_chart,
    sized,
)

if TYPE_CHECKING:
    from edgeloop.search.config import Objective
    from edgeloop.search.results import SeenCandidate, SeenFront, SeenSearch
    from edgeloop.view.style import Chart

SearchColour = Literal["iteration", "rung"]
MOST_PARAMETERS = 12
_MOST_AXES = 6
_MOST_TICKS = 8
_MOST_DOTS = 60
_LINE = 96  # characters of a subtitle
_LABELS = (
    Measure("chip_latency_ms", "estimated latency", unit="ms"),
    Measure("host_latency_ms", "latency on the host's CPU", unit="ms"),
    Measure("farm_latency_ms", "measured latency", unit="ms"),
    Measure("memory_bytes", "memory", unit="MB", factor=1e-6),
    Measure("ddr_bytes", "DDR traffic", unit="MB", factor=1e-6),
    Measure("val_f1", "F1 after partial training"),
    Measure("farm_f1", "F1 on the device"),
)
_MEASURES = {**MEASURES, **{measure.column: measure for measure in _LABELS}}
_DRAWN = ("complete", "stopped")
_ON_FRONT, _OTHER, _STOPPED = "on the front", "complete", "stopped early"


def search_measure(name: str) -> Measure:
    """The value of a search as people read it: `chip_latency_ms@htp:qcs8550` is the estimated
    latency on qcs8550."""
    value, _, device = name.partition("@")
    known = replace(_MEASURES.get(value, Measure(value, value)), column=name, shown=name)
    chip = device.rpartition(":")[2]
    return replace(known, label=f"{known.label} on {chip}") if chip else known


def candidates_chart(
    seen: SeenSearch,
    front: SeenFront,
    colour: SearchColour = "iteration",
    links: Mapping[int, str] | None = None,
) -> Chart:
    """All candidates by the first two objectives of a front, which is highlighted; by their order
    if there is one objective only. `links` are addresses by the number of the candidate."""
    a = altair()
    points = _points(seen, front, links or {}) if front.objectives else []
    if not points:
        return empty_chart("No candidate has a result yet.")
    x, y = _axes(front)
    base = a.Chart().encode(x=axis(a.X, "x", x, None), y=axis(a.Y, "y", y, None))
    line = []
    if len(front.objectives) == 2:
        steps = "step-after" if front.objectives[0].goal == "min" else "step-before"
        drawn = base.transform_filter("datum.front").mark_line(
            interpolate=steps, strokeWidth=1.8, opacity=0.9, color=VERMILLION
        )
        line = [drawn.encode(order="x:Q")]
    field, title = ("trained", "trained for") if colour == "rung" else ("iteration", "iteration")
    encoded = base.encode(
        color=by_iteration(points, field=field, title=title),
        description="about:N",
        **({"href": "link:N"} if links else {}),
    )
    kinds = [
        ("!datum.front && datum.state != 'stopped'", {"shape": DISC, "size": 55, "opacity": 0.5}),
        ("datum.state == 'stopped'", {"shape": RING, "size": 55, "opacity": 0.8}),
        ("datum.front", {"shape": DISC, "size": 150, "opacity": 1}),
    ]
    marks = [
        encoded.transform_filter(test).mark_point(filled=True, invalid=None, **look)
        for test, look in kinds
    ]
    chart = a.layer(*line, *marks, data=data(points))
    chip = front.name.rpartition(":")[2]
    heading = f"Candidates and the front of {chip}" if chip else "Candidates and their front"
    return sized(chart, heading, _lines(_subtitle(front, points)))


def volume_chart(seen: SeenSearch) -> Chart:
    """The hypervolume after each candidate; with several chips, also that of each."""
    if not seen.curve:
        return empty_chart("The hypervolume is known when there are ten results.")
    a = altair()
    several = len(seen.fronts) > 1
    lines = [("mean of the chips" if several else "", [volume for _, volume, _ in seen.curve])]
    for place, front in enumerate(seen.fronts if several else ()):
        lines.append((_chip(front.name), [each[place] for _, _, each in seen.curve]))
    points = [
        {
            "line": name,
            "candidates": count,
            "hypervolume": volume,
            "about": f"{name} {volume:.3f} after {count_of(count, 'candidate')}".strip(),
        }
        for name, volumes in lines
        for (count, _, _), volume in zip(seen.curve, volumes, strict=True)
    ]
    names = [name for name, _ in lines]
    colours = [BLUE if several else VERMILLION, *(c for c in _cycle(len(names)) if c != BLUE)]
    scale = a.Scale(domain=names, range=colours[: len(names)])
    counted = a.Axis(tickMinStep=1, format="d", tickCount=min(len(seen.curve) - 1, 10))
    base = a.Chart().encode(
        x=a.X("candidates:Q", title="candidates", axis=counted),
        y=a.Y("hypervolume:Q", title="hypervolume", scale=a.Scale(zero=False, padding=10)),
        color=a.Color("line:N", scale=scale, legend=a.Legend(title=None) if several else None),
    )
    drawn = base.mark_line(interpolate="step-after", strokeWidth=2)
    dots = base.mark_point(filled=True, size=28, opacity=0.9).encode(description="about:N")
    parts = [drawn, dots] if len(points) <= _MOST_DOTS else [drawn]
    chart = a.layer(*parts, data=data(points))
    return sized(chart, "Hypervolume", _lines(reference_text(seen)), height=240)


def reference_text(seen: SeenSearch) -> str:
    """Where the hypervolume is measured from, in words; empty while that is not known."""
    if seen.reference is None:
        return ""
    ends = []
    for name, scale in seen.reference.scales.items():
        measure = search_measure(name)
        unit = f" {measure.unit}" if measure.unit else ""
        label = measure.label.removeprefix("estimated ")
        ends.append(f"{label} {measure.factor * scale.worst:.4g}{unit}")
    return f"share of the box from the reference point ({', '.join(ends)}) to the ideal point"


def importance_chart(seen: SeenSearch) -> Chart:
    """How much of the differences between candidates each parameter explains."""
    shown = seen.importances[:MOST_PARAMETERS]
    if not shown:
        return empty_chart("What a parameter does shows when eight candidates have a result.")
    a = altair()
    points = [
        {
            "parameter": item.parameter,
            "objective": search_measure(name).label,
            "share": share,
            "about": f"{item.parameter} explains {share:.0%} of {search_measure(name).label}",
        }
        for item in shown
        for name, share in item.shares.items()
    ]
    objectives = [search_measure(objective.name).label for objective in seen.objectives]
    order = [item.parameter for item in shown]
    colour = a.Color(
        "objective:N",
        scale=a.Scale(domain=objectives, range=list(_cycle(len(objectives)))),
        legend=a.Legend(title=None, orient="bottom", columns=2, labelLimit=300),
    )
    chart = (
        a.Chart(data(points))
        .mark_bar()
        .encode(
            y=a.Y("parameter:N", sort=order, title=None),
            yOffset=a.YOffset("objective:N", sort=objectives),
            x=a.X("share:Q", title="share of the variation explained", axis=a.Axis(format=".0%")),
            color=colour,
            description="about:N",
        )
    )
    height = max(60, len(shown) * (8 + 7 * len(objectives)))
    note = "among the candidates of this search, each parameter by itself"
    return sized(chart, "Importance of the parameters", note, height=height)


def parallel_chart(seen: SeenSearch, is_narrow: bool = False) -> Chart:
    """A line per candidate, through its most important parameters and its objectives; of several
    chips, the first. On a phone there is room for fewer parameters."""
    front = seen.fronts[0]
    shown = [item for item in seen.candidates if _has_results(item, front.objectives)]
    names = [item.parameter for item in seen.importances[: _MOST_AXES if not is_narrow else 2]]
    if len(shown) < 2 or not names:
        return empty_chart("Lines are drawn when eight candidates have a result.")
    a = altair()
    by = front.objectives[0].name
    shown.sort(key=lambda item: item.values[by])
    scales: list[_ParameterAxis | _ObjectiveAxis] = [_ParameterAxis(n, shown) for n in names]
    scales += [_ObjectiveAxis(objective, shown) for objective in front.objectives]
    points = [
        {
            "axis": place,
            "at": at,
            "number": item.number,
            "front": front.name in item.fronts,
            "by": item.values[by],
            "about": about,
        }
        for item, about in [(item, _about(seen, item)) for item in shown]
        for place, scale in enumerate(scales)
        if (at := scale.position(item)) is not None
    ]
    ticks = [
        {"axis": place, "at": at, "text": text}
        for place, scale in enumerate(scales)
        for at, text in scale.ticks
    ]
    titles = [{"axis": place, "at": 1.1, "text": s.title} for place, s in enumerate(scales)]
    x = a.X("axis:Q", axis=None, scale=a.Scale(domain=[-0.3, len(scales) - 0.6], nice=False))
    y = a.Y("at:Q", axis=None, scale=a.Scale(domain=[-0.06, 1.12], nice=False))
    rules = a.Chart(data([{"axis": place, "at": 0, "end": 1} for place in range(len(scales))]))
    lines = a.Chart(data(points)).encode(x=x, y=y, detail="number:N", description="about:N")
    colour = a.Color("by:Q", scale=a.Scale(range=list(EARLY_TO_LATE)), legend=None)
    texts = {"align": "left", "fontSize": 11}
    chart = a.layer(
        lines.transform_filter("!datum.front").mark_line(strokeWidth=0.8, opacity=0.3, color=GREY),
        lines.transform_filter("datum.front")
        .mark_line(strokeWidth=1.7, opacity=0.9)
        .encode(color=colour),
        rules.mark_rule(opacity=0.6).encode(x=x, y=y, y2="end:Q"),
        a.Chart(data(ticks)).mark_text(dx=6, **texts).encode(x=x, y=y, text="text:N"),
        a.Chart(data(titles))
        .mark_text(dx=-8, fontWeight="bold", limit=84, **texts)
        .encode(x=x, y=y, text="text:N"),
    )
    note = f"the most important parameters first; in colour the front, by {_short(by)}"
    return sized(chart, "Parameters and objectives", note, width=max(WIDTH, 88 * len(scales)))


def learning_chart(seen: SeenSearch) -> Chart:
    """The score of every candidate while it was trained."""
    scored = next((o.name for o in seen.objectives if o.name in ("val_iou", "val_f1")), "val_iou")
    points = []
    for item in seen.candidates:
        kind = _ON_FRONT if item.is_front else _STOPPED if item.state == "stopped" else _OTHER
        about = f"{item.arch_id}, {kind}"
        for point in seen.learning.get(item.arch_id, ()):
            at = point.step if math.isnan(point.epoch) else point.epoch
            score = getattr(point, scored)
            if math.isfinite(at) and math.isfinite(score):
                points.append(
                    {"at": at, "score": score, "id": item.arch_id, "kind": kind, "about": about}
                )
    if not points:
        return empty_chart("There are learning curves when candidates have been trained.")
    a = altair()
    kinds = [
        kind for kind in (_ON_FRONT, _OTHER, _STOPPED) if any(p["kind"] == kind for p in points)
    ]
    looks = {_ON_FRONT: VERMILLION, _OTHER: BLUE, _STOPPED: GREY}
    is_epoch = not all(
        math.isnan(point.epoch) for curve in seen.learning.values() for point in curve
    )
    base = a.Chart(data(points)).encode(
        x=a.X("at:Q", title="epochs" if is_epoch else "steps", axis=a.Axis(tickMinStep=1)),
        y=a.Y("score:Q", title=search_measure(scored).label, scale=a.Scale(zero=False, padding=10)),
        detail="id:N",
        color=a.Color(
            "kind:N",
            scale=a.Scale(domain=kinds, range=[looks[kind] for kind in kinds]),
            legend=a.Legend(title=None, symbolOpacity=1),
        ),
        description="about:N",
    )
    front = f"datum.kind == '{_ON_FRONT}'"
    chart = a.layer(
        base.transform_filter(f"!({front})").mark_line(
            strokeWidth=1.2, opacity=0.4, point={"size": 12}
        ),
        base.transform_filter(front).mark_line(strokeWidth=2, opacity=0.95, point={"size": 24}),
    )
    trained = len({point["id"] for point in points})
    stopped = len({p["id"] for p in points if p["kind"] == _STOPPED})
    note = count_of(trained, "training") + (f", {stopped} of them stopped early" if stopped else "")
    return sized(chart, "Learning curves", note, height=300)


def search_charts(seen: SeenSearch, colour: SearchColour = "iteration") -> list[Chart]:
    """All of them, a scatter per front first."""
    charts = [candidates_chart(seen, front, colour) for front in seen.fronts]
    charts.append(volume_chart(seen))
    if any(item.parameters for item in seen.candidates):
        charts += [importance_chart(seen), parallel_chart(seen)]
    if seen.learning:
        charts.append(learning_chart(seen))
    return charts


def about_candidate(seen: SeenSearch, item: SeenCandidate) -> list[str]:
    """A candidate in a few lines: its name, objectives, state, and most important parameters."""
    lines = [item.arch_id]
    for objective in seen.objectives:
        if objective.name in item.values:
            measure = search_measure(objective.name)
            value = measure.text(measure.factor * item.values[objective.name])
            lines.append(f"{measure.label}: {value}{f' {measure.unit}' if measure.unit else ''}")
    trained = f", trained for {item.trained:g}" if item.trained is not None else ""
    lines.append(f"number {item.number}, iteration {item.iteration}, {item.state}{trained}")
    first = [one.parameter for one in seen.importances if one.parameter in item.parameters]
    names = list(dict.fromkeys([*first, *item.parameters]))[:MOST_PARAMETERS]
    if names:
        lines.append(", ".join(f"{name} {item.parameters[name]}" for name in names))
    return lines


def _about(seen: SeenSearch, item: SeenCandidate) -> str:
    return "; ".join(about_candidate(seen, item))


def _axes(front: SeenFront) -> tuple[Measure, Measure]:
    measures = [search_measure(objective.name) for objective in front.objectives]
    if len(measures) == 1:
        return Measure("number", "candidate"), measures[0]
    return measures[0], measures[1]


def _points(seen: SeenSearch, front: SeenFront, links: Mapping[int, str]) -> list[dict[str, Any]]:
    x, y = _axes(front)
    points = []
    for item in seen.candidates:
        if not _has_results(item, front.objectives[:2]) or item.state not in (
            "complete",
            "stopped",
        ):
            continue
        numbers = {"number": float(item.number), **item.values}
        point: dict[str, Any] = {
            "x": x.factor * numbers[x.column],
            "y": y.factor * numbers[y.column],
            "iteration": item.iteration,
            "trained": item.trained,
            "state": item.state,
            "front": front.name in item.fronts,
            "about": _about(seen, item),
        }
        if item.number in links:
            point["link"] = links[item.number]
        points.append(point)
    return points


def _has_results(item: SeenCandidate, objectives: Sequence[Objective]) -> bool:
    return all(math.isfinite(item.values.get(one.name, math.nan)) for one in objectives)


def _subtitle(front: SeenFront, points: Sequence[Mapping[str, Any]]) -> str:
    complete = sum(point["state"] == "complete" for point in points)
    stopped = len(points) - complete
    on = sum(point["front"] for point in points)
    text = f"large: the front, {on} of {count_of(complete, 'candidate')} with a result"
    goals = "; ".join(
        f"{search_measure(o.name).label}: {'less' if o.goal == 'min' else 'more'} is better"
        for o in front.objectives
    )
    return f"{text}{f'; hollow: {stopped} stopped early' if stopped else ''}; {goals}"


def _lines(text: str) -> list[str]:
    return textwrap.wrap(text, _LINE)


def _chip(name: str) -> str:
    return name.rpartition(":")[2]


def _cycle(count: int) -> list[str]:
    return [OKABE_ITO[place % len(OKABE_ITO)] for place in range(count)]


class _ParameterAxis:
    """Values of a parameter between 0 and 1: numbers in order, texts by name. Candidates with the
    same value lie side by side, in the order in which they are given, so that lines stay apart. One
    that does not have the parameter crosses no point of the axis."""

    def __init__(self, name: str, items: Sequence[SeenCandidate]) -> None:
        self.title = name
        having = [item for item in items if name in item.parameters]
        found = {item.parameters[name] for item in having}
        is_numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in found)
        ordered = sorted(found, key=(lambda v: v) if is_numeric else str)
        room = 1 / max(len(ordered), 1)
        middle = {value: (place + 0.5) * room for place, value in enumerate(ordered)}
        shown = ordered if len(ordered) <= _MOST_TICKS else [ordered[0], ordered[-1]]
        self.ticks = [(middle[value], f"{value}") for value in shown]
        self._at = {}
        for value in ordered:
            same = [item.number for item in having if item.parameters[name] == value]
            for place, number in enumerate(same):
                aside = (place + 0.5) / len(same) - 0.5
                self._at[number] = middle[value] + 0.7 * room * aside

    def position(self, item: SeenCandidate) -> float | None:
        return self._at.get(item.number)


class _ObjectiveAxis:
    """Values of an objective between 0 and 1, the best at the top."""

    def __init__(self, objective: Objective, items: Sequence[SeenCandidate]) -> None:
        measure = search_measure(objective.name)
        self.title, self._name = _short(objective.name), objective.name
        values = [item.values[objective.name] for item in items]
        ends = (max(values), min(values)) if objective.goal == "min" else (min(values), max(values))
        self._from, self._to = ends
        texts = [measure.text(measure.factor * end) for end in ends]
        self.ticks = [(0.0, texts[0]), (1.0, texts[1])] if ends[0] != ends[1] else [(1.0, texts[0])]

    def position(self, item: SeenCandidate) -> float | None:
        span = self._to - self._from
        return (item.values[self._name] - self._from) / span if span else 1.0


def _short(name: str) -> str:
    """For an axis: without what the page says anyway."""
    measure = search_measure(name)
    label = measure.label.partition(" on ")[0].partition(" after ")[0].removeprefix("estimated ")
    return f"{label} ({measure.unit})" if measure.unit else label
