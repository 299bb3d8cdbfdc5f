"""A report in one file: no scripts, no network, light and dark, small enough to mail.

Charts are inline SVG. The template escapes everything from the store, and the content security
policy of the page forbids scripts and requests.
"""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop._version import __version__
from edgeloop.errors import MissingExtra
from edgeloop.models.columns import (
    AGREEMENT_COLUMNS,
    COLUMNS,
    LATENCY,
    RECOVERY_HEADINGS,
    SCORE_COLUMNS,
    Column,
    RecoverySummary,
    Row,
    column_in_unit,
    column_of,
    interval_cell,
    interval_heading,
    is_estimate,
    is_latency,
    latency_cell,
    latency_notes,
    number,
    readable,
    recovery_of,
    score_meaning,
    seen_from,
    visible_columns,
)
from edgeloop.models.plan import records_of
from edgeloop.view.charts import (
    Evidence,
    agreement_chart,
    evidence_charts,
    evidence_of,
    pareto_chart,
    png_address,
    quantization_chart,
    reference_text,
    search_charts,
    training_chart,
    utilisation_chart,
)
from edgeloop.view.drawing import NARROW, font_faces, to_page_parts
from edgeloop.view.front import ALL_DEVICES, Pareto, device_note, one_device, pareto_of
from edgeloop.view.measures import ColumnObjective, measure_of
from edgeloop.workspace import Workspace

if TYPE_CHECKING:
    import altair as alt

    from edgeloop.search.results import SeenSearch


MOST_DETAILS = 12
MOST_MODELS = 100  # with a section of their own; the others are in the table
FOLDED_FROM = 40  # lines of a table
_AT_ONCE = 4
_FRONT_SIZE = (1000, 440)  # as wide as the page
_PACKAGES = ("numpy", "onnx", "onnxruntime", "onnxruntime-qnn", "altair", "vl-convert-python")


@dataclass(frozen=True)
class Source:
    """Where and when rows were read. `place` describes the store without secrets."""

    place: str
    experiment: str
    when: datetime


@dataclass(frozen=True)
class ReportData:
    """All that a report shows. `evidence` is by model name, `uses` as in `usage --json`; of a
    search, everything that its folder shows. `device` is the one that the front is of: that with
    most models if empty, and `*` for all together."""

    rows: Sequence[Row]
    objectives: Sequence[ColumnObjective]
    source: Source
    uses: Iterable[Mapping[str, object]] = ()
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    search: SeenSearch | None = None
    device: str = ""


@dataclass(frozen=True)
class _Model:
    name: str
    anchor: str  # empty for a model without a section of its own
    is_front: bool
    row: Row
    cells: list[str]
    short: str
    values: list[tuple[str, str, str]]  # column, meaning, text
    files: list[str]
    charts: list[Any]
    image: str
    note: str
    outputs: list[tuple[str, list[str]]]  # per output: the values of AGREEMENT_COLUMNS
    recovery: RecoverySummary | None


def read_evidence(
    workspace: Workspace,
    rows: Sequence[Row],
    front: Sequence[Row],
    details: int = MOST_DETAILS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Evidence]:
    """Read from the store what a report shows of single models. `details` of them are shown with
    layers, classes and PR curves, or the agreement of each output; those of the front first. Each
    costs a few reads and up to half a megabyte of the page."""
    compared = [row for row in rows if not math.isnan(number(row.get("sqnr_db")))]
    shown = [*front, *compared]
    names = list(dict.fromkeys(str(row.get("name", "")) for row in shown))[:details]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        evidence = []
        for evidence_read in pool.map(lambda name: evidence_of(workspace, name), names):
            evidence.append(evidence_read)
            progress(len(evidence), len(names))
    return dict(zip(names, evidence, strict=True))


