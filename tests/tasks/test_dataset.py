"""Reading a folder of faces: what comes out, and what is said of a broken one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgeloop.errors import BadInput, EdgeloopError, NotFound
from edgeloop.tasks import Samples, Task, dataset, open_task
from edgeloop.testing.faces import draw_face


def opened(faces: Path, tmp_path: Path) -> Task:
    return open_task("segmentation", faces, tmp_path / "cache")


def test_images_and_labels_come_as_they_were_drawn(faces: Path, tmp_path: Path):
    task = opened(faces, tmp_path)
    first, last = task.calibration(32, 32, 4), task.test(32, 32, 3)
    assert (len(first), len(last)) == (4, 3)
    for samples, start in ((first, 0), (last, 9)):
        assert samples.images.dtype == samples.labels.dtype == np.uint8
        for place in range(len(samples)):
            image, labels = draw_face(7, start + place, 32)
            assert np.array_equal(samples.images[place], image)
            assert np.array_equal(samples.labels[place], labels)


def test_resizing_is_bilinear_for_images_and_nearest_for_labels(faces: Path, tmp_path: Path):
    samples = opened(faces, tmp_path).test(20, 44, 1)
    assert samples.images.shape == (1, 20, 44, 3) and samples.labels.shape == (1, 20, 44)
    with Image.open(faces / "000011.png") as image:
        expected = np.asarray(image.resize((44, 20), Image.Resampling.BILINEAR))
    assert np.array_equal(samples.images[0], expected)
    with Image.open(faces / "000011_seg.png") as labels:
        nearest = np.asarray(labels.resize((44, 20), Image.Resampling.NEAREST))
    assert np.array_equal(samples.labels[0], nearest)
    assert set(np.unique(samples.labels)) <= {*range(19), 255}


def test_a_dataset_shorter_than_asked_gives_what_there_is_and_a_note(faces: Path, tmp_path: Path):
    samples = opened(faces, tmp_path).test(32, 32, 1_000)
    assert len(samples) == 6
    assert "6 test images instead of 1000: the dataset has 12" in samples.note


def test_labels_of_another_size_but_the_same_form_are_fine(faces: Path, tmp_path: Path):
    Image.fromarray(draw_face(7, 11, 64)[1]).save(faces / "000011_seg.png")
    assert opened(faces, tmp_path).test(32, 32, 1).labels.shape == (1, 32, 32)


def test_pictures_with_transparency_or_a_palette_become_rgb(faces: Path, tmp_path: Path):
    with Image.open(faces / "000011.png") as image:
        image.convert("RGBA").save(faces / "000011.png")
    with Image.open(faces / "000010.png") as image:
        image.convert("P").save(faces / "000010.png")
    assert opened(faces, tmp_path).test(32, 32, 2).images.shape == (2, 32, 32, 3)


def test_other_files_are_left_alone(faces: Path, tmp_path: Path):
    (faces / "README.txt").write_text("hello")
    (faces / ".000012.png.77.part").write_bytes(b"half")
    assert len(opened(faces, tmp_path).test(32, 32, 100)) == 6


def whole(faces: Path, tmp_path: Path) -> Samples:
    return opened(faces, tmp_path).test(16, 16, 6)


def complaint(faces: Path, tmp_path: Path, kind: type[EdgeloopError] = BadInput) -> str:
    with pytest.raises(kind) as raised:
        whole(faces, tmp_path)
    assert not list((tmp_path / "cache").glob("*")), "half a set was left behind"
    assert not list((tmp_path / "cache").glob(".*"))
    return str(raised.value)


@pytest.mark.parametrize("name", ["000008.png", "000008_seg.png"])
@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "flipped"])
def test_a_broken_picture_is_named(faces: Path, tmp_path: Path, name: str, damage: str):
    data = (faces / name).read_bytes()
    broken = {
        "cut": data[: len(data) // 2],
        "garbage": b"not a picture",
        "empty": b"",
        "flipped": data[:45] + bytes(255 - byte for byte in data[45:90]) + data[90:],
    }
    (faces / name).write_bytes(broken[damage])
    assert f"{faces / name} cannot be read as an image" in complaint(faces, tmp_path)


def test_a_missing_label_is_named(faces: Path, tmp_path: Path):
    (faces / "000003_seg.png").unlink()
    assert f"{faces / '000003_seg.png'} is not there" in complaint(faces, tmp_path)


def test_a_missing_picture_is_named(faces: Path, tmp_path: Path):
    (faces / "000003.png").unlink()
    assert "000003_seg.png has labels, but its image is not there" in complaint(faces, tmp_path)


@pytest.mark.parametrize("value", [19, 100, 254])
def test_a_label_outside_the_classes_is_named(faces: Path, tmp_path: Path, value: int):
    labels = draw_face(7, 9, 32)[1].copy()
    labels[31, 31] = value
    Image.fromarray(labels).save(faces / "000009_seg.png")
    said = complaint(faces, tmp_path)
    assert f"000009_seg.png holds label {value}, but the classes are 0–18" in said


def test_labels_in_colour_are_refused(faces: Path, tmp_path: Path):
    Image.new("RGB", (32, 32)).save(faces / "000009_seg.png")
    assert "000009_seg.png must have one channel" in complaint(faces, tmp_path)


def test_labels_of_another_form_are_refused(faces: Path, tmp_path: Path):
    Image.new("L", (32, 48)).save(faces / "000009_seg.png")
    assert "is 32 × 48, not the aspect ratio of its image, 32 × 32" in complaint(faces, tmp_path)


def test_an_empty_folder_and_a_missing_one_say_what_to_do(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    said = complaint(tmp_path / "empty", tmp_path, NotFound)
    assert "there are no images NNNNNN.png" in said and "edgeloop data faces" in said
    assert "is not there" in complaint(tmp_path / "nowhere", tmp_path, NotFound)
    (tmp_path / "file").write_text("")
    assert "is no folder" in complaint(tmp_path / "file", tmp_path, NotFound)


@pytest.mark.parametrize("kind", [*dataset.FORMATS, "MPO"])
def test_an_image_of_every_listed_format_is_read(kind: str, tmp_path: Path):
    image, _ = draw_face(7, 0, 32)
    file = tmp_path / "image"  # its content says what it is, not its name
    Image.fromarray(image).save(file, format=kind)
    assert dataset.image_size(file) == (32, 32)
    decoded = dataset.as_rgb(dataset.load(file), 32, 32)
    assert np.abs(decoded.astype(int) - image).mean() < 12, "GIF has 256 colours, JPEG loses some"


@pytest.mark.parametrize("content", [b"", b"hello", b"GIF89a", b"BM"], ids=repr)
def test_a_file_that_is_no_image_is_named_with_a_reason(content: bytes, tmp_path: Path):
    file = tmp_path / "image.png"
    file.write_bytes(content)
    with pytest.raises(BadInput, match=r"image\.png cannot be read as an image \((?!'|KeyError)"):
        dataset.load(file)
