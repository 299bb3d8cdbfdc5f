"""What is done to a model. Inputs in, result out; the runner stores and commits."""

from __future__ import annotations

from pkgutil import resolve_name

from edgeloop.models.plan import STAGES
from edgeloop.runner.stages.accuracy import batches, run_test
from edgeloop.runner.stages.base import Assignment, Equipment, Result, Sizes

__all__ = ["Assignment", "Equipment", "Result", "Sizes", "batches", "perform", "run_test"]


def perform(work: Assignment, equipment: Equipment) -> Result:
    """Do one stage, with the function that the plan names."""
    function = resolve_name(STAGES[work.stage].work)
    result: Result = function(work, equipment)
    return result
