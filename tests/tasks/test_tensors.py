"""Calibration on what somebody gives, in whatever form, or on random images that are always the
same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgeloop.errors import BadInput, NotFound
from edgeloop.tasks import TensorsTask

SIDES = (4, 6)
IMAGES = np.random.default_rng(0).integers(0, 256, (3, *SIDES, 3), np.uint8)


def test_random_images_are_the_same_everywhere_and_say_what_they_are():
    first, again = (TensorsTask().calibration(*SIDES, 100) for _ in range(2))
    assert (first.origin, len(first)) == ("random", 8)
    assert "random" in first.note and "not for accuracy" in first.note
    assert first.key == again.key
    np.testing.assert_array_equal(first.images, again.images)
    assert len(TensorsTask().calibration(*SIDES, 2)) == 2


def written(folder: Path, form: str) -> Path:
    """The same three images in one form or another."""
    folder.mkdir()
    first = IMAGES.transpose(0, 3, 1, 2)
    floats = IMAGES.astype(np.float32) / 255
    for number, image in enumerate(IMAGES):
        if form == "pictures":
            Image.fromarray(image).save(folder / f"{number}.png")
            Image.fromarray(image[..., 0]).save(folder / f"{number}_seg.png")
        elif form == "raw bytes":
            image.tofile(folder / f"{number}.raw")
        elif form == "raw floats":
            floats[number].tofile(folder / f"{number}.raw")
    if form == "one array, channels first":
        np.save(folder / "all.npy", first)
        return folder / "all.npy"
    if form == "an archive of floats":
        np.savez(folder / "all.npz", a=floats[0], b=floats[1:].transpose(0, 3, 1, 2))
    (folder / "README.txt").write_text("not an image")
    return folder


@pytest.mark.parametrize(
    "form",
    [
        *("pictures", "raw bytes", "raw floats"),
        *("one array, channels first", "an archive of floats"),
    ],
)
def test_images_and_tensors_are_read_in_every_form(tmp_path: Path, form: str):
    given = TensorsTask(written(tmp_path / "given", form)).calibration(*SIDES, 100)
    np.testing.assert_array_equal(given.images, IMAGES)
    assert given.origin == "given"
    assert len(TensorsTask(tmp_path / "given").calibration(*SIDES, 2)) == 2


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("x.npy", np.zeros((1, 4, 4, 3), np.uint8), r"array \[1, 4, 4, 3\].* 4 × 6 × 3"),
        ("x.npy", np.full((*SIDES, 3), 1.5, np.float32), "float32 from 1.5 to 1.5"),
        ("x.npy", np.full((*SIDES, 3), np.nan, np.float32), "from nan to nan"),
        ("x.npy", np.array([{"a": 1}], object), "cannot be read as arrays"),
        ("x.raw", np.zeros(7, np.uint8), "7 bytes"),
        ("x.npz", b"no archive", "cannot be read as arrays"),
        ("x.txt", b"text", "holds nothing to calibrate on"),
    ],
)
def test_what_cannot_be_calibrated_on_is_named(tmp_path: Path, name: str, array, said: str):
    path = tmp_path / name
    if isinstance(array, bytes):
        path.write_bytes(array)
    elif name.endswith(".raw"):
        array.tofile(path)
    else:
        np.save(path, array, allow_pickle=True)
    with pytest.raises(BadInput, match=said):
        TensorsTask(tmp_path).calibration(*SIDES, 4)


def test_nothing_can_be_scored_without_a_dataset(tmp_path: Path):
    task = TensorsTask()
    task.check_output((1, 5, 7, 9, 11))
    for attempt in (lambda: task.test(*SIDES, 4), task.scorer):
        with pytest.raises(BadInput, match="accuracy needs a dataset"):
            attempt()
    with pytest.raises(NotFound, match="is not there"):
        TensorsTask(tmp_path / "nowhere").calibration(*SIDES, 4)
