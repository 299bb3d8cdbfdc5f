"""Files as a job sees them, with the standard library alone: the same contract and servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgeloop.node.files import FolderBlobs
from edgeloop.store import Blobs, open_access, open_from_job, open_store, parse_location
from edgeloop.store.files import url_blobs
from edgeloop.testing.contracts.blobs import ODD_NAMES, BlobsContract, listed

if TYPE_CHECKING:
    from tests.peers.azurite import Azurite
    from tests.peers.s3 import S3


class JobBlobsContract(BlobsContract):
    has_links = False

    def test_obstore_and_a_job_see_the_same_files(self, blobs: Blobs) -> None:
        """Whoever submitted a job reads with obstore what the job wrote, and the other way."""
        other = open_access(blobs.access(60))
        for number, name in enumerate(ODD_NAMES):
            ours, theirs = (blobs, other) if number % 2 else (other, blobs)
            ours.put(f"a {name}/{name}", name.encode())
            assert theirs.read(f"a {name}/{name}") == name.encode()
        assert listed(blobs) == listed(other)
        assert {info.key: info.size for info in blobs.list("a ")} == {
            info.key: info.size for info in other.list("a ")
        }
        other.delete([info.key for info in blobs.list("")])
        assert listed(blobs) == []


class TestFolderInAJob(JobBlobsContract):
    @pytest.fixture
    def blobs(self, tmp_path_factory: pytest.TempPathFactory) -> Blobs:
        folder = tmp_path_factory.mktemp("around") / "the folder"
        return open_from_job(FolderBlobs(folder).access(60))


class TestAzureInAJob(JobBlobsContract):
    @pytest.fixture
    def blobs(self, azurite: Azurite) -> Blobs:
        address = azurite.connection_string_of(azurite.new_account())
        return open_from_job(open_store(parse_location(address)).blobs.access(600))


class TestS3InAJob(JobBlobsContract):
    @pytest.fixture
    def blobs(self, s3: S3, monkeypatch: pytest.MonkeyPatch) -> Blobs:
        for name, value in s3.environ.items():
            monkeypatch.setenv(name, value)
        return open_from_job(url_blobs(f"s3://{s3.make_bucket()}/a/prefix").access(60))
