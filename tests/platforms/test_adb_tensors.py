"""Models with any inputs and outputs on a board: what comes back is what ONNX Runtime computes of
the uploaded file, under its own names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from edgeloop.errors import BadInput, ModelFailed
from edgeloop.graph.isolated import GraphProcess
from edgeloop.platforms import Converted
from edgeloop.platforms.batching import random_batch
from edgeloop.platforms.snpe.device import AdbDevice
from edgeloop.platforms.snpe.dlc import read_tensors
from edgeloop.platforms.snpe.sdk import find_sdk
from edgeloop.platforms.snpe.toolchain import SnpeToolchain
from edgeloop.runner.loop import RunnerOptions, run
from edgeloop.runner.stages.base import Sizes
from edgeloop.settings import Settings
from edgeloop.store import SqliteLocation
from edgeloop.tasks import Samples, Tensors
from edgeloop.workspace import Workspace
from tests.peers.board import VirtualBoard
from tests.platforms import board_nets
from tests.platforms.boards import board, listed, opened_board

__all__ = ["board"]

NETS = {
    "two": board_nets.two_inputs,
    "tokens": board_nets.tokens,
    "four": board_nets.four_at_once,
    "detector": board_nets.detector,
}
Made = Callable[[str], tuple[Path, Converted]]


@pytest.fixture(scope="module")
def graphs() -> Iterator[GraphProcess]:
    graphs = GraphProcess()
    yield graphs
    graphs.close()


@pytest.fixture(scope="module")
def made(sdk: Path, graphs: GraphProcess, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A net by its name, with what the SDK's tools make of it; once each."""
    found: dict[str, tuple[Path, Converted]] = {}

    def make(name: str) -> tuple[Path, Converted]:
        if name not in found:
            found[name] = converted(name, sdk, graphs, tmp_path_factory.mktemp(name))
        return found[name]

    return make


def converted(name: str, sdk: Path, graphs: GraphProcess, folder: Path) -> tuple[Path, Converted]:
    toolchain = SnpeToolchain(find_sdk(sdk), 60, graphs)
    model = NETS[name](folder / f"{name}.onnx")
    given = inputs(toolchain.inspect(model), 6, seed=1)
    calibration = Samples(np.empty((0,), np.uint8), np.empty((0,)), "c", tensors=given)
    return model, toolchain.convert(model, calibration, folder / "out")


def inputs(info, count: int, seed: int = 2) -> Tensors:
    """As random as measurements', with whole numbers of the whole vocabulary."""
    dice = np.random.default_rng(seed)
    whole = {
        tensor.name: dice.integers(0, board_nets.WORDS, (count, *info.sample_shape(tensor)))
        for tensor in info.inputs
        if tensor.dtype == "int64"
    }
    return {**random_batch(info, count, seed), **whole}


