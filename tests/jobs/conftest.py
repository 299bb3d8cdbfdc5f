"""A Ray cluster for this room's tests, one a pytest process, started when first asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeloop.location import SqliteLocation
from edgeloop.store import Blobs, open_blobs
from tests.peers.ray import RayCluster

pytest.register_assert_rewrite("tests.jobs.compute_contract")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    with RayCluster() as cluster:
        yield cluster


@pytest.fixture
def folder_blobs(tmp_path: Path) -> Blobs:
    """Files in a folder: what jobs see on this machine, and in its namespaces, too."""
    (tmp_path / "store/blobs").mkdir(parents=True)
    return open_blobs(SqliteLocation(tmp_path / "store"))
