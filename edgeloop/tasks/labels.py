"""Which pixel value of a label image is which class: `label_map.json` in the dataset's folder.

    {"0": "background", "1": "road", "2": "road", "7": null}

Values with the same name are one class, and `null` does not count. Classes are numbered in the
order of their values, so the map above has two: 0 is the background, 1 the road. A list of names
maps value 0 to the first of them, and so on. Without the file, labels are those of FaceSynthetics.
255 never counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
_LARGEST_FILE = 1 << 16
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
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise BadInput(reason=f"{path} is too large for a map of 256 values")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return FACES
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
    except ValueError as error:
        raise BadInput(reason=f"{path} is not valid JSON: {error}") from None
    found = LabelMap(_values(path, content))
    if len(found.classes) < _FEWEST or not found.counted:
        raise BadInput(reason=f"{path} must name at least two classes, one of them not background")
    return found


def _values(path: Path, content: object) -> dict[int, str | None]:
    pairs: Sequence[tuple[object, object]] = []
    if isinstance(content, list):
        pairs = list(enumerate(content))
    elif isinstance(content, dict):
        pairs = list(content.items())
    values = {_value(path, value): _name(path, name) for value, name in pairs}
    if values.pop(IGNORE, None) is not None:
        raise BadInput(reason=f"{path} gives {IGNORE} a class, but that value never counts")
    if not values:
        reason = (
            'must map pixel values to class names, for example {"0": "background", "1": "road"}'
        )
        raise BadInput(reason=f"{path} {reason}")
    return values


def _value(path: Path, value: object) -> int:
    text = str(value)
    if text.isascii() and text.isdigit() and int(text) <= IGNORE:
        return int(text)
    raise BadInput(reason=f"{path} has the pixel value {text!r}: values are whole numbers to 255")


def _name(path: Path, name: object) -> str | None:
    if name is None or (isinstance(name, str) and name.strip()):
        return name
    raise BadInput(reason=f"{path} has {name!r} in place of a class name or null")
