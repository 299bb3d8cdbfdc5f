"""Ray Jobs, on a real cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from edgeloop.errors import BadSetting, ComputeUnavailable
from edgeloop.jobs.bundle import bootstrap_command
from edgeloop.jobs.client import Jobs
from edgeloop.jobs.computes import Resources, make_compute
from edgeloop.jobs.computes.base import order_variables
from edgeloop.jobs.computes.ray import last_line
from edgeloop.jobs.records import now
from edgeloop.node.ticket import Pace, log_key, outputs_folder, wrapper_key
from edgeloop.settings import Settings
from edgeloop.store import Access
from edgeloop.testing.contracts.compute import (
    LIMIT_S,
    TIDY,
    ComputeContract,
    JobHarness,
    processes_with,
)
from tests.cli.running import run_main
from tests.jobs.runs import record
from tests.peers.ports import free_port
from tests.peers.process import wait_until
from tests.peers.ray import CPUS, RayCluster
from tests.peers.service import Service

# Names of variables in which the order, or anything that quotes it, can be found.
LEAKS = """\
import os
marks = ('EDGELOOP_ORDER', 'gcs://', 'LocalStore')
print('LEAKS', [n for n, v in os.environ.items() if any(mark in n + v for mark in marks)])
print('FILES', [f for p in os.environ['PYTHONPATH'].split(':') if 'runtime_resources' in p
                for f in os.listdir(p)])
"""

# As a real cluster says it only now and then.
ENDED = """Traceback (most recent call last):
  File "job_supervisor.py", line 402, in run
    job_process = psutil.Process(child_pid)
