"""What faces are drawn of: filled outlines of one class each, and their colours.

Coordinates are from 0 to 1, left to right and top to bottom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Colour = tuple[int, int, int]

BACKGROUND, SKIN, NOSE = 0, 1, 2
RIGHT_EYE, LEFT_EYE, RIGHT_BROW, LEFT_BROW, RIGHT_EAR, LEFT_EAR = range(3, 9)
MOUTH, TOP_LIP, BOTTOM_LIP, NECK, HAIR, BEARD = range(9, 15)
CLOTHING, GLASSES, HEADWEAR, FACEWEAR = range(15, 19)

SKINS = ((247, 215, 190), (232, 190, 160), (205, 155, 120), (160, 110, 80), (115, 75, 55))
HAIRS = ((35, 25, 20), (80, 50, 30), (140, 95, 50), (200, 165, 95), (120, 120, 120))
CLOTHES = ((40, 70, 140), (150, 40, 45), (45, 110, 70), (90, 60, 120), (60, 60, 65))
HATS = ((30, 60, 160), (190, 30, 40), (20, 120, 80), (230, 180, 40))
MASKS = ((150, 205, 225), (235, 240, 240))
WALLS = ((205, 220, 230), (225, 220, 205), (190, 205, 190), (215, 200, 215))
FRAMES = ((20, 20, 25), (110, 30, 30), (30, 45, 90))
THINGS = ((190, 120, 40), (70, 140, 140))


@dataclass(frozen=True)
class FaceShape:
    """A filled outline of one class."""

    label: int
    colour: Colour
    outline: Points


def tinted(rng: np.random.Generator, colours: Sequence[Colour]) -> Colour:
    red, green, blue = colours[int(rng.integers(len(colours)))]
    change = rng.integers(-10, 11, 3)
    return _whole(red + int(change[0]), green + int(change[1]), blue + int(change[2]))


def mixed(rng: np.random.Generator, colours: Sequence[Colour]) -> Colour:
    """Somewhere between two neighbours."""
    first = int(rng.integers(len(colours) - 1))
    share = rng.random()
    pairs = zip(colours[first], colours[first + 1], strict=True)
    return _whole(*(one + (other - one) * share for one, other in pairs))


def shaded(colour: Colour, factor: float) -> Colour:
    return _whole(*(channel * factor for channel in colour))


def _whole(*channels: float) -> Colour:
    red, green, blue = (min(255, max(0, round(channel))) for channel in channels)
    return red, green, blue


_ANGLES = np.linspace(0, 2 * math.pi, 32, endpoint=False)
_CIRCLE = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)


def oval(x: float, y: float, wide: float, high: float) -> Points:
    outline: Points = _CIRCLE * (wide, high) + (x, y)
    return outline


def ring(outer: Points, inner: Points) -> Points:
    """What is between two outlines."""
    return np.concatenate([outer, outer[:1], inner[:1], inner[::-1]])


def turned(angle: float, scale: float) -> Points:
    """A matrix for points in rows."""
    cosine, sine = scale * math.cos(angle), scale * math.sin(angle)
    return np.array([[cosine, sine], [-sine, cosine]])


def box(x: float, y: float, wide: float, high: float) -> Points:
    corners = ((-wide, -high), (wide, -high), (wide, high), (-wide, high))
    return np.array([(x + across, y + down) for across, down in corners])


def cap(x: float, y: float, wide: float, high: float, share: float) -> Points:
    """The top of an oval, closed by a shallow curve: hair above a forehead, or a hat."""
    angles = np.linspace(math.pi * 1.04, math.pi * 1.96, 20)
    over = np.stack([np.cos(angles) * wide, np.sin(angles) * high], axis=1)
    under = np.stack([np.cos(angles) * wide * 0.93, np.sin(angles) * high * (1 - share)], axis=1)
    outline = np.concatenate([over, under[::-1]])
    outline += (x, y)
    return outline


def crescent(x: float, y: float, wide: float, high: float, level: float) -> Points:
    """The part of a face below a height (0 its top, 1 its chin): a beard, or a mask."""
    points = _CIRCLE * (wide, high)
    points[:, 1] = np.maximum(points[:, 1], high * (2 * level - 1))
    points += (x, y)
    return points


def arch(x: float, y: float, wide: float, thick: float) -> Points:
    across = np.linspace(-1, 1, 9)
    bend = 0.35 * thick * (1 - across**2)
    top = np.stack([across * wide, -thick / 2 - bend - 0.002], axis=1)
    bottom = np.stack([across * wide, thick / 2 - bend * 0.6], axis=1)
    outline = np.concatenate([top, bottom[::-1]])
    outline += (x, y)
    return outline


def nose(wide: float) -> Points:
    half = ((0, 0.475), (0.5, 0.53), (1, 0.59), (0.8, 0.618), (0, 0.628))
    right = np.array([(0.5 + x * wide, y) for x, y in half])
    left = np.array([(0.5 - x * wide, y) for x, y in half])
    return np.concatenate([right, left[::-1]])
