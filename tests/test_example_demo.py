"""`make demo` on a small scale: killed in its search, continued to its end, and asked again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import environment

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[1] / "examples/demo.py"
SMALL = ("--faces", "24", "--images", "4", "search.budget=2", "search.pool=1", "search.workers=1")
SMALL += ("search.options.depth=[1]", "objectives.val_iou.train.steps=2")


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


def test_the_demo_continues_after_a_kill_and_says_what_to_do_next(tmp_path: Path):
    killed = started(tmp_path)
    assert killed.stdout is not None
    assert any(line.startswith("   1/2  id_") for line in killed.stdout)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait(60)
    output, _ = started(tmp_path).communicate(timeout=280)
    assert "   2/2  id_" in output and "   1/2  id_" not in output, output
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
