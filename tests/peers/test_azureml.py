"""The emulator of Azure ML as the SDK itself sees it, and what it refuses.

Its faults are shown by the tests of the compute `azureml`, each of which fails without its fault.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from azure.ai.ml import Input, Output, command
from azure.ai.ml.entities import AmlCompute, AzureBlobDatastore, Data, Environment

from tests.jobs.waiting import eventually
from tests.peers.azureml import AzureML

SCRIPT = """
import os, pathlib, sys, time
print("hello from", os.environ["AZUREML_RUN_ID"], os.environ["COLOUR"], flush=True)
while not pathlib.Path(sys.argv[3]).exists():
    time.sleep(0.02)
pathlib.Path("outputs").mkdir()
pathlib.Path("outputs/summary.txt").write_text("kept")
words = pathlib.Path(sys.argv[1], "words.txt").read_text()
pathlib.Path(sys.argv[2], "shout.txt").write_text(words.upper())
"""


@pytest.fixture
def client(azureml: AzureML) -> Any:
    return azureml.client(retry_backoff_factor=0.01)


@pytest.fixture
def ready(azureml: AzureML, client: Any) -> Iterator[Any]:
    """A client of a workspace with a cluster of two nodes and an environment."""
    azureml.computes.creating_takes_s = 0.0
    client.compute.begin_create_or_update(_cluster("cpu", nodes=2)).result()
    client.environments.create_or_update(Environment(name="tools", version="1", image="tools:1"))
    azureml.requests.clear()
    return client


def test_the_sdk_walks_from_an_empty_workspace_to_results(
    azureml: AzureML, client: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert client.workspaces.get(azureml.workspace).location == "westeurope"
    made = client.compute.begin_create_or_update(_cluster("cpu")).result()
    assert made.provisioning_state == "Succeeded"
    client.environments.create_or_update(Environment(name="tools", version="1", image="tools:1"))
    client.datastores.create_or_update(
        AzureBlobDatastore(name="pool", account_name=azureml.storage.account, container_name="pool")
    )
    azureml.storage.make("pool")
    azureml.storage.container("pool").upload_blob("texts/words.txt", b"loud")
    data = client.data.create_or_update(
        Data(
            name="words",
            version="1",
            type="uri_folder",
            path="azureml://datastores/pool/paths/texts/",
        )
    )
    (code := tmp_path / "code").mkdir()
    (code / "main.py").write_text(SCRIPT)
    job = client.jobs.create_or_update(
        command(
            code=str(code),
            command="python main.py ${{inputs.words}} ${{outputs.shout}} " + f"{tmp_path}/watched",
            environment="tools:1",
            compute="cpu",
            inputs={"words": Input(type="uri_folder", path=data.id)},
            outputs={"shout": Output(type="uri_folder")},
            environment_variables={"COLOUR": "green"},
        )
    )
    with _ends_when_it_is_watched(azureml, tmp_path / "watched"):
        client.jobs.stream(job.name)
    assert f"hello from {job.name} green" in capfd.readouterr().out
    assert client.jobs.get(job.name).status == "Completed"
    client.jobs.download(job.name, download_path=tmp_path / "back", all=True)
    assert (tmp_path / "back/named-outputs/shout/shout.txt").read_text() == "LOUD"
    assert (tmp_path / "back/artifacts/outputs/summary.txt").read_text() == "kept"


@contextmanager
def _ends_when_it_is_watched(azureml: AzureML, sign: Path) -> Iterator[None]:
    """The SDK prints no log at all of a job that is over when it first asks."""

    def watch() -> None:
        eventually(lambda: azureml.count("GET", "/details"))
        sign.touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield
    watcher.join()


def test_equal_code_is_uploaded_once(azureml: AzureML, ready: Any, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/main.py").write_text("print(1)")
    for _ in range(2):
        ready.jobs.create_or_update(_job(code=str(tmp_path / "code"), run="python main.py"))
    assert azureml.count("POST", "startPendingUpload") == 1
    assert azureml.count("PUT", "/codes/") == 1


def test_long_listings_come_in_pages(azureml: AzureML, ready: Any) -> None:
    azureml.faults.never_start = "later"
    names = {ready.jobs.create_or_update(_job("true")).name for _ in range(5)}
    azureml.scope.page_size = 2
    azureml.requests.clear()
    assert {job.name for job in ready.jobs.list()} == names
    assert azureml.count("GET", "/jobs") == 3


_COMMAND = {"jobType": "Command", "command": "true", "environmentId": "azureml:tools:1"}


def _reading(uri: str, mode: str) -> dict[str, Any]:
    data = {"jobInputType": "uri_folder", "uri": uri, "mode": mode}
    return {**_COMMAND, "inputs": {"faces": data}}


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"jobType": "Command", "environmentId": "azureml:tools:1"}, "command is required"),
        ({"jobType": "Command", "comand": "x"}, "comand is no field"),
        ({"jobType": "Command", "command": 3}, "command must be a string"),
        ({"jobType": "Magic"}, "jobType must be one of"),
        (
            {**_COMMAND, "resources": {"dockerArgs": "-v /mnt:/mnt"}},
            "dockerArgs must be a single argument",
        ),
        (_reading("s3://bucket/faces", "ReadOnlyMount"), "must be a URI of data"),
        (_reading("azureml://datastores/lab/paths/faces", "Mount"), "mode must be one of"),
    ],
)
def test_a_body_that_the_rest_api_would_not_know_is_refused(
    azureml: AzureML, properties: dict[str, Any], complaint: str
) -> None:
    where = azureml.scope.id_of("jobs", "mine")
    status, body = _arm(azureml, "PUT", where, {"properties": properties})
    assert status == 400
    assert complaint in body["error"]["message"]
    assert any(complaint in line for line in azureml.complaints)
    azureml.complaints.clear()


@pytest.mark.parametrize(
    ("audience", "code"),
    [
        (None, "AuthenticationFailed"),
        ("", "InvalidAuthenticationToken"),
        ("https://elsewhere", "InvalidAuthenticationTokenAudience"),
    ],
)
def test_a_request_without_a_token_for_this_service_is_refused(
    azureml: AzureML, audience: str | None, code: str
) -> None:
    token = "forged" if not audience else azureml.identities.issue(audience).token
    headers = {} if audience is None else {"Authorization": f"Bearer {token}"}
    status, body = _arm(azureml, "GET", azureml.scope.workspace_id, headers=headers)
    assert (status, body["error"]["code"]) == (401, code)


def _cluster(name: str, size: str = "STANDARD_DS3_V2", nodes: int = 1) -> AmlCompute:
    return AmlCompute(name=name, size=size, min_instances=0, max_instances=nodes)


def _job(run: str, **more: Any) -> Any:
    return command(command=run, environment="tools:1", compute="cpu", **more)


def _arm(
    azureml: AzureML,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    """Azure Resource Manager without a client in between."""
    token = azureml.credential().get_token(f"{azureml.url}/.default").token
    answer = requests.request(
        method,
        f"{azureml.url}{path}",
        json=body,
        headers={"Authorization": f"Bearer {token}"} if headers is None else headers,
        verify=str(azureml.certificate.file),
        timeout=60,
    )
    return answer.status_code, answer.json()
