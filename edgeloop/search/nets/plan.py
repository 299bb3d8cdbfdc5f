"""How a model is trained, and the result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgeloop.errors import BadInput

DeviceName = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "float32", "bfloat16"]

BATCH_ON_CPU = 16
BATCH_ON_GPU = 64


@dataclass(frozen=True)
class TrainingPlan:
    """The first group determines the weights: a checkpoint with other values is not continued. The
    second group may change between sessions of a training.

    `steps` takes precedence over `epochs`. `patience` stops a training after that many epochs
    without a better F1. `batch` defaults to 16 on a CPU and 64 on a GPU. `checkpoint_s` is the time
    between checkpoints; ends of epochs are preferred. `images` and `validation_images` limit the
    size of each set, for partial training. `qat_from` is the checkpoint of a trained model, which
    then learns on with the rounding of quantization: weights of `qat_weight_bits` bits (4 or 8),
    activations of 8.

    `compile` uses torch.compile; None: on a GPU, if a training will take so long that its start-up
    pays. `until` pauses a training after that many epochs (steps, if `steps` are given). Its
    learning rate is that of the whole training, so a later session continues as if it had never
    paused.
    """

    epochs: int = 1
    steps: int | None = None
    batch: int | None = None
    learning_rate: float = 4e-3
    weight_decay: float = 1e-2
    seed: int = 0
    augment: bool = True
    patience: int | None = None
    task: str | None = None
    images: int | None = None
    validation_images: int | None = None
    qat_from: Path | None = None
    qat_weight_bits: int = 8

    device: DeviceName = "auto"
    precision: Precision = "auto"
    threads: int = 1
    checkpoint_s: float = 60.0
    compile: bool | None = None
    until: int | None = None

    def __post_init__(self) -> None:
        for name in (
            *("epochs", "steps", "batch", "patience", "images", "validation_images", "until"),
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(reason=f"{name} must be 1 or more, not {value}")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise BadInput(reason=f"learning_rate must be above 0, not {self.learning_rate}")
        if self.qat_weight_bits not in (4, 8):
            raise BadInput(reason=f"qat_weight_bits is 4 or 8, not {self.qat_weight_bits}")
        if self.seed < 0 or self.threads < 1 or self.weight_decay < 0:
            raise BadInput(reason="seed and weight_decay are 0 or more, threads 1 or more")

    def decides(self, batch: int) -> dict[str, int | float | str | bool | None]:
        """What a checkpoint must agree with to be continued."""
        return {
            "epochs": None if self.steps else self.epochs,
            "steps": self.steps,
            "batch": batch,
            "learning_rate": self.learning_rate,
            "weight_decay": self.weight_decay,
            "seed": self.seed,
            "augment": self.augment,
            "patience": self.patience,
            "images": self.images,
            "validation_images": self.validation_images,
            **({"qat": self.qat_weight_bits} if self.qat_from else {}),
        }


@dataclass(frozen=True)
class Epoch:
    """A line of metrics.jsonl. `loss` is the mean over the epoch's steps; F1 and mIoU are over the
    whole validation set; `seconds` count from the start, earlier sessions included. A pause in the
    middle of an epoch has a line, too."""

    epoch: int
    step: int
    loss: float
    f1: float
    miou: float
    learning_rate: float
    seconds: float
    images_per_s: float


@dataclass(frozen=True)
class TrainingResult:
    """The content of metrics.json. Scores are of the best epoch, whose weights are exported. A
    training that is paused has the best scores so far, and no model yet.
    `gpu_utilisation` is the GPU's, from 0 to 1, with all trainings that shared it; None where it
    is not known."""

    arch_id: str
    f1: float
    miou: float
    loss: float
    best_epoch: int
    epochs: int
    steps: int
    parameters: int
    seconds: float
    images_per_s: float
    stopped_early: bool
    device: str
    task: str
    is_paused: bool = False
    gpu_utilisation: float | None = None


@dataclass(frozen=True)
class TrainingProgress:
    """The progress of a training. `last` is the last finished epoch."""

    step: int
    steps: int
    loss: float
    last: Epoch | None


ProgressReport = Callable[[TrainingProgress], None]
