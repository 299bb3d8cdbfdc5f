"""What can say something about an architecture: evaluators, each behind the seam of `base`.

Modules of this package are also the main programs of processes and jobs, so the door opens each
thing when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeloop.search.evaluators.farm import RemoteBenchmark
    from edgeloop.search.evaluators.jobs import PartialTraining
    from edgeloop.search.evaluators.local import LocalTraining
    from edgeloop.search.evaluators.screening import Screening

__all__ = ["LocalTraining", "PartialTraining", "RemoteBenchmark", "Screening"]

_WHERE = {
    "LocalTraining": "local",
    "PartialTraining": "jobs",
    "RemoteBenchmark": "farm",
    "Screening": "screening",
}


def __getattr__(name: str) -> object:
    if name in _WHERE:
        return getattr(import_module(f"edgeloop.search.evaluators.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'edgeloop.search.evaluators' has no attribute {name!r}")
