"""How a model is trained, and the result."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from edgeloop._util.files import replacing
from edgeloop._util.values import suggestion
from edgeloop.errors import BadInput, LocalFileError
from edgeloop.search.nets.architecture import Architecture

if TYPE_CHECKING:
    from torch import nn


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
        counts = ("epochs", "steps", "batch", "patience", "images", "validation_images", "until")
        for name in counts:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(reason=f"{name} must be 1 or more, not {value}")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise BadInput(reason=f"learning_rate must be above 0, not {self.learning_rate}")
        if self.qat_weight_bits not in (4, 8):
            raise BadInput(reason=f"qat_weight_bits is 4 or 8, not {self.qat_weight_bits}")
        if self.seed < 0 or self.threads < 1 or self.weight_decay < 0:
            raise BadInput(reason="seed and weight_decay are 0 or more, threads 1 or more")

    @classmethod
    def of(cls, plan: TrainingPlan | Mapping[str, object]) -> TrainingPlan:
        """A plan, or its fields by name. Raises BadInput."""
        if isinstance(plan, TrainingPlan):
            return plan
        names = [entry.name for entry in fields(cls)]
        for name in plan:
            if name not in names:
                hint = suggestion(str(name), names, "there are")
                raise BadInput(reason=f"a training plan has no {name!r}: {hint}")
        try:
            return cls(**dict(plan))  # type: ignore[arg-type]
        except TypeError as error:
            raise BadInput(reason=f"the training plan cannot be read: {error}") from None

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
class TrainingPaths:
    """The dataset of a training, the folder it writes to, one for decoded images, and the root for
    files of spaces: by default the current folder."""

    dataset: Path
    out: Path
    cache: Path | None = None
    project: Path | None = None

    @property
    def prepared(self) -> Path:
        """Where decoded images are kept."""
        return self.cache or (self.project or Path.cwd()) / ".edgeloop/prepared"


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


# The folder of a training, which stays consistent whenever the process is killed.
#
# checkpoint.pt is the truth; every other file is rewritten from it when a training resumes, since
# the history may be ahead of the checkpoint. All files are replaced atomically.


CHECKPOINT, MODEL, ARCH = "checkpoint.pt", "model.onnx", "arch.json"
METRICS, HISTORY = "metrics.json", "metrics.jsonl"
FILES = (CHECKPOINT, MODEL, ARCH, METRICS, HISTORY)
VERSION = 1


@dataclass
class State:
    """The state of a training at a step: with the plan, it determines all further steps.

    `belongs_to` identifies the training; `best` holds the weights of the best epoch. `pauses` are
    scores in the middle of an epoch, which have no effect on what is learned or exported.
    """

    belongs_to: dict[str, Any]
    net: dict[str, Any]
    optimizer: dict[str, Any]
    step: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    epochs: list[Epoch] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    best_epoch: int = 0
    is_done: bool = False
    pauses: list[Epoch] = field(default_factory=list)

    @property
    def history(self) -> list[Epoch]:
        return sorted([*self.epochs, *self.pauses], key=lambda epoch: epoch.step)


class Folder:
    """Where a training writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
        for name in FILES:
            for part in path.glob(f".{name}.*"):  # left by a killed process
                part.unlink(missing_ok=True)

    def clear(self) -> None:
        for name in FILES:
            (self.path / name).unlink(missing_ok=True)

    def save(self, state: State) -> None:
        import torch

        fields = {name: getattr(state, name) for name in State.__dataclass_fields__}
        for name in ("epochs", "pauses"):
            fields[name] = [asdict(epoch) for epoch in fields[name]]
        whole = {"version": VERSION, **fields}
        write_whole(self.path / CHECKPOINT, lambda file: torch.save(whole, file))
        self.write_history(state.history)

    def load(self, belongs_to: Mapping[str, Any]) -> State | None:
        """The state to resume from, if any. Raises if the folder belongs to another training."""
        fields = read_checkpoint(self.path / CHECKPOINT)
        if fields is None:
            return None
        complete = {"pauses": [], **fields}  # older checkpoints have none
        state = State(**{name: complete[name] for name in State.__dataclass_fields__})
        state.epochs = [Epoch(**epoch) for epoch in complete["epochs"]]
        state.pauses = [Epoch(**epoch) for epoch in complete["pauses"]]
        differing = [key for key, value in belongs_to.items() if state.belongs_to.get(key) != value]
        if differing:
            key = differing[0]
            raise BadInput(
                reason=f"{self.path} holds a training with another {key} "
                f"({state.belongs_to.get(key)}, not {belongs_to[key]}): choose another folder "
                "with --out, or start over with --fresh"
            )
        self.write_history(state.history)
        return state

    def write_history(self, epochs: Sequence[Epoch]) -> None:
        lines = "".join(json.dumps(asdict(epoch)) + "\n" for epoch in epochs)
        write_whole(self.path / HISTORY, lambda file: file.write(lines.encode()))

    def write_result(self, result: TrainingResult) -> None:
        text = json.dumps(asdict(result), indent=2) + "\n"
        write_whole(self.path / METRICS, lambda file: file.write(text.encode()))


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """Loads tensors and plain values only, so that an untrusted checkpoint cannot run code."""
    import torch

    try:
        fields = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
    except Exception as error:  # which one depends on the bytes
        reason = "it is not a checkpoint, or it is damaged: start over with --fresh"
        raise LocalFileError(path=path, reason=reason) from error
    if not isinstance(fields, dict) or fields.get("version") != VERSION:
        raise LocalFileError(path=path, reason="it is a checkpoint of another program or version")
    return fields


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    try:
        with replacing(path, durable=True) as temporary, temporary.open("wb") as file:
            write(file)
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None


def load_weights(net: nn.Module, arch: Architecture, path: Path) -> None:
    """Loads the weights of the best epoch, or of the last step before the first epoch ends."""
    fields = read_checkpoint(path)
    if fields is None:
        raise LocalFileError(path=path, reason="there is no such checkpoint")
    trained = fields["belongs_to"].get("architecture")
    if trained != arch.id:
        raise BadInput(reason=f"{path} holds weights of {trained}, not of {arch.id}")
    if "qat" in fields["belongs_to"]:
        reason = f"{path} is of a quantization-aware training: use the model.onnx beside it"
        raise BadInput(reason=reason)
    net.load_state_dict(fields["best"] or fields["net"])
