"""Weights out of a checkpoint, into a net of the same architecture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop.architectures import Architecture
from edgeloop.errors import BadInput, LocalFileError
from edgeloop.training.checkpoint import read_checkpoint

if TYPE_CHECKING:
    from torch import nn


def load_weights(net: nn.Module, arch: Architecture, path: Path) -> None:
    """Those of the best epoch; before the first has ended, those of the last step."""
    fields = read_checkpoint(path)
    if fields is None:
        raise LocalFileError(path=path, reason="there is no such checkpoint")
    trained = fields["belongs_to"].get("architecture")
    if trained != arch.id:
        raise BadInput(reason=f"{path} holds weights of {trained}, not of {arch.id}")
    net.load_state_dict(fields["best"] or fields["net"])
