"""Training nets for the tasks. The door of the room: what others may use.

result = train(arch, Path("faces"), TrainingPlan(epochs=3), Path("out"))
print(result.f1, result.miou)
"""

from edgeloop.training.checkpoint import ARCH, CHECKPOINT, HISTORY, METRICS, MODEL, load_weights
from edgeloop.training.loop import train
from edgeloop.training.many import Candidate, Outcome, train_many
from edgeloop.training.plan import Epoch, Progress, Report, TrainingPlan, TrainingResult
from edgeloop.training.sets import Shared

__all__ = [
    "ARCH",
    "CHECKPOINT",
    "HISTORY",
    "METRICS",
    "MODEL",
    "Candidate",
    "Epoch",
    "Outcome",
    "Progress",
    "Report",
    "Shared",
    "TrainingPlan",
    "TrainingResult",
    "load_weights",
    "train",
    "train_many",
]
