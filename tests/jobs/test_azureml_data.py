"""Data on Azure ML: datastores and Azure storage through the service's own inputs and outputs, with
the unmodified SDK; datasets once per node; everything else by the wrapper on the node."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeloop.errors import BadJob, StoreRefused
from edgeloop.jobs.client import Jobs
from edgeloop.jobs.computes import make_compute
from edgeloop.jobs.records import Run
from edgeloop.jobs.spec import RemotePath
from edgeloop.jobs.submit import PlaceResolver
from edgeloop.node.datasets import Datasets
from edgeloop.node.ticket import ticket_key
from edgeloop.settings import Settings
from edgeloop.store import open_from_job
from tests.jobs.test_azureml import SIZE
from tests.jobs.waiting import end_all
from tests.peers.azureml import AzureML
from tests.peers.azureml.storage import BLOBSTORE
from tests.peers.azurite import Azurite
from tests.peers.s3 import S3

COPY = """
import os, pathlib, shutil, sys
pairs = zip(sys.argv[1::2], sys.argv[2::2])
for source, target in pairs:
    target = pathlib.Path(target)
    if os.path.isdir(source):
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)
"""
Put = Callable[[str, bytes], None]


@pytest.fixture
def container(azureml: AzureML, azure_storage: Azurite) -> str:
    """A container that the workspace knows as the datastore `lab`; it is not the store's."""
    from azure.ai.ml.entities import AccountKeyConfiguration, AzureBlobDatastore

    name = f"lab-{secrets.token_hex(4)}"
    azureml.storage.make(name)
    azureml.client().datastores.create_or_update(
        AzureBlobDatastore(
            name="lab",
            account_name=azureml.storage.account,
            container_name=name,
            credentials=AccountKeyConfiguration(account_key=azure_storage.key),
        )
    )
    return name


@pytest.fixture
def put(azureml: AzureML, container: str) -> Put:
    client = azureml.storage.container(container)
    return lambda name, content: client.upload_blob(name, content, overwrite=True) and None


@pytest.fixture
def project(
    azureml: AzureML, azure_storage: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "copy.py").write_text(COPY)
    gpu = {"kind": "azureml", "cluster": "gpu", "size": SIZE, "max_nodes": 1}
    (folder / "edgeloop.yaml").write_text(json.dumps({"compute": "gpu", "computes": {"gpu": gpu}}))
    account = azure_storage.connection_string_of(azure_storage.new_account())
    monkeypatch.setenv("MODEL_STORAGE_CONNECTION_STRING", account)
    monkeypatch.chdir(folder)
    yield folder
    end_all(Jobs.open())


def finished(runs: list[Run]) -> list[str]:
    """The logs of jobs that all completed."""
    jobs = Jobs.open()
    ended = jobs.wait(runs, timeout_s=300)
    logs = [b"".join(jobs.log(run).more()).decode() for run in ended]
    assert {run.state for run in ended} == {"completed"}, "\n".join(
        [*logs, *(run.status.reason for run in ended)]
    )
    return logs


def stored(azureml: AzureML, container: str, prefix: str) -> dict[str, bytes]:
    client = azureml.storage.container(container)
    names = azureml.storage.names(container, prefix)
    return {name: client.download_blob(name).readall() for name in names}


def definition(azureml: AzureML, run: Run) -> dict[str, Any]:
    return azureml.run(run.record.id).properties


def test_datastores_and_azure_storage_are_mounted_by_the_service(
    project: Path, azureml: AzureML, container: str, put: Put, azure_storage: Azurite
):
    """Beside a dataset at a version and one that is created, without a push."""
    (project / "data/raw/small").mkdir(parents=True)
    (project / "data/raw/small/a.txt").write_text("first")
    datasets = Datasets(Jobs.open().blobs)
    datasets.push("raw/small", project / "data/raw/small")
    (project / "data/raw/small/a.txt").write_text("changed, and not pushed")
    put("faces/a/1.png", b"one")
    put("refs/list.csv", b"names")
    put("old/kept.txt", b"kept")
    address = azureml.storage.url_of(container)
    options = {
        "data": [
            "raw/small",
            "faces=azureml://datastores/lab/paths/faces",
            {"url": f"{address}/refs/list.csv", "name": "list", "mode": "download"},
        ],
        "writes": [
            "working/made",
            "copies=azureml://datastores/lab/paths/copies",
            {"url": f"{address}/old", "name": "more", "mode": "upload"},
        ],
    }
    words = ("{input:faces}", "{output:copies}", "{input:list}", "{output:more}")
    words += ("{input:small}", "{output:made}")
    runs = Jobs.open().submit("copy.py", options={**options, "args": words}, push=False)
    finished(runs)
    datasets.pull("working/made@1", project / "made")
    assert (project / "made/a.txt").read_text() == "first"
    assert stored(azureml, container, "copies/") == {"copies/a/1.png": b"one"}
    assert stored(azureml, container, "old/") == {"old/kept.txt": b"kept", "old/list": b"names"}

    asked = definition(azureml, runs[0])
    lab = "azureml://datastores/lab/paths"
    given = {
        name: (place["jobInputType"], place["mode"], place["uri"].partition("/datastores/")[2])
        for name, place in asked["inputs"].items()
    }
    assert given["source_0"] == ("uri_folder", "ReadOnlyMount", "lab/paths/faces")
    assert given["source_1"] == ("uri_file", "Download", "lab/paths/refs/list.csv")
    assert asked["outputs"]["target_0"]["mode"] == "ReadWriteMount"
    assert asked["outputs"]["target_1"]["mode"] == "Upload"
    assert asked["outputs"]["target_0"]["uri"].endswith(f"{lab[8:]}/copies")
    ticket = Jobs.open().blobs.read(ticket_key(runs[0].record.id)).decode()
    assert azure_storage.key not in ticket and "sig=" not in ticket, "the service opens it"


