"""Datasets on the files of a folder, of S3 and of Azure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgeloop.node.datasets import Datasets
from edgeloop.node.files import FolderBlobs
from edgeloop.store import Blobs, open_blobs, parse_location
from edgeloop.store.files import url_blobs

if TYPE_CHECKING:
    from tests.peers.azurite import Azurite
    from tests.peers.s3 import S3

pytest.register_assert_rewrite("tests.data.trees")


@pytest.fixture(params=["folder", "s3", "azure"])
def blobs(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Blobs:
    if request.param == "folder":
        return FolderBlobs(tmp_path_factory.mktemp("blobs") / "store")
    if request.param == "s3":
        s3: S3 = request.getfixturevalue("s3")
        for name, value in s3.environ.items():
            monkeypatch.setenv(name, value)
        return url_blobs(f"s3://{s3.make_bucket()}/team")
    azurite: Azurite = request.getfixturevalue("azurite")
    address = azurite.connection_string_of(azurite.new_account())
    return open_blobs(parse_location(address))


@pytest.fixture
def folder_blobs(tmp_path_factory: pytest.TempPathFactory) -> Blobs:
    """For what does not depend on the kind of store."""
    return FolderBlobs(tmp_path_factory.mktemp("blobs") / "store")


@pytest.fixture
def datasets(blobs: Blobs, tmp_path: Path) -> Datasets:
    return Datasets(blobs, tmp_path / "index", "here")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder
