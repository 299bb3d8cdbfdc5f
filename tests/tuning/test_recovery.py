"""Steps of recovery on small graphs, and the loop that decides which of them are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from edgeloop.errors import BadInput
from edgeloop.models.columns import recovery_of
from edgeloop.tasks import Interval, Samples
from edgeloop.tuning.equalize import channel_ranges, correct_biases, equalize, equalized, pairs_of
from edgeloop.tuning.quantized import (
    FloatGraph,
    QuantizedGraph,
    Run,
    observed,
    output_error,
    session_of,
)
from edgeloop.tuning.recovery import STEP_NAMES, Judged, parse_steps, recover
from edgeloop.tuning.rounding import Histogram, _rounded, clipped_range, round_layers
from tests import qdq
from tests.recovery_nets import unequal

SIDE = 16


def inputs(count: int = 4, seed: int = 0, side: int = SIDE) -> list[Run]:
    dice = np.random.default_rng(seed)
    return [{"image": dice.random((1, 3, side, side), np.float32)} for _ in range(count)]


def runs(count: int = 4, seed: int = 0) -> Iterator[Run]:
    return iter(inputs(count, seed))


def chain(activation: str = "Relu", channels: int = 12) -> ModelProto:
    """Pointwise, depthwise, pointwise, with an activation behind each but the last."""
    dice = np.random.default_rng(1)
    shapes = {"wide": (channels, 3, 1, 1), "deep": (channels, 1, 3, 3), "last": (4, channels, 1, 1)}
    nodes, weights, source = [], [], "image"
    for name, shape in shapes.items():
        fan = float(np.sqrt(np.prod(shape[1:])))
        weights.append(
            numpy_helper.from_array(
                (dice.standard_normal(shape) / fan).astype(np.float32), f"{name}.weight"
            )
        )
        weights.append(
            numpy_helper.from_array(
                dice.uniform(-0.1, 0.3, shape[0]).astype(np.float32), f"{name}.bias"
            )
        )
        pad = shape[2] // 2
        node = helper.make_node(
            "Conv",
            [source, f"{name}.weight", f"{name}.bias"],
            [f"{name}.out" if name != "last" else "scores"],
            name=name,
            kernel_shape=shape[2:],
            pads=[pad] * 4,
            group=channels if name == "deep" else 1,
        )
        nodes.append(node)
        if name != "last":
            source = f"{name}.active"
            ends = ["", "six"] if activation == "Clip" else []
            nodes.append(
                helper.make_node(activation, [f"{name}.out", *ends], [source], name=source)
            )
    weights.append(numpy_helper.from_array(np.array(6, np.float32), "six"))
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, (1, 3, SIDE, SIDE))],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, (1, 4, SIDE, SIDE))],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    return onnx.shape_inference.infer_shapes(model)


def quantized(model: ModelProto, folder: Path, bits: int = 8, per_channel: bool = False):
    """By ONNX Runtime, as toolchains do it."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        left = runs(8)

        def get_next(self):
            return next(self.left, None)

    path = folder / "quantized.onnx"
    kind = {4: QuantType.QInt4, 8: QuantType.QInt8 if per_channel else QuantType.QUInt8}[bits]
    copy = ModelProto()
    copy.CopyFrom(model)
    quantize_static(copy, str(path), Reader(), weight_type=kind, per_channel=per_channel,
                    activation_type=QuantType.QUInt8)  # fmt: skip
    return QuantizedGraph.load(path)


def error(graph: FloatGraph, other: QuantizedGraph) -> float:
    return output_error(graph.model, other.model, lambda: runs(4, seed=9))


def test_equalization_computes_the_same_and_repairs_unequal_channels(tmp_path: Path) -> None:
    model = unequal(chain(), 30.0)
    graph = FloatGraph(model)
    before = quantized(model, tmp_path)
    ranges = channel_ranges(graph, runs, [t for pair in pairs_of(graph) for t in pair.between])

    for variant, gain in (("weights", 20), ("activations", 20), ("both", 5)):
        same, after = equalized(graph, before, variant, ranges)

        pairs = (session_of(each.model).run(None, inputs()[0])[0] for each in (graph, same))
        np.testing.assert_allclose(*pairs, rtol=1e-4, atol=1e-5)
        assert error(graph, after) < error(graph, before) / gain, variant


