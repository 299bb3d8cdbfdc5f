"""The views: each takes the open portal and returns plain values, for pages and the API alike.

Without an experiment, it is the one the portal was started for; an unknown one raises NotFound.
"""

from __future__ import annotations

from edgeloop.portal.views.compare import compare_view
from edgeloop.portal.views.devices import devices_view
from edgeloop.portal.views.examples import example_image, examples_view
from edgeloop.portal.views.jobs import job_files, job_log, job_view, jobs_view
from edgeloop.portal.views.model import files_view, model_view
from edgeloop.portal.views.pareto import pareto_view
from edgeloop.portal.views.queue import queue_view
from edgeloop.portal.views.searches import (
    PARAMETER,
    SearchQuery,
    search_drawings,
    search_view,
    searches_view,
)
from edgeloop.portal.views.table import headings, line_view, summary_of, table_view

__all__ = [
    "PARAMETER",
    "SearchQuery",
    "compare_view",
    "devices_view",
    "example_image",
    "examples_view",
    "files_view",
    "headings",
    "job_files",
    "job_log",
    "job_view",
    "jobs_view",
    "line_view",
    "model_view",
    "pareto_view",
    "queue_view",
    "search_drawings",
    "search_view",
    "searches_view",
    "summary_of",
    "table_view",
]
