"""Files in a folder for this room's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.store import Blobs, SqliteLocation, open_blobs


@pytest.fixture
def folder_blobs(tmp_path: Path) -> Blobs:
    """Files in a folder: what jobs see on this machine, and in its namespaces, too."""
    (tmp_path / "store/blobs").mkdir(parents=True)
    return open_blobs(SqliteLocation(tmp_path / "store"))
