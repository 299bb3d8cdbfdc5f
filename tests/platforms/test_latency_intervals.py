"""Intervals of predicted latencies: what data supports, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from edgeloop.platforms import ErrorInterval, LatencyProfile
from edgeloop.platforms.qnn.chips import DEFAULT_CHIP, chips, find_chip
from edgeloop.platforms.qnn.latency import (
    built_in_profiles,
    find_profile,
    fit_profile,
    form_of,
    held_out_interval,
    predict,
    save_profile,
    wide_share,
)
from edgeloop.platforms.qnn.toolchain import Estimate, QnnToolchain
from edgeloop.tuning.lab import Latency
from edgeloop.tuning.precision import PrecisionSearch
from tests.converted import samples, smooth_images
from tests.nets import with_scatter

PROFILE = LatencyProfile(
    *("board", 77, 60.0, 0.9, 40, 4.0, "test"),
    intervals={
        "any": ErrorInterval(0.8, 1.5, 40, 0.9),
        "transformer": ErrorInterval(0.9, 1.1, 39, 0.9),
        "depthwise": ErrorInterval(0.8, 1.9, 40, 0.9, widened_by=11),
        "rare": ErrorInterval(0.9, 1.1, 12),
    },
    range_us=(200.0, 9000.0),
)
ESTIMATE = Estimate(77, 1000.0, 900.0, 1100.0, 0, 0, 0, 0)
CHIP = find_chip("qcs8550")


def test_a_prediction_has_the_interval_of_its_kind_of_network():
    found = predict(ESTIMATE, CHIP, PROFILE)
    assert found.time_us == 960
    assert (found.low_us, found.high_us, found.coverage) == (768, 1440, 0.9)
    assert found.is_calibrated and "40 networks" in found.basis
    narrow = predict(replace(ESTIMATE, kind="transformer"), CHIP, PROFILE)
    assert narrow.high_us == pytest.approx(1056)
    assert narrow.coverage == 0.9 and "39 transformer networks" in narrow.basis


def test_few_networks_state_no_coverage_of_their_own():
    widened = predict(replace(ESTIMATE, kind="depthwise"), CHIP, PROFILE)
    assert widened.coverage == 0.9
    assert (
        "errors of 40 networks left out of the fit, widened to hold 11 depthwise" in widened.basis
    )
    rare = predict(replace(ESTIMATE, kind="rare"), CHIP, PROFILE)
    assert rare.coverage is None and rare.high_us == pytest.approx(1056)
    assert "12 rare networks left out of the fit, too few for a stated coverage" in rare.basis


@pytest.mark.parametrize("left_out", [{"missing_ops": 3}, {"cpu_layers": 2}])
def test_what_leaves_out_steps_is_a_lower_bound_without_an_interval(left_out):
    found = predict(replace(ESTIMATE, **left_out), CHIP, PROFILE)
    assert found.is_lower_bound
    assert (found.low_us, found.high_us, found.coverage) == (None, None, None)
    assert "no interval" in found.basis and "takes longer" in found.basis


@pytest.mark.parametrize("raw_us", [20.0, 90_000.0])
def test_outside_of_the_networks_of_the_fit_no_probability_is_stated(raw_us):
    found = predict(replace(ESTIMATE, raw_us=raw_us), CHIP, PROFILE)
    assert found.coverage is None and "outside the 0.2 to 9 ms" in found.basis
    assert found.low_us < 0.9 * raw_us < found.time_us < found.high_us


def test_an_uncalibrated_chip_has_the_range_of_the_calibrated_ones_and_a_relative_time():
    chip = find_chip("snapdragon-888")
    reference = replace(ESTIMATE, raw_us=800.0)
    found = predict(ESTIMATE, chip, None, reference=reference)
    assert (found.is_calibrated, found.coverage) == (False, None)
    assert "about 1.2 × the time on qcs8550" in found.basis
    every = [predict(ESTIMATE, CHIP, profile) for profile in built_in_profiles().values()]
    assert found.low_us <= min(one.low_us for one in every)
    assert found.high_us >= max(one.high_us for one in every)


def test_a_format_without_published_figures_is_not_called_calibrated():
    found = predict(replace(ESTIMATE, form="w8a16"), CHIP, PROFILE)
    assert found.time_us == 960 and not found.is_calibrated and found.coverage is None
    assert "no published figures of 16-bit activation models" in found.basis
    wide = replace(PROFILE, a_us=0.0, form="w8a16")
    fitted = predict(
        replace(ESTIMATE, form="w8a16"), CHIP, replace(PROFILE, formats={"w8a16": wide})
    )
    assert fitted.time_us == 900 and fitted.is_calibrated and fitted.coverage == 0.9


def test_mixed_precision_is_between_the_formats_without_a_stated_coverage():
    wide = replace(PROFILE, b=1.8, form="w8a16", intervals={"any": ErrorInterval(0.5, 2, 40, 0.9)})
    both = replace(PROFILE, formats={"w8a16": wide})
    for share, time_us in ((0.0, 960), (0.5, 1410), (1.0, 1860)):
        found = predict(replace(ESTIMATE, form="mixed", wide_share=share), CHIP, both)
        assert found.time_us == pytest.approx(time_us)
        assert (found.low_us, found.high_us) == (768, 3720)
        assert found.coverage is None and not found.is_calibrated
        assert "no published figures of mixed-precision models" in found.basis
    for part in (0.1, 0.5, 0.9):  # where `edgeloop precision` places the same plan
        ends = [Latency(1000, 960), Latency(2000, 60 + 1.8 * 2000)]
        search = SimpleNamespace(_base=ends[0], _full=ends[1], _is_bound=lambda _: False)
        raw_us = 1000 + 1000 * part
        placed = PrecisionSearch._shown(search, Latency(raw_us, 0.0))
        plan = replace(ESTIMATE, form="mixed", raw_us=raw_us, wide_share=part)
        found = predict(plan, CHIP, both)
        assert found.low_us < placed.us < found.high_us and placed.low_us is None
        assert found.time_us == pytest.approx(placed.us, rel=0.1)
    alone = predict(replace(ESTIMATE, form="mixed"), CHIP, PROFILE)
    assert alone.coverage is None and alone.high_us == 1440


@pytest.mark.parametrize(
    ("bits", "form"), [((8, 8), "w8a8"), ((16, 16), "w8a16"), ((8, 16), "mixed")]
)
def test_the_format_is_that_of_all_activations_behind_the_input(bits, form):
    model = _quantizers((8, *bits))  # pixels have 8 bits always
    assert form_of(model) == form
    if form == "mixed":
        assert wide_share(model) == 0.5
    model.graph.initializer.append(TensorProto(name="weights", data_type=TensorProto.INT4))
    assert form_of(model) == "mixed"


def _quantizers(bits: tuple[int, ...]) -> ModelProto:
    """An input, and layers behind it, each with so many bits."""
    nodes, last = [], "x"
    for number, count in enumerate(bits):
        made = [f"{kind}{number}" for kind in ("q", "dq", "y")]
        ends = ["scale", f"zero{count}"]
        nodes += [
            helper.make_node("QuantizeLinear", [last, *ends], [made[0]]),
            helper.make_node("DequantizeLinear", [made[0], *ends], [made[1]]),
            helper.make_node("Relu", [made[1]], [made[2]]),
        ]
        last = made[2]
    kinds = {"zero8": TensorProto.UINT8, "zero16": TensorProto.UINT16}
    weights = [TensorProto(name=name, data_type=kind) for name, kind in kinds.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info(last, TensorProto.FLOAT, [1])
    return helper.make_model(helper.make_graph(nodes, "net", [x], [y], weights))


def test_the_default_chip_is_calibrated_and_every_profile_has_an_interval():
    assert DEFAULT_CHIP in built_in_profiles() and DEFAULT_CHIP in chips()
    for profile in built_in_profiles().values():
        interval = profile.intervals["any"]
        assert 0 < interval.low < 1 < interval.high and interval.networks >= 19, profile.name
        for one in (profile, *profile.formats.values()):
            for kind, known in one.intervals.items():
                stated = 0.9 if known.networks >= 19 else None
                assert known.coverage == stated, (one.name, one.form, kind)


def test_an_interval_of_held_out_errors_covers_what_it_states():
    dice = np.random.default_rng(4)
    hits = []
    for _ in range(400):
        interval = held_out_interval(np.exp(dice.normal(0, 0.2, 39)).tolist())
        assert interval.coverage == 0.9
        hits.append(interval.low <= np.exp(dice.normal(0, 0.2)) <= interval.high)
    assert 0.86 < np.mean(hits) < 0.94
    few = held_out_interval([0.8, 0.9, 1.0, 1.2, 1.4])
    assert (few.low, few.high, few.coverage) == (0.8, 1.4, None)
    counts = {n: held_out_interval([1 + i / 100 for i in range(n)]).coverage for n in (18, 19)}
    assert counts == {18: None, 19: 0.9}


def test_a_board_of_ones_own_has_an_interval_and_an_old_profile_says_to_calibrate(tmp_path: Path):
    raw = [40.0, 90.0, 300.0, 700.0, 1500.0, 4000.0]
    save_profile(tmp_path, fit_profile([(x, (50 + x) * 1.1) for x in raw], "board", 77))
    found = find_profile("board", tmp_path)
    shown = predict(ESTIMATE, CHIP, found)
    assert shown.coverage is None and shown.low_us < shown.high_us
    assert "errors of 6 networks left out of the fit, too few" in shown.basis
    fields = json.loads((tmp_path / "board.json").read_text())
    old = {name: fields[name] for name in ("soc", "a_us", "b", "models", "error_percent", "source")}
    (tmp_path / "board.json").write_text(json.dumps(old))
    kept = predict(ESTIMATE, CHIP, find_profile("board", tmp_path))
    assert kept.low_us is None and "calibrate it again" in kept.basis


@pytest.mark.slow
def test_the_compiler_says_which_graphs_it_has_no_cost_for(tmp_path: Path):
    model = with_scatter(tmp_path / "scatter.onnx")
    with QnnToolchain() as toolchain:
        made = toolchain.convert(model, samples(smooth_images(1, 32)), tmp_path)
        measured = toolchain.measure(
            made.files[made.quantized], CHIP, find_profile("qcs8550", None)
        )
        screened = toolchain.screen(model, CHIP)
        wide = toolchain.convert(model, samples(smooth_images(1, 32)), tmp_path / "16", "a16w8")
        assert toolchain.estimate(wide.files[wide.quantized], CHIP).form == "w8a16"
    assert (screened.missing_ops, screened.form) == (1, "w8a8")
    assert (measured.missing_ops, measured.low_s, measured.high_s) == (1, None, None)
    assert "no cost for 1 step" in measured.basis