def render(
    report: ReportData, progress: Callable[[int, int], None] = lambda done, total: None
) -> str:
    """`progress` hears how many models of how many were drawn."""
    try:
        import jinja2
    except ImportError:
        raise MissingExtra(what="The report", extra="portal") from None
    whole = pareto_of(report.rows, report.objectives)
    pareto, device = one_device(whole, report.device)
    note = device_note(whole, device)
    columns = [
        column_in_unit(column, report.rows)
        for column in _side_by_side()
        if any(not math.isnan(measure_of(column).of(row)) for row in report.rows)
    ]
    models = _models(report, pareto, columns, progress)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    links = {model.name: f"#{model.anchor}" for model in models if model.anchor}
    title = f"Front of {device}" if note and device != ALL_DEVICES else ""
    front, front_narrow = (
        pareto_chart(pareto.rows, report.objectives, links=links, size=size, title=title)
        for size in (_FRONT_SIZE, (NARROW - 60, 320))
    )
    uses = list(report.uses)
    charts = [
        *_quality_charts(report.rows),
        *([training_chart(report.rows)] if _is_trained_twice(report.rows) else []),
        *([utilisation_chart(uses)] if uses else []),
    ]
    drawn = [
        _parts(front, "c0-", front_narrow),
        *(_parts(chart, f"c{number}-") for number, chart in enumerate(charts, 1)),
    ]
    conditions = [item.layers.conditions for item in report.evidence.values() if item.layers]
    return environment.get_template("report.html.jinja").render(
        source=report.source,
        facts=_facts(report.rows, pareto),
        charts=drawn,
        fonts=_trusted(font_faces()),
        note=note,
        folded_from=FOLDED_FROM,
        columns=[
            measure_of(column.name, score_meaning(report.rows))
            if column.group == "score"
            else column
            for column in columns
        ],
        models=models,
        front=[model for model in models if model.is_front],
        agreement=[measure_of(column) for column in AGREEMENT_COLUMNS],
        recovery_headings=RECOVERY_HEADINGS,
        missing=pareto.missing,
        interval=interval_heading(report.rows),
        detailed=len(report.evidence),
        provenance=provenance(report.rows, report.source, conditions),
        search=_search(report.search) if report.search is not None else None,
    )


@dataclass(frozen=True)
class _SearchPart:
    """A search in a report: facts, charts, and its candidates as a table, the front first."""

    name: str
    facts: list[tuple[str, str]]
    reference: str
    charts: list[Any]
    headings: list[str]
    rows: list[tuple[bool, list[str]]]


def _search(seen: SeenSearch) -> _SearchPart:
    several = seen.fronts if len(seen.fronts) > 1 else ()
    facts = [("candidates", str(len(seen.candidates))), ("on the front", str(len(seen.front)))]
    facts += [(state, str(count)) for state, count in seen.counts.items()]
    if seen.hypervolume is not None:
        facts.append(("hypervolume", f"{seen.hypervolume:.3f}"))
    facts += [
        (f"on the front of {front.name}", f"{len(front.candidates)}, {front.hypervolume or 0:.3f}")
        for front in several
    ]
    names = [item.parameter for item in seen.importances] or sorted(
        {name for item in seen.candidates for name in item.parameters}
    )
    objectives = [objective.name for objective in seen.objectives]
    fronts = ["on the front of"] if several else []
    ordered = [*seen.front, *(item for item in seen.candidates if not item.is_front)]
    rows = [
        (
            item.is_front,
            [
                str(item.number),
                item.name,
                item.state,
                *(_short_number(item.values.get(name)) for name in objectives),
                *([" ".join(item.fronts)] if several else []),
                *(str(item.parameters.get(name, "")) for name in names),
                item.reason,
            ],
        )
        for item in ordered
    ]
    return _SearchPart(
        seen.name,
        facts,
        reference_text(seen),
        [_parts(chart, f"s{number}-") for number, chart in enumerate(search_charts(seen))],
        ["number", "architecture", "state", *objectives, *fronts, *names, "reason"],
        rows,
    )


