"""A node fetches a dataset once, however many jobs ask."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from edgeloop.errors import NoSuchDataset, StoreUnavailable
from edgeloop.node.datasets import Datasets
from edgeloop.node.files import FolderBlobs
from edgeloop.store import Blobs
from tests.data.trees import NAME, Watched, noise, tree, write

FETCH = """
import sys
from pathlib import Path
from edgeloop.node.datasets import Datasets
from edgeloop.node.files import FolderBlobs
from tests.data.trees import NAME, Watched

blobs = Watched(FolderBlobs(Path(sys.argv[1])))
print(Datasets(blobs).fetch(NAME, 1, Path(sys.argv[2])), blobs.fetched)
"""


@pytest.mark.slow
def test_many_processes_fetch_it_once(source: Path, tmp_path: Path):
    write(source, {f"{number}": noise(300_000, number) for number in range(60)})
    store = tmp_path / "store"
    Datasets(FolderBlobs(store)).push(NAME, source)
    crew = [
        subprocess.Popen(
            [sys.executable, "-c", FETCH, store, tmp_path / "cache"],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    said = [process.communicate(timeout=60)[0].split() for process in crew]
    assert len({path for path, _ in said}) == 1
    assert sorted(int(fetched) for _, fetched in said) == [0, 0, 0, 18_000_000]
    assert tree(Path(said[0][0])) == tree(source)


def test_each_version_has_a_folder_that_cannot_be_written_to_by_accident(
    datasets: Datasets, source: Path, tmp_path: Path
):
    write(source, {"a": b"1", "run": b"2"})
    (source / "run").chmod(0o755)
    datasets.push(NAME, source)
    first = datasets.fetch(NAME, 1, tmp_path / "cache")
    write(source, {"a": b"changed"})
    datasets.push(NAME, source)
    second = datasets.fetch(NAME, 2, tmp_path / "cache")
    assert first != second and first.parent == tmp_path / "cache/datasets"
    assert (first / "a").read_bytes() == b"1" and (second / "a").read_bytes() == b"changed"
    assert (first / "a").stat().st_mode & 0o333 == 0
    assert (first / "run").stat().st_mode & 0o111
    assert datasets.fetch(NAME, 1, tmp_path / "cache") == first


def test_an_interrupted_fetch_shows_nothing_and_goes_on(
    folder_blobs: Blobs, source: Path, tmp_path: Path
):
    write(source, {f"{number}": noise(1_500_000, number) for number in range(10)})
    Datasets(folder_blobs).push(NAME, source)
    watched, objects = Watched(folder_blobs), itertools.count(1)

    def fail(verb: str, key: str) -> None:
        if "/objects/" in key and next(objects) == 9:
            raise StoreUnavailable(store="x", reason="away")

    watched.before = fail
    with pytest.raises(StoreUnavailable):
        Datasets(watched).fetch(NAME, 1, tmp_path / "cache")
    assert [p.suffix for p in (tmp_path / "cache/datasets").iterdir() if p.is_dir()] == [".partial"]
    watched.forget()
    folder = Datasets(watched).fetch(NAME, 1, tmp_path / "cache")
    assert 0 < watched.fetched < 15_000_000
    assert tree(folder) == tree(source)


def test_a_version_that_is_not_there_is_said(datasets: Datasets, tmp_path: Path):
    with pytest.raises(NoSuchDataset, match="working/faces"):
        datasets.fetch(NAME, 3, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
