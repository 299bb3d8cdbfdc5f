"""The emulator of Azure ML as the SDK itself sees it: a walk end to end, and each fault once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.ai.ml import Input, Output, PyTorchDistribution, command, dsl
from azure.ai.ml.entities import AmlCompute, AzureBlobDatastore, Data, Environment
from azure.ai.ml.exceptions import JobException
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.identity import CredentialUnavailableError, ManagedIdentityCredential

from tests.jobs.waiting import eventually
from tests.peers.azureml import AzureML, containers

ML = "Microsoft.MachineLearningServices"
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
SUBMITTER = """
import os, time
from azure.ai.ml import MLClient, command, dsl
from azure.identity import ManagedIdentityCredential
names = ("SUBSCRIPTION", "RESOURCEGROUP", "WORKSPACE_NAME")
place = [os.environ["AZUREML_ARM_" + name] for name in names]
client = MLClient(ManagedIdentityCredential(), *place, enable_telemetry=False)
step = command(name="step", command="echo inside", environment="tools:1")
@dsl.pipeline(default_compute="cpu")
def chain():
    step()
made = client.jobs.create_or_update(chain())
while client.jobs.get(made.name).status not in ("Completed", "Failed", "Canceled"):
    time.sleep(0.1)
print("the pipeline is", client.jobs.get(made.name).status)
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


