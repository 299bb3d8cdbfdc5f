"""Model files from strangers: they are used, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile import onnx_files, onnx_graphs
from tests.hostile.conftest import Attempt

pytestmark = pytest.mark.slow  # a process for every input

INPUTS = {**onnx_files.INPUTS, **onnx_graphs.INPUTS}


@pytest.mark.parametrize("name", INPUTS)
def test_a_hostile_model_is_uploaded_or_refused_within_bounds(
    attempt: Attempt, project: Path, name: str
) -> None:
    INPUTS[name](project)
    _ = attempt("upload", "net.onnx", forks_worker=True).settled


@pytest.mark.parametrize(
    "name", ["names with escapes", "open size with escapes", "function explosion, 2**30", "half"]
)
def test_a_hostile_model_is_inspected_or_refused_within_bounds(
    attempt: Attempt, project: Path, name: str
) -> None:
    """What is in the way is part of what it prints."""
    INPUTS[name](project)
    ended = attempt("inspect", "net.onnx")
    assert ended.code == 1 and "\x1b" not in ended.out + ended.err
    assert "in the way" in ended.out or ended.refusal
