"""A score as files: CSVs for programs and spreadsheets, and a plot of the PR curves."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from edgeloop.errors import BadInput
from edgeloop.tasks.base import (
    Illustrates,
    Illustration,
    Images,
    Interval,
    Labels,
    Samples,
    Score,
    Scorer,
)
from edgeloop.tasks.dataset import BROKEN_IMAGE, IGNORE
from edgeloop.tasks.metrics import Curve

# The palette of Okabe and Ito, which colour-blind people can tell apart, in three kinds of line.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ((1.0, 0.0), (14.0, 7.0), (3.0, 6.0))
_SCALE = 2  # drawn larger and reduced: smooth lines
_PLOT, _LEFT, _TOP, _BOTTOM = 560, 76, 48, 64
_LINE_HEIGHT, _COLUMN, _IN_COLUMN = 24, 250, 22
_MOST = 2 * _IN_COLUMN
_INK, _GRID = "#222222", "#DDDDDD"
OVERALL = "overall"
_HAIR, _MOST_POINTS = 0.002, 200  # a pixel of a chart of 500


def write_score_files(
    score: Score, folder: Path, stage: str, interval: Interval, metric: str
) -> dict[str, Path]:
    """The files of a test, by name. There is no plot where a task knows no curves; where only this
    model has none, the plot says so."""
    results = folder / f"test_results_{stage}.csv"
    write_results_csv(score, results, interval, metric)
    if not score.curves and metric != "f1":
        return {results.name: results}
    plot = folder / f"pr_curve_{stage}.png"
    write_pr_curve(score, plot)
    points = plot.with_suffix(".csv")
    write_pr_points(score, points)
    return {path.name: path for path in (results, plot, points)}


def write_results_csv(
    score: Score, path: Path, interval: Interval | None = None, metric: str = "f1"
) -> None:
    """A row a metric (iou, f1, AP), a column a class, then overall; values in full precision.

    `interval` of `metric`, the headline, adds the rows f1_low and f1_high, which have a value
    overall only; so has AP_images, which is there where AP comes from fewer images than the rest.
    """
    columns = _columns(score)
    rows = [["metric", *columns]]
    for name, values in score.table.items():
        cells = (repr(float(values[column])) if column in values else "" for column in columns)
        rows.append([name, *cells])
    bounds = {f"{metric}_low": interval.low, f"{metric}_high": interval.high} if interval else {}
    for name, bound in bounds.items():
        rows.append([name, *("" for _ in columns[:-1]), repr(float(bound))])
    if score.curve_images:
        images = [*("" for _ in columns[:-1]), str(score.curve_images)]
        rows.append([f"{score.curve_row}_images", *images])
    _write_csv(rows, path)


def _columns(score: Score) -> list[str]:
    """The classes of all rows, in their order, then `overall`."""
    names = dict.fromkeys(name for row in score.table.values() for name in row)
    return [*(name for name in names if name != OVERALL), OVERALL]


def write_pr_points(score: Score, path: Path) -> None:
    """The curves that the image shows, for charts: class, recall, precision, in their order.

    Thinned to what an eye can tell apart. A model that gives class numbers has no lines but the
    first.
    """
    rows: list[list[str]] = [["class", "recall", "precision"]]
    for name, curve in _shown(score).items():
        recall, precision = thinned(curve)
        for point in zip(recall.tolist(), precision.tolist(), strict=True):
            rows.append([name, *(f"{value:.4f}" for value in point)])
    _write_csv(rows, path)


def write_pr_curve(score: Score, path: Path) -> None:
    """A PNG with a curve a class, and a legend with its AP; classes without truth have none.

    Of very many classes those with the lowest AP are shown. A model that gives class numbers has
    no curves, and the image says so: the file is promised, and such models are good models.
    """
    shown, areas = _shown(score), score.table.get(score.curve_row, {})
    columns = -(-max(1, len(shown)) // _IN_COLUMN)
    size = (_LEFT + _PLOT + 30 + columns * _COLUMN, _TOP + _PLOT + _BOTTOM)
    image = Image.new("RGB", (size[0] * _SCALE, size[1] * _SCALE), "white")
    canvas = _Canvas(ImageDraw.Draw(image))
    canvas.text(_LEFT + _PLOT / 2, 22, _title(score, len(shown)), 18, "mm")
    canvas.axes()
    for number, (name, curve) in enumerate(shown.items()):
        line = _Line(_COLOURS[number % 7], _DASHES[number // 7 % 3])
        canvas.curve(curve, line)
        column, row = divmod(number, _IN_COLUMN)
        canvas.legend(column, row, f"{name}  {areas[name]:.3f}", line)
    part = _part(path)
    image.reduce(_SCALE).save(part, "PNG", optimize=True)
    part.replace(path)


def _shown(score: Score) -> dict[str, Curve]:
    curves = {name: curve for name, curve in score.curves.items() if curve[0].size and curve[0][-1]}
    if len(curves) <= _MOST:
        return curves
    worst = set(sorted(curves, key=lambda name: score.table[score.curve_row][name])[:_MOST])
    return {name: curve for name, curve in curves.items() if name in worst}


def _title(score: Score, shown: int) -> str:
    if not score.curves:
        return "No curves: the model gives class numbers, no probabilities"
    part = f" · lowest {shown} of {len(score.curves)}" if shown == _MOST else ""
    if score.curve_images:
        part += f" · {score.curve_images:,} of {len(score.counts):,} images"
    area = score.table[score.curve_row][OVERALL]
    return f"Precision and recall · overall {score.curve_row} {area:.3f}{part}"


@dataclass(frozen=True)
class _Line:
    colour: str
    dash: tuple[float, float]


@dataclass(frozen=True)
class _Canvas:
    """Draws in the image's final pixels, whatever it is drawn at."""

    draw: ImageDraw.ImageDraw

    def text(self, x: float, y: float, text: str, size: int, anchor: str) -> None:
        font = ImageFont.load_default(size * _SCALE)
        self.draw.text((x * _SCALE, y * _SCALE), text, fill=_INK, font=font, anchor=anchor)

    def line(self, points: list[tuple[float, float]], colour: str, width: float = 1) -> None:
        scaled = [(x * _SCALE, y * _SCALE) for x, y in points]
        self.draw.line(scaled, fill=colour, width=round(width * _SCALE), joint="curve")

    def axes(self) -> None:
        bottom, right = _TOP + _PLOT, _LEFT + _PLOT
        for tick in range(11):
            x, y, name = _LEFT + tick * _PLOT / 10, bottom - tick * _PLOT / 10, f"{tick / 10:.1f}"
            self.line([(x, _TOP), (x, bottom + 5)], _GRID)
            self.line([(_LEFT - 5, y), (right, y)], _GRID)
            self.text(x, bottom + 10, name, 14, "mt")
            self.text(_LEFT - 10, y, name, 14, "rm")
        self.line([(_LEFT, _TOP), (_LEFT, bottom), (right, bottom)], _INK, 1.5)
        self.text(_LEFT + _PLOT / 2, bottom + 36, "recall", 16, "mt")
        self.text(8, _TOP - 26, "precision", 16, "lm")

    def curve(self, curve: Curve, line: _Line) -> None:
        recall, precision = curve
        x = _LEFT + np.concatenate([[0.0], recall]) * _PLOT
        y = _TOP + (1 - np.concatenate([precision[:1], precision])) * _PLOT
        for piece in _dashed(list(zip(x.tolist(), y.tolist(), strict=True)), line.dash):
            self.line(piece, line.colour, 2)

    def legend(self, column: int, row: int, text: str, line: _Line) -> None:
        x, y = _LEFT + _PLOT + 26 + column * _COLUMN, _TOP + 10 + row * _LINE_HEIGHT
        for piece in _dashed([(x, y), (x + 38, y)], line.dash):
            self.line(piece, line.colour, 3)
        self.text(x + 48, y, text, 15, "lm")


