"""What pages and the API show, as plain values: one shape for both, so that they cannot differ.

Nothing here is markup but `svg` (drawn by us, escaped by an XML writer). Every other text may come
from a stranger's row and must be escaped by whoever puts it into a page. Times are seconds since
1970, UTC; None where they are not known.
"""

from __future__ import annotations

from edgeloop.portal.views.shapes_model import (
    PAGE_SIZES,
    Chart,
    Choices,
    Fact,
    FileView,
    Frame,
    Heading,
    Layer,
    Line,
    ModelView,
    StageView,
    TableQuery,
    TableView,
    Use,
    Work,
)
from edgeloop.portal.views.shapes_overview import (
    Axis,
    Busy,
    DayUse,
    DevicesView,
    Iteration,
    JobLine,
    JobsView,
    JobView,
    LogPart,
    ParetoQuery,
    ParetoView,
    Point,
    SearchesView,
    SearchLine,
    SearchView,
)

__all__ = [
    "PAGE_SIZES",
    "Axis",
    "Busy",
    "Chart",
    "Choices",
    "DayUse",
    "DevicesView",
    "Fact",
    "FileView",
    "Frame",
    "Heading",
    "Iteration",
    "JobLine",
    "JobView",
    "JobsView",
    "Layer",
    "Line",
    "LogPart",
    "ModelView",
    "ParetoQuery",
    "ParetoView",
    "Point",
    "SearchLine",
    "SearchView",
    "SearchesView",
    "StageView",
    "TableQuery",
    "TableView",
    "Use",
    "Work",
]