def _short_number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _quality_charts(rows: Sequence[Row]) -> list[alt.TopLevelMixin]:
    """Of scores, of agreement, or of both, whichever there are: a report says nothing of what has
    not happened."""
    agreement = any(not math.isnan(number(row.get("sqnr_db"))) for row in rows)
    pairs = (("f1_1k_f", "f1_1k"), ("f1_onnx", "f1_10k"))
    scores = any(
        not math.isnan(number(row.get(one)) + number(row.get(two)))
        for row in rows
        for one, two in pairs
    )
    charts: list[alt.TopLevelMixin] = []
    if scores:
        charts.append(quantization_chart(rows))
    if agreement:
        charts.append(agreement_chart(rows))
    return charts


def _is_trained_twice(rows: Sequence[Row]) -> bool:
    columns = [column_of(name) for name in ("val_iou", "final_val_iou")]
    return any(not math.isnan(sum(column.of(row) for column in columns)) for row in rows)


def _side_by_side() -> list[str]:
    """Columns that the report may compare: latency, costs and scores first."""
    first = (LATENCY, "macs", "params", *SCORE_COLUMNS, *AGREEMENT_COLUMNS)
    weighty = [c.name for c in COLUMNS.values() if c.is_number and c.weight is not None]
    return list(dict.fromkeys([*first, *weighty]))


def _models(
    report: ReportData,
    pareto: Pareto,
    columns: Sequence[Column],
    progress: Callable[[int, int], None],
) -> list[_Model]:
    """The front first, best first; then the other comparable models, then the rest."""
    best_first = [pareto.rows[index] for index in pareto.order]
    is_front = {id(row) for row in pareto.front}
    seen = {id(row) for row in best_first}
    ordered = [row for row in best_first if id(row) in is_front]
    ordered += [row for row in best_first if id(row) not in is_front]
    ordered += [row for row in report.rows if id(row) not in seen]
    first = {*report.evidence, *(str(row.get("name", "")) for row in ordered[:MOST_MODELS])}
    models = []
    for place, row in enumerate(ordered):
        anchor = f"m{place}" if str(row.get("name", "")) in first else ""
        models.append(_model(row, anchor, id(row) in is_front, columns, report))
        progress(len(models), len(ordered))
    return models


def _model(
    row: Row, anchor: str, is_front: bool, columns: Sequence[Column], report: ReportData
) -> _Model:
    name = str(row.get("name", ""))
    evidence = report.evidence.get(name, Evidence())
    charts = [make() for _, make in evidence_charts(evidence)] if anchor else []
    note = f"PR curves of {evidence.stage}, drawn when it was tested."
    cells = [_cell(column, row) for column in columns]
    shown = visible_columns([row])  # type: ignore[list-item]
    return _Model(
        name=name,
        anchor=anchor,
        is_front=is_front,
        row=row,
        cells=cells,
        short=" · ".join(
            f"{c.heading} {text}" for c, text in zip(columns, cells, strict=True) if text
        ),
        values=[(column, column_of(column).meaning, str(row[column])) for column in shown],
        files=sorted({file for record in records_of(row).values() for file in record.files}),  # type: ignore[arg-type]
        charts=[_parts(chart, f"{anchor}-{place}-") for place, chart in enumerate(charts)],
        image=png_address(evidence.pr_image),
        note=note if evidence.pr_image else "",
        outputs=_outputs(evidence),
        recovery=recovery_of(row),
    )


def _outputs(evidence: Evidence) -> list[tuple[str, list[str]]]:
    scores = evidence.scores
    if "sqnr_db" not in scores:
        return []
    return [
        (
            name,
            [measure_of(c).text(scores.get(c, {}).get(name, math.nan)) for c in AGREEMENT_COLUMNS],
        )
        for name in scores["sqnr_db"]
    ]


