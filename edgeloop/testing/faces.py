"""Draws a dataset of faces, for real training, quantization and F1 without a download.

The layout is that of FaceSynthetics. Each face depends on the seed and its number only, so it does
not matter how many processes draw, nor whether the work was interrupted: files appear whole or not
at all, what is there is kept, and `faces.json`, written last, says that the set is complete.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from edgeloop._util.system import available_cpus, safe_path
from edgeloop.errors import BadInput
from edgeloop.tasks import IGNORE, Images

# One drawn face and its labels, from a seed and an index alone.
#
# A face is a list of filled shapes from back to front, in coordinates from 0 to 1. The image is
# drawn at twice its size and reduced, so that its edges are soft as a camera's; the labels are
# drawn at their size, so that every pixel is of one class. Without a difficulty pose and light are
# mild on purpose: with more of them a small net learns nothing in a minute, and a test set that
# cannot be learned measures nothing. `scene` and `camera` draw the others.


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


MANIFEST = "faces.json"
BEGUN = ".faces.begun.json"
MOST = 1_000_000  # numbers have six digits
SIZES = range(16, 2049)
DIFFICULTIES = {"easy": 0.0, "normal": 0.5, "hard": 1.0}
_WORTH_A_PROCESS = 500 * 128 * 128  # pixels: below, starting one takes longer than drawing
_BATCH = 16
_ENDED_EARLY = (
    "A process that draws faces ended early. In a script, make them below "
    "'if __name__ == \"__main__\":'; otherwise run this again, what is there is kept"
)

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class FaceSet:
    """What a folder of faces holds; the same values are the same images."""

    count: int
    size: int
    seed: int
    version: int = VERSION
    difficulty: float = 0.0

    def to_json(self) -> bytes:
        """As it was written before faces had a difficulty, where they have none."""
        fields = asdict(self)
        if not self.difficulty:
            del fields["difficulty"]
        return (json.dumps(fields, indent=2) + "\n").encode()


def difficulty_of(text: str) -> float:
    """From a word or a number."""
    try:
        value = DIFFICULTIES[text] if text in DIFFICULTIES else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:  # never true of NaN
        words = ", ".join(DIFFICULTIES)
        raise BadInput(reason=f"a difficulty is {words} or a number from 0 to 1, not {text!r}")
    return value


def make_faces(
    folder: Path,
    count: int,
    size: int,
    seed: int,
    progress: Progress | None = None,
    processes: int | None = None,
    difficulty: float = 0.0,
) -> FaceSet:
    """Fills a folder with `NNNNNN.png` and `NNNNNN_seg.png`; a second call finds them there.

    `difficulty` is from 0, plain portraits, to 1: hands, hair and clothes over faces that turn
    away, in bad light before busy backgrounds. `progress` is told how many of how many are done.
    Large sets are drawn by several processes, so a script that asks for one needs the usual
    `if __name__ == "__main__":`.
    """
    wanted = FaceSet(count, size, seed, difficulty=difficulty)
    _check(wanted)
    _begin(folder, wanted)
    present = {entry.name for entry in os.scandir(folder)}
    missing = [n for n in range(count) if not {_image(n), _labels(n)} <= present]
    done = count - len(missing)
    report = progress or (lambda done, total: None)
    report(done, count)
    for finished in _draw_all(folder, wanted, missing, processes):
        done += finished
        report(done, count)
    _finish(folder, wanted)
    return wanted


def _check(wanted: FaceSet) -> None:
    if not 1 <= wanted.count <= MOST:
        raise BadInput(reason=f"from 1 to {MOST:,} faces can be made, not {wanted.count:,}")
    if wanted.size not in SIZES:
        raise BadInput(reason=f"faces are {SIZES[0]} to {SIZES[-1]} pixels wide, not {wanted.size}")
    if wanted.seed < 0:
        raise BadInput(reason=f"a seed is 0 or more, not {wanted.seed}")
    difficulty_of(str(wanted.difficulty))


def _begin(folder: Path, wanted: FaceSet) -> None:
    """Refuse a folder with anything but this set, whole or begun."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (MANIFEST, BEGUN):
        if (folder / name).exists():
            _check_same(folder, name, wanted)
            return
    if any(folder.iterdir()):
        raise BadInput(
            reason=f"{folder} holds files that are no set of faces: name an empty or new folder"
        )
    _write(folder / BEGUN, wanted.to_json())


