"""The evaluators of a search. See `edgeloop.search.base` for their interface.

`RemoteBenchmark` and `PartialTraining` are also names of `edgeloop`, for programs of others.
Two modules are also the main programs of processes and jobs, so names are imported lazily.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeloop.search.evaluators.farm import RemoteBenchmark
    from edgeloop.search.evaluators.jobs import PartialTraining
    from edgeloop.search.evaluators.local import LocalTraining
    from edgeloop.search.evaluators.screening import Screening
    from edgeloop.search.evaluators.threads import EvaluatorGroup

__all__ = ["EvaluatorGroup", "LocalTraining", "PartialTraining", "RemoteBenchmark", "Screening"]

_WHERE = {
    "EvaluatorGroup": "threads",
    "LocalTraining": "local",
    "PartialTraining": "jobs",
    "RemoteBenchmark": "farm",
    "Screening": "screening",
}


def __getattr__(name: str) -> object:
    if name in _WHERE:
        return getattr(import_module(f"edgeloop.search.evaluators.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'edgeloop.search.evaluators' has no attribute {name!r}")
