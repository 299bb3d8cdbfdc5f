"""The compute passes the suite that Edgeloop's own computes pass."""

import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CPUS, Cluster

from edgeloop.errors import BadSetting, ComputeUnavailable
from edgeloop.jobs.computes import make_compute
from edgeloop.jobs.computes.base import Compute
from edgeloop.node.ticket import Resources
from edgeloop.testing import wait_until
from edgeloop.testing.contracts.compute import ComputeContract, JobHarness


@pytest.fixture
def compute(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compute:
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    settings = {
        "kind": "slurm",
        "python": sys.executable,
        "bin": str(cluster.bin),
        "options": ["--export=PATH,HOME,EDGELOOP_CACHE"],
    }
    return make_compute("cluster", settings, tmp_path / "state")


class TestSlurm(ComputeContract):
    everything = Resources(cpus=CPUS)
    too_much = Resources(gpus=1, custom={"board": 2})
    too_much_says = "gpus 1 (the most is 0), board 2 (the most is 1); its largest node has cpus 4"

    def test_a_board_is_given_to_one_job_at_a_time(self, harness: JobHarness) -> None:
        board = Resources(custom={"board": 1})
        harness.hold("one", resources=board)
        harness.wait_until_runs("one")
        two = harness.hold("two", resources=board)
        harness.wait_for(two, "queued")
        harness.release("one")
        harness.wait_until_runs("two")

    def test_the_order_is_readable_by_its_owner_alone_and_gone_in_the_end(
        self, harness: JobHarness, tmp_path: Path
    ) -> None:
        job = harness.hold("one")
        harness.wait_until_runs("one")
        order = tmp_path / "state" / job / "order.json"
        assert stat.S_IMODE(order.stat().st_mode) == 0o600
        harness.release("one")
        harness.wait_for(job, "completed")
        assert not order.exists()

    def test_a_job_that_slurm_kills_has_failed_with_slurms_word(
        self, harness: JobHarness, cluster: Cluster
    ) -> None:
        job = harness.hold("one")
        harness.wait_until_runs("one")
        cluster.call("scancel", "--batch", "--signal=KILL", f"--name={job}")
        assert harness.wait_for(job, "failed").reason.startswith("Slurm says: failed (")

    def test_a_controller_that_is_away_is_one_sentence(
        self, compute: Compute, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("edgeloop_slurm.LIMIT_S", 1.0)
        cluster.signal(signal.SIGSTOP, "slurmctld")
        try:
            with pytest.raises(ComputeUnavailable, match="squeue did not answer within 1 s"):
                compute.states(["a"])
        finally:
            cluster.signal(signal.SIGCONT, "slurmctld")
        wait_until(lambda: "idle" in cluster.call("sinfo", "-h", "-o", "%T"), 30, "the cluster")


def test_a_script_runs_from_the_command_line(cluster: Cluster, tmp_path: Path) -> None:
    """As a user does: a script, an edgeloop.yaml, and its outputs back here."""
    (tmp_path / "edgeloop.yaml").write_text(
        f"computes:\n  cluster: {{kind: slurm, python: {sys.executable}, bin: {cluster.bin},"
        f" folder: {tmp_path / 'slurm'}}}\n"
    )
    script = (
        "import pathlib; print('hello'); pathlib.Path('outputs/a.txt').write_text('from Slurm')"
    )
    (tmp_path / "hello.py").write_text(f"{script}\n")
    edgeloop = str(Path(sys.executable).with_name("edgeloop"))
    command = [edgeloop, "run", "hello.py", "--compute", "cluster", "--name", "first"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hello" in done.stdout
    assert [path.read_text() for path in tmp_path.glob("runs/**/a.txt")] == ["from Slurm"]


def test_a_machine_without_slurm_is_one_sentence(tmp_path: Path) -> None:
    compute = make_compute("cluster", {"kind": "slurm", "bin": str(tmp_path)}, tmp_path)
    with pytest.raises(ComputeUnavailable, match="sinfo is not installed here"):
        compute.check(Resources())
    assert not list(tmp_path.iterdir())


def test_a_misspelt_setting_is_named() -> None:
    with pytest.raises(BadSetting, match=r"computes.cluster: .*'partitoin'.* 'partition'"):
        make_compute("cluster", {"kind": "slurm", "partitoin": "gpu"})
