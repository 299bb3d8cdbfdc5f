"""A few hundred small faces, drawn and decoded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.search.nets.architecture import Architecture
from edgeloop.testing.faces import make_faces

SIDE = 48


@pytest.fixture(scope="session")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces") / "set"
    make_faces(folder, 240, SIDE, seed=7)
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def arch() -> Architecture:
    """About 17,000 parameters."""
    params: dict[str, bool | int | float | str | None] = {
        "depth": 2,
        "stem_stride": 2,
        "base_channels": 12,
        "hourglasses": 1,
        "h0_last_layers": 0,
    }
    for block in ("down1", "down2", "skip1", "up1"):
        params |= {f"h0_{block}_layers": 1, f"h0_{block}_op0": "conv3x3"}
    params |= {"h0_down1_factor": 1.5, "h0_down2_factor": 1.5}
    return Architecture("hourglass", params, (1, 3, SIDE, SIDE), 19)
