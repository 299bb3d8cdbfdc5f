"""Reading one picture, with an error that names the file."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from edgeloop.errors import BadInput
from edgeloop.tasks.base import Images

# What Pillow raises on broken files, which is more than it says.
_BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    zlib.error,
    Image.DecompressionBombError,
)


def load(path: Path) -> Image.Image:
    """The whole picture, decoded."""
    try:
        with Image.open(path) as picture:
            picture.load()
            return picture
    except FileNotFoundError:
        raise BadInput(reason=f"{path} is not there") from None
    except _BROKEN as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise BadInput(
            reason=f"{path} cannot be read as a picture ({reason}): replace it or take it out of "
            "the dataset"
        ) from error


def as_rgb(picture: Image.Image, height: int, width: int) -> Images:
    """RGB, resized bilinearly: (height, width, 3) uint8."""
    colour = picture if picture.mode == "RGB" else picture.convert("RGB")
    if colour.size != (width, height):
        colour = colour.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(colour, dtype=np.uint8)
