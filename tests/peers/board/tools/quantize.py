"""snpe-dlc-quantize: real calibration on the images of the list, and a real quantized graph."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from tests.peers.board.tools.dlc import Dlc, Encoding, Tensor, command_line, read_dlc
from tests.peers.board.tools.inputs import InputList, as_taken, load

NAME = "snpe-dlc-quantize"
_ACTIVATIONS = {8: QuantType.QUInt8, 16: QuantType.QUInt16}


def main(arguments: list[str], version: str) -> int:
    options = _parser(version).parse_args(arguments)
    try:
        source = read_dlc(Path(options.input_dlc))
        listed = InputList.read(Path(options.input_list), Path.cwd())
        if not listed.lines:
            raise ValueError(f"no inputs in {options.input_list}")
        made = _quantize(source, listed, options)
    except Exception as error:
        print(f"[ERROR] {error}", file=sys.stderr)
        return 1
    target = options.output_dlc or options.input_dlc.removesuffix(".dlc") + "_quantized.dlc"
    commands = {**made.commands, "quantizer-command": command_line(NAME, arguments)}
    for number, line in enumerate(listed.lines):
        print(f"[INFO] Processed ActivationMap for {number}: {next(iter(line.values()))}")
    saved = f"Saved quantized dlc to: {target}"
    if version.startswith("1."):
        saved = f"Writing quantized model to: {target}"
    print(f"[INFO] {saved}", file=sys.stderr)
    replace(made, commands=commands).write(Path(target))
    return 0


def _quantize(source: Dlc, listed: InputList, options: argparse.Namespace) -> Dlc:
    if source.quantized:
        raise ValueError("the model is quantized already")
    batches = {tensor.shape[0] for tensor in source.inputs if len(tensor.shape) > 1}
    if batches - {1}:
        raise ValueError("the batch dimension of the model must be 1 for quantization")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "quantized.onnx"
        quantize_static(
            onnx.load_model_from_string(source.model),
            made,
            _Images(source, listed),
            quant_format=QuantFormat.QDQ,
            per_channel=options.per_channel,
            activation_type=_ACTIVATIONS[options.act_bitwidth],
            weight_type=QuantType.QInt8,
            extra_options={"WeightSymmetric": True},
        )
        model = onnx.load(made)
    return replace(
        source,
        model=model.SerializeToString(),
        inputs=tuple(_encoded(model, tensor, is_input=True) for tensor in source.inputs),
        outputs=tuple(_encoded(model, tensor, is_input=False) for tensor in source.outputs),
        quantized=True,
    )


class _Images(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, source: Dlc, listed: InputList) -> None:
        session = onnxruntime.InferenceSession(source.model, providers=["CPUExecutionProvider"])
        self._items: Iterator[dict[str, NDArray[Any]]] = (
            as_taken(session, load(source.inputs, line, native=False)) for line in listed.lines
        )

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self._items, None)


def _encoded(model: ModelProto, tensor: Tensor, is_input: bool) -> Tensor:
    """With the scale and offset of the step that quantizes the input, or gives the output."""
    kind, place = ("QuantizeLinear", 0) if is_input else ("DequantizeLinear", -1)
    for node in model.graph.node:
        ends = node.input if is_input else node.output
        if node.op_type == kind and ends[place if is_input else 0] == tensor.name:
            scale, zero = (_constant(model, name) for name in node.input[1:3])
            bits = zero.dtype.itemsize * 8
            return replace(tensor, encoding=Encoding(bits, float(scale), -int(zero)))
    return tensor


def _constant(model: ModelProto, name: str) -> NDArray[Any]:
    found = next(weight for weight in model.graph.initializer if weight.name == name)
    return np.asarray(numpy_helper.to_array(found))


def _parser(version: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(NAME, allow_abbrev=False)
    parser.add_argument("--input_dlc", required=True)
    parser.add_argument("--input_list", required=True)
    parser.add_argument("--output_dlc")
    parser.add_argument("--weights_bitwidth", type=int, choices=(8, 16), default=8)
    parser.add_argument("--act_bitwidth", type=int, choices=(8, 16), default=8)
    parser.add_argument("--bias_bitwidth", type=int, choices=(8, 32), default=8)
    per_channel = ["--axis_quant"]
    if not version.startswith("1."):
        per_channel.append("--use_per_channel_quantization")
    parser.add_argument(*per_channel, dest="per_channel", action="store_true")
    for flag in ("--use_enhanced_quantizer", "--use_symmetric_quantize_weights", "--enable_htp"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--htp_socs")
    parser.add_argument("--optimizations", action="append")
    return parser
