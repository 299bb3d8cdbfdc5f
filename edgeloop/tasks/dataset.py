"""Datasets in folders: label maps, prepared images, their parts, and reading one image.

Files are sorted and cut once, at a place that depends on how many there are and on nothing else:
whatever counts are asked for, in whatever order, calibration and test never share an image.

    11,000 files or more   the last 10,000 are for the test, all before them for calibration
    2,000 to 11,000        the first 1,000 are for calibration, the rest for the test
    fewer                  half and half, as 1,000 and 1,000 would be

Calibration takes the first of its part, the test takes the last of its own. Asking for more than
there is gives what there is, and a note that says so.

Training has the part for calibration, less its last tenth (at most 2,000), which is for validation:
no net ever learns from a test image or is chosen by one. Calibration meets a validation image only
where it asks for nearly all of its part.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import struct
import threading
import time
import tokenize
import uuid
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edgeloop._util.files import mark_used, open_regular, read_regular
from edgeloop._util.system import available_cpus
from edgeloop.errors import BadInput, LocalFileError, NotFound
from edgeloop.tasks.base import Images, Labels, Samples

# Which pixel value of a label image is which class: `label_map.json` in the dataset's folder.
#
#     {"0": "background", "1": "road", "2": "road", "7": null}
#
# Values with the same name are one class, and `null` does not count. Classes are numbered in the
# order of their values, so the map above has two: 0 is the background, 1 the road. A list of
# names maps value 0 to the first of them, and so on. Without the file, labels are those of
# FaceSynthetics. 255 never counts.
#
# A classification has no label images: there the file maps the numbers of a model's outputs to
# the names of the dataset's classes.


FILE = "label_map.json"
IGNORE = 255  # the label of pixels that do not count
FACE_CLASSES = (
    "background",
    "skin",
    "nose",
    "right_eye",
    "left_eye",
    "right_brow",
    "left_brow",
    "right_ear",
    "left_ear",
    "mouth_interior",
    "top_lip",
    "bottom_lip",
    "neck",
    "hair",
    "beard",
    "clothing",
    "glasses",
    "headwear",
    "facewear",
)
_UNCOUNTED_NAMES = ("background", "facewear")  # as the scores of face segmentation have always been
_LARGEST_FILE, _LARGEST_OUTPUT_MAP = 1 << 16, 1 << 23
MOST_OUTPUTS = 65_534
_DIGITS = 9
_FEWEST = 2


@dataclass(frozen=True)
class LabelMap:
    """`values` maps a pixel value to its class name; None: pixels that do not count."""

    values: Mapping[int, str | None]

    @cached_property
    def classes(self) -> tuple[str, ...]:
        names = (self.values[value] for value in sorted(self.values))
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @cached_property
    def counted(self) -> tuple[int, ...]:
        """The classes that the headline is made of: all except the background (and facewear)."""
        return tuple(n for n, name in enumerate(self.classes) if name not in _UNCOUNTED_NAMES)

    @cached_property
    def fewest(self) -> int:
        """How many classes a model must have to answer every one that counts."""
        return max(self.counted) + 1

    @cached_property
    def table(self) -> NDArray[np.uint8]:
        """The class of each of the 256 pixel values; IGNORE where it does not count."""
        table = np.full(256, IGNORE, np.uint8)
        for value, name in self.values.items():
            if name is not None:
                table[value] = self.classes.index(name)
        return table

    @cached_property
    def unknown(self) -> NDArray[np.bool_]:
        """Whether each of the 256 pixel values is one that the map does not have."""
        unknown = np.ones(256, np.bool_)
        unknown[[IGNORE, *self.values]] = False
        return unknown

    @cached_property
    def digest(self) -> str:
        listed = json.dumps(sorted(self.values.items()), ensure_ascii=False)
        return hashlib.sha256(listed.encode()).hexdigest()[:16]


FACES = LabelMap(dict(enumerate(FACE_CLASSES)))


def read_label_map(folder: Path) -> LabelMap:
    """The dataset's own map, or that of FaceSynthetics."""
    path = folder / FILE
    content = _read(path, _LARGEST_FILE)
    if content is None:
        return FACES
    label_map = LabelMap(_values(path, content))
    if len(label_map.classes) < _FEWEST or not label_map.counted:
        raise BadInput(reason=f"{path} must name at least two classes, one of them not background")
    return label_map


