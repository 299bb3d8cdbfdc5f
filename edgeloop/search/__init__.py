"""Searching a space of architectures: what to try next, what it is worth, and the front in the end.

    with Campaign(read_config(Path("laptop.yaml")), Settings.load(), resume=False) as campaign:
        outcome = campaign.run()

`RemoteBenchmark` and `PartialTraining` work without a search, too: `send` an architecture and
`collect` the answers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeloop.search.base import Answer, Evaluated, Evaluator
    from edgeloop.search.campaign import Campaign, Outcome, search_folder
    from edgeloop.search.config import SearchConfig, read_config
    from edgeloop.search.evaluators import (
        LocalTraining,
        PartialTraining,
        RemoteBenchmark,
        Screening,
    )
    from edgeloop.search.keys import SearchFile
    from edgeloop.search.loop import Event
    from edgeloop.search.remote import search_job
    from edgeloop.search.retraining import Retrained, retrain, summary
    from edgeloop.search.sampler.proposer import Proposer
    from edgeloop.search.storage import storage_address
    from edgeloop.search.study import Candidate
    from edgeloop.search.training import trainer_of

_WHERE = {
    "base": ("Answer", "Evaluated", "Evaluator"),
    "campaign": ("Campaign", "Outcome", "search_folder"),
    "config": ("SearchConfig", "read_config"),
    "evaluators": ("LocalTraining", "PartialTraining", "RemoteBenchmark", "Screening"),
    "keys": ("SearchFile",),
    "loop": ("Event",),
    "remote": ("search_job",),
    "retraining": ("Retrained", "retrain", "summary"),
    "sampler.proposer": ("Proposer",),
    "storage": ("storage_address",),
    "study": ("Candidate",),
    "training": ("trainer_of",),
}

__all__ = [
    "Answer",
    "Campaign",
    "Candidate",
    "Evaluated",
    "Evaluator",
    "Event",
    "LocalTraining",
    "Outcome",
    "PartialTraining",
    "Proposer",
    "RemoteBenchmark",
    "Retrained",
    "Screening",
    "SearchConfig",
    "SearchFile",
    "read_config",
    "retrain",
    "search_folder",
    "search_job",
    "storage_address",
    "summary",
    "trainer_of",
]


def __getattr__(name: str) -> object:
    """Each thing when it is asked for: a job that only trains needs no Optuna."""
    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(f"edgeloop.search.{module}"), name)
    raise AttributeError(f"module 'edgeloop.search' has no attribute {name!r}")
