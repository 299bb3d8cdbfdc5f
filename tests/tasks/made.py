"""Small datasets whose labels are images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def depths(root: Path, count: int = 8, side: int = 32, scale: float = 1000.0) -> Path:
    """From 1 to 5 metres; a corner without a depth."""
    dice = np.random.default_rng(2)
    root.mkdir(parents=True)
    for number in range(count):
        metres = dice.uniform(1, 5, (side, side))
        metres[:4, :4] = 0
        pixels = dice.integers(0, 256, (side, side, 3), np.uint8)
        Image.fromarray(pixels).save(root / f"{number}.png")
        Image.fromarray((metres * scale).astype(np.uint16)).save(root / f"{number}_depth.png")
    return root


def sharp(root: Path, count: int = 8, side: int = 160) -> Path:
    """High-resolution images alone; large enough for an input of 64 × 32, four times."""
    dice = np.random.default_rng(3)
    root.mkdir(parents=True)
    for number in range(count):
        coarse = Image.fromarray(dice.integers(0, 256, (20, 20, 3), np.uint8))
        coarse.resize((side, 2 * side)).save(root / f"{number:02d}.png")
    return root