def test_nothing_is_equalized_through_a_clip_or_past_an_output() -> None:
    assert [(pair.first, pair.second) for pair in pairs_of(FloatGraph(chain()))] == [
        ("wide", "deep"),
        ("deep", "last"),
    ]
    assert pairs_of(FloatGraph(chain("Clip"))) == []
    shown = chain()
    shown.graph.output.append(helper.make_empty_tensor_value_info("wide.active"))
    assert [pair.first for pair in pairs_of(FloatGraph(shown))] == ["deep"]
    before = FloatGraph(chain("Clip"))
    assert equalize(before) == {}


def test_bias_correction_repairs_a_planted_shift(tmp_path: Path) -> None:
    model = chain()
    graph, bad = FloatGraph(model), quantized(model, tmp_path)
    good = error(graph, bad)
    for name, layer in bad.layers.items():
        bias = bad.biases(layer)
        assert bias is not None, name
        bad.set_bias(layer, bias + 0.2)
    shifted = error(graph, bad)

    assert correct_biases(graph, bad, runs) == 3

    assert error(graph, bad) < max(1.2 * good, shifted / 100)
    expected, found = (
        np.mean([array for _, array in observed(each.model, runs, ["scores"])], axis=(0, 1, 3, 4))
        for each in (graph, bad)
    )
    np.testing.assert_allclose(found, expected, atol=0.02 * float(np.abs(expected).max()))


def test_rounding_by_what_weights_multiply_beats_the_nearest_at_4_bits(tmp_path: Path) -> None:
    model = chain(channels=24)
    graph, nearest = FloatGraph(model), quantized(model, tmp_path, bits=4, per_channel=True)
    assert {layer.weight.bits for layer in nearest.layers.values()} == {4}
    other = nearest.copy()

    assert round_layers(graph, other, lambda: runs(8)) == 3

    assert error(graph, other) < error(graph, nearest) / 3


def test_the_error_of_a_rounded_weight_is_made_up_for_by_correlated_ones() -> None:
    dice = np.random.default_rng(3)
    weights = dice.uniform(-0.7, 0.7, (32, 12))
    inputs = dice.standard_normal((400, 3)) @ dice.standard_normal((3, 12))
    moments = inputs.T @ inputs / len(inputs) + 0.01 * np.eye(12)
    scales, zeros = np.full(32, 0.1), np.zeros(32)

    def loss(integers: np.ndarray) -> float:
        error = weights - integers * 0.1
        return float(np.trace(error @ moments @ error.T))

    found = _rounded(weights, moments, scales, zeros, -8, 7)
    assert loss(found) < 0.5 * loss(np.rint(weights / 0.1))
    np.testing.assert_array_equal(found, np.clip(np.rint(found), -8, 7))


def test_tensors_that_share_a_scale_get_a_range_that_holds_all() -> None:
    graph = QuantizedGraph(qdq.quantized(chain(), 8))
    assert {encoding.scale for encoding in graph.activations.values()} == {"scale"}
    graph.set_ranges({"image": (0.0, 1.0), "wide.active": (-1.0, 3.0), "deep.active": (0.0, 2.0)})
    assert graph.array("scale") == pytest.approx(4 / 255)
    assert graph.array("zero8") == 64


def test_a_range_leaves_rare_outliers_out() -> None:
    counts = np.zeros(1000)
    counts[:100] = 1e5
    counts[999] = 1.0
    seen = Histogram(0.0, 100.0, counts)
    for variant in ("mse", "percentile-99.99"):
        low, high = clipped_range(seen, variant, 255)
        assert low == 0.0 and 9.0 < high < 40.0, variant
    even = Histogram(-1.0, 1.0, np.ones(1000))
    assert clipped_range(even, "mse", 255) == (-1.0, 1.0)


