"""A small space for classification: a stem, two to four stages, a pooled head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgeloop.errors import BadInput
from edgeloop.search.nets.architecture import Shape
from edgeloop.search.nets.hourglass import Block, ConvLayer
from edgeloop.search.nets.trial import Trial

if TYPE_CHECKING:
    from torch import nn

WIDTHS = (8, 16, 24, 32)
KERNELS = (3, 5)


def build(trial: Trial, shape: Shape, classes: int, **options: Any) -> nn.Module:
    """Takes the options of `ask`."""
    from torch import nn

    from edgeloop.search.nets.layers import block_of

    layers = ask(trial, shape, classes, **options)
    body = block_of(layers)  # before the head: random numbers are drawn in this order
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(layers[-1].outputs, classes)
    return nn.Sequential(*body, *head)


def ask(
    trial: Trial,
    shape: Shape,
    classes: int,
    *,
    widths: Sequence[int] = WIDTHS,
    kernels: Sequence[int] = KERNELS,
    most_stages: int = 4,
    most_layers: int = 3,
) -> Block:
    """Each stage halves the side and multiplies the channels by a factor."""
    width = trial.suggest_categorical("width", list(widths))
    layers = [ConvLayer(3, width, 3, 2)]
    stages = trial.suggest_int("stages", min(2, most_stages), most_stages)
    if min(shape[2:]) < 2 ** (stages + 1):
        reason = f"{shape[2]} × {shape[3]} is too small to be halved {stages + 1} times"
        raise BadInput(reason=reason)
    for stage in range(stages):
        factor = trial.suggest_float(f"stage{stage}_factor", 1.0, 2.0, step=0.5)
        kernel = trial.suggest_categorical(f"stage{stage}_kernel", list(kernels))
        outputs, stride = 4 * round(width * factor / 4), 2
        for _ in range(trial.suggest_int(f"stage{stage}_layers", 1, most_layers)):
            layers.append(ConvLayer(width, outputs, kernel, stride))
            width, stride = outputs, 1
    return tuple(layers)
