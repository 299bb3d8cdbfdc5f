"""What goes wrong with Azure: one sentence, the right state, nothing left behind unnoticed."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from edgeloop.azure import AzureRun
from edgeloop.errors import BadSetting, ComputeRefused, ComputeUnavailable, EdgeloopError
from edgeloop.jobs.computes import Resources, Seen, make_compute
from edgeloop.store import Blobs
from tests.jobs.compute_contract import LIMIT_S, SLEEP, Yard
from tests.jobs.test_azureml import compute_of, folder_blobs, patient_cloud
from tests.peers.azureml import AzureML
from tests.peers.process import wait_until

__all__ = ["folder_blobs", "patient_cloud"]  # fixtures

JOBS_WRITE = "Microsoft.MachineLearningServices/workspaces/jobs/write"
COMPUTES_WRITE = "Microsoft.MachineLearningServices/workspaces/computes/write"


@pytest.fixture
def yard(azureml: AzureML, folder_blobs: Blobs, tmp_path: Path):
    return Yard(compute_of(), folder_blobs, tmp_path)


def refusal(yard: Yard, kind: type[EdgeloopError]) -> str:
    with pytest.raises(kind) as refused:
        yard.send("python", "-c", "pass")
    said = str(refused.value)
    assert "\n" not in said and len(said) < 600
    return said


def test_nobody_is_logged_in(yard: Yard, monkeypatch: pytest.MonkeyPatch):
    for name in ("IDENTITY_ENDPOINT", "IDENTITY_HEADER"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/nowhere")  # no Azure tool that could be logged in
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "dev")  # and no machine of Azure
    said = refusal(yard, ComputeRefused)
    assert said.startswith("The compute cloud refused: nobody is logged in to Azure: 'az login'")


def test_a_login_that_has_expired(yard: Yard, azureml: AzureML):
    azureml.faults.token_lifetime_s = -10
    assert "the login has expired or is not accepted: 'az login'" in refusal(yard, ComputeRefused)


@pytest.mark.parametrize("key", ["subscription", "resource_group", "workspace"])
def test_a_wrong_workspace_is_named_whole(azureml: AzureML, yard: Yard, key: str):
    yard.compute = compute_of(**{key: "elsewhere"})
    said = refusal(yard, BadSetting)
    assert said.startswith("computes.cloud: there is no workspace")
    assert "elsewhere" in said


def test_no_workspace_at_all(azureml: AzureML, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AML_WORKSPACE_NAME")
    with pytest.raises(BadSetting, match=r"no workspace is named: put \.azureml/config\.json"):
        compute_of(project=str(tmp_path))


def test_the_files_of_an_older_project_are_enough(
    azureml: AzureML, folder_blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    yard = Yard(compute_of(cluster="old-cpu"), folder_blobs, tmp_path)
    yard.wait_for(yard.send("python", "-c", "pass"), "completed")
    for name in ("AZURE_SUBSCRIPTION_ID", "AML_RESOURCE_GROUP", "AML_WORKSPACE_NAME"):
        monkeypatch.delenv(name)
    folder = tmp_path / "project/.azureml"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(azureml.config_file())
    (folder / "compute_target.json").write_text(json.dumps({"compute_target": "old-cpu"}))
    (folder / "environment.json").write_text(json.dumps({"image": "acme/old:1"}))
    (tmp_path / "project/deep").mkdir()
    yard.compute = make_compute("azureml", {"project": str(tmp_path / "project/deep")})
    job = yard.send("python", "-c", "pass")
    yard.wait_for(job, "completed")
    used = azureml.run(job).properties
    assert used["computeId"].endswith("/old-cpu")
    made = azureml.assets.find(used["environmentId"], "environments")["properties"]
    assert made["image"] == "acme/old:1"


def test_a_missing_role_is_told_with_its_action(yard: Yard, azureml: AzureML):
    azureml.faults.forbid(JOBS_WRITE)
    said = refusal(yard, ComputeRefused)
    assert f"allows {JOBS_WRITE}" in said and "'AzureML Data Scientist'" in said


def test_a_quota_that_is_met_and_a_cluster_that_was_not_made(yard: Yard, azureml: AzureML):
    azureml.faults.cores_per_family = 2
    said = refusal(yard, ComputeRefused)
    assert "the quota does not allow it" in said and "standardDSv2Family" in said
    assert azureml.count("PUT", "/computes/") == 1


def test_a_size_that_there_is_not(yard: Yard):
    yard.compute = compute_of(size="STANDARD_DS3")
    assert "unknown instance type" in refusal(yard, BadSetting)
    yard.compute = compute_of(serverless=True, size="STANDARD_DS3")
    assert "unknown instance type" in refusal(yard, BadSetting)


def test_a_cluster_that_is_neither_there_nor_described(yard: Yard):
    yard.compute = compute_of(cluster="nowhere", size="")
    said = refusal(yard, BadSetting)
    assert "there is no cluster 'nowhere' in the workspace" in said and "'size'" in said


def test_a_cluster_that_was_made_is_named_when_what_follows_fails(yard: Yard, azureml: AzureML):
    azureml.faults.fail(next=1, status=400, method="GET", containing="operationsStatus")
    said = refusal(yard, EdgeloopError)
    assert "the cluster cpu was made and is there" in said


def test_a_name_that_somebody_else_has_taken(yard: Yard, azureml: AzureML):
    from azure.ai.ml import command

    yard.wait_for(yard.send("python", "-c", "pass"), "completed")
    order = yard.order("python", "-c", "pass")
    environment = next(iter(azureml.jobs.runs.values())).properties["environmentId"]
    theirs = command(name=order.job, command="true", environment=environment, compute="cpu")
    azureml.client().jobs.create_or_update(theirs)
    with pytest.raises(ComputeRefused, match=f"has another job called {order.job}"):
        yard.submit(order)


def test_an_environment_that_cannot_be_built_is_why_the_job_failed(yard: Yard, azureml: AzureML):
    azureml.faults.break_environment("edgeloop-jobs")
    job = yard.send("python", "-c", "pass")
    assert "mage build" in yard.wait_for(job, "failed").reason
    assert "mage build" in yard.compute.logs(job)


def test_a_signature_in_azure_s_own_words_is_not_handed_on():
    run = AzureRun.of(
        {"status": "Failed", "error": {"error": {"message": "no https://x?sig=Zm9v"}}}
    )
    assert run.error == "no https://x?sig=***"


def test_a_job_that_never_starts_is_ended_with_the_queue_s_reason(yard: Yard, azureml: AzureML):
    azureml.faults.never_start = "no capacity in this region"
    yard.compute = compute_of(start_limit="1s")
    job = yard.send("python", "-c", "pass")
    said = yard.wait_for(job, "failed").reason
    assert said == "it did not start within 1 s: no capacity in this region"
    assert azureml.run(job).status == "Canceled"


def test_a_cancel_that_takes_long_is_said_to_be_on_its_way(yard: Yard, azureml: AzureML):
    azureml.faults.cancel_takes_s = 600
    job = yard.send("python", "-c", SLEEP)
    yard.wait_for(job, "running")
    yard.compute.cancel([job])
    still = Seen("running", "Azure ML is still canceling it")
    wait_until(lambda: yard.seen(job) == still, LIMIT_S, "the cancel to be seen")
    azureml.faults.cancel_takes_s = 0
    yard.wait_for(job, "canceled")


def test_throttling_and_errors_that_pass_are_not_noticed(yard: Yard, azureml: AzureML):
    azureml.faults.throttle(next=2, retry_after_s=1, containing="/workspaces/")
    azureml.faults.fail(next=2, status=503, containing="/workspaces/")
    azureml.faults.throttle(next=1, method="PUT", containing="/jobs/")
    yard.wait_for(yard.send("python", "-c", "pass"), "completed")


def test_throttling_for_longer_than_our_patience_is_said_at_once(yard: Yard, azureml: AzureML):
    yard.compute = compute_of(patience="10s")
    azureml.faults.throttle(next=1000, retry_after_s=40, containing="/workspaces/")
    assert "Azure ML answered: it is throttling" in refusal(yard, ComputeUnavailable)
    with pytest.raises(ComputeUnavailable, match="it is throttling"):
        yard.compute.states(["any"])


def test_a_network_that_comes_back_in_time_is_waited_for(yard: Yard, azureml: AzureML):
    yard.wait_for(yard.send("python", "-c", "pass"), "completed")
    azureml.faults.network_away()
    back = threading.Timer(3.0, azureml.faults.network_back)
    back.start()
    yard.wait_for(yard.send("python", "-c", "pass"), "completed")
    back.join()


def test_a_network_that_stays_away_is_said_and_the_job_is_not_lost(yard: Yard, azureml: AzureML):
    yard.compute = compute_of(patience="1s")
    job = yard.send("python", "-c", "pass")
    azureml.faults.network_away()
    with pytest.raises(ComputeUnavailable) as away:
        yard.seen(job)
    assert str(away.value).startswith("The compute cloud cannot be reached: Azure does not answer")
    azureml.faults.network_back()
    yard.wait_for(job, "completed")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"cluster": "", "size": ""}, "cluster is missing: name one, or the 'size'"),
        ({"min_nodes": 4}, "max_nodes must be 1 or more and not below min_nodes, not 1"),
        ({"max_nodes": "four"}, "max_nodes must be a whole number, not 'four'"),
        ({"idle": "soon"}, "idle must be a time as 90s"),
        ({"access": "key"}, "access must be auto, file or variable, not 'key'"),
        ({"clutser": "x"}, "unknown key 'clutser': did you mean 'cluster'"),
        ({"login": "magic"}, "login must be one of usual, device-code"),
        ({"cloud": "Mars"}, "cloud must be one of AzureCloud"),
        ({"cloud": {"resource_manager": "https://x"}}, "cloud lacks 'active_directory'"),
        ({"steps": 500}, "steps must be 1 to 100"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(azureml: AzureML, settings, complaint):
    with pytest.raises(BadSetting, match=complaint):
        compute_of(**settings)


def test_a_request_for_more_than_a_node_has_is_refused(yard: Yard):
    from edgeloop.errors import Infeasible

    yard.wait_for(yard.send("python", "-c", "pass"), "completed")
    with pytest.raises(Infeasible, match=r"cpus 64 \(the most is 4\), memory 900.0 GB"):
        yard.compute.check(Resources(cpus=64, memory_bytes=900 * 10**9))
