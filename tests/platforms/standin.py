"""Runs a DLC of the stand-ins here, without a board: what its model computes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import onnxruntime

from tests.peers.board.tools.dlc import read_dlc


@lru_cache(maxsize=8)
def _opened(path: Path):
    dlc = read_dlc(path)
    session = onnxruntime.InferenceSession(dlc.model, providers=["CPUExecutionProvider"])
    return dlc, session


def run_dlc(path: Path, image: np.ndarray) -> np.ndarray:
    """An image (1, H, W, 3) of floats in, the output as the DLC has it, channels last."""
    dlc, session = _opened(path)
    feed = image.transpose(0, 3, 1, 2) if dlc.inputs[0].turned else image
    output = session.run(None, {dlc.inputs[0].name: np.ascontiguousarray(feed)})[0]
    return np.moveaxis(output, 1, -1) if dlc.outputs[0].turned else output