def test_a_command_that_fails_fails_its_job(
    azureml: AzureML, ready: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    job = ready.jobs.create_or_update(_job("echo about to fail; exit 3"))
    with pytest.raises(JobException, match="exited with status code 3"):
        ready.jobs.stream(job.name)
    assert azureml.wait(job.name).status == "Failed"


def test_a_job_is_canceled_with_all_its_processes(
    azureml: AzureML, ready: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "GRACE_S", 0.2)
    stays = f"setsid sleep 300 & echo $! > {tmp_path}/pid; trap '' TERM; wait; sleep 300"
    job = ready.jobs.create_or_update(_job(stays))
    eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    ready.jobs.begin_cancel(job.name).result()
    assert ready.jobs.get(job.name).status == "Canceled"
    pid = (tmp_path / "pid").read_text().strip()
    eventually(lambda: not Path("/proc", pid, "exe").exists())


def test_a_cancel_may_take_its_time(azureml: AzureML, ready: Any) -> None:
    azureml.faults.cancel_takes_s = 3_600
    job = ready.jobs.create_or_update(_job("sleep 300"))
    eventually(lambda: azureml.run(job.name).status == "Running")
    cancelling = ready.jobs.begin_cancel(job.name)
    eventually(lambda: ready.jobs.get(job.name).status == "CancelRequested")
    assert not cancelling.done()
    azureml.faults.cancel_takes_s = 0
    cancelling.result()
    assert ready.jobs.get(job.name).status == "Canceled"


def test_jobs_wait_for_nodes_and_say_so(azureml: AzureML, ready: Any, tmp_path: Path) -> None:
    hold = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    first = ready.jobs.create_or_update(_job(hold, instance_count=2))
    eventually(lambda: azureml.run(first.name).status == "Running")
    second = ready.jobs.create_or_update(_job("true"))
    eventually(lambda: "2 of 2 nodes" in azureml.run(second.name).waits_for)
    assert ready.jobs.get(second.name).status == "Queued"
    (tmp_path / "go").touch()
    assert azureml.wait(second.name).status == "Completed"


def test_a_job_that_never_starts_has_its_reason_in_the_run_history(
    azureml: AzureML, ready: Any
) -> None:
    azureml.faults.never_start = "no machines of this size are left in the region"
    job = ready.jobs.create_or_update(_job("true"))
    eventually(lambda: azureml.run(job.name).waits_for)
    history = ready.jobs._runs_operations.get_run(job.name)
    assert history.status == "Queued"
    assert history.queueing_info.message == azureml.faults.never_start


def test_ranks_of_a_distributed_job_know_their_places(azureml: AzureML, ready: Any) -> None:
    job = ready.jobs.create_or_update(
        _job(
            "echo $RANK/$WORLD_SIZE on $NODE_RANK",
            instance_count=2,
            distribution=PyTorchDistribution(process_count_per_instance=2),
        )
    )
    assert azureml.wait(job.name).status == "Completed"
    folder = f"{azureml.run(job.name).prefix}/user_logs"
    logs = azureml.storage.container("azureml")
    said = [
        logs.download_blob(f"{folder}/std_log_process_{rank}.txt").readall().decode().strip()
        for rank in range(4)
    ]
    assert said == ["0/4 on 0", "1/4 on 0", "2/4 on 1", "3/4 on 1"]


def test_a_pipeline_runs_its_steps_in_order(azureml: AzureML, ready: Any) -> None:
    made = ready.jobs.create_or_update(_pipeline("cat ${{inputs.given}}/number"))
    assert azureml.wait(made.name).status == "Completed"
    steps = {step.display_name: step for step in ready.jobs.list(parent_job_name=made.name)}
    assert {name: step.status for name, step in steps.items()} == {
        "write": "Completed",
        "read": "Completed",
    }
    run = azureml.run(steps["read"].name)
    log = azureml.storage.container("azureml").download_blob(f"{run.prefix}/user_logs/std_log.txt")
    assert log.readall() == b"42"


def test_a_pipeline_fails_with_its_step(azureml: AzureML, ready: Any) -> None:
    made = ready.jobs.create_or_update(_pipeline("exit 5"))
    assert azureml.wait(made.name).status == "Failed"
    states = {run.step: run.status for run in azureml.jobs.children(made.name)}
    assert states == {"write": "Completed", "read": "Failed"}


def test_a_canceled_pipeline_cancels_its_steps(azureml: AzureML, ready: Any) -> None:
    made = ready.jobs.create_or_update(_pipeline("sleep 300"))
    eventually(lambda: [r for r in azureml.jobs.children(made.name) if r.step == "read"])
    ready.jobs.begin_cancel(made.name).result()
    states = {run.step: run.status for run in azureml.jobs.children(made.name)}
    assert states == {"write": "Completed", "read": "Canceled"}
    assert ready.jobs.get(made.name).status == "Canceled"


@pytest.mark.soak
def test_code_in_a_job_submits_a_pipeline_under_the_jobs_identity(
    azureml: AzureML, ready: Any, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/main.py").write_text(SUBMITTER)
    (tmp_path / "conda.yaml").write_text(
        "dependencies: [python=3.11, pip, {pip: [azure-ai-ml, azure-identity]}]"
    )
    sdk = Environment(name="sdk", version="1", image="i:1", conda_file=tmp_path / "conda.yaml")
    ready.environments.create_or_update(sdk)
    run = {"command": "python main.py", "code": str(tmp_path / "code")}
    job = ready.jobs.create_or_update(command(**run, environment="sdk:1", compute="cpu"))
    assert azureml.wait(job.name).status == "Completed"
    puts = [r for r in azureml.requests if r.who == job.name and "/jobs/" in r.path]
    assert [r.method for r in puts if r.method == "PUT"] == ["PUT"]
    log = f"{azureml.run(job.name).prefix}/user_logs/std_log.txt"
    said = azureml.storage.container("azureml").download_blob(log).readall().decode()
    assert "the pipeline is" in said and "COMPLETED" in said.upper()


def test_long_listings_come_in_pages(azureml: AzureML, ready: Any) -> None:
    azureml.faults.never_start = "later"
    names = {ready.jobs.create_or_update(_job("true")).name for _ in range(5)}
    azureml.scope.page_size = 2
    azureml.requests.clear()
    assert {job.name for job in ready.jobs.list()} == names
    assert azureml.count("GET", "/jobs") == 3


def test_states_of_many_runs_come_in_one_call(azureml: AzureML, ready: Any) -> None:
    azureml.faults.never_start = "later"
    names = [ready.jobs.create_or_update(_job("true")).name for _ in range(3)]
    azureml.requests.clear()
    asked = {"requests": {name: {"runId": name} for name in [*names, "unknown"]}}
    answer = ready.jobs._runs_operations._operation.batch_get_run_data(
        azureml.subscription, azureml.group, azureml.workspace, asked
    )
    assert set(answer.successful_results) == set(names)
    assert set(answer.failed_results) == {"unknown"}
    assert azureml.count(containing="/history/") == 1


def test_throttled_and_broken_requests_are_tried_again(azureml: AzureML, ready: Any) -> None:
    azureml.faults.throttle(next=2, retry_after_s=0.01, containing="/computes/cpu")
    azureml.faults.fail(next=1, status=503, containing="/computes/cpu")
    assert ready.compute.get("cpu").name == "cpu"
    assert [request.status for request in azureml.requests] == [429, 429, 503, 200]


def test_an_expired_token_is_refused(azureml: AzureML, ready: Any) -> None:
    azureml.identities.expire_tokens()
    with pytest.raises(ClientAuthenticationError, match="ExpiredAuthenticationToken"):
        ready.compute.get("cpu")


def test_a_login_may_be_over_for_good(azureml: AzureML) -> None:
    azureml.identities.expire_tokens(for_good=True)
    with pytest.raises(ClientAuthenticationError, match="ExpiredAuthenticationToken"):
        azureml.client().compute.get("cpu")
    azureml.faults.logged_out = True
    with pytest.raises(CredentialUnavailableError):
        ManagedIdentityCredential().get_token(f"{azureml.url}/.default")


def test_a_missing_permission_is_named(azureml: AzureML, ready: Any) -> None:
    action = f"{ML}/workspaces/jobs/write"
    azureml.faults.forbid(action)
    with pytest.raises(HttpResponseError, match=f"AuthorizationFailed.*{action}") as refused:
        ready.jobs.create_or_update(_job("true"))
    assert refused.value.status_code == 403


def test_a_quota_is_kept(azureml: AzureML, ready: Any) -> None:
    azureml.faults.cores_per_family = 24
    with pytest.raises(HttpResponseError, match="ClusterCoreQuotaReached"):
        ready.compute.begin_create_or_update(_cluster("big", "STANDARD_NC6S_V3", 5)).result()


def test_an_unknown_size_of_machine_is_refused(ready: Any) -> None:
    with pytest.raises(HttpResponseError, match="STANDARD_NC99 is not supported"):
        ready.compute.begin_create_or_update(_cluster("odd", "STANDARD_NC99")).result()


def test_a_jobs_name_is_taken_once(azureml: AzureML, ready: Any) -> None:
    azureml.faults.never_start = "later"
    ready.jobs.create_or_update(_job("true", name="mine"))
    with pytest.raises(HttpResponseError, match="already exists") as refused:
        ready.jobs.create_or_update(_job("false", name="mine"))
    assert refused.value.status_code == 409


def test_an_environment_that_fails_to_build_fails_the_job(azureml: AzureML, ready: Any) -> None:
    azureml.faults.break_environment("tools")
    run = azureml.wait(ready.jobs.create_or_update(_job("true")).name)
    assert run.status == "Failed"
    assert run.error and "Image build failed" in run.error["error"]["message"]


def test_the_network_may_be_away(azureml: AzureML, ready: Any) -> None:
    azureml.faults.network_away()
    with pytest.raises((ServiceRequestError, ServiceResponseError)):
        ready.compute._operation.get(
            azureml.group, azureml.workspace, "cpu", retry_total=0, retry_connect=0
        )
    azureml.faults.network_back()
    assert ready.compute.get("cpu").name == "cpu"


def test_a_wrong_workspace_is_not_found(azureml: AzureML, client: Any) -> None:
    with pytest.raises(ResourceNotFoundError, match="workspaces/other"):
        client.workspaces.get("other")


def test_an_account_may_forbid_keys(azureml: AzureML, client: Any) -> None:
    azureml.faults.account_keys = False
    store = client.datastores.get_default(include_secrets=False)
    assert store.credentials.type == "None" or type(store.credentials).__name__.startswith("None")
    status, body = _arm(azureml, "POST", f"{_account(azureml)}/listKeys")
    assert (status, body["error"]["code"]) == (403, "KeyBasedAuthenticationNotPermitted")


def test_a_cluster_is_made_and_deleted_in_a_while(azureml: AzureML, client: Any) -> None:
    azureml.computes.creating_takes_s = 3_600
    making = client.compute.begin_create_or_update(_cluster("cpu"))
    assert client.compute.get("cpu").provisioning_state == "Creating"
    azureml.computes.cluster("cpu").ready_at = time.monotonic()
    assert making.result().provisioning_state == "Succeeded"
    azureml.computes.creating_takes_s = 0
    client.compute.begin_delete("cpu").result()
    with pytest.raises(ResourceNotFoundError):
        client.compute.get("cpu")


def test_sizes_quotas_and_permissions_can_be_asked_for(azureml: AzureML, ready: Any) -> None:
    sizes = ready.compute.list_sizes(location="westeurope")
    assert "STANDARD_NC6S_V3" in {size.name for size in sizes}
    usages = {usage.name["value"]: usage for usage in ready.compute.list_usage()}
    assert vars(usages["standardDSv2Family"])["currentValue"] == 8  # `current_value` stays None
    azureml.faults.forbid(f"{ML}/workspaces/computes/write")
    permissions = f"{azureml.scope.workspace_id}/providers/Microsoft.Authorization/permissions"
    _, body = _arm(azureml, "GET", permissions)
    assert body["value"][0]["notActions"] == [f"{ML}/workspaces/computes/write".lower()]


def _reading(uri: str, mode: str) -> dict[str, Any]:
    data = {"jobInputType": "uri_folder", "uri": uri, "mode": mode}
    known = {"command": "true", "environmentId": "azureml:tools:1"}
    return {"jobType": "Command", **known, "inputs": {"faces": data}}


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"jobType": "Command", "environmentId": "azureml:tools:1"}, "command is required"),
        ({"jobType": "Command", "comand": "x"}, "comand is no field"),
        ({"jobType": "Command", "command": 3}, "command must be a string"),
        ({"jobType": "Magic"}, "jobType must be one of"),
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