@dataclass(frozen=True)
class OutputMap:
    """`names` maps the number of a model's output to its class; None: never an answer."""

    path: Path
    names: Mapping[int, str | None]

    @cached_property
    def classes(self) -> tuple[str, ...]:
        listed = (self.names[number] for number in sorted(self.names))
        return tuple(dict.fromkeys(name for name in listed if name is not None))

    def check(self, outputs: int) -> None:
        """A model may have more outputs than the map: they are never an answer."""
        if outputs <= max(self.names):
            raise BadInput(
                reason=f"{self.path} speaks of output {max(self.names)}, but the model has only "
                f"{outputs} outputs (0–{outputs - 1}): does the map belong to another model?"
            )

    def joined(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """(n, outputs) → (n, classes): of several outputs for one class, the highest."""
        self.check(outputs.shape[1])
        return np.stack([outputs[:, columns].max(axis=1) for columns in self._outputs_of], axis=1)

    def of_numbers(self, answers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of outputs as numbers of classes."""
        classes = np.full(max(self.names) + 1, -1)
        for index, outputs in enumerate(self._outputs_of):
            classes[outputs] = index
        is_known = (answers >= 0) & (answers < len(classes))
        numbers: NDArray[np.int64] = np.where(is_known, classes[np.where(is_known, answers, 0)], -1)
        if (numbers < 0).any():
            answer = answers[numbers < 0][0]
            raise BadInput(reason=f"the model answered class {answer}, which {self.path} lacks")
        return numbers

    @cached_property
    def _outputs_of(self) -> list[list[int]]:
        return [[n for n, name in self.names.items() if name == label] for label in self.classes]


def read_output_map(folder: Path) -> OutputMap | None:
    """Which class each output of a classifier stands for; None: the dataset's classes, in order."""
    path = folder / FILE
    content = _read(path, _LARGEST_OUTPUT_MAP)
    if content is None:
        return None
    names = {_value(path, n, MOST_OUTPUTS): _name(path, name) for n, name in _pairs(content)}
    output_map = OutputMap(path, names)
    if len(output_map.classes) < _FEWEST:
        reason = 'must name at least two classes, for example {"0": "cat", "1": "dog"}'
        raise BadInput(reason=f"{path} {reason}")
    return output_map


def _read(path: Path, most_bytes: int) -> object | None:
    """None without the file."""
    try:
        if path.stat().st_size > most_bytes:
            raise BadInput(reason=f"{path} is larger than {most_bytes >> 10} KiB: no label map is")
        content: object = json.loads(read_regular(path, most_bytes).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:
        raise BadInput(reason=f"{path} is not valid JSON: {error}") from None
    return {} if content is None else content


def _pairs(content: object) -> Sequence[tuple[object, object]]:
    if isinstance(content, list):
        return list(enumerate(content))
    return list(content.items()) if isinstance(content, dict) else []


def _values(path: Path, content: object) -> dict[int, str | None]:
    values = {_value(path, value, IGNORE): _name(path, name) for value, name in _pairs(content)}
    if values.pop(IGNORE, None) is not None:
        raise BadInput(reason=f"{path} gives {IGNORE} a class, but that value never counts")
    if not values:
        reason = (
            'must map pixel values to class names, for example {"0": "background", "1": "road"}'
        )
        raise BadInput(reason=f"{path} {reason}")
    return values


def _value(path: Path, value: object, most: int) -> int:
    text = str(value)
    if text.isascii() and text.isdigit() and len(text) < _DIGITS and int(text) <= most:
        return int(text)
    what = "pixel value" if most == IGNORE else "output"
    raise BadInput(reason=f"{path} has the {what} {text!r}: values are whole numbers to {most}")


def _name(path: Path, name: object) -> str | None:
    if name is None or (isinstance(name, str) and name.strip()):
        return name
    raise BadInput(reason=f"{path} has {name!r} in place of a class name or null")


# Images decoded and resized once, then memory-mapped.
#
# A prepared set is a folder of three files: images.npy, labels.npy and set.json, which keeps the
# hash of the two arrays. The folder's name is a hash of where the images are, their sizes and
# times, and the shape asked for, so a changed image means a new set; the hash inside is of the
# bytes themselves, so it names the same content on every machine.
#
# A set is built under another name and renamed when whole. Of two processes that build the same
# one, the second finds the name taken and uses what is there. The arrays are written as plain
# files, not through a map: a full disk is then an error with a name and no bus error.


BATCH = 32  # decoded images in memory at a time
LAYOUT = 1  # raised when the same images would give other arrays
_BUILDING = ".building-"
_ABANDONED_S = 24 * 3600
_DECODED_BYTES = 256 << 20  # of all images that are being decoded

Item = TypeVar("Item")


@dataclass(frozen=True)
class Preparation(Generic[Item]):
    """What a prepared set is built from. `files_of` names the files of an item."""

    root: Path
    items: Sequence[Item]
    files_of: Callable[[Item], Sequence[Path]]
    decode: Callable[[Item], tuple[Images, Labels]]
    image_shape: tuple[int, ...]
    label_shape: tuple[int, ...]
    label_type: type[np.generic] = np.uint8
    also: Sequence[str] = ()  # whatever else the arrays depend on, such as the classes

    def memory_of(self, item: Item) -> int:
        """About how much decoding it takes."""
        files = [file for file in self.files_of(item) if file.suffix != ".npy"]
        return sum(decoded_bytes(file) for file in files)

    def fingerprint(self) -> str:
        shapes = (self.image_shape, self.label_shape, np.dtype(self.label_type).name)
        parts = [str(LAYOUT), str(self.root.resolve()), repr(shapes), *self.also]
        for item in self.items:
            for file in self.files_of(item):
                try:
                    state = file.stat()
                except OSError as error:
                    raise LocalFileError(path=file, reason=error.strerror or str(error)) from None
                parts.append(f"{file.relative_to(self.root)}|{state.st_size}|{state.st_mtime_ns}")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def prepared(cache: Path, recipe: Preparation[Any], note: str = "") -> Samples:
    """The prepared set, from the cache if available."""
    folder = cache / recipe.fingerprint()
    samples = _open(folder, note)
    if samples is None:
        _build(cache, folder, recipe)
        samples = _open(folder, note)
    if samples is None:
        raise LocalFileError(path=folder, reason="prepared images vanished: is it being cleaned?")
    return samples


def _open(folder: Path, note: str) -> Samples | None:
    """None where there is no whole set: a machine that lost power may leave half a file."""
    try:
        key = json.loads((folder / "set.json").read_bytes())["content"]
        images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
        labels = np.load(folder / "labels.npy", mmap_mode="r", allow_pickle=False)
        mark_used(folder / "set.json")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, EOFError):
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return Samples(images, labels, key, note)


def _build(cache: Path, folder: Path, recipe: Preparation[Any]) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(cache)
    work = cache / f"{_BUILDING}{uuid.uuid4().hex}"
    work.mkdir()
    try:
        content = _write_arrays(work, recipe)
        (work / "set.json").write_text(json.dumps({"content": content}))
        with suppress(OSError):  # taken: another process built the same set
            work.rename(folder)
    except OSError as error:
        reason = f"images cannot be prepared there: {error.strerror or error}"
        raise LocalFileError(path=cache, reason=reason) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_arrays(work: Path, recipe: Preparation[Any]) -> str:
    """Streams the arrays to disk and returns the hash of their bytes."""
    count, digest = len(recipe.items), hashlib.sha256()
    digest.update(repr((count, recipe.image_shape, recipe.label_shape)).encode())
    with (work / "images.npy").open("wb") as images, (work / "labels.npy").open("wb") as labels:
        _write_header(images, (count, *recipe.image_shape), np.dtype(np.uint8))
        _write_header(labels, (count, *recipe.label_shape), np.dtype(recipe.label_type))
        for image, label in _decoded(recipe):
            for array, file in ((image, images), (label, labels)):
                data = np.ascontiguousarray(array).tobytes()
                digest.update(data)
                file.write(data)
    return digest.hexdigest()


def _decoded(recipe: Preparation[Any]) -> Iterator[tuple[Images, NDArray[Any]]]:
    """In order, a batch at a time: Pillow decodes and resizes outside the interpreter's lock."""
    items, room = iter(recipe.items), _Room(_DECODED_BYTES)

    def decode(item: Any) -> tuple[Images, Labels]:
        with room.taken(recipe.memory_of(item)):
            return recipe.decode(item)

    with ThreadPoolExecutor(available_cpus(), "decode") as pool:
        while batch := list(itertools.islice(items, BATCH)):
            for image, label in pool.map(decode, batch):
                yield image, np.asarray(label, dtype=recipe.label_type)


class _Room:
    """Memory for images that are being decoded: one that needs more than all of it waits until it
    is alone."""

    def __init__(self, size: int) -> None:
        self._free, self._size = size, size
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        size = min(size, self._size)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= size)
            self._free -= size
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()


def _write_header(file: BinaryIO, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
    head = {"descr": kind.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, head)


def _remove_abandoned(cache: Path) -> None:
    """Remove what killed processes left, once it is too old to be in use."""
    for folder in cache.glob(f"{_BUILDING}*"):
        with suppress(FileNotFoundError):
            if time.time() - folder.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(folder, ignore_errors=True)


CALIBRATION = 1_000
TEST = 10_000
VALIDATION = 2_000


def boundary(total: int) -> int:
    """The index of the first file that is for the test."""
    return max(min(CALIBRATION, total // 2), total - TEST)


def for_calibration(items: Sequence[Item], count: int, root: Path) -> tuple[Sequence[Item], str]:
    """The first `count` of the files for calibration, and a note when there are fewer."""
    _check(items, count, root)
    part = items[: boundary(len(items))]
    return part[:count], _note("calibration", count, len(part), len(items))


def for_test(items: Sequence[Item], count: int, root: Path) -> tuple[Sequence[Item], str]:
    """The last `count` of the files for the test, and a note when there are fewer."""
    _check(items, count, root)
    part = items[boundary(len(items)) :]
    return part[-count:], _note("test", count, len(part), len(items))


def for_training(items: Sequence[Item], root: Path) -> Sequence[Item]:
    """What a model may learn from."""
    _check_trainable(items, root)
    return items[: _first_for_validation(len(items))]


def for_validation(items: Sequence[Item], root: Path) -> Sequence[Item]:
    """What a model in training is watched with: neither learnt from nor tested on."""
    _check_trainable(items, root)
    return items[_first_for_validation(len(items)) : boundary(len(items))]


def shuffled(name: str) -> bytes:
    """A sort key: the same order everywhere, which has nothing to do with that of the names. Sorted
    by name, the first images may all be of one class or scene."""
    return hashlib.sha256(name.encode()).digest()


def _first_for_validation(total: int) -> int:
    part = boundary(total)
    return part - min(VALIDATION, max(1, part // 10))


def _check_trainable(items: Sequence[Item], root: Path) -> None:
    if boundary(len(items)) < 2:
        reason = f"{root} holds {len(items)} images: training, validation and test need at least 4"
        raise BadInput(reason=reason)


def _check(items: Sequence[Item], count: int, root: Path) -> None:
    if count < 1:
        raise BadInput(reason=f"at least 1 image is needed, not {count}")
    if len(items) < 2:
        raise BadInput(
            reason=f"{root} holds {len(items)} image: calibration and test need at least one each"
        )


def _note(purpose: str, asked: int, there: int, total: int) -> str:
    if asked <= there:
        return ""
    return (
        f"{there} {purpose} images instead of {asked}: the dataset has {total}, split in "
        "proportion so that calibration and test never overlap"
    )


# What Pillow raises on broken files, which is more than it says.
BROKEN_IMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    zlib.error,
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,
    RecursionError,
    struct.error,
    Image.DecompressionBombError,
)


# What NumPy raises for a header that is none, with the errors of the parser it uses.
BROKEN_ARRAY = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,
    SyntaxError,
    RecursionError,
    tokenize.TokenError,
)


MOST_PIXELS = 40_000_000  # of one image: decoded and converted, that is 320 MB
# By its content and not by its name. Others run programs (EPS), or have layers of any size (PSD).
# Pillow opens MPO, which many phones write, as JPEG: a name of its own would end in a KeyError.
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF", "PPM", "JPEG2000")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # checked here


def load(path: Path) -> Image.Image:
    """The decoded image."""
    with _opened(path) as picture:
        picture.load()
        return picture


def image_size(path: Path) -> tuple[int, int]:
    """Width and height, without decoding it."""
    with _opened(path) as picture:
        return picture.size


def decoded_bytes(path: Path) -> int:
    """About how much memory an image takes once it is decoded and converted."""
    with _opened(path) as picture:
        width, height = picture.size
        return width * height * (4 if picture.mode in ("L", "P", "1", "RGB") else 8)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """A file of a few kilobytes may claim any size, so that is checked before it is decoded."""
    with (
        _reading(path),
        open_regular(path) as file,
        Image.open(file, formats=FORMATS) as picture,
    ):
        width, height = picture.size
        if width * height > MOST_PIXELS:
            reason = f"{width:,} × {height:,} pixels are more than {MOST_PIXELS:,}"
            raise ValueError(reason)
        yield picture


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise BadInput(reason=f"{path} is not there") from None
    except BROKEN_IMAGE as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise BadInput(
            reason=f"{path} cannot be read as an image ({reason}): replace it or take it out of "
            "the dataset"
        ) from error


def as_rgb(picture: Image.Image, height: int, width: int) -> Images:
    """RGB, resized bilinearly: (height, width, 3) uint8."""
    colour = picture if picture.mode == "RGB" else picture.convert("RGB")
    if colour.size != (width, height):
        colour = colour.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(colour, dtype=np.uint8)


SUFFIX = "_seg"
MAKE_SOME = "'edgeloop data faces DIR' makes a small dataset"


@dataclass(frozen=True)
class Pair:
    """An image and its label image."""

    image: Path
    label: Path


class FolderTask(ABC, Generic[Item]):
    """The inputs of a task whose dataset is a folder of items, each of which is for one purpose."""

    def __init__(self, dataset: Path, cache: Path) -> None:
        self._root, self._cache = dataset, cache

    @property
    @abstractmethod
    def _items(self) -> Sequence[Item]:
        """All of them, in a fixed order."""

    @abstractmethod
    def _prepared(self, items: Sequence[Item], note: str, height: int, width: int) -> Samples: ...

    def calibration(self, height: int, width: int, count: int) -> Samples:
        items, note = for_calibration(self._items, count, self._root)
        return self._prepared(items, note, height, width)

    def test(self, height: int, width: int, count: int) -> Samples:
        items, note = for_test(self._items, count, self._root)
        return self._prepared(items, note, height, width)


class TrainableFolderTask(FolderTask[Item]):
    """A task that models can be trained for."""

    def training(self, height: int, width: int) -> Samples:
        return self._prepared(for_training(self._items, self._root), "", height, width)

    def validation(self, height: int, width: int) -> Samples:
        return self._prepared(for_validation(self._items, self._root), "", height, width)


def check_folder(root: Path) -> None:
    if not root.is_dir():
        what = "is no folder" if root.exists() else "is not there"
        raise NotFound(reason=f"the dataset {root} {what}: name another ({MAKE_SOME})")


def decode_pair(pair: Pair, height: int, width: int, labels: LabelMap) -> tuple[Images, Labels]:
    """Image (height, width, 3), bilinear; classes (height, width), nearest, checked before that."""
    image, label = load(pair.image), load(pair.label)
    _check_labels(pair, image, label, labels)
    if label.size != (width, height):
        label = label.resize((width, height), Image.Resampling.NEAREST)
    return as_rgb(image, height, width), labels.table[np.asarray(label, dtype=np.uint8)]


def _check_labels(pair: Pair, image: Image.Image, label: Image.Image, labels: LabelMap) -> None:
    if label.mode not in ("L", "P"):
        raise BadInput(
            reason=f"{pair.label} must have one channel of 8 bits with the classes, but its "
            f"pixels are {label.mode}"
        )
    present = np.array(label.histogram()[:256])
    unknown = np.flatnonzero((present > 0) & labels.unknown)
    if unknown.size:
        raise BadInput(
            reason=f"{pair.label} holds label {unknown[0]}, but the classes are "
            f"0–{len(labels.classes) - 1} (and {IGNORE} for pixels that do not count); other "
            f"labels need a {FILE} in the dataset"
        )
    check_aspect(pair, image.size, label.size)


def check_aspect(pair: Pair, image: tuple[int, int], label: tuple[int, int]) -> None:
    """Sizes are (width, height)."""
    (wide, high), (label_wide, label_high) = image, label
    if abs(wide * label_high - high * label_wide) > max(wide, high):  # a rounded side is no error
        raise BadInput(
            reason=f"{pair.label} is {label_wide} × {label_high}, not the aspect ratio of its "
            f"image, {wide} × {high}"
        )