psutil.NoSuchProcess: process PID not found (pid=1107)
"""


@pytest.fixture
def compute(ray_cluster: RayCluster):
    return compute_at(ray_cluster.address)


def compute_at(address: str, **settings):
    return make_compute("cluster", {"kind": "ray", "address": address, **settings})


class TestRay(ComputeContract):
    everything = Resources(cpus=CPUS)
    too_much = Resources(gpus=1, custom={"snapdragon888": 2})
    too_much_says = "gpus 1 (the most is 0), snapdragon888 2 (the most is 1); its nodes have 1 × ("

    @pytest.mark.soak
    def test_twenty_jobs_canceled_at_once_all_end(self, harness: JobHarness):
        super().test_twenty_jobs_canceled_at_once_all_end(harness)

    def test_a_board_is_given_to_one_job_at_a_time(self, harness: JobHarness):
        board = Resources(cpus=0.1, custom={"snapdragon888": 1})
        harness.hold("one", resources=board)
        harness.wait_until_runs("one")
        two = harness.hold("two", resources=board)
        harness.wait_for(two, "queued")
        harness.release("one")
        harness.wait_until_runs("two")

    def test_the_command_sees_nothing_of_the_order(self, harness: JobHarness):
        job = harness.send("python", "-c", LEAKS)
        harness.wait_for(job, "completed")
        log = harness.blobs.read(log_key(job, 0))
        assert b"LEAKS []" in log and b"FILES []" in log

    def test_the_dashboard_does_not_show_the_access_to_the_store(
        self, harness: JobHarness, ray_cluster: RayCluster
    ):
        signature = "sv=2024-01-01&sr=c&sp=rwdl&sig=7Zq0planted0planted0planted0planted0%3D"
        # The dashboard, as the node sees it, is no store and says so at once.
        server = "http://127.0.0.1:8265/x"
        place = {"endpoint": server, "container_name": "c", "account_name": "x"}
        access = Access("AzureStore", {**place, "sas_key": signature})
        unknown = wrapper_key("0" * 64)  # so that its node tries to fetch it
        order = replace(harness.order("true", wrapper=unknown), access=access)
        harness.submit(order)
        assert order.job in ray_cluster.shown()
        assert "planted" not in ray_cluster.shown()
        reason = harness.wait_for(order.job, "failed").reason
        assert "planted" not in reason + harness.compute.logs(order.job) + ray_cluster.shown()

    @pytest.mark.soak
    def test_the_jobs_that_take_others_out_of_the_queue_are_cleared_away(
        self, harness: JobHarness, ray_cluster: RayCluster
    ):
        def sweeps() -> list[str]:
            with urllib.request.urlopen(f"{ray_cluster.address}/api/jobs/", timeout=30) as page:
                jobs = [(job["submission_id"], job["status"]) for job in json.load(page)]
            return [state for job, state in jobs if job and job.startswith("edgeloop-sweep-")]

        harness.hold("blocker", resources=self.everything)
        harness.wait_until_runs("blocker")
        waiting = harness.hold("waiting", resources=self.everything)
        harness.compute.cancel([waiting])
        assert sweeps()
        harness.wait_for(waiting, "canceled")
        going = {"PENDING", "RUNNING"}  # a busy cluster may have canceled it before
        wait_until(lambda: not going & set(sweeps()), LIMIT_S, "the sweep to end")
        harness.compute.forget([waiting])
        assert not sweeps()

    def test_an_elastic_cluster_refuses_nothing(self, ray_cluster: RayCluster):
        compute_at(ray_cluster.address, elastic=True).check(self.too_much)


@pytest.mark.soak
def test_a_job_is_not_lost_when_the_head_is_killed(folder_blobs, tmp_path):
    with RayCluster() as cluster:
        harness = JobHarness(compute_at(cluster.address), folder_blobs, tmp_path)
        job = harness.send("python", "-c", TIDY, str(tmp_path / "tidy"), "1")
        harness.wait_until_runs("tidy")
        cluster.kill_head()
        with pytest.raises(ComputeUnavailable) as away:
            harness.compute.states([job])
        assert str(away.value).startswith(
            f"the compute cluster cannot be reached: {cluster.address}"
        )
        assert "\n" not in str(away.value)
        assert harness.wait_for_end(job).state in ("canceled", "failed")
        assert folder_blobs.read(f"{outputs_folder(job)}last.txt") == b"tidy"
        wait_until(lambda: not processes_with(str(tmp_path / "tidy")), LIMIT_S, "its end")


def test_data_at_urls_is_copied_where_the_job_runs(ray_cluster: RayCluster, tmp_path: Path):
    computes = {"cluster": {"kind": "ray", "address": ray_cluster.address}}
    (tmp_path / "edgeloop.yaml").write_text(json.dumps({"computes": computes}))
    (tmp_path / "faces").mkdir()
    (tmp_path / "faces/1.txt").write_text("one")
    (tmp_path / "copy.sh").write_text('cp "$1/1.txt" "$2/2.txt"\n')
    options = {
        "compute": "cluster",
        "code": str(tmp_path),
        "args": ["{input:faces}", "{output:sent}"],
        "data": [{"url": f"file://{tmp_path}/faces", "mode": "download"}],
        "writes": [{"url": f"file://{tmp_path}/sent", "mode": "upload"}],
    }
    jobs = Jobs(Settings.load(tmp_path))
    [run] = jobs.submit(tmp_path / "copy.sh", options=options)
    [run] = jobs.wait([run], timeout_s=LIMIT_S)
    log = b"".join(jobs.log(run).more()).decode()
    assert run.state == "completed" and "fetched 1 file" in log, log
    assert (tmp_path / "sent/2.txt").read_text() == "one"


def test_the_command_line_ends_with_the_script_s_code_and_brings_back_its_results(
    ray_cluster: RayCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    computes = {"cluster": {"kind": "ray", "address": ray_cluster.address}}
    (tmp_path / "edgeloop.yaml").write_text(json.dumps({"computes": computes}))
    (tmp_path / "fail.sh").write_text("echo so far | tee outputs/part.txt; exit 3\n")
    monkeypatch.chdir(tmp_path)
    words = ("run", "fail.sh", "--compute", "cluster", "--name", "bad")
    done = run_main(words, monkeypatch, capfd)
    assert done.code == 3 and done.out.startswith("so far\n"), done.err
    assert (tmp_path / "runs/bad/outputs/part.txt").read_text() == "so far\n"


def test_a_job_that_outlived_its_head_is_aborted_through_the_store(
    ray_cluster: RayCluster, tmp_path: Path
):
    """The head that is back knows nothing of it: its wrapper runs on, as on a node of its own."""
    computes = {"cluster": {"kind": "ray", "address": ray_cluster.address}}
    (tmp_path / "edgeloop.yaml").write_text(json.dumps({"computes": computes}))
    settings = Settings.load(tmp_path)
    jobs = Jobs(settings)
    compute = make_compute("cluster", settings.compute_settings("cluster"))
    harness = JobHarness(compute, jobs.blobs, tmp_path)
    order = harness.order("python", "-c", TIDY, str(tmp_path / "orphan"), "0.5")
    facts = {"compute": "cluster", "store": str(settings.location), "created": now()}
    run = jobs.runs.add("orphan", lambda name, _: record(name, order.job, **facts))
    pace = Pace(heartbeat_s=0.3, log_s=0.3, outputs_s=0.3)
    environ = {**os.environ, **order_variables(order, pace), "EDGELOOP_CACHE": str(tmp_path / "c")}
    wrapper = subprocess.Popen(bootstrap_command(sys.executable), env=environ)
    try:
        harness.wait_until_runs("orphan")
        assert harness.seen(order.job).state is None
        [seen] = jobs.refresh([run])
        assert not seen.status.is_final
        [ended] = jobs.wait(jobs.cancel([seen]), timeout_s=LIMIT_S)
        assert ended.state == "canceled"
        assert jobs.blobs.read(f"{outputs_folder(order.job)}last.txt") == b"tidy"
        wrapper.wait(LIMIT_S)
    finally:
        wrapper.kill()


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("The actor never ran - it was cancelled before it started running.", "canceled"),
        ("The actor is dead because it was killed by `ray.kill`.", "canceled"),
        ("The actor is dead because its node has died.", "failed"),
        (ENDED, "canceled"),
        ("Traceback\nOSError: no memory", "failed"),
    ],
)
def test_a_job_that_ended_before_its_stop_reached_it_is_canceled_in_whatever_words(said, state):
    """Taken out of the queue, or over while Ray looked for its process."""
    job = {"submission_id": "a", "status": "FAILED", "message": said}
    if said == ENDED:
        job["error_type"] = "JOB_ENTRYPOINT_COMMAND_START_ERROR"
    else:
        job["message"] = f"Job supervisor actor died: {said}"
    with Service((200, {}, json.dumps([job]).encode())) as dashboard:
        assert compute_at(dashboard.url).states(["a"])["a"].state == state


def test_nobody_at_the_address_is_one_sentence():
    compute = compute_at(f"http://127.0.0.1:{free_port()}")
    for call in (lambda: compute.states(["a"]), lambda: compute.check(Resources())):
        with pytest.raises(ComputeUnavailable, match=r"127.0.0.1:\d+: Connection refused"):
            call()


@pytest.mark.parametrize("body", [b"<html>hello</html>", b'{"hello": 1}', b"[1]"])
def test_something_else_at_the_address_is_said(body):
    with (
        Service((200, {}, body)) as stranger,
        pytest.raises(ComputeUnavailable, match="is not Ray's dashboard"),
    ):
        compute_at(stranger.url).states(["a"])


@pytest.mark.parametrize("status", [401, 403])
def test_a_cluster_that_wants_a_token_says_so(status):
    with (
        Service((status, {}, b"no")) as stranger,
        pytest.raises(BadSetting, match=rf"\(status {status}\): check 'headers'"),
    ):
        compute_at(stranger.url).states(["a"])


def test_headers_are_sent_but_neither_shown_nor_given_to_another_address():
    with (
        Service((200, {}, b"[]")) as elsewhere,
        Service((302, {"Location": f"{elsewhere.url}/login"}, b"")) as stranger,
    ):
        compute = compute_at(stranger.url, headers={"Authorization": "Bearer hush"})
        with pytest.raises(BadSetting) as refusal:
            compute.states(["a"])
    assert stranger.asked[0][2]["authorization"] == "Bearer hush"
    assert elsewhere.asked == []
    assert "hush" not in str(refusal.value) + repr(compute._ray)


def test_a_traceback_comes_down_to_its_last_sentence():
    text = 'Traceback (most recent call last):\n  File "x.py", line 3\n    ^^^^\nOSError: no.\n.\n'
    assert last_line(text) == "OSError: no."
    with (
        Service((500, {}, text.encode())) as stranger,
        pytest.raises(ComputeUnavailable) as said,
    ):
        compute_at(stranger.url).states(["a"])
    assert "Ray said: OSError: no." in str(said.value)
    assert "Traceback" not in str(said.value)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "address is missing"),
        (
            {"address": "ray://host:10001"},
            "address must be the dashboard's, for example http://host:8265",
        ),
        ({"address": "auto"}, "address must be the dashboard's, for example http://host:8265"),
        ({"address": 8265}, "address must be a text"),
        ({"address": "http://h:1", "header": {}}, "unknown key 'header': did you mean 'headers'?"),
        ({"address": "http://h:1", "verify": "no"}, "verify must be true or false"),
        ({"address": "http://h:1", "headers": {"a": 1}}, "headers.a must be a text"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(settings, complaint):
    with pytest.raises(BadSetting) as refusal:
        make_compute("gpu", {"kind": "ray", **settings})
    assert str(refusal.value) == f"computes.gpu: {complaint}"
