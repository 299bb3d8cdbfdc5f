"""One drawn face and its labels, from a seed and an index alone.

A face is a list of filled shapes from back to front, in coordinates from 0 to 1. The image is
drawn at twice its size and reduced, so that its edges are soft as a camera's; the labels are drawn
at their size, so that every pixel is of one class. Pose and light are mild on purpose: with more of
them a small net learns nothing in a minute, and a test set that nobody can learn measures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from edgeloop.tasks import IGNORE, Images

VERSION = 1  # raised whenever the same seed draws something else

Points = NDArray[np.float64]
Colour = tuple[int, int, int]

_BACKGROUND, _SKIN, _NOSE = 0, 1, 2
_RIGHT_EYE, _LEFT_EYE, _RIGHT_BROW, _LEFT_BROW, _RIGHT_EAR, _LEFT_EAR = range(3, 9)
_MOUTH, _TOP_LIP, _BOTTOM_LIP, _NECK, _HAIR, _BEARD = range(9, 15)
_CLOTHING, _GLASSES, _HEADWEAR, _FACEWEAR = range(15, 19)

_SKINS = ((247, 215, 190), (232, 190, 160), (205, 155, 120), (160, 110, 80), (115, 75, 55))
_HAIRS = ((35, 25, 20), (80, 50, 30), (140, 95, 50), (200, 165, 95), (120, 120, 120))
_CLOTHES = ((40, 70, 140), (150, 40, 45), (45, 110, 70), (90, 60, 120), (60, 60, 65))
_HATS = ((30, 60, 160), (190, 30, 40), (20, 120, 80), (230, 180, 40))
_MASKS = ((150, 205, 225), (235, 240, 240))
_WALLS = ((205, 220, 230), (225, 220, 205), (190, 205, 190), (215, 200, 215))
_FRAMES = ((20, 20, 25), (110, 30, 30), (30, 45, 90))
_THINGS = ((190, 120, 40), (70, 140, 140))


@dataclass(frozen=True)
class FaceShape:
    """A filled outline of one class."""

    label: int
    colour: Colour
    outline: Points


def draw_face(seed: int, index: int, size: int) -> tuple[Images, Images]:
    """Image (size, size, 3) and labels (size, size): the same on every machine."""
    rng = np.random.default_rng((seed, index))
    wall = _tinted(rng, _WALLS)
    shapes = list(_face(rng))
    turn, shift = math.radians(rng.uniform(-10, 10)), rng.uniform(-0.045, 0.045, 2)
    scale = rng.uniform(0.92, 1.14)
    cosine, sine = scale * math.cos(turn), scale * math.sin(turn)
    matrix = np.array([[cosine, sine], [-sine, cosine]])
    image = Image.new("RGB", (2 * size, 2 * size), wall)
    labels = Image.new("L", (size, size), _BACKGROUND)
    on_image, on_labels = ImageDraw.Draw(image), ImageDraw.Draw(labels)
    for shape in shapes:
        placed = (shape.outline - 0.5) @ matrix + 0.5 + shift
        # A pixel is named by its corner here and by its middle in Pillow, hence the half.
        on_image.polygon((placed * (2 * size) - 0.5).ravel().tolist(), fill=shape.colour)
        on_labels.polygon((placed * size - 0.5).ravel().tolist(), fill=shape.label)
    return _lit(rng, image.reduce(2), size), np.asarray(labels, dtype=np.uint8)


def _face(rng: np.random.Generator) -> Iterator[FaceShape]:
    """Everything that can be seen, back to front."""
    skin, hair = _tinted(rng, _SKINS), _tinted(rng, _HAIRS)
    wide, high = rng.uniform(0.235, 0.27), rng.uniform(0.31, 0.345)
    middle, top = 0.5, 0.5 - high
    yield from _behind(rng, skin, hair, wide, top)
    for side, label in ((-1, _RIGHT_EAR), (1, _LEFT_EAR)):
        ear = _oval(middle + side * (wide + 0.012), 0.5, 0.045, 0.082)
        yield FaceShape(label, _shaded(skin, 0.88), ear)
    yield FaceShape(_SKIN, skin, _oval(middle, 0.5, wide, high))
    if rng.random() < 0.45:
        yield FaceShape(_BEARD, _shaded(hair, 0.85), _crescent(middle, 0.5, wide, high, 0.62))
    yield FaceShape(
        _HAIR, hair, _cap(middle, 0.5, wide + 0.01, high + 0.012, rng.uniform(0.42, 0.56))
    )
    yield from _features(rng, skin, hair)
    yield from _worn(rng, wide, high)
    if rng.random() < 0.05:  # something in front that no class describes: these pixels are ignored
        x, y = rng.uniform(0.1, 0.9, 2)
        yield FaceShape(IGNORE, _tinted(rng, _THINGS), _oval(x, y, 0.07, 0.07))


def _behind(
    rng: np.random.Generator, skin: Colour, hair: Colour, wide: float, top: float
) -> Iterator[FaceShape]:
    if rng.random() < 0.5:
        length = rng.uniform(0.62, 0.8)
        back = _oval(0.5, (top + length) / 2 - 0.02, wide + 0.07, (length - top) / 2 + 0.03)
        yield FaceShape(_HAIR, _shaded(hair, 0.8), back)
    yield FaceShape(_NECK, _shaded(skin, 0.78), _box(0.5, 0.86, 0.115, 0.16))
    shoulders = rng.uniform(0.38, 0.45)
    yield FaceShape(_CLOTHING, _tinted(rng, _CLOTHES), _oval(0.5, 1.08, shoulders, 0.19))


def _features(rng: np.random.Generator, skin: Colour, hair: Colour) -> Iterator[FaceShape]:
    apart, level = rng.uniform(0.098, 0.112), rng.uniform(0.45, 0.468)
    iris = _tinted(rng, ((70, 110, 160), (90, 60, 40), (70, 110, 70)))
    opened = rng.uniform(0.026, 0.034)
    for side, eye, brow in ((-1, _RIGHT_EYE, _RIGHT_BROW), (1, _LEFT_EYE, _LEFT_BROW)):
        x = 0.5 + side * apart
        yield FaceShape(eye, (245, 245, 245), _oval(x, level, 0.054, opened))
        yield FaceShape(eye, iris, _oval(x, level, 0.022, opened * 0.8))
        raised = level - rng.uniform(0.068, 0.078)
        yield FaceShape(brow, _shaded(hair, 0.7), _arch(x, raised, 0.064, 0.021))
    yield FaceShape(_NOSE, _shaded(skin, 0.84), _nose(rng.uniform(0.046, 0.056)))
    yield from _mouth(rng)


def _mouth(rng: np.random.Generator) -> Iterator[FaceShape]:
    """Always a little open, so that its inside is never too rare to be measured."""
    y, wide, gap = rng.uniform(0.675, 0.69), rng.uniform(0.088, 0.1), rng.uniform(0.018, 0.034)
    lip = _tinted(rng, ((190, 85, 90), (170, 70, 75)))
    outer, inner = _oval(0.5, y, wide, gap + 0.028), _oval(0.5, y, wide * 0.86, gap)
    upper = outer[:, 1] <= y + 1e-9
    yield FaceShape(_BOTTOM_LIP, _shaded(lip, 1.12), outer)
    yield FaceShape(_TOP_LIP, _shaded(lip, 0.82), outer[upper])
    yield FaceShape(_MOUTH, (70, 20, 25), inner)


def _worn(rng: np.random.Generator, wide: float, high: float) -> Iterator[FaceShape]:
    hat, mask, glasses = rng.random(3) < (0.35, 0.14, 0.4)
    if glasses:
        frame = _tinted(rng, _FRAMES)
        for side in (-1, 1):
            rim = _oval(0.5 + side * 0.108, 0.462, 0.083, 0.062)
            hole = _oval(0.5 + side * 0.108, 0.462, 0.064, 0.043)
            yield FaceShape(_GLASSES, frame, np.concatenate([rim, rim[:1], hole[:1], hole[::-1]]))
        yield FaceShape(_GLASSES, frame, _box(0.5, 0.455, 0.028, 0.011))
    if mask:
        cover = _crescent(0.5, 0.5, wide + 0.004, high + 0.004, 0.53)
        yield FaceShape(_FACEWEAR, _tinted(rng, _MASKS), cover)
    if hat:
        colour = _tinted(rng, _HATS)
        yield FaceShape(_HEADWEAR, colour, _cap(0.5, 0.48, wide + 0.03, high + 0.04, 0.56))
        yield FaceShape(_HEADWEAR, _shaded(colour, 0.8), _box(0.5, 0.31, wide + 0.05, 0.022))


def _lit(rng: np.random.Generator, image: Image.Image, size: int) -> Images:
    """Light from one side, and a little noise as of a camera."""
    angle, strength = rng.uniform(0, 2 * math.pi), rng.uniform(0, 0.18)
    ramp = np.linspace(-1, 1, size, dtype=np.float32)
    across, down = strength * math.cos(angle) * ramp, strength * math.sin(angle) * ramp
    light = np.float32(rng.uniform(0.93, 1.05)) + across[None, :] + down[:, None]
    lit = np.asarray(image, dtype=np.float32) * light[:, :, None]
    noise = np.frombuffer(rng.bytes(size * size * 3), np.uint8).reshape(size, size, 3) >> 5
    lit += noise
    np.clip(lit - 3.5, 0, 255, out=lit)
    return lit.astype(np.uint8)


def _tinted(rng: np.random.Generator, colours: Sequence[Colour]) -> Colour:
    red, green, blue = colours[int(rng.integers(len(colours)))]
    change = rng.integers(-10, 11, 3)
    return _whole(red + int(change[0]), green + int(change[1]), blue + int(change[2]))


def _shaded(colour: Colour, factor: float) -> Colour:
    return _whole(*(channel * factor for channel in colour))


def _whole(*channels: float) -> Colour:
    red, green, blue = (min(255, max(0, round(channel))) for channel in channels)
    return red, green, blue


_ANGLES = np.linspace(0, 2 * math.pi, 32, endpoint=False)
_CIRCLE = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)


def _oval(x: float, y: float, wide: float, high: float) -> Points:
    outline: Points = _CIRCLE * (wide, high) + (x, y)
    return outline


def _box(x: float, y: float, wide: float, high: float) -> Points:
    corners = ((-wide, -high), (wide, -high), (wide, high), (-wide, high))
    return np.array([(x + across, y + down) for across, down in corners])


def _cap(x: float, y: float, wide: float, high: float, share: float) -> Points:
    """The top of an oval, closed by a shallow curve: hair above a forehead, or a hat."""
    angles = np.linspace(math.pi * 1.04, math.pi * 1.96, 20)
    over = np.stack([np.cos(angles) * wide, np.sin(angles) * high], axis=1)
    under = np.stack([np.cos(angles) * wide * 0.93, np.sin(angles) * high * (1 - share)], axis=1)
    outline = np.concatenate([over, under[::-1]])
    outline += (x, y)
    return outline


def _crescent(x: float, y: float, wide: float, high: float, level: float) -> Points:
    """The part of a face below a height (0 its top, 1 its chin): a beard, or a mask."""
    points = _CIRCLE * (wide, high)
    points[:, 1] = np.maximum(points[:, 1], high * (2 * level - 1))
    points += (x, y)
    return points


def _arch(x: float, y: float, wide: float, thick: float) -> Points:
    across = np.linspace(-1, 1, 9)
    bend = 0.35 * thick * (1 - across**2)
    top = np.stack([across * wide, -thick / 2 - bend - 0.002], axis=1)
    bottom = np.stack([across * wide, thick / 2 - bend * 0.6], axis=1)
    outline = np.concatenate([top, bottom[::-1]])
    outline += (x, y)
    return outline


def _nose(wide: float) -> Points:
    half = ((0, 0.475), (0.5, 0.53), (1, 0.59), (0.8, 0.618), (0, 0.628))
    right = np.array([(0.5 + x * wide, y) for x, y in half])
    left = np.array([(0.5 - x * wide, y) for x, y in half])
    return np.concatenate([right, left[::-1]])
