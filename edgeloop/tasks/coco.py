"""Annotations in the layout of COCO: one JSON file with images, categories and annotations.

It is looked for under its usual names, in the dataset's folder, in `annotations/`, or beside the
folder (`coco/val2017` with `coco/annotations/instances_val2017.json`). So are the images, in the
dataset's folder, in `images/`, or in the folder that the file is named after.

Images that are not there are left out, and a note says how many. Nothing else is forgiven: a file
name that leads out of the dataset, a box that is no box or an undescribed category is an error
with its number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeloop._util.files import parse_json, read_regular
from edgeloop._util.values import shown
from edgeloop.errors import BadInput, LocalFileError, NotFound
from edgeloop.tasks.base import Interval, Score
from edgeloop.tasks.dataset import check_folder, shuffled
from edgeloop.tasks.metrics import Curve, Floats, Headline, bootstrap, check_paired

USUAL_NAMES = ("annotations.json", "_annotations.coco.json", "labels.json", "coco.json")
LARGEST_FILE = 1 << 30
_LEAST_MEMORY, _MEMORY_SHARE = 256 << 20, 10  # of its values: real annotations take half of that
MOST_OBJECTS = 2_000  # in one image
_LARGEST_ID, _LONGEST_SIDE = 1 << 63, 1 << 31
_BOX, _POINT = 4, 3
_NO_BOX = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Category:
    id: int
    name: str
    keypoints: tuple[str, ...] = ()


@dataclass(frozen=True)
class CocoObject:
    """An annotation. The box is (left, top, width, height) in pixels, None if there is none;
    `category` is an index of the dataset's categories."""

    id: int
    category: int
    box: tuple[float, ...] | None
    is_crowd: bool
    area: float
    keypoints: tuple[float, ...] = ()


@dataclass(frozen=True)
class CocoImage:
    """`size` is (width, height) as annotated; None: that of the file."""

    file: Path
    size: tuple[int, int] | None
    objects: tuple[CocoObject, ...]


@dataclass(frozen=True)
class CocoDataset:
    """Images in the order of a hash of their names, so that any part of them has all kinds."""

    root: Path
    file: Path
    categories: tuple[Category, ...]
    images: tuple[CocoImage, ...]
    missing: int = 0

    @property
    def note(self) -> str:
        if not self.missing:
            return ""
        total = len(self.images) + self.missing
        return f"{self.missing} of the {total} images of {self.file.name} are not there"

    @cached_property
    def annotated(self) -> tuple[int, ...]:
        """The categories that occur."""
        return tuple(sorted({thing.category for image in self.images for thing in image.objects}))

    def only(self, images: Iterable[CocoImage]) -> CocoDataset:
        return replace(self, images=tuple(images))


def digest_of(images: Sequence[CocoImage]) -> str:
    """Changes with the annotations."""
    content = hashlib.sha256()
    for image in images:
        content.update(repr((image.size, image.objects)).encode())
    return content.hexdigest()


def read_coco(
    root: Path, prefixes: Sequence[str], annotations: str = "", images: str = ""
) -> CocoDataset:
    """`prefixes` are how the file's name begins for this task, the best first. `annotations` and
    `images` name the file and the folder, relative to the dataset, where they are not found."""
    check_folder(root)
    file = _inside(root, annotations, "the options") if annotations else _found(root, prefixes)
    content = _content(file)
    categories = _categories(file, content)
    things = _objects(file, content, {c.id: n for n, c in enumerate(categories)})
    listed = _rows(file, content, "images")
    if not listed:
        raise NotFound(reason=f"{file} lists no images")
    names = {_number(file, row, "id"): str(row.get("file_name") or "") for row in listed}
    folders = [_inside(root, images, "the options")] if images else _folders(root, file)
    paths = _present(root, file, folders, names)
    if not paths:
        raise NotFound(
            reason=f"none of the {len(names)} images of {file} is there, for example "
            f"{next(iter(names.values()))!r}: put them into {root / 'images'}"
        )
    sizes = {int(row["id"]): _size(row) for row in listed}
    present_images = [
        CocoImage(paths[number], sizes[number], tuple(things.get(number, ())))
        for number in sorted(paths, key=lambda number: shuffled(names[number]))
    ]
    for image in present_images:
        if len(image.objects) > MOST_OBJECTS:
            raise BadInput(
                reason=f"{file} has {len(image.objects)} annotations of {image.file.name}; "
                f"{MOST_OBJECTS} is the most"
            )
    return CocoDataset(
        root, file, categories, tuple(present_images), len(names) - len(present_images)
    )


