"""A few test images with what a model makes of them, as two small files per test.

`examples_STAGE.png` has a row per image: the true classes on the left, the model's on the right. It
is an indexed image: a pixel's index is its class and its colour is that class's, 255 counts
nowhere. A text in it, JSON, says which images these are, so that only answers to the same images
are compared. `examples_STAGE.jpg` has the images themselves, one below the other.

Both can be opened by anything that shows images. Whoever reads them here trusts nothing in them.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from edgeloop.errors import BadInput
from edgeloop.tasks.base import (
    Illustrates,
    Illustration,
    Images,
    Labels,
    Samples,
    Score,
    Scorer,
)
from edgeloop.tasks.dataset import BROKEN_IMAGE
from edgeloop.tasks.labels import IGNORE

EXAMPLES = 4  # images per test
LARGEST_SIDE = 256  # larger ones are reduced
LARGEST_EXAMPLES_BYTES = 1 << 20
_MOST_IMAGES, _LONGEST_TEXT, _QUALITY = 16, 60, 85
_TEXT = "edgeloop"
Maps = NDArray[np.uint8]

# The colours of Okabe and Ito after a dark one for class 0, which most datasets call background;
# then those that differ most from all before them, also for people who cannot tell red from green.
_COLOURS = (
    *("#2F3640", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"),
    *("#96FFA5", "#1E1EA5", "#781E00", "#4B78FF", "#96FFFF", "#5A0F69", "#96B45A", "#87F0C3"),
    *("#A5FF78", "#784B3C", "#784B78", "#A55A2D", "#3C96F0", "#004BA5", "#4BD2E1", "#87C387"),
    *("#3C4BD2", "#00964B", "#78D2C3", "#4B69D2", "#690087", "#783C87", "#B4D24B", "#96E178"),
)
_IGNORED_COLOUR = "#969696"


def class_colour(number: int) -> str:
    """The same for a class everywhere; beyond 32 classes, colours repeat."""
    return _IGNORED_COLOUR if number == IGNORE else _COLOURS[number % len(_COLOURS)]


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
    these, too. Whatever goes wrong with that is said in `problem`, and never harms the score."""

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
    about = {
        "set": (key := _key(images, shown)),
        "task": task,
        "device": device,
        **{"images": count, "height": height, "width": width},
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
    known = (maps >= 0) & (maps < min(classes, IGNORE))
    found: Maps = np.where(known, maps, IGNORE).astype(np.uint8)
    return found


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
