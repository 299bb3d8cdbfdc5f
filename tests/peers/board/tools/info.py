"""snpe-dlc-info: the table of layers and the counts, as text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.peers.board.tools.dlc import Dlc, Layer, NoContainer, Tensor, read_dlc

NAME = "snpe-dlc-info"
_HEADERS = ("Id", "Name", "Type", "Inputs", "Outputs", "Out Dims", "Runtimes", "Parameters")
_TYPES_1 = {"Conv": "convolutional", "Relu": "neuron", "Gemm": "fully_connected"}
_TYPES_2 = {"Conv": "Conv2d", "Relu": "ElementWiseNeuron", "Gemm": "FullyConnected"}
_NO_ENCODING = "No encoding info for this tensor"
_SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_MOST_IN_M = 1e10  # the real one says 1365M


def main(arguments: list[str], version: str) -> int:
    parser = argparse.ArgumentParser(NAME, allow_abbrev=False)
    parser.add_argument("--input_dlc", "-i", required=True)
    parser.add_argument("--save", "-s")
    parser.add_argument("--display_memory", "-m", action="store_true")
    parser.add_argument("--display_all_encodings", "-d", action="store_true")
    options = parser.parse_args(arguments)
    try:
        dlc = read_dlc(Path(options.input_dlc))
    except NoContainer as error:
        print(error, file=sys.stderr)
        return 1
    print(f"DLC info for: {Path(options.input_dlc).resolve()}")
    print("Model Version: N/A\nModel Copyright:N/A")
    print(_table(dlc, version))
    if not version.startswith("1."):
        print(_ends("Input", dlc.inputs))
        print(_ends("Output", dlc.outputs))
    parameters = sum(layer.parameters for layer in dlc.layers)
    megabytes = parameters * 4 // (1 << 20)
    print(f"Total parameters: {parameters} ({megabytes} MB assuming single precision float)")
    macs = sum(layer.macs for layer in dlc.layers)
    print(f"Total MACs per inference: {_short(macs)} (100%)")
    print(f"Converter command: {dlc.commands.get('converter-command', 'N/A')}")
    print(f"Quantizer command: {dlc.commands.get('quantizer-command', 'N/A')}")
    print(f"DLC created with converter version: {dlc.commands.get('converter-version', 'N/A')}")
    return 0


def _table(dlc: Dlc, version: str) -> str:
    types = _TYPES_1 if version.startswith("1.") else _TYPES_2
    coded = {tensor.name: tensor for tensor in dlc.outputs if tensor.encoding is not None}
    rows: list[tuple[str, ...]] = []
    if version.startswith("1."):  # inputs are layers there
        layers = [*(_data(tensor) for tensor in dlc.inputs), *dlc.layers]
    else:
        layers = list(dlc.layers)
    for number, layer in enumerate(layers):
        notes = _notes(layer, dlc, coded)
        rows.append(
            (
                *(str(number), layer.name, types.get(layer.operator, layer.operator)),
                *(_first(layer.inputs), _first(layer.outputs)),
                *("x".join(map(str, layer.shape)), "A D G C", notes[0]),
            )
        )
        rows += [("",) * 7 + (note,) for note in notes[1:]]
    return _drawn(_HEADERS, rows)


def _data(tensor: Tensor) -> Layer:
    names = (tensor.name,)
    return Layer(tensor.name, "data", names, names, tensor.outside, parameters=0, macs=0)


def _ends(what: str, tensors: tuple[Tensor, ...]) -> str:
    rows = [
        (
            *(tensor.name, ",".join(map(str, tensor.outside))),
            *(_type(tensor), _encoding(tensor) if tensor.encoding else _NO_ENCODING),
        )
        for tensor in tensors
    ]
    return _drawn((f"{what} Name", "Dimensions", "Type", "Encoding Info"), rows)


def _type(tensor: Tensor) -> str:
    if tensor.encoding is not None:
        return f"uFxp_{tensor.encoding.bits}"
    return {"float32": "Float_32", "uint8": "uInt_8"}.get(tensor.native, "Int_32")


def _drawn(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in (headers, *rows)) for i in range(len(headers))]
    lines = [_row(headers, widths), *(_row(row, widths) for row in rows)]
    rule = "-" * len(lines[0])
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def _notes(layer: Layer, dlc: Dlc, coded: dict[str, Tensor]) -> list[str]:
    notes = []
    total = sum(each.parameters for each in dlc.layers)
    if layer.parameters:
        notes.append(f"param count: {_short(layer.parameters)} ({_share(layer.parameters, total)})")
    if layer.macs:
        macs = sum(each.macs for each in dlc.layers)
        notes.append(f"MACs per inference: {_short(layer.macs)} ({_share(layer.macs, macs)})")
    notes += [_encoding(coded[name]) for name in layer.outputs if name in coded]
    return notes or [""]


def _encoding(tensor: Tensor) -> str:
    assert tensor.encoding is not None
    code = tensor.encoding
    low, high = code.offset * code.scale, ((1 << code.bits) - 1 + code.offset) * code.scale
    return (
        f"{tensor.name} encoding : bitwidth {code.bits}, min {low:.12f}, max {high:.12f}, "
        f"scale {code.scale:.12f}, offset {code.offset:.12f}"
    )


def _row(cells: tuple[str, ...], widths: list[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "| " + " | ".join(padded) + " |"


def _short(count: int) -> str:
    for size, suffix in _SUFFIXES:
        if count >= (_MOST_IN_M if suffix == "G" else size):
            return f"{count / size:.4g}{suffix}"
    return str(count)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.3g}%"


def _first(names: tuple[str, ...]) -> str:
    return names[0] if names else ""
