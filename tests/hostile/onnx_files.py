"""Files that claim to be ONNX models: broken bytes, numbers that lie, names that bite.

A builder writes `net.onnx` into a folder, and whatever else belongs to it.
"""

from __future__ import annotations

import gzip
import io
import os
import random
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Builder = Callable[[Path], None]
ESCAPES = "a\x1b[2J\x1b]0;owned\x07\nb\r\x00c\u202e"
HUGE = 2**62


def tiny(
    nodes: list[onnx.NodeProto] | None = None,
    initializers: list[onnx.TensorProto] | None = None,
    inputs: list[onnx.ValueInfoProto] | None = None,
    outputs: list[onnx.ValueInfoProto] | None = None,
    **fields: Any,
) -> onnx.ModelProto:
    """A graph `x → y` around what is given."""
    graph = helper.make_graph(
        nodes if nodes is not None else [helper.make_node("Relu", ["x"], ["y"])],
        "graph",
        inputs if inputs is not None else [tensor("x")],
        outputs if outputs is not None else [tensor("y")],
        initializers or [],
    )
    fields.setdefault("opset_imports", [helper.make_opsetid("", 17)])
    return helper.make_model(graph, ir_version=9, **fields)


def tensor(name: str, shape: tuple[Any, ...] = (1, 4), kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def add(weight: str = "w") -> list[onnx.NodeProto]:
    return [helper.make_node("Add", ["x", weight], ["y"])]


def bare(kind: int = TensorProto.FLOAT, dims: tuple[int, ...] = (1, 4)) -> onnx.TensorProto:
    return onnx.TensorProto(name="w", data_type=kind, dims=dims)


def weights(*values: float) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array([values or (1, 2, 3, 4)], np.float32), "w")


def whole(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def external(**fields: str) -> onnx.ModelProto:
    """A weight of 16 bytes that lies somewhere else."""
    one = bare()
    one.data_location = TensorProto.EXTERNAL
    for key, value in fields.items():
        one.external_data.add(key=key, value=value)
    return tiny(add(), [one])


# ---- bytes


def _plain() -> bytes:
    return tiny(add(), [weights()]).SerializeToString()


def _flipped(seed: int) -> bytes:
    content, random_bits = bytearray(_plain()), random.Random(seed)
    for _ in range(3):
        content[random_bits.randrange(len(content))] ^= 1 << random_bits.randrange(8)
    return bytes(content)


def _zipped() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("net.onnx", _plain())
    return packed.getvalue()


def _nested_fields(depth: int) -> bytes:
    """GraphProto in AttributeProto in NodeProto in GraphProto …"""
    content = b""
    for _ in range(depth):
        for field in (6, 5, 1):  # attribute.g, node.attribute, graph.node
            content = bytes([field << 3 | 2]) + _varint(len(content)) + content
    return b"\x08\x09\x3a" + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


BYTES: Mapping[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "zeros": lambda: bytes(1 << 20),
    "ones": lambda: b"\xff" * (1 << 20),
    "noise": lambda: random.Random(1).randbytes(1 << 16),
    "text": lambda: b"import torch\n" * 1000,
    "half": lambda: _plain()[: len(_plain()) // 2],
    "last byte missing": lambda: _plain()[:-1],
    "gzip": lambda: gzip.compress(_plain()),
    "zip": _zipped,
    "png": lambda: b"\x89PNG\r\n\x1a\n" + bytes(100),
    "pickle": lambda: b"\x80\x04cos\nsystem\n(X\x02\x00\x00\x00idtR.",
    "length of 2 GB": lambda: b"\x3a\xff\xff\xff\xff\x07",
    "length of 2**63": lambda: b"\x3a" + b"\xff" * 9 + b"\x01",
    "endless varint": lambda: b"\x08" + b"\xff" * 100,
    "groups in groups": lambda: b"\x3b" * 100_000,
    "graphs in graphs": lambda: _nested_fields(5_000),
    "shallow graphs in graphs": lambda: _nested_fields(20),
    "only unknown fields": lambda: b"\xfa\x3f\x04aaaa" * 100_000,
    "name not UTF-8": lambda: _plain().replace(b"graph", b"gra\xffh"),
    "bit flips 1": lambda: _flipped(1),
    "bit flips 2": lambda: _flipped(2),
    "bit flips 3": lambda: _flipped(3),
    "bit flips 4": lambda: _flipped(4),
    "bit flips 5": lambda: _flipped(5),
}


# ---- numbers, names and types in a file that is ONNX


def _changed(**fields: Any) -> onnx.ModelProto:
    model = tiny()
    for name, value in fields.items():
        setattr(model, name, value)
    return model


def _without(*fields: str) -> onnx.ModelProto:
    model = tiny()
    for field in fields:
        owner: Any = model
        *above, last = field.split(".")
        for part in above:
            owner = getattr(owner, part)
        owner.ClearField(last)
    return model


def _opsets(*opsets: tuple[str, int]) -> onnx.ModelProto:
    return tiny(opset_imports=[helper.make_opsetid(*opset) for opset in opsets])


def _with_data(dims: tuple[int, ...], **data: Any) -> onnx.ModelProto:
    one = bare(dims=dims)
    for field, value in data.items():
        if isinstance(value, bytes):
            setattr(one, field, value)
        else:
            getattr(one, field).extend(value)
    return tiny(add(), [one])


def _sparse(dims: tuple[int, ...], *places: int) -> onnx.ModelProto:
    model = tiny(add())
    values = numpy_helper.from_array(np.ones(len(places), np.float32), "w")
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, whole("places", *places), dims)
    )
    return model


