"""The public networks, rebuilt with random weights: `RECIPES` by the name of the published figure.

Needs the packages of requirements.txt. Family and kind of each are in networks.yaml, which is read
without them.
"""

from __future__ import annotations

from bench.latency.networks import (
    classification,
    detection,
    faces,
    restoration,
    segmentation,
    sequences,
    streets,
)
from bench.latency.networks.recipe import Recipe

RECIPES: dict[str, Recipe] = {
    **classification.RECIPES,
    **restoration.RECIPES,
    **faces.RECIPES,
    **segmentation.RECIPES,
    **streets.RECIPES,
    **detection.RECIPES,
    **sequences.RECIPES,
}

__all__ = ["RECIPES", "Recipe"]
