"""snpe-onnx-to-dlc."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path

import onnx
from onnx import ModelProto

from tests.peers.board.tools import graph
from tests.peers.board.tools.dlc import Dlc, command_line

NAME = "snpe-onnx-to-dlc"
LAYOUTS = (
    *("NCDHW", "NDHWC", "NCHW", "NHWC", "NFC", "NCF"),
    *("NTF", "TNF", "NF", "NC", "F", "NONTRIVIAL"),
)
DTYPES = ("float16", "float32", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


def main(arguments: list[str], version: str) -> int:
    options = _parser().parse_args(arguments)
    try:
        dlc = _convert(options, command_line(NAME, arguments), version)
    except Exception as error:
        _say("ERROR", f"Encountered Error: {error}")
        return 1
    target = Path(options.output_path or Path(options.input_network).with_suffix(".dlc"))
    _say("INFO", f"INFO_DLC_SAVE_LOCATION: Saving model at {target}")
    dlc.write(target)
    _say("INFO", "INFO_CONVERSION_SUCCESS: Conversion completed successfully")
    return 0


def _convert(options: argparse.Namespace, command: str, version: str) -> Dlc:
    model = onnx.load(options.input_network)
    _set_shapes(model, options.input_dim or [])
    onnx.checker.check_model(model)
    layouts, dtypes = dict(options.input_layout or []), dict(options.input_dtype or [])
    unknown = {*layouts.values()} - set(LAYOUTS) | {*dtypes.values()} - set(DTYPES)
    if unknown:
        raise graph.Unconvertible(f"ERROR_INVALID_CHOICE: {', '.join(sorted(unknown))}")
    ends = graph.Ends(layouts, dtypes, options.out_node or ())
    inputs, outputs = graph.tensors(model, ends)
    commands = {"converter-command": command, "converter-version": version}
    return Dlc(
        model.SerializeToString(),
        tuple(inputs),
        tuple(outputs),
        tuple(graph.layers(model, graph.moved_tensors(model, layouts))),
        commands=commands,
    )


def _set_shapes(model: ModelProto, given: list[list[str]]) -> None:
    shapes = {name: [int(side) for side in sides.split(",")] for name, sides in given}
    for value in model.graph.input:
        if value.name in shapes:
            for side, size in zip(
                value.type.tensor_type.shape.dim, shapes[value.name], strict=True
            ):
                side.dim_value = size


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(NAME, allow_abbrev=False)
    parser.add_argument("--input_network", "-i", required=True)
    parser.add_argument("--output_path", "-o")
    parser.add_argument("--input_dim", "-d", nargs=2, action="append")
    parser.add_argument("--input_layout", "-l", nargs=2, action="append")
    parser.add_argument("--input_dtype", nargs=2, action="append")
    parser.add_argument("--input_encoding", "-e", nargs="+", action="append")
    parser.add_argument("--out_node", "--out_name", action="append")
    parser.add_argument("--copyright_file")
    parser.add_argument("--model_version")
    parser.add_argument("--debug", nargs="?", type=int)
    parser.add_argument("--dry_run", nargs="?")
    return parser


def _say(level: str, message: str) -> None:
    """To standard error, with the time and a line number as the real one does it."""
    now = f"{datetime.now():%Y-%m-%d %H:%M:%S,%f}"[:-3]
    print(f"{now} - 199 - {level} - {message}", file=sys.stderr)
