"""Tasks whose answer is an image: a map of distances, or a sharper image.

Their score is the mean over the images of the test, so intervals need one value per image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgeloop.errors import BadInput
from edgeloop.tasks.base import Interval, Output, Tensors
from edgeloop.tasks.metrics import Floats, Headline, bootstrap, check_paired

_LEAST_SIDE = 4
_MAP, _IMAGE = 3, 4  # dimensions


def mean_interval(values: Floats) -> Interval:
    """Of the first column; images without a value (NaN) do not count."""
    return bootstrap(len(values), _mean(values))


def mean_difference(first: Floats, second: Floats) -> Interval:
    check_paired(first, second)
    ours, theirs = _mean(first), _mean(second)
    return bootstrap(len(first), lambda weights: ours(weights) - theirs(weights))


def _mean(values: Floats) -> Headline:
    column = np.asarray(values, np.float64)[:, 0]
    is_known = np.isfinite(column)
    known = np.where(is_known, column, 0.0)

    def value(weights: Floats) -> Floats:
        mean: Floats = (weights @ known) / np.maximum(weights @ is_known.astype(np.float64), 1)
        return mean

    return value


def channels_of(shape: Sequence[int]) -> int:
    """Of an image (n, channels, H, W) or (n, H, W, channels), or a map (n, H, W); 0: neither."""
    sides = tuple(shape[1:])
    if len(shape) == _MAP:
        return 1 if min(sides) >= _LEAST_SIDE else 0
    if len(shape) != _IMAGE or sides[1] < _LEAST_SIDE:
        return 0
    return min(sides[0], sides[2])


def chosen(shapes: Mapping[str, Sequence[int]], channels: int, wanted: str) -> str:
    """The output with so many channels: the largest, and the first of those."""
    fitting = {n: int(np.prod(s)) for n, s in shapes.items() if channels_of(s) == channels}
    if fitting:
        return max(fitting, key=lambda name: fitting[name])
    have = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    raise BadInput(reason=f"the model's output ({have}) is not {wanted}")


def as_images(outputs: Tensors, channels: int, wanted: str, count: int) -> Output:
    """The chosen output as (n, H, W, channels), in floats."""
    shapes = {name: array.shape for name, array in outputs.items()}
    array = outputs[chosen(shapes, channels, wanted)]
    if array.ndim == _MAP:
        array = array[..., None]
    elif array.shape[-1] != channels:
        array = array.transpose(0, 2, 3, 1)
    if len(array) != count:
        raise BadInput(reason=f"{len(array)} images were answered, but {count} asked")
    if not np.isfinite(array).all():
        raise BadInput(
            reason="the model's output holds NaN or infinite values, which no score can be made "
            "of: check its weights, or run it with a wider number type"
        )
    return array.astype(np.float32)
