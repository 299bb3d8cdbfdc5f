"""A small set of faces, drawn once; tests that change it take a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgeloop.testing.faces import make_faces


@pytest.fixture(scope="session")
def shared_faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces") / "set"
    make_faces(folder, 12, 32, seed=7)
    return folder


@pytest.fixture
def faces(shared_faces: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shared_faces, tmp_path / "faces"))
