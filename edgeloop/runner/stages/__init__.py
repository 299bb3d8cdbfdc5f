"""What is done to a model. Inputs in, result out; the runner stores and commits."""

from __future__ import annotations

from edgeloop.runner.stages.accuracy import TESTS, accuracy, batches, run_test
from edgeloop.runner.stages.base import Assignment, Equipment, Result, Sizes
from edgeloop.runner.stages.benchmark import benchmark
from edgeloop.runner.stages.convert import convert

__all__ = ["Assignment", "Equipment", "Result", "Sizes", "batches", "perform", "run_test"]


def perform(work: Assignment, equipment: Equipment) -> Result:
    """Do one stage. New stages are named here and in the plan."""
    if work.stage in TESTS:
        return accuracy(work, equipment)
    return {"convert": convert, "benchmark": benchmark}[work.stage](work, equipment)
