"""The network as a drawing needs it: layers with operator, attributes, shape and what they read, in
one small JSON file that conversion leaves beside a model.

Constants, and the conversions between floats and integers that quantization puts around layers, are
folded away; `tensors` are the names of what a layer writes, since runtimes name such conversions
after them. A layer reads only layers before it, so a file cannot describe a cycle. Files
from a store are not trusted: `parse_outline` checks everything, and the size first.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sized
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from edgeloop.graph.info import Shape

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto


OUTLINE_SUFFIX = ".graph.json"
INPUT, OUTPUT = "Input", "Output"  # operators of the ends of a network
MOST_LAYERS = 5_000
LARGEST_OUTLINE = 1_000_000  # bytes
_MOST_EDGES = 20_000
_LONGEST_NAME = 400
_MOST_ATTRIBUTES = 32
_LONGEST_TEXT = 200  # of an attribute's value
_MOST_VALUES = 16  # of a list in an attribute
_FOLDED = frozenset(("QuantizeLinear", "DequantizeLinear", "Identity", "Dropout"))

Name = Annotated[str, Field(max_length=_LONGEST_NAME)]
Attribute = tuple[
    Annotated[str, Field(max_length=100)], Annotated[str, Field(max_length=_LONGEST_TEXT)]
]


class OutlineLayer(BaseModel):
    """`shape` is that of its first output, empty if unknown; `inputs` are places in the list.
    `attributes` are names and values as text; older files have none."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    name: Name
    operator: Annotated[str, Field(max_length=100)]
    shape: Annotated[tuple[Annotated[int, Field(ge=0, le=2**40)], ...], Field(max_length=16)] = ()
    inputs: Annotated[tuple[int, ...], Field(max_length=2_000)] = ()
    tensors: Annotated[tuple[Name, ...], Field(max_length=100)] = ()
    attributes: Annotated[tuple[Attribute, ...], Field(max_length=_MOST_ATTRIBUTES)] = ()


