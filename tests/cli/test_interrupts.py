"""Ctrl-C: exit code 130 everywhere, and one line that says what was kept."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click
import pytest

from edgeloop import Workspace
from edgeloop.cli.app import app
from edgeloop.cli.terminal import INTERRUPT_SENTENCES
from tests.cli.conftest import Edgeloop
from tests.cli.running import finished, run_command, start_command
from tests.nets import save_tiny
from tests.test_docs import commands_of

INTERRUPTED = """
import os, signal, sys
from pkgutil import resolve_name
from edgeloop.cli import main

owner, _, name = sys.argv.pop(1).rpartition(".")
place = resolve_name(owner)
real = getattr(place, name)

def interrupted(*arguments, **named):
    setattr(place, name, real)
    os.killpg(0, signal.SIGINT)  # as a terminal does it: every process of the group gets it
    return real(*arguments, **named)

setattr(place, name, interrupted)
main()
"""
NATIVE = "edgeloop._util.isolation.WorkerProcess._exchange"
PUT = "edgeloop.node.files.FolderBlobs.put"


def interrupting(real: Callable[..., Any]) -> Callable[..., Any]:
    """Ctrl-C where the command calls this. Threads of servers that run in this process sleep, too:
    a signal from one of them would come at any moment, and end the test process."""
    sleep = time.sleep

    def call(*arguments: Any, **named: Any) -> Any:
        if real is not sleep or threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)
        return real(*arguments, **named)

    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupts")
    (folder / "train.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    (folder / "data/working/some").mkdir(parents=True)
    for number in range(3):
        (folder / f"data/working/some/{number}.txt").write_text(str(number))
    with Workspace.open(f"sqlite:{folder / '.edgeloop'}") as workspace:
        workspace.upload(save_tiny(folder / "net.onnx"), "calm-heron")
    save_tiny(folder / "other.onnx", 1)
    return folder


@pytest.mark.parametrize(
    ("target", "line"),
    [
        (NATIVE, "bench net.onnx --device htp:qcs8550"),
        (PUT, "data push working/some"),
        ("edgeloop.cli.status.opened", "status"),
    ],
    ids=lambda value: value.split()[0],
)
def test_a_process_ends_with_130_and_says_what_was_kept(folder: Path, target: str, line: str):
    words = [target, *line.split()]
    ended = finished(start_command(words, folder, {}, INTERRUPTED, has_session=True))
    verbs = [word for word in line.split() if word.isalpha()][:2]
    sentence = INTERRUPT_SENTENCES.get(" ".join(verbs)) or INTERRUPT_SENTENCES[verbs[0]]
    assert (ended.code, ended.err.splitlines()) == (130, [sentence])


@pytest.mark.parametrize(
    ("target", "line", "kept"),
    [
        ("time.sleep", "status --watch", "runners continue"),
        ("time.sleep", "devices --watch", "runners continue"),
        ("time.sleep", "queue --watch", "runners continue"),
        (PUT, "upload other.onnx", "models uploaded so far are kept"),
        (
            "edgeloop.runner.compare.compare_model",
            "compare calm-heron",
            "no comparison was written",
        ),
        ("edgeloop.view.report.read_evidence", "report", "no report was written"),
        ("edgeloop.view.front.pareto_of", "pareto", "whole or not at all"),
        ("edgeloop.view.portal.server.bound", "portal", "the portal is closed"),
        ("edgeloop.cli.tuning._fetched", "layers calm-heron", "no result was written"),
        ("edgeloop.tuning.advice.advise_model", "advise net.onnx", "no file was written"),
        ("edgeloop.tuning.precision.tune_precision", "precision net.onnx", "no plan was written"),
    ],
    ids=lambda value: value.split()[0] if "." not in value.split()[0] else "at",
)
def test_every_command_says_what_it_leaves_behind(
    folder: Path,
    edgeloop: Edgeloop,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    line: str,
    kept: str,
):
    """The signal comes to this process while the command is at work."""
    monkeypatch.chdir(folder)
    owner, _, name = target.rpartition(".")
    monkeypatch.setattr(resolve_name(owner), name, interrupting(resolve_name(target)))
    said = edgeloop(*line.split())
    assert said.code == 130, said.err
    assert said.err.startswith("Stopped") and kept in said.err and len(said.err.splitlines()) == 1


def test_jobs_continue_when_nobody_watches_any_more(
    folder: Path, edgeloop: Edgeloop, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    submitted = run_command(["job", "submit", "train.py", "--name", "long"], folder, {})
    assert submitted.code == 0, submitted.err
    try:
        with monkeypatch.context() as patched:
            patched.setattr("time.sleep", interrupting(time.sleep))
            for line in ("job logs long -f", "job wait long", "job status --watch"):
                said = edgeloop(*line.split())
                assert (said.code, said.err.splitlines()[-1]) == (
                    130,
                    "Stopped; the jobs continue. See: edgeloop job status",
                ), line
    finally:
        edgeloop("job", "abort", "long")


def test_no_answer_to_a_question_is_no_failure_of_the_program(
    folder: Path, edgeloop: Edgeloop, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: signal.raise_signal(2))
    monkeypatch.setattr("edgeloop.cli.models.confirm_deletion", lambda *_: click.confirm("?"))
    with Workspace.open() as workspace:
        for name in ("a", "b"):
            workspace.store.models("default").insert(name, {"name": name, "status": "new"})
    assert edgeloop("delete", "a", "b").code == 130


def test_every_command_is_in_the_table():
    assert set(INTERRUPT_SENTENCES) == set(commands_of(app))
