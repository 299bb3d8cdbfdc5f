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
_UUID = "0a1b2c3d-0000-4000-8000-000000000001"


def _reading(uri: str, mode: str = "ReadOnlyMount") -> dict[str, Any]:
    data = {"jobInputType": "uri_folder", "uri": uri, "mode": mode}
    return {**_COMMAND, "inputs": {"faces": data}}


def _stepping(**step: Any) -> dict[str, Any]:
    one = {"type": "command", "componentId": "azureml:train:1", **step}
    return {"jobType": "Pipeline", "jobs": {"train": one}}


def _spec(**more: Any) -> dict[str, Any]:
    spec = {"type": "command", "command": "true", "environment": "azureml:tools:1", **more}
    return {"componentSpec": spec}


def _routed(**route: Any) -> dict[str, Any]:
    return {"image": "tools:1", "inferenceConfig": {"livenessRoute": route}}


def _cluster_body(**properties: Any) -> dict[str, Any]:
    return {"computeType": "AmlCompute", "properties": {"vmSize": "STANDARD_DS3_V2", **properties}}


def _stored(kind: str = "AzureFile", **more: Any) -> dict[str, Any]:
    place = {"accountName": "lab", "fileShareName": "faces", **more}
    return {"datastoreType": kind, "credentials": {"credentialsType": "None"}, **place}


def _signed(kind: str, **more: Any) -> dict[str, Any]:
    ids = {"clientId": _UUID, "tenantId": _UUID, "thumbprint": "ab12", **more}
    own = {"credentialsType": kind, "secrets": {"secretsType": kind}, **ids}
    return _stored(credentials={name: value for name, value in own.items() if value is not None})


_REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("jobs", {"jobType": "Command", "environmentId": "azureml:tools:1"}, "command is required"),
    ("jobs", {"jobType": "Command", "comand": "x"}, "comand is no field"),
    ("jobs", {**_COMMAND, "command": 3}, "command must be a string"),
    ("jobs", {**_COMMAND, "command": "-- !"}, "command must match the pattern [a-zA-Z0-9_]"),
    ("jobs", {"jobType": "Command", "command": "true"}, "environmentId is required"),
    ("jobs", {**_COMMAND, "environmentId": "tools:1"}, "environmentId must be a resource id"),
    ("jobs", {"jobType": "Magic"}, "jobType must be one of"),
    ("jobs", {**_COMMAND, "resources": {"dockerArgs": "-v /mnt:/mnt"}}, "a single argument"),
    ("jobs", {**_COMMAND, "resources": {"shmSize": "large"}}, "shmSize must match the pattern"),
    ("jobs", {**_COMMAND, "resources": {"maxInstanceCount": 2}}, "maxInstanceCount is no field"),
    ("jobs", {**_COMMAND, "distribution": {"distributionType": "Ray"}}, "distributionType must be"),
    ("jobs", {**_COMMAND, "identity": {"identityType": "Me"}}, "identityType must be one of"),
    (
        "jobs",
        {**_COMMAND, "identity": {"identityType": "Managed", "clientId": "mine"}},
        "clientId must be a UUID",
    ),
    ("jobs", {**_COMMAND, "queueSettings": {"jobTier": "Gold"}}, "jobTier must be one of"),
    ("jobs", {**_COMMAND, "limits": {"timeout": "PT1H"}}, "jobLimitsType is required"),
    (
        "jobs",
        {**_COMMAND, "notificationSetting": {"emailOn": ["JobBegan"]}},
        "emailOn[0] must be one of",
    ),
    ("jobs", {**_COMMAND, "services": {"ssh": {"port": "22"}}}, "port must be an integer"),
    ("jobs", {**_COMMAND, "services": {"ssh": {"nodes": {}}}}, "nodesValueType must be one of"),
    ("jobs", _reading("s3://bucket/faces"), "must be a URI of data"),
    ("jobs", _reading(""), "must be a URI of data"),
    ("jobs", _reading("azureml://datastores/lab/paths/faces", "Mount"), "mode must be one of"),
    (
        "jobs",
        {**_COMMAND, "inputs": {"rate": {"jobInputType": "literal", "value": "-"}}},
        "value must match the pattern",
    ),
    (
        "jobs",
        {**_COMMAND, "outputs": {"net": {"jobOutputType": "uri_folder", "mode": "Mount"}}},
        "mode must be one of ReadWriteMount, Upload, Direct",
    ),
    ("jobs", {"jobType": "Pipeline"}, "jobs is required"),
    ("jobs", _stepping(componentId=None), "train.componentId is required"),
    ("jobs", _stepping(type="sweep"), "train.type must be one of command"),
    ("jobs", _stepping(resources={"shm_size": "2x"}), "shm_size must match the pattern"),
    ("jobs", _stepping(resources={"instanceCount": 2}), "instanceCount is no field"),
    ("jobs", _stepping(distribution={"distribution_type": "Ray"}), "distribution_type must be"),
    ("jobs", _stepping(identity={"identity_type": "Me"}), "identity_type must be one of"),
    ("jobs", _stepping(queue_settings={"job_tier": "Gold"}), "job_tier must be one of"),
    ("jobs", _stepping(limits={"timeout": "one hour"}), "timeout must be an ISO 8601 duration"),
    ("components", _spec(command="!"), "command must match the pattern"),
    ("components", _spec(environment=None), "environment is required"),
    ("components", _spec(distribution={"type": "ray"}), "distribution.type must be one of"),
    ("components", _spec(type="script"), "type must be one of command"),
    ("environments", {"build": {"dockerfilePath": "Dockerfile"}}, "contextUri is required"),
    ("environments", {"build": {"contextUri": "./"}}, "contextUri must match the pattern"),
    ("environments", {"image": "tools:1", "osType": "macOS"}, "osType must be one of"),
    ("environments", {"image": "tools:1", "autoRebuild": "Daily"}, "autoRebuild must be one of"),
    ("environments", _routed(path="/"), "path must match the pattern"),
    ("environments", _routed(path="/live"), "port is required"),
    ("data", {"dataType": "uri_folder"}, "dataUri is required"),
    ("data", {"dataType": "folder", "dataUri": "azureml://a"}, "dataType must be one of"),
    ("data", {"dataType": "uri_folder", "dataUri": "./"}, "dataUri must be a URI of data"),
    ("datastores", _stored(accountName="-"), "accountName must match the pattern"),
    ("datastores", _stored(fileShareName=None), "fileShareName is required"),
    ("datastores", _stored("AzureDataLakeGen2", fileShareName=None), "filesystem is required"),
    ("datastores", _stored("Ftp"), "datastoreType must be one of"),
    ("datastores", _stored(protocol="ftp"), "protocol must be one of"),
    ("datastores", _stored(credentials={"credentialsType": "Password"}), "credentialsType must be"),
    ("datastores", _signed("Certificate", thumbprint="::"), "thumbprint must match the pattern"),
    ("datastores", _signed("Certificate", tenantId=None), "tenantId is required"),
    ("datastores", _signed("ServicePrincipal", clientId=None), "clientId is required"),
    ("computes", _cluster_body(scaleSettings={"minNodeCount": 0}), "maxNodeCount is required"),
    ("computes", _cluster_body(subnet={}), "subnet.id is required"),
    ("computes", _cluster_body(virtualMachineImage={}), "virtualMachineImage.id is required"),
    (
        "computes",
        _cluster_body(userAccountCredentials={"adminUserPassword": "x"}),
        "adminUserName is required",
    ),
    ("computes", _cluster_body(vmPriority="Spot"), "vmPriority must be one of"),
]


@pytest.mark.parametrize(("kind", "properties", "complaint"), _REFUSED)
def test_a_body_that_the_rest_api_would_not_know_is_refused(
    azureml: AzureML, kind: str, properties: dict[str, Any], complaint: str
) -> None:
    _refused(azureml, kind, {"properties": properties}, complaint)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"identity": {"userAssignedIdentities": {}}}, "identity.type is required"),
        ({"identity": {"type": "Mine"}}, "identity.type must be one of"),
        ({"sku": {"tier": "Free"}}, "sku.name is required"),
        ({"sku": {"name": "S1", "tier": "Gold"}}, "tier must be one of Free, Basic, Standard"),
    ],
)
def test_what_belongs_to_a_compute_beside_its_properties_is_checked(
    azureml: AzureML, more: dict[str, Any], complaint: str
) -> None:
    _refused(azureml, "computes", {"properties": _cluster_body(), **more}, complaint)


def _refused(azureml: AzureML, kind: str, body: dict[str, Any], complaint: str) -> None:
    where = azureml.scope.id_of(kind, "mine")
    if kind in ("components", "environments", "data"):
        where += "/versions/1"
    status, answer = _arm(azureml, "PUT", where, body)
    assert (status, answer["error"]["code"]) == (400, "InvalidRequestContent")
    assert complaint in answer["error"]["message"]
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
