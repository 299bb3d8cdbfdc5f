"""Edgeloop: from a training script to the best model on a real edge chip.

The names below are the public API. Everything else may change without notice, except what the
how-to guides for plug-ins use.

    from edgeloop import Workspace

    with Workspace.open() as workspace:
        model = workspace.upload("net.onnx")
        workspace.wait(model)
        print(model.row["f1_1k"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from edgeloop._version import __version__

if TYPE_CHECKING:
    from edgeloop.errors import EdgeloopError
    from edgeloop.jobs.client import Jobs
    from edgeloop.jobs.records import Run
    from edgeloop.jobs.spec import JobSpec
    from edgeloop.models.catalog import Model
    from edgeloop.search.campaign import Search, SearchResult
    from edgeloop.search.evaluators.farm import RemoteBenchmark
    from edgeloop.search.evaluators.jobs import PartialTraining
    from edgeloop.workspace import Workspace

__all__ = [
    "EdgeloopError",
    "JobSpec",
    "Jobs",
    "Model",
    "PartialTraining",
    "RemoteBenchmark",
    "Run",
    "Search",
    "SearchResult",
    "Workspace",
    "__version__",
]

_MODULES = {
    "EdgeloopError": "errors",
    "JobSpec": "jobs.spec",
    "Jobs": "jobs.client",
    "Model": "models.catalog",
    "PartialTraining": "search.evaluators.jobs",
    "RemoteBenchmark": "search.evaluators.farm",
    "Run": "jobs.records",
    "Search": "search.campaign",
    "SearchResult": "search.campaign",
    "Workspace": "workspace",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `edgeloop --help` needs none of them."""
    if name not in _MODULES:
        raise AttributeError(f"module 'edgeloop' has no attribute {name!r}")
    return getattr(import_module(f"edgeloop.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
