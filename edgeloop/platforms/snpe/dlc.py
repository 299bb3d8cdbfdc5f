"""What `snpe-dlc-info` prints of a DLC: counts, the table of its layers, how outputs are coded.

Its text is for people and changed over the versions, so each part is looked for on its own and may
be missing; nothing here fails a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput
from edgeloop.graph.count import CountedLayer
from edgeloop.graph.info import GraphInfo, Shape, TensorInfo
from edgeloop.graph.variants import DLC_INPUT, DLC_OUTPUT, dlc_names
from edgeloop.platforms.batching import model_inputs
from edgeloop.tasks import Tensors

ENCODINGS_SUFFIX = ".encodings.json"
_NUMBER = r"([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
_COUNT = _NUMBER + r"\s*([kKMGTB]?)"
_FACTORS = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_PARAMETERS = re.compile(r"Total parameters:\s*" + _COUNT)
_MACS = re.compile(r"Total MACs per inference:\s*" + _COUNT)
_LAYER_PARAMETERS = re.compile(r"param count:\s*" + _COUNT)
_LAYER_MACS = re.compile(r"MACs per inference:\s*" + _COUNT)
_CODED = re.compile(
    rf"bitwidth\s*:?\s*(\d+).*?(?:scale|delta)\s*:?\s*{_NUMBER}.*?offset\s*:?\s*{_NUMBER}"
)
_TENSOR = re.compile(r"([^\s|;]+) \(data type: [^;()]*; tensor dimension: \[([\d, ]+)\]")
_ENDS = (("input name", "dimensions"), ("output name", "dimensions"))


@dataclass(frozen=True)
class Encoding:
    """How a quantized tensor is read: value = (number + offset) × scale."""

    scale: float
    offset: float
    bits: int

    def dequantize(self, numbers: NDArray[Any]) -> NDArray[np.float32]:
        import numpy as np

        values: NDArray[np.float32] = numbers.astype(np.float32)
        values += np.float32(self.offset)
        values *= np.float32(self.scale)
        return values


@dataclass(frozen=True)
class DlcInfo:
    """None, or empty, where the text does not say it. Counts over 1,000 are rounded by the tool.
    `shapes` and `encodings` are those of the inputs and outputs that have names of ours."""

    params: float | None
    macs: float | None
    layers: tuple[CountedLayer, ...]
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    encodings: Mapping[str, Encoding] = field(default_factory=dict)


def read_info(text: str, names: Sequence[str] = (DLC_OUTPUT,)) -> DlcInfo:
    shapes = _shapes(text)
    encodings = {name: _encoding(text, name) for name in names}
    return DlcInfo(
        _count(_PARAMETERS.search(text)),
        _count(_MACS.search(text)),
        tuple(_layers(text)),
        {name: shapes[name] for name in names if name in shapes},
        {name: encoding for name, encoding in encodings.items() if encoding is not None},
    )


@dataclass(frozen=True)
class DlcTensors:
    """What a board must know of a model's inputs and outputs besides their shapes: how the DLC has
    them. `batch` is how many samples the DLC takes at once; None: as many as the model."""

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    encodings: Mapping[str, Encoding] = field(default_factory=dict)
    batch: int | None = None

    def write(self, path: Path) -> None:
        coded = {name: asdict(encoding) for name, encoding in self.encodings.items()}
        fields = {"encodings": coded, "shapes": self.shapes, "batch": self.batch}
        path.write_text(json.dumps(fields) + "\n", encoding="utf-8")


def read_tensors(model: Path) -> DlcTensors:
    """Of a DLC, from the file that conversion laid beside it; without it, or where an encoding is
    missing, outputs should be asked for as floats."""
    stem = model.name.removesuffix(".dlc").removesuffix(".quant")
    try:
        fields = json.loads((model.with_name(stem + ENCODINGS_SUFFIX)).read_text(encoding="utf-8"))
        if "scale" in fields:  # written before models could have several outputs
            return DlcTensors(encodings={DLC_OUTPUT: _encoding_from(fields)})
        batch = fields["batch"]
        return DlcTensors(
            {name: tuple(map(int, shape)) for name, shape in fields["shapes"].items()},
            {name: _encoding_from(each) for name, each in fields["encodings"].items()},
            None if batch is None else int(batch),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return DlcTensors()


def _encoding_from(fields: Mapping[str, Any]) -> Encoding:
    return Encoding(float(fields["scale"]), float(fields["offset"]), int(fields["bits"]))


def _shapes(text: str) -> dict[str, Shape]:
    """From the tables of inputs and outputs, from what 2.x say of a layer's tensors, and from the
    layers' rows of 1.x, in which inputs are layers of their own."""
    shapes: dict[str, Shape] = {}
    columns: dict[str, int] = {}
    for cells in _rows(text):
        names = [cell.lower() for cell in cells]
        if "out dims" in names or "dimensions" in names:
            columns = {name: index for index, name in enumerate(names)}
            continue
        if len(cells) != len(columns):
            continue
        for name, shape in (("outputs", "out dims"), *_ENDS):
            tensor = cells[columns[name]].split() if name in columns else []
            sides = re.findall(r"\d+", cells[columns[shape]]) if shape in columns else []
            if tensor and sides:
                shapes[tensor[0]] = tuple(map(int, sides))
    for name, sides in _TENSOR.findall(text):
        shapes[name] = tuple(int(side) for side in re.findall(r"\d+", sides))
    return shapes


