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
    from edgeloop.search.base import Evaluation, Evaluator, Observation, is_result
    from edgeloop.search.campaign import (
        Search,
        SearchResult,
        search_folder,
        search_settings,
    )
    from edgeloop.search.config import Objective, SearchConfig, read_config
    from edgeloop.search.evaluators import (
        LocalTraining,
        RemoteBenchmark,
        Screening,
        TrainingJobs,
    )
    from edgeloop.search.evaluators.screening import check_devices
    from edgeloop.search.folders import arch_ids, find_search, found_searches, kept_search
    from edgeloop.search.keys import NO_LIMIT, SearchFile
    from edgeloop.search.loop import Event
    from edgeloop.search.names import columns_of, device_of, on_device, value_of
    from edgeloop.search.remote import earlier_job, search_job
    from edgeloop.search.results.fronts import front_names, fronts_of
    from edgeloop.search.results.importance import Importance
    from edgeloop.search.results.reading import (
        SeenCandidate,
        SeenFront,
        SeenSearch,
        read_search,
    )
    from edgeloop.search.results.volume import ReferencePoint
    from edgeloop.search.sampler.proposer import Proposer
    from edgeloop.search.storage import storage_address
    from edgeloop.search.study import Candidate
    from edgeloop.search.training import Retrained, front_in, retrain, summary, trainer_of

_WHERE = {
    "base": ("Evaluation", "Observation", "Evaluator", "is_result"),
    "campaign": ("Search", "SearchResult", "search_folder", "search_settings"),
    "config": ("Objective", "SearchConfig", "read_config"),
    "evaluators": ("LocalTraining", "TrainingJobs", "RemoteBenchmark", "Screening"),
    "evaluators.screening": ("check_devices",),
    "folders": ("arch_ids", "find_search", "found_searches", "kept_search"),
    "keys": ("NO_LIMIT", "SearchFile"),
    "loop": ("Event",),
    "names": ("columns_of", "device_of", "on_device", "value_of"),
    "remote": ("earlier_job", "search_job"),
    "results.fronts": ("front_names", "fronts_of"),
    "results.importance": ("Importance",),
    "results.reading": ("SeenCandidate", "SeenFront", "SeenSearch", "read_search"),
    "results.volume": ("ReferencePoint",),
    "sampler.proposer": ("Proposer",),
    "storage": ("storage_address",),
    "study": ("Candidate",),
    "training": ("Retrained", "front_in", "retrain", "summary", "trainer_of"),
}

__all__ = [
    "NO_LIMIT",
    "Candidate",
    "Evaluation",
    "Evaluator",
    "Event",
    "Importance",
    "LocalTraining",
    "Objective",
    "Observation",
    "Proposer",
    "ReferencePoint",
    "RemoteBenchmark",
    "Retrained",
    "Screening",
    "Search",
    "SearchConfig",
    "SearchFile",
    "SearchResult",
    "SeenCandidate",
    "SeenFront",
    "SeenSearch",
    "TrainingJobs",
    "arch_ids",
    "check_devices",
    "columns_of",
    "device_of",
    "earlier_job",
    "find_search",
    "found_searches",
    "front_in",
    "front_names",
    "fronts_of",
    "is_result",
    "kept_search",
    "on_device",
    "read_config",
    "read_search",
    "retrain",
    "search_folder",
    "search_job",
    "search_settings",
    "storage_address",
    "summary",
    "trainer_of",
    "value_of",
]


def __getattr__(name: str) -> object:
    """Imported on demand: a job that only trains needs no Optuna."""
    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(f"edgeloop.search.{module}"), name)
    raise AttributeError(f"module 'edgeloop.search' has no attribute {name!r}")
