"""`edgeloop azure create`: from an empty subscription to a store and a workspace that work."""

from __future__ import annotations

import json

import pytest

from edgeloop.testing.models import save_segmentation_model
from edgeloop.workspace import Workspace
from tests.azure.projects import Project

KINDS = ["group", "storage", "container", "vault", "logs", "insights", "workspace"]
REST = ["cluster", "cluster", "datastore", "environment"]


@pytest.fixture
def nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A subscription with nothing in it, and a project that names no store and no workspace."""
    project.cloud.account.vanish()
    names = ("MODEL_STORAGE_CONNECTION_STRING", "AML_RESOURCE_GROUP", "AML_WORKSPACE_NAME")
    for name in names:
        monkeypatch.delenv(name)
    return project


def create(project: Project, account: str, *more: str):
    cloud = project.cloud
    named = ("--resource-group", cloud.group, "--workspace", cloud.workspace)
    where = ("--location", "westeurope", "--storage-account", account)
    return project.run("create", *named, *where, *more)


def test_with_a_shared_key_the_connection_string_opens_the_store(
    nothing: Project, monkeypatch: pytest.MonkeyPatch
):
    cloud = nothing.cloud
    cloud.arm.unregistered = {"Microsoft.MachineLearningServices"}
    account = cloud.storage.new_account()
    planned = create(nothing, account, "--shared-key", "--dry-run", "--json").rows
    assert [row["kind"] for row in planned] == ["provider", *KINDS, *REST]
    assert {row["action"] for row in planned} == {"create"} and not nothing.puts("")
    done = create(nothing, account, "--shared-key", "--yes")
    assert done.code == 0, done.error
    assert done.out.count("created") == 12 and cloud.storage.key not in done.out
    config = json.loads((nothing.folder / ".azureml/config.json").read_text())
    assert config == json.loads(cloud.config_file())
    [datastore] = nothing.puts("/datastores/")
    assert datastore["properties"]["credentials"]["credentialsType"] == "AccountKey"
    text = nothing.run("connection-string").out.strip()
    monkeypatch.setenv("MODEL_STORAGE_CONNECTION_STRING", text)
    save_segmentation_model(nothing.folder / "net.onnx", 32, 3)
    with Workspace.open(experiment="first") as workspace:
        workspace.upload(nothing.folder / "net.onnx", "calm-heron")
        assert [row["name"] for row in workspace.status()] == ["calm-heron"]
    again = create(nothing, account, "--shared-key", "--yes")
    assert (again.code, again.out.count("created")) == (0, 0)


def test_without_it_only_identities_open_the_account(nothing: Project):
    account = nothing.cloud.storage.new_account()
    done = create(nothing, account, "--yes")
    assert done.code == 0, done.error
    assert "export EDGELOOP_STORE=azure:https://127.0.0.1" in done.out
    [storage] = [b for b in nothing.puts("/storageAccounts/") if b.get("kind") == "StorageV2"]
    assert storage["properties"]["allowSharedKeyAccess"] is False
    roles = [body["properties"] for body in nothing.puts("/roleAssignments/")]
    assert {role["principalId"] for role in roles} == {"user"} and len(roles) == 2
    assert {role["principalType"] for role in roles} == {"User"}
    [datastore] = nothing.puts("/datastores/")
    assert datastore["properties"]["credentials"] == {"credentialsType": "None"}
    said = nothing.run("connection-string")
    assert said.code == 1 and "'edgeloop azure create --shared-key' enables its keys" in said.error
    assert create(nothing, account, "--shared-key", "--yes").out.count("changed") == 1
    assert "AccountKey=" in nothing.run("connection-string").out


def test_what_is_missing_or_fails_is_said_and_a_later_run_continues(nothing: Project):
    cloud = nothing.cloud
    named = ("--resource-group", cloud.group, "--workspace", cloud.workspace)
    said = nothing.run("create", *named)
    assert "--location: the resource group lab does not exist" in said.error
    assert "no workspace is named" in nothing.run("create", *named[:2]).error
    account = cloud.storage.new_account()
    cloud.faults.forbid("Microsoft.KeyVault/vaults/write")
    failed = create(nothing, account, "--yes")
    assert failed.code == 1 and "vault edgeloop-" in failed.error
    assert "Created: group lab, storage" in failed.error
    assert "Run 'edgeloop azure create' again to continue" in failed.error
    cloud.faults._forbidden.clear()
    assert create(nothing, account, "--yes").code == 0
    other = nothing.run("create", *named[:2], "--workspace", "another")
    assert "it names the workspace vision: run this in another folder" in other.error
