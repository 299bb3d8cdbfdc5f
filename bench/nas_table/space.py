"""The space of the table: hourglasses whose blocks are all alike, 576 of them.

Seven choices stand for the several dozen of the built-in space, so that all members can be trained
and the true front is known. `build` makes it a space for a search:

    space: bench/nas_table/space.py:build
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from edgeloop.search.nets.architecture import Architecture, FixedTrial, Trial, Value
from edgeloop.search.nets.spaces import find_space

SIDE, CLASSES, DEPTH = 128, 19, 4
SHAPE = (1, 3, SIDE, SIDE)
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "stem_stride": (2, 4),
    "base_channels": (8, 12, 16, 24),
    "factor": (1.2, 1.5, 2),
    "layers": (1, 2, 3),
    "kernel": ("conv3x3", "conv5x5"),
    "skip_layers": (0, 1),
    "last_layers": (0, 1),
}


def table_space(trial: Trial) -> dict[str, Value]:
    """Suggests a member; nothing is built, and PyTorch is not needed."""
    return {
        name: trial.suggest_categorical(name, list(choices)) for name, choices in CHOICES.items()
    }


def build(trial: Trial, shape: tuple[int, int, int, int], classes: int) -> Any:
    """The network of a member."""
    chosen = FixedTrial(hourglass_params(table_space(trial)), "a member of the table")
    return find_space("hourglass").build(chosen, shape, classes)


def all_params() -> list[dict[str, Value]]:
    """Every member, in the order of the choices."""
    return [dict(zip(CHOICES, values, strict=True)) for values in product(*CHOICES.values())]


def architecture(params: Mapping[str, Value]) -> Architecture:
    """The member as one of the built-in space, which is what was trained: its id is the one that
    a search of that space would give it."""
    return Architecture("hourglass", hourglass_params(params), SHAPE, CLASSES)


def hourglass_params(params: Mapping[str, Value]) -> dict[str, Value]:
    """The values of the built-in space: every level has the same block."""
    full: dict[str, Value] = {
        "depth": DEPTH,
        "stem_stride": params["stem_stride"],
        "base_channels": params["base_channels"],
        "hourglasses": 1,
    }
    layers = {"down": params["layers"], "skip": params["skip_layers"], "up": params["layers"]}
    blocks = {f"{name}{level}": layers[name] for level in range(1, DEPTH) for name in layers}
    blocks |= {f"down{DEPTH}": params["layers"], "last": params["last_layers"]}
    for level in range(1, DEPTH + 1):
        full[f"h0_down{level}_factor"] = params["factor"]
    for name, count in blocks.items():
        full[f"h0_{name}_layers"] = count
        for number in range(int(count)):  # type: ignore[arg-type]
            full[f"h0_{name}_op{number}"] = params["kernel"]
    return full
