"""Exact rewrites of graphs: operators that compilers refuse, by operators that they take."""

from edgeloop.graph.rewrites.apply import (
    ALL,
    FUSIONS,
    REWRITES,
    AppliedRewrite,
    Rewrite,
    applied_rewrites,
    apply_rewrites,
    plan_rewrites,
    planned_rewrites,
    rewrite_notes,
)
from edgeloop.graph.rewrites.ranks import LARGEST_RANK

__all__ = [
    "ALL",
    "FUSIONS",
    "LARGEST_RANK",
    "REWRITES",
    "AppliedRewrite",
    "Rewrite",
    "applied_rewrites",
    "apply_rewrites",
    "plan_rewrites",
    "planned_rewrites",
    "rewrite_notes",
]
