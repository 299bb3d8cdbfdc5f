"""What Azure ML is told of a job: no key, the environment once, as many nodes as it needs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from edgeloop.errors import BadSetting
from edgeloop.jobs.computes import JobOrder, Resources, make_compute
from edgeloop.jobs.computes.azureml.requirements import EnvironmentRecipe, ensure_environment
from edgeloop.node.ticket import Environment, log_key, outputs_folder
from edgeloop.store import Blobs
from edgeloop.testing.contracts.compute import JobHarness
from tests.jobs.test_azureml import SIZE, compute_of, folder_blobs, patient_cloud
from tests.peers.azureml import AzureML
from tests.peers.azureml.storage import split_blob_url
from tests.peers.azurite import Azurite

__all__ = ["folder_blobs", "patient_cloud"]  # fixtures

# Every node leaves a file where the test sees it, and one among its outputs.
RANKS = """\
import os, pathlib, sys
rank = os.environ["RANK"]
pathlib.Path(sys.argv[1] + rank).write_text(os.environ["WORLD_SIZE"] + os.environ["MASTER_ADDR"])
pathlib.Path(os.environ["EDGELOOP_OUTPUT_DIR"], "rank-" + rank).write_text(rank)
print("rank", rank)
"""


@pytest.fixture
def harness(azureml: AzureML, folder_blobs: Blobs, tmp_path: Path):
    harness = JobHarness(compute_of(), folder_blobs, tmp_path)
    yield harness
    harness.close()


def definition(azureml: AzureML, job: str) -> str:
    """Everything that the studio could show."""
    return json.dumps(azureml.jobs.shown(azureml.run(job)))


def make_datastore(azureml: AzureML, harness: JobHarness, name: str = "edgeloop") -> None:
    from azure.ai.ml.entities import AzureBlobDatastore

    options = harness.blobs.access(60).options
    azureml.client().datastores.create_or_update(
        AzureBlobDatastore(
            name=name,
            account_name=options["account_name"],
            container_name=options["container_name"],
        )
    )


def test_the_account_s_key_never_travels_and_the_order_is_a_file_where_a_datastore_is(
    harness: JobHarness, azureml: AzureML, azure_storage: Azurite
):
    make_datastore(azureml, harness)
    job = harness.send("python", "-c", "open('outputs/a.txt', 'w').write('a')")
    harness.wait_for(job, "completed")
    shown = definition(azureml, job)
    assert azure_storage.key not in shown
    assert "sig=" not in shown and not re.search(r"sas_key\W+:", shown)
    assert f"azureml://datastores/edgeloop/paths/_jobs/{job}/outputs" in shown
    assert harness.blobs.read(f"{outputs_folder(job)}a.txt") == b"a"


def test_without_a_datastore_the_studio_can_see_a_signature_but_no_key(
    harness: JobHarness, azureml: AzureML, azure_storage: Azurite
):
    job = harness.send("python", "-c", "pass")
    harness.wait_for(job, "completed")
    shown = definition(azureml, job)
    assert azure_storage.key not in shown
    assert "sig=" in shown  # as docs/how-to/azureml.md says
    harness.compute = compute_of(access="file")
    with pytest.raises(BadSetting, match="access: file needs a datastore 'edgeloop'"):
        harness.send("python", "-c", "pass")


def test_a_cluster_s_identity_opens_the_store_with_no_secret_at_all(
    harness: JobHarness, azureml: AzureML, capfd: pytest.CaptureFixture[str]
):
    harness.compute = compute_of(identity=True)
    leaks = "import os; print('LEAKS', [n for n, v in os.environ.items() if 'EDGELOOP_ORDER' in n])"
    job = harness.send("python", "-c", leaks)
    harness.wait_for(job, "completed")
    assert b"LEAKS []" in harness.blobs.read(log_key(job, 0))
    assert "sig=" not in definition(azureml, job)
    assert azureml.run(job).properties["identity"]["identityType"] == "Managed"
    assert "ManagedIdentityConfiguration" not in capfd.readouterr().err  # the SDK's own advice


def test_all_nodes_run_the_command_and_the_first_alone_speaks(
    azureml: AzureML, folder_blobs: Blobs, tmp_path: Path
):
    harness = JobHarness(compute_of(max_nodes=2), folder_blobs, tmp_path)
    job = harness.send("python", "-c", RANKS, f"{tmp_path}/seen-", resources=Resources(nodes=2))
    harness.wait_for(job, "completed")
    assert [(tmp_path / f"seen-{rank}").read_text() for rank in (0, 1)] == ["2127.0.0.1"] * 2
    stored = [info.key.rpartition("/")[2] for info in harness.blobs.list(outputs_folder(job))]
    assert stored == ["rank-0"]
    log = harness.blobs.read(log_key(job, 0))
    assert b"rank 0" in log and b"rank 1" not in log
    assert "rank 1" in harness.compute.logs(job)


def test_an_environment_is_registered_once_per_content(harness: JobHarness, azureml: AzureML):
    plain = harness.order("python", "-c", "pass")
    conda = Environment("conda", "conda.yaml")
    text = "name: mine\ndependencies: [python=3.12, pip: [numpy]]\n"
    same = "dependencies:\n- python=3.12\n- pip:\n  - numpy\n"
    image = Environment("image", "ghcr.io/acme/train:3")
    orders = [
        plain,
        replace(harness.order("python", "-c", "pass"), environment=conda, recipe=text),
        replace(harness.order("python", "-c", "pass"), environment=conda, recipe=same),
        replace(harness.order("python", "-c", "pass"), environment=image),
    ]
    for order in orders:
        compute_of().submit(order)
        harness.sent.append(order.job)
    used = [azureml.run(order.job).properties["environmentId"] for order in orders]
    assert len(set(used)) == 3 and used[1] == used[2]
    assert azureml.count("PUT", "/environments/") == 3
    made = azureml.assets.find(used[1], "environments")["properties"]
    assert yaml.safe_load(made["condaFile"]) == {
        "dependencies": ["python=3.12", "pip", {"pip": ["numpy"]}]
    }
    assert azureml.assets.find(used[3], "environments")["properties"]["image"] == image.file


def test_a_second_submission_asks_little_and_uploads_nothing(harness: JobHarness, azureml: AzureML):
    harness.wait_for(harness.send("python", "-c", "pass"), "completed")
    harness.compute = compute_of()  # another process
    order = harness.order("python", "-c", "pass")
    azureml.requests.clear()
    harness.submit(order)
    asked = [(r.method, r.path.rpartition("workspaces/")[2].split("/")[1]) for r in azureml.requests
             if "/workspaces/" in r.path]  # fmt: skip
    assert asked == [("GET", "environments"), ("GET", "datastores"), ("PUT", "jobs")]


def test_a_described_cluster_is_made_once_as_described_and_used_again(
    azureml: AzureML, folder_blobs: Blobs, tmp_path: Path
):
    described = {"max_nodes": 3, "spot": True, "idle": "5m", "identity": True}
    harness = JobHarness(compute_of(cluster="fresh", **described), folder_blobs, tmp_path)
    for _ in range(2):
        harness.wait_for(harness.send("python", "-c", "pass"), "completed")
    assert azureml.count("PUT", "/computes/") == 1
    body = azureml.computes.cluster("fresh").body
    made = body["properties"]["properties"]
    assert (made["vmSize"], made["vmPriority"]) == (SIZE, "LowPriority")
    assert made["scaleSettings"]["minNodeCount"] == 0
    assert made["scaleSettings"]["maxNodeCount"] == 3
    assert made["scaleSettings"]["nodeIdleTimeBeforeScaleDown"] == "PT5M"
    assert body["identity"]["type"].lower() == "systemassigned"


def test_a_compute_without_a_cluster_s_name_is_a_cluster_of_its_own_name(
    azureml: AzureML, folder_blobs: Blobs, tmp_path: Path
):
    described = {"kind": "azureml", "size": "Standard_NC4as_T4_v3", "max_nodes": 4, "spot": True}
    harness = JobHarness(make_compute("azure-gpu", described), folder_blobs, tmp_path)
    harness.wait_for(harness.send("python", "-c", "pass"), "completed")
    made = azureml.computes.cluster("azure-gpu").body["properties"]["properties"]
    assert made["vmSize"].upper() == "STANDARD_NC4AS_T4_V3"
    assert made["scaleSettings"]["maxNodeCount"] == 4


def test_what_groups_and_names_a_job_in_the_studio(harness: JobHarness, azureml: AzureML):
    order: JobOrder = replace(
        harness.order("python", "-c", "pass"), experiment="faces", timeout_s=600.0
    )
    harness.submit(order)
    shown = azureml.run(order.job).properties
    assert (shown["experimentName"], shown["displayName"]) == ("faces", "a-name")
    assert shown["tags"]["edgeloop_job"] == order.job
    assert shown["limits"]["timeout"] == "PT1H10M"


def test_without_a_cluster_a_job_asks_for_nodes_of_a_size(harness: JobHarness, azureml: AzureML):
    harness.compute = compute_of(serverless=True, spot=True, shm="2g")
    job = harness.send("python", "-c", "pass")
    asked = azureml.run(job).properties
    assert asked["resources"]["instanceType"] == SIZE
    assert asked["resources"]["shmSize"] == "2g"
    assert asked["queueSettings"]["jobTier"] == "Spot"
    assert not asked.get("computeId")
    assert azureml.count("PUT", "/computes/") == 0


def test_the_node_s_disk_is_a_volume_by_a_list_of_arguments(
    harness: JobHarness, azureml: AzureML
) -> None:
    """A string is one argument to the service, so `-v HOST:INSIDE` would start no container."""
    job = harness.send("python", "-c", "pass")
    asked = azureml.run(job).properties["resources"]
    assert asked["dockerArgsList"] == ["--volume=/mnt/edgeloop:/mnt/edgeloop"]
    assert asked.get("dockerArgs") is None


def test_a_dockerfile_is_sent_as_it_is_with_the_packages_after_it(azureml: AzureML, tmp_path: Path):
    conda = '{"dependencies": ["python=3.10"]}'
    recipe = EnvironmentRecipe(conda=conda, dockerfile="FROM acme/base:1")
    used = ensure_environment(compute_of()._connection, recipe)
    made = azureml.assets.find(used, "environments")["properties"]
    _, container, prefix = split_blob_url(made["build"]["contextUri"])
    azureml.storage.fetch(container, prefix, tmp_path)
    assert (tmp_path / "Dockerfile").read_text().startswith("FROM acme/base:1\nCOPY conda.yaml ")
    assert (tmp_path / "conda.yaml").read_text() == conda