def _value(kind: onnx.TypeProto) -> onnx.ModelProto:
    return tiny(inputs=[helper.make_value_info("x", kind)])


def _element() -> onnx.TypeProto:
    return helper.make_tensor_type_proto(TensorProto.FLOAT, [1, 4])


def _attribute(*attributes: onnx.AttributeProto, op: str = "Relu") -> onnx.ModelProto:
    model = tiny([helper.make_node(op, ["x"], ["y"])])
    model.graph.node[0].attribute.extend(attributes)
    return model


def _chain(count: int, name: str = "") -> onnx.ModelProto:
    ends = ["x", *(f"{name}{number}" for number in range(count - 1)), "y"]
    return tiny([helper.make_node("Relu", [ends[n]], [ends[n + 1]]) for n in range(count)])


def _many_inputs(count: int) -> onnx.ModelProto:
    names = [f"x{number}" for number in range(count)]
    return tiny([helper.make_node("Sum", names, ["y"])], inputs=[tensor(name) for name in names])


def _many_outputs(count: int) -> onnx.ModelProto:
    names = [f"y{number}" for number in range(count)]
    nodes = [helper.make_node("Relu", ["x"], [name]) for name in names]
    return tiny(nodes, outputs=[tensor(name) for name in names])


def _named(name: str) -> onnx.ModelProto:
    nodes = [helper.make_node("Neg", [name], [f"{name}2"], name=name)]
    nodes.append(helper.make_node("NoSuchOperator", [f"{name}2"], [f"{name}3"], name=name))
    model = tiny(nodes, inputs=[tensor(name)], outputs=[tensor(f"{name}3")])
    model.producer_name = name
    return model


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "no graph": lambda: _without("graph"),
    "no nodes": lambda: _without("graph.node"),
    "no inputs": lambda: _without("graph.input"),
    "no outputs": lambda: _without("graph.output"),
    "no opset": lambda: _without("opset_import"),
    "no version": lambda: _without("ir_version"),
    "opset 0": lambda: _opsets(("", 0)),
    "opset -1": lambda: _opsets(("", -1)),
    "opset 2**60": lambda: _opsets(("", 2**60)),
    "opset twice": lambda: _opsets(("", 17), ("", 13)),
    "opset of a stranger": lambda: _opsets(("com.evil", 1)),
    "opset with escapes": lambda: _opsets((ESCAPES, 1), ("", 17)),
    "version 2**60": lambda: _changed(ir_version=2**60),
    "version -1": lambda: _changed(ir_version=-1),
    "input without type": lambda: tiny(inputs=[onnx.ValueInfoProto(name="x")]),
    "input without name": lambda: tiny(inputs=[tensor("")]),
    "input twice": lambda: tiny(inputs=[tensor("x"), tensor("x")]),
    "input of texts": lambda: tiny(inputs=[tensor("x", kind=TensorProto.STRING)]),
    "input of type 999": lambda: tiny(inputs=[tensor("x", kind=999)]),
    "input of type 0": lambda: tiny(inputs=[tensor("x", kind=0)]),
    "input of complex": lambda: tiny(inputs=[tensor("x", kind=TensorProto.COMPLEX64)]),
    "input a sequence": lambda: _value(helper.make_sequence_type_proto(_element())),
    "input an optional": lambda: _value(helper.make_optional_type_proto(_element())),
    "input a map": lambda: _value(helper.make_map_type_proto(TensorProto.INT64, _element())),
    "input negative": lambda: tiny(inputs=[tensor("x", (1, -4))], outputs=[tensor("y", (1, -4))]),
    "input of no elements": lambda: tiny(
        inputs=[tensor("x", (1, 0))], outputs=[tensor("y", (1, "n"))]
    ),
    "input of 2**62": lambda: tiny(
        inputs=[tensor("x", (1, HUGE))], outputs=[tensor("y", (1, HUGE))]
    ),
    "input of 2**80": lambda: tiny(
        inputs=[tensor("x", (2**40, 2**40))], outputs=[tensor("y", (2**40, 2**40))]
    ),
    "input of 10,000 sides": lambda: tiny(inputs=[tensor("x", (1,) * 10_000)]),
    "input with open sizes": lambda: tiny(inputs=[tensor("x", ("a", "b", "c", "d"))]),
    "open size with escapes": lambda: tiny(inputs=[tensor("x", (1, ESCAPES))]),
    "20,000 inputs": lambda: _many_inputs(20_000),
    "5,000 outputs": lambda: _many_outputs(5_000),
    "weight without data": lambda: tiny(add(), [bare()]),
    "weight of 2**62 without data": lambda: tiny(add(), [bare(dims=(HUGE,))]),
    "weight of 2**80 without data": lambda: tiny(add(), [bare(dims=(2**40, 2**40))]),
    "weight negative": lambda: tiny(add(), [bare(dims=(-4,))]),
    "weight with too little data": lambda: _with_data((1, 4), raw_data=bytes(15)),
    "weight with too much data": lambda: _with_data((1, 4), raw_data=bytes(1 << 20)),
    "weight with data twice": lambda: _with_data((1, 4), raw_data=bytes(16), float_data=[1] * 4),
    "weight with wrong data": lambda: _with_data((1, 4), int64_data=[1] * 4),
    "weight of texts": lambda: tiny(add(), [helper.make_tensor("w", 8, [1], [b"x"])]),
    "weight of type 999": lambda: tiny(add(), [bare(kind=999)]),
    "weight NaN": lambda: tiny(add(), [weights(float("nan"), 1, 2, 3)]),
    "weight twice": lambda: tiny(add(), [weights(), weights()]),
    "weight without name": lambda: tiny(
        add(""), [numpy_helper.from_array(np.ones(4, np.float32), "")]
    ),
    "weight of 1,000,000 sides": lambda: tiny(add(), [bare(dims=(1,) * 1_000_000)]),
    "sparse of 2**62": lambda: _sparse((HUGE,), 1, 2),
    "sparse outside": lambda: _sparse((1, 4), 3, 99),
    "sparse negative": lambda: _sparse((1, 4), -5, 2),
    "60,000 nodes": lambda: _chain(60_000),
    "names of 1 MB": lambda: _chain(20, "n" * 1_000_000),
    "names with escapes": lambda: _named(ESCAPES),
    "names of escapes, 1 MB": lambda: _named(ESCAPES * 100_000),
    "names with markup": lambda: _named("<script>alert(1)</script>../../../etc/passwd"),
    "operator without name": lambda: tiny([helper.make_node("", ["x"], ["y"])]),
    "operator of 1 MB": lambda: tiny([helper.make_node("R" * 1_000_000, ["x"], ["y"])]),
    "operator with escapes": lambda: tiny([helper.make_node(ESCAPES, ["x"], ["y"])]),
    "operator of a stranger": lambda: tiny(
        [helper.make_node("Exec", ["x"], ["y"], domain="com.evil")],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.evil", 1)],
    ),
    "cycle": lambda: tiny(
        [helper.make_node("Add", ["x", "b"], ["y"]), helper.make_node("Relu", ["y"], ["b"])]
    ),
    "node that feeds itself": lambda: tiny([helper.make_node("Add", ["x", "y"], ["y"])]),
    "node that writes the input": lambda: tiny(
        [helper.make_node("Relu", ["x"], ["x"]), helper.make_node("Relu", ["x"], ["y"])]
    ),
    "input from nowhere": lambda: tiny([helper.make_node("Add", ["x", "nowhere"], ["y"])]),
    "output from nowhere": lambda: tiny(outputs=[tensor("nowhere")]),
    "one name made twice": lambda: tiny([helper.make_node("Relu", ["x"], ["y"])] * 2),
    "too few operands": lambda: tiny([helper.make_node("Conv", ["x"], ["y"])]),
    "too many operands": lambda: tiny([helper.make_node("Relu", ["x"] * 100_000, ["y"])]),
    "attribute of 1,000,000 numbers": lambda: _attribute(
        helper.make_attribute("axes", list(range(1_000_000))), op="ReduceMean"
    ),
    "attribute twice": lambda: _attribute(
        helper.make_attribute("axis", 0), helper.make_attribute("axis", 1), op="Softmax"
    ),
    "attribute unknown": lambda: _attribute(helper.make_attribute("evil", 1)),
    "attribute of another type": lambda: _attribute(
        helper.make_attribute("axis", "x"), op="Softmax"
    ),
    "attribute without type": lambda: _attribute(onnx.AttributeProto(name="axis"), op="Softmax"),
    "axis of 2**62": lambda: _attribute(helper.make_attribute("axis", HUGE), op="Softmax"),
}


