"""The eight everyday exports are what they are called, with their weights inside or beside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.exports import EVERYDAY, SIZE, export_everyday


@pytest.mark.parametrize("name", EVERYDAY)
def test_an_everyday_export_gives_the_same_in_both_forms(name: str, tmp_path: Path) -> None:
    export = EVERYDAY[name]
    image = np.random.default_rng(0).random(export.shape, np.float32)
    image = image.astype(np.float16 if export.half else np.float32)
    answers = []
    for folder, external in (("inside", False), ("beside", True)):
        path = export_everyday(name, tmp_path / folder, external)
        assert path.with_name(f"{name}.onnx.data").is_file() is external
        session = onnxruntime.InferenceSession(str(path))
        free = [side for side in session.get_inputs()[0].shape if isinstance(side, str)]
        assert free == list(export.free.values())
        given = session.run(None, {"image": image})
        names = [output.name for output in session.get_outputs()]
        assert dict(zip(names, (array.shape for array in given), strict=True)) == export.outputs
        answers.append(given)
    for inside, beside in zip(*answers, strict=True):
        np.testing.assert_array_equal(inside, beside)


def test_the_size_left_free_is_really_free(tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(str(export_everyday("dynamic_size", tmp_path)))
    image = np.zeros((2, 3, SIZE * 2, SIZE), np.float32)
    assert session.run(None, {"image": image})[0].shape[2:] == (SIZE * 2, SIZE)
