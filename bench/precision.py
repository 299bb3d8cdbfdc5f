"""Precision of single tensors: the part of a16w8's gain that a plan has, and of what it costs; the
time that takes; and faults that are planted into networks, located by name.

    python -m bench precision [--nets FOLDER] [--workers N] [--only NAME…] [--faults] [--json FILE]

FOLDER has ONNX files; without one those of tests/data/nets are used. Files without weights
(`--strip NET… FOLDER` makes them) get random ones, scaled layer by layer so that every channel has
a mean and a spread like those of a trained network.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

from bench.tables import markdown
from edgeloop._util.files import sha256_of
from edgeloop.graph.check import read_graph
from edgeloop.graph.count import graph_info
from edgeloop.platforms import PrecisionPlan
from edgeloop.settings import Settings
from edgeloop.tasks import Samples
from edgeloop.tuning.lab import LabOptions, PrecisionLab, opened_lab
from edgeloop.tuning.precision import (
    PrecisionOptions,
    choose_point,
    find_divergence,
    tune_precision,
)

DEVICE = "htp:qcs8550"
EXAMPLES = Path(__file__).parents[1] / "tests/data/nets"
GAIN, PREMIUM, MINUTES = 0.6, 0.3, 10
_STRIPPED = 512  # numbers; smaller tensors stay
_IMAGES = 4
_FEWEST = 64  # numbers of a channel that tell its mean
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")

Array = NDArray[Any]


def run(*options: str) -> str:
    given = _parsed(options)
    if given.strip:
        *files, folder = given.strip
        for name in files:
            strip(Path(name), Path(folder) / Path(name).name)
        return f"{len(files)} networks without their weights are in {folder}"
    folder = Path(given.nets) if given.nets else EXAMPLES
    found = sorted(folder.glob("*.onnx"))
    files = [path for path in found if not given.only or path.stem in given.only]
    with TemporaryDirectory(prefix="bench-precision-") as name:
        work = Path(name)
        for path in files:
            filled(path, work / path.name)
        if given.faults:
            return _faults([work / path.name for path in files], given.workers, work)
        return _fronts([work / path.name for path in files], given, work)


def _parsed(options: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench precision")
    parser.add_argument("--nets")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--strip", nargs="*", default=[])
    parser.add_argument("--json")
    return parser.parse_args(options)


def _fronts(files: Sequence[Path], given: argparse.Namespace, work: Path) -> str:
    rows, fields = [], []
    for path in files:
        began = time.monotonic()
        pictures = work / f"{path.stem}.npy"
        np.save(pictures, _pictures(path).images)
        options = PrecisionOptions(
            DEVICE, images=_IMAGES, inputs=pictures, workers=given.workers, cache=work / "cache"
        )
        try:
            report = tune_precision(
                path, path.stem, sha256_of(path), options, Settings.load(work), _quiet
            )
        except Exception as error:
            rows.append((path.stem, *[""] * 7, str(error)[:60]))
            continue
        seconds = time.monotonic() - began
        chosen = choose_point(report)
        gain, premium = report.shares(chosen) or (float("nan"), float("nan"))
        base, full = report.base, report.full
        assert base is not None and full is not None
        layers = sum(one.tensor.kind == "weights" for one in report.tensors)
        rows.append(
            (
                *(path.stem, layers, f"{base.sqnr_db:.1f} → {full.sqnr_db:.1f}"),
                f"{base.latency_us:.0f} → {full.latency_us:.0f}",
                *(chosen.label, f"{100 * gain:.0f} %", f"{100 * premium:.0f} %", f"{seconds:.0f}"),
                "yes" if gain >= GAIN and premium <= PREMIUM else "no",
            )
        )
        print(*rows[-1], sep=" | ", flush=True)
        fields.append({**report.to_fields(), "seconds": seconds, "gain": gain, "premium": premium})
    if given.json:
        Path(given.json).write_text(json.dumps(fields, indent=1))
    headings = (
        *("network", "layers", "SQNR a8w8 → a16w8, dB", "latency, µs", "chosen"),
        *("gain, goal ≥ 60 %", "premium, goal ≤ 30 %", "seconds", "both"),
    )
    return markdown(headings, rows)


@dataclass(frozen=True)
class PlantedFault:
    """`plant` changes a float model at a layer, or what the lab does with it."""

    name: str
    plant: Callable[[ModelProto, NodeProto], None] | None = None
    disturb: Callable[[PrecisionLab, str], PrecisionPlan] | None = None


def _faults(files: Sequence[Path], workers: int, work: Path) -> str:
    rows = []
    faults = (
        PlantedFault("an outlier in every channel of its weights", outlier_weights),
        PlantedFault("one channel 300 times louder than the others", loud_channel),
        PlantedFault("a calibrated range of a quarter", disturb=clipped_range),
        PlantedFault("weights at 4 bits", disturb=narrow_weights),
    )
    number = 0
    for path in files:
        graph = onnx.load_model(path).graph
        clipped = {node.input[0] for node in graph.node if node.op_type == "Clip"}
        layers = [n for n in graph.node if n.op_type == "Conv"]
        for place in (0.35, 0.65):
            for fault in faults:
                if number >= 10 * (1 + files.index(path)) / len(files):
                    continue
                number += 1
                candidates = layers[int(place * len(layers)) :]
                if fault.plant is loud_channel:  # a channel that is clipped cannot be loud
                    candidates = [one for one in candidates if one.output[0] not in clipped]
                layer = candidates[0].name
                located = _located(path, layer, fault, workers, work / f"fault{number}")
                rows.append((path.stem, fault.name, layer, located, _hit(layer, located)))
                print(*rows[-1], sep=" | ", flush=True)
    hits = sum(row[-1] == "yes" for row in rows)
    headings = ("network", "fault", "planted in", "located", "right")
    return f"{markdown(headings, rows)}\n\n{hits} of {len(rows)} located; goal: all"


def _located(path: Path, layer: str, fault: PlantedFault, workers: int, folder: Path) -> str:
    folder.mkdir()
    model = onnx.load_model(path)
    if fault.plant is not None:
        fault.plant(model, next(node for node in model.graph.node if node.name == layer))
    onnx.save_model(model, folder / path.name)
    given = _pictures(folder / path.name)
    options = LabOptions(DEVICE, given, given, workers=min(2, workers or 2))
    with opened_lab(folder / path.name, options, Settings.load(folder), _quiet) as lab:
        plan = fault.disturb(lab, layer) if fault.disturb else PrecisionPlan()
        found = find_divergence(lab, plan)
    return found.first.layer if found.first else "none"


def _hit(layer: str, located: str) -> str:
    return "yes" if layer == located else "no"


def outlier_weights(model: ModelProto, layer: NodeProto) -> None:
    """At the quietest of its inputs: float hardly changes, and all other weights get coarse."""
    probed = ModelProto()
    probed.CopyFrom(model)
    del probed.graph.output[:]
    value = helper.make_tensor_value_info(layer.input[0], onnx.TensorProto.FLOAT, None)
    probed.graph.output.append(value)
    image = model.graph.input[0]
    size = image.type.tensor_type.shape.dim[2].dim_value
    given = _smooth(1, size).transpose(0, 3, 1, 2).astype(np.float32) / 255
    read = _first_output(probed, {image.name: given})
    quietest = int(np.abs(read).mean(axis=(0, 2, 3)).argmin())

    def change(values: Array) -> None:
        place = quietest if values.shape[1] > 1 else 0
        values[:, place, 0, 0] = 60 * np.abs(values).max()

    _change(model, layer.input[1], change)


def loud_channel(model: ModelProto, layer: NodeProto) -> None:
    """The reader of the channel divides it again, so that float outputs stay the same."""

    def louder(values: Array) -> None:
        values[0] *= 300

    for name in layer.input[1:]:
        _change(model, name, louder)
    names = {layer.output[0]}
    for node in model.graph.node:
        if node.op_type == "Relu" and node.input[0] in names:
            names.add(node.output[0])
        elif node.op_type == "Conv" and node.input[0] in names:
            _change(model, node.input[1], _quieter)


def _quieter(values: Array) -> None:
    if values.shape[1] > 1:
        values[:, 0] /= 300
    else:
        values[0] /= 300


def clipped_range(lab: PrecisionLab, layer: str) -> PrecisionPlan:
    tensor = next(t for t in lab.calibrated.tensors if t.layer == layer)
    ranges = dict(lab.calibrated.ranges)
    for name in tensor.members:
        if name in ranges:
            low, high = ranges[name]
            ranges[name] = (low / 4, high / 4)
    lab.calibrated = replace(lab.calibrated, ranges=ranges)
    return PrecisionPlan()


def narrow_weights(lab: PrecisionLab, layer: str) -> PrecisionPlan:
    own = [t for t in lab.calibrated.tensors if t.kind == "weights" and t.layer == layer]
    return PrecisionPlan.of_bits({own[0].name: 4})


def _change(model: ModelProto, name: str, change: Callable[[Array], None]) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == name)
    values = numpy_helper.to_array(tensor).copy()
    change(values)
    tensor.CopyFrom(numpy_helper.from_array(values, name))


def strip(path: Path, target: Path) -> None:
    """The network without its large weights: they are made again from a seed."""
    model = onnx.load_model(path)
    for tensor in model.graph.initializer:
        if int(np.prod(tensor.dims)) >= _STRIPPED and tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.ClearField("raw_data")
            tensor.ClearField("float_data")
    target.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(model, target)


def filled(path: Path, target: Path) -> None:
    model = onnx.load_model(path)
    empty = [t for t in model.graph.initializer if _is_empty(t)]
    dice = np.random.default_rng(len(empty))
    for tensor in empty:
        values = dice.normal(scale=0.05, size=tuple(tensor.dims)).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    if empty:
        _settle(model, {tensor.name for tensor in empty}, dice)
    onnx.save_model(model, target)


def _is_empty(tensor: onnx.TensorProto) -> bool:
    return bool(np.prod(tensor.dims)) and not (
        tensor.raw_data or tensor.float_data or tensor.int64_data or tensor.int32_data
    )


def _settle(model: ModelProto, names: set[str], dice: np.random.Generator) -> None:
    """Layer by layer: the output of each has a mean near 0 and a spread near 1 in every channel."""
    image = model.graph.input[0]
    shape = [side.dim_value for side in image.type.tensor_type.shape.dim]
    given = _smooth(8, shape[2]).transpose(0, 3, 1, 2).astype(np.float32) / 255
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    outputs = list(model.graph.output)
    for node in model.graph.node:
        if node.op_type not in _WEIGHTED or node.input[1] not in names:
            continue
        del model.graph.output[:]
        value = helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None)
        model.graph.output.append(value)
        found = np.concatenate([_first_output(model, {image.name: one[None]}) for one in given])
        axis = 1 if node.op_type in ("Conv", "ConvTranspose") else found.ndim - 1
        others = tuple(place for place in range(found.ndim) if place != axis)
        is_map = found.size // found.shape[axis] >= _FEWEST
        spread = np.maximum(found.std(axis=others) if is_map else found.std(), 1e-3)
        spread = np.broadcast_to(spread, found.shape[axis])
        wanted = np.exp(dice.normal(scale=0.3, size=spread.shape))
        factor = (wanted / spread).astype(np.float32)
        weights = constants[node.input[1]]
        values = numpy_helper.to_array(weights)
        if node.op_type == "Conv" or (node.op_type == "Gemm" and values.shape[0] == len(factor)):
            scaled = values * factor.reshape(-1, *[1] * (values.ndim - 1))
        else:
            scaled = values * (factor.reshape(1, -1, *[1] * (values.ndim - 2)))
        weights.CopyFrom(numpy_helper.from_array(scaled.astype(np.float32), weights.name))
        if is_map and len(node.input) > 2 and node.input[2] in constants:
            bias = constants[node.input[2]]
            old = numpy_helper.to_array(bias)
            shift = (old - found.mean(axis=others)) * factor + dice.normal(
                scale=0.3, size=old.shape
            )
            bias.CopyFrom(numpy_helper.from_array(shift.astype(np.float32), bias.name))
    del model.graph.output[:]
    model.graph.output.extend(outputs)


def _first_output(model: ModelProto, feeds: dict[str, Array]) -> Array:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: Array = session.run(None, feeds)[0]
    return found


def _pictures(path: Path) -> Samples:
    info = graph_info(path.name, read_graph(path))
    images = _smooth(8, info.height)
    return Samples(images, np.zeros(0, np.uint8), path.stem)


def _smooth(count: int, size: int) -> Array:
    """Blurred noise, as photographs are: no package for tests is needed for this."""
    coarse = np.random.default_rng(0).integers(0, 256, (count, size // 8 + 2, size // 8 + 2, 3))
    where = np.linspace(0, size // 8, size)
    low, part = where.astype(int), where % 1
    across, down = part[None, None, :, None], part[None, :, None, None]
    rows = coarse[:, :, low] * (1 - across) + coarse[:, :, low + 1] * across
    smooth: Array = (rows[:, low] * (1 - down) + rows[:, low + 1] * down).astype(np.uint8)
    return smooth


def _quiet(about: str, done: int, total: int) -> None:
    """Progress is not shown."""
