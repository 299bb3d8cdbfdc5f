"""`edgeloop azure doctor`: every trouble is a line with its fix, and no trouble is an exception."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.ai.ml.entities import AmlCompute

from edgeloop.jobs.computes.azureml.services import ResourceManager
from tests.azure.projects import GPU_SIZE, Project
from tests.peers.azureml import AzureML
from tests.peers.azurite import Azurite

GPU = {"kind": "azureml", "cluster": "gpus", "size": GPU_SIZE, "max_nodes": 2, "patience": "2s"}
WRITER = "ba92f5b4-2d11-453d-a403-e96b0029c9fe"


def test_a_workspace_that_was_set_up_is_fine(project: Project):
    project.write(computes={"gpu": GPU})
    before = project.run("doctor")
    assert before.code == 1
    assert (
        "missing cluster         gpus does not exist: 'edgeloop azure setup' creates it"
        in before.out
    )
    assert project.run("setup", "--yes").code == 0
    after = project.run("doctor")
    assert after.code == 0, after.out
    assert {line.split()[0] for line in after.out.splitlines()} == {"ok"}
    assert "as user, tenant 00000000-" in after.out
    assert project.cloud.storage.names("models", account=project.account) == []


def test_it_writes_nothing_but_a_file_that_it_deletes(project: Project):
    project.run("doctor")
    assert {request.method for request in project.cloud.requests} == {"GET"}


def test_nobody_logged_in_leaves_the_rest_unchecked(project: Project):
    project.cloud.faults.logged_out = True
    found = project.findings()
    assert "'az login'" in found["login"][0]["text"] and found["login"][0]["ok"] is False
    assert found["cluster"][0]["ok"] is None
    assert found["cluster"][0]["text"] == "not checked, because login failed"


def test_a_network_that_is_away_is_a_line(project: Project):
    project.write(computes={"gpu": GPU})
    project.cloud.faults.network_away()
    found = project.findings()
    project.cloud.faults.network_back()
    [trouble] = [row for rows in found.values() for row in rows if row["ok"] is False]
    assert "Azure does not answer" in trouble["text"]


@pytest.mark.parametrize(
    ("variable", "what", "says"),
    [
        ("AZURE_SUBSCRIPTION_ID", "subscription", "there is no workspace 'vision'"),
        ("AML_RESOURCE_GROUP", "workspace", "there is no workspace 'vision' of resource group"),
        ("AML_WORKSPACE_NAME", "workspace", "there is no workspace 'other'"),
    ],
)
def test_a_wrong_name_is_found(
    project: Project, monkeypatch: pytest.MonkeyPatch, variable: str, what: str, says: str
):
    monkeypatch.setenv(variable, "other")
    [row] = project.findings()[what]
    assert row["ok"] is False and says in row["text"]


def test_no_workspace_and_a_broken_file_are_lines_too(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("AML_WORKSPACE_NAME")
    assert "no workspace is named" in project.findings()["settings"][0]["text"]
    (project.folder / ".azureml").mkdir()
    (project.folder / ".azureml/config.json").write_text("{")
    [row] = project.findings()["settings"]
    assert row["text"] == ".azureml/config.json: cannot be read: it is no JSON"


def test_packages_that_are_not_installed_are_a_line_and_a_sentence(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "azure.ai.ml", None)
    [row] = project.findings()["settings"]
    assert row["ok"] is False and "pip install 'edgeloop[azureml]'" in row["text"]
    assert "pip install 'edgeloop[azureml]'" in project.run("setup", "--yes").error


def test_a_provider_that_is_not_registered_says_the_command(project: Project):
    project.cloud.arm.unregistered.add("Microsoft.MachineLearningServices")
    [row] = project.findings()["provider"]
    assert "az provider register --namespace Microsoft.MachineLearningServices" in row["text"]


def test_a_missing_role_names_action_and_role(project: Project):
    action = "Microsoft.MachineLearningServices/workspaces/jobs/write"
    project.cloud.arm.not_actions.append(action)
    [row] = project.findings()["role"]
    assert row["ok"] is False
    assert action in row["text"] and "'AzureML Data Scientist'" in row["text"]


def test_a_login_that_may_run_jobs_and_make_nothing_is_told_so(project: Project):
    project.write(computes={"gpu": GPU})
    assert project.run("setup", "--yes").code == 0
    project.cloud.arm.actions = [
        "Microsoft.MachineLearningServices/workspaces/*/read",
        "Microsoft.MachineLearningServices/workspaces/jobs/*",
        "microsoft.machinelearningservices/workspaces/environments/*",
        "Microsoft.MachineLearningServices/workspaces/components/*/write",
    ]
    found = project.findings()
    assert found["role"][0]["ok"] is True
    assert "workspaces/computes/write" in found["setup role"][0]["text"]
    assert project.run("doctor").code == 0


def test_a_quota_that_is_too_small_is_counted(project: Project):
    project.cloud.faults.cores_per_family = 6
    project.write(computes={"gpu": GPU})
    [row] = project.findings()["quota"]
    assert row["ok"] is False
    told = f"gpus (2 × {GPU_SIZE}): 8 cores, standardNCASv3_T4Family has 6 free of 6: ask for more"
    assert row["text"].startswith(told)


def test_a_project_that_only_trains_needs_the_cluster_it_names_as_it_is(project: Project):
    """`.azureml/compute_target.json` names a cluster that somebody made, in a size of their own."""
    cluster = AmlCompute(name="my-gpus", size="STANDARD_NC24ADS_A100_V4", max_instances=2)
    project.cloud.client().compute.begin_create_or_update(cluster).result()
    (project.folder / ".azureml").mkdir()
    target = project.folder / ".azureml/compute_target.json"
    target.write_text('{"compute_target": "my-gpus"}')
    found = project.findings()
    assert [row["text"].partition(":")[0] for row in found["quota"]] == [
        "my-gpus (2 × STANDARD_NC24ADS_A100_V4)"
    ]
    missing = "cpu-cluster does not exist, and only a search in the cloud needs one: "
    assert [row["ok"] for row in found["cluster"]] == [None, True]
    assert found["cluster"][0]["text"].startswith(missing)
    assert "create   cluster     cpu-cluster" in project.run("setup", "--dry-run").out
    assert project.run("setup", "--yes").code == 0  # all that doctor misses otherwise
    del project.cloud.computes._clusters["cpu-cluster"]
    assert project.run("doctor").code == 0
    target.write_text('{"compute_target": "cpu-cluster"}')
    assert project.run("doctor").code == 1


def test_a_store_on_this_machine_is_out_of_a_nodes_reach(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MODEL_STORAGE_CONNECTION_STRING")
    [row] = project.findings()["store"]
    assert row["ok"] is False and "no node can reach it" in row["text"]


def test_a_store_that_refuses_is_a_line(
    project: Project, azure_storage: Azurite, monkeypatch: pytest.MonkeyPatch
):
    wrong = azure_storage.connection_string_of(project.account, key="d3Jvbmc=")
    monkeypatch.setenv("MODEL_STORAGE_CONNECTION_STRING", wrong)
    [row] = project.findings()["store"]
    assert row["ok"] is False and "d3Jvbmc" not in row["text"]


def test_an_identity_needs_a_role_on_the_store(
    project: Project, azureml: AzureML, azure_storage: Azurite, monkeypatch: pytest.MonkeyPatch
):
    """The login's, and that of the nodes; each missing one comes with its command."""
    monkeypatch.delenv("MODEL_STORAGE_CONNECTION_STRING")
    account = azureml.storage.account
    monkeypatch.setenv("EDGELOOP_STORE", f"azure:{azure_storage.blob_endpoint_of(account)}")
    project.write(computes={"gpu": {**GPU, "identity": True}})
    assert project.run("setup", "--yes").code == 0
    azureml.arm.data_actions = ["Microsoft.Storage/*/read"]
    found = project.findings()
    own, nodes = found["storage role"][0], found["cluster's role"][0]
    assert "the login may not write, delete files" in own["text"]
    assert "gpus may not use the store; az role assignment create --assignee 2222" in nodes["text"]
    assert f"storageAccounts/{account}" in nodes["text"]
    azureml.arm.data_actions = ["*"]
    principal = "22222222-0000-0000-0000-000000000000"
    role = {"roleDefinitionId": f"/x/roleDefinitions/{WRITER}", "principalId": principal}
    azureml.arm.roles["one"] = {"properties": role}
    found = project.findings()
    assert found["storage role"][0]["ok"] and found["cluster's role"][0]["ok"]
    assert project.run("doctor").code == 0


def test_a_clock_that_is_off_is_told(project: Project, monkeypatch: pytest.MonkeyPatch):
    true_time = ResourceManager.__init__

    def late(self: ResourceManager, *parts: object) -> None:
        true_time(self, *parts, now=lambda: datetime.now(UTC) - timedelta(hours=1))  # type: ignore[arg-type]

    monkeypatch.setattr(ResourceManager, "__init__", late)
    [row] = project.findings()["clock"]
    assert row["ok"] is False and "s behind Azure's" in row["text"]


def test_a_cluster_that_failed_says_to_make_it_anew(project: Project, tmp_path: Path):
    project.write(computes={"gpu": GPU})
    assert project.run("setup", "--yes").code == 0
    shown = project.cloud.computes._shown

    def failed(cluster: object) -> object:
        body = shown(cluster)  # type: ignore[arg-type]
        body["properties"]["provisioningState"] = "Failed"
        return body

    project.cloud.computes._shown = failed  # type: ignore[assignment, method-assign]
    [row] = project.findings()["cluster"]
    assert row["ok"] is False and "gpus failed" in row["text"]
