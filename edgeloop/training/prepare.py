"""From bytes to a net's input, on the device, with a little variety.

Each image is moved by up to a sixteenth of its side (borders are repeated) and its colours are
made a little stronger, weaker, lighter or darker. No mirroring: a left eye is not a right one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_FARTHEST = 1 / 16
_GAIN = 0.2
_OFFSET = 0.1


def plain(images: Tensor, kind: torch.dtype) -> Tensor:
    """(n, 3, height, width) from 0 to 1, channels last in memory: no byte is moved twice."""
    return images.permute(0, 3, 1, 2).to(kind).mul_(1 / 255)


def varied(
    images: Tensor, labels: Tensor, chance: Tensor, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`chance` (n, 8) from 0 to 1: two numbers for the move, three for gains, three for offsets."""
    import torch

    count, height, width, _ = images.shape
    device = images.device
    moves = (chance[:, :2] * 2 - 1) * _FARTHEST
    rows = _moved(moves[:, 0], height, device)[:, :, None]
    columns = _moved(moves[:, 1], width, device)[:, None, :]
    numbers = torch.arange(count, device=device)[:, None, None]
    images = images[numbers, rows, columns]
    if labels.dim() == 3:
        labels = labels[numbers, rows, columns]
    gains = (1 + (chance[:, 2:5] * 2 - 1) * _GAIN) / 255
    offsets = (chance[:, 5:8] * 2 - 1) * _OFFSET
    floats = torch.addcmul(
        offsets[:, None, None, :].to(kind), images.to(kind), gains[:, None, None, :].to(kind)
    )
    return floats.permute(0, 3, 1, 2), labels


def _moved(moves: Tensor, side: int, device: torch.device) -> Tensor:
    import torch

    shift = (moves * side).round().to(torch.int64)
    return (torch.arange(side, device=device) + shift[:, None]).clamp_(0, side - 1)
