"""Many jobs on Azure ML: pipelines, their steps, and how few calls it takes to know them all."""

from __future__ import annotations

import pytest

from edgeloop.jobs.computes import Compute, JobOrder, ObservedState, Resources, make_compute
from edgeloop.node.ticket import FINAL_STATES, log_key
from edgeloop.store import Blobs
from edgeloop.testing.contracts.compute import HOLD, LIMIT_S, JobHarness
from tests.jobs.test_azureml import SIZE, folder_blobs, patient_cloud
from tests.peers.azureml import AzureML
from tests.peers.process import wait_until

__all__ = ["folder_blobs", "patient_cloud"]  # fixtures


def compute_of(**settings: object) -> Compute:
    usual = {"kind": "azureml", "cluster": "cpu", "size": SIZE, "max_nodes": 4, "pipeline": True}
    return make_compute("cloud", {**usual, **settings})


@pytest.fixture
def harness(azureml: AzureML, folder_blobs: Blobs, tmp_path):
    harness = JobHarness(compute_of(), folder_blobs, tmp_path)
    yield harness
    harness.close()


def send(harness: JobHarness, *commands: tuple[str, ...]) -> list[str]:
    orders = [harness.order("python", "-c", *command) for command in commands]
    harness.compute.submit_many(orders)
    harness.sent += [order.job for order in orders]
    return [order.job for order in orders]


def states(compute: Compute, jobs: list[str]) -> list[str | None]:
    return [compute.states(jobs)[job].state for job in jobs]


def test_a_batch_is_one_pipeline_and_each_step_has_its_own_end(
    harness: JobHarness, azureml: AzureML
):
    held = str(harness.folder / "held")
    jobs = send(harness, ("print('one')",), ("raise SystemExit(7)",), (HOLD, held))
    assert [run.kind for run in azureml.jobs.runs.values() if not run.parent] == ["Pipeline"]
    stranger = compute_of()  # as another process: it knows nothing but the ids
    wait_until(
        lambda: states(stranger, jobs) == ["completed", "failed", "running"], LIMIT_S, "the ends"
    )
    assert harness.wait_for_end(jobs[1]).exit_code == 7
    assert "exit code 7" in stranger.states(jobs)[jobs[1]].reason
    assert b"one" in harness.blobs.read(log_key(jobs[0], 0))
    assert "one" in stranger.logs(jobs[0])
    stranger.cancel([jobs[2]])
    wait_until(lambda: states(stranger, jobs)[2] == "canceled", LIMIT_S, "the step to end")
    stranger.forget(jobs)
    assert set(stranger.states(jobs).values()) == {ObservedState(None)}


def test_steps_wait_for_nodes_and_a_whole_pipeline_is_canceled_with_one_call(
    harness: JobHarness, azureml: AzureML
):
    names = [f"held-{number}" for number in range(6)]
    jobs = send(harness, *((HOLD, str(harness.folder / name)) for name in names))
    wait_until(lambda: states(harness.compute, jobs).count("running") == 4, LIMIT_S, "four to run")
    waiting = [seen for seen in harness.compute.states(jobs).values() if seen.state == "queued"]
    assert all("4 of 4 nodes of cpu are busy" in seen.reason for seen in waiting)
    azureml.requests.clear()
    compute_of().cancel(jobs)
    assert azureml.count("POST", "/cancel") == 1
    wait_until(
        lambda: set(states(harness.compute, jobs)) == {"canceled"}, LIMIT_S, "all to be canceled"
    )


def test_the_same_batch_sent_twice_runs_once_and_its_parts_are_registered_once(
    harness: JobHarness, azureml: AzureML
):
    code = "import sys; open(sys.argv[1], 'a').write('ran\\n')"
    orders = [harness.order("python", "-c", code, str(harness.folder / f"{n}")) for n in range(2)]
    for compute in (harness.compute, compute_of()):
        compute.submit_many(orders)
    harness.sent += [order.job for order in orders]
    for order in orders:
        harness.wait_for(order.job, "completed")
    assert [(harness.folder / f"{n}").read_text() for n in range(2)] == ["ran\n", "ran\n"]
    assert azureml.count("PUT", "/components/") == 1
    assert azureml.count("PUT", "/environments/") == 1


def test_pipelines_are_cut_at_their_limit_and_by_what_their_steps_need(
    azureml: AzureML, folder_blobs: Blobs, tmp_path
):
    harness = JobHarness(compute_of(steps=2), folder_blobs, tmp_path)
    orders = [harness.order("python", "-c", "pass") for _ in range(3)]
    pair = harness.order("python", "-c", "pass", resources=Resources(nodes=2))
    harness.compute.submit_many([*orders, pair])
    harness.sent += [order.job for order in (*orders, pair)]
    steps = [
        len(azureml.jobs.children(run.name)) or 1
        for run in list(azureml.jobs.runs.values())
        if run.kind == "Pipeline"
    ]
    assert len(steps) == 3
    for order in (*orders, pair):
        harness.wait_for(order.job, "completed")


def test_steps_ask_for_the_identity_and_the_spot_nodes_that_single_jobs_ask_for(
    harness: JobHarness, azureml: AzureML
):
    harness.compute = compute_of(serverless=True, spot=True, identity=True)
    azureml.faults.never_start = "no capacity in this region"
    send(harness, ("pass",), ("pass",))
    pipeline = next(run for run in azureml.jobs.runs.values() if run.kind == "Pipeline")
    for step in pipeline.properties["jobs"].values():
        assert step["identity"] == {"identity_type": "Managed"}
        assert step["queue_settings"] == {"job_tier": "Spot"}


def test_two_hundred_jobs_are_known_with_a_few_calls(azureml: AzureML, harness: JobHarness):
    orders: list[JobOrder] = [harness.order("python", "-c", "pass") for _ in range(2)]
    harness.compute.submit_many(orders)
    harness.sent += [order.job for order in orders]
    for order in orders:
        harness.wait_for(order.job, "completed")
    alone = compute_of(pipeline=False)
    azureml.faults.never_start = "no capacity in this region"
    known = [harness.order("python", "-c", "pass") for _ in range(6)]
    alone.submit_many(known)
    harness.sent += [order.job for order in known]
    queue = [azureml.run(order.job) for order in known]
    wait_until(lambda: all(run.waits_for for run in queue), LIMIT_S, "all to be queued")
    asked = [order.job for order in (*orders, *known)]
    asked += [f"old-{number}" for number in range(192)]
    azureml.requests.clear()
    found = compute_of().states(asked)
    assert {found[order.job].reason for order in known} == {"no capacity in this region"}
    assert sum(seen.state is None for seen in found.values()) == 192
    # workspace, its addresses, two batches, our pipelines (the SDK asks for the workspace again),
    # the steps of one
    assert azureml.count() <= 7
    harness.compute.cancel([order.job for order in known])
    azureml.faults.never_start = ""
    wait_until(
        lambda: all(s.state in FINAL_STATES for s in harness.compute.states(asked[:8]).values()),
        LIMIT_S,
        "their ends",
    )
