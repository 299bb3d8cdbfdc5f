"""One runner as a process: started again when it dies, ended when it is told to, never orphaned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeloop.errors import BadInput, NoSuchDataset
from edgeloop.operate.fleet.launcher import RunnerOrder, RunnerProcess
from edgeloop.operate.fleet.start import prepared, settings_words
from edgeloop.settings import Settings
from edgeloop.testing.faces import make_faces
from edgeloop.workspace import Workspace
from tests.jobs.waiting import eventually

ORDER = RunnerOrder("night-1a", "faces", cpus=2, words=("--grace", "5", "--task", "tensors"))


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    """A program in the place of Python."""

    def make(script: str) -> str:
        file = tmp_path / "program"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        return str(file)

    return make


def until(process: RunnerProcess, condition: Callable[[], object], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, (process.state, process.note)
        process.poll()
        time.sleep(0.01)


def test_it_gets_its_words_and_its_name_and_the_secret_is_in_no_command(
    tmp_path: Path, program: Callable[[str], str]
):
    python = program(
        'echo "$@" "node=$EDGELOOP_NODE" "$(tr "\\0" " " </proc/$$/cmdline)"; sleep 99'
    )
    log = tmp_path / "log"
    process = RunnerProcess(ORDER, {"EDGELOOP_STORE": "top-secret", **os.environ}, log, python)
    until(process, lambda: log.is_file() and "\n" in log.read_text())
    said = log.read_text()
    words = (
        "-P -m edgeloop.operate.fleet.start --experiment faces --cpus 2 --grace 5 --task tensors"
    )
    assert said.startswith(f"{words} node=night-1a") and "top-secret" not in said
    assert process.state == "running"
    process.kill()
    assert (process.state, process.pid) == ("ended", None)


def test_what_dies_is_started_again_later_each_time(tmp_path: Path, program: Callable[[str], str]):
    now = [0.0]
    process = RunnerProcess(
        ORDER, {}, tmp_path / "log", program("echo no such device; exit 3"), clock=lambda: now[0]
    )
    for pause_s in (1, 2, 4):
        until(process, lambda: process.note)
        assert process.state == "waiting"
        assert process.note == (
            f"it ended with exit code 3 (no such device), and starts again in {pause_s} s"
        )
        now[0] += pause_s - 0.1
        assert process.poll() == "waiting"
        now[0] += 0.1
        assert process.poll() == "running" and process.note == ""


def test_a_drained_runner_may_finish_and_is_not_started_again(
    tmp_path: Path, program: Callable[[str], str]
):
    log = tmp_path / "log"
    python = program("trap 'echo finishing; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    process = RunnerProcess(ORDER, dict(os.environ), log, python)
    until(process, lambda: log.is_file() and "ready" in log.read_text())
    process.drain()
    assert process.state == "draining"
    until(process, lambda: process.state == "ended")
    assert "finishing" in log.read_text()


@pytest.mark.slow
def test_one_that_does_not_end_is_killed_with_its_children_after_its_grace(
    tmp_path: Path, program: Callable[[str], str]
):
    now = [0.0]
    log = tmp_path / "log"
    python = program("trap '' TERM; setsid sleep 98765 & echo $!; wait; while :; do sleep 1; done")
    process = RunnerProcess(ORDER, dict(os.environ), log, python, clock=lambda: now[0])
    until(process, lambda: log.is_file() and "\n" in log.read_text())
    child = int(log.read_text().split()[0])
    process.drain()
    now[0] += 34
    assert process.poll() == "draining"
    now[0] += 2
    assert process.poll() == "ended"
    eventually(lambda: not Path(f"/proc/{child}/stat").exists())


@pytest.mark.slow
def test_a_runner_dies_with_the_process_that_started_it(
    tmp_path: Path, program: Callable[[str], str]
):
    script = (
        "import sys, time; from pathlib import Path;"
        "from edgeloop.operate.fleet.launcher import RunnerOrder;"
        "from edgeloop.operate.fleet.launcher import RunnerProcess;"
        f"p = RunnerProcess(RunnerOrder('x', 'y'), {{}}, None, {program('exec sleep 98765')!r});"
        "p.poll(); print(p.pid, flush=True); time.sleep(99)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    runner = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    eventually(lambda: not Path(f"/proc/{runner}/stat").exists())


def test_a_program_that_is_not_there_is_said(tmp_path: Path):
    process = RunnerProcess(ORDER, {}, None, str(tmp_path / "nowhere"))
    assert process.poll() == "waiting"
    assert process.note.startswith("it cannot be started: No such file or directory")


def test_a_dataset_of_the_store_is_fetched_once_and_then_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EDGELOOP_STORE", f"sqlite:{tmp_path / 'store'}")
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    make_faces(tmp_path / "project/data/working/faces", 3, 32, seed=1)
    with Workspace(Settings.load(tmp_path)) as workspace:
        from edgeloop.node.datasets import Datasets

        folder = tmp_path / "project/data/working/faces"
        Datasets(workspace.store.blobs).push("working/faces", folder)
    words = prepared(["--experiment", "e", "--dataset", "faces@1", "--drain"])
    assert words[:4] == ["--experiment", "e", "--drain", "--dataset"]
    assert len(list(Path(words[4]).rglob("*.png"))) == len(list(folder.rglob("*.png"))) > 0
    assert prepared(["--dataset=faces"]) == words[3:], "the newest, from the cache"
    assert prepared(["--dataset", str(tmp_path)]) == ["--dataset", str(tmp_path)]
    with pytest.raises(NoSuchDataset):
        prepared(["--dataset", "hands@2"])
    with pytest.raises(BadInput, match="--dataset needs a value"):
        prepared(["--dataset"])


def test_settings_of_the_project_go_with_the_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    words = settings_words({"lease_seconds": 9.5, "task": "odd: 'text'"})
    assert prepared([*words, "--once"]) == ["--once"]
    settings = Settings.load()
    assert (settings.lease_seconds, settings.task) == (9.5, "odd: 'text'")
    assert settings.project.is_relative_to(tmp_path / "cache")
