"""`edgeloop precision` on the real compiler and simulator."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgeloop._util.files import sha256_of
from edgeloop.errors import BadInput
from edgeloop.graph.info import image_info
from edgeloop.platforms import PrecisionPlan
from edgeloop.settings import Settings
from edgeloop.tasks import Interval, TensorsTask
from edgeloop.testing.faces import make_faces
from edgeloop.testing.models import save_pair_model
from edgeloop.tuning.lab import LabOptions, opened_lab
from edgeloop.tuning.precision import (
    PrecisionOptions,
    PrecisionReport,
    choose_point,
    find_divergence,
    tune_precision,
)
from edgeloop.tuning.quantized import channel_sqnr
from tests.cli.running import Finished, command_line, run_main

pytestmark = pytest.mark.slow
NET = Path(__file__).parents[2] / "edgeloop/view/demo_data/unet-w24.onnx"
OPTIONS = PrecisionOptions("htp:qcs8550", images=2, workers=2, points=3)


def quiet(about: str, done: int, total: int) -> None:
    """Nobody watches."""


def tuned(net: Path, cache: Path, **more: object) -> PrecisionReport:
    options = replace(OPTIONS, cache=cache, **more)  # type: ignore[arg-type]
    return tune_precision(net, "net", sha256_of(net), options, Settings.load(cache), quiet)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def report(cache: Path) -> PrecisionReport:
    return tuned(NET, cache)


def test_the_front_has_most_of_the_gain_for_little_of_the_time(report: PrecisionReport) -> None:
    base, full = report.base, report.full
    assert base is not None and full is not None
    assert full.sqnr_db > base.sqnr_db and full.latency_us > base.latency_us
    times = [point.latency_us for point in report.points]
    assert times == sorted(times) and len(report.points) >= 4
    chosen = choose_point(report)
    gain, premium = report.shares(chosen) or (0, 1)
    assert gain > 0.5 > premium
    assert chosen.plan.model == sha256_of(NET)
    assert set(chosen.plan.bits.values()) <= {4, 16}
    first = next(one for one in report.tensors if one.tensor.kind == "activation")
    assert first.tensor.layer == "/head/Conv" and first.sqnr_db is not None
    assert report.divergence.first is None


def test_points_are_chosen_by_number_latency_or_score(report: PrecisionReport) -> None:
    assert choose_point(report, 1) is report.points[0]
    with pytest.raises(BadInput, match="there is no point 99"):
        choose_point(report, 99)
    middle = report.points[1].latency_us / 1000
    assert choose_point(report, budget_ms=middle).latency_us <= 1000 * middle
    with pytest.raises(BadInput, match=r"no plan takes at most 1e-05 ms: the fastest takes"):
        choose_point(report, budget_ms=1e-5)
    with pytest.raises(BadInput, match="need a dataset"):
        choose_point(report, within=0.5)


def test_a_planted_fault_is_located_by_its_layer(tmp_path: Path) -> None:
    """Weights that one value of each channel makes coarse: float is as before, the chip is not."""
    model = onnx.load_model(NET)
    layer = next(n for n in model.graph.node if n.name == "/third/third.0/Conv")
    weights = next(t for t in model.graph.initializer if t.name == layer.input[1])
    values = numpy_helper.to_array(weights).copy()
    values[:, 0, 0, 0] = 60 * np.abs(values).max()
    weights.CopyFrom(numpy_helper.from_array(values, weights.name))
    onnx.save_model(model, tmp_path / "net.onnx")
    info = image_info("input.1", "65", (1, 3, 64, 64), (1, 19, 64, 64))
    given = TensorsTask().inputs(info, 2, "test")
    options = LabOptions("htp:qcs8550", given, given, workers=1)
    with opened_lab(tmp_path / "net.onnx", options, Settings.load(tmp_path), quiet) as lab:
        found = find_divergence(lab, PrecisionPlan())
    assert found.first is not None and found.first.layer == "/third/third.0/Conv"
    assert len(found.layers) == 8


def test_one_loud_channel_does_not_hide_the_others() -> None:
    dice = np.random.default_rng(0)
    exact = dice.normal(size=(1, 8, 16, 16))
    noisy = exact + 0.3 * dice.normal(size=exact.shape)
    exact[:, 0] *= 1000
    noisy[:, 0] = exact[:, 0]
    assert channel_sqnr(noisy, exact) < 15
    assert channel_sqnr(exact, exact) == 60


def test_a_run_that_was_killed_continues_and_takes_models_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two inputs, two outputs; what was answered before is not asked again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    net = save_pair_model(tmp_path / "pair.onnx")
    call = ("precision", net, "--device", "htp:qcs8550", "--images", 2, "--json")
    call = (*call, "-o", tmp_path / "plan.yaml")
    with subprocess.Popen(command_line(call), stdout=subprocess.DEVNULL) as first:
        while first.poll() is None and len(answers(tmp_path)) < 5:
            time.sleep(0.02)
        first.send_signal(signal.SIGKILL)
    before = answers(tmp_path)
    assert len(before) >= 5

    def typed(*words: object) -> Finished:
        done = run_main(words, monkeypatch, capfd)
        assert done.code == 0, done.err
        return done

    (found,) = typed(*call).json
    after = answers(tmp_path)
    assert after[: len(before)] == before and len(set(after)) == len(after) > len(before)
    assert found["points"][0]["latency_us"] > 0 and found["metric"] == ""
    plan = PrecisionPlan.read(tmp_path / "plan.yaml")
    assert plan.to_fields() == found["points"][found["chosen"] - 1]["plan"]

    typed("upload", net, "--name", "pair")
    shown = typed("precision", "pair", "--device", "htp:qcs8550", "--images", 2).out
    assert max(map(len, shown.splitlines())) <= 80
    assert "It was uploaded as pair.mixed-" in shown
    assert answers(tmp_path) == after, "the same content is not asked again"
    (variant,) = (row for row in typed("status", "--json").json if row["name"] != "pair")
    assert variant["name"] == f"pair.mixed-{plan.digest[:6]}"
    assert "precision.yaml" in typed("download", "--list", variant["name"]).out


def answers(folder: Path) -> list[str]:
    found = []
    for path in (folder / "cache").rglob("answers.jsonl"):
        for line in path.read_text().splitlines():
            found.append(json.loads(line)[0])
    return found


@pytest.mark.soak
def test_with_a_dataset_every_point_has_a_score_beside_float(tmp_path: Path) -> None:
    make_faces(tmp_path / "faces", 12, 64, seed=5)
    data = {"dataset": tmp_path / "faces", "task": "segmentation"}
    report = tuned(NET, tmp_path, **data)
    assert report.metric == "f1"
    for point in report.points:
        assert point.score is not None and 0 < point.score <= 1
        difference = point.difference
        assert difference is not None and difference.low <= difference.value <= difference.high
    lost = [-100 * point.difference.value for point in report.points if point.difference]
    within = max(0.0, min(lost))
    close = [p for p, points in zip(report.points, lost, strict=True) if points <= within]
    assert choose_point(report, within=within) is min(close, key=lambda p: p.latency_us)
    far = [replace(p, difference=Interval(-0.5, -0.6, -0.4)) for p in report.points]
    with pytest.raises(BadInput, match="no plan"):
        choose_point(replace(report, points=tuple(far)), within=1.0)
