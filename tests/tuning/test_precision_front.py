"""Fronts of plans without a compiler: what is shown, chosen, and asked again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from edgeloop.cli.tuning import _precision_lines
from edgeloop.errors import BadInput, EdgeloopError, MemoryExceeded, ModelFailed, ModelRefused
from edgeloop.graph.bits import TunableTensor
from edgeloop.graph.count import graph_info
from edgeloop.platforms import Measurement, PrecisionPlan
from edgeloop.platforms.qnn.chips import find_chip
from edgeloop.platforms.qnn.latency import built_in_profiles
from edgeloop.platforms.qnn.toolchain import QnnEstimator, ScreenedModel
from edgeloop.settings import Settings
from edgeloop.tasks import Interval, Samples
from edgeloop.tuning.lab import (
    Answers,
    LabOptions,
    Latency,
    PrecisionLab,
    Simulated,
    _conditions,
    _key,
)
from edgeloop.tuning.precision import (
    RANKING_SAMPLES,
    Divergence,
    PrecisionPoint,
    PrecisionReport,
    PrecisionSearch,
    choose_point,
    find_divergence,
)
from edgeloop.tuning.worker import CALLS
from tests.graph.rewrites.cases import graph, node

BASE = PrecisionPoint(PrecisionPlan(), 100.0, 30.0)
MIXED = PrecisionPoint(PrecisionPlan.of_bits({"a": 16}), 110.0, 38.0)
FULL = PrecisionPoint(PrecisionPlan.of_bits({}, activations=16), 150.0, 40.0)


def report(*points: PrecisionPoint, metric: str = "") -> PrecisionReport:
    return PrecisionReport("net", "htp:qcs8550", 8, metric, points, (), Divergence(()))


def scored(point: PrecisionPoint, score: float, lost: float) -> PrecisionPoint:
    return replace(point, score=score, difference=Interval(-lost, -lost, -lost))


def test_a_psnr_is_compared_in_decibels_and_a_share_in_points() -> None:
    loud = report(scored(BASE, 30.0, 0.8), scored(FULL, 30.6, 0.2), metric="PSNR")
    assert choose_point(loud, within=1.0) is loud.points[0]
    with pytest.raises(BadInput, match=r"within 0.1 dB of float: the best loses 0.20"):
        choose_point(loud, within=0.1)
    share = report(scored(BASE, 0.7, 0.02), scored(FULL, 0.717, 0.003), metric="F1")
    assert choose_point(share, within=1.0) is share.points[1]
    with pytest.raises(BadInput, match=r"within 0.1 points of float: the best loses 0.30"):
        choose_point(share, within=0.1)


class Compiler:
    """In place of a lab: three tensors in a row; a16w8 has steps without a cost, so seems quick,
    and so does tensor `b` at 16 bits."""

    workers = 1

    def __init__(self) -> None:
        names = ("a", "b", "c")
        tensors = tuple(TunableTensor(n, "activation", n, "Conv", (n,), size=9) for n in names)
        self.calibrated = SimpleNamespace(tensors=tensors)

    def noises(self, asked: Sequence[Any], count: int, about: str) -> list[float]:
        return [0.001 if not names else 0.01 for names, _ in asked]

    def affordable_compiles(self, budget_s: float) -> int:
        return 60

    def latencies(self, plans: Sequence[PrecisionPlan], about: str) -> list[Latency]:
        def one(plan: PrecisionPlan) -> Latency:
            if plan.default.activations == 16:
                return Latency(90.0, 90.0, None, None, missing_ops=7)
            missing = 3 if "b" in plan.bits else 0
            time = 50.0 if missing else 100.0 + 10 * len(plan.bits)
            return Latency(time, time, None, None, missing)

        return [one(plan) for plan in plans]

    def simulations(
        self, plans: Sequence[PrecisionPlan], count: int, about: str
    ) -> list[Simulated]:
        is_full = [plan.default.activations == 16 for plan in plans]
        return [
            Simulated(40.0 if full else 30.0 + 3 * len(plan.bits))
            for plan, full in zip(plans, is_full, strict=True)
        ]


def test_plans_with_steps_of_unknown_cost_are_no_bargains() -> None:
    lab: Any = Compiler()
    points, tensors = PrecisionSearch(lab, "", 2).run()
    assert all("b" not in point.plan.bits for point in points)
    assert [point.latency_us for point in points] == [100.0, 110.0, 120.0, 90.0]
    assert [point.missing_ops for point in points] == [0, 0, 0, 7], "a16w8 is shown, at the end"
    assert {one.tensor.name: one.latency_us for one in tensors}["b"] is None
    found = report(*points)
    chosen = choose_point(found)
    assert chosen is points[2] and found.shares(chosen) is None
    assert choose_point(found, budget_ms=0.1) is points[0], "nobody knows that a16w8 is that fast"
    text = "\n".join(_precision_lines(found, chosen))
    assert "≥ 90 µs" in text and "no cost for up to 7 of its steps" in text
    assert "of what a16w8 gains" not in text
    known = [replace(point, latency_us=200.0, missing_ops=0) for point in points[3:]]
    assert "of what a16w8 gains" in "\n".join(_precision_lines(report(*points[:3], *known), chosen))


class Surprising(Compiler):
    """On the simulator, tensor `c` alone is better than any plan that errors of tensors led to;
    with few points to see, it is not among those that are chosen."""

    def noises(self, asked: Sequence[Any], count: int, about: str) -> list[float]:
        errors = {("a",): 0.02, ("b",): 0.01, ("c",): 0.03}
        return [errors.get(tuple(names), 0.001) for names, _ in asked]

    def latencies(self, plans: Sequence[PrecisionPlan], about: str) -> list[Latency]:
        def one(plan: PrecisionPlan) -> float:
            costs = {"a": 5.0, "b": 8.0, "c": 20.0}
            full = plan.default.activations == 16
            return 160.0 if full else 100.0 + sum(costs[name] for name in plan.bits)

        return [Latency(one(plan), one(plan), None, None) for plan in plans]

    def simulations(
        self, plans: Sequence[PrecisionPlan], count: int, about: str
    ) -> list[Simulated]:
        self.asked = [*getattr(self, "asked", []), (count, [set(plan.bits) for plan in plans])]

        def one(plan: PrecisionPlan) -> float:
            if plan.default.activations == 16:
                return 40.0
            return 39.0 if set(plan.bits) == {"c"} else 30.0 + len(plan.bits)

        return [Simulated(one(plan)) for plan in plans]


def test_a_plan_that_was_simulated_and_is_not_dominated_is_a_point() -> None:
    lab: Any = Surprising()
    images = RANKING_SAMPLES + 1
    points, _ = PrecisionSearch(lab, "", images, points=1).run()
    assert ["c"] in [list(point.plan.bits) for point in points]
    proposed = {frozenset(bits) for count, plans in lab.asked for bits in plans if count == images}
    assert {frozenset(point.plan.bits) for point in points} <= proposed, "on all samples"


class Bench:
    """A toolchain and a device; `answers` are what measuring gives or raises, one by one."""

    def __init__(self, *answers: Measurement | EdgeloopError) -> None:
        self._left = list(answers)

    def quantize_plan(self, calibrated: Any, plan: Any, target: Path, outputs: Any = ()) -> None:
        target.touch()

    def measure(self, model: Path, info: Any) -> Measurement:
        answer = self._left.pop(0)
        if isinstance(answer, EdgeloopError):
            raise answer
        return answer


def lab_of(folder: Path, bench: Any, native: Any = None, model: Path | None = None) -> PrecisionLab:
    info = graph_info(model.name, onnx.load_model(model)) if model else None
    calibrated: Any = SimpleNamespace(info=info, model=model)
    given = Samples(np.ones((2, 3, 4, 4), np.float32), np.zeros(0), "random")
    options = LabOptions("htp", given, given)
    benches: Any = [(bench, bench, native)]
    answers = Answers(folder / "answers.jsonl")
    return PrecisionLab(options, calibrated, benches, bench, answers, folder, lambda *_: None)


def test_only_what_the_compiler_refuses_is_remembered(tmp_path: Path) -> None:
    memory = MemoryExceeded(work="compile", limit="1 GB")
    good = Measurement(1e-4, (1e-4,), raw_us=90.0, missing_ops=2)
    passing = lab_of(tmp_path, Bench(ModelFailed(reason="time limit"), memory, good))
    plan = PrecisionPlan()
    tried = [passing.latencies([plan], "")[0] for _ in range(4)]
    assert tried[:2] == [None, None]
    assert tried[2] == tried[3] == Latency(90.0, 100.0, None, None, 2)
    other = PrecisionPlan.of_bits({"a": 16})
    refusing = lab_of(tmp_path, Bench(ModelRefused(reason="no such operator")))
    assert [refusing.latencies([other], "")[0] for _ in range(2)] == [None, None]


def test_tensors_inside_may_have_any_name(tmp_path: Path) -> None:
    """Also those of numpy's own arguments."""
    model = tmp_path / "net.onnx"
    nodes = [node("Relu", "x", "file"), node("Neg", "file", "y")]
    onnx.save_model(graph(nodes, {"x": (1, 3, 4, 4)}, {}), str(model))

    class Native:
        def call(self, work: str, arrays: Any = (), limit_s: float = 0, **fields: Any) -> Any:
            return CALLS[work.removeprefix("tuning.")](*arrays, **fields)

    lab = lab_of(tmp_path, Bench(), Native(), model)
    ones = np.ones((2, 3, 4, 4), np.float32)
    lab._compared = lambda *_: iter([("file", ones, ones)])  # type: ignore[method-assign]
    whole, own = lab.inside(PrecisionPlan(), [["file"]], 2)
    assert whole == own == {"file": 60.0}


