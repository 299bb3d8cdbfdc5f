"""One drawn face and its labels, from a seed and an index alone.

A face is a list of filled shapes from back to front, in coordinates from 0 to 1. The image is
drawn at twice its size and reduced, so that its edges are soft as a camera's; the labels are drawn
at their size, so that every pixel is of one class. Without a
difficulty pose and light are mild on purpose: with more of them a small net learns nothing in a
minute, and a test set that nobody can learn measures nothing. `scene` and `camera` draw the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from PIL import Image, ImageDraw

from edgeloop.demo.camera import photographed
from edgeloop.demo.outlines import (
    BACKGROUND,
    BEARD,
    BOTTOM_LIP,
    CLOTHES,
    CLOTHING,
    FACEWEAR,
    FRAMES,
    GLASSES,
    HAIR,
    HAIRS,
    HATS,
    HEADWEAR,
    LEFT_BROW,
    LEFT_EAR,
    LEFT_EYE,
    MASKS,
    MOUTH,
    NECK,
    NOSE,
    RIGHT_BROW,
    RIGHT_EAR,
    RIGHT_EYE,
    SKIN,
    SKINS,
    THINGS,
    TOP_LIP,
    WALLS,
    Colour,
    FaceShape,
    Points,
    arch,
    box,
    cap,
    crescent,
    nose,
    oval,
    ring,
    shaded,
    tinted,
    turned,
)
from edgeloop.demo.scene import hard_scene
from edgeloop.tasks import IGNORE, Images

VERSION = 1  # raised whenever the same seed draws something else
_HARD_VERSION = 1  # part of the seed of faces with a difficulty


def draw_face(seed: int, index: int, size: int, difficulty: float = 0.0) -> tuple[Images, Images]:
    """Image (size, size, 3) and labels (size, size): the same on every machine. `difficulty` is
    from 0, a plain portrait, to 1."""
    if difficulty > 0:
        rng = np.random.default_rng((seed, index, _HARD_VERSION))
        scene = hard_scene(rng, difficulty)
        image, labels = _drawn(scene.shapes, scene.wall, scene.matrix, scene.shift, size)
        return photographed(rng, np.asarray(image), labels, difficulty), labels
    rng = np.random.default_rng((seed, index))
    wall = tinted(rng, WALLS)
    shapes = list(_face(rng))
    turn, shift = math.radians(rng.uniform(-10, 10)), rng.uniform(-0.045, 0.045, 2)
    scale = rng.uniform(0.92, 1.14)
    image, labels = _drawn(shapes, wall, turned(turn, scale), shift, size)
    return _lit(rng, image, size), labels


def _drawn(
    shapes: Iterable[FaceShape], wall: Colour, matrix: Points, shift: Points, size: int
) -> tuple[Image.Image, Images]:
    image = Image.new("RGB", (2 * size, 2 * size), wall)
    labels = Image.new("L", (size, size), BACKGROUND)
    on_image, on_labels = ImageDraw.Draw(image), ImageDraw.Draw(labels)
    for shape in shapes:
        placed = (shape.outline - 0.5) @ matrix + 0.5 + shift
        # A pixel is named by its corner here and by its middle in Pillow, hence the half.
        on_image.polygon((placed * (2 * size) - 0.5).ravel().tolist(), fill=shape.colour)
        on_labels.polygon((placed * size - 0.5).ravel().tolist(), fill=shape.label)
    return image.reduce(2), np.asarray(labels, dtype=np.uint8)


def _face(rng: np.random.Generator) -> Iterator[FaceShape]:
    """Everything that can be seen, back to front."""
    skin, hair = tinted(rng, SKINS), tinted(rng, HAIRS)
    wide, high = rng.uniform(0.235, 0.27), rng.uniform(0.31, 0.345)
    middle, top = 0.5, 0.5 - high
    yield from _behind(rng, skin, hair, wide, top)
    for side, label in ((-1, RIGHT_EAR), (1, LEFT_EAR)):
        ear = oval(middle + side * (wide + 0.012), 0.5, 0.045, 0.082)
        yield FaceShape(label, shaded(skin, 0.88), ear)
    yield FaceShape(SKIN, skin, oval(middle, 0.5, wide, high))
    if rng.random() < 0.45:
        yield FaceShape(BEARD, shaded(hair, 0.85), crescent(middle, 0.5, wide, high, 0.62))
    yield FaceShape(
        HAIR, hair, cap(middle, 0.5, wide + 0.01, high + 0.012, rng.uniform(0.42, 0.56))
    )
    yield from _features(rng, skin, hair)
    yield from _worn(rng, wide, high)
    if rng.random() < 0.05:  # something in front that no class describes: these pixels are ignored
        x, y = rng.uniform(0.1, 0.9, 2)
        yield FaceShape(IGNORE, tinted(rng, THINGS), oval(x, y, 0.07, 0.07))


def _behind(
    rng: np.random.Generator, skin: Colour, hair: Colour, wide: float, top: float
) -> Iterator[FaceShape]:
    if rng.random() < 0.5:
        length = rng.uniform(0.62, 0.8)
        back = oval(0.5, (top + length) / 2 - 0.02, wide + 0.07, (length - top) / 2 + 0.03)
        yield FaceShape(HAIR, shaded(hair, 0.8), back)
    yield FaceShape(NECK, shaded(skin, 0.78), box(0.5, 0.86, 0.115, 0.16))
    shoulders = rng.uniform(0.38, 0.45)
    yield FaceShape(CLOTHING, tinted(rng, CLOTHES), oval(0.5, 1.08, shoulders, 0.19))


def _features(rng: np.random.Generator, skin: Colour, hair: Colour) -> Iterator[FaceShape]:
    apart, level = rng.uniform(0.098, 0.112), rng.uniform(0.45, 0.468)
    iris = tinted(rng, ((70, 110, 160), (90, 60, 40), (70, 110, 70)))
    opened = rng.uniform(0.026, 0.034)
    for side, eye, brow in ((-1, RIGHT_EYE, RIGHT_BROW), (1, LEFT_EYE, LEFT_BROW)):
        x = 0.5 + side * apart
        yield FaceShape(eye, (245, 245, 245), oval(x, level, 0.054, opened))
        yield FaceShape(eye, iris, oval(x, level, 0.022, opened * 0.8))
        raised = level - rng.uniform(0.068, 0.078)
        yield FaceShape(brow, shaded(hair, 0.7), arch(x, raised, 0.064, 0.021))
    yield FaceShape(NOSE, shaded(skin, 0.84), nose(rng.uniform(0.046, 0.056)))
    yield from _mouth(rng)


def _mouth(rng: np.random.Generator) -> Iterator[FaceShape]:
    """Always a little open, so that its inside is never too rare to be measured."""
    y, wide, gap = rng.uniform(0.675, 0.69), rng.uniform(0.088, 0.1), rng.uniform(0.018, 0.034)
    lip = tinted(rng, ((190, 85, 90), (170, 70, 75)))
    outer, inner = oval(0.5, y, wide, gap + 0.028), oval(0.5, y, wide * 0.86, gap)
    upper = outer[:, 1] <= y + 1e-9
    yield FaceShape(BOTTOM_LIP, shaded(lip, 1.12), outer)
    yield FaceShape(TOP_LIP, shaded(lip, 0.82), outer[upper])
    yield FaceShape(MOUTH, (70, 20, 25), inner)


def _worn(rng: np.random.Generator, wide: float, high: float) -> Iterator[FaceShape]:
    hat, mask, glasses = rng.random(3) < (0.35, 0.14, 0.4)
    if glasses:
        frame = tinted(rng, FRAMES)
        for side in (-1, 1):
            rim = oval(0.5 + side * 0.108, 0.462, 0.083, 0.062)
            hole = oval(0.5 + side * 0.108, 0.462, 0.064, 0.043)
            yield FaceShape(GLASSES, frame, ring(rim, hole))
        yield FaceShape(GLASSES, frame, box(0.5, 0.455, 0.028, 0.011))
    if mask:
        cover = crescent(0.5, 0.5, wide + 0.004, high + 0.004, 0.53)
        yield FaceShape(FACEWEAR, tinted(rng, MASKS), cover)
    if hat:
        colour = tinted(rng, HATS)
        yield FaceShape(HEADWEAR, colour, cap(0.5, 0.48, wide + 0.03, high + 0.04, 0.56))
        yield FaceShape(HEADWEAR, shaded(colour, 0.8), box(0.5, 0.31, wide + 0.05, 0.022))


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
