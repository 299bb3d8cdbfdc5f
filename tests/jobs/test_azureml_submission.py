"""A submission to Azure ML that fails half-way, or is canceled: the records say what is true."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeloop.errors import ComputeRefused, ComputeUnavailable, JobNameTaken
from edgeloop.jobs.client import Jobs
from edgeloop.jobs.spec import JobSpec, spec_of
from edgeloop.settings import Settings
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
