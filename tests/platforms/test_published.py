"""The data that latency profiles are fitted to: consistent, and made again by anybody."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from bench.latency.catalog import PUBLISHED, SKELETONS, known_networks
from bench.latency.compile import SOCS, estimates, published_formats, read_estimates
from bench.latency.skeletons import names_in, with_weights, without_weights

WIDTH = 32


def test_every_estimate_has_a_published_figure_a_family_and_a_skeleton() -> None:
    known, published, built = known_networks(), published_formats(), set(names_in(SKELETONS))
    for (network, form, soc), row in read_estimates().items():
        assert form in published[network], network
        assert row["family"] == known[network].family
        assert network in built
        assert int(soc) in SOCS
        assert bool(row["error"]) != bool(row["raw_us"]), network


def test_published_figures_name_their_source_and_the_families_of_the_catalog() -> None:
    known = known_networks()
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["source"] for row in rows} == {"qai-hub-models 0.65.0"}
    assert all(row["date"] and row["tool_version"] for row in rows)
    assert {row["network"] for row in rows} >= set(known)
    for row in rows:
        family = known[row["network"]].family if row["network"] in known else ""
        assert row["family"] == family, row["network"]


def test_at_least_a_hundred_networks_are_rebuilt() -> None:
    assert len(set(names_in(SKELETONS)) & set(known_networks())) >= 100


def test_weights_are_the_same_whenever_they_are_made_again() -> None:
    one, other = (with_weights(_skeleton(), "a") for _ in range(2))
    assert _weights(one).tobytes() == _weights(other).tobytes()
    assert _weights(one).tobytes() != _weights(with_weights(_skeleton(), "b")).tobytes()
    assert _weights(one).std() == pytest.approx(_weights(_model()).std(), rel=0.1)


def test_a_skeleton_has_no_weights_and_keeps_constants_that_are_none() -> None:
    kept = {tensor.name: tensor for tensor in _skeleton().graph.initializer}
    assert not kept["weights"].raw_data
    assert list(kept["weights"].dims) == [WIDTH, WIDTH]
    assert (numpy_helper.to_array(kept["ones"]) == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "form"),
    [
        ("quicksrnetsmall", "w8a8"),
        pytest.param("yamnet", "w8a16", marks=pytest.mark.soak),
        pytest.param("yamnet", "float", marks=pytest.mark.soak),
    ],
)
def test_a_skeleton_compiles_to_the_stored_estimate(network: str, form: str) -> None:
    stored = read_estimates()
    for row in estimates(SKELETONS, network, form):
        known = stored[network, form, str(row["soc"])]
        assert not row.get("error"), row.get("error")
        assert row["raw_us"] == pytest.approx(float(known["raw_us"]), rel=0.01)
        assert row["macs"] == float(known["macs"])


def _skeleton() -> ModelProto:
    return without_weights(_model())


def _model() -> ModelProto:
    generator = np.random.default_rng(0)
    weights = generator.normal(0, 0.1, (WIDTH, WIDTH)).astype(np.float32)
    ones = np.ones((WIDTH, WIDTH), np.float32)
    node = helper.make_node("MatMul", ["given", "weights"], ["product"])
    scaled = helper.make_node("Mul", ["product", "ones"], ["result"])
    sides = [WIDTH, WIDTH]
    ends = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, sides)
        for name in ("given", "result")
    )
    constants = [
        numpy_helper.from_array(value, name)
        for name, value in (("weights", weights), ("ones", ones))
    ]
    source, target = ends
    graph = helper.make_graph([node, scaled], "net", [source], [target], constants)
    return helper.make_model(graph)


def _weights(model: ModelProto) -> np.ndarray:
    tensor = next(t for t in model.graph.initializer if t.name == "weights")
    return numpy_helper.to_array(tensor)
