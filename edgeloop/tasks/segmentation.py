"""Segmentation: a class per pixel, in the layout of the FaceSynthetics dataset.

The dataset's label map says which classes there are. A model may have fewer, as long as it has all
that count: those of Microsoft Archai leave out the last one, facewear. Of two classes a model may
give only the score of the second, as a logit or a probability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial

import numpy as np

from edgeloop._util.system import available_cpus
from edgeloop.errors import BadInput, NotFound
from edgeloop.tasks.base import (
    DatasetEntry,
    Fitting,
    Illustration,
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
    FACE_CLASSES,
    FACES,
    FILE,
    IGNORE,
    MAKE_SOME,
    SUFFIX,
    LabelMap,
    Pair,
    Preparation,
    TrainableFolderTask,
    check_folder,
    decode_pair,
    load,
    prepared,
    read_label_map,
)
from edgeloop.tasks.metrics import (
    Counts,
    Floats,
    Headline,
    Histograms,
    Tally,
    are_logits,
    average_precision,
    bootstrap,
    class_scores,
    curves_of,
    margins,
    of_two_classes,
    paired_difference,
    rarity_weighted,
    scores_of,
    tally_classes,
    tally_logits,
)

COUNTED = FACES.counted  # no background, and no facewear
_NAMED, _TWO = 3, 2


class Segmentation(TrainableFolderTask[Pair]):
    """Scored by F1 over all classes except the background, rare ones weighing most."""

    name = "segmentation"
    metric = "f1"
    counts_what = "pixels"

    def entries(self) -> Sequence[DatasetEntry]:
        return [DatasetEntry(pair.image, label=pair.label) for pair in self._items]

    def pixels(self, entry: DatasetEntry) -> Sequence[int]:
        label = load(entry.label or entry.image)
        if label.mode not in ("L", "P"):
            raise BadInput(reason=f"{label.mode} is no mode of a label image")
        counts = np.zeros(IGNORE + 1, np.int64)
        np.add.at(counts, self._labels.table, np.array(label.histogram()[:256]))
        return [int(count) for count in counts[: len(self.classes)]]

    @property
    def classes(self) -> Sequence[str]:
        return self._labels.classes

    @cached_property
    def _labels(self) -> LabelMap:
        return read_label_map(self._root)

    @property
    def _items(self) -> list[Pair]:
        """Sorted by name. Hidden files and others that are no PNG are left alone."""
        check_folder(self._root)
        files = [path.name for path in self._root.iterdir() if path.suffix == ".png"]
        names = {name for name in files if not name.startswith(".")}
        images = sorted(name for name in names if not name.endswith(f"{SUFFIX}.png"))
        if not images:
            raise NotFound(
                reason=f"there are no images NNNNNN.png in {self._root}: name another folder "
                f"({MAKE_SOME})"
            )
        labels = {f"{name.removesuffix('.png')}{SUFFIX}.png" for name in images}
        for missing in sorted(labels - names)[:1]:
            raise BadInput(
                reason=f"{self._root / missing} is not there: every image needs its labels"
            )
        for alone in sorted(names - labels - set(images))[:1]:
            raise BadInput(reason=f"{self._root / alone} has labels, but its image is not there")
        return [
            Pair(self._root / name, self._root / f"{name.removesuffix('.png')}{SUFFIX}.png")
            for name in images
        ]

    def _prepared(self, items: Sequence[Pair], note: str, height: int, width: int) -> Samples:
        recipe = Preparation(
            root=self._root,
            items=items,
            files_of=lambda pair: (pair.image, pair.label),
            decode=partial(decode_pair, height=height, width=width, labels=self._labels),
            image_shape=(height, width, 3),
            label_shape=(height, width),
            also=(f"segmentation of {self._labels.digest}",),
        )
        return prepared(self._cache, recipe, note)

    def scorer(self, curves: bool = True) -> SegmentationScorer:
        counted = self._labels.counted
        return SegmentationScorer(self.classes, counted, curves, fitting=self._fitting)

    def check_output(self, shape: Sequence[int]) -> None:
        """(n, classes, H, W) or (n, H, W, classes) logits, or a class map (n, H, W). One channel is
        a class map, too, or the score of the second of two classes."""
        sides, most = tuple(shape[1:]), len(self.classes)
        fitting = {1, *range(self._labels.fewest, most + 1)}
        if len(sides) == 2 or (len(sides) == 3 and {sides[0], sides[2]} & fitting):
            return
        raise BadInput(
            reason=f"the model's output {list(shape)} does not fit the {most} classes of "
            f"{self._root}, which needs [n, {most}, height, width], [n, height, width, {most}] or "
            f"[n, height, width]{self._misfit(sides)}; other classes need a {FILE} in the dataset"
        )

    def _misfit(self, sides: Sequence[int]) -> str:
        """Which classes a model of so many channels lacks, or has too many."""
        if len(sides) != 3:
            return ""
        channels, most = min(sides[0], sides[2]), len(self.classes)
        if channels > most:
            return f": it has {channels} classes, {channels - most} too many"
        lacking = [self.classes[n] for n in self._labels.counted if n >= channels]
        names = ", ".join(lacking[:_NAMED])
        more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
        return f": with {channels} classes it lacks {names}{more}" if lacking else ""

    def check_outputs(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """One of the outputs must fit."""
        self._fitting(shapes)

    def _fitting(self, shapes: Mapping[str, Sequence[int]]) -> str:
        return fitting_output(shapes, self.check_output)

    def interval(self, counts: Counts) -> Interval:
        return bootstrap(len(counts), self._headline(counts))

    def difference(self, first: Counts, second: Counts) -> Interval:
        return paired_difference(first, second, self._headline)

    def _headline(self, counts: Counts) -> Headline:
        """Overall F1 as a function of how often each image counts."""
        hits, truth, answers = margins(counts)

        def value(weights: Floats) -> Floats:
            scores = class_scores(weights @ hits, weights @ truth, weights @ answers)
            return rarity_weighted(scores.f1, scores.truth, self._labels.counted)

        return value


class SegmentationScorer:
    """Keeps one confusion matrix per image and the sums of the histograms, no logits.

    The images of a batch are counted by several threads; NumPy releases the interpreter lock in
    the heavy parts. The order of `add` is the order of `counts`.
    """

    def __init__(
        self,
        classes: Sequence[str] = FACE_CLASSES,
        counted: Sequence[int] = COUNTED,
        curves: bool = True,
        threads: int | None = None,
        fitting: Fitting | None = None,
    ) -> None:
        """`fitting` says which of several outputs is scored; the first one without it."""
        self._fitting = fitting
        self._classes = classes
        self._counted = counted
        self._histograms = Histograms.empty(len(classes)) if curves else None
        self._confusions: list[Counts] = []
        self._gives_logits = False  # of a model with one channel
        self._pool = ThreadPoolExecutor(threads or available_cpus(), "score")

    def add(self, outputs: Output | Tensors, labels: Labels) -> None:
        """A batch of logits or class maps; a class map ends the curves, having no probabilities."""
        outputs = single_output(outputs, self._fitting)
        pixels = labels.reshape(len(labels), -1)
        answers = self._as_class_maps(outputs, labels)
        if answers is not None:
            self._histograms = None
            classes = len(self._classes)
            tallies = self._pool.map(partial(tally_classes, classes=classes), answers, pixels)
        else:
            curves = self._histograms is not None
            logits = self._as_logits(outputs, labels)
            count = partial(tally_logits, curves=curves, classes=len(self._classes))
            tallies = self._pool.map(count, logits, pixels)
        for tally in list(tallies):
            self._include(tally)

    def score(self) -> Score:
        count = len(self._classes)
        if not self._confusions:
            raise BadInput(reason="no image was scored: the test set is empty")
        counts = np.stack(self._confusions)
        scores = scores_of(counts.sum(axis=0))
        rows = {"iou": scores.iou, "f1": scores.f1}
        curves = curves_of(self._histograms) if self._histograms is not None else []
        if curves:
            rows["AP"] = np.array([average_precision(curve) for curve in curves])
        overall = {
            metric: float(rarity_weighted(values, scores.truth, self._counted))
            for metric, values in rows.items()
        }
        return Score(
            headline=overall["f1"],
            table={
                metric: {
                    **{self._classes[c]: float(values[c]) for c in range(count)},
                    "overall": overall[metric],
                }
                for metric, values in rows.items()
            },
            counts=counts,
            curves=dict(zip(self._classes, curves, strict=True)) if curves else {},
        )

    def illustrate(self, outputs: Output | Tensors, labels: Labels) -> Illustration:
        outputs = single_output(outputs, self._fitting)
        maps = self._as_class_maps(outputs, labels)
        if maps is None:
            logits = self._as_logits(outputs, labels)
            maps = np.stack([image.argmax(axis=0) for image in logits])
        return Illustration(labels, maps.reshape(labels.shape), self._classes)

    def _include(self, tally: Tally) -> None:
        self._confusions.append(tally.confusion)
        if self._histograms is not None and tally.histograms is not None:
            self._histograms.include(tally.histograms)

    def _as_class_maps(self, outputs: Output, labels: Labels) -> Output | None:
        """(n, pixels), where the output is a class map; ArgMax may leave a side of length 1."""
        is_score = outputs.dtype.kind == "f" and len(self._classes) == _TWO
        if is_score or not _has_one_channel(outputs, labels):
            return None
        whole = outputs.reshape(len(labels), -1)
        if outputs.dtype.kind == "f" and not np.array_equal(whole, np.floor(whole)):
            raise BadInput(
                reason=f"an output {list(outputs.shape)} should be a map of class numbers, but it "
                "holds fractions: give logits of all classes, or ArgMax"
            )
        return whole

    def _as_logits(self, outputs: Output, labels: Labels) -> list[Output]:
        """A view (classes, pixels) an image, whichever way round the channels are."""
        most, (count, height, width) = len(self._classes), labels.shape
        fitting = range(max(self._counted) + 1, most + 1)
        if outputs.dtype.kind != "f":
            raise BadInput(
                reason=f"an output {list(outputs.shape)} of type {outputs.dtype} can be neither a "
                f"class map of labels {list(labels.shape)} nor logits: turn quantized logits into "
                "floats first"
            )
        if _has_one_channel(outputs, labels):
            return self._of_one_channel(outputs.reshape(count, -1))
        for classes in fitting:
            if outputs.shape == (count, classes, height, width):
                return [image.reshape(classes, -1) for image in outputs]
            if outputs.shape == (count, height, width, classes):
                return [image.reshape(-1, classes).T for image in outputs]
        raise BadInput(reason=_misfit(outputs.shape, labels.shape, most))

    def _of_one_channel(self, scores: Output) -> list[Output]:
        self._gives_logits = self._gives_logits or are_logits(scores)
        return [of_two_classes(image, self._gives_logits) for image in scores]


def _has_one_channel(outputs: Output, labels: Labels) -> bool:
    count, *sides = labels.shape
    return outputs.shape in ((count, *sides), (count, 1, *sides), (count, *sides, 1))


def _misfit(output: Sequence[int], labels: Sequence[int], classes: int) -> str:
    count, height, width = labels
    expected = f"[{count}, {classes}, {height}, {width}] or [{count}, {height}, {width}, {classes}]"
    text = (
        f"The model's output {list(output)} does not fit labels {list(labels)}: {expected} is due"
    )
    if len(output) == 4 and classes in (output[1], output[3]):
        rows = output[2] if output[1] == classes else output[1]
        smaller = "smaller" if rows < height else "larger"
        text += f". It is {smaller} than its input; let the model end with a Resize to that size"
    return text
