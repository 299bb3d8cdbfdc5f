"""Classification: one class per image, from one folder per class or a `labels.csv`.

A `label_map.json` says which class each output of a model stands for, where that is not simply the
sorted classes of the dataset: a model of ImageNet's 1,000 classes can so be scored on ten folders.
Of two classes a model may give only the score of the second, as a logit or a probability.
"""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from edgeloop._util.values import shown
from edgeloop.errors import BadInput, NotFound
from edgeloop.tasks.base import (
    DatasetEntry,
    Fitting,
    Images,
    Interval,
    Labels,
    Output,
    Samples,
    Score,
    Tensors,
    fitting_output,
    single_output,
)
from edgeloop.tasks.dataset import (
    FILE,
    OutputMap,
    Preparation,
    TrainableFolderTask,
    as_rgb,
    check_folder,
    load,
    prepared,
    read_output_map,
    shuffled,
)
from edgeloop.tasks.metrics import (
    ClassScores,
    Counts,
    Floats,
    Headline,
    Histograms,
    are_logits,
    average_precision,
    bootstrap,
    class_scores,
    curves_of,
    macro,
    of_two_classes,
    paired_difference,
    tally_logits,
)

ENDINGS = (".png", ".jpg", ".jpeg")
MOST_CLASSES = 65_535
MOST_ROWS = 2_000_000  # of labels.csv
_MOST_DIGITS = 18
_PARTS = {
    "annotations",
    "depth",
    "depths",
    "hr",
    "images",
    "img",
    "labels",
    "lr",
    "masks",
    "test",
    "test2017",
    "train",
    "train2017",
    "unlabeled2017",
    "val",
    "val2017",
    "validation",
}


@dataclass(frozen=True)
class Labelled:
    image: Path
    label: int


@dataclass(frozen=True)
class _Listing:
    classes: tuple[str, ...]
    items: tuple[Labelled, ...]


