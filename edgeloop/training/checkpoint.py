"""The folder of a training: what is in it, and how it stays whole whenever the process is killed.

checkpoint.pt is the truth; every other file can be made again from it, and is when a training goes
on: the history may be ahead of the checkpoint. Each is written beside its
place and renamed, so a reader sees the old one or the new one and never half of it.

Weights out of a checkpoint, into a net of the same architecture.
"""

from __future__ import annotations

import json
import os
import pickle
import uuid
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from edgeloop.architectures import Architecture
from edgeloop.errors import BadInput, LocalFileError
from edgeloop.training.plan import Epoch, TrainingResult

if TYPE_CHECKING:
    from torch import nn

CHECKPOINT, MODEL, ARCH = "checkpoint.pt", "model.onnx", "arch.json"
METRICS, HISTORY = "metrics.json", "metrics.jsonl"
FILES = (CHECKPOINT, MODEL, ARCH, METRICS, HISTORY)
VERSION = 1


@dataclass
class State:
    """All that a training is at a step: with the plan, it gives the same steps from there on.

    `belongs_to` says which training this is of; `best` are the weights of the best epoch.
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


class Folder:
    """Where a training writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
        for name in FILES:
            for part in path.glob(f".{name}.*"):  # what a killed process was just writing
                part.unlink(missing_ok=True)

    def clear(self) -> None:
        for name in FILES:
            (self.path / name).unlink(missing_ok=True)

    def save(self, state: State) -> None:
        import torch

        fields = {name: getattr(state, name) for name in State.__dataclass_fields__}
        fields["epochs"] = [asdict(epoch) for epoch in state.epochs]
        whole = {"version": VERSION, **fields}
        write_whole(self.path / CHECKPOINT, lambda file: torch.save(whole, file))
        self.write_history(state.epochs)

    def load(self, belongs_to: Mapping[str, Any]) -> State | None:
        """The state to go on from, if there is one; a training of something else is not touched."""
        fields = read_checkpoint(self.path / CHECKPOINT)
        if fields is None:
            return None
        state = State(**{name: fields[name] for name in State.__dataclass_fields__})
        state.epochs = [Epoch(**epoch) for epoch in fields["epochs"]]
        differing = [key for key, value in belongs_to.items() if state.belongs_to.get(key) != value]
        if differing:
            key = differing[0]
            raise BadInput(
                reason=f"{self.path} holds a training with another {key} "
                f"({state.belongs_to.get(key)}, not {belongs_to[key]}): choose another folder "
                "with --out, or begin anew with --fresh"
            )
        self.write_history(state.epochs)
        return state

    def write_history(self, epochs: Sequence[Epoch]) -> None:
        lines = "".join(json.dumps(asdict(epoch)) + "\n" for epoch in epochs)
        write_whole(self.path / HISTORY, lambda file: file.write(lines.encode()))

    def write_result(self, result: TrainingResult) -> None:
        text = json.dumps(asdict(result), indent=2) + "\n"
        write_whole(self.path / METRICS, lambda file: file.write(text.encode()))


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """Tensors and plain values only: a checkpoint of unknown origin can run no code."""
    import torch

    try:
        fields = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
        reason = "it is no checkpoint, or it is damaged: begin anew with --fresh"
        raise LocalFileError(path=path, reason=reason) from error
    if not isinstance(fields, dict) or fields.get("version") != VERSION:
        raise LocalFileError(path=path, reason="it is a checkpoint of another program or version")
    return fields


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
    finally:
        temporary.unlink(missing_ok=True)


def load_weights(net: nn.Module, arch: Architecture, path: Path) -> None:
    """Those of the best epoch; before the first has ended, those of the last step."""
    fields = read_checkpoint(path)
    if fields is None:
        raise LocalFileError(path=path, reason="there is no such checkpoint")
    trained = fields["belongs_to"].get("architecture")
    if trained != arch.id:
        raise BadInput(reason=f"{path} holds weights of {trained}, not of {arch.id}")
    net.load_state_dict(fields["best"] or fields["net"])
