"""The task `tensors`: any inputs, any outputs, no dataset. Instead of accuracy it says how well a
model agrees with the float model."""

from edgeloop.tasks.tensors.agreement import AGREEMENT, Agreement, AgreementScorer
from edgeloop.tasks.tensors.task import Purpose, TensorsTask

__all__ = ["AGREEMENT", "Agreement", "AgreementScorer", "Purpose", "TensorsTask"]
