"""A project that has nothing but the `.azureml/` of older tools: found, examined, used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Edgeloop
from tests.peers.azureml import AzureML
from tests.peers.azurite import Azurite

SCRIPT = """\
import pathlib, sys
images = sorted(p.name for p in pathlib.Path("data/raw/faces").iterdir())
pathlib.Path("outputs/report.txt").write_text(f"{sys.argv[1:]} {images}")
print("trained on", len(images), "images")
"""


@pytest.fixture
def folder(
    azureml: AzureML,
    azure_storage: Azurite,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    for name in ("AZURE_SUBSCRIPTION_ID", "AML_RESOURCE_GROUP", "AML_WORKSPACE_NAME"):
        monkeypatch.delenv(name)
    folder = tmp_path / "old-project"
    files = {
        "config.json": azureml.config_file(),
        "compute_target.json": json.dumps({"compute_target": "old-cluster"}),
        "datastore.json": json.dumps({
            "datastore_name": "faces_store",
            "account_name": azureml.storage.account,
            "container_name": "faces",
            "account_key": azureml.storage.key,
            "blob_endpoint": azure_storage.blob_endpoint_of(azureml.storage.account),
        }),
        "environment.json": json.dumps({"image": "lab/train:3", "packages": ["torch>=2.5"]}),
        "../train.py": SCRIPT,
        "../data/raw/faces/a.png": "a",
        "../data/raw/faces/b.png": "b",
    }  # fmt: skip
    (folder / ".azureml").mkdir(parents=True)
    for name, content in files.items():
        path = folder / ".azureml" / name
        path.parent.resolve().mkdir(parents=True, exist_ok=True)
        path.resolve().write_text(content)
    monkeypatch.chdir(folder)
    return folder


def test_a_project_with_azureml_files_alone_is_set_up_and_trains(
    azureml: AzureML, folder: Path, edgeloop: Edgeloop
):
    before = edgeloop("azure", "doctor")
    assert before.code == 1 and "faces_store does not exist" in before.out
    made = edgeloop("azure", "setup", "--yes")
    assert made.code == 0, made.err
    assert "created  cluster     old-cluster" in made.out
    assert "created  datastore   faces_store  container faces" in made.out
    after = edgeloop("azure", "doctor", "--json")
    assert [row for row in after.json if not row["ok"]] == []

    azureml.requests.clear()
    command = ("run", "train.py", "--compute", "old-cluster", "--data", "faces", "--name", "first")
    ran = edgeloop(*command, "--", "--epochs", "1")
    assert ran.code == 0, ran.err
    assert "trained on 2 images" in ran.out
    report = folder / "runs/first/outputs/report.txt"
    assert report.read_text() == "['--epochs', '1'] ['a.png', 'b.png']"

    [job] = [r.body["properties"] for r in azureml.requests if _writes(r.method, r.path, "/jobs/")]
    assert job["computeId"].endswith("/computes/old-cluster")
    [output] = job["outputs"].values()
    assert output["uri"].startswith("azureml://datastores/faces_store/paths/")
    # What setup registered is what the job starts: nothing is made a second time.
    assert not any(_writes(r.method, r.path, "/environments/") for r in azureml.requests)
    [environment] = azureml.assets.named("environments", "edgeloop-jobs")
    assert environment["properties"]["image"] == "lab/train:3"
    assert "torch>=2.5" in environment["properties"]["condaFile"]
    assert job["environmentId"] == environment["id"]
    # The key opened the store from here; no request to the workspace but the datastore's held it.
    assert azureml.storage.key not in json.dumps([r.body for r in azureml.requests])
    assert any("outputs/report.txt" in name for name in azureml.storage.names("faces"))
    records = "".join(p.read_text() for p in (folder / "runs").rglob("*.json"))
    assert azureml.storage.key not in records + ran.out + ran.err + made.out


def test_what_goes_wrong_is_one_sentence_and_exit_code_one(
    azureml: AzureML, folder: Path, edgeloop: Edgeloop
):
    azureml.faults.logged_out = True
    refused = edgeloop("azure", "setup", "--yes")
    assert "no login to Azure: run 'az login'" in refused.sentence
    examined = edgeloop("azure", "doctor")
    assert (examined.code, examined.err) == (1, "")


def test_a_datastore_file_that_cannot_be_used_says_why(folder: Path, edgeloop: Edgeloop):
    path = folder / ".azureml/datastore.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "account_key": "cut-off"}))
    said = edgeloop("job", "list")
    assert ".azureml/datastore.json: its account_key is cut off or mistyped" in said.sentence
    assert 'cut-off"' not in said.sentence


def _writes(method: str, path: str, containing: str) -> bool:
    return method == "PUT" and containing in path