def test_tensors_inside_that_do_not_fit_into_memory_are_left_out_and_that_is_said() -> None:
    asked: list[tuple[list[str], int]] = []

    def inside(plan: Any, parts: Sequence[Sequence[str]], count: int) -> Any:
        names = [name for part in parts for name in part]
        asked.append((names, count))
        return dict.fromkeys(names, 40.0), dict.fromkeys(names, 40.0)

    def found(size: int) -> Divergence:
        tensors = [TunableTensor(str(n), "activation", size=size) for n in range(100)]
        lab: Any = SimpleNamespace(calibrated=SimpleNamespace(tensors=tensors), inside=inside)
        return find_divergence(lab, PrecisionPlan())

    assert found(1000).note == "" and asked[-1][1] == 2
    assert found(2_000_000).note == "" and asked[-1] == ([str(n) for n in range(100)], 1)
    assert "only the first 26 of 100 tensors" in found(10_000_000).note
    assert asked[-1] == ([str(n) for n in range(26)], 1)


def test_the_first_layer_that_is_much_worse_than_others_is_named() -> None:
    whole = {"a": 40.0, "b": 38.0, "c": 12.0, "d": 11.0, "e": 10.0}
    own = {"a": 41.0, "b": 36.0, "c": 14.0, "d": 39.0, "e": 15.0}
    tensors = [TunableTensor(name, "activation", f"layer {name}", size=8) for name in own]

    def found(own: dict[str, float]) -> Divergence:
        calibrated = SimpleNamespace(tensors=tensors)
        lab: Any = SimpleNamespace(calibrated=calibrated, inside=lambda *_: (whole, own))
        return find_divergence(lab, PrecisionPlan())

    assert (first := found(own).first) is not None and first.layer == "layer c"
    assert found(dict.fromkeys(own, 40.0)).first is None


def test_answers_are_kept_by_the_whole_name_of_the_device_and_its_profile(tmp_path: Path) -> None:
    settings = Settings.load(tmp_path)
    named = _conditions("htp:qcs8550", settings)
    assert "qcs8550" in named and named != _conditions("htp:x-elite", settings)
    model = tmp_path / "net.onnx"
    onnx.save_model(graph([node("Relu", "x", "y")], {"x": (1, 3, 4, 4)}, {}), str(model))
    given = Samples(np.ones((2, 3, 4, 4), np.float32), np.zeros(0), "random")
    options = LabOptions("htp", given, given)
    assert _key(model, options, named) != _key(model, options, named + " refitted")
    assert _key(model, options, named) == _key(model, replace(options, device="htp:x"), named)
    profile = built_in_profiles()["qcs8550"]
    wide = replace(profile.formats["w8a16"], b=profile.formats["w8a16"].b * 1.1)
    refitted = replace(profile, formats={**profile.formats, "w8a16": wide})
    assert conditions(profile) != conditions(refitted)


def conditions(profile: Any) -> str:
    chip = find_chip("qcs8550")
    estimator = QnnEstimator(chip, profile, ScreenedModel([(chip, profile)], 10))
    estimator.close()
    return estimator.conditions