class Outline(BaseModel):
    """`count` layers, inputs and outputs of the network among them; where these are too many for a
    drawing, `layers` is empty."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    format: Literal[1] = 1
    count: Annotated[int, Field(ge=0, le=2**40)]
    layers: Annotated[tuple[OutlineLayer, ...], Field(max_length=MOST_LAYERS)] = ()

    @model_validator(mode="after")
    def _is_ordered(self) -> Outline:
        for place, layer in enumerate(self.layers):
            if any(not 0 <= source < place for source in layer.inputs):
                raise ValueError("a layer reads one that does not come before it")
        if sum(len(layer.inputs) for layer in self.layers) > _MOST_EDGES:
            raise ValueError("too many connections")
        return self


def parse_outline(content: bytes) -> Outline | None:
    """None for what is not such a file, or of a later format."""
    if len(content) > LARGEST_OUTLINE:
        return None
    try:
        return Outline.model_validate_json(content)
    except (ValidationError, ValueError):
        return None


def outline_bytes(outline: Outline) -> bytes:
    """Without attributes, or even layers, where the file would be too large with them."""
    content = outline.model_dump_json().encode()
    if len(content) > LARGEST_OUTLINE:
        plain = tuple(layer.model_copy(update={"attributes": ()}) for layer in outline.layers)
        content = outline.model_copy(update={"layers": plain}).model_dump_json().encode()
    if len(content) > LARGEST_OUTLINE:
        content = Outline(count=outline.count).model_dump_json().encode()
    return content


def outline_of(model: ModelProto) -> Outline:
    """The graph needs its shapes inferred, and its nodes in an order in which they can run."""
    graph = model.graph
    shapes = _shapes(graph)
    constants = {tensor.name for tensor in graph.initializer}
    makers: dict[str, int] = {}  # of every tensor that is no constant, the layer
    layers: list[OutlineLayer] = []

    def add(
        name: str,
        operator: str,
        source: str,
        inputs: set[int],
        tensors: list[str],
        attributes: tuple[Attribute, ...] = (),
    ) -> None:
        makers.update(dict.fromkeys(tensors, len(layers)))
        shape = shapes.get(source, ())
        is_fixed = len(shape) <= 16 and all(side > 0 for side in shape)
        cut = tuple(text[:_LONGEST_NAME] for text in tensors[:100] if text)
        layers.append(
            OutlineLayer(
                name=name[:_LONGEST_NAME],
                operator=operator[:100],
                inputs=tuple(sorted(inputs))[:2_000],
                tensors=cut,
                shape=shape if is_fixed else (),
                attributes=attributes,
            )
        )

    for value in graph.input:
        if value.name not in constants:
            add(value.name, INPUT, value.name, set(), [value.name])
    for node in graph.node:
        if len(layers) > MOST_LAYERS:
            break
        read = {makers[name] for name in node.input if name in makers}
        if _is_constant(node, read, constants):
            constants.update(node.output)
        elif node.op_type in _FOLDED and read:
            makers.update(dict.fromkeys(node.output, min(read)))
        else:
            name = node.name or next(iter(node.output), "")
            outputs = list(node.output)
            add(name, node.op_type, outputs[0], read, outputs, _attributes(node))
    for value in graph.output:
        if value.name in makers:
            shapes.setdefault(value.name, ())
            _end(layers, makers[value.name], value.name, shapes[value.name])
    edges = sum(len(layer.inputs) for layer in layers)
    if len(layers) > MOST_LAYERS or edges > _MOST_EDGES:
        return Outline(count=max(len(layers), len(graph.node)))
    return Outline(count=len(layers), layers=tuple(layers))


def _attributes(node: NodeProto) -> tuple[Attribute, ...]:
    return tuple(
        (attribute.name[:100], _value_text(attribute)[:_LONGEST_TEXT])
        for attribute in node.attribute[:_MOST_ATTRIBUTES]
    )


def _value_text(attribute: AttributeProto) -> str:
    """Only the first values of a list: a model may have a million in one attribute."""
    from onnx import AttributeProto

    kinds = AttributeProto
    if attribute.type == kinds.INT:
        return str(attribute.i)
    if attribute.type == kinds.FLOAT:
        return f"{attribute.f:.6g}"
    if attribute.type == kinds.STRING:
        return _decoded(attribute.s)
    if attribute.type == kinds.INTS:
        return _listed([str(value) for value in attribute.ints[:_MOST_VALUES]], attribute.ints)
    if attribute.type == kinds.FLOATS:
        texts = [f"{value:.6g}" for value in attribute.floats[:_MOST_VALUES]]
        return _listed(texts, attribute.floats)
    if attribute.type == kinds.STRINGS:
        texts = [_decoded(value) for value in attribute.strings[:_MOST_VALUES]]
        return _listed(texts, attribute.strings)
    if attribute.type == kinds.TENSOR:
        sides = "×".join(str(side) for side in attribute.t.dims[:_MOST_VALUES])
        return f"tensor {sides}".strip()
    if attribute.type == kinds.GRAPH:
        return f"a graph of {len(attribute.g.node)} nodes"
    return "not shown"


def _decoded(content: bytes) -> str:
    return content[: 4 * _LONGEST_TEXT].decode("utf-8", "replace")[:_LONGEST_TEXT]


def _listed(texts: list[str], values: Sized) -> str:
    more = f", … ({len(values)} values)" if len(values) > len(texts) else ""
    return ", ".join(texts)[: _LONGEST_TEXT - len(more)] + more


def _end(layers: list[OutlineLayer], maker: int, name: str, shape: Shape) -> None:
    fixed_shape = shape if len(shape) <= 16 and all(side > 0 for side in shape) else ()
    text = name[:_LONGEST_NAME]
    layers.append(
        OutlineLayer(
            name=text, operator=OUTPUT, shape=fixed_shape, inputs=(maker,), tensors=(text,)
        )
    )


def _is_constant(node: NodeProto, read: set[int], constants: set[str]) -> bool:
    """Computed from constants alone, such as a weight that was quantized."""
    return not read and all(not name or name in constants for name in node.input)


def _shapes(graph: GraphProto) -> dict[str, Shape]:
    """Of tensors whose sides are all known."""
    shapes: Mapping[str, Shape] = {
        value.name: tuple(side.dim_value for side in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }
    return dict(shapes)


# The layers of a model as one page for a browser: no scripts, no network, light and dark.


_STYLE = """
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8884; padding: .25rem .6rem; text-align: left; }
th { background: Canvas; position: sticky; top: 0; }
.number { font-variant-numeric: tabular-nums; text-align: right; }
meter { width: 8rem; }
""".strip()
_HEADINGS = ("", "layer", "operator", "inputs", "outputs", "parameters", "MACs", "share of MACs")
_TIME_HEADINGS = ("estimate, µs", "share of time")


def write_viewer(path: Path, title: str, layers: Path) -> None:
    """From the table of layers that `write_layers` wrote."""
    with layers.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    macs = [_count(row, "macs") for row in rows]
    params = sum(_count(row, "parameters") for row in rows)
    facts = f"{len(rows)} layers, {sum(macs):,} MACs, {params:,} parameters"
    is_timed = any(row.get("time_us") for row in rows)
    if is_timed and (device := rows[0].get("timed_on")):
        facts += f"; time of layers estimated for {escape(device)}"
    lines = [_line(number, row, sum(macs), is_timed) for number, row in enumerate(rows, start=1)]
    shown = (*_HEADINGS, *_TIME_HEADINGS) if is_timed else _HEADINGS
    headings = "".join(f"<th>{heading}</th>" for heading in shown)
    page = (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n<p>{facts}</p>\n"
        f"<table><thead><tr>{headings}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody></table>"
        "</body></html>\n"
    )
    path.write_text(page, encoding="utf-8")


def _line(number: int, row: dict[str, str], all_macs: int, is_timed: bool) -> str:
    texts = [str(row.get(name) or "") for name in ("name", "operator", "inputs", "outputs")]
    cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
    counts = [_count(row, name) for name in ("parameters", "macs")]
    numbers = "".join(f'<td class="number">{c:,}</td>' if c else "<td></td>" for c in counts)
    bar = _bar(counts[1] / all_macs if all_macs else 0.0)
    time = _time_cells(row) if is_timed else ""
    return f'<tr><td class="number">{number}</td>{cells}{numbers}<td>{bar}</td>{time}</tr>\n'


def _time_cells(row: dict[str, str]) -> str:
    """The more of the time a layer takes, the deeper its colour."""
    if row.get("timed_with"):
        return f"<td></td><td>with {escape(row['timed_with'])}</td>"
    share = _number(row, "share")
    style = f"background: rgb(213 94 0 / {min(0.6, 2 * share):.2f})"
    time_us = escape(f"{_number(row, 'time_us'):.1f}")
    return f'<td class="number" style="{style}">{time_us}</td><td>{_bar(share)}</td>'


def _bar(share: float) -> str:
    return f'<meter value="{share:.4f}"></meter> {100 * share:.1f} %' if share else ""


def _number(row: dict[str, str], column: str) -> float:
    try:
        return float(row.get(column) or 0)
    except ValueError:
        return 0.0


def _count(row: dict[str, str], column: str) -> int:
    text = row.get(column) or ""
    return int(text) if text.isdecimal() else 0
