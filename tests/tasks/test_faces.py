"""The face generator: the same everywhere, complete, resumable, and never in anybody's way."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgeloop.errors import BadInput
from edgeloop.testing.faces import draw_face, make_faces


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_the_number_of_processes_does_not_matter(tmp_path: Path):
    for processes in (1, 2, 3):
        make_faces(tmp_path / str(processes), 40, 24, seed=5, processes=processes)
    first = contents(tmp_path / "1")
    assert len(first) == 81
    assert first == contents(tmp_path / "2") == contents(tmp_path / "3")


def test_a_face_depends_on_its_seed_and_number_alone():
    image, labels = draw_face(7, 3, 48)
    again, labels_again = draw_face(7, 3, 48)
    assert np.array_equal(image, again) and np.array_equal(labels, labels_again)
    for other in (draw_face(8, 3, 48), draw_face(7, 4, 48)):
        assert not np.array_equal(image, other[0])
        assert not np.array_equal(labels, other[1])


def test_without_a_difficulty_a_seed_draws_what_it_always_drew():
    """Trained example models, the demo and figures in the documentation depend on it."""
    digest = hashlib.sha256()
    for index in range(20):
        for array in draw_face(7, index, 64):
            digest.update(array.tobytes())
    assert digest.hexdigest()[:16] == "5114c9215630f309"


@pytest.mark.parametrize("difficulty", [0.3, 1.0])
def test_a_hard_face_depends_on_its_seed_number_and_difficulty_alone(difficulty: float):
    image, labels = draw_face(7, 3, 48, difficulty)
    again, labels_again = draw_face(7, 3, 48, difficulty)
    assert np.array_equal(image, again) and np.array_equal(labels, labels_again)
    for other in ((8, 3, difficulty), (7, 4, difficulty), (7, 3, difficulty / 2)):
        seed, number, level = other
        assert not np.array_equal(image, draw_face(seed, number, 48, level)[0])


def test_hard_faces_have_every_class_and_the_same_labels_whatever_the_light():
    count = np.zeros(256, np.int64)
    for index in range(200):
        image, labels = draw_face(7, index, 50, 1.0)
        assert image.shape == (50, 50, 3) and image.dtype == labels.dtype == np.uint8
        count += np.bincount(labels.ravel(), minlength=256)
    share = count / count.sum()
    assert share[:19].min() >= 0.002, share[:19].round(4)
    assert 0 < share[255] < 0.02 and not count[19:255].any()


def test_the_labels_of_a_hard_face_lie_on_its_image():
    """Over many faces, pixels across a border of classes differ more than pixels within one; a
    shift of the labels by two pixels would lose most of that."""
    right, shifted = [], []
    for index in range(40):
        image, labels = draw_face(3, index, 96, 1.0)
        step = np.abs(np.diff(image.astype(np.int32), axis=1)).sum(axis=2)
        border = labels[:, 1:] != labels[:, :-1]
        moved = np.roll(border, 3, axis=1)
        right.append(step[border].mean())
        shifted.append(step[moved].mean())
    assert np.mean(right) > 1.3 * np.mean(shifted)


@pytest.mark.parametrize("size", [64, 128])
def test_every_class_is_seen_often_enough_to_be_measured(size: int):
    count = np.zeros(256, np.int64)
    for index in range(150):
        count += np.bincount(draw_face(7, index, size)[1].ravel(), minlength=256)
    share = count / count.sum()
    assert share[:19].min() >= 0.003, share[:19].round(4)
    assert 0 < share[255] < 0.02
    assert not count[19:255].any()


def test_left_is_left_as_the_person_sees_it():
    """The right eye is in the left half of the picture, as in FaceSynthetics."""
    _, labels = draw_face(7, 0, 128)
    columns = {c: np.argwhere(labels == c)[:, 1].mean() for c in range(3, 9)}
    for right, left in ((3, 4), (5, 6), (7, 8)):
        assert columns[right] + 10 < columns[left]


def test_picture_and_labels_lie_on_each_other():
    """Pixels of one class, away from its edge, look alike: the shapes are drawn in one place."""
    image, labels = draw_face(11, 2, 128)
    inside = labels[1:-1, 1:-1] == 15
    for side in (labels[:-2, 1:-1], labels[2:, 1:-1], labels[1:-1, :-2], labels[1:-1, 2:]):
        inside &= side == 15
    assert inside.sum() > 100
    assert image[1:-1, 1:-1][inside].std(axis=0).max() < 12


def test_files_have_the_layout_of_facesynthetics(tmp_path: Path):
    make_faces(tmp_path / "set", 2, 40, seed=1)
    names = sorted(path.name for path in (tmp_path / "set").iterdir())
    assert names == ["000000.png", "000000_seg.png", "000001.png", "000001_seg.png", "faces.json"]
    with Image.open(tmp_path / "set/000001.png") as image:
        assert (image.mode, image.size) == ("RGB", (40, 40))
    with Image.open(tmp_path / "set/000001_seg.png") as labels:
        assert (labels.mode, labels.size) == ("L", (40, 40))
        assert np.array_equal(np.asarray(labels), draw_face(1, 1, 40)[1])
    manifest = json.loads((tmp_path / "set/faces.json").read_text())
    assert manifest == {"count": 2, "size": 40, "seed": 1, "version": 1}
    make_faces(tmp_path / "hard", 2, 40, seed=1, difficulty=0.5)
    hard = json.loads((tmp_path / "hard/faces.json").read_text())
    assert hard == {**manifest, "difficulty": 0.5}
    with Image.open(tmp_path / "hard/000001_seg.png") as labels:
        assert np.array_equal(np.asarray(labels), draw_face(1, 1, 40, 0.5)[1])


def test_a_second_call_draws_nothing(faces: Path):
    before = {path.name: path.stat().st_mtime_ns for path in faces.glob("*.png")}
    told: list[tuple[int, int]] = []
    make_faces(faces, 12, 32, seed=7, progress=lambda done, total: told.append((done, total)))
    assert {path.name: path.stat().st_mtime_ns for path in faces.glob("*.png")} == before
    assert told == [(12, 12)]


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path):
    make_faces(tmp_path / "whole", 40, 24, seed=5)

    def stop(done: int, total: int) -> None:
        if done >= 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_faces(tmp_path / "cut", 40, 24, seed=5, progress=stop)
    assert not (tmp_path / "cut/faces.json").exists()
    (tmp_path / "cut/.000020.png.123.part").write_bytes(b"half")
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "cut").glob("0*.png")}
    assert 32 <= len(kept) < 80
    make_faces(tmp_path / "cut", 40, 24, seed=5)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    after = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "cut").glob("0*.png")}
    assert kept.items() <= after.items()


@pytest.mark.parametrize("change", [{"count": 13}, {"size": 33}, {"seed": 8}, {"difficulty": 0.5}])
def test_a_folder_with_other_faces_is_left_alone(faces: Path, change: dict[str, int]):
    before = contents(faces)
    with pytest.raises(BadInput, match=r"holds other faces .*12 of 32 px, seed 7"):
        make_faces(faces, **{"count": 12, "size": 32, "seed": 7, **change})
    assert contents(faces) == before


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path):
    (tmp_path / "000000.png").write_bytes(b"mine")
    with pytest.raises(BadInput, match="holds files that are no set of faces"):
        make_faces(tmp_path, 2, 32, seed=7)
    assert contents(tmp_path) == {"000000.png": b"mine"}


def test_a_damaged_manifest_is_named(faces: Path):
    (faces / "faces.json").write_text("{")
    with pytest.raises(BadInput, match=r"faces\.json is damaged"):
        make_faces(faces, 12, 32, seed=7)


@pytest.mark.parametrize(
    ("count", "size", "seed", "said"),
    [(0, 32, 1, "not 0"), (1_000_001, 32, 1, "1,000,001"), (1, 8, 1, "not 8"), (1, 32, -1, "-1")],
)
def test_impossible_sets_are_refused_before_anything_is_made(
    tmp_path: Path, count: int, size: int, seed: int, said: str
):
    with pytest.raises(BadInput, match=said):
        make_faces(tmp_path / "new", count, size, seed)
    assert not (tmp_path / "new").exists()


UNGUARDED = """
import sys
from pathlib import Path
from edgeloop.testing.faces import make_faces

make_faces(Path(sys.argv[1]), 40, 24, seed=5, processes=2)
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(tmp_path: Path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "set")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "BadInput: A process that draws faces ended early" in done.stderr
    assert not (tmp_path / "set/faces.json").exists()


def test_a_file_that_was_lost_is_drawn_again(faces: Path, shared_faces: Path):
    (faces / "000004_seg.png").unlink()
    make_faces(faces, 12, 32, seed=7)
    assert contents(faces) == contents(shared_faces)
