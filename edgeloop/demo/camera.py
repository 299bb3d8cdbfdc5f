"""How a drawn face is lit and photographed when it has a difficulty: patterns, light, blur, noise
and compression. Nothing here moves a pixel, so the labels stay right.

Whatever is computed for every pixel is a sum, a product or a comparison, which every processor
rounds alike: the same seed gives the same bytes everywhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeloop.demo.outlines import BACKGROUND, BEARD, CLOTHING, FACEWEAR, HAIR, HEADWEAR, SKIN
from edgeloop.tasks import Images

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
