"""The folder of a training, which stays consistent whenever the process is killed.

checkpoint.pt is the truth; every other file is rewritten from it when a training resumes, since the
history may be ahead of the checkpoint. All files are replaced atomically.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from edgeloop._util.files import replacing
from edgeloop.errors import BadInput, LocalFileError
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.plan import Epoch, TrainingResult

if TYPE_CHECKING:
    from torch import nn

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
        known = {"pauses": [], **fields}  # older checkpoints have none
        state = State(**{name: known[name] for name in State.__dataclass_fields__})
        state.epochs = [Epoch(**epoch) for epoch in known["epochs"]]
        state.pauses = [Epoch(**epoch) for epoch in known["pauses"]]
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
    except (pickle.UnpicklingError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
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