def _dashed(
    points: list[tuple[float, float]], dash: tuple[float, float]
) -> Iterator[list[tuple[float, float]]]:
    """The pieces of a line that are drawn: `dash` is how many pixels on, and how many off."""
    on, off = dash
    if not off:
        yield points
        return
    x, y = np.array(points).T
    length = np.concatenate([[0.0], np.cumsum(np.hypot(np.diff(x), np.diff(y)))])
    for start in np.arange(0, length[-1], on + off):
        inside = length[(length > start) & (length < start + on)]
        marks = np.concatenate([[start], inside, [min(start + on, length[-1])]])
        across, down = np.interp(marks, length, x), np.interp(marks, length, y)
        yield list(zip(across.tolist(), down.tolist(), strict=True))


def thinned(curve: Curve, most: int = _MOST_POINTS) -> Curve:
    """As few points as show the same line: none that goes is farther from it than a hair, unless
    more than `most` would stay."""
    points = np.stack(curve, axis=1)
    hair = _HAIR
    while (is_corner := _corners(points, hair)).sum() > most:
        hair *= 1.5
    return points[is_corner, 0], points[is_corner, 1]


def _corners(points: NDArray[np.float64], hair: float) -> NDArray[np.bool_]:
    """Ramer, Douglas and Peucker: the point farthest from the straight line between two kept ones
    is kept, too, unless it is as near as a hair."""
    is_corner = np.zeros(len(points), dtype=bool)
    is_corner[[0, -1]] = True
    pieces = [(0, len(points) - 1)]
    while pieces:
        first, last = pieces.pop()
        if last - first < 2:
            continue
        away = _distances(points[first + 1 : last], points[first], points[last])
        if away.max() > hair:
            middle = first + 1 + int(away.argmax())
            is_corner[middle] = True
            pieces += [(first, middle), (middle, last)]
    return is_corner


