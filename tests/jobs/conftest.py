"""Files in a folder, and a short interval between two looks at a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.store import Blobs, SqliteLocation, open_blobs


@pytest.fixture(autouse=True)
def quick_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeloop.jobs.client.SHORTEST_WAIT_S", 0.05)
    monkeypatch.setattr("edgeloop.cli.job_views.FOLLOW_S", 0.1)


@pytest.fixture
def folder_blobs(tmp_path: Path) -> Blobs:
    """Files in a folder: what jobs see on this machine, and in its namespaces, too."""
    (tmp_path / "store/blobs").mkdir(parents=True)
    return open_blobs(SqliteLocation(tmp_path / "store"))
