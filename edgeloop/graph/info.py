"""What a model's graph says of itself: its inputs and outputs, and how much it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Layout = Literal["NCHW", "NHWC", ""]
Shape = tuple[int, ...]


def shape_text(shape: Shape) -> str:
    return "x".join(str(side) for side in shape) or "scalar"


@dataclass(frozen=True)
class TensorInfo:
    """An input or output. The shape is the file's, with the batch; `layout` says that it is an RGB
    image, and where its channels are."""

    name: str
    shape: Shape
    dtype: str = "float32"
    layout: Layout = ""

    @property
    def height(self) -> int:
        """Of an image; 0 for any other tensor."""
        return self.shape[self.layout.index("H")] if self.layout else 0

    @property
    def width(self) -> int:
        return self.shape[self.layout.index("W")] if self.layout else 0


@dataclass(frozen=True)
class GraphMemory:
    """Bytes, as floats and quantized. Activations: the most that lives at one moment, layer by
    layer in the order of the graph; a compiler may do better, or split it."""

    weights: int
    weights_8bit: int
    activations: int
    activations_8bit: int
    activations_16bit: int


@dataclass(frozen=True)
class GraphInfo:
    """All inputs and outputs in the order of the graph; the properties are for the common case of
    one image in, one tensor out."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    macs: int
    params: int
    memory: GraphMemory | None = None

    @property
    def image(self) -> TensorInfo | None:
        """The input, where it is the only one and an image."""
        return self.inputs[0] if len(self.inputs) == 1 and self.inputs[0].layout else None

    @property
    def batch(self) -> int:
        """How many samples one run takes: the first side, where all tensors share it."""
        firsts = {tensor.shape[:1] for tensor in (*self.inputs, *self.outputs)}
        if len(firsts) != 1 or any(len(tensor.shape) < 2 for tensor in self.inputs):
            return 1
        return firsts.pop()[0]

    def sample_shape(self, tensor: TensorInfo) -> Shape:
        """The shape of one sample of an input or output: without the batch, where it has one."""
        return tensor.shape[1:] if tensor.shape[:1] == (self.batch,) else tensor.shape

    @property
    def input_name(self) -> str:
        return self.inputs[0].name

    @property
    def input_shape(self) -> Shape:
        return self.inputs[0].shape

    @property
    def output_name(self) -> str:
        return self.outputs[0].name

    @property
    def output_shape(self) -> Shape:
        return self.outputs[0].shape

    @property
    def layout(self) -> Layout:
        return self.inputs[0].layout

    @property
    def height(self) -> int:
        return self.inputs[0].height

    @property
    def width(self) -> int:
        return self.inputs[0].width

    def to_fields(self) -> dict[str, Any]:
        """Plain values, for another process."""
        return asdict(self)


def info_from(fields: Mapping[str, Any]) -> GraphInfo:
    """From `to_fields`, after a way that turned tuples into lists."""
    ends = {
        side: tuple(TensorInfo(**{**one, "shape": tuple(one["shape"])}) for one in fields[side])
        for side in ("inputs", "outputs")
    }
    memory = GraphMemory(**fields["memory"]) if fields.get("memory") else None
    return GraphInfo(**{**fields, **ends, "memory": memory})


def image_info(
    input_name: str,
    output_name: str,
    input_shape: Shape,
    output_shape: Shape,
    layout: Layout = "NCHW",
    macs: int = 0,
    params: int = 0,
) -> GraphInfo:
    """One image in, one tensor of floats out."""
    source = TensorInfo(input_name, input_shape, layout=layout)
    return GraphInfo((source,), (TensorInfo(output_name, output_shape),), macs, params)
