"""A submission to Azure ML that fails half-way, or is canceled: the records say what is true."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import parse_qs
from urllib.request import Request, urlopen

import pytest
from azure.ai.ml.entities import AzureBlobDatastore
from azure.storage.blob import generate_account_sas

from edgeloop.errors import ComputeRefused, ComputeUnavailable, JobNameTaken
from edgeloop.jobs.client import Jobs
from edgeloop.jobs.spec import JobSpec, spec_of
from edgeloop.settings import Settings
from edgeloop.store import AzureLocation
from tests.jobs.test_azureml import SIZE
from tests.jobs.waiting import end_all, eventually
from tests.peers.azureml import AzureML
from tests.peers.azurite import Azurite

Open = Callable[[], Jobs]


@pytest.fixture
def open_jobs(
    azureml: AzureML, azure_storage: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Each is as another process would be."""
    (folder := tmp_path / "project").mkdir()
    (folder / "quick.py").write_text("print('done')")
    cloud = {"kind": "azureml", "cluster": "cpu", "size": SIZE, "max_nodes": 2, "patience": "3s"}
    (folder / "edgeloop.yaml").write_text(json.dumps({"computes": {"cloud": cloud}}))
    account = azure_storage.connection_string_of(azure_storage.new_account())
    monkeypatch.setenv("MODEL_STORAGE_CONNECTION_STRING", account)
    yield lambda: Jobs(Settings.load(folder))
    azureml.faults.clear()
    end_all(Jobs(Settings.load(folder)))


def spec(jobs: Jobs, **fields: object) -> JobSpec:
    document = {"script": "quick.py", "compute": "cloud", **fields}
    return spec_of(document, jobs.settings.project, "quick.py")


def states(jobs: Jobs) -> dict[str, str]:
    return {run.name: run.state for run in jobs.select(()).runs}


def test_what_azure_took_before_it_refused_the_rest_is_not_said_to_have_failed(
    azureml: AzureML, open_jobs: Open
):
    jobs = open_jobs()
    azureml.faults.fail(next=1, status=400, method="PUT", containing="/jobs/s-2-")
    with pytest.raises(ComputeRefused):
        jobs.submit(spec(jobs, name="s", sweep={"n": [1, 2, 3]}))
    jobs.wait(jobs.select(()).runs, timeout_s=60)
    assert states(jobs) == {"s-1": "completed", "s-3": "completed"}
    [again] = jobs.wait(jobs.submit(spec(jobs, name="s-2")), timeout_s=60)  # its name is free
    assert again.state == "completed"


def test_a_job_whose_taking_nobody_heard_of_is_found_again(azureml: AzureML, open_jobs: Open):
    jobs = open_jobs()
    jobs.wait(jobs.submit(spec(jobs, name="first")), timeout_s=60)  # the cluster is there
    azureml.faults.lose_answers("PUT", "/jobs/")
    with pytest.raises(ComputeUnavailable):
        jobs.submit(spec(jobs, name="lost"))
    azureml.faults.clear()
    after = open_jobs()
    after.wait([after.runs.get("lost")], timeout_s=60)
    with pytest.raises(JobNameTaken):  # it is there after all
        after.submit(spec(after, name="lost"))
    assert states(after)["lost"] == "completed"


def test_a_job_that_did_not_reach_azure_leaves_its_name_to_the_next(
    azureml: AzureML, open_jobs: Open
):
    jobs = open_jobs()
    jobs.wait(jobs.submit(spec(jobs, name="first")), timeout_s=60)
    azureml.faults.network_away()
    with pytest.raises(ComputeUnavailable):
        jobs.submit(spec(jobs, name="again"))
    azureml.faults.network_back()
    after = open_jobs()
    [run] = after.wait(after.submit(spec(after, name="again")), timeout_s=60)
    assert run.state == "completed"
    assert states(after) == {"first": "completed", "again": "completed"}


def test_a_job_that_is_canceled_while_its_cluster_is_made_does_not_run(
    azureml: AzureML, open_jobs: Open
):
    jobs, other = open_jobs(), open_jobs()
    azureml.computes.creating_takes_s = 600
    sending = threading.Thread(target=lambda: jobs.submit(spec(jobs, name="unwanted")))
    sending.start()
    eventually(lambda: azureml.count("PUT", "/computes/"))
    run = other.runs.get("unwanted")
    assert other.refresh([run])[0].status.reason == "on its way to the compute"
    other.wait(other.cancel([run]), timeout_s=60)
    assert states(other) == {"unwanted": "canceled"}
    azureml.faults.never_start = "no capacity in this region"
    azureml.computes.cluster("cpu").ready_at = 0.0
    sending.join()
    assert azureml.wait(run.record.id).status == "Canceled"


@pytest.mark.soak
def test_a_conda_file_with_python_3_10_and_packages_is_what_the_script_runs_in(
    azureml: AzureML, open_jobs: Open
):
    """With an interpreter of Ubuntu and wheels of PyPI for it, since no conda and no channel can
    be had here: what conda itself would solve, and what only a channel has, stays unproven."""
    jobs = open_jobs()
    code = jobs.settings.project
    (code / "env.yaml").write_text(
        "channels: [conda-forge]\ndependencies: [python=3.10, numpy=2.2, pip, {pip: [pyyaml]}]\n"
    )
    (code / "quick.py").write_text(
        "import sys, numpy, yaml\n"
        "print('runs on', sys.version_info[:2], numpy.__version__[:3], yaml.safe_load('[1]'))\n"
    )
    environment = {"conda": "env.yaml"}
    [run] = jobs.wait(jobs.submit(spec(jobs, name="old", environment=environment)), timeout_s=120)
    log = b"".join(jobs.log(run).more()).decode()
    assert run.state == "completed", log + jobs.compute_log(run)
    assert "runs on (3, 10) 2.2 [1]" in log
    (code / "env.yaml").write_text("dependencies: [python=3.10, numpy>=2.4]\n")
    [run] = jobs.wait(jobs.submit(spec(jobs, name="new", environment=environment)), timeout_s=120)
    assert run.state == "failed"
    assert "Image build failed" in run.status.reason and "numpy" in run.status.reason


