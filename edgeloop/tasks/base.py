"""The interface between datasets and everything that measures the quality of a model.

A task reads a dataset, prepares inputs of a shape, and scores outputs. Images are kept as they are
on the chip: uint8, RGB, channel-last, resized once per shape and cached by content; divide by 255
for floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edgeloop._util.schema import Section, validated
from edgeloop._util.yaml import read_document
from edgeloop.errors import BadInput, BadSetting
from edgeloop.graph.info import GraphInfo

Images = NDArray[np.uint8]
Labels = NDArray[Any]
Output = NDArray[Any]
Tensors = Mapping[str, NDArray[Any]]
"""Samples of named inputs or outputs: every array has as many, along its first axis."""


@dataclass(frozen=True)
class Samples:
    """Images (N, H, W, 3) and their labels, both memory-mapped: nothing is read before it is used.
    For models that take anything else than one image, `tensors` has what they take, by the names
    of their inputs, and there are no images.

    `key` names the content: the same key is the same bytes, here and on a board.
    `note` says what a person should know (a small dataset was split in proportion).
    `origin` says where the images come from: the dataset, files that the user gave, or chance.
    """

    images: Images
    labels: Labels
    key: str
    note: str = ""
    origin: str = "dataset"
    tensors: Tensors | None = None

    def __len__(self) -> int:
        if self.tensors is not None:
            return min(map(len, self.tensors.values()), default=0)
        return len(self.images)


@dataclass(frozen=True)
class Interval:
    """A value with its bootstrap 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Score:
    """What a test set says of a model. `headline` is the value that goes into the row: F1, mAP, …

    `table` has one row per metric (iou, f1, AP) and one column per class, then `overall`; class
    maps have no probabilities, so no AP row. A class without a value is left out of a row.
    `counts` has one entry per image, for intervals and paired differences: a confusion matrix, or
    for classification the pair of truth and answer.
    `curves` maps a class to its (recall, precision) points; empty without probabilities.
    `curve_row` is the row of `table` with the areas below them.
    `curve_images` is how many images that row and the curves are of; 0: all of them.
    `note` says what a person should know, such as how outputs were understood.
    """

    headline: float
    table: Mapping[str, Mapping[str, float]]
    counts: NDArray[Any]
    curves: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]
    curve_images: int = 0
    curve_row: str = "AP"
    note: str = ""

    def with_curves_of(self, sample: Score) -> Score:
        """The same headline and counts, with the curves of a test on fewer images."""
        rows = (sample.curve_row,) if sample.curves else ()
        table = {**self.table, **{name: sample.table[name] for name in rows}}
        images = len(sample.counts) if sample.curves else 0
        return replace(self, table=table, curves=sample.curves, curve_images=images)


class Scorer(Protocol):
    """Takes outputs batch by batch and keeps sums only, never all logits."""

    def add(self, outputs: Any, labels: Labels) -> None:
        """A batch: the array of the model's one output, such as (n, classes, H, W) logits, (n, H,
        W, classes) logits, or (n, H, W) class maps; for classification (n, classes) logits or (n,)
        classes. For a task that `TakesOutputs`, all outputs by name."""

    def score(self) -> Score: ...


class Task(Protocol):
    name: str

    @property
    def classes(self) -> Sequence[str]: ...

    def calibration(self, height: int, width: int, count: int) -> Samples:
        """The first images, for quantization. Never overlaps the test set."""

    def test(self, height: int, width: int, count: int) -> Samples:
        """The last images, with labels."""

    def scorer(self, curves: bool = True) -> Scorer: ...

    def check_output(self, shape: Sequence[int]) -> None:
        """Raises BadInput when outputs of this shape cannot be scored by this task."""

    def interval(self, counts: NDArray[Any]) -> Interval:
        """The headline with its bootstrap interval over images."""

    def difference(self, first: NDArray[Any], second: NDArray[Any]) -> Interval:
        """Paired: first − second on the same images, resampled together."""


