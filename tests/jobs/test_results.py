"""Outputs on their way from the store to a job's folder."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edgeloop.jobs.watch import INDEX_FILE, fetch
from edgeloop.node.files import FolderBlobs
from edgeloop.store import BlobInfo, Blobs

OUTPUTS = "_jobs/job-1/outputs"


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return FolderBlobs(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs/job").mkdir(parents=True)
    return tmp_path / "runs/job/outputs"


def test_all_files_come_with_their_folders(blobs: Blobs, folder: Path):
    blobs.put(f"{OUTPUTS}/a.txt", b"1")
    blobs.put(f"{OUTPUTS}/deep/er/b c.txt", b"22")
    done = fetch(blobs, "job-1", folder)
    assert (done.files, done.moved, done.moved_bytes) == (2, 2, 3)
    assert (folder / "deep/er/b c.txt").read_bytes() == b"22"


def test_only_what_is_new_moves_again(blobs: Blobs, folder: Path):
    blobs.put(f"{OUTPUTS}/same.txt", b"1")
    blobs.put(f"{OUTPUTS}/grows.txt", b"1")
    fetch(blobs, "job-1", folder)
    blobs.put(f"{OUTPUTS}/grows.txt", b"12")
    done = fetch(blobs, "job-1", folder)
    assert (done.files, done.moved, done.moved_bytes) == (2, 1, 2)
    assert (folder / "grows.txt").read_bytes() == b"12"


def test_a_file_that_was_lost_here_comes_again(blobs: Blobs, folder: Path):
    blobs.put(f"{OUTPUTS}/a.txt", b"1")
    fetch(blobs, "job-1", folder)
    (folder / "a.txt").unlink()
    assert fetch(blobs, "job-1", folder).moved == 1
    assert (folder / "a.txt").read_bytes() == b"1"


def test_a_file_the_script_deleted_goes_here_too_but_never_one_of_the_user(
    blobs: Blobs, folder: Path
):
    blobs.put(f"{OUTPUTS}/temporary.txt", b"1")
    fetch(blobs, "job-1", folder)
    (folder / "notes.txt").write_text("mine")
    blobs.delete([f"{OUTPUTS}/temporary.txt"])
    assert fetch(blobs, "job-1", folder).files == 0
    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt"]


@pytest.mark.parametrize("damage", ["{", '{"../../x": [1, "t"]}', "[]", '{"a.txt": 3}'])
def test_a_damaged_index_costs_only_a_second_fetch(blobs: Blobs, folder: Path, damage: str):
    blobs.put(f"{OUTPUTS}/a.txt", b"1")
    fetch(blobs, "job-1", folder)
    (folder.parent / INDEX_FILE).write_text(damage)
    assert fetch(blobs, "job-1", folder).moved == 1


def test_no_outputs_yet_is_no_error(blobs: Blobs, folder: Path):
    assert fetch(blobs, "job-1", folder).files == 0


def test_outputs_of_a_job_whose_name_begins_alike_stay_out(blobs: Blobs, folder: Path):
    blobs.put("_jobs/job-12/outputs/a.txt", b"1")
    assert fetch(blobs, "job-1", folder).files == 0


class AnyName(FolderBlobs):
    """A store that takes every name, as object stores do."""

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        for path in ("a.txt", "../../escaped.txt", "deep/../../b.txt"):
            yield BlobInfo(prefix + path, 1, datetime(2026, 11, 18, tzinfo=UTC))

    def get(self, key: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"1")


def test_an_output_whose_name_leads_out_of_the_folder_is_refused(folder: Path, tmp_path: Path):
    done = fetch(AnyName(tmp_path / "store"), "job-1", folder)
    assert done.refused == ("../../escaped.txt", "deep/../../b.txt")
    assert [path.name for path in tmp_path.rglob("*.txt")] == ["a.txt"]
