"""The compute `azureml`: Azure's own SDK against the emulator, files in Azurite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgeloop.jobs.computes import Compute, Resources, make_compute
from edgeloop.store import Blobs, open_blobs, parse_location
from edgeloop.testing.contracts.compute import ComputeContract, JobHarness
from tests.peers.azureml import AzureML, execution
from tests.peers.azurite import Azurite

SIZE = "STANDARD_DS3_V2"


def compute_of(**settings: object) -> Compute:
    usual = {"kind": "azureml", "cluster": "cpu", "size": SIZE, "max_nodes": 1}
    return make_compute("cloud", {**usual, **settings})


@pytest.fixture
def compute(azureml: AzureML) -> Compute:
    return compute_of()


@pytest.fixture
def folder_blobs(azure_storage: Azurite, azureml: AzureML) -> Blobs:
    """An account of its own: what a node can reach."""
    account = azure_storage.new_account()
    return open_blobs(parse_location(azure_storage.connection_string_of(account)))


@pytest.fixture(autouse=True)
def patient_cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """How long Azure ML itself leaves a container after it asked is not documented."""
    monkeypatch.setattr(execution, "GRACE_S", 30.0)
    yield


class TestAzureML(ComputeContract):
    @pytest.fixture
    def blobs(self, folder_blobs: Blobs) -> Blobs:
        return folder_blobs

    everything = Resources()
    too_much = Resources(gpus=1, nodes=3)
    tidying_s = 1.0
    too_much_says = "gpus 1 (the most is 0), nodes 3 (the most is 1); cpu has 1 × STANDARD_DS3_V2"

    @pytest.mark.soak
    def test_twenty_jobs_canceled_at_once_all_end(self, harness: JobHarness) -> None:
        super().test_twenty_jobs_canceled_at_once_all_end(harness)