class Classification(TrainableFolderTask[Labelled]):
    """Scored by macro F1: the mean over the classes that occur in the truth.

    Images are taken in the order of a hash of their names, not of the names: sorted by folder,
    the first ones would all be of one class.
    """

    name = "classification"
    metric = "f1"
    counts_what = "images"

    def entries(self) -> Sequence[DatasetEntry]:
        return [DatasetEntry(item.image, (item.label,)) for item in self._items]

    @property
    def classes(self) -> Sequence[str]:
        return self._listing.classes

    @property
    def _items(self) -> Sequence[Labelled]:
        return self._listing.items

    def scorer(self, curves: bool = True) -> ClassificationScorer:
        return ClassificationScorer(self.classes, curves, self._outputs, self._fitting)

    def check_output(self, shape: Sequence[int]) -> None:
        """(n, classes) logits or (n) classes; sides of length 1 do no harm. One output is a class,
        too, or the score of the second of two classes."""
        sides = [side for side in shape[1:] if side != 1]
        if not sides:
            return
        if self._outputs is not None and len(sides) == 1:
            self._outputs.check(sides[0])
        elif sides != [len(self.classes)]:
            raise BadInput(
                reason=f"the model's output {list(shape)} does not fit a classification into "
                f"{len(self.classes)} classes, which needs [n, {len(self.classes)}]; a {FILE} in "
                "the dataset says which output is which class"
            )

    def check_outputs(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """One of the outputs must fit."""
        self._fitting(shapes)

    def _fitting(self, shapes: Mapping[str, Sequence[int]]) -> str:
        return fitting_output(shapes, self.check_output)

    def interval(self, counts: Counts) -> Interval:
        return bootstrap(len(counts), _headline(counts, len(self.classes)))

    def difference(self, first: Counts, second: Counts) -> Interval:
        return paired_difference(first, second, partial(_headline, classes=len(self.classes)))

    @cached_property
    def _listing(self) -> _Listing:
        check_folder(self._root)
        table = self._root / "labels.csv"
        names = self._outputs.classes if self._outputs else ()
        if table.is_file():
            return _from_csv(self._root, table, names)
        return _from_folders(self._root, names)

    @cached_property
    def _outputs(self) -> OutputMap | None:
        return read_output_map(self._root)

    def _prepared(self, items: Sequence[Labelled], note: str, height: int, width: int) -> Samples:
        recipe = Preparation(
            root=self._root,
            items=items,
            files_of=lambda item: (item.image,),
            decode=partial(_decode, height=height, width=width),
            image_shape=(height, width, 3),
            label_shape=(),
            label_type=np.uint16,
            also=("classification", *(str(item.label) for item in items)),
        )
        return prepared(self._cache, recipe, note)


class ClassificationScorer:
    """Keeps truth and prediction of each image, and the sums of the histograms."""

    def __init__(
        self,
        classes: Sequence[str],
        curves: bool = True,
        outputs: OutputMap | None = None,
        fitting: Fitting | None = None,
    ) -> None:
        """`fitting` says which of several outputs is scored; the first one without it."""
        self._fitting = fitting
        self._classes = classes
        self._map = outputs
        self._gives_logits = False  # of a model with one output
        self._histograms = Histograms.empty(len(classes)) if curves else None
        self._pairs: list[Counts] = []

    def add(self, outputs: Output | Tensors, labels: Labels) -> None:
        outputs = single_output(outputs, self._fitting)
        classes, count = len(self._classes), len(labels)
        if labels.size and labels.max() >= classes:
            raise BadInput(reason=f"a label is {labels.max()}, but the classes are 0–{classes - 1}")
        if outputs.size == count and classes != 1:
            answers = self._add_single(outputs.reshape(count), labels)
        elif self._map is not None and count and outputs.size % count == 0:
            answers = self._add_logits(self._map.joined(outputs.reshape(count, -1)), labels)
        elif len(outputs) == count and outputs.size == count * classes:
            answers = self._add_logits(outputs.reshape(count, classes), labels)
        else:
            raise BadInput(
                reason=f"the model's output {list(outputs.shape)} does not fit {count} images in "
                f"{classes} classes: [{count}, {classes}] is due"
            )
        if answers.size and not 0 <= answers.min() <= answers.max() < classes:
            raise BadInput(
                reason=f"the model answered class {answers.max()}, but the classes are "
                f"0–{classes - 1}: does it belong to another task?"
            )
        self._pairs.append(np.stack([labels.astype(np.int64), answers], axis=1))

    def score(self) -> Score:
        if not self._pairs:
            raise BadInput(reason="no image was scored: the test set is empty")
        counts = np.concatenate(self._pairs)
        scores = _scores(counts, np.ones(len(counts)), len(self._classes))
        rows = {"iou": scores.iou, "f1": scores.f1}
        curves = curves_of(self._histograms) if self._histograms is not None else []
        if curves:
            rows["AP"] = np.array([average_precision(curve) for curve in curves])
        table = {
            metric: {
                **dict(zip(self._classes, map(float, values), strict=True)),
                "overall": float(macro(values, scores.truth)),
            }
            for metric, values in rows.items()
        }
        named = dict(zip(self._classes, curves, strict=True)) if curves else {}
        return Score(table["f1"]["overall"], table, counts, named)

    def _add_single(self, outputs: Output, labels: Labels) -> NDArray[np.int64]:
        """The number of a class, or the score of the second of two."""
        if outputs.dtype.kind != "f":
            self._histograms = None
            numbers = outputs.astype(np.int64)
            return numbers if self._map is None else self._map.of_numbers(numbers)
        _check_finite(outputs)
        if len(self._classes) == 2:
            self._gives_logits = self._gives_logits or are_logits(outputs)
            return self._add_logits(of_two_classes(outputs, self._gives_logits).T, labels)
        if not np.array_equal(outputs, np.floor(outputs)):
            raise BadInput(
                reason=f"one output should be the number of a class, but it is "
                f"{float(outputs[0]):g}: {len(self._classes)} classes need as many outputs"
            )
        return self._add_single(outputs.astype(np.int64), labels)

    def _add_logits(self, logits: Output, labels: Labels) -> NDArray[np.int64]:
        """Images stand where pixels do in segmentation; 255 is a class like any other here."""
        _check_finite(logits)
        if self._histograms is not None:
            tally = tally_logits(logits.T, labels, curves=True, ignore=None)
            assert tally.histograms is not None
            self._histograms.include(tally.histograms)
        answers: NDArray[np.int64] = logits.argmax(axis=1).astype(np.int64)
        return answers


def _check_finite(outputs: Output) -> None:
    if not np.isfinite(outputs).all():
        raise BadInput(
            reason="the model's output holds NaN or infinite values, which no score can be made "
            "of: check its weights, or run it with a wider number type"
        )


def _scores(pairs: Counts, weights: Floats, classes: int) -> ClassScores:
    truth, answer = pairs.T
    right = truth == answer
    return class_scores(
        np.bincount(truth[right], weights[right], classes).astype(np.float64),
        np.bincount(truth, weights, classes).astype(np.float64),
        np.bincount(answer, weights, classes).astype(np.float64),
    )


def _headline(pairs: Counts, classes: int) -> Headline:
    def value(weights: Floats) -> Floats:
        each = (_scores(pairs, row, classes) for row in weights)
        return np.array([float(macro(scores.f1, scores.truth)) for scores in each])

    return value


def _decode(item: Labelled, height: int, width: int) -> tuple[Images, Labels]:
    return as_rgb(load(item.image), height, width), np.array(item.label, np.uint16)


def _from_folders(root: Path, classes: Sequence[str]) -> _Listing:
    """`NAME/*.png|jpg`: the folders, sorted, are the classes."""
    folders = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    labelled_files = [
        (path, folder.name)
        for folder in folders
        for path in folder.iterdir()
        if path.suffix.lower() in ENDINGS and not path.name.startswith(".")
    ]
    if not labelled_files:
        raise NotFound(
            reason=f"there are no images in {root}: classification needs one folder per class "
            "(NAME/*.png or .jpg), or labels.csv with the columns file,label"
        )
    _check_are_classes(root, sorted({name for _, name in labelled_files}))
    return _listing(root, labelled_files, classes or [folder.name for folder in folders])


def _check_are_classes(root: Path, names: Sequence[str]) -> None:
    """The datasets of other tasks have folders with images, too; their models would be blamed for
    not fitting such classes."""
    if set(map(str.lower, names)) <= _PARTS:
        raise BadInput(
            reason=f"{root} has the folders {', '.join(names)}, which are parts of a dataset and "
            "no classes: classification needs one folder per class, or labels.csv with the "
            "columns file,label. Choose another dataset or --task"
        )


def _from_csv(root: Path, table: Path, classes: Sequence[str]) -> _Listing:
    with table.open(newline="", encoding="utf-8-sig") as lines:
        try:
            reader = csv.DictReader(lines)
            if not {"file", "label"} <= set(reader.fieldnames or ()):
                raise BadInput(reason=f"{table} needs the columns file,label")
            labelled_files = [
                _row(root, table, row) for row in itertools.islice(reader, MOST_ROWS + 1)
            ]
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadInput(reason=f"{table} cannot be read as CSV: {error}") from error
    if not labelled_files:
        raise NotFound(reason=f"{table} names no picture")
    if len(labelled_files) > MOST_ROWS:
        raise BadInput(reason=f"{table} has more than {MOST_ROWS:,} rows")
    names = {label for _, label in labelled_files}
    whole = all(name.isdecimal() and len(name) <= _MOST_DIGITS for name in names)
    return _listing(root, labelled_files, classes or sorted(names, key=int if whole else None))


def _row(root: Path, table: Path, row: Mapping[str, str | None]) -> tuple[Path, str]:
    label = sys.intern((row["label"] or "").strip())
    if not label:
        raise BadInput(reason=f"{table} has a row without a label")
    return _inside(root, table, row["file"] or ""), label


def _inside(root: Path, table: Path, file: str) -> Path:
    """A path from a table never leads out of the dataset."""
    path = PurePosixPath(file)
    if not file or path.is_absolute() or ".." in path.parts or "\0" in file:
        raise BadInput(reason=f"{table} names {shown(file)}, which is no file below {root}")
    try:
        is_there = (root / path).is_file()
    except OSError:  # longer than a name may be
        is_there = False
    if not is_there:
        raise BadInput(reason=f"{table} names {shown(file)}, which is not there")
    return root / path


def _listing(root: Path, labelled_paths: list[tuple[Path, str]], names: Sequence[str]) -> _Listing:
    if len(names) > MOST_CLASSES:
        raise BadInput(reason=f"{root} has {len(names)} classes; {MOST_CLASSES} is the most")
    number = {name: index for index, name in enumerate(names)}
    for unknown in sorted({name for _, name in labelled_paths} - set(number))[:1]:
        raise BadInput(reason=f"{root} has images of {unknown!r}, a class that its {FILE} lacks")
    items = [Labelled(path, number[name]) for path, name in labelled_paths]
    items.sort(key=lambda item: shuffled(item.image.relative_to(root).as_posix()))
    return _Listing(tuple(names), tuple(items))