def _parts(chart: alt.TopLevelMixin, prefix: str, narrow: alt.TopLevelMixin | None = None) -> Any:
    return _trusted(to_page_parts(chart, prefix, narrow))


def _trusted(text: str) -> Any:
    """Text of our own, in which an XML writer escaped what came from elsewhere."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704


def _facts(rows: Sequence[Row], pareto: Pareto) -> list[tuple[str, str]]:
    states = Counter(str(row.get("status") or "no status").partition(" ")[0] for row in rows)
    facts = [("models", f"{len(rows)}"), ("on the front", f"{len(pareto.front)}")]
    facts += [(state, str(count)) for state, count in sorted(states.items())]
    for place, item in enumerate(pareto.objectives):
        if pareto.rows:
            values = pareto.values[:, place]
            index = int(values.argmin() if item.goal == "min" else values.argmax())
            facts.append(_extreme(item, pareto.rows[index], values.tolist()))
    if pareto.rows:
        facts.append((f"hypervolume (reference: {pareto.reference})", f"{pareto.share:.3f}"))
    return facts


def _extreme(item: ColumnObjective, row: Row, values: Sequence[float]) -> tuple[str, str]:
    """`lowest latency`, `1.2 ms est`: no claim that it is the best, which intervals may forbid."""
    measure, factor = readable(item.measure, values)
    words = [measure.text(factor * item.of(row)), measure.unit]
    if is_latency(item.column) and is_estimate(seen_from(item.column, row)):
        words.append("est")
    extreme = "lowest" if item.goal == "min" else "highest"
    return f"{extreme} {measure.label}", " ".join(filter(None, words))


def _cell(measure: Column, row: Row) -> str:
    if is_latency(measure.name):
        interval = interval_cell(row, measure)
        between = " " if interval.startswith("(") else ", "
        return latency_cell(row, measure) + (between + interval if interval else "")
    text = measure.text(measure.of(row))
    return text or ("n/a" if row.get(measure.name) == "n/a" else "")


def provenance(
    rows: Sequence[Row], source: Source, conditions: Iterable[Mapping[str, str]] = ()
) -> list[tuple[str, str]]:
    """Where the figures come from: lines of a table, without lines for what is unknown."""
    dates = sorted(str(row["model_date"]) for row in rows if row.get("model_date"))
    lines = {
        "made": f"{source.when:%Y-%m-%d %H:%M} UTC",
        "store": source.place,
        "experiment": source.experiment,
        "uploads": f"{dates[0]} to {dates[-1]}" if dates else "",
        "devices": _counted(str(row["device"]) for row in rows if row.get("device")),
        "latencies": _counted(
            "estimate" if is_estimate(row) else "measured" for row in rows if row.get("mean")
        ),
        "estimates calibrated by": _counted(
            f"{row.get('latency_profile') or 'no profile'} "
            f"({'' if str(row.get('latency_calibrated')) in ('True', '1') else 'not '}"
            "fitted on a device)"
            for row in rows
            if is_estimate(row)
        ),
        "intervals of estimates": _counted(
            latency_notes(row) or "none: estimated before there were intervals"
            for row in rows
            if is_estimate(row) and row.get("mean")
        ),
        "precisions": _counted(str(row["precision"]) for row in rows if row.get("precision")),
        "calibrated on": _counted(
            f"{row['calibration']} inputs" for row in rows if row.get("calibration")
        ),
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
    return [(name, text) for name, text in lines.items() if text]


def _conditions(runs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Each condition once, with all values that occurred."""
    values: dict[str, Counter[str]] = {}
    for conditions in runs:
        for name, value in conditions.items():
            values.setdefault(f"condition: {name}", Counter())[str(value)] += 1
    return {name: ", ".join(sorted(counts)) for name, counts in values.items()}


def _counted(texts: Iterable[str]) -> str:
    counts = Counter(texts)
    return ", ".join(f"{text} ({count})" for text, count in sorted(counts.items()))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