def _distances(
    points: NDArray[np.float64], one: NDArray[np.float64], two: NDArray[np.float64]
) -> NDArray[np.float64]:
    """From the straight piece between two points, its ends included."""
    along = two - one
    length = float(along @ along)
    share = np.clip((points - one) @ along / length, 0.0, 1.0) if length else np.zeros(len(points))
    away = points - one - share[:, None] * along
    distances: NDArray[np.float64] = np.hypot(away[:, 0], away[:, 1])
    return distances


def _write_csv(rows: list[list[str]], path: Path) -> None:
    part = _part(path)
    with part.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    part.replace(path)


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


# A few test images with what a model makes of them, as two small files per test.
#
# `examples_STAGE.png` has a row per image: the true classes on the left, the model's on the
# right. It is an indexed image: a pixel's index is its class and its colour is that class's, 255
# counts nowhere. A text in it, JSON, says which images these are, so that only answers to the
# same images are compared. `examples_STAGE.jpg` has the images themselves, one below the other.
#
# Both can be opened by anything that shows images. Reading them trusts nothing in them.


EXAMPLES = 4  # images per test
LARGEST_SIDE = 256  # larger ones are reduced
LARGEST_EXAMPLES_BYTES = 1 << 20
_MOST_IMAGES, _LONGEST_TEXT, _QUALITY = 16, 60, 85
_TEXT = "edgeloop"
Maps = NDArray[np.uint8]

# The colours of Okabe and Ito after a dark one for class 0, which most datasets call background;
# then those that differ most from all before them, also for people who cannot tell red from green.
_CLASS_COLOURS = (
    "#2F3640",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
    "#96FFA5",
    "#1E1EA5",
    "#781E00",
    "#4B78FF",
    "#96FFFF",
    "#5A0F69",
    "#96B45A",
    "#87F0C3",
    "#A5FF78",
    "#784B3C",
    "#784B78",
    "#A55A2D",
    "#3C96F0",
    "#004BA5",
    "#4BD2E1",
    "#87C387",
    "#3C4BD2",
    "#00964B",
    "#78D2C3",
    "#4B69D2",
    "#690087",
    "#783C87",
    "#B4D24B",
    "#96E178",
)
_IGNORED_COLOUR = "#969696"


def class_colour(number: int) -> str:
    """The same for a class everywhere; beyond 32 classes, colours repeat."""
    return _IGNORED_COLOUR if number == IGNORE else _CLASS_COLOURS[number % len(_CLASS_COLOURS)]