def link_of(azureml: AzureML, job: str) -> str:
    """What the studio shows to all who can read the workspace's jobs."""
    return str(azureml.run(job).properties["environmentVariables"]["EDGELOOP_ORDER"])


def answer(url: str, method: str = "GET", body: bytes | None = None) -> int:
    request = Request(url, data=body, method=method, headers={"x-ms-blob-type": "BlockBlob"})
    try:
        with urlopen(request) as page:
            return int(page.status)
    except HTTPError as error:
        return error.code


def test_a_definition_that_all_can_read_gives_no_more_than_one_file_and_submit_says_so(
    azureml: AzureML, open_jobs: Open
):
    """Whoever has the link can read the order with the job's access; nothing else opens with it,
    and it leads nowhere when the job has ended."""
    jobs, told = open_jobs(), list[str]()
    azureml.faults.never_start = "NotEnoughNodes"
    [run] = jobs.submit(spec(jobs, name="seen"), options={"timeout": "1h"}, tell=told.append)
    eventually(lambda: run.record.id in azureml.jobs.runs)
    link = link_of(azureml, run.record.id)
    address, _, signature = link.partition("?")
    rights = parse_qs(signature)
    assert (rights["sp"], rights["sr"]) == (["r"], ["b"])
    ends = datetime.fromisoformat(rights["se"][0]) - datetime.now(UTC)
    assert timedelta(hours=24) < ends < timedelta(days=4), (
        "as long as it may wait and run, and a day"
    )
    assert answer(link) == 200
    folder, container = address.rpartition("/")[0], address.partition("/_jobs/")[0]
    assert answer(link, "PUT", b"{}") == 403 and answer(link, "DELETE") == 403
    assert answer(f"{folder}/ticket.json?{signature}") == 403
    assert answer(f"{container}?restype=container&comp=list&{signature}") == 403
    [warning] = [line for line in told if line.startswith("warning: ")]
    assert "can read, write, delete and list files in container models of account " in warning
    assert warning.endswith("'edgeloop azure setup' creates the datastore that avoids that")
    azureml.faults.clear()
    [run] = jobs.wait([run], timeout_s=60)
    assert run.state == "completed"
    assert answer(link) == 404


def test_a_signature_of_ones_own_is_handed_on_and_that_is_said(
    azureml: AzureML, open_jobs: Open, monkeypatch: pytest.MonkeyPatch
):
    """It cannot make a narrower one."""
    location = open_jobs().settings.location
    assert isinstance(location, AzureLocation)
    signature = generate_account_sas(
        location.account,
        account_key=location.key,
        resource_types="sco",
        permission="rwdlc",
        expiry=datetime.now(UTC) + timedelta(days=2),
    )
    monkeypatch.setenv(
        "MODEL_STORAGE_CONNECTION_STRING",
        f"BlobEndpoint={location.blob_endpoint};TableEndpoint={location.table_endpoint};"
        f"AccountName={location.account};SharedAccessSignature={signature}",
    )
    jobs, told = open_jobs(), list[str]()
    [run] = jobs.wait(jobs.submit(spec(jobs, name="own"), tell=told.append), timeout_s=60)
    assert run.state == "completed"
    assert "sig=" in json.loads(link_of(azureml, run.record.id))["access"]["options"]["sas_key"]
    [warning] = [line for line in told if line.startswith("warning: ")]
    assert "with the signature in this job's definition, until 20" in warning


def test_the_order_of_a_job_that_never_started_is_deleted_when_its_end_is_seen(
    azureml: AzureML, open_jobs: Open
):
    jobs = open_jobs()
    azureml.faults.never_start = "NotEnoughNodes"
    [run] = jobs.submit(spec(jobs, name="never"))
    eventually(lambda: run.record.id in azureml.jobs.runs)
    link = link_of(azureml, run.record.id)
    [run] = jobs.wait(jobs.cancel([run]), timeout_s=60)
    assert (run.state, answer(link)) == ("canceled", 404)


def test_with_a_datastore_there_is_no_link_and_nothing_to_say(azureml: AzureML, open_jobs: Open):
    jobs, told = open_jobs(), list[str]()
    location = jobs.settings.location
    assert isinstance(location, AzureLocation)
    datastore = AzureBlobDatastore(
        name="edgeloop", account_name=location.account, container_name=location.container
    )
    azureml.client().datastores.create_or_update(datastore)
    [run] = jobs.wait(jobs.submit(spec(jobs, name="quiet"), tell=told.append), timeout_s=60)
    assert run.state == "completed"
    assert not any("warning" in line for line in told)
    shown = json.dumps(azureml.jobs.shown(azureml.run(run.record.id)))
    assert "sig=" not in shown


def test_the_signature_of_a_job_has_the_four_rights_that_its_wrapper_uses(open_jobs: Open):
    """It reads code, writes results, lists those of an earlier attempt and deletes what the script
    deleted; a write creates files, too."""
    access = open_jobs().blobs.access(3600)
    assert sorted(parse_qs(access.options["sas_key"])["sp"][0]) == sorted("rwdl")
