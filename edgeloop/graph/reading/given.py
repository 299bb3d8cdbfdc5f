"""Shapes as people give them, and as a model's row keeps them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from edgeloop.errors import BadInput
from edgeloop.graph.info import Shape

ONLY_INPUT = ""  # the name under which a shape without a name stands
_SHAPE = re.compile(r"\d+(?:(?:\s*[x×,]\s*)\d+)*", re.IGNORECASE)
_LARGEST_SIDE = 2**31 - 1


def parse_shapes(texts: Sequence[str]) -> dict[str, Shape]:
    """From `x=1x3x224x224` or `x=1,3,224,224`; a model with one input needs no name."""
    shapes: dict[str, Shape] = {}
    for text in texts:
        name, equals, sides = text.rpartition("=")
        name, sides = name.strip(), sides.strip().removeprefix("[").removesuffix("]").strip()
        if not _SHAPE.fullmatch(sides) or bool(equals) != bool(name):
            reason = f"--shape takes NAME=SIZES such as x=1x3x224x224, not {text!r}"
            raise BadInput(reason=reason)
        shape = tuple(int(side) for side in re.findall(r"\d+", sides))
        if not all(1 <= side <= _LARGEST_SIDE for side in shape):
            raise BadInput(
                reason=f"--shape takes sizes from 1 on, as in x=1x3x224x224, not {text!r}"
            )
        if shapes.setdefault(name, shape) != shape:
            which = f"the input {name!r}" if name else "the input"
            raise BadInput(reason=f"{which} is given two shapes")
    return shapes


def shapes_text(shapes: Mapping[str, Shape]) -> str:
    """For the column `shapes`; empty without any."""
    return json.dumps({name: list(shape) for name, shape in shapes.items()}) if shapes else ""


def shapes_from(value: object) -> dict[str, Shape]:
    """From the column `shapes`, which people may have edited; empty or missing: no shapes."""
    if value is None or not str(value).strip():
        return {}
    try:
        fields = value if isinstance(value, Mapping) else json.loads(str(value))
        shapes = {str(name): tuple(int(side) for side in sides) for name, sides in fields.items()}
        if all(side >= 1 for shape in shapes.values() for side in shape):
            return shapes
    except (ValueError, TypeError, AttributeError):
        pass
    reason = f'the column shapes is {value!r}; it should be like {{"x": [1, 3, 224, 224]}}'
    raise BadInput(reason=reason)
