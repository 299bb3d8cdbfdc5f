"""Prepared images: made once, found by content, whole or not there, whoever builds them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgeloop.errors import BadInput
from edgeloop.tasks import dataset as dataset_module
from edgeloop.tasks import open_task
from edgeloop.tasks.segmentation import Segmentation


def sets_in(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir())


def test_a_set_is_decoded_once(faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = Segmentation(faces, tmp_path / "cache").test(16, 16, 4)
    monkeypatch.setattr(dataset_module, "_decoded", lambda recipe: pytest.fail("decoded again"))
    again = Segmentation(faces, tmp_path / "cache").test(16, 16, 4)
    assert again.key == first.key
    assert np.array_equal(again.images, first.images)
    assert isinstance(again.images, np.memmap) and not again.images.flags.writeable


def test_every_shape_part_and_count_is_a_set_of_its_own(faces: Path, tmp_path: Path):
    task = Segmentation(faces, tmp_path / "cache")
    made = [
        task.test(16, 16, 4),
        task.test(16, 24, 4),
        task.test(16, 16, 3),
        task.calibration(16, 16, 4),
    ]
    assert len({samples.key for samples in made}) == 4 == len(sets_in(tmp_path / "cache"))


def test_a_changed_picture_is_seen(faces: Path, tmp_path: Path):
    task = Segmentation(faces, tmp_path / "cache")
    before = task.test(16, 16, 4)
    shutil.copy(faces / "000000.png", faces / "000011.png")
    after = task.test(16, 16, 4)
    assert after.key != before.key
    assert not np.array_equal(after.images[3], before.images[3])
    assert np.array_equal(after.images[:3], before.images[:3])


def test_the_key_names_the_content_not_the_place_nor_the_time(faces: Path, tmp_path: Path):
    here = Segmentation(faces, tmp_path / "cache").test(16, 16, 4)
    shutil.copytree(faces, tmp_path / "elsewhere")
    os.utime(tmp_path / "elsewhere/000010.png", ns=(1, 1))
    there = Segmentation(tmp_path / "elsewhere", tmp_path / "other-cache").test(16, 16, 4)
    assert there.key == here.key


def test_half_a_set_is_built_again(faces: Path, tmp_path: Path):
    task = Segmentation(faces, tmp_path / "cache")
    whole = np.array(task.test(16, 16, 4).images)
    for name, data in (("images.npy", b"\x93NUMPY"), ("set.json", b""), ("labels.npy", b"")):
        (only,) = sets_in(tmp_path / "cache")
        (only / name).write_bytes(data)
        assert np.array_equal(task.test(16, 16, 4).images, whole), name


def test_a_set_that_fails_leaves_nothing_behind_and_can_be_mended(faces: Path, tmp_path: Path):
    good = (faces / "000010.png").read_bytes()
    (faces / "000010.png").write_bytes(good[:100])
    task = Segmentation(faces, tmp_path / "cache")
    with pytest.raises(BadInput):
        task.test(16, 16, 4)
    assert sets_in(tmp_path / "cache") == []
    (faces / "000010.png").write_bytes(good)
    assert len(task.test(16, 16, 4)) == 4


def test_a_full_disk_is_said_in_a_sentence(faces: Path, tmp_path: Path):
    """Files are held to 4 kB, as a full disk would hold them."""
    code = """
import resource, signal, sys
from pathlib import Path
from edgeloop.tasks import open_task
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
open_task("segmentation", Path(sys.argv[1]), Path(sys.argv[2])).test(64, 64, 6)
"""
    command = [sys.executable, "-B", "-c", code, str(faces), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "LocalFileError" in done.stderr and "images cannot be prepared there" in done.stderr
    assert sets_in(tmp_path / "cache") == []


def test_what_a_killed_process_left_is_swept_up_after_a_day(faces: Path, tmp_path: Path):
    old, new = tmp_path / "cache/.building-old", tmp_path / "cache/.building-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "images.npy").write_bytes(b"half")
    os.utime(old, (1, 1))
    Segmentation(faces, tmp_path / "cache").test(16, 16, 4)
    assert not old.exists() and new.exists()


BUILD = """
import sys
from pathlib import Path
from edgeloop.tasks import open_task

sys.stdin.readline()
samples = open_task("segmentation", Path(sys.argv[1]), Path(sys.argv[2])).test(64, 64, 6)
print(samples.key, int(samples.images.sum(dtype="int64")))
"""


@pytest.mark.slow
def test_processes_that_build_the_same_set_at_once_all_get_it(faces: Path, tmp_path: Path):
    command = [sys.executable, "-c", BUILD, str(faces), str(tmp_path / "cache")]
    crew = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for worker in crew:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    said = {worker.communicate(timeout=60)[0] for worker in crew}
    assert [worker.returncode for worker in crew] == [0, 0, 0, 0]
    expected = open_task("segmentation", faces, tmp_path / "own").test(64, 64, 6)
    assert said == {f"{expected.key} {expected.images.sum(dtype='int64')}\n"}
    assert len(sets_in(tmp_path / "cache")) == 1


def test_who_loses_the_race_uses_what_is_there(faces: Path, tmp_path: Path):
    """The other one finishes while we still decode: our rename finds the name taken."""
    task = Segmentation(faces, tmp_path / "cache")
    real = dataset_module._decoded

    def slowly(recipe: object) -> object:
        with pytest.MonkeyPatch.context() as other:
            other.setattr(dataset_module, "_decoded", real)
            Segmentation(faces, tmp_path / "cache").test(16, 16, 4)
        yield from real(recipe)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset_module, "_decoded", slowly)
        samples = task.test(16, 16, 4)
    assert len(samples) == 4 and len(sets_in(tmp_path / "cache")) == 1


MEMORY = """
import resource, sys
from pathlib import Path
from edgeloop.tasks import open_task

task = open_task("segmentation", Path(sys.argv[1]), Path(sys.argv[2]))
task.calibration(16, 16, 6)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
samples = task.test(768, 768, 150)
assert samples.images.nbytes > 250_000_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_building_a_set_takes_memory_for_a_batch_only(tmp_path: Path):
    from edgeloop.testing.faces import make_faces

    make_faces(tmp_path / "many", 300, 16, seed=1)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "many"), str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert int(done.stdout) < 160_000, "kB"
