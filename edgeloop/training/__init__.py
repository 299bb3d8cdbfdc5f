"""Training models for the tasks.

result = train(arch, Path("faces"), TrainingPlan(epochs=3), Path("out"))
print(result.f1, result.miou)
"""

from edgeloop.training.checkpoint import ARCH, CHECKPOINT, HISTORY, METRICS, MODEL, load_weights
from edgeloop.training.data import SharedData
from edgeloop.training.device import usable_cards
from edgeloop.training.loop import train
from edgeloop.training.many import Outcome, TrainingItem, train_many
from edgeloop.training.plan import (
    Epoch,
    ProgressReport,
    TrainingPlan,
    TrainingProgress,
    TrainingResult,
)
from edgeloop.training.proxies import proxies_of
from edgeloop.training.sharing import USUAL_AT_ONCE, SharedTraining

__all__ = [
    "ARCH",
    "CHECKPOINT",
    "HISTORY",
    "METRICS",
    "MODEL",
    "USUAL_AT_ONCE",
    "Epoch",
    "Outcome",
    "ProgressReport",
    "SharedData",
    "SharedTraining",
    "TrainingItem",
    "TrainingPlan",
    "TrainingProgress",
    "TrainingResult",
    "load_weights",
    "proxies_of",
    "train",
    "train_many",
    "usable_cards",
]
