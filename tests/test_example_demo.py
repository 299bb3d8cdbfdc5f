"""`make demo` on a small scale: its commands on an empty table; and all of it, killed in its
search, continued to its end, and asked again."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgeloop import Workspace
from tests.cli.running import environment

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[1] / "examples/demo.py"
WORDS = ("search.budget=2", "search.pool=1", "search.workers=1", "search.options.depth=[1]")
WORDS += ("objectives.val_iou.train.steps=2",)
SMALL = ("--faces", "24", "--images", "4", *WORDS)


def test_its_commands_can_be_run_and_the_next_ones_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """The search is only planned, and the runners find nothing to do."""
    monkeypatch.setenv("EDGELOOP_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    demo, folder = runpy.run_path(str(DEMO)), tmp_path / "demo"
    folder.mkdir()
    (folder / "edgeloop.yaml").write_text("experiment: demo\n")
    shutil.copyfile(demo["SEARCH"], folder / "demo.yaml")
    with Workspace.open(f"sqlite:{folder / '.edgeloop'}", "demo") as workspace:
        row = {"name": "calm-heron.trained", "status": "candidate", "f1_10k": 0.5, "val_iou": 0.4}
        workspace.store.models("demo").insert("calm-heron.trained", row)
        workspace.store.blobs.put("demo/calm-heron.trained/net.onnx", b"its file")
    demo["edgeloop"](folder, "data", "faces", demo["FACES"], "--count", "8", "--size", "64")
    demo["edgeloop"](folder, "search", "demo.yaml", *WORDS, "--dry-run")
    demo["evaluate"](folder, images=4)
    demo["say_next"](folder)
    said = capfd.readouterr().out
    assert "2 candidates of the space hourglass" in said
    assert "0 of 1 models evaluated\n" in said
    assert " compare calm-heron.trained --dataset " in said


def started(tmp_path: Path) -> subprocess.Popen[str]:
    places = {"EDGELOOP_STATE": str(tmp_path / "state"), "EDGELOOP_CACHE": str(tmp_path / "cache")}
    return subprocess.Popen(
        [sys.executable, DEMO, *SMALL],
        cwd=tmp_path,
        env=environment(places),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.soak
def test_the_demo_continues_after_a_kill_and_says_what_to_do_next(tmp_path: Path):
    killed = started(tmp_path)
    assert killed.stdout is not None
    assert any(line.startswith("   1/2  ") for line in killed.stdout)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait(60)
    output, _ = started(tmp_path).communicate(timeout=280)
    assert "   2/2  " in output and "   1/2  " not in output and "id_" not in output, output
    assert "0 of " in output and " models evaluated\n" in output
    _, _, after = output.partition("\nDone in ")
    _, first, second, third = [line for line in after.splitlines() if line.startswith("  ")]
    assert " status" in first and " portal --open" in second and ".trained --dataset" in third
    assert (tmp_path / "demo/front.png").stat().st_size > 1000
    again, _ = started(tmp_path).communicate(timeout=60)
    assert again.startswith("The demo has run. Its results are in demo;") and first in again
    shown = subprocess.run(
        [sys.executable, "-m", "edgeloop", "status"],
        cwd=tmp_path / "demo",
        env=environment({}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ".trained" in shown.stdout and "complete" in shown.stdout