def _found(root: Path, prefixes: Sequence[str]) -> Path:
    folders = (root, root / "annotations")
    candidates = [
        sorted(path for folder in folders for path in folder.glob(f"{prefix}*.json"))
        for prefix in prefixes
    ]
    candidates += [[folder / name] for folder in folders for name in USUAL_NAMES]
    above = root.absolute().parent
    beside = [f"{prefix}_{root.absolute().name}.json" for prefix in prefixes]
    candidates += [[above / "annotations" / name] for name in beside]
    candidates.append([above / "annotations.json"])
    for paths in candidates:
        there = [path for path in paths if path.is_file() and not path.name.startswith(".")]
        validation = [path for path in there if "val" in path.stem]
        if len(there) == 1 or len(validation) == 1:
            return validation[0] if validation else there[0]
        if there:
            names = ", ".join(path.name for path in there)
            raise BadInput(
                reason=f"{root} has several annotation files ({names}): say which, with "
                "'annotations' in the options of the task"
            )
    raise NotFound(
        reason=f"there are no annotations in {root}: they are looked for as annotations.json, or "
        f"{prefixes[0]}_NAME.json in annotations/ (COCO's layout)"
    )


def _content(file: Path) -> Mapping[str, Any]:
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise BadInput(reason=f"{file} is larger than {LARGEST_FILE >> 20} MiB: split it")
        text = read_regular(file, LARGEST_FILE)
        content = parse_json(text, _LEAST_MEMORY + _MEMORY_SHARE * len(text))
    except FileNotFoundError:
        raise NotFound(reason=f"{file} is not there") from None
    except OSError as error:
        raise LocalFileError(path=file, reason=error.strerror or str(error)) from None
    except ValueError as error:
        raise BadInput(reason=f"{file} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadInput(reason=f"{file} is not in COCO's layout: it must be a mapping with 'images'")
    return content


def _rows(file: Path, content: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    rows = content.get(name)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(reason=f"{file} is not in COCO's layout: it needs a list {name!r}")
    return rows


def _number(file: Path, row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _LARGEST_ID:
        raise BadInput(reason=f"{file} has {key} {shown(value)} where a whole number is due")
    return value


def _size(row: Mapping[str, Any]) -> tuple[int, int] | None:
    sides = row.get("width"), row.get("height")
    good = all(isinstance(side, int | float) and 1 <= side < _LONGEST_SIDE for side in sides)
    return (int(row["width"]), int(row["height"])) if good else None


def _categories(file: Path, content: Mapping[str, Any]) -> tuple[Category, ...]:
    rows = _rows(file, content, "categories")
    categories = {}
    for row in rows:
        number, points = _number(file, row, "id"), row.get("keypoints")
        names = tuple(map(str, points)) if isinstance(points, list) else ()
        categories[number] = Category(number, str(row.get("name") or number), names)
    if not categories:
        raise BadInput(reason=f"{file} has no categories: what should be found?")
    return tuple(categories[number] for number in sorted(categories))


def _objects(
    file: Path, content: Mapping[str, Any], categories: Mapping[int, int]
) -> dict[int, list[CocoObject]]:
    by_image: dict[int, list[CocoObject]] = {}
    for number, row in enumerate(_rows(file, content, "annotations")):
        image, category = _number(file, row, "image_id"), _number(file, row, "category_id")
        name = row.get("id", number)
        if category not in categories:
            raise BadInput(
                reason=f"{file}: annotation {name} has category {category}, which 'categories' "
                "lacks"
            )
        box = _floats(row.get("bbox"))
        if row.get("bbox") and (len(box) != _BOX or min(box[2:]) < 0):
            raise BadInput(
                reason=f"{file}: annotation {name} has the box {shown(row['bbox'])}, not [left, "
                "top, width, height]"
            )
        points = _floats(row.get("keypoints"))
        if row.get("keypoints") and (not points or len(points) % _POINT):
            raise BadInput(
                reason=f"{file}: annotation {name} has keypoints that are no list of x, y and "
                "visibility"
            )
        area = _floats([row.get("area")])
        _, _, width, height = box or _NO_BOX
        thing = CocoObject(
            id=name if isinstance(name, int) else number,
            category=categories[category],
            box=box or None,
            is_crowd=bool(row.get("iscrowd", 0)),
            area=area[0] if area else width * height,
            keypoints=points,
        )
        by_image.setdefault(image, []).append(thing)
    return by_image


def _floats(values: object) -> tuple[float, ...]:
    """Empty unless all are finite numbers."""
    if not isinstance(values, list | tuple):
        return ()
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        return ()
    return numbers if all(map(math.isfinite, numbers)) else ()


def _folders(root: Path, file: Path) -> list[Path]:
    """Where images may be, the likeliest first: `instances_val2017.json` speaks of `val2017/`."""
    split = file.stem.rpartition("_")[2]
    nested = [root / "images" / split, root / split, root / "images", root / "data", root]
    if file.parent.is_relative_to(root):
        nested.append(file.parent)
    return [folder for folder in dict.fromkeys(nested) if folder.is_dir()]


def _present(
    root: Path, file: Path, folders: Sequence[Path], names: Mapping[int, str]
) -> dict[int, Path]:
    """The images that are there, by their numbers: all of one folder, that which has most."""
    paths = {number: _relative(root, file, name) for number, name in names.items()}
    best: dict[int, Path] = {}
    for folder in folders:
        parents = {folder / path.parent for path in paths.values()}
        there = {p for parent in parents if parent.is_dir() for p in parent.iterdir()}
        present = {
            number: folder / path for number, path in paths.items() if folder / path in there
        }
        if len(present) > len(best):
            best = present
        if len(best) == len(names):
            break
    return best


def _relative(root: Path, file: Path | str, name: str) -> PurePosixPath:
    """A path from a file never leads out of the dataset."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        said = file if isinstance(file, str) else str(file)
        raise BadInput(reason=f"{said} names {name!r}, which is no file below {root}")
    return path


def _inside(root: Path, name: str, origin: str) -> Path:
    return root / _relative(root, origin, name)


# Average precision as COCO defines it, from matches that are kept per image.
#
# Detections of a class are matched to the truth of an image in the order of their scores: each
# takes the truth that it overlaps most, if that is free and the overlap (IoU) reaches a
# threshold. There are ten thresholds, 0.5 to 0.95. Crowds are neither found nor missed: what lies
# in one does not count. AP is the mean precision at 101 recalls, mAP its mean over thresholds and
# classes. The results are those of pycocotools; keypoints use the same with another overlap
# (OKS).
#
# An image keeps only which of its detections matched at which threshold, as bits of a number, so
# AP of any resample of the images is a matter of cumulative sums: precision is needed at the
# matches alone, since between two of them it only falls.


THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
RESAMPLES = 200  # each of them sorts out all detections
_AT_50, _AT_75 = 0, 5
_AT_ONCE = 4_000_000  # weights of detections in memory at a time
_ALMOST_ONE = 1 - 1e-10

Matches = NDArray[Any]  # one per image, see `matches_type`


@dataclass(frozen=True)
class Found:
    """Detections of one image, best first."""

    boxes: Floats  # (n, 4): left, top, right, bottom
    scores: Floats
    classes: NDArray[np.intp]


@dataclass(frozen=True)
class Truth:
    """The objects of one image."""

    boxes: Floats
    classes: NDArray[np.intp]
    is_crowd: NDArray[np.bool_]


def matches_type(classes: int, most: int) -> np.dtype[Any]:
    """`truth` counts the objects of each class; the rest is about detections, `most` of them, class
    −1 where there are fewer. Bit t of `hit` and `ignored` is for the threshold t."""
    return np.dtype(
        [
            ("truth", np.int32, (classes,)),
            ("class", np.int16, (most,)),
            ("score", np.float32, (most,)),
            ("hit", np.uint16, (most,)),
            ("ignored", np.uint16, (most,)),
        ]
    )


def matched(detections: Found, truth: Truth, kind: np.dtype[Any]) -> Matches:
    """What remains of an image: an array of one element."""
    result = np.zeros(1, kind)
    count = min(len(detections.scores), result["class"].shape[1])
    result["class"] = -1
    result["class"][0, :count] = detections.classes[:count]
    result["score"][0, :count] = detections.scores[:count]
    counted = truth.classes[~truth.is_crowd]
    result["truth"][0] = np.bincount(counted, minlength=result["truth"].shape[1])
    for label in np.unique(truth.classes):
        of_label = np.flatnonzero(detections.classes[:count] == label)
        true = truth.classes == label
        overlaps = ious(detections.boxes[of_label], truth.boxes[true], truth.is_crowd[true])
        result["hit"][0, of_label], result["ignored"][0, of_label] = match(
            overlaps, truth.is_crowd[true]
        )
    return result


def ious(boxes: Floats, others: Floats, is_crowd: NDArray[np.bool_] | None = None) -> Floats:
    """(boxes, others). A box in a crowd overlaps it by the part of the box that lies inside."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    area, other_area = _areas(boxes)[:, None], _areas(others)[None, :]
    union = area + other_area - shared
    if is_crowd is not None:
        union = np.where(is_crowd[None, :], area, union)
    result: Floats = shared / np.where(union > 0, union, 1)
    return result


def _areas(boxes: Floats) -> Floats:
    areas: Floats = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1)
    return areas


def match(
    overlaps: Floats, is_ignored: NDArray[np.bool_]
) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Bits of `hit` and `ignored` for each detection, in the order of their scores."""
    count, truths = overlaps.shape
    hit, ignored = np.zeros(count, np.uint16), np.zeros(count, np.uint16)
    if not truths:
        return hit, ignored
    levels = np.minimum(THRESHOLDS, _ALMOST_ONE)
    is_taken = np.zeros((len(levels), truths), np.bool_)
    bits = np.left_shift(1, np.arange(len(levels))).astype(np.uint16)
    for number in np.flatnonzero(overlaps.max(axis=1) >= levels[0]):
        fits = overlaps[number] >= levels[:, None]
        for group in (~is_ignored, is_ignored):  # what is ignored is for those that find nothing
            free = fits & group & (~is_taken | is_ignored)
            is_matched = free.any(axis=1)
            if not is_matched.any():
                continue
            # Of equal overlaps the last one counts, as in pycocotools.
            values = np.where(free, overlaps[number], -1.0)
            best = truths - 1 - values[:, ::-1].argmax(axis=1)
            is_taken[is_matched, best[is_matched]] = True
            (ignored if group is is_ignored else hit)[number] |= bits[is_matched].sum(
                dtype=np.uint16
            )
            fits = fits & ~is_matched[:, None]
    return hit, ignored


@dataclass(frozen=True)
class _OfClass:
    """The detections of a class in all images, best first."""

    image: NDArray[np.intp]
    hit: NDArray[np.bool_]  # (detections, thresholds)
    ignored: NDArray[np.bool_]


def average_precisions(matches: Matches, weights: Floats) -> Iterator[tuple[Floats, Floats]]:
    """For each class: AP (resamples, thresholds), and how many objects there are (resamples).
    `weights` (resamples, images) say how often each image counts."""
    for label in range(matches["truth"].shape[1]):
        truth = weights @ matches["truth"][:, label].astype(np.float64)
        yield _class_precision(_of_class(matches, label), weights, truth), truth


def _of_class(matches: Matches, label: int) -> _OfClass:
    image, place = np.nonzero(matches["class"] == label)
    order = np.argsort(-matches["score"][image, place], kind="stable")
    image, place = image[order], place[order]
    bits = np.arange(len(THRESHOLDS))

    def flags(name: str) -> NDArray[np.bool_]:
        return (matches[name][image, place][:, None] >> bits & 1).astype(np.bool_)

    return _OfClass(image, flags("hit"), flags("ignored"))


def _class_precision(detections: _OfClass, weights: Floats, truth: Floats) -> Floats:
    rows = max(1, _AT_ONCE // max(1, len(detections.image)))
    result = np.zeros((len(weights), len(THRESHOLDS)))
    for start in range(0, len(weights), rows):
        part = slice(start, start + rows)
        counted = weights[part][:, detections.image]
        total = None if detections.ignored.any() else counted.cumsum(axis=1)
        for level in range(len(THRESHOLDS)):
            hits = np.flatnonzero(detections.hit[:, level])
            if not hits.size:
                continue
            if total is not None:
                seen = total[:, hits]
            else:
                seen = (counted * ~detections.ignored[:, level]).cumsum(axis=1)[:, hits]
            right = counted[:, hits].cumsum(axis=1)
            result[part, level] = _area(right, seen, truth[part])
    return result


def _area(right: Floats, seen: Floats, truth: Floats) -> Floats:
    """The mean of the highest precision at or beyond each recall."""
    precision = _from_the_right(right / np.maximum(seen, 1))
    recall = right / np.maximum(truth, 1)[:, None]
    reached = np.searchsorted(RECALLS, recall, side="right")
    steps = np.diff(reached, prepend=0, axis=1)
    area: Floats = (steps * precision).sum(axis=1) / len(RECALLS)
    return area


def _from_the_right(precision: Floats) -> Floats:
    highest: Floats = np.maximum.accumulate(precision[..., ::-1], axis=-1)[..., ::-1]
    return highest


def mean_precision(matches: Matches) -> Headline:
    """mAP as a function of how often each image counts: the mean over the classes that occur."""

    def value(weights: Floats) -> Floats:
        total, classes = np.zeros(len(weights)), np.zeros(len(weights))
        for precision, truth in average_precisions(matches, weights):
            total += np.where(truth > 0, precision.mean(axis=1), 0.0)
            classes += truth > 0
        mean: Floats = total / np.maximum(classes, 1)
        return mean

    return value


def interval_of(matches: Matches) -> Interval:
    return bootstrap(len(matches), mean_precision(matches), resamples=RESAMPLES, centred=True)


def difference_of(first: Matches, second: Matches) -> Interval:
    check_paired(first, second)
    ours, theirs = mean_precision(first), mean_precision(second)
    headline = partial(_less, ours, theirs)
    return bootstrap(len(first), headline, resamples=RESAMPLES, centred=True)


def _less(first: Headline, second: Headline, weights: Floats) -> Floats:
    return first(weights) - second(weights)


def score_of(matches: Matches, classes: Sequence[str], note: str) -> Score:
    """Rows mAP, AP50 and AP75; classes without an object have no value. The curves are those at an
    IoU of 0.5."""
    rows: dict[str, dict[str, float]] = {"mAP": {}, "AP50": {}, "AP75": {}}
    curves: dict[str, Curve] = {}
    every = np.ones((1, len(matches)))
    results = zip(classes, average_precisions(matches, every), strict=True)
    for label, (name, (precision, truth)) in enumerate(results):
        if not truth[0]:
            continue
        rows["mAP"][name] = float(precision[0].mean())
        rows["AP50"][name] = float(precision[0, _AT_50])
        rows["AP75"][name] = float(precision[0, _AT_75])
        curves[name] = _curve(_of_class(matches, label), float(truth[0]))
    for row in rows.values():
        row["overall"] = float(np.mean(list(row.values()))) if row else 0.0
    return Score(rows["mAP"]["overall"], rows, matches, curves, curve_row="AP50", note=note)


def _curve(detections: _OfClass, truth: float) -> Curve:
    """Precision at the 101 recalls, where they are reached."""
    counts = ~detections.ignored[:, _AT_50]
    hits = detections.hit[counts, _AT_50]
    right = hits.cumsum().astype(np.float64)
    precision = _from_the_right(right / np.arange(1, len(right) + 1))
    reached = np.searchsorted(right / truth, RECALLS)
    there = reached < len(right)
    return RECALLS[there], precision[reached[there]]
