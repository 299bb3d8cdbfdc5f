"""A file's summary: what is in it, what it needs, and which task fits it."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import pytest

from edgeloop.errors import BadInput, UnusableModel
from edgeloop.graph.info import GraphInfo, TensorInfo, fitting_task, parse_shapes
from edgeloop.graph.isolated import GraphProcess
from edgeloop.testing.models import save_classification_model, save_segmentation_model
from tests.graph import odd_models
from tests.nets import save_external


@pytest.fixture(scope="module")
def graphs() -> Iterator[GraphProcess]:
    process = GraphProcess()
    yield process
    process.close()


def image_to(*outputs: tuple[int, ...], name: str = "y", dtype: str = "float32") -> GraphInfo:
    source = TensorInfo("x", (1, 3, 128, 192), layout="NCHW")
    found = [TensorInfo(f"{name}{i}", (1, *shape), dtype) for i, shape in enumerate(outputs)]
    return GraphInfo((source,), tuple(found), 0, 0)


def test_memory_is_that_of_the_moment_with_most_alive(graphs, tmp_path):
    """The image 3·64², then 8·32², twice while one becomes the other, then 8·64² and 19·64²."""
    found = graphs.summarize(save_segmentation_model(tmp_path / "net.onnx", 64))
    assert found.problem == "" and found.info is not None and found.memory is not None
    assert found.memory.activations == 4 * (8 + 19) * 64**2
    assert found.memory.activations_8bit == (8 + 19) * 64**2
    assert found.memory.weights > found.info.params * 4
    assert found.memory.weights_8bit < found.memory.weights / 3
    assert found.operators == {"Conv": 3, "Relu": 2, "Resize": 1}
    assert (found.opset > 0, found.file) == (True, "net.onnx")


def test_external_data_counts_as_a_part_of_the_file(graphs, tmp_path):
    found = graphs.summarize(save_external(tmp_path / "net.onnx"))
    assert found.size == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert found.problem == ""


def test_what_cannot_be_used_is_described_as_far_as_it_can_be_read(graphs, tmp_path):
    model = odd_models.one_node(tmp_path / "odd.onnx", "Det")
    found = graphs.summarize(model)
    assert "Det" in found.problem and found.info is None
    assert [one.name for one in found.inputs]
    with pytest.raises(UnusableModel, match="not an ONNX model"):
        (tmp_path / "text.onnx").write_text("no model")
        graphs.summarize(tmp_path / "text.onnx")


def test_free_sizes_are_shown_and_filled_in_for_good(graphs, tmp_path):
    model = save_classification_model(tmp_path / "net.onnx")
    free = onnx.load_model(str(model))
    for side, word in zip(free.graph.input[0].type.tensor_type.shape.dim[2:], "hw", strict=True):
        side.dim_param = word
    free.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save_model(free, str(model))
    found = graphs.summarize(model)
    assert found.inputs[0].shape == ("batch", 3, "h", "w") and found.inputs[0].needs_shape
    assert found.inputs[0].example == "1x3x224x224"
    assert "--shape image=1x3x224x224" in found.problem
    shapes = {"image": (1, 3, 40, 48)}
    assert graphs.summarize(model, shapes).info.input_shape == (1, 3, 40, 48)
    (tmp_path / "fixed").mkdir()
    fixed = graphs.prepare(model, shapes, tmp_path / "fixed")
    assert graphs.inspect(fixed).input_shape == (1, 3, 40, 48)


@pytest.mark.parametrize(
    ("info", "task"),
    [
        (image_to((10,)), "classification"),
        (image_to((1000, 1, 1)), "classification"),
        (image_to((19, 128, 192)), "segmentation"),
        (image_to((32, 48, 21)), "segmentation"),
        (image_to((32, 48, 21), name="heatmap"), "keypoints"),
        (image_to((16, 32, 48), (16, 32, 48)), "keypoints"),
        (image_to((150, 32, 48)), "segmentation"),
        (image_to((128, 192), dtype="int64"), "segmentation"),
        (image_to((1, 128, 192)), "depth"),
        (image_to((64, 96)), "depth"),
        (image_to((3, 256, 384)), "super-resolution"),
        (image_to((17, 32, 48)), "keypoints"),
        (image_to((68, 2)), "keypoints"),
        (image_to((84, 8400)), "detection"),
        (image_to((100, 4), (100, 91)), "detection"),
        (image_to((100, 4), (100,), (100,)), "detection"),
        (image_to((64, 32, 48), (128, 16, 24)), "tensors"),
        (image_to((21, 128, 192), (21, 128, 192)), "segmentation"),
        (image_to((19, 128, 192), (1, 64, 96)), "segmentation"),
        (image_to((19, 128, 192), (7, 128, 192)), "tensors"),
        (image_to((10,), (10,)), "classification"),
        (image_to((10,), (512,)), "tensors"),
        (image_to((12, 7, 5)), "tensors"),
        (
            GraphInfo((TensorInfo("ids", (1, 64), "int64"),), (TensorInfo("y", (1, 2)),), 0, 0),
            "tensors",
        ),
    ],
)
def test_the_task_that_fits_is_told_by_shapes(info: GraphInfo, task: str):
    found = fitting_task(info)
    assert found.task == task and found.why


def test_shapes_are_read_from_words():
    given = parse_shapes(["x=1x3x224x224", "a:0=1x77"])
    assert given == {"x": (1, 3, 224, 224), "a:0": (1, 77)}


@pytest.mark.parametrize("word", ["x", "x=", "=1x3", "x=1xhx3", "x=0x3", "x=1x-3"])
def test_a_wrong_shape_is_one_sentence(word: str):
    with pytest.raises(BadInput, match="1x3x224x224"):
        parse_shapes([word])