def class_colours() -> NDArray[np.uint8]:
    """(256, 3): RGB by class."""
    texts = (class_colour(number).removeprefix("#") for number in range(IGNORE + 1))
    return np.array([list(bytes.fromhex(text)) for text in texts], np.uint8)


@dataclass(frozen=True)
class Examples:
    """`truth` and `answers` are classes (n, height, width), `names` those that are in them. An
    equal `key` means the same images with the same labels, before they were reduced."""

    key: str
    task: str
    device: str
    names: Mapping[int, str]
    truth: Maps
    answers: Maps


def example_files(stage: str) -> tuple[str, str]:
    """What the files of a stage are called: the classes, and the images."""
    return f"examples_{stage}.png", f"examples_{stage}.jpg"


class IllustratedScorer:
    """A scorer that also keeps what the model makes of the last images: tests on fewer images have
    these, too. A problem with that is kept in `problem` and never harms the score."""

    def __init__(self, scorer: Scorer, images: int, kept: int = EXAMPLES) -> None:
        self._scorer = scorer
        self._first, self._seen = max(0, images - kept), 0
        self._shown: list[Illustration] = []
        self.problem = ""

    def add(self, outputs: Any, labels: Labels) -> None:
        self._scorer.add(outputs, labels)
        skipped = max(0, self._first - self._seen)
        self._seen += len(labels)
        if skipped >= len(labels) or self.problem or not isinstance(self._scorer, Illustrates):
            return
        try:
            is_named = isinstance(outputs, Mapping)
            last = {n: a[skipped:] for n, a in outputs.items()} if is_named else outputs[skipped:]
            self._shown.append(_compact(self._scorer.illustrate(last, labels[skipped:])))
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything
            self.problem = _first_line(error)

    def score(self) -> Score:
        return self._scorer.score()

    def write(
        self, folder: Path, stage: str, samples: Samples, task: str, device: str
    ) -> dict[str, Path]:
        """The files by name; none where the task has no images of outputs."""
        if not self._shown or self.problem:
            return {}
        try:
            shown = Illustration(
                np.concatenate([one.truth for one in self._shown]),
                np.concatenate([one.answers for one in self._shown]),
                self._shown[0].classes,
            )
            images = samples.images[self._first :]
            return write_examples(folder, stage, images, shown, task, device)
        except Exception as error:  # noqa: BLE001 - a full disk, for example
            self.problem = _first_line(error)
            return {}


def write_examples(
    folder: Path, stage: str, images: Images, shown: Illustration, task: str, device: str
) -> dict[str, Path]:
    """The files by name. `images` are those that `shown` is of, as the model gets them."""
    shown = _compact(shown)
    truth, answers = shown.truth, shown.answers
    if len(images) != len(truth) or truth.shape != answers.shape:
        shapes = f"{len(images)} images, classes {truth.shape} and {answers.shape}"
        raise BadInput(reason=f"these do not belong together: {shapes}")
    count, height, width = truth.shape
    present = np.unique(np.concatenate((truth, answers))).tolist()
    key = _key(images, shown)
    about = {
        "set": key,
        "task": task,
        "device": device,
        "images": count,
        "height": height,
        "width": width,
        "classes": {str(n): shown.classes[n] for n in present if n != IGNORE},
    }
    classes, inputs = (folder / name for name in example_files(stage))
    sheet = np.concatenate((truth, answers), axis=2)
    picture = Image.frombytes("P", (2 * width, count * height), sheet.tobytes())
    picture.putpalette(class_colours().tobytes())
    text = PngInfo()
    text.add_text(_TEXT, json.dumps(about))
    picture.save(classes, "PNG", pnginfo=text, optimize=True)
    column = np.concatenate([_resized(image, height, width) for image in images])
    Image.fromarray(column).save(inputs, "JPEG", quality=_QUALITY, optimize=True, comment=key)
    return {path.name: path for path in (classes, inputs)}


def _compact(shown: Illustration) -> Illustration:
    truth, answers = (
        _reduced(_as_bytes(maps, len(shown.classes))) for maps in (shown.truth, shown.answers)
    )
    return Illustration(truth, answers, shown.classes)


