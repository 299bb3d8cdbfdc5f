"""A graph of several samples at a time, for one at a time: some quantizers take nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgeloop._util.system import thread_limit
from edgeloop.graph.info import GraphInfo, TensorInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto

_SHAPED = ("Reshape", "Expand")  # operators whose second input is a shape
_TOLERANCE = 1e-4


def single_sample_info(info: GraphInfo) -> GraphInfo:
    """Of the graph that `single_sample` gives; how much memory that takes is not known here."""
    batch = info.batch

    def single(tensor: TensorInfo) -> TensorInfo:
        is_batch = tensor.shape[:1] == (batch,)
        return replace(tensor, shape=(1, *tensor.shape[1:])) if is_batch else tensor

    return replace(
        info,
        inputs=tuple(single(tensor) for tensor in info.inputs),
        outputs=tuple(single(tensor) for tensor in info.outputs),
        macs=info.macs // batch,
        memory=None,
    )


def single_sample(model: ModelProto, info: GraphInfo) -> ModelProto | None:
    """A new model that computes the same for every sample of a batch; None where there is none,
    since samples mix or sizes are written into the graph. Both are run to be sure."""
    import onnx

    wanted = single_sample_info(info)
    smaller = onnx.ModelProto()
    smaller.CopyFrom(model)
    graph = smaller.graph
    for value, tensor in zip(graph.input, wanted.inputs, strict=True):
        value.type.tensor_type.shape.dim[0].dim_value = tensor.shape[0]
    _shrink_shapes(graph, info.batch)
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        smaller = onnx.shape_inference.infer_shapes(smaller, strict_mode=True, data_prop=True)
        is_same = _shapes(smaller) == [t.shape for t in wanted.outputs] and _agree(
            model, smaller, info
        )
    except Exception:  # noqa: BLE001 - whatever a runtime makes of a graph that cannot be cut
        return None
    return smaller if is_same else None


def _shrink_shapes(graph: GraphProto, batch: int) -> None:
    """Shapes that begin with the batch leave it open, or are for one sample where they cannot."""
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in graph.initializer}
    for number, node in enumerate(graph.node):
        if node.op_type not in _SHAPED or node.input[1] not in constants:
            continue
        sides = numpy_helper.to_array(constants[node.input[1]])
        if sides.size and sides.flat[0] == batch:
            is_open = node.op_type == "Reshape" and sides.min() > 0
            fewer = sides.copy()
            fewer.flat[0] = -1 if is_open else 1
            name = f"{node.input[1]}_single_{number}"
            graph.initializer.append(numpy_helper.from_array(fewer, name))
            node.input[1] = name


def _shapes(model: ModelProto) -> list[tuple[int, ...]]:
    return [
        tuple(side.dim_value for side in value.type.tensor_type.shape.dim)
        for value in model.graph.output
    ]


def _agree(model: ModelProto, smaller: ModelProto, info: GraphInfo) -> bool:
    import numpy as np

    dice = np.random.default_rng(0)
    batch = {tensor.name: _random(tensor, dice) for tensor in info.inputs}
    whole = _run(model, batch)
    for number in range(info.batch):
        parts = _run(smaller, {name: array[number : number + 1] for name, array in batch.items()})
        for all_samples, sample in zip(whole, parts, strict=True):
            wanted = all_samples[number : number + 1]
            if not np.allclose(wanted, sample, _TOLERANCE, _TOLERANCE * np.abs(wanted).max()):
                return False
    return True


def _random(tensor: TensorInfo, dice: np.random.Generator) -> NDArray[Any]:
    import numpy as np

    if np.dtype(tensor.dtype).kind == "f":
        return dice.random(tensor.shape, np.float32).astype(tensor.dtype)
    return dice.integers(0, 2, tensor.shape).astype(tensor.dtype)


def _run(model: ModelProto, batch: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = thread_limit()
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[NDArray[Any]] = session.run(None, batch)
    return found