@runtime_checkable
class TakesOutputs(Protocol):
    """What a task has besides where it scores models with several outputs. Its scorer gets them by
    name, also where a model has only one."""

    def check_outputs(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raises BadInput when a model with such outputs cannot be scored by this task."""


@dataclass(frozen=True)
class Illustration:
    """The class of each pixel of some images: what is true, and what a model says, both
    (n, height, width). Numbers that are not those of `classes` count nowhere."""

    truth: Labels
    answers: Output
    classes: Sequence[str]


@runtime_checkable
class Illustrates(Protocol):
    """What a scorer has besides where outputs can be shown as images of classes."""

    def illustrate(self, outputs: Any, labels: Labels) -> Illustration:
        """Of a few images that were added, with outputs and labels as `add` takes them."""


def fitting_output(
    shapes: Mapping[str, Sequence[int]], check: Callable[[Sequence[int]], None]
) -> str:
    """The largest output that `check` accepts, the first of equal ones: a model may have others
    besides, such as those that help its training. Raises what is wrong with the first one."""
    fitting: dict[str, int] = {}
    problems: list[BadInput] = []
    for name, shape in shapes.items():
        try:
            check(shape)
            fitting[name] = math.prod(shape)
        except BadInput as error:
            problems.append(error)
    if not fitting:
        raise problems[0]
    return max(fitting, key=lambda name: fitting[name])


Fitting = Callable[[Mapping[str, Sequence[int]]], str]


def single_output(outputs: Output | Tensors, fitting: Fitting | None) -> Output:
    """The array that a task of one output scores: the only one, or that which fits."""
    if not isinstance(outputs, Mapping):
        return outputs
    name = next(iter(outputs))
    if fitting is not None and len(outputs) > 1:
        name = fitting({other: array.shape for other, array in outputs.items()})
    return outputs[name]


@runtime_checkable
class FitsModels(Protocol):
    """What a task has besides where its samples depend on what a model gives."""

    def for_model(self, height: int, width: int, shapes: Mapping[str, Sequence[int]]) -> Task:
        """The same task for a model with such an input and outputs. Raises nothing: what cannot be
        is for `check_outputs` to say."""


def task_for(task: Task, info: GraphInfo) -> Task:
    """The task as this model needs it: how large high-resolution images are is for it to say."""
    if info.image is None or not isinstance(task, FitsModels):
        return task
    shapes = {one.name: one.shape for one in info.outputs}
    return task.for_model(info.height, info.width, shapes)


def metric_of(task: Task) -> str:
    """What the headline of a task is called: its attribute `metric`, F1 where it has none."""
    return str(getattr(task, "metric", "f1"))


@dataclass(frozen=True)
class DatasetEntry:
    """One image of a dataset with what is known of it without decoding anything: numbers of
    `classes`, once for each time that they are there."""

    image: Path
    classes: tuple[int, ...] = ()
    label: Path | None = None


@runtime_checkable
class Browsable(Protocol):
    """What a task has besides where its dataset can be shown: its images in the order in which they
    are cut into parts. `counts_what` is what its classes are counted in, empty without classes."""

    counts_what: str

    def entries(self) -> Sequence[DatasetEntry]: ...


@runtime_checkable
class CountsPixels(Protocol):
    """What a browsable task has besides where the classes of an image are in its label image."""

    def pixels(self, entry: DatasetEntry) -> Sequence[int]:
        """Of each class. Raises BadInput for a label image that cannot be read."""


@runtime_checkable
class Trainable(Protocol):
    """What a task has besides where nets can be trained for it. Neither set meets the test's."""

    def training(self, height: int, width: int) -> Samples: ...

    def validation(self, height: int, width: int) -> Samples: ...


# Options of a task, for what a dataset cannot say by itself: `detection.json`, `depth.json`, …
#
# The file is in the dataset's folder or beside it. Every key has a default, and most defaults are
# to find out. A key that does not exist is an error.


Options = TypeVar("Options", bound=Section)


def read_options(model: type[Options], folder: Path, task: str) -> Options:
    """The options of a task; its defaults without a file."""
    name = f"{task}.json"
    for path in (folder / name, folder.absolute().parent / name):
        if path.is_file():
            return validated(model, *read_document(path, BadSetting))
    return model()