def test_jobs_of_one_node_fetch_a_dataset_once_in_a_pipeline_with_mounted_data(
    project: Path, azureml: AzureML, container: str, put: Put
):
    put("faces/1.png", b"one")
    (project / "data/working/small").mkdir(parents=True)
    (project / "data/working/small/a.txt").write_text("a")
    options = {
        "data": ["working/small", "faces=azureml://datastores/lab/paths/faces"],
        "writes": ["out=azureml://datastores/lab/paths/out"],
        "sweep": {"n": ["1", "2", "3"]},
        "command": ["python", "copy.py", "{input:faces}", "{output:out}/{n}"],
    }
    file = project / "job.yaml"
    file.write_text(json.dumps(options))
    logs = finished(Jobs.open().submit(file, pipeline=True))
    fetched = [log.count("fetched working/small@1") for log in logs]
    cached = [log.count("working/small@1 is in this node's cache") for log in logs]
    assert (sum(fetched), sum(cached)) == (1, 2), "\n".join(logs)
    assert stored(azureml, container, "out/") == {f"out/{n}/1.png": b"one" for n in "123"}
    assert len(list((azureml.folder / "nodes").rglob("a.txt"))) == 1


def test_s3_is_read_on_the_node_with_the_variables_of_the_job(
    project: Path, azureml: AzureML, s3: S3, monkeypatch: pytest.MonkeyPatch
):
    from edgeloop.store.files import url_blobs

    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    bucket = f"s3://{s3.make_bucket()}"
    url_blobs(bucket).put("faces/1.png", b"one")
    options = {
        "data": [f"faces={bucket}/faces"],
        "writes": [f"copies={bucket}/copies"],
        "variables": {name: f"${{{name}}}" for name in s3.environ},
        "args": ["{input:faces}", "{output:copies}"],
    }
    runs = Jobs.open().submit("copy.py", options=options)
    assert "fetched 1 file" in finished(runs)[0]
    assert url_blobs(bucket).read("copies/1.png") == b"one"
    assert "the-secret-of-s3" not in json.dumps(definition(azureml, runs[0]))


def test_what_the_service_cannot_reach_is_refused_before_anything_is_sent(
    project: Path, azureml: AzureML, tmp_path: Path
):
    for url, says in {
        f"file://{tmp_path}": "the nodes of gpu do not see folders of this machine",
        "azureml://datastores/nowhere/paths/x": "has no datastore 'nowhere'",
    }.items():
        with pytest.raises(BadJob, match=says):
            Jobs.open().submit("copy.py", options={"data": [f"faces={url}"]})
    assert azureml.count("PUT", "/jobs/") == 0


def test_elsewhere_a_datastore_of_the_workspace_is_opened_with_a_signature(
    project: Path, azureml: AzureML, azure_storage: Azurite
):
    """By its short URL, and by the long one that names a workspace."""
    azureml.storage.container(BLOBSTORE).upload_blob("faces/1.png", b"one")
    inside = "datastores/workspaceblobstore/paths"
    long = azureml.scope.workspace_id.replace("/resourceGroups/", "/resourcegroups/")
    resolver = PlaceResolver(Settings.load(project), make_compute("local"), 3600)
    [source], [target], served = resolver.resolve(
        [RemotePath("faces", f"azureml://{inside}/faces")],
        [RemotePath("copies", f"azureml:/{long}/{inside}/copies")],
    )
    assert not served
    assert azure_storage.key not in repr([*source.options.values(), *target.options.values()])
    assert open_from_job(source.access).read(f"{source.path}/1.png") == b"one"
    with pytest.raises(StoreRefused):
        open_from_job(source.access).put(f"{source.path}/2.png", b"two")
    open_from_job(target.access).put(f"{target.path}/2.png", b"two")
    assert stored(azureml, BLOBSTORE, "copies/") == {"copies/2.png": b"two"}