def _cluster(name: str, size: str = "STANDARD_DS3_V2", nodes: int = 1) -> AmlCompute:
    return AmlCompute(name=name, size=size, min_instances=0, max_instances=nodes)


def _job(run: str, **more: Any) -> Any:
    return command(command=run, environment="tools:1", compute="cpu", **more)


def _pipeline(last: str) -> Any:
    write = command(
        name="write",
        command="printf ${{inputs.number}} > ${{outputs.made}}/number",
        environment="tools:1",
        inputs={"number": Input(type="integer", default=1)},
        outputs={"made": Output(type="uri_folder")},
    )
    read = command(
        name="read",
        command=f"{last} # ${{{{inputs.given}}}}",
        environment="tools:1",
        inputs={"given": Input(type="uri_folder")},
    )

    def chain() -> None:
        first = write(number=42)
        first.name = "write"
        second = read(given=first.outputs.made)
        second.name = "read"

    return dsl.pipeline(default_compute="cpu")(chain)()


def _account(azureml: AzureML) -> str:
    provider = "providers/Microsoft.Storage/storageAccounts"
    return f"{azureml.scope.group_id}/{provider}/{azureml.storage.account}"


def _arm(
    azureml: AzureML, method: str, path: str, body: dict[str, Any] | None = None
) -> tuple[int, Any]:
    """Azure Resource Manager without a client in between."""
    import requests

    token = azureml.credential().get_token(f"{azureml.url}/.default").token
    answer = requests.request(
        method,
        f"{azureml.url}{path}",
        data=json.dumps(body) if body else None,
        headers={"Authorization": f"Bearer {token}"},
        verify=str(azureml.certificate.file),
        timeout=10,
    )
    return answer.status_code, answer.json()