@dataclass
class FixedJudge:
    """Says what it was told to, one score after the other."""

    float_score: float | None
    scores: list[float]
    spread: float = 0.01
    seen: list[Path] = field(default_factory=list)

    def score(self, quantized: Path) -> Judged:
        self.seen.append(quantized)
        onnx.checker.check_model(str(quantized))
        return Judged(self.scores[len(self.seen) - 1], None)

    def reference(self) -> Judged | None:
        return None if self.float_score is None else Judged(self.float_score, None)

    def difference(self, first: Judged, second: Judged) -> Interval:
        gain = first.value - second.value
        return Interval(gain, gain - self.spread, gain + self.spread)


@pytest.fixture(scope="module")
def pair_of_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    model = unequal(chain(), 30.0)
    onnx.save_model(model, str(folder / "model.onnx"))
    quantized(model, folder)
    return folder / "model.onnx", folder / "quantized.onnx"


def images(count: int = 6) -> Samples:
    dice = np.random.default_rng(2)
    pixels = dice.integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)
    return Samples(pixels, np.zeros(count), "test")


@pytest.mark.slow
def test_only_steps_that_raise_the_score_beyond_its_interval_are_kept(
    pair_of_files: tuple[Path, Path], tmp_path: Path
) -> None:
    model, before = pair_of_files
    content = before.read_bytes()
    judge = FixedJudge(0.9, [0.5, 0.7, 0.705, 0.72])  # equalize helps, ranges by too little

    found = recover(model, before, images(), judge, tmp_path / "work")

    kept = {step.step: step.kept for step in found.steps}
    assert kept == {"equalize": True, "ranges": False, "adaround": False, "bias": True}
    notes = {step.step: step.note for step in found.steps}
    assert notes["adaround"] == "nothing to change"  # no weights of 4 bits
    assert (found.before, found.after, found.reference) == (0.5, 0.72, 0.9)
    assert found.quantized == judge.seen[-1] and before.read_bytes() == content
    after_equalize = QuantizedGraph.load(judge.seen[1])
    final = QuantizedGraph.load(found.quantized)
    for name, encoding in final.activations.items():  # the ranges that did not help are not in it
        np.testing.assert_array_equal(
            final.array(encoding.scale), after_equalize.array(encoding.scale), name
        )
    summary = recovery_of({"recovery": json.dumps(found.to_fields())})
    assert summary is not None and summary.short == ".5000 → .7200"
    assert [line[-1] for line in summary.lines] == ["yes", "no", "no", "yes"]


@pytest.mark.slow
def test_recovery_ends_where_nothing_is_lost_or_time_is_over(
    pair_of_files: tuple[Path, Path], tmp_path: Path
) -> None:
    fine = recover(*pair_of_files, images(), FixedJudge(0.505, [0.5]), tmp_path / "fine")
    assert fine.steps == () and fine.outcome.startswith("nothing to recover")
    assert fine.quantized == pair_of_files[1] and not fine.is_better
    late = recover(*pair_of_files, images(), FixedJudge(0.9, [0.5]), tmp_path / "late", limit_s=-1)
    assert late.steps == () and late.outcome.startswith("stopped before equalize")


def test_steps_are_named_and_ordered() -> None:
    assert parse_steps("all") == STEP_NAMES
    assert parse_steps("bias, equalize") == ("equalize", "bias")
    with pytest.raises(BadInput, match="did you mean 'equalize'"):
        parse_steps("equalise")
    with pytest.raises(BadInput, match="name recovery steps"):
        parse_steps(",")


def test_rows_of_others_hide_nothing() -> None:
    for text in ("", "[]", "{}", "no", '{"before": "x"}', '{"before": 1, "after": 2, "steps": 3}'):
        found = recovery_of({"recovery": text})
        assert found is None or found.lines == ()
    assert recovery_of({}) is None
