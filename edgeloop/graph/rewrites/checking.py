"""Whether a rewritten model still computes the same: both are run on the same inputs.

Outputs are compared, and what comes out of each changed place: an untrained model may forget its
input on the way to its outputs. For the same reason a difference counts in relation to how much a
value varies from input to input, and not to how large it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgeloop._util.system import thread_limit
from edgeloop.graph.rewrites.registry import OutputComparison

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto, ValueInfoProto

    Feeds = Mapping[str, NDArray[Any]]
    Outputs = list[list[NDArray[Any]]]

_OF_SPREAD = 1e-3
_OF_LARGEST = 1e-5  # what rounding alone comes to in deep models
_EQUAL_CLASSES = 0.999  # ties and near ties go either way
_SEED = 18
_FLOAT = 1
_MOST_PLACES = 40


def compare_outputs(
    before: ModelProto, after: ModelProto, samples: Sequence[Feeds] = ()
) -> OutputComparison:
    """On random inputs, smooth ones and constant ones, and on samples where they are given."""
    feeds = [*samples, *_inputs(before)]
    seen = _changed_places(before, after)
    try:
        first, second = run_model(before, feeds, seen), run_model(after, feeds, seen)
    except Exception as error:  # noqa: BLE001 - native code raises what it likes
        return OutputComparison(False, float("inf"), _first_line(error))
    return compared(first, second)


def compared(before: Outputs, after: Outputs) -> OutputComparison:
    """Outputs of the same inputs, one list for each run."""
    import numpy as np

    worst, equal = 0.0, True
    for index in range(len(before[0])):
        one = np.stack([run[index] for run in before])
        other = np.stack([run[index] for run in after])
        is_same, difference = _compared_output(one, other)
        equal, worst = equal and is_same, max(worst, difference)
    return OutputComparison(equal, worst)


def _compared_output(one: NDArray[Any], other: NDArray[Any]) -> tuple[bool, float]:
    import numpy as np

    if one.dtype.kind == "f" and other.dtype.kind == "i" and one.ndim == other.ndim + 1:
        axes = [axis for axis in range(2, one.ndim) if _without(one.shape, axis) == other.shape]
        shares = [float(np.mean(one.argmax(axis) != other)) for axis in axes]
        share = min(shares, default=1.0)
        return share <= 1 - _EQUAL_CLASSES, share
    if one.shape != other.shape:
        return False, float("inf")
    first, second = one.astype(np.float64), other.astype(np.float64)
    if one.dtype.kind != "f":
        share = float(np.mean(first != second))
        return share <= 1 - _EQUAL_CLASSES, share
    finite = np.isfinite(first)
    if not np.array_equal(finite, np.isfinite(second)):
        return False, float("inf")
    values = first[finite]
    if not values.size:
        return True, 0.0
    spread, largest = float(np.ptp(values)), float(np.abs(values).max())
    difference = float(np.abs(values - second[finite]).max())
    varies = float(np.ptp(np.where(finite, first, 0), axis=0).max())
    allowed = _OF_SPREAD * varies + _OF_LARGEST * largest + 1e-12
    return difference <= allowed, difference / (spread or largest or 1.0)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _changed_places(before: ModelProto, after: ModelProto) -> list[ValueInfoProto]:
    """Float tensors that both models have and that other nodes make in one than in the other."""
    makers = [
        {name: node.SerializeToString() for node in model.graph.node for name in node.output}
        for model in (before, after)
    ]
    ends = {value.name for model in (before, after) for value in model.graph.output}
    changed = [
        value
        for value in before.graph.value_info
        if value.name not in ends
        and value.type.tensor_type.elem_type == _FLOAT
        and makers[1].get(value.name, b"") != makers[0].get(value.name)
        and value.name in makers[1]
    ]
    return changed[:: 1 + len(changed) // _MOST_PLACES]


def run_model(
    model: ModelProto, feeds: Sequence[Feeds], seen: Sequence[ValueInfoProto] = ()
) -> Outputs:
    """The outputs of each run, without any optimization of the runtime; then the tensors `seen`."""
    import onnx
    import onnxruntime

    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    watched.graph.output.extend(seen)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = thread_limit()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        watched.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [list(session.run(None, dict(one))) for one in feeds]


def _inputs(model: ModelProto) -> list[dict[str, NDArray[Any]]]:
    import numpy as np

    dice = np.random.default_rng(_SEED)
    weights = {tensor.name for tensor in model.graph.initializer}
    sources = [value for value in model.graph.input if value.name not in weights]
    makers = (random_values, _smooth, _ones)
    return [{value.name: make(dice, value) for value in sources} for make in makers]


def random_values(dice: Any, value: ValueInfoProto) -> NDArray[Any]:
    """Floats as of pixels, from 0 to 1; whole numbers that any table of tokens has."""
    shape, kind = _form(value)
    drawn: NDArray[Any] = dice.random(shape) if kind.kind == "f" else dice.integers(0, 2, shape)
    return drawn.astype(kind)


def _smooth(dice: Any, value: ValueInfoProto) -> NDArray[Any]:
    """Floats that rise along every side, as in images; negative ones too."""
    import numpy as np

    shape, kind = _form(value)
    if kind.kind != "f" or not shape:
        return random_values(dice, value)
    total = sum(np.ix_(*(np.linspace(-1, 1, size) * dice.random() for size in shape)))
    return np.asarray(total).astype(kind)


def _ones(dice: Any, value: ValueInfoProto) -> NDArray[Any]:
    """A constant shows what a border does."""
    import numpy as np

    shape, kind = _form(value)
    return np.ones(shape, kind)


def _form(value: ValueInfoProto) -> tuple[list[int], Any]:
    from onnx import helper

    tensor = value.type.tensor_type
    shape = [side.dim_value for side in tensor.shape.dim]
    return shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
