"""Trainings that share a device in one process: how many, who waits, and who is to blame."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, Event, Lock

import pytest

from edgeloop.errors import OutOfMemory
from edgeloop.search.nets import train as train_module
from edgeloop.search.nets.device import GpuUsage
from edgeloop.search.nets.export import ExportProcesses
from edgeloop.search.nets.plan import MODEL, TrainingPaths, TrainingPlan, TrainingResult
from edgeloop.search.nets.train import SharedTraining, train
from tests.training.test_train import same_weights

pytestmark = pytest.mark.slow

PLAN = TrainingPlan(steps=6, device="cpu", batch=8, validation_images=4, checkpoint_s=0.0)
LIMIT_S = 120.0


class Card:
    """Stands in for `train`: a device on which a given number of networks fit beside each other."""

    def __init__(self, room: int, together: int = 1) -> None:
        self.room, self.lock, self.size = room, Lock(), {}
        self.most, self.known = 0, set()
        self.met = Barrier(together)

    def train(self, arch, plan, paths, *, progress, **options):
        out = paths.out
        with self.lock:
            is_new = out not in self.known
            self.known.add(out)
            self.size[out] = out
        try:
            if is_new and self.met.parties > 1:
                self.met.wait(LIMIT_S)  # so that all of them are there when memory is counted
            with self.lock:
                self.most = max(self.most, len(self.size))
                if sum(self.size.values()) > self.room:
                    raise OutOfMemory(arch=arch, device="a small GPU", batch=1)
            progress(None)
            return out
        finally:
            with self.lock:
                del self.size[out]


@pytest.fixture
def share(monkeypatch):
    def share(card, at_once, sizes):
        monkeypatch.setattr(train_module, "train", card.train)
        device = SharedTraining(PLAN, at_once)

        def one(size):
            try:
                return device.train(f"net{size}", PLAN, TrainingPaths(None, size))
            except OutOfMemory as error:
                return error

        with ThreadPoolExecutor(len(sizes)) as pool:
            return device, dict(zip(sizes, pool.map(one, sizes, timeout=LIMIT_S), strict=True))

    return share


def test_what_does_not_fit_beside_others_is_tried_with_fewer_and_blamed_only_alone(share):
    sizes = [20, 30, 40, 90, 101]
    card = Card(room=100, together=5)
    device, results = share(card, 5, sizes)
    assert isinstance(results.pop(101), OutOfMemory)
    assert results == {size: size for size in sizes[:4]}
    assert device.limit < 5


def test_a_number_that_one_model_has_lowered_is_raised_again(share):
    card = Card(room=100)
    device, results = share(card, 3, list(range(1, 30)))
    assert not [value for value in results.values() if isinstance(value, OutOfMemory)]
    device._limit = 1
    for _ in range(9):
        device.train("net", PLAN, TrainingPaths(None, 1))
    assert device.limit == 3


def test_no_more_than_the_number_run_at_a_time_and_all_get_their_turn(share):
    card = Card(room=10**6)
    _, results = share(card, 2, list(range(1, 25)))
    assert results == {size: size for size in range(1, 25)} and card.most <= 2


def test_networks_trained_together_have_the_weights_they_have_alone(faces, cache, arch, tmp_path):
    plans = {seed: replace(PLAN, seed=seed) for seed in (1, 2, 3)}
    alone = train(arch, plans[2], TrainingPaths(faces, tmp_path / "alone", cache))
    device = SharedTraining(PLAN, 3)

    def one(seed):
        return device.train(arch, plans[seed], TrainingPaths(faces, tmp_path / str(seed), cache))

    with device.opened(), ThreadPoolExecutor(3) as pool:
        results = list(pool.map(one, plans, timeout=LIMIT_S))
    assert all(isinstance(result, TrainingResult) for result in results)
    assert results[1].f1 == alone.f1 and results[1].gpu_utilisation is None
    assert same_weights(tmp_path / "2", tmp_path / "alone")
    assert len(device.shared._loaded) == 2  # each set of images once, for all of them


def test_a_model_that_another_process_exports_is_the_same_and_one_without_any_is_exported_here(
    faces, cache, arch, tmp_path, monkeypatch
):
    here, exports = train_module.export_onnx, ExportProcesses(1)
    exported_here = []

    def noted(net, arch, path):
        exported_here.append(path.parent.name)
        return here(net, arch, path)

    monkeypatch.setattr(train_module, "export_onnx", noted)
    plan = replace(PLAN, seed=7)
    for name, processes in (("here", None), ("elsewhere", exports), ("closed", exports)):
        if name == "closed":
            exports.close()
        device = SharedTraining(PLAN, 1)
        device.shared.exports = processes
        device.train(arch, plan, TrainingPaths(faces, tmp_path / name, cache))
    models = {(tmp_path / name / MODEL).read_bytes() for name in ("here", "elsewhere", "closed")}
    assert exported_here == ["here", "closed"] and len(models) == 1


def test_utilisation_is_the_mean_of_the_samples_of_each_ones_time():
    values, seen = iter([0.2, 0.4, 0.9]), Event()

    def read() -> float | None:
        try:
            return next(values)
        except StopIteration:
            seen.set()
            return None

    class Cpu:
        is_gpu = False

    usage = GpuUsage(read, sample_s=0.001)
    with usage.watched(Cpu()) as of_the_first:
        assert seen.wait(LIMIT_S)
        with usage.watched(Cpu()) as of_the_second:
            assert of_the_first() == pytest.approx(0.5) == usage.mean()
            assert of_the_second() is None and usage.recent() is None