def _check_same(folder: Path, name: str, wanted: FaceSet) -> None:
    try:
        there = FaceSet(**json.loads((folder / name).read_bytes()))
    except FileNotFoundError:  # finished by another process just now
        return
    except (ValueError, TypeError) as error:
        raise BadInput(reason=f"{folder / name} is damaged: name another folder") from error
    if there != wanted:
        raise BadInput(
            reason=f"{folder} holds other faces ({_described(there)}; asked for "
            f"{_described(wanted)}): name another folder, or delete that one"
        )


def _described(faces: FaceSet) -> str:
    text = f"{faces.count} of {faces.size} px, seed {faces.seed}, version {faces.version}"
    return f"{text}, difficulty {faces.difficulty:g}" if faces.difficulty else text


def _draw_all(
    folder: Path, wanted: FaceSet, numbers: list[int], processes: int | None
) -> Iterator[int]:
    """Yields how many were done, as they are."""
    draw = partial(_draw_batch, folder, wanted)
    batches = [numbers[start : start + _BATCH] for start in range(0, len(numbers), _BATCH)]
    if processes is None:
        processes = min(available_cpus(), 1 + len(numbers) * wanted.size**2 // _WORTH_A_PROCESS)
    if processes < 2:
        yield from map(draw, batches)
        return
    with safe_path():
        pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
        drawn = pool.map(draw, batches)
    with pool:
        try:
            yield from drawn
        except BrokenProcessPool as error:
            raise BadInput(reason=_ENDED_EARLY) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _draw_batch(folder: Path, wanted: FaceSet, numbers: list[int]) -> int:
    for number in numbers:
        image, labels = draw_face(wanted.seed, number, wanted.size, wanted.difficulty)
        _save(folder / _image(number), image)
        _save(folder / _labels(number), labels)
    return len(numbers)


def _finish(folder: Path, wanted: FaceSet) -> None:
    _write(folder / MANIFEST, wanted.to_json())
    (folder / BEGUN).unlink(missing_ok=True)
    for left in folder.glob(".*.part"):  # of a run that was killed
        left.unlink(missing_ok=True)


def _save(path: Path, pixels: Images) -> None:
    """Run lengths suit filled shapes: smaller and faster than what PNG usually does."""
    data = BytesIO()
    Image.fromarray(pixels).save(data, "PNG", compress_level=1, compress_type=zlib.Z_RLE)
    _write(path, data.getvalue())


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all. A part that is gone was swept up by a process that finished the same
    set before us, so the file is there."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    with suppress(FileNotFoundError):
        part.replace(path)


def _image(number: int) -> str:
    return f"{number:06d}.png"


def _labels(number: int) -> str:
    return f"{number:06d}_seg.png"


# What faces are drawn of: filled outlines of one class each, and their colours.
#
# Coordinates are from 0 to 1, left to right and top to bottom.


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
    return _outlines_whole(red + int(change[0]), green + int(change[1]), blue + int(change[2]))


def mixed(rng: np.random.Generator, colours: Sequence[Colour]) -> Colour:
    """Somewhere between two neighbours."""
    first = int(rng.integers(len(colours) - 1))
    share = rng.random()
    pairs = zip(colours[first], colours[first + 1], strict=True)
    return _outlines_whole(*(one + (other - one) * share for one, other in pairs))


def shaded(colour: Colour, factor: float) -> Colour:
    return _outlines_whole(*(channel * factor for channel in colour))


def _outlines_whole(*channels: float) -> Colour:
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


# Harder faces: hands, hair and clothes in front of them, heads that turn, and busy backgrounds.
#
# Everything grows with the difficulty, from 0 to 1. Colours stop telling classes apart, so a
# network has to see shapes and where they are. Hands and things are background, as all that has no
# class.


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
    yield from _scene_behind(rng, person, difficulty)
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
    yield from _scene_features(rng, person)
    if not is_bald:
        yield from _hair_in_front(rng, person, difficulty)
    yield from _scene_worn(rng, person, difficulty)


def _scene_behind(rng: Random, person: _Person, difficulty: float) -> Iterator[FaceShape]:
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


def _scene_features(rng: Random, person: _Person) -> Iterator[FaceShape]:
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
    yield from _scene_mouth(rng)


def _scene_mouth(rng: Random) -> Iterator[FaceShape]:
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


def _scene_worn(rng: Random, person: _Person, difficulty: float) -> Iterator[FaceShape]:
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
    if unknown:  # not labelled: these pixels are ignored
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


# How a drawn face is lit and photographed when it has a difficulty: patterns, light, blur, noise
# and compression. Nothing here moves a pixel, so the labels stay right.
#
# Whatever is computed for every pixel is a sum, a product or a comparison, which every processor
# rounds alike: the same seed gives the same bytes everywhere.


Floats = NDArray[np.float32]
Whole = NDArray[np.int32]

_PATTERNED = (BACKGROUND, HAIR, BEARD, CLOTHING, HEADWEAR, FACEWEAR, SKIN)
_STRENGTH = (0.25, 0.3, 0.3, 0.35, 0.35, 0.3, 0.1)  # of a pattern, by class
_BLOCK = 8


def photographed(
    rng: np.random.Generator, image: Images, labels: Images, difficulty: float
) -> Images:
    size = len(image)
    lit = image * _light(rng, labels, size, difficulty)
    lit *= _cast(rng, difficulty)
    pixels = _whole(lit)
    for _ in range(_passes(rng, size, difficulty)):
        pixels = _blurred(pixels)
    pixels += _noise(rng, size, difficulty)
    if rng.random() < 0.6 * difficulty:
        pixels = _compressed(pixels, step=int(rng.integers(8, 9 + round(56 * difficulty))))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _light(rng: np.random.Generator, labels: Images, size: int, difficulty: float) -> Floats:
    """A factor per pixel: (size, size, 1)."""
    ramp = np.linspace(-1, 1, size, dtype=np.float32)
    across, down = ramp[None, :], ramp[:, None]
    slope = rng.uniform(-1, 1, 2).astype(np.float32) * np.float32(0.15 + 0.4 * difficulty)
    light: Floats = slope[0] * across + slope[1] * down + _patterns(rng, labels, size, difficulty)
    for _ in range(int(rng.integers(0, 1 + round(3 * difficulty)))):
        light *= _shadow(rng, across, down)
    exposure = np.float32(rng.uniform(1 - 0.55 * difficulty, 1 + 0.15 * difficulty))
    light *= exposure
    return light.reshape(size, size, 1)


def _shadow(rng: np.random.Generator, across: Floats, down: Floats) -> Floats:
    """Darker, or now and then brighter, on one side of a line or inside an oval; with soft edges
    of a random width."""
    x, y = rng.uniform(-0.8, 0.8, 2).astype(np.float32)
    sharpness = np.float32(rng.uniform(1.5, 14))
    if rng.random() < 0.5:
        wide, high = (1 / rng.uniform(0.2, 0.9, 2)).astype(np.float32)
        inside = 1 - ((across - x) * wide) ** 2 - ((down - y) * high) ** 2
    else:
        one, other = rng.uniform(-1, 1, 2).astype(np.float32)
        inside = (across - x) * one + (down - y) * other
    amount = np.float32(rng.uniform(-0.6, 0.25))
    shadow: Floats = 1 + amount * np.clip(inside * sharpness, 0, 1)
    return shadow


def _patterns(rng: np.random.Generator, labels: Images, size: int, difficulty: float) -> Floats:
    """1, and on some classes stripes or checks. Waves are triangles: whole numbers suffice."""
    strength = np.zeros(256, np.float32)
    chosen = rng.random(len(_PATTERNED)) < 0.7 * difficulty
    for label, most, is_chosen in zip(_PATTERNED, _STRENGTH, chosen, strict=True):
        strength[label] = most * rng.random() if is_chosen else 0
    place = np.arange(size, dtype=np.int32) * (16384 // size)  # whatever the size
    steps = rng.integers(-12, 13, (2, 2))
    waves = [
        np.abs(((one * place[None, :] + other * place[:, None]) >> 3 & 255) - 128)
        for one, other in steps
    ]
    pattern = waves[0] if rng.random() < 0.5 else np.maximum(*waves)
    patterned: Floats = 1 + strength[labels] * (pattern.astype(np.float32) / 64 - 1)
    return patterned


def _cast(rng: np.random.Generator, difficulty: float) -> Floats:
    """Lamps are yellow, screens blue, and few cameras correct for all of it."""
    return (1 + rng.uniform(-0.28, 0.28, 3) * difficulty).astype(np.float32)


def _passes(rng: np.random.Generator, size: int, difficulty: float) -> int:
    """A pass blurs by 0.7 pixels, √n passes by √n as much: as much of the image at every size."""
    most = 5 * difficulty * (size / 128) ** 2
    return int(rng.integers(0, 1 + max(1, round(most)))) if rng.random() < 0.6 else 0


def _blurred(pixels: Whole) -> Whole:
    """Weights 1, 2, 1 along both sides; edges are repeated."""
    tall = np.concatenate([pixels[:1], pixels, pixels[-1:]])
    pixels = (tall[:-2] + 2 * pixels + tall[2:] + 2) >> 2
    wide = np.concatenate([pixels[:, :1], pixels, pixels[:, -1:]], axis=1)
    blurred: Whole = (wide[:, :-2] + 2 * pixels + wide[:, 2:] + 2) >> 2
    return blurred


def _noise(rng: np.random.Generator, size: int, difficulty: float) -> Whole:
    """The sum of two even distributions: a triangle, near enough to that of a sensor."""
    amplitude = int(rng.integers(4, 6 + round(40 * difficulty)))
    drawn = np.frombuffer(rng.bytes(2 * size * size * 3), np.uint8).astype(np.int32)
    one, other = drawn.reshape(2, size, size, 3)
    noise: Whole = ((one - other) * amplitude) >> 8
    return noise


def _compressed(pixels: Whole, step: int) -> Whole:
    """Blocks of 8 × 8 in the Hadamard basis, rounded more coarsely the finer they are, as JPEG
    does in that of cosines; colours are rounded twice as coarsely as brightness. Sums of whole
    numbers are exact in any order, so it does not matter who multiplies the matrices."""
    size = len(pixels)
    short = -size % _BLOCK
    padded = np.pad(pixels, ((0, short), (0, short), (0, 0)), mode="edge") if short else pixels
    red, green, blue = np.moveaxis(padded, 2, 0)
    grey = (red + green + blue) // 3
    planes = np.stack([grey, red - grey, blue - grey]).astype(np.float64)
    blocks = _transformed(planes).reshape(3, -1, _BLOCK, padded.shape[1] // _BLOCK, _BLOCK)
    steps = step * _COARSENESS[:, None, :] * np.array([1.0, 2.0, 2.0])[:, None, None, None, None]
    rounded = np.floor(blocks / steps + 0.5) * steps
    back = np.floor(_transformed(rounded.reshape(planes.shape)) / _BLOCK**2 + 0.5)
    grey, red, blue = back[:, :size, :size].astype(np.int32)
    return np.stack([grey + red, grey - red - blue, grey + blue], axis=2)


def _transformed(planes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Both sides of every block; twice is 64 times the same."""
    across = (planes.reshape(-1, _BLOCK) @ _HADAMARD).reshape(planes.shape)
    turned = np.ascontiguousarray(across.swapaxes(1, 2))
    both = (turned.reshape(-1, _BLOCK) @ _HADAMARD).reshape(turned.shape)
    return both.swapaxes(1, 2)


def _sequency() -> NDArray[np.float64]:
    """The Hadamard matrix of order 8 with its rows by their number of changes of sign, which makes
    it symmetric."""
    two = np.array([[1.0, 1.0], [1.0, -1.0]])
    eight = np.kron(np.kron(two, two), two)
    return eight[np.argsort((np.diff(eight, axis=1) != 0).sum(axis=1))]


_HADAMARD = _sequency()
_COARSENESS = 1.0 + np.arange(_BLOCK)[:, None] + np.arange(_BLOCK)[None, :]


def _whole(lit: Floats) -> Whole:
    return np.clip(lit, 0, 255).astype(np.int32)
