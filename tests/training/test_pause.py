"""Trainings that pause and continue later, as if they had never paused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from edgeloop.errors import BadInput
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.engine import Engine
from edgeloop.search.nets.plan import TrainingPaths, TrainingPlan, TrainingProgress
from edgeloop.search.nets.train import train

pytestmark = pytest.mark.slow

EPOCHS = TrainingPlan(epochs=3, device="cpu", images=64, validation_images=4)
STEPS = replace(EPOCHS, epochs=1, steps=10)  # an epoch has four
SCORES = ("f1", "miou", "loss", "best_epoch", "epochs", "steps", "stopped_early", "is_paused")


def everything(folder: Path) -> tuple[object, list[torch.Tensor], list[dict[str, object]]]:
    """What a training leaves, except for times."""
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    tensors = [checkpoint["net"], checkpoint["best"]]
    moments = checkpoint["optimizer"]["state"]
    flat = [value for part in tensors for value in part.values()]
    flat += [value for entry in moments.values() for value in entry.values()]
    result = json.loads((folder / "metrics.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in line.items() if k not in ("seconds", "images_per_s")}
                for line in lines]  # fmt: skip
    return [result[name] for name in SCORES], flat, timeless


@pytest.mark.parametrize(("plan", "pauses"), [(EPOCHS, (1, 2)), (STEPS, (3, 4, 9))])
def test_a_training_that_paused_ends_with_the_same_weights(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path, plan: TrainingPlan, pauses
):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    uninterrupted = train(arch, plan, TrainingPaths(faces, whole, cache))
    assert not uninterrupted.is_paused
    for until in pauses:
        paused = train(arch, replace(plan, until=until), TrainingPaths(faces, parts, cache))
        assert paused.is_paused and not paused.stopped_early
        assert (paused.steps if plan.steps else paused.epochs) == until
        assert not (parts / "model.onnx").exists()
    train(arch, plan, TrainingPaths(faces, parts, cache))
    first, second = everything(whole), everything(parts)
    assert first[0] == second[0]
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))
    in_epochs = [line for line in second[2] if line in first[2]]
    assert in_epochs == first[2]  # pauses inside an epoch have lines of their own
    assert (parts / "model.onnx").read_bytes() == (whole / "model.onnx").read_bytes()


def test_a_pause_is_not_trained_twice_and_keeps_its_scores(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan = replace(STEPS, until=3)
    first = train(arch, plan, TrainingPaths(faces, tmp_path, cache))
    further = train(arch, replace(plan, until=9), TrainingPaths(faces, tmp_path, cache))
    told: list[TrainingProgress] = []
    monkeypatch.setattr(Engine, "step", lambda *_: pytest.fail("it was trained again"))
    for until, known in ((3, first), (9, further)):
        again = train(
            arch,
            replace(plan, until=until),
            TrainingPaths(faces, tmp_path, cache),
            progress=told.append,
        )
        assert again == known
    between = train(arch, replace(plan, until=6), TrainingPaths(faces, tmp_path, cache))
    assert between.steps == 4  # the last scores until then
    assert not told


def test_a_pause_beyond_the_end_is_no_pause(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
):
    result = train(arch, replace(STEPS, until=99), TrainingPaths(faces, tmp_path, cache))
    assert not result.is_paused and result.steps == 10
    with pytest.raises(BadInput, match="until must be 1 or more"):
        TrainingPlan(until=0)