def _rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().split("|")[1:-1]]
        if cells:
            yield cells


def _layers(text: str) -> Iterator[CountedLayer]:
    """Rows of the table; a layer goes on over lines that have no number of their own."""
    columns: dict[str, int] = {}
    entry: list[list[str]] = []
    for cells in _rows(text):
        names = [cell.lower() for cell in cells]
        if "id" in names and "type" in names:
            columns = {name: index for index, name in enumerate(names)}
            continue
        if not columns or len(cells) != len(columns):
            continue
        if cells[columns["id"]].isdigit():
            if entry:
                yield _layer(entry, columns)
            entry = []
        if entry or cells[columns["id"]].isdigit():
            entry.append(cells)
    if entry:
        yield _layer(entry, columns)


def _layer(entry: list[list[str]], columns: dict[str, int]) -> CountedLayer:
    name = columns.get("name", columns.get("op name", columns.get("layer name", columns["type"])))
    said = " ".join(" ".join(cells) for cells in entry)
    shapes = tuple(
        tuple(int(side) for side in re.findall(r"\d+", cells[columns["out dims"]]))
        for cells in entry
        if "out dims" in columns and cells[columns["out dims"]]
    )
    return CountedLayer(
        name=entry[0][name],
        operator=entry[0][columns["type"]],
        inputs=(),
        outputs=shapes,
        parameters=int(_count(_LAYER_PARAMETERS.search(said)) or 0),
        macs=int(_count(_LAYER_MACS.search(said)) or 0),
    )


def _encoding(text: str, name: str) -> Encoding | None:
    """Behind the tensor's own name: the line may speak of others, too."""
    for kind in (r"\s+encoding\b[^|;]*", r"\s*\|[^|]*\|[^|]*\|[^|]*\|"):
        for mention in re.finditer(rf"(?<![\w/.:]){re.escape(name)}{kind}", text):
            match = _CODED.search(mention[0])
            if match and float(match[2]) > 0:
                return Encoding(float(match[2]), -abs(float(match[3])), int(match[1]))
    return None


def _count(match: re.Match[str] | None) -> float | None:
    return None if match is None else float(match[1]) * _FACTORS[match[2]]


# Inputs and outputs as the SDK's tools read and write them: floats, with channels last.
#
# The converter moves the channels of what it takes for an image behind its sides, and says so only
# in the shapes that `snpe-dlc-info` prints. Where a tensor looks the same both ways (its sides are
# equal), four dimensions are an image and others are not.


_LARGEST_WHOLE = 1 << 24  # beyond, a float of four bytes does not hold every whole number
_IMAGE_RANK = 4


def is_float(tensor: TensorInfo) -> bool:
    return np.dtype(tensor.dtype).kind == "f"


def channels_last(shape: Shape) -> Shape:
    return (shape[0], *shape[2:], shape[1])


def is_moved(shape: Shape, in_dlc: Shape | None, image: bool = True) -> bool:
    """Whether the DLC has a tensor of this shape with its channels last. Where that does not say,
    or `in_dlc` is unknown, a tensor of four dimensions is like this if it is an `image`."""
    if len(shape) < 3:
        return False
    turned = channels_last(shape)
    if in_dlc is None or turned == shape or in_dlc not in (shape, turned):
        return image and len(shape) == _IMAGE_RANK
    return in_dlc == turned


def input_word(name: str, path: str, count: int) -> str:
    """An input in a line of an input list; a model's only one needs no name."""
    return path if count == 1 else f"{name}:={path}"


def board_inputs(
    batch: Tensors, info: GraphInfo, shapes: Mapping[str, Shape]
) -> Iterator[NDArray[np.float32]]:
    """What the tools read for one run, in the order of the inputs. `shapes` are the DLC's."""
    names = dlc_names(DLC_INPUT, len(info.inputs))
    taken = model_inputs(batch, info)
    for name, tensor in zip(names, info.inputs, strict=True):
        yield board_input(taken[tensor.name], tensor, shapes.get(name))


def board_input(
    array: NDArray[Any], tensor: TensorInfo, in_dlc: Shape | None
) -> NDArray[np.float32]:
    """From what the model takes in one run. Whole numbers are written as floats, too."""
    if (
        not is_float(tensor)
        and array.size
        and np.abs(array.astype(np.int64)).max() > _LARGEST_WHOLE
    ):
        reason = (
            f"the input {tensor.name!r} has numbers beyond {_LARGEST_WHOLE}: the SDK's tools read "
            "floats, which do not hold them"
        )
        raise BadInput(reason=reason)
    floats = array.astype(np.float32, copy=False)
    if tensor.layout != "NHWC" and is_moved(tensor.shape, in_dlc):
        floats = np.moveaxis(floats, 1, -1)
    return np.ascontiguousarray(floats)
