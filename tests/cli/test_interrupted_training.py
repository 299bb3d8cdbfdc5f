"""Ctrl-C at a real training: exit code 130, and what was kept is there for the next run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.plan import load_weights
from edgeloop.search.nets.spaces import build
from edgeloop.testing.faces import make_faces
from tests.cli.running import command_line, environment

pytestmark = pytest.mark.slow

SIDE = 32
KEPT = "Stopped; trained/checkpoint.pt is kept. Run it again to continue from there."
OF_FRONT = "Stopped; models that were trained are kept. Run it again for the others."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with a dataset, two architectures, and a search whose front they are."""
    make_faces(tmp_path / "data/working/faces", 48, SIDE, seed=3)
    search = tmp_path / "searches/laptop"
    (search / "pareto").mkdir(parents=True)
    for channels in (4, 8):
        arch = _architecture(channels)
        arch.save(search / f"pareto/{arch.id}.json")
        arch.save(tmp_path / "arch.json")
    objectives = {"params": {}, "val_iou": {"train": {"steps": 4, "device": "cpu"}}}
    document = {"search": {"name": "laptop", "size": SIDE, "budget": 2}, "objectives": objectives}
    (search / "search.yaml").write_text(json.dumps({**document, "data": "working/faces"}))
    return tmp_path


def _architecture(channels: int) -> Architecture:
    params: dict[str, bool | int | float | str | None]
    params = {"depth": 2, "stem_stride": 2, "base_channels": channels, "hourglasses": 1}
    params |= {"h0_last_layers": 0, "h0_down1_factor": 1.5, "h0_down2_factor": 1.5}
    for block in ("down1", "down2", "skip1", "up1"):
        params |= {f"h0_{block}_layers": 1, f"h0_{block}_op0": "conv3x3"}
    return Architecture("hourglass", params, (1, 3, SIDE, SIDE), 19)


def interrupted(folder: Path, line: str, is_time: Callable[[], bool]) -> tuple[int, list[str]]:
    """The command gets what a terminal sends, to all of its processes, once it has said something
    and it is time."""
    with subprocess.Popen(
        command_line(line.split()),
        cwd=folder,
        env=environment({}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        said: list[str] = []
        try:
            for text in process.stderr:
                said.append(text.rstrip())
                if is_time():
                    break
            os.killpg(process.pid, signal.SIGINT)
            said += process.stderr.read().splitlines()
            return process.wait(120), said
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def test_a_training_keeps_its_checkpoint(folder: Path):
    line = "arch train arch.json --dataset data/working/faces -o trained --epochs 100000"
    checkpoint = folder / "trained/checkpoint.pt"
    code, said = interrupted(folder, f"{line} --device cpu", checkpoint.exists)
    assert (code, said[-1]) == (130, KEPT), said
    assert "Traceback" not in "\n".join(said) and said[0].startswith("epoch 1, step 1 of 100000")
    load_weights(build(_architecture(8), 0, folder), _architecture(8), checkpoint)


@pytest.mark.soak
def test_a_front_keeps_the_models_that_were_trained(folder: Path):
    line = "search train laptop --epochs 2 --no-publish"
    code, said = interrupted(folder, line, lambda: bool(_models(folder)))
    assert (code, said[-1]) == (130, OF_FRONT), said
    assert "Traceback" not in "\n".join(said) and "IoU" in said[0]
    assert _models(folder)


def _models(folder: Path) -> list[Path]:
    return sorted((folder / "searches/laptop").glob("full/*.onnx"))
