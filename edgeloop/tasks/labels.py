"""Which pixel value of a label image is which class: `label_map.json` in the dataset's folder.

    {"0": "background", "1": "road", "2": "road", "7": null}

Values with the same name are one class, and `null` does not count. Classes are numbered in the
order of their values, so the map above has two: 0 is the background, 1 the road. A list of names
maps value 0 to the first of them, and so on. Without the file, labels are those of FaceSynthetics.
255 never counts.

A classification has no label images: there the file maps the numbers of a model's outputs to the
names of the dataset's classes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeloop._util.files import read_regular
from edgeloop.errors import BadInput, LocalFileError

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
    found = LabelMap(_values(path, content))
    if len(found.classes) < _FEWEST or not found.counted:
        raise BadInput(reason=f"{path} must name at least two classes, one of them not background")
    return found


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
        return np.stack([outputs[:, own].max(axis=1) for own in self._outputs_of], axis=1)

    def of_numbers(self, answers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of outputs as numbers of classes."""
        classes = np.full(max(self.names) + 1, -1)
        for index, own in enumerate(self._outputs_of):
            classes[own] = index
        known = (answers >= 0) & (answers < len(classes))
        found: NDArray[np.int64] = np.where(known, classes[np.where(known, answers, 0)], -1)
        if (found < 0).any():
            answer = answers[found < 0][0]
            raise BadInput(reason=f"the model answered class {answer}, which {self.path} lacks")
        return found

    @cached_property
    def _outputs_of(self) -> list[list[int]]:
        return [[n for n, name in self.names.items() if name == own] for own in self.classes]


def read_output_map(folder: Path) -> OutputMap | None:
    """Which class each output of a classifier stands for; None: the dataset's classes, in order."""
    path = folder / FILE
    content = _read(path, _LARGEST_OUTPUT_MAP)
    if content is None:
        return None
    names = {_value(path, n, MOST_OUTPUTS): _name(path, name) for n, name in _pairs(content)}
    found = OutputMap(path, names)
    if len(found.classes) < _FEWEST:
        reason = 'must name at least two classes, for example {"0": "cat", "1": "dog"}'
        raise BadInput(reason=f"{path} {reason}")
    return found


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
