"""Killed, diverging and too large: nothing is lost, and a person reads one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from edgeloop.errors import LocalFileError, OutOfMemory, TrainingDiverged
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.device import SharedData
from edgeloop.search.nets.engine import Engine
from edgeloop.search.nets.plan import (
    FILES,
    TrainingPaths,
    TrainingPlan,
    TrainingResult,
    read_checkpoint,
)
from edgeloop.search.nets.train import TrainingItem, train, train_many
from tests.training.test_train import same_weights, weights_of

pytestmark = pytest.mark.slow

PLAN = TrainingPlan(epochs=3, device="cpu", batch=8, validation_images=4, checkpoint_s=0.0)
LIMIT_S = 120.0

# A process of its own, to be killed for real: it stops for good at a given step, so that the
# test decides where it dies.
VICTIM = """
import sys, time
from pathlib import Path
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.plan import TrainingPaths, TrainingPlan
from edgeloop.search.nets.train import train
from edgeloop.search.nets.engine import Engine

arch, faces, cache, out, stop = sys.argv[1:]
done, step = [0], Engine.step

def counted(self, *arguments):
    if done[0] == int(stop):
        print("here", flush=True)
        time.sleep(600)
    done[0] += 1
    step(self, *arguments)

Engine.step = counted
plan = TrainingPlan(epochs=3, device="cpu", batch=8, validation_images=4, checkpoint_s=0.0)
train(Architecture.load(Path(arch)), plan, TrainingPaths(Path(faces), Path(out), Path(cache)))
"""


def kill_at(stop: int, arch: Architecture, faces: Path, cache: Path, out: Path) -> None:
    """Train until `stop` steps were done in this part, then SIGKILL."""
    file = out.with_name(f"{out.name}.json")
    arch.save(file)
    arguments = [sys.executable, "-c", VICTIM, *map(str, (file, faces, cache, out, stop))]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "here\n"
        os.kill(victim.pid, signal.SIGKILL)
        assert victim.wait(LIMIT_S) == -signal.SIGKILL


def test_a_killed_training_ends_with_the_very_weights_of_an_undisturbed_one(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
):
    """Killed before the first step, within an epoch, and once more after that."""
    whole = train(arch, PLAN, TrainingPaths(faces, tmp_path / "whole", cache))
    assert whole.steps == 3 * 13
    for stop in (0, 20, 17):
        kill_at(stop, arch, faces, cache, tmp_path / "killed")
    (tmp_path / "killed/.checkpoint.pt.0").write_bytes(b"half of one")
    result = train(arch, PLAN, TrainingPaths(faces, tmp_path / "killed", cache))
    assert same_weights(tmp_path / "whole", tmp_path / "killed")
    assert (result.f1, result.miou, result.loss) == (whole.f1, whole.miou, whole.loss)
    assert (tmp_path / "killed/model.onnx").read_bytes() == (
        tmp_path / "whole/model.onnx"
    ).read_bytes()
    assert {path.name for path in (tmp_path / "killed").iterdir()} == set(FILES)
    histories = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "killed")
    ]
    for one, other in zip(*histories, strict=True):
        assert {k: one[k] for k in ("epoch", "step", "loss", "f1", "miou")} == {
            k: other[k] for k in ("epoch", "step", "loss", "f1", "miou")
        }


def test_a_training_that_diverges_says_at_which_step(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    step = Engine.step

    def poisoned(engine: Engine, *arguments: object) -> None:
        if int(engine._step) == 4:
            next(engine.net.parameters()).data.fill_(float("nan"))
        step(engine, *arguments)

    monkeypatch.setattr(Engine, "step", poisoned)
    with pytest.raises(
        TrainingDiverged, match=f"{arch.id} diverged: the loss was not finite at step 5"
    ):
        train(arch, PLAN, TrainingPaths(faces, tmp_path, cache))
    assert not (tmp_path / "metrics.json").exists() and not (tmp_path / "model.onnx").exists()


def test_a_rate_far_too_high_diverges_by_itself(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
):
    with pytest.raises(TrainingDiverged, match="Try a lower learning rate"):
        train(arch, replace(PLAN, learning_rate=1e30), TrainingPaths(faces, tmp_path, cache))


def test_a_net_that_does_not_fit_into_memory_is_one_sentence(
    faces: Path, cache: Path, tmp_path: Path
):
    """A layer of 4 PB: no machine has it, and asking costs nothing."""
    (tmp_path / "huge.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Huge(nn.Module):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__()\n"
        "        self.head = nn.Conv2d(3, classes, 1)\n"
        "    def forward(self, x):\n"
        "        if self.training:\n"
        "            torch.empty(2**50)\n"
        "        return self.head(x)\n"
        "def build(trial, shape, classes):\n    return Huge(classes)\n"
    )
    huge = Architecture("huge.py:build", {}, (1, 3, 48, 48), 19)
    with pytest.raises(OutOfMemory, match="with a batch of 8: try a smaller batch"):
        train(huge, PLAN, TrainingPaths(faces, tmp_path / "out", cache, tmp_path))


def test_a_damaged_checkpoint_is_said_and_a_fresh_start_helps(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
):
    short = replace(PLAN, epochs=1)
    train(arch, short, TrainingPaths(faces, tmp_path, cache))
    file = tmp_path / "checkpoint.pt"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(LocalFileError, match=r"checkpoint.pt: .*start over with --fresh"):
        train(arch, short, TrainingPaths(faces, tmp_path, cache))
    train(arch, short, TrainingPaths(faces, tmp_path, cache), resume=False)
    assert weights_of(tmp_path)


class Trap:
    """Whoever unpickles it without care runs its command."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("content", [b"hello", b"", b"PK\x03\x04", b"\x80\x02."], ids=repr)
