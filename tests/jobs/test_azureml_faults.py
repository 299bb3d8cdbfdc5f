"""What goes wrong with Azure: one sentence, the right state, nothing left behind unnoticed."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from edgeloop.errors import BadSetting, ComputeRefused, ComputeUnavailable, EdgeloopError
from edgeloop.jobs.computes import ObservedState, Resources, make_compute
from edgeloop.jobs.computes.azureml.services import AzureRun
from edgeloop.node.ticket import log_key
from edgeloop.store import Blobs
from edgeloop.testing.contracts.compute import LIMIT_S, SLEEP, JobHarness
from tests.jobs.test_azureml import compute_of, folder_blobs, patient_cloud
from tests.peers.azureml import AzureML
from tests.peers.process import wait_until

__all__ = ["folder_blobs", "patient_cloud"]  # fixtures

JOBS_WRITE = "Microsoft.MachineLearningServices/workspaces/jobs/write"
COMPUTES_WRITE = "Microsoft.MachineLearningServices/workspaces/computes/write"


@pytest.fixture
def harness(azureml: AzureML, folder_blobs: Blobs, tmp_path: Path):
    return JobHarness(compute_of(), folder_blobs, tmp_path)


def refusal(harness: JobHarness, kind: type[EdgeloopError]) -> str:
    with pytest.raises(kind) as refused:
        harness.send("python", "-c", "pass")
    said = str(refused.value)
    assert "\n" not in said and len(said) < 600
    return said


def test_nobody_is_logged_in(harness: JobHarness, monkeypatch: pytest.MonkeyPatch):
    for name in ("IDENTITY_ENDPOINT", "IDENTITY_HEADER"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/nowhere")  # no Azure tool that could be logged in
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "dev")  # and no machine of Azure
    said = refusal(harness, ComputeRefused)
    assert said.startswith("the compute cloud refused: no login to Azure: run 'az login'")


def test_a_login_that_has_expired(harness: JobHarness, azureml: AzureML):
    azureml.faults.token_lifetime_s = -10
    assert "the login has expired or is not accepted: 'az login'" in refusal(
        harness, ComputeRefused
    )


@pytest.mark.parametrize("key", ["subscription", "resource_group", "workspace"])
def test_a_wrong_workspace_is_named_whole(azureml: AzureML, harness: JobHarness, key: str):
    harness.compute = compute_of(**{key: "elsewhere"})
    said = refusal(harness, BadSetting)
    assert said.startswith("computes.cloud: there is no workspace")
    assert "elsewhere" in said


def test_no_workspace_at_all(azureml: AzureML, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AML_WORKSPACE_NAME")
    with pytest.raises(BadSetting, match=r"no workspace is named: put \.azureml/config\.json"):
        compute_of(project=str(tmp_path))


def test_the_files_of_an_older_project_are_enough(
    azureml: AzureML, folder_blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    harness = JobHarness(compute_of(cluster="old-cpu"), folder_blobs, tmp_path)
    harness.wait_for(harness.send("python", "-c", "pass"), "completed")
    for name in ("AZURE_SUBSCRIPTION_ID", "AML_RESOURCE_GROUP", "AML_WORKSPACE_NAME"):
        monkeypatch.delenv(name)
    folder = tmp_path / "project/.azureml"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(azureml.config_file())
    (folder / "compute_target.json").write_text(json.dumps({"compute_target": "old-cpu"}))
    environment = {
        "docker": {"baseImage": "acme/old:1"},
        "python": {"userManagedDependencies": True},
        "environmentVariables": {"WORD": "of the environment"},
    }
    (folder / "environment.json").write_text(json.dumps(environment))
    (tmp_path / "project/deep").mkdir()
    harness.compute = make_compute("azureml", {"project": str(tmp_path / "project/deep")})
    job = harness.send("python", "-c", "import os; print(os.environ['WORD'])")
    harness.wait_for(job, "completed")
    assert harness.blobs.read(log_key(job, 0)).startswith(b"of the environment")
    used = azureml.run(job).properties
    assert used["computeId"].endswith("/old-cpu")
    made = azureml.assets.find(used["environmentId"], "environments")["properties"]
    assert made["image"] == "acme/old:1"


def test_a_missing_role_is_told_with_its_action(harness: JobHarness, azureml: AzureML):
    azureml.faults.forbid(JOBS_WRITE)
    said = refusal(harness, ComputeRefused)
    assert f"allows {JOBS_WRITE}" in said and "'AzureML Data Scientist'" in said


def test_a_quota_that_is_met_and_a_cluster_that_was_not_made(harness: JobHarness, azureml: AzureML):
    azureml.faults.cores_per_family = 2
    said = refusal(harness, ComputeRefused)
    assert "the quota does not allow it" in said and "standardDSv2Family" in said
    assert azureml.count("PUT", "/computes/") == 1


def test_a_size_that_there_is_not(harness: JobHarness):
    harness.compute = compute_of(size="STANDARD_DS3")
    assert "unknown instance type" in refusal(harness, BadSetting)
    harness.compute = compute_of(serverless=True, size="STANDARD_DS3")
    assert "unknown instance type" in refusal(harness, BadSetting)


def test_a_cluster_that_is_neither_there_nor_described(harness: JobHarness):
    harness.compute = compute_of(cluster="nowhere", size="")
    said = refusal(harness, BadSetting)
    assert "there is no cluster 'nowhere' in the workspace" in said and "'size'" in said


def test_a_cluster_that_was_made_is_named_when_what_follows_fails(
    harness: JobHarness, azureml: AzureML
):
    azureml.faults.fail(next=1, status=400, method="GET", containing="operationsStatus")
    said = refusal(harness, EdgeloopError)
    assert "the cluster cpu was created and exists" in said


def test_a_name_that_somebody_else_has_taken(harness: JobHarness, azureml: AzureML):
    from azure.ai.ml import command

    harness.wait_for(harness.send("python", "-c", "pass"), "completed")
    order = harness.order("python", "-c", "pass")
    environment = next(iter(azureml.jobs.runs.values())).properties["environmentId"]
    theirs = command(name=order.job, command="true", environment=environment, compute="cpu")
    azureml.client().jobs.create_or_update(theirs)
    with pytest.raises(ComputeRefused, match=f"has another job called {order.job}"):
        harness.submit(order)


def test_an_environment_that_cannot_be_built_is_why_the_job_failed(
    harness: JobHarness, azureml: AzureML
):
    azureml.faults.break_environment("edgeloop-jobs")
    job = harness.send("python", "-c", "pass")
    assert "mage build" in harness.wait_for(job, "failed").reason
    assert "mage build" in harness.compute.logs(job)


def test_a_signature_in_azure_s_own_words_is_not_handed_on():
    run = AzureRun.of(
        {"status": "Failed", "error": {"error": {"message": "no https://x?sig=Zm9v"}}}
    )
    assert run.error == "no https://x?sig=***"


def test_a_job_that_never_starts_is_ended_with_the_queue_s_reason(
    harness: JobHarness, azureml: AzureML
):
    azureml.faults.never_start = "no capacity in this region"
    harness.compute = compute_of(start_limit="1s")
    job = harness.send("python", "-c", "pass")
    said = harness.wait_for(job, "failed").reason
    assert said == "it did not start within 1 s: no capacity in this region"
    assert azureml.run(job).status == "Canceled"


def test_a_cancel_that_takes_long_is_said_to_be_on_its_way(harness: JobHarness, azureml: AzureML):
    azureml.faults.cancel_takes_s = 600
    job = harness.send("python", "-c", SLEEP)
    harness.wait_for(job, "running")
    harness.compute.cancel([job])
    still = ObservedState("running", "Azure ML is still canceling it")
    wait_until(lambda: harness.seen(job) == still, LIMIT_S, "the cancel to be seen")
    azureml.faults.cancel_takes_s = 0
    harness.wait_for(job, "canceled")


def test_throttling_and_errors_that_pass_are_not_noticed(harness: JobHarness, azureml: AzureML):
    azureml.faults.throttle(next=2, retry_after_s=0.1, containing="/workspaces/")
    azureml.faults.fail(next=2, status=503, containing="/workspaces/")
    azureml.faults.throttle(next=1, retry_after_s=0.1, method="PUT", containing="/jobs/")
    harness.wait_for(harness.send("python", "-c", "pass"), "completed")


def test_throttling_for_longer_than_our_patience_is_said_at_once(
    harness: JobHarness, azureml: AzureML
):
    harness.compute = compute_of(patience="10s")
    azureml.faults.throttle(next=1000, retry_after_s=40, containing="/workspaces/")
    assert "Azure ML answered: it is throttling" in refusal(harness, ComputeUnavailable)
    with pytest.raises(ComputeUnavailable, match="it is throttling"):
        harness.compute.states(["any"])


def test_a_network_that_comes_back_in_time_is_waited_for(harness: JobHarness, azureml: AzureML):
    harness.wait_for(harness.send("python", "-c", "pass"), "completed")
    azureml.faults.network_away()

    def return_later() -> None:
        wait_until(lambda: azureml.faults.unheard >= 2, LIMIT_S, "two requests to be lost")
        azureml.faults.network_back()

    back = threading.Thread(target=return_later)
    back.start()
    harness.wait_for(harness.send("python", "-c", "pass"), "completed")
    back.join()


def test_a_network_that_stays_away_is_said_and_the_job_is_not_lost(
    harness: JobHarness, azureml: AzureML
):
    harness.compute = compute_of(patience="1s")
    job = harness.send("python", "-c", "pass")
    azureml.faults.network_away()
    with pytest.raises(ComputeUnavailable) as away:
        harness.seen(job)
    assert str(away.value).startswith("the compute cloud cannot be reached: Azure does not answer")
    azureml.faults.network_back()
    harness.wait_for(job, "completed")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"cluster": "", "size": ""}, "cluster is missing: name one, or the 'size'"),
        ({"min_nodes": 4}, "max_nodes must not be below min_nodes, not 1"),
        ({"max_nodes": "four"}, "max_nodes must be a whole number, 1 or more, not 'four'"),
        ({"idle": "soon"}, "idle must be a time like 90s"),
        ({"access": "key"}, "access cannot be 'key': there are auto, file, variable"),
        ({"clutser": "x"}, "unknown key 'clutser': did you mean 'cluster'"),
        ({"login": "magic"}, "login cannot be 'magic': there are usual, device-code"),
        ({"cloud": "Mars"}, "cloud must be one of AzureCloud"),
        ({"cloud": {"resource_manager": "https://x"}}, "cloud lacks 'active_directory'"),
        ({"steps": 500}, "steps must be a whole number, 1 to 100, not 500"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(azureml: AzureML, settings, complaint):
    with pytest.raises(BadSetting, match=complaint):
        compute_of(**settings)


def test_a_request_for_more_than_a_node_has_is_refused(harness: JobHarness):
    from edgeloop.errors import Infeasible

    harness.wait_for(harness.send("python", "-c", "pass"), "completed")
    with pytest.raises(Infeasible, match=r"cpus 64 \(the most is 4\), memory 900.0 GB"):
        harness.compute.check(Resources(cpus=64, memory_bytes=900 * 10**9))
