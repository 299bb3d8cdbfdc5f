"""Harder faces: hands, hair and clothes in front of them, heads that turn, and busy backgrounds.

Everything grows with the difficulty, from 0 to 1. Colours stop telling classes apart, so a network
has to see shapes and where they are. Hands and things are background, as all that has no class.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

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
    mixed,
    nose,
    oval,
    ring,
    shaded,
    tinted,
    turned,
)
from edgeloop.tasks import IGNORE

Random = np.random.Generator

_SIDES = ((-1, RIGHT_EYE, RIGHT_BROW, RIGHT_EAR), (1, LEFT_EYE, LEFT_BROW, LEFT_EAR))
_EYE_LEVEL = 0.46


@dataclass(frozen=True)
class Scene:
    """Shapes from back to front, the colour behind them, and how all of it is placed."""

    shapes: list[FaceShape]
    wall: Colour
    matrix: Points
    shift: Points


@dataclass(frozen=True)
class _Person:
    skin: Colour
    hair: Colour
    wide: float
    high: float
    yaw: float
    pitch: float

    @property
    def top(self) -> float:
        return 0.5 - self.high


def hard_scene(rng: Random, difficulty: float) -> Scene:
    angle = math.radians(rng.uniform(-1, 1) * (10 + 25 * difficulty))
    scale = rng.uniform(0.92 - 0.24 * difficulty, 1.14 + 0.12 * difficulty)
    shift = rng.uniform(-1, 1, 2) * (0.045 + 0.09 * difficulty)
    wall = _colour(rng, WALLS, difficulty)
    person = _Person(
        skin=mixed(rng, SKINS),
        hair=_colour(rng, HAIRS, 0.3 * difficulty),
        wide=0.25 + 0.035 * rng.uniform(-1, 1),
        high=0.325 + 0.03 * rng.uniform(-1, 1),
        yaw=0.075 * difficulty * rng.uniform(-1, 1),
        pitch=0.045 * difficulty * rng.uniform(-1, 1),
    )
    shapes = [
        *_clutter(rng, person, difficulty),
        *_posed(_person(rng, person, difficulty), _bend(rng, difficulty), person),
        *_in_front(rng, person, difficulty),
    ]
    return Scene(shapes, wall, turned(angle, scale), shift)


def _colour(rng: Random, usual: tuple[Colour, ...], difficulty: float) -> Colour:
    """One of the usual ones, or any at all: then it says nothing about the class."""
    usual_one, any_one = tinted(rng, usual), rng.integers(15, 250, 3)
    if rng.random() >= 0.8 * difficulty:
        return usual_one
    red, green, blue = (int(channel) for channel in any_one)
    return red, green, blue


def _clutter(rng: Random, person: _Person, difficulty: float) -> Iterator[FaceShape]:
    """Things on the wall behind; some have the colours of skin and hair."""
    for _ in range(int(rng.integers(0, 1 + round(14 * difficulty)))):
        x, y = rng.uniform(-0.2, 1.2, 2)
        wide, high = rng.uniform(0.02, 0.28, 2)
        kind, near = rng.random(2)
        colour = _colour(rng, WALLS, 1.0)
        if near < 0.35:
            colour = shaded(person.skin if near < 0.2 else person.hair, rng.uniform(0.7, 1.15))
        outline = oval(x, y, wide, high) if kind < 0.4 else box(x, y, wide, high)
        around = (x, y)
        spun = (outline - around) @ turned(rng.uniform(0, math.pi), 1) + around
        yield FaceShape(BACKGROUND, colour, spun)


def _person(rng: Random, person: _Person, difficulty: float) -> Iterator[FaceShape]:
    """Back to front."""
    yield from _behind(rng, person, difficulty)
    for side, _, _, ear in _SIDES:
        x = 0.5 + side * (person.wide + 0.012) - 0.5 * person.yaw
        outline = oval(x, rng.uniform(0.48, 0.52), rng.uniform(0.035, 0.05), 0.08)
        yield FaceShape(ear, shaded(person.skin, rng.uniform(0.8, 1)), outline)
    yield FaceShape(SKIN, person.skin, oval(0.5, 0.5, person.wide, person.high))
    yield from _beard(rng, person)
    is_bald = rng.random() < 0.1
    if not is_bald:
        share = rng.uniform(0.36, 0.66)
        outline = cap(0.5, 0.5, person.wide + 0.012, person.high + 0.015, share)
        yield FaceShape(HAIR, person.hair, outline)
    yield from _features(rng, person)
    if not is_bald:
        yield from _hair_in_front(rng, person, difficulty)
    yield from _worn(rng, person, difficulty)


def _behind(rng: Random, person: _Person, difficulty: float) -> Iterator[FaceShape]:
    if rng.random() < 0.5:
        length = rng.uniform(0.62, 0.9)
        middle, half = (person.top + length) / 2 - 0.02, (length - person.top) / 2 + 0.03
        outline = oval(0.5, middle, person.wide + rng.uniform(0.03, 0.11), half)
        yield FaceShape(HAIR, shaded(person.hair, rng.uniform(0.7, 1)), outline)
    neck = box(0.5, 0.86, rng.uniform(0.09, 0.14), 0.16)
    yield FaceShape(NECK, shaded(person.skin, rng.uniform(0.7, 0.95)), neck)
    clothes = _colour(rng, CLOTHES, difficulty)
    shoulders = oval(0.5, 1.08, rng.uniform(0.34, 0.5), rng.uniform(0.15, 0.22))
    yield FaceShape(CLOTHING, clothes, shoulders)
    if rng.random() < 0.3:
        collar = rng.uniform(0.1, 0.16)
        outline = np.array([(0.5 - collar, 0.9), (0.5 + collar, 0.9), (0.5, 1.05)])
        yield FaceShape(NECK, shaded(person.skin, 0.8), outline)


def _beard(rng: Random, person: _Person) -> Iterator[FaceShape]:
    kind, colour = rng.random(), shaded(person.hair, rng.uniform(0.7, 1.1))
    if kind < 0.3:
        outline = crescent(0.5, 0.5, person.wide, person.high, rng.uniform(0.58, 0.72))
        yield FaceShape(BEARD, colour, outline)
    if 0.15 < kind < 0.42:
        yield FaceShape(BEARD, colour, oval(0.5, 0.648, rng.uniform(0.07, 0.1), 0.022))
    if 0.36 < kind < 0.55:
        outline = oval(0.5, 0.5 + person.high - 0.05, rng.uniform(0.05, 0.09), 0.055)
        yield FaceShape(BEARD, colour, outline)


def _features(rng: Random, person: _Person) -> Iterator[FaceShape]:
    apart, level = rng.uniform(0.09, 0.118), _EYE_LEVEL + rng.uniform(-0.015, 0.015)
    iris = tinted(rng, ((70, 110, 160), (90, 60, 40), (70, 110, 70)))
    white = 255 - int(rng.integers(5, 60))
    opened, wide = rng.uniform(0.014, 0.036), rng.uniform(0.044, 0.058)
    gaze = rng.uniform(-0.025, 0.025)
    brow = shaded(person.hair, rng.uniform(0.6, 1))
    thick, raised = rng.uniform(0.014, 0.026), rng.uniform(0.06, 0.08)
    for side, eye, eyebrow, _ in _SIDES:
        x = 0.5 + side * apart
        yield FaceShape(eye, (white, white, white - 5), oval(x, level, wide, opened))
        yield FaceShape(eye, iris, oval(x + gaze, level, min(0.022, opened), opened * 0.85))
        yield FaceShape(eyebrow, brow, arch(x, level - raised, 0.064, thick))
    yield FaceShape(
        NOSE, shaded(person.skin, rng.uniform(0.78, 1.1)), nose(rng.uniform(0.04, 0.06))
    )
    yield from _mouth(rng)


def _mouth(rng: Random) -> Iterator[FaceShape]:
    y, wide, gap = rng.uniform(0.67, 0.695), rng.uniform(0.065, 0.105), rng.uniform(0.008, 0.042)
    lip = tinted(rng, ((190, 85, 90), (170, 70, 75), (205, 130, 115), (130, 60, 60)))
    outer = oval(0.5, y, wide, gap + rng.uniform(0.02, 0.032))
    yield FaceShape(BOTTOM_LIP, shaded(lip, rng.uniform(1, 1.15)), outer)
    yield FaceShape(TOP_LIP, shaded(lip, rng.uniform(0.8, 0.95)), outer[outer[:, 1] <= y + 1e-9])
    inside = (70, 20, 25) if rng.random() < 0.5 else (225, 220, 210)  # dark, or teeth
    yield FaceShape(MOUTH, inside, oval(0.5, y, wide * 0.86, gap))


def _hair_in_front(rng: Random, person: _Person, difficulty: float) -> Iterator[FaceShape]:
    """Over the ears, and strands over the forehead, an eye or a cheek."""
    shade = shaded(person.hair, rng.uniform(0.8, 1.15))
    if rng.random() < 0.6 * difficulty:
        length = rng.uniform(0.5, 0.85)
        middle, half = (person.top + length) / 2 + 0.05, (length - person.top) / 2 - 0.05
        for side in (-1, 1):
            x = 0.5 + side * (person.wide + rng.uniform(-0.03, 0.03))
            yield FaceShape(HAIR, shade, oval(x, middle, rng.uniform(0.03, 0.075), half))
    if rng.random() < 0.7 * difficulty:
        for _ in range(int(rng.integers(1, 6))):
            start, end = rng.uniform(-0.8, 0.8), rng.uniform(-1, 1)
            bottom = rng.uniform(0.36, 0.44 + 0.24 * difficulty)
            yield FaceShape(HAIR, shade, _strand(rng, person, start, end, bottom))


def _strand(rng: Random, person: _Person, start: float, end: float, bottom: float) -> Points:
    """From the hairline down, narrower towards its end."""
    along = np.linspace(0, 1, 8)
    x = 0.5 + person.wide * (start + (end - start) * along**2)
    y = person.top + 0.06 + (bottom - person.top - 0.06) * along
    half = rng.uniform(0.012, 0.035) * (1 - 0.9 * along)
    left, right = np.stack([x - half, y], axis=1), np.stack([x + half, y], axis=1)
    return np.concatenate([left, right[::-1]])


def _worn(rng: Random, person: _Person, difficulty: float) -> Iterator[FaceShape]:
    glasses, mask, scarf, hat = rng.random(4) < (0.4, 0.22, 0.25 * difficulty, 0.42)
    if glasses:
        yield from _glasses(rng, difficulty)
    if mask:
        level = rng.uniform(0.5, 0.66)
        outline = crescent(0.5, 0.5, person.wide + 0.004, person.high + 0.004, level)
        yield FaceShape(FACEWEAR, _colour(rng, MASKS, difficulty), outline)
    if scarf:
        outline = oval(
            0.5, rng.uniform(0.84, 0.94), rng.uniform(0.2, 0.32), rng.uniform(0.08, 0.14)
        )
        yield FaceShape(CLOTHING, _colour(rng, CLOTHES, difficulty), outline)
    if hat:
        yield from _headwear(rng, person, difficulty)


def _glasses(rng: Random, difficulty: float) -> Iterator[FaceShape]:
    frame, level = _colour(rng, FRAMES, 0.5 * difficulty), rng.uniform(0.45, 0.475)
    wide, high = rng.uniform(0.068, 0.09), rng.uniform(0.045, 0.068)
    thick = rng.uniform(0.014, 0.024)
    is_square, is_dark = rng.random(2) < (0.4, 0.35 * difficulty)
    outline = box if is_square else oval
    for side in (-1, 1):
        outer = outline(0.5 + side * 0.108, level, wide, high)
        inner = outline(0.5 + side * 0.108, level, wide - thick, high - thick)
        yield FaceShape(GLASSES, frame, outer if is_dark else ring(outer, inner))
        if is_dark:
            yield FaceShape(GLASSES, shaded(frame, 0.6), inner)
    yield FaceShape(GLASSES, frame, box(0.5, level - 0.007, 0.03, 0.011))


def _headwear(rng: Random, person: _Person, difficulty: float) -> Iterator[FaceShape]:
    """A cap, a hat with a brim, or a headscarf around the whole face."""
    kind, colour = rng.random(), _colour(rng, HATS, difficulty)
    if kind < 0.3 * difficulty:
        outer = oval(0.5, 0.53, person.wide + rng.uniform(0.07, 0.11), person.high + 0.09)
        inner = oval(0.5, 0.53, person.wide - 0.005, person.high - rng.uniform(0.0, 0.04))
        yield FaceShape(HEADWEAR, colour, ring(outer, inner))
        return
    tall = rng.uniform(0.03, 0.08)
    share = rng.uniform(0.45, 0.62)
    crown = cap(0.5, 0.48, person.wide + 0.03, person.high + tall, share)
    yield FaceShape(HEADWEAR, colour, crown)
    if rng.random() < 0.6:
        level, brim = rng.uniform(0.28, 0.35), person.wide + rng.uniform(0.02, 0.14)
        outline = box(0.5, level, brim, rng.uniform(0.014, 0.03))
        yield FaceShape(HEADWEAR, shaded(colour, rng.uniform(0.65, 0.95)), outline)


def _in_front(rng: Random, person: _Person, difficulty: float) -> Iterator[FaceShape]:
    hand, thing, unknown = rng.random(3) < (0.35 * difficulty, 0.25 * difficulty, 0.05)
    if hand:
        yield from _hand(rng, shaded(person.skin, rng.uniform(0.8, 1.1)))
    if thing:
        x, y = rng.uniform(0.1, 0.9, 2)
        wide, high = rng.uniform(0.03, 0.11, 2)
        outline = box(x, y, wide, high) if rng.random() < 0.5 else oval(x, y, wide, high)
        yield FaceShape(BACKGROUND, _colour(rng, THINGS, 1.0), outline)
    if unknown:  # nobody says what it is: these pixels are ignored
        x, y = rng.uniform(0.1, 0.9, 2)
        yield FaceShape(IGNORE, tinted(rng, THINGS), oval(x, y, 0.07, 0.07))


def _hand(rng: Random, colour: Colour) -> Iterator[FaceShape]:
    """A palm with four fingers that points at the face from one side or from below."""
    side = rng.uniform(-1, 1)
    x, y = 0.5 + side * rng.uniform(0.2, 0.34), rng.uniform(0.55, 0.9)
    spin = turned(math.radians(-side * rng.uniform(20, 80)), rng.uniform(0.8, 1.2))
    parts = [oval(0, 0, 0.075, 0.085)]
    parts += [oval(0.045 * (n - 1.5), -0.11, 0.02, rng.uniform(0.055, 0.085)) for n in range(4)]
    parts.append(box(0, 0.3, 0.06, 0.25))
    for number, part in enumerate(parts):
        yield FaceShape(BACKGROUND, shaded(colour, 1 - 0.03 * number), part @ spin + (x, y))


def _bend(rng: Random, difficulty: float) -> Points:
    """Amplitude, frequency and phase of a slow wave along each side: no two faces are the same
    shape."""
    amplitude = rng.uniform(0, 0.018, 2) * difficulty
    return np.stack([amplitude, rng.uniform(1, 3, 2), rng.uniform(0, 2, 2)])


def _posed(shapes: Iterable[FaceShape], bend: Points, person: _Person) -> list[FaceShape]:
    """The head turned: what is in the middle moves, its edge stays."""
    listed, (amplitude, frequency, phase) = list(shapes), bend
    points = np.concatenate([shape.outline for shape in listed])
    off = (points - 0.5) / (0.3, 0.42)
    inside = np.maximum(0, 1 - (off**2).sum(axis=1))[:, None]
    wave = (points[:, ::-1] * frequency + phase) % 2 - 1
    wave *= 4 * (1 - np.abs(wave))  # nearly a sine, and the same on every processor
    moved = points + inside * (person.yaw, person.pitch) + amplitude * wave
    ends = np.cumsum([len(shape.outline) for shape in listed])[:-1]
    return [
        FaceShape(shape.label, shape.colour, outline)
        for shape, outline in zip(listed, np.split(moved, ends), strict=True)
    ]