# ---- weights beside the file


def _beside(model: onnx.ModelProto, place: Callable[[Path], None] = lambda _: None) -> Builder:
    def build(folder: Path) -> None:
        (folder / "net.onnx").write_bytes(model.SerializeToString())
        place(folder)

    return build


def _bytes(size: int, name: str = "w.bin") -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(bytes(size)) and None


EXTERNAL: Mapping[str, Builder] = {
    "external missing": _beside(external(location="w.bin")),
    "external unnamed": _beside(external()),
    "external empty name": _beside(external(location="")),
    "external above": _beside(external(location="../w.bin")),
    "external absolute": _beside(external(location="/etc/hostname")),
    "external itself": _beside(external(location="net.onnx")),
    "external itself, said otherwise": _beside(external(location="./net.onnx")),
    "external a folder": _beside(external(location="w"), lambda f: (f / "w").mkdir()),
    "external a pipe": _beside(external(location="w.bin"), lambda f: os.mkfifo(f / "w.bin")),
    "external endless": _beside(
        external(location="w.bin"), lambda f: (f / "w.bin").symlink_to("/dev/zero")
    ),
    "external a link outside": _beside(
        external(location="w.bin"), lambda f: (f / "w.bin").symlink_to("/etc/hostname")
    ),
    "external a circular link": _beside(
        external(location="w.bin"), lambda f: (f / "w.bin").symlink_to("w.bin")
    ),
    "external cut off": _beside(external(location="w.bin"), _bytes(15)),
    "external offset beyond": _beside(external(location="w.bin", offset="4096"), _bytes(16)),
    "external offset negative": _beside(external(location="w.bin", offset="-1"), _bytes(16)),
    "external offset no number": _beside(external(location="w.bin", offset="x"), _bytes(16)),
    "external offset of 5,000 digits": _beside(
        external(location="w.bin", offset="9" * 5_000), _bytes(16)
    ),
    "external length of 10**30": _beside(
        external(location="w.bin", length=str(10**30)), _bytes(16)
    ),
    "external length 0": _beside(external(location="w.bin", length="0"), _bytes(16)),
    "external with a null": _beside(external(location="w\x00.bin"), _bytes(16)),
    "external with escapes": _beside(external(location=ESCAPES.replace("\x00", ""))),
    "external of 10,000 letters": _beside(external(location="w" * 10_000)),
    "external in 10,000 folders": _beside(external(location="w/" * 10_000 + "w")),
}


def _write(folder: Path, content: bytes) -> None:
    (folder / "net.onnx").write_bytes(content)


def _of_bytes(make: Callable[[], bytes]) -> Builder:
    return lambda folder: _write(folder, make())


def _of_model(make: Callable[[], onnx.ModelProto]) -> Builder:
    return lambda folder: _write(folder, make().SerializeToString())


INPUTS: Mapping[str, Builder] = {
    **{name: _of_bytes(make) for name, make in BYTES.items()},
    **{name: _of_model(make) for name, make in MODELS.items()},
    **EXTERNAL,
    "a pipe": lambda folder: os.mkfifo(folder / "net.onnx"),
    "a device": lambda folder: (folder / "net.onnx").symlink_to("/dev/zero"),
    "a folder": lambda folder: (folder / "net.onnx").mkdir(),
    "a circular link": lambda folder: (folder / "net.onnx").symlink_to("net.onnx"),
}
