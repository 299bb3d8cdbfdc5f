"""`edgeloop azure setup`: what is missing is made, what is there stays, and twice is once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from edgeloop.errors import SetupFailed
from edgeloop.jobs.bundle import edgeloop_requirements
from edgeloop.jobs.computes.azureml.connection import connect
from edgeloop.jobs.computes.azureml.requirements import azure_requirements
from edgeloop.operate.azure import apply_plan, plan_setup
from edgeloop.settings import Settings
from tests.azure.projects import GPU_SIZE, SIZE, Project

ROOT = Path(__file__).parents[2]
GPU = {"kind": "azureml", "cluster": "gpus", "size": GPU_SIZE, "max_nodes": 2, "patience": "2s"}


def test_a_dry_run_says_what_would_be_made_and_makes_nothing(project: Project):
    said = project.run("setup", "--dry-run", "--json")
    assert said.code == 0
    assert [(row["kind"], row["action"]) for row in said.rows] == [
        ("cluster", "create"),
        ("cluster", "create"),
        ("datastore", "create"),
        ("environment", "create"),
    ]
    assert not project.puts("")


def test_the_first_run_makes_all_and_the_second_has_nothing_to_do(project: Project):
    said = project.run("setup", "--yes")
    assert said.code == 0, said.error
    assert said.created == ["cluster", "cluster", "datastore", "environment"]
    assert "Done: 4 created or changed." in said.out
    assert "cpu: {kind: azureml, cluster: cpu-cluster}" in said.out
    scales = [body["properties"]["properties"] for body in project.puts("/computes/")]
    assert [scale["scaleSettings"]["minNodeCount"] for scale in scales] == [0, 0]
    assert [scale["vmPriority"] for scale in scales] == ["Dedicated", "Dedicated"]
    [datastore] = project.puts("/datastores/")
    assert datastore["properties"]["accountName"] == project.account
    assert datastore["properties"]["credentials"] == {"credentialsType": "None"}
    # The container that the datastore leads to is there, with nothing left in it.
    assert project.cloud.storage.names("models", account=project.account) == []
    project.cloud.requests.clear()
    said = project.run("setup", "--yes")
    assert (said.code, "Nothing to do: all is there." in said.out) == (0, True)
    assert not project.puts("")


def test_nobody_to_ask_means_nothing_is_made(project: Project):
    said = project.run("setup")
    assert said.code == 1 and "Make 4 of these?" in said.error
    assert not project.puts("")


def test_clusters_are_made_as_the_settings_describe_them(project: Project):
    conda = {"dependencies": ["python=3.11", {"pip": ["torch"]}]}
    (project.folder / "conda.yaml").write_text(str(conda))
    cpu = {"kind": "azureml", "cluster": "searcher", "size": SIZE, "conda": "conda.yaml"}
    gpu = {**GPU, "spot": True, "idle": "2m", "identity": True, "conda": "conda.yaml"}
    project.write(computes={"cpu": cpu, "gpu": gpu})
    assert project.run("setup", "--yes").code == 0
    searcher, gpus = project.puts("/computes/")
    assert searcher["properties"]["properties"]["vmSize"] == SIZE
    assert gpus["identity"]["type"] == "SystemAssigned"
    assert gpus["properties"]["properties"]["vmPriority"] == "LowPriority"
    assert gpus["properties"]["properties"]["scaleSettings"] == {
        "minNodeCount": 0,
        "maxNodeCount": 2,
        "nodeIdleTimeBeforeScaleDown": "PT2M",
    }
    [environment] = project.puts("/environments/")  # both computes want the same
    assert "torch" in environment["properties"]["condaFile"]


def test_the_environment_that_is_proposed_has_one_channel_and_a_version_of_everything(
    project: Project,
):
    """`defaults` has terms of its own, and open ranges are another image every week."""
    project.write(computes={"gpu": GPU})
    assert project.run("setup", "--yes").code == 0
    [environment] = project.puts("/environments/")
    conda = yaml.safe_load(environment["properties"]["condaFile"])
    assert conda["channels"] == ["conda-forge"]
    *plain, pips = conda["dependencies"]
    assert [re.fullmatch(r"(python=3\.\d+|pip=\d+)", text) is not None for text in plain] == [
        True
    ] * 2
    open_ends = [text for text in pips["pip"] if not re.fullmatch(r"[\w.\[\]-]+==[\d.]+", text)]
    assert open_ends == []
    names = {text.partition("==")[0].partition("[")[0] for text in pips["pip"]}
    assert {"torch", "onnx", "psycopg", "azure-ai-ml"} <= names


def test_the_versions_of_that_environment_are_those_that_tests_run_with():
    tested = re.findall(r"^[\w.-]+==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pins = (ROOT / "edgeloop/jobs/pins.txt").read_text().splitlines()
    assert [line for line in pins if not line.startswith("#") and line not in tested] == []
    assert len(pins) == 1 + len(edgeloop_requirements("train", "azureml", "qnn"))


def test_an_identity_is_assigned_by_its_client_id(project: Project):
    client_id = project.cloud.computes.add_identity("nodes")
    project.write(computes={"gpu": {**GPU, "identity": client_id}})
    assert project.run("setup", "--yes").code == 0
    [cluster] = project.puts("/computes/")
    assert cluster["identity"]["type"] == "UserAssigned"
    [assigned] = cluster["identity"]["userAssignedIdentities"]
    assert assigned.endswith("/userAssignedIdentities/nodes")
    assert "Nothing to do" in project.run("setup", "--yes").out
    other = project.cloud.computes.add_identity("others")
    project.write(computes={"gpu": {**GPU, "identity": other}})
    assert f"it lacks the identity {other}" in project.run("setup", "--dry-run").out
    project.write(computes={"gpu": {**GPU, "cluster": "more", "identity": "not-there"}})
    said = project.run("setup", "--yes")
    assert "no user-assigned identity with the client id not-there" in said.error


def test_a_name_that_azure_refuses_is_refused_here_and_there(project: Project):
    from azure.ai.ml.entities import AmlCompute
    from azure.core.exceptions import HttpResponseError

    for name in ("gpu_1", "1gpu", "gpu-", "ab", "g" * 33):
        project.write(computes={"gpu": {**GPU, "cluster": name}})
        said = project.run("setup", "--dry-run").error
        assert "cluster must have 3 to 32 letters, digits and '-'" in said and name in said
    project.write(computes={"gpu_1": {k: v for k, v in GPU.items() if k != "cluster"}})
    assert "not 'gpu_1'" in project.run("setup", "--dry-run").error
    with pytest.raises(HttpResponseError, match="does not match the pattern"):
        entity = AmlCompute(name="gpu_1", size=SIZE)
        project.cloud.client().compute.begin_create_or_update(entity).result()
    project.cloud.complaints.clear()


def test_a_cluster_that_differs_is_named_and_changed_only_when_asked(project: Project):
    project.write(computes={"gpu": GPU})
    assert project.run("setup", "--yes").code == 0
    project.cloud.requests.clear()
    project.write(computes={"gpu": {**GPU, "min_nodes": 1, "max_nodes": 3}})
    said = project.run("setup", "--yes")
    assert said.code == 0 and "it has 0 to 2 nodes, not 1 to 3" in said.out
    assert not project.puts("")
    assert project.run("setup", "--yes", "--change").code == 0
    assert project.cloud.computes.cluster("gpus").nodes == 3
    project.write(computes={"gpu": {**GPU, "min_nodes": 1, "max_nodes": 3, "size": SIZE}})
    said = project.run("setup", "--yes", "--change")
    assert f"its nodes are {GPU_SIZE}, not {SIZE}" in said.out


def test_computes_of_other_workspaces_are_left_alone(project: Project):
    other = {"kind": "azureml", "cluster": "far", "size": SIZE, "workspace": "elsewhere"}
    project.write(computes={"gpu": GPU, "far": other})
    said = project.run("setup", "--dry-run")
    assert "compute far is in another workspace, and is left out" in said.out
    assert "cluster     far" not in said.out


def test_a_store_on_this_machine_gets_no_datastore_and_is_told(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MODEL_STORAGE_CONNECTION_STRING")
    project.write(computes={"gpu": GPU})
    said = project.run("setup", "--yes")
    assert said.code == 0 and "No node can reach the store" in said.out
    assert not project.puts("/datastores/")


def test_a_datastore_that_leads_elsewhere_is_named_and_left(project: Project):
    project.write(computes={"gpu": {**GPU, "datastore": "workspaceblobstore"}})
    said = project.run("setup", "--dry-run")
    assert "differs  datastore   workspaceblobstore  it points to container azureml-" in said.out


def test_a_key_goes_into_the_datastore_only_when_asked(project: Project):
    project.write(computes={"gpu": GPU}, azure={"datastore_key": True})
    said = project.run("setup", "--yes")
    assert said.code == 0 and "with its key" in said.out
    [datastore] = project.puts("/datastores/")
    assert datastore["properties"]["credentials"]["credentialsType"] == "AccountKey"
    assert project.cloud.storage.key not in said.out


def test_what_fails_does_not_keep_the_rest_from_being_made(project: Project):
    """And a later run goes on from there."""
    project.cloud.faults.cores_per_family = 6
    cpu = {"kind": "azureml", "cluster": "searcher", "size": SIZE, "max_nodes": 1}
    project.write(computes={"gpu": GPU, "cpu": cpu})
    said = project.run("setup", "--yes")
    assert said.code == 1
    assert said.error.startswith(
        "not everything could be created: cluster gpus: the quota does not allow it"
    )
    assert "Created: cluster searcher, datastore edgeloop, environment edgeloop-jobs:" in said.error
    assert said.error.endswith("Run 'edgeloop azure setup' again to continue.")
    project.cloud.faults.clear()
    said = project.run("setup", "--yes")
    assert (said.code, said.created) == (0, ["cluster"])


def test_a_size_that_azure_does_not_have_is_said_before_anything_is_made(project: Project):
    project.write(computes={"gpu": {**GPU, "size": "STANDARD_NC6_V3"}})
    said = project.run("setup", "--dry-run")
    assert (
        f"unknown size STANDARD_NC6_V3 in the workspace's region: did you mean {GPU_SIZE!r}?"
        in (said.out)
    )


def test_a_missing_role_names_the_action(project: Project):
    action = "Microsoft.MachineLearningServices/workspaces/datastores/write"
    project.cloud.faults.forbid(action)
    project.write(computes={"gpu": GPU})
    said = project.run("setup", "--yes")
    assert said.code == 1
    assert "datastore edgeloop: the login of user lacks a role" in said.error
    assert f"that allows {action}" in said.error


def test_a_cluster_that_azure_gives_up_on_is_named(project: Project):
    project.cloud.operations.failure = "No capacity in this region."
    project.write(computes={"gpu": GPU})
    said = project.run("setup", "--yes")
    assert said.code == 1
    assert "No capacity in this region" in said.error
    assert "cluster gpus was started and may exist" in said.error


def test_a_name_that_somebody_takes_in_between_is_said(project: Project):
    project.write(computes={"gpu": GPU})
    required = azure_requirements(Settings.load())
    connection = connect(required.address)
    plan = plan_setup(connection, required)
    project.write(computes={"gpu": {**GPU, "size": SIZE}})
    assert project.run("setup", "--yes").code == 0
    with pytest.raises(SetupFailed, match=r"cluster gpus: .*exists already, with another"):
        apply_plan(connection, required, plan, lambda _: None)


def test_a_busy_cloud_is_waited_for(project: Project):
    project.cloud.faults.throttle(next=2, retry_after_s=0.05, method="PUT")
    project.write(computes={"gpu": GPU})
    assert project.run("setup", "--yes").code == 0


def test_a_cloud_that_goes_away_ends_it_and_says_what_is_there(project: Project):
    project.cloud.faults.fail(next=1_000, status=503, method="PUT", containing="/datastores/")
    project.write(computes={"gpu": {**GPU, "patience": "1s"}})
    said = project.run("setup", "--yes")
    assert said.code == 1
    assert "datastore edgeloop: Azure does not answer" in said.error
    assert "Created: cluster gpus; 1 more steps were not tried" in said.error


def test_nobody_logged_in_and_a_wrong_workspace_are_sentences(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    project.cloud.faults.logged_out = True
    assert "no login to Azure: run 'az login'" in project.run("setup", "--yes").error
    project.cloud.faults.clear()
    monkeypatch.setenv("AML_WORKSPACE_NAME", "other")
    said = project.run("setup", "--yes")
    assert said.code == 1 and "there is no workspace 'other'" in said.error
    monkeypatch.delenv("AML_WORKSPACE_NAME")
    assert "no workspace is named: put .azureml/config.json" in project.run("setup").error


def test_a_network_that_is_away_is_a_sentence(project: Project):
    project.write(computes={"gpu": GPU})
    project.cloud.faults.network_away()
    said = project.run("setup", "--yes")
    project.cloud.faults.network_back()
    assert said.code == 1 and "cannot be reached: Azure does not answer" in said.error
