"""Model files from strangers: they are used, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile import onnx_files, onnx_graphs
from tests.hostile.conftest import Attempt

INPUTS = {**onnx_files.INPUTS, **onnx_graphs.INPUTS}


@pytest.mark.parametrize("name", INPUTS)
def test_upload(attempt: Attempt, project: Path, name: str) -> None:
    INPUTS[name](project)
    _ = attempt("upload", "net.onnx").settled
