"""What a model's file is, for people: a summary of its graph, and the task that fits it."""

from edgeloop.graph.describe.fit import TaskFit, fitting_task
from edgeloop.graph.describe.summary import (
    DeclaredTensor,
    GraphSummary,
    summarize,
    summary_from,
)

__all__ = [
    "DeclaredTensor",
    "GraphSummary",
    "TaskFit",
    "fitting_task",
    "summarize",
    "summary_from",
]
