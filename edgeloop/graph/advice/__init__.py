"""Exact rewrites that may make a model faster on a chip; its compiler says where they do."""

from edgeloop.graph.advice.catalog import (
    EXACT_REWRITES,
    ExactRewrite,
    OutputComparison,
    RewriteStep,
    find_rewrite,
)

__all__ = [
    "EXACT_REWRITES",
    "ExactRewrite",
    "OutputComparison",
    "RewriteStep",
    "find_rewrite",
]