def _as_bytes(maps: NDArray[Any], classes: int) -> Maps:
    is_class = (maps >= 0) & (maps < min(classes, IGNORE))
    classes_or_ignored: Maps = np.where(is_class, maps, IGNORE).astype(np.uint8)
    return classes_or_ignored


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _reduced(maps: Maps) -> Maps:
    """Maps that are at most `LARGEST_SIDE` high and wide: pixels are left out, never mixed."""
    height, width = maps.shape[1:]
    scale = max(1.0, max(height, width) / LARGEST_SIDE)
    rows, columns = (_spread(side, max(1, round(side / scale))) for side in (height, width))
    return np.ascontiguousarray(maps[:, rows][:, :, columns])


def _spread(side: int, count: int) -> NDArray[np.intp]:
    return ((np.arange(count) + 0.5) * side / count).astype(np.intp)


def _resized(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    picture = Image.fromarray(np.asarray(image))
    return np.asarray(picture.resize((width, height), Image.Resampling.BOX))


def _key(images: Images, shown: Illustration) -> str:
    content = hashlib.sha256(json.dumps(list(shown.classes)).encode())
    for array in (images, shown.truth):
        content.update(f"{array.shape} {array.dtype}".encode())
        content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()[:32]


def read_examples(content: bytes) -> Examples:
    """From the bytes of an `examples_STAGE.png`. Raises BadInput if it is not such a file."""
    with _reading(content), Image.open(io.BytesIO(content), formats=("PNG",)) as picture:
        about = json.loads(picture.info.get(_TEXT, "null"))
        count, height, width = _sizes(about)
        if picture.mode != "P" or picture.size != (2 * width, count * height):
            raise ValueError(f"a {picture.mode} image of {picture.size} is not what it describes")
        sheet = np.asarray(picture, np.uint8).reshape(count, height, 2 * width)
        return Examples(
            key=_short(about["set"]),
            task=_short(about["task"]),
            device=_short(about["device"]),
            names=_names(about["classes"]),
            truth=np.ascontiguousarray(sheet[:, :, :width]),
            answers=np.ascontiguousarray(sheet[:, :, width:]),
        )


def read_example_images(content: bytes, examples: Examples) -> Images:
    """(n, height, width, 3), from the bytes of an `examples_STAGE.jpg`. Raises BadInput if it does
    not have the images of these examples."""
    with _reading(content), Image.open(io.BytesIO(content), formats=("JPEG",)) as picture:
        count, height, width = examples.truth.shape
        key = picture.info.get("comment", b"")
        if key != examples.key.encode():
            raise ValueError("it has other images")
        if picture.mode != "RGB" or picture.size != (width, count * height):
            raise ValueError(f"a {picture.mode} image of {picture.size} is not what is expected")
        return np.asarray(picture, np.uint8).reshape(count, height, width, 3)


@contextmanager
def _reading(content: bytes) -> Iterator[None]:
    try:
        if len(content) > LARGEST_EXAMPLES_BYTES:
            raise ValueError(f"it is larger than {LARGEST_EXAMPLES_BYTES >> 20} MiB")
        yield
    except BROKEN_IMAGE as error:
        reason = f"no examples can be read from it: {_first_line(error)[:200]}"
        raise BadInput(reason=reason) from None


def _sizes(about: Any) -> Sequence[int]:
    if not isinstance(about, dict):
        raise ValueError("it does not say what it shows")
    sizes = [about["images"], about["height"], about["width"]]
    for size, most in zip(sizes, (_MOST_IMAGES, LARGEST_SIDE, LARGEST_SIDE), strict=True):
        if type(size) is not int or not 0 < size <= most:
            raise ValueError(f"{size!r:.40} is not a size from 1 to {most}")
    return sizes


def _names(classes: Any) -> dict[int, str]:
    if not isinstance(classes, dict) or len(classes) > IGNORE:
        raise ValueError("it has no list of classes")
    return {n: _short(classes[str(n)]) for n in range(IGNORE) if str(n) in classes}


def _short(text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError(f"{text!r:.40} is not a text")
    return text[:_LONGEST_TEXT]