def expected(model: Path, info, batch: Tensors, count: int) -> Tensors:
    """Run by run on this machine; the last run is filled with anything."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in info.outputs]
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for start in range(0, count, info.batch):
        feed = {}
        for tensor in info.inputs:
            values = batch[tensor.name][start : start + info.batch]
            if values.dtype == np.uint8:
                values = (values.astype(np.float32) / np.float32(255)).transpose(0, 3, 1, 2)
            missing = info.batch - len(values)
            values = np.concatenate([values, np.repeat(values[:1], missing, axis=0)])
            feed[tensor.name] = values.reshape(tensor.shape)
        for name, values in zip(names, session.run(names, feed), strict=True):
            found[name].append(values)
    return {name: np.concatenate(parts)[:count] for name, parts in found.items()}


@pytest.fixture
def device(board: VirtualBoard, sdk: Path) -> Iterator[AdbDevice]:
    board.set_tool()
    with opened_board(board, sdk) as opened:
        yield opened


@pytest.mark.parametrize("name", NETS)
def test_all_outputs_come_back_by_name_and_in_order(made, device, name):
    model, net = made(name)
    info = net.info
    batch = inputs(info, 7)
    wanted = expected(model, info, batch, 7)
    for kind, file in (("float", f"{name}.dlc"), ("quantized", net.quantized)):
        cuts = ((0, 3), (3, 4), (4, 7))
        batches = ({key: array[a:b] for key, array in batch.items()} for a, b in cuts)
        found = list(device.infer(net.files[file], info, kind, batches))
        assert [list(each) for each in found] == [[t.name for t in info.outputs]] * 3
        for tensor in info.outputs:
            values = np.concatenate([each[tensor.name] for each in found])
            assert [len(each[tensor.name]) for each in found] == [3, 1, 3]
            assert values.dtype == tensor.dtype
            assert values.shape == (7, *info.sample_shape(tensor))
            if kind == "float":
                np.testing.assert_allclose(values, wanted[tensor.name], rtol=1e-4, atol=1e-4)
            elif tensor.dtype == "float32":
                error = np.abs(values - wanted[tensor.name])
                assert error.mean() < 0.05 * np.abs(wanted[tensor.name]).max()
            else:
                assert (values == wanted[tensor.name]).mean() > 0.8


@pytest.mark.parametrize("name", NETS)
def test_any_model_is_measured_with_what_it_takes(made, board, device, name):
    _, net = made(name)
    assert device.measure(net.files[net.quantized], net.info).seconds > 0
    argv = board.tool_runs()[-2].argv
    if name == "four":
        assert argv[argv.index("--input_dimensions") + 1] == "4,8,8,3", "the latency of the batch"
        assert "latency is that of 4 at once" in " ".join(net.notes)
    else:
        assert "--input_dimensions" not in argv
        assert not net.notes


def test_the_board_sees_names_of_ours_only_and_inputs_travel_once(made, board, sdk):
    _, net = made("two")
    batch = inputs(net.info, 3, seed=9)
    with opened_board(board, sdk) as device:
        arguments = (net.files[net.quantized], net.info, "quantized")
        (first,) = device.infer(*arguments, iter([batch]))
        sent = device.board.adb.sent
        (again,) = device.infer(*arguments, iter([batch]))
        assert device.board.adb.sent - sent < 10_000
    for name, values in first.items():
        np.testing.assert_array_equal(values, again[name])
    argv = board.tool_runs()[-1].argv
    assert argv[argv.index("--set_output_tensors") + 1] == "output_0,output_1"
    assert listed(board, "run") == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"lacks": 1}, "the board returned 2 outputs, and 'levels' is not among them"),
        ({"short": 3}, "its output 'scores' on the board has 765 bytes for 192 values"),
        ({"nan": True}, "its output 'scores' on the board is not all numbers"),
        ({"fewer": 1}, "the board returned 1 results for 2 images"),
    ],
)
def test_what_is_wrong_with_an_output_is_said_in_a_sentence(made, board, device, fault, said):
    _, net = made("detector")
    arguments = (net.files["detector.dlc"], net.info, "float")
    board.set_tool(**fault)
    with pytest.raises(ModelFailed, match=said) as error:
        list(device.infer(*arguments, iter([inputs(net.info, 2)])))
    assert "\n" not in str(error.value)
    board.set_tool()
    assert len(list(device.infer(*arguments, iter([inputs(net.info, 2)])))) == 1


def test_numbers_that_floats_do_not_hold_are_refused(made, device):
    _, net = made("tokens")
    batch = {"ids": np.full((1, 7), 1 << 25)}
    with pytest.raises(BadInput, match="'ids' has numbers beyond 16777216"):
        list(device.infer(net.files["tokens.dlc"], net.info, "float", iter([batch])))


def test_an_old_sdk_says_the_same_of_inputs_and_outputs(made, sdk_1, graphs, tmp_path):
    """Their texts differ, and only newer ones write outputs in their own types."""
    _, newer = made("two")
    _, older = converted("two", sdk_1, graphs, tmp_path)
    theirs = read_tensors(older.files[older.quantized])
    assert theirs == read_tensors(newer.files[newer.quantized])
    assert theirs.shapes == {
        "input_0": (1, 12, 8, 3),
        "input_1": (1, 6, 5, 4),
        "output_0": (1, 12, 8, 2),
        "output_1": (1, 6),
    }
    assert not find_sdk(sdk_1).writes_native_files


@pytest.mark.parametrize("kind", ["images", "names"])
def test_calibration_that_is_not_what_the_model_takes_is_refused(sdk, graphs, tmp_path, kind):
    toolchain = SnpeToolchain(find_sdk(sdk), 60, graphs)
    model = board_nets.tokens(tmp_path / "net.onnx")
    given = None if kind == "images" else {"other": np.zeros((2, 7), np.int64)}
    samples = Samples(np.zeros((2, 8, 8, 3), np.uint8), np.zeros(2), "c", tensors=given)
    said = "takes ids, and was given images" if kind == "images" else "has other; the model takes"
    with pytest.raises(BadInput, match=said):
        toolchain.convert(model, samples, tmp_path / "out")


def test_a_runner_without_a_dataset_says_how_models_agree_on_a_board(board, sdk, tmp_path):
    """Through all stages: what the board computes of random inputs, against the float model."""
    settings = Settings(
        project=tmp_path,
        location=SqliteLocation(tmp_path / "store"),
        toolchain="snpe",
        benchmark_runs=1,
        platform_keys={"snpe_root": str(sdk)},
    )
    options = RunnerOptions((f"adb:{board.serial}",), drain=True, sizes=Sizes(16, 4, 4))
    board.set_tool()
    with Workspace(settings) as workspace:
        for name in ("two", "four"):
            workspace.upload(NETS[name](tmp_path / f"{name}.onnx"), name)
        run(workspace, options, lambda report: None)
        for row in workspace.status():
            assert not row.get("error"), row
            assert row["status"] == "complete"
            assert row["mean"] > 0
            assert row["cosine"] > 0.9
