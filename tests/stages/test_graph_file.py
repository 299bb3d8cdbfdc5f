"""Conversion leaves the network for a drawing, and times of layers find their place in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.errors import WorkerFailed
from edgeloop.graph.isolated import GraphPool
from edgeloop.graph.outline import INPUT, OUTPUT, Outline, parse_outline
from edgeloop.platforms import open_device
from edgeloop.platforms.qnn.toolchain import QnnToolchain
from edgeloop.runner.stages.base import Assignment, Equipment, Result, Sizes
from edgeloop.runner.stages.convert import convert
from edgeloop.tasks import TensorsTask
from edgeloop.view.network import NetworkTimes, match_times
from tests.converted import open_htp, toolchain
from tests.nets_torch import SmallUNet, export

__all__ = ["toolchain"]
pytestmark = pytest.mark.slow


def converted(toolchain: QnnToolchain, folder: Path) -> Result:
    model = folder / "unet.onnx"
    export(SmallUNet(), model)
    host = open_device("host")
    equipment = Equipment(toolchain, host, TensorsTask(), host, sizes=Sizes(4, 4, 4))
    work = Assignment("m", "convert", {"benchmark_only": True}, {model.name: model}, folder)
    return convert(work, equipment)


@pytest.fixture(scope="module")
def made(toolchain: QnnToolchain, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return converted(toolchain, tmp_path_factory.mktemp("graph"))


@pytest.fixture(scope="module")
def outline(made: Result) -> Outline:
    found = parse_outline(made.files["unet.graph.json"].read_bytes())
    assert found is not None
    return found


def test_the_graph_is_that_of_the_deployed_network(outline: Outline) -> None:
    operators = [layer.operator for layer in outline.layers]
    assert operators[0] == INPUT and operators[-1] == OUTPUT
    assert "Conv" in operators and "QuantizeLinear" not in operators
    assert any(len(layer.inputs) > 1 for layer in outline.layers), "a U-Net has skip connections"
    assert all(layer.shape for layer in outline.layers)


def test_what_onnx_runtime_measures_belongs_to_layers(made: Result, outline: Outline) -> None:
    """All but the changes of layout that it adds itself."""
    host = open_device("host")
    quantized = made.files["unet.quant.onnx"]
    with QnnToolchain() as inspecting:
        layers = host.measure(quantized, inspecting.inspect(quantized.parent / "unet.onnx")).layers
    lines = [(layer.name, layer.operator, layer.time_us or 0.0) for layer in layers]
    times = match_times(outline, lines)
    added = [line for line in lines if not match_times(outline, [line]).times_us]
    assert {operator for _, operator, _ in added} <= {"Transpose"}
    assert _convolutions(outline) <= times.times_us.keys()


def test_what_the_compiler_estimates_belongs_to_layers(made: Result, outline: Outline) -> None:
    costs = open_htp().attribute(made.files["unet.quant.onnx"], workers=1)
    times: NetworkTimes = match_times(
        outline, [(cost.name, cost.operator, cost.time_us) for cost in costs.layers]
    )
    assert times.unmatched == 0
    assert times.total_us == pytest.approx(costs.total_us - costs.unattributed_us)


def test_a_model_of_which_no_graph_can_be_made_is_converted_all_the_same(
    toolchain: QnnToolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise WorkerFailed(reason="it crashed")

    monkeypatch.setattr(GraphPool, "write_outline", fail)
    result = converted(toolchain, tmp_path)
    assert "unet.quant.onnx" in result.files and "unet.graph.json" not in result.files
    assert result.columns["quantized"] is True


def _convolutions(outline: Outline) -> set[int]:
    return {place for place, layer in enumerate(outline.layers) if layer.operator == "Conv"}
