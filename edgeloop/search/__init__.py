"""Architecture search: propose candidates, evaluate them, and end with a Pareto front.

    with Search.open("laptop.yaml") as search:
        result = search.run()

`RemoteBenchmark` and `TrainingJobs` also work without a search: `send` an architecture and
`collect` evaluations.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeloop.search.base import Evaluation, Evaluator, Observation
    from edgeloop.search.campaign import Search, SearchResult, search_folder, search_settings
    from edgeloop.search.config import SearchConfig, read_config
    from edgeloop.search.evaluators import (
        LocalTraining,
        RemoteBenchmark,
        Screening,
        TrainingJobs,
    )
    from edgeloop.search.folders import arch_ids, find_search, found_searches, kept_search
    from edgeloop.search.keys import SearchFile
    from edgeloop.search.loop import Event, columns_of
    from edgeloop.search.remote import earlier_job, search_job
    from edgeloop.search.sampler.proposer import Proposer
    from edgeloop.search.storage import storage_address
    from edgeloop.search.study import Candidate
    from edgeloop.search.training import Retrained, retrain, summary, trainer_of

_WHERE = {
    "base": ("Evaluation", "Observation", "Evaluator"),
    "campaign": ("Search", "SearchResult", "search_folder", "search_settings"),
    "config": ("SearchConfig", "read_config"),
    "evaluators": ("LocalTraining", "TrainingJobs", "RemoteBenchmark", "Screening"),
    "folders": ("arch_ids", "find_search", "found_searches", "kept_search"),
    "keys": ("SearchFile",),
    "loop": ("Event", "columns_of"),
    "remote": ("earlier_job", "search_job"),
    "sampler.proposer": ("Proposer",),
    "storage": ("storage_address",),
    "study": ("Candidate",),
    "training": ("Retrained", "retrain", "summary", "trainer_of"),
}

__all__ = [
    "Candidate",
    "Evaluation",
    "Evaluator",
    "Event",
    "LocalTraining",
    "Observation",
    "Proposer",
    "RemoteBenchmark",
    "Retrained",
    "Screening",
    "Search",
    "SearchConfig",
    "SearchFile",
    "SearchResult",
    "TrainingJobs",
    "arch_ids",
    "columns_of",
    "earlier_job",
    "find_search",
    "found_searches",
    "kept_search",
    "read_config",
    "retrain",
    "search_folder",
    "search_job",
    "search_settings",
    "storage_address",
    "summary",
    "trainer_of",
]


def __getattr__(name: str) -> object:
    """Imported on demand: a job that only trains needs no Optuna."""
    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(f"edgeloop.search.{module}"), name)
    raise AttributeError(f"module 'edgeloop.search' has no attribute {name!r}")
