"""Results: the Pareto front of a table, charts, and a report in one file.

    rows = Workspace.open().status()
    found = pareto_of(rows, [objective("latency_ms"), objective("f1_1k")])
    write_chart(pareto_chart(rows), Path("front.png"), "Front")

Charts need the extra `portal`; the front does not.
"""

from __future__ import annotations

from edgeloop.models import is_estimate
from edgeloop.pareto import hypervolume, non_dominated
from edgeloop.report.axes import ChartAxes, chart_axes, span_of
from edgeloop.report.charts import front_frames, pareto_chart
from edgeloop.report.comparisons import (
    agreement_chart,
    f1_chart,
    quantization_chart,
    training_chart,
    utilisation_chart,
)
from edgeloop.report.drawing import (
    FONT_FILES,
    FONTS,
    Shown,
    show,
    show_animation,
    spec_of,
    to_gif,
    to_html,
    to_page_part,
    to_page_parts,
    to_png,
    to_svg,
    write_chart,
    write_whole,
)
from edgeloop.report.front import ALL_DEVICES, Pareto, device_note, one_device, pareto_of
from edgeloop.report.html import ReportData, Source, gather, provenance, render
from edgeloop.report.measures import (
    LATENCY,
    ColumnObjective,
    Measure,
    check_columns,
    latency_cell,
    measure_of,
    objective,
    quality_column,
    readable,
    sigma_ms,
)
from edgeloop.report.model_charts import (
    Evidence,
    Layers,
    classes_chart,
    evidence_charts,
    evidence_of,
    interval_of,
    layers_chart,
    png_address,
    pr_chart,
    read_curves,
    read_layers,
    read_scores,
)
from edgeloop.report.network import PictureOfNetwork, outline_in_store, picture_of
from edgeloop.report.search_charts import (
    SearchColour,
    about_candidate,
    candidates_chart,
    importance_chart,
    learning_chart,
    parallel_chart,
    reference_text,
    search_charts,
    search_measure,
    volume_chart,
)
from edgeloop.report.style import NARROW, OKABE_ITO, Theme, empty_chart
from edgeloop.report.terminal import ASCII, UNICODE, plot

__all__ = [
    "ALL_DEVICES",
    "ASCII",
    "FONTS",
    "FONT_FILES",
    "LATENCY",
    "NARROW",
    "OKABE_ITO",
    "UNICODE",
    "ChartAxes",
    "ColumnObjective",
    "Evidence",
    "Layers",
    "Measure",
    "Pareto",
    "PictureOfNetwork",
    "ReportData",
    "SearchColour",
    "Shown",
    "Source",
    "Theme",
    "about_candidate",
    "agreement_chart",
    "candidates_chart",
    "chart_axes",
    "check_columns",
    "classes_chart",
    "device_note",
    "empty_chart",
    "evidence_charts",
    "evidence_of",
    "f1_chart",
    "front_frames",
    "gather",
    "hypervolume",
    "importance_chart",
    "interval_of",
    "is_estimate",
    "latency_cell",
    "layers_chart",
    "learning_chart",
    "measure_of",
    "non_dominated",
    "objective",
    "one_device",
    "outline_in_store",
    "parallel_chart",
    "pareto_chart",
    "pareto_of",
    "picture_of",
    "plot",
    "png_address",
    "pr_chart",
    "provenance",
    "quality_column",
    "quantization_chart",
    "read_curves",
    "read_layers",
    "read_scores",
    "readable",
    "reference_text",
    "render",
    "search_charts",
    "search_measure",
    "show",
    "show_animation",
    "sigma_ms",
    "span_of",
    "spec_of",
    "to_gif",
    "to_html",
    "to_page_part",
    "to_page_parts",
    "to_png",
    "to_svg",
    "training_chart",
    "utilisation_chart",
    "volume_chart",
    "write_chart",
    "write_whole",
]
