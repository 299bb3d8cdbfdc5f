"""Inputs for any model: what somebody gives, else random numbers.

Latency depends on a model's graph, not on its scales, so a benchmark needs no dataset. What was
calibrated on random inputs says so, and is never scored against labels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput
from edgeloop.graph import GraphInfo, TensorInfo, image_info, index_limits
from edgeloop.tasks.base import Interval, Samples, Scorer
from edgeloop.tasks.tensors.agreement import agreement_difference, agreement_interval
from edgeloop.tasks.tensors.given import check_given, given_inputs

Purpose = Literal["calibration", "test"]
SEED = 20_261_116
RANDOM_SAMPLES = 8
_NO_ACCURACY = "accuracy needs a dataset: --dataset FOLDER, or INPUT_DATASET in the environment"


class TensorsTask:
    """Any model fits, and none can be scored against labels: `inputs` are for calibration, and for
    a test of how well a quantized model agrees with the float one.

    `source` is a folder or a file as `--calibration` takes it; None: random numbers, the same on
    every machine. Nothing is prepared, so `cache` stays empty.
    """

    name = "tensors"
    classes: Sequence[str] = ()

    def __init__(self, source: Path | None = None, cache: Path | None = None) -> None:
        self._source = source

    @property
    def is_random(self) -> bool:
        return self._source is None

    def check(self) -> None:
        """Raises where no model could take what was given: it is not there, or nothing is in it."""
        if self._source is not None:
            check_given(self._source)

    def inputs(
        self, info: GraphInfo, count: int, purpose: Purpose, model: Path | None = None
    ) -> Samples:
        """Samples of all inputs: images where the model takes one image and nothing else, else
        tensors by name. Of what was given, calibration takes the first and a test the last.
        `model` is the file, which tells how large tokens may be."""
        if self._source is None:
            tensors = _random(info, min(count, max(RANDOM_SAMPLES, info.batch)), purpose, model)
            return _samples(info, tensors, "random", _random_note(info, tensors))
        tensors = given_inputs(self._source, info, count, last=purpose == "test")
        what = "images" if info.image else "inputs"
        note = f"calibrated on {_count(tensors)} {what} of {self._source.name}"
        return _samples(info, tensors, "given", note)

    def calibration(self, height: int, width: int, count: int) -> Samples:
        return self.inputs(_image_of(height, width), count, "calibration")

    def test(self, height: int, width: int, count: int) -> Samples:
        _refuse()

    def check_output(self, shape: Sequence[int]) -> None:
        """Whatever a model gives can be compared with what its float form gives."""

    def check_outputs(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """As `check_output`, for all outputs."""

    def scorer(self, curves: bool = True) -> Scorer:
        _refuse()

    def interval(self, counts: NDArray[Any]) -> Interval:
        return agreement_interval(counts)

    def difference(self, first: NDArray[Any], second: NDArray[Any]) -> Interval:
        """Of `AgreementScorer.counts`, both against the same float model."""
        return agreement_difference(first, second)


def _refuse() -> NoReturn:
    raise BadInput(reason=_NO_ACCURACY)


def _image_of(height: int, width: int) -> GraphInfo:
    return image_info("image", "output", (1, height, width, 3), (1, 1), "NHWC")


def _count(tensors: Mapping[str, NDArray[Any]]) -> int:
    return len(next(iter(tensors.values()), ()))


def _samples(
    info: GraphInfo, tensors: Mapping[str, NDArray[Any]], origin: str, note: str
) -> Samples:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(np.ascontiguousarray(tensors[name]).data)
    labels, key = np.zeros(_count(tensors), np.uint8), digest.hexdigest()
    if info.image is not None:
        return Samples(tensors[info.input_name], labels, key, note, origin)
    nothing = np.zeros((0, 0, 0, 3), np.uint8)
    return Samples(nothing, labels, key, note, origin, tensors)


def _random_note(info: GraphInfo, tensors: Mapping[str, NDArray[Any]]) -> str:
    what = "images" if info.image else "inputs"
    remedy = "reset convert and start a runner with a dataset"
    if not info.image:
        remedy = "reset convert and start a runner with --calibration and inputs as in use"
    return (
        f"calibrated on {_count(tensors)} random {what} (seed {SEED}): good for latency, not for "
        f"accuracy; for accuracy, {remedy}"
    )


def _random(
    info: GraphInfo, count: int, purpose: Purpose, model: Path | None
) -> dict[str, NDArray[Any]]:
    """The same for everybody, so that two machines quantize a model alike."""
    dice = np.random.default_rng(SEED + (purpose == "test"))
    takes_numbers = any(np.dtype(tensor.dtype).kind in "iu" for tensor in info.inputs)
    limits = index_limits(model) if model is not None and takes_numbers else {}
    return {
        tensor.name: _random_tensor(tensor, info, count, dice, limits.get(tensor.name))
        for tensor in info.inputs
    }


def _random_tensor(
    tensor: TensorInfo, info: GraphInfo, count: int, dice: np.random.Generator, limit: int | None
) -> NDArray[Any]:
    """Pixels for images; floats from 0 to 1 for other maps, which are mostly images too, and else
    normally distributed; tokens from the whole vocabulary. Masks hide nothing."""
    if tensor.layout:
        return dice.integers(0, 256, (count, tensor.height, tensor.width, 3), np.uint8)
    shape, kind = (count, *info.sample_shape(tensor)), np.dtype(tensor.dtype)
    if kind.kind == "f":
        is_map = len(tensor.shape) >= 4
        values = dice.random(shape) if is_map else dice.standard_normal(shape)
        return values.astype(kind)
    if kind.kind == "b" or "mask" in tensor.name.lower():
        return np.ones(shape, kind)
    most = min(limit or 2, np.iinfo(kind).max)
    return dice.integers(0, most, shape).astype(kind)
