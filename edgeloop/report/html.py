"""A report in one file: no script, no network, readable in light and dark, small enough to mail.

Charts are inline SVG. Everything from the store is escaped by the template, and a policy in the
page forbids scripts and addresses besides.
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop.errors import MissingExtra
from edgeloop.models import COLUMNS, records_of, visible_columns
from edgeloop.report.charts import pareto_chart
from edgeloop.report.comparisons import quantization_chart, training_chart, utilisation_chart
from edgeloop.report.drawing import to_page_part
from edgeloop.report.evidence import Evidence
from edgeloop.report.front import Pareto, pareto_of
from edgeloop.report.measures import LATENCY, Objective, Row, is_estimate, measure_of, sigma_ms
from edgeloop.report.model_charts import classes_chart, layers_chart, pr_chart
from edgeloop.report.provenance import Source, provenance

if TYPE_CHECKING:
    import altair as alt

SIDE_BY_SIDE = (
    *(LATENCY, "macs", "params", "f1_onnx", "f1_1k", "f1_1k_f", "f1_10k", "val_iou"),
    "final_val_iou",
)
_MEANINGS = {column.name: column.meaning for column in COLUMNS}


@dataclass(frozen=True)
class Report:
    """All that a report shows. `evidence` is by a model's name, `uses` as in `usage --json`."""

    rows: Sequence[Row]
    objectives: Sequence[Objective]
    source: Source
    uses: Iterable[Mapping[str, object]] = ()
    evidence: Mapping[str, Evidence] = field(default_factory=dict)


@dataclass(frozen=True)
class _Model:
    name: str
    anchor: str
    is_front: bool
    row: Row
    cells: list[str]
    short: str
    values: list[tuple[str, str, str]]  # column, meaning, text
    files: list[str]
    charts: list[Any]
    picture: str
    note: str


def render(report: Report) -> str:
    try:
        import jinja2
    except ImportError:
        raise MissingExtra(what="The report", extra="portal") from None
    found = pareto_of(report.rows, report.objectives)
    columns = [c for c in SIDE_BY_SIDE if any(not _isnan(c, row) for row in report.rows)]
    models = _models(report, found, columns)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    conditions = [item.layers.conditions for item in report.evidence.values() if item.layers]
    return environment.get_template("report.html.jinja").render(
        source=report.source,
        facts=_facts(report.rows, found),
        charts=_charts(report, models),
        columns=[measure_of(column) for column in columns],
        models=models,
        front=[model for model in models if model.is_front],
        missing=found.missing,
        detailed=len(report.evidence),
        provenance=provenance(report.rows, report.source, conditions),
    )


def _models(report: Report, found: Pareto, columns: Sequence[str]) -> list[_Model]:
    """The front first, best first; then the others with all numbers, then those without."""
    best_first = [found.rows[index] for index in found.order]
    is_front = {id(row) for row in found.front}
    seen = {id(row) for row in best_first}
    ordered = [row for row in best_first if id(row) in is_front]
    ordered += [row for row in best_first if id(row) not in is_front]
    ordered += [row for row in report.rows if id(row) not in seen]
    return [
        _model(row, f"m{number}", id(row) in is_front, columns, report)
        for number, row in enumerate(ordered)
    ]


def _model(row: Row, anchor: str, is_front: bool, columns: Sequence[str], report: Report) -> _Model:
    name = str(row.get("name", ""))
    found = report.evidence.get(name)
    cells = [_cell(column, row) for column in columns]
    shown = visible_columns([row])  # type: ignore[list-item]
    return _Model(
        name,
        anchor,
        is_front,
        row,
        cells,
        " · ".join(
            f"{measure_of(c).heading} {text}"
            for c, text in zip(columns, cells, strict=True)
            if text
        ),
        [(column, _MEANINGS.get(column, ""), str(row[column])) for column in shown],
        sorted({file for record in records_of(row).values() for file in record.files}),  # type: ignore[arg-type]
        [_part(chart, f"{anchor}-{place}-") for place, chart in enumerate(_own_charts(found))],
        _picture(found),
        _note(found),
    )


def _own_charts(found: Evidence | None) -> list[alt.TopLevelMixin]:
    charts: list[alt.TopLevelMixin] = []
    if found and found.layers and found.layers.times_us:
        charts.append(layers_chart(found.layers))
    if found and found.scores:
        charts.append(classes_chart(found.scores, f"Classes, {found.stage}"))
    if found and found.curves:
        average = found.scores.get("AP")
        charts.append(pr_chart(found.curves, f"Precision and recall, {found.stage}", average))
    return charts


def _picture(found: Evidence | None) -> str:
    if not found or not found.pr_picture:
        return ""
    return "data:image/png;base64," + base64.b64encode(found.pr_picture).decode()


def _note(found: Evidence | None) -> str:
    if found and found.pr_picture:
        return f"PR curves of {found.stage}, as they were drawn when it was tested."
    return ""


def _charts(report: Report, models: Sequence[_Model]) -> list[Any]:
    links = {model.name: f"#{model.anchor}" for model in models}
    charts = [pareto_chart(report.rows, report.objectives, links=links)]
    charts += [quantization_chart(report.rows), training_chart(report.rows)]
    charts += [utilisation_chart(report.uses)]
    return [_part(chart, f"c{number}-") for number, chart in enumerate(charts)]


def _part(chart: alt.TopLevelMixin, prefix: str) -> Any:
    from markupsafe import Markup

    return Markup(to_page_part(chart, prefix))  # noqa: S704 - an XML writer escaped it


def _facts(rows: Sequence[Row], found: Pareto) -> list[tuple[str, str]]:
    states = Counter(str(row.get("status") or "no status").partition(" ")[0] for row in rows)
    facts = [("models", f"{len(rows)}"), ("on the front", f"{len(found.front)}")]
    facts += [(state, str(count)) for state, count in sorted(states.items())]
    for place, item in enumerate(found.objectives):
        if found.rows:
            values = found.values[:, place]
            best = float(values.min() if item.goal == "min" else values.max())
            facts.append((f"best {item.measure.heading}", item.measure.text(best)))
    if found.rows:
        facts.append(("hypervolume", f"{found.share:.3f}"))
    return facts


def _cell(column: str, row: Row) -> str:
    measure = measure_of(column)
    text = measure.text(measure.of(row))
    if not text:
        return str(row[column]) if row.get(column) == "n/a" else ""
    if column != LATENCY:
        return text
    sigma = sigma_ms(row)
    spread = f" ± {sigma:.2g}" if sigma > 0 else ""
    return f"{text}{spread}{' est' if is_estimate(row) else ''}"


def _isnan(column: str, row: Row) -> bool:
    return math.isnan(measure_of(column).of(row))
