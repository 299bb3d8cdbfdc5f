"""A node whose disk is full: the job's state says so, and whatever it wrote is in the store."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edgeloop.jobs.computes import make_compute
from edgeloop.jobs.records import Run, now
from edgeloop.jobs.watch import Status, current_status
from edgeloop.node.ticket import log_key, outputs_folder
from edgeloop.store import Blobs
from edgeloop.testing.contracts.compute import JobHarness
from tests.cli.running import Finished, run_main
from tests.jobs.runs import record
from tests.jobs.wrapped import Wrapped
from tests.peers.ray import RayCluster

DISK_BYTES = 12 << 20
# Writes a small file and then one that does not fit; the error has no room in the log either.
FILL = """\
import os, pathlib
outputs = pathlib.Path(os.environ["EDGELOOP_OUTPUT_DIR"])
(outputs / "made.txt").write_text("precious")
with open(outputs / "big.bin", "wb", buffering=0) as file:
    while True:
        if file.write(bytes(1 << 16)) < 1 << 16:
            raise OSError("no room")
"""


@contextlib.contextmanager
def small_disk(folder: Path, inside: Sequence[str] = (), size: int = DISK_BYTES) -> Iterator[None]:
    """A disk of its own for a folder; `inside` is what runs a program where the node is."""
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs"]
    subprocess.run([*inside, "mount", *options, str(folder)], check=True)
    try:
        yield
    finally:
        # In another namespace it went with the folder, which the wrapper removed.
        subprocess.run([*inside, "umount", "--lazy", "--quiet", str(folder)], check=False)


@pytest.fixture
def harness(tmp_path: Path, folder_blobs: Blobs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    compute = make_compute("local", {"cpus": 2, "memory": "1 GB"}, tmp_path / "state")
    harness = JobHarness(compute, folder_blobs, tmp_path)
    yield harness
    harness.close()


def check_end(harness: JobHarness, job: str, folder: Path) -> None:
    end = harness.wait_for_end(job)
    assert end.state == "failed"
    assert end.reason.startswith(f"the disk of {folder} is full (12.6 MB) on {end.node}; ")
    assert "exit code 1" in end.reason
    assert end.outputs_complete
    assert harness.blobs.read(f"{outputs_folder(job)}made.txt") == b"precious"
    assert (harness.blobs.size(f"{outputs_folder(job)}big.bin") or 0) > DISK_BYTES // 2
    assert f"edgeloop: failed: the disk of {folder} is full" in harness.blobs.read(
        log_key(job, 0)
    ).decode(errors="replace")


def test_a_job_that_fills_the_disk_of_this_machine_says_so(harness: JobHarness):
    order = harness.order("python", "-c", FILL)
    folder = harness.folder / "cache/jobs" / order.job
    with small_disk(folder):
        job = harness.submit(order)
        check_end(harness, job, folder)
        harness.wait_for(job, "failed")


def test_a_job_that_fills_the_disk_of_a_ray_node_says_so(
    ray_cluster: RayCluster, tmp_path: Path, folder_blobs: Blobs
):
    compute = make_compute("cluster", {"kind": "ray", "address": ray_cluster.address})
    harness = JobHarness(compute, folder_blobs, tmp_path)
    order = harness.order("python", "-c", FILL)
    folder = ray_cluster.folder / "cache/jobs" / order.job
    node = ("nsenter", f"--target={ray_cluster.first_process}", "--mount")
    with small_disk(folder, node):
        job = harness.submit(order)
        check_end(harness, job, folder)
        harness.wait_for(job, "failed")


def test_a_disk_that_is_full_before_the_job_starts_is_its_reason(
    tmp_path: Path, folder_blobs: Blobs
):
    wrapped = Wrapped(folder_blobs, tmp_path / "node")
    wrapped.order_script("print('never')")
    with small_disk(wrapped.scratch, size=1 << 20):
        code, shown = wrapped.run()
    assert code == 1
    assert f"edgeloop: {wrapped.scratch}: No space left on device" in shown
    end = wrapped.final()
    assert end.state == "failed"
    expected = f"cannot keep the job's files: {wrapped.scratch}: No space left on device"
    assert end.reason.endswith(expected)


def test_a_rescue_that_fails_is_the_state_of_that_job_alone(harness: JobHarness):
    lost = harness.send("python", "-c", "raise SystemExit(3)")
    sound = harness.hold("sound")
    harness.wait_for(lost, "failed")
    harness.wait_until_runs("sound")
    harness.blobs.delete([f"_jobs/{lost}/state.json"])
    broken = harness.folder / "cache/jobs" / lost
    with small_disk(broken):
        (broken / "lock").mkdir()
        (broken / "log.txt").mkdir()  # anything that the rescue cannot work with
        runs = [
            Run(replace(record(job, job), created=now()), Status("running"))
            for job in (lost, sound)
        ]
        failed, running = current_status(harness.blobs, harness.compute, runs)
    assert failed.state == "failed"
    assert (
        f"its files could not be collected: [Errno 21] Is a directory: '{broken}" in failed.reason
    )
    assert running.state in ("preparing", "running")
    harness.release("sound")


def test_every_command_on_jobs_works_after_one_filled_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def edgeloop(*words: str) -> Finished:
        return run_main(words, monkeypatch, capfd)

    project, cache = tmp_path / "project", tmp_path / "cache"
    project.mkdir()
    (project / "fill.py").write_text(FILL)
    (project / "sound.py").write_text("open('outputs/a.txt', 'w').write('a')")
    monkeypatch.setenv("EDGELOOP_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("EDGELOOP_CACHE", str(cache))
    monkeypatch.chdir(project)
    with small_disk(cache):
        assert edgeloop("run", "sound.py", "--name", "sound").code == 0
        filled = edgeloop("run", "fill.py", "--name", "filled")
        assert filled.code == 1
        said = f"the disk of {cache}/jobs/"
        assert "failed in 0:" in filled.err and said in filled.err, filled.err
        rows = {row["name"]: row for row in edgeloop("job", "status", "all", "--json").json}
        assert (rows["sound"]["state"], rows["filled"]["state"]) == ("completed", "failed")
        assert rows["filled"]["reason"].startswith(said)
        assert "is full (12.6 MB)" in rows["filled"]["reason"]
        assert edgeloop("job", "results", "all").code == 0
        assert (project / "runs/filled/outputs/made.txt").read_text() == "precious"
        assert said in edgeloop("job", "logs", "filled").out
        assert edgeloop("job", "abort", "filled").code == 0
        assert edgeloop("run", "sound.py", "--name", "after").code == 0, "there is room again"
        assert edgeloop("job", "remove", "filled").code == 0
