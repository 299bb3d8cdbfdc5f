"""`azure list` and `--workspace-config`, with the SDK against a workspace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeloop.jobs.client import Jobs
from tests.azure.projects import SIZE, Project

CPU = {"kind": "azureml", "cluster": "searcher", "size": SIZE, "max_nodes": 2, "patience": "5s"}


def test_what_a_workspace_has_is_listed_as_a_table_and_as_json(project: Project):
    project.write(computes={"cpu": CPU})
    assert "No computes in workspace" in project.run("list", "computes").out
    made = project.run("setup", "--yes")
    assert made.code == 0 and "Done: 3 created or changed." in made.out
    [compute] = project.run("list", "computes", "--json").rows
    assert (compute["name"], compute["size"], compute["nodes"]) == ("searcher", SIZE, "0 to 2")
    assert (compute["kind"], compute["state"]) == ("amlcompute", "Succeeded")
    stores = {row["name"]: row for row in project.run("list", "datastores", "--json").rows}
    assert stores["edgeloop"]["account"] == project.account
    assert stores["edgeloop"]["access"] == "identity"
    [environment] = project.run("list", "environments", "--json").rows
    assert environment["name"] == "edgeloop-jobs" and environment["version"]
    heading, first = project.run("list", "computes").out.splitlines()
    assert heading.split()[:3] == ["name", "kind", "size"] and first.startswith("searcher")


def test_another_workspace_config_is_used_and_its_jobs_are_found_again(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """The project's own config names a workspace that does not exist."""
    for name in ("AZURE_SUBSCRIPTION_ID", "AML_RESOURCE_GROUP", "AML_WORKSPACE_NAME"):
        monkeypatch.delenv(name)
    right = json.loads(project.cloud.config_file())
    (project.folder / ".azureml").mkdir()
    (project.folder / ".azureml/config.json").write_text(
        json.dumps({**right, "workspace_name": "elsewhere"})
    )
    (tmp_path / "right.json").write_text(json.dumps(right))
    project.write(computes={"cpu": CPU})
    (project.folder / "quick.py").write_text("print('done')")
    other = ("--workspace-config", str(tmp_path / "right.json"))
    assert "there is no workspace 'elsewhere'" in project.run("setup", "--yes").error
    assert project.run("setup", "--yes", *other).code == 0
    jobs = Jobs.open(experiment="faces", workspace_config=tmp_path / "right.json")
    sent = jobs.submit("quick.py", options={"compute": "cpu", "name": "there"})
    [run] = Jobs.open().wait(sent, timeout_s=120)  # as a command without the option does it
    assert run.state == "completed"
    [row] = project.run("list", "experiments", "--json", *other).rows
    assert (row["name"], row["jobs"], row["newest"]) == ("faces", 1, "there")
    assert row["state"] == "Completed"
    (tmp_path / "right.json").write_text('{"subscription_id": "1"}')
    said = project.run("list", "computes", *other).error
    assert said == "right.json: it names no resource_group"