def test_a_file_that_is_no_checkpoint_gets_one_sentence(content: bytes, tmp_path: Path):
    (tmp_path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(LocalFileError, match="not a checkpoint, or it is damaged"):
        read_checkpoint(tmp_path / "checkpoint.pt")


def test_a_checkpoint_that_holds_code_is_not_run(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
):
    out = tmp_path / "out"
    out.mkdir()
    torch.save({"version": 1, "trap": Trap(tmp_path / "sprung")}, out / "checkpoint.pt")
    with pytest.raises(LocalFileError, match="not a checkpoint, or it is damaged"):
        train(arch, PLAN, TrainingPaths(faces, out, cache))
    assert not (tmp_path / "sprung").exists()


def test_of_several_nets_one_that_fails_does_not_stop_the_others(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
):
    wrong = Architecture(arch.space, arch.params, arch.shape, 5)
    short = replace(PLAN, epochs=1)
    items = [
        TrainingItem(each, TrainingPaths(faces, tmp_path / name, cache))
        for name, each in (("good", arch), ("bad", wrong), ("again", arch))
    ]
    outcomes = {
        item.paths.out.name: outcome for item, outcome in train_many(items, short, at_once=2)
    }
    assert outcomes.keys() == {"good", "bad", "again"}
    assert "5 classes" in str(outcomes["bad"])
    assert isinstance(outcomes["good"], TrainingResult)
    assert same_weights(tmp_path / "good", tmp_path / "again")


def test_nets_trained_in_threads_of_one_process_are_those_trained_alone(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
):
    """As nets on one GPU are: with one copy of the images, and exports that do not meet."""
    short, shared = replace(PLAN, epochs=1), SharedData()
    train(arch, short, TrainingPaths(faces, tmp_path / "alone", cache))

    def one(number: int) -> TrainingResult:
        return train(
            arch, short, TrainingPaths(faces, tmp_path / str(number), cache), shared=shared
        )

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(one, range(3)))
    assert len({result.f1 for result in results}) == 1
    assert all(same_weights(tmp_path / "alone", tmp_path / str(number)) for number in range(3))
