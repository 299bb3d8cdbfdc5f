"""torch.compile is used where its start-up pays, and never costs a training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from edgeloop.search.nets import engine
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.device import Machine
from edgeloop.search.nets.plan import TrainingPaths, TrainingPlan
from edgeloop.search.nets.train import train
from tests.training.test_train import same_weights

PLAN = TrainingPlan(steps=6, batch=2, device="cpu", images=8, validation_images=2)


def machine(kind: str) -> Machine:
    return Machine(torch.device(kind), torch.float32, 64)


def test_it_pays_on_a_gpu_for_trainings_of_several_minutes():
    assert engine.compile_pays(machine("cuda"), 900)
    assert not engine.compile_pays(machine("cuda"), 120)
    assert not engine.compile_pays(machine("cpu"), 9000)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """What was given to torch.compile, which runs it as it is."""
    given: list[nn.Module] = []

    def compile_lightly(net: nn.Module) -> Callable[..., Any]:
        given.append(net)
        return net.forward

    monkeypatch.setattr(torch, "compile", compile_lightly)
    return given


def test_a_long_training_switches_in_the_middle_and_learns_the_same(
    compiled: list[nn.Module],
    arch: Architecture,
    faces: Path,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    train(arch, PLAN, TrainingPaths(faces, tmp_path / "plain", cache))
    assert not compiled
    monkeypatch.setattr("edgeloop.search.nets.train._CHECK_EVERY", 2)
    asked: list[float] = []
    monkeypatch.setattr(engine, "compile_pays", lambda _, left: bool(asked.append(left)) or True)
    train(arch, PLAN, TrainingPaths(faces, tmp_path / "switched", cache))
    assert len(compiled) == len(asked) == 1 and asked[0] > 0
    assert same_weights(tmp_path / "plain", tmp_path / "switched")
    train(arch, replace(PLAN, compile=False), TrainingPaths(faces, tmp_path / "never", cache))
    assert len(asked) == 1


def test_a_network_that_cannot_be_compiled_is_trained_without(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise RuntimeError("no compiler was found\nand much more")

    monkeypatch.setattr(torch, "compile", lambda _: refuse)
    with pytest.warns(UserWarning, match="without torch.compile, which failed: no compiler was f"):
        train(arch, replace(PLAN, compile=True), TrainingPaths(faces, tmp_path / "refused", cache))
    monkeypatch.undo()
    train(arch, PLAN, TrainingPaths(faces, tmp_path / "plain", cache))
    assert same_weights(tmp_path / "plain", tmp_path / "refused")


def test_an_error_of_the_network_itself_is_not_hidden(
    compiled: list[nn.Module],
    arch: Architecture,
    faces: Path,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    steps: list[int] = []

    def broken(*arguments: Any) -> torch.Tensor:
        steps.append(1)
        if len(steps) > 2:
            raise ArithmeticError("of the network")
        return engine.functional.cross_entropy(
            arguments[0].float(), arguments[1].long(), ignore_index=255
        )

    monkeypatch.setattr(engine, "weighted_loss", broken)
    with pytest.raises(ArithmeticError, match="of the network"):
        train(arch, replace(PLAN, compile=True), TrainingPaths(faces, tmp_path, cache))
    assert len(steps) == 3
