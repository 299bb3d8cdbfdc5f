"""The Neural Processing SDK's tools as a toolchain: DLC files for boards.

    model.onnx → simplified graph → snpe-onnx-to-dlc → .dlc → snpe-dlc-quantize → .quant.dlc
                            └ + ArgMax → .classes.dlc → .classes.quant.dlc

The tools see names of ours only, in a folder that is gone afterwards; what they made is moved to
its place when all of it is there.

Calibration samples as the quantizer reads them: a raw float file for each input, and a list of
them.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from edgeloop.errors import BadInput, LocalFileError, ModelFailed
from edgeloop.graph.count import write_layers
from edgeloop.graph.info import GraphInfo, Shape
from edgeloop.graph.isolated import GraphProcess
from edgeloop.graph.variants import DLC_INPUT, DLC_OUTPUT, class_axis, dlc_names, single_sample_info
from edgeloop.platforms.base import DEFAULT_PRECISION, Converted
from edgeloop.platforms.batching import check_batch, sample_count
from edgeloop.platforms.precision import Precision
from edgeloop.platforms.snpe.dlc import (
    ENCODINGS_SUFFIX,
    DlcInfo,
    DlcTensors,
    board_inputs,
    input_word,
    is_float,
    read_info,
)
from edgeloop.platforms.snpe.sdk import Sdk, run_tool
from edgeloop.tasks import Samples, Tensors

LARGEST_BYTES = 2 << 30
_KEPT_FREE = 1 << 30


def write_calibration(
    samples: Samples,
    info: GraphInfo,
    folder: Path,
    largest: int = LARGEST_BYTES,
    shapes: Mapping[str, Shape] | None = None,
) -> tuple[Path, int, str]:
    """The list, how many samples it has, and a note where not all of them fit below `largest`
    bytes: then every n-th is taken. Written one run at a time: memory does not grow with them.
    `shapes` are those that the DLC has for inputs, by their names there.

    A line of the list is cut at spaces, so it has plain names: the tool must stand in `folder`."""
    tensors = calibration_tensors(samples, info)
    count = sample_count(tensors)
    each = 4 * sum(math.prod(info.sample_shape(tensor)) for tensor in info.inputs)
    step = -(-count * each // largest)
    chosen = range(0, count, step)
    _check_space(folder, each * len(chosen))
    names = dlc_names(DLC_INPUT, len(info.inputs))
    listed = folder / "calibration.txt"
    with listed.open("w", encoding="utf-8") as file:
        for start in range(0, len(chosen), info.batch):
            run = [chosen[index] for index in range(start, min(start + info.batch, len(chosen)))]
            taken = {key: array[run] for key, array in tensors.items()}
            words = []
            for name, values in zip(names, board_inputs(taken, info, shapes or {}), strict=True):
                path = folder / f"{run[0]:06d}{name.removeprefix(DLC_INPUT)}.raw"
                values.tofile(path)
                words.append(input_word(name, path.name, len(names)))
            file.write(" ".join(words) + "\n")
    what = "images" if info.image is not None else "samples"
    note = f"calibrated on {len(chosen)} of {count} {what}, to save disk space"
    return listed, len(chosen), note if step > 1 else ""


def calibration_tensors(samples: Samples, info: GraphInfo) -> Tensors:
    """What the model takes, by its own names; raises BadInput where that was not given."""
    if not len(samples):
        what = "image" if info.image is not None else "sample"
        raise BadInput(reason=f"quantization needs at least one calibration {what}")
    if samples.tensors is not None:
        tensors = {name: array[: len(samples)] for name, array in samples.tensors.items()}
        check_batch({name: array[:1] for name, array in tensors.items()}, info)
        return tensors
    if info.image is None:
        names = ", ".join(tensor.name for tensor in info.inputs)
        reason = f"the model takes {names}, and was given images to calibrate with"
        raise BadInput(reason=reason)
    images = samples.images
    if images.shape[1:] != (info.height, info.width, 3):
        size = "×".join(str(side) for side in images.shape[1:])
        reason = f"calibration images are {size}, the model takes {info.height}×{info.width}×3"
        raise BadInput(reason=reason)
    return {info.input_name: images}


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed + _KEPT_FREE:
        reason = (
            f"{free / 1e9:.1f} GB are free, and calibration needs {(needed + _KEPT_FREE) / 1e9:.1f}"
        )
        raise LocalFileError(path=folder, reason=reason)


TOOL_LIMIT_S = 600.0
_S_PER_IMAGE = 5.0
_CONVERTED = ("Conversion completed successfully", "INFO_CONVERSION_SUCCESS")
_QUANTIZED = ("Writing quantized model", "Saved quantized dlc", "Saved quantized DLC")
_TOLERATED = 0.05  # of the counts: the tools round to three digits, and fold layers as they like


@dataclass(frozen=True)
class _Conversion:
    """One conversion: the folder for everything that comes and goes, and how to quantize."""

    folder: Path
    info: GraphInfo  # of the graph that is converted
    options: tuple[str, ...]


class SnpeToolchain:
    """`limit_s` is the time one run of a tool may take; calibration adds some for each image."""

    name = "snpe"

    def __init__(
        self,
        sdk: Sdk,
        limit_s: float = TOOL_LIMIT_S,
        graphs: GraphProcess | None = None,
    ) -> None:
        self._sdk = sdk
        self.version = f"SDK {sdk.version or 'unknown'}"
        self._limit_s = limit_s
        self._graphs = graphs or GraphProcess(limit_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def inspect(self, model: Path) -> GraphInfo:
        """The same graphs are fit for this toolchain and for qnn."""
        return self._graphs.inspect(model)

    def convert(
        self,
        model: Path,
        calibration: Samples,
        folder: Path,
        precision: Precision = DEFAULT_PRECISION,
        chips: tuple[str, ...] = (),
    ) -> Converted:
        options = _options(precision, self._sdk.major)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".convert-") as name:
            place = Path(name).resolve()
            info, batch, caveats = self._graphs.write_variants(model, place)
            made = info if batch == info.batch else single_sample_info(info)
            calibration_tensors(calibration, made)  # what is wrong with them is said first
            work = _Conversion(place, made, options)
            dlc = self._to_dlc(work, place / "model.onnx", "model")
            shapes = self._input_shapes(dlc, made)
            listed, used, note = write_calibration(calibration, made, place, shapes=shapes)
            self._quantize(work, dlc, listed, used)
            notes = [*caveats, *_batch_notes(info, made), *([note] if note else [])]
            notes += self._class_maps(work, listed, used)
            notes += self._describe(work, info)
            files = _move(place, folder, model.stem)
        return Converted(info, precision, files, f"{model.stem}.quant.dlc", tuple(notes))

    def close(self) -> None:
        self._graphs.close()

    def _to_dlc(self, work: _Conversion, source: Path, stem: str) -> Path:
        target = work.folder / f"{stem}.dlc"
        network = ("--input_network", str(source), "--output_path", str(target))
        told = (*network, *_ends(work.info))
        run_tool(self._sdk, "snpe-onnx-to-dlc", told, self._limit_s, _CONVERTED, work.folder)
        _check_made("snpe-onnx-to-dlc", target)
        return target

    def _quantize(self, work: _Conversion, dlc: Path, listed: Path, used: int) -> None:
        """STEM.quant.dlc from STEM.dlc."""
        quantized = dlc.with_suffix(".quant.dlc")
        files = ("--input_dlc", str(dlc), "--input_list", str(listed))
        written = (*files, "--output_dlc", str(quantized), *work.options)
        limit_s = self._limit_s + _S_PER_IMAGE * used
        run_tool(self._sdk, "snpe-dlc-quantize", written, limit_s, _QUANTIZED, work.folder)
        _check_made("snpe-dlc-quantize", quantized)

    def _input_shapes(self, dlc: Path, info: GraphInfo) -> Mapping[str, Shape]:
        """As the DLC has them. For one image it is documented, and the DLC is not read."""
        if info.image is not None:
            return {}
        text = run_tool(self._sdk, "snpe-dlc-info", ("-i", str(dlc)), self._limit_s)
        return read_info(text, dlc_names(DLC_INPUT, len(info.inputs))).shapes

    def _class_maps(self, work: _Conversion, listed: Path, used: int) -> list[str]:
        """The graphs that F1 runs. A model is not refused for want of them: F1 then comes from
        its full outputs, which only takes longer."""
        if class_axis(work.info) is None:
            return []
        reason = ""
        for source in ("bytes.onnx", "classes.onnx"):
            if not (work.folder / source).exists():
                continue
            try:
                dlc = self._to_dlc(work, work.folder / source, "model.classes")
                self._quantize(work, dlc, listed, used)
            except ModelFailed as error:
                reason = str(error)
                for path in work.folder.glob("model.classes*"):
                    path.unlink()
            else:
                return []
        return [f"F1 runs on full outputs, since the graph with class maps was refused ({reason})"]

    def _describe(self, work: _Conversion, info: GraphInfo) -> list[str]:
        """The layer table, and how the DLC has inputs and outputs, as the tool tells them."""
        quantized = str(work.folder / "model.quant.dlc")
        text = run_tool(self._sdk, "snpe-dlc-info", ("-i", quantized), self._limit_s)
        inputs = dlc_names(DLC_INPUT, len(info.inputs))
        outputs = dlc_names(DLC_OUTPUT, len(info.outputs))
        dlc = read_info(text, (*inputs, *outputs))
        if dlc.layers:
            write_layers(work.folder / "model.layers.csv", dlc.layers)
        coded = {name: code for name, code in dlc.encodings.items() if name in outputs}
        batch = None if work.info.batch == info.batch else work.info.batch
        tensors = DlcTensors(dlc.shapes, coded, batch)
        if tensors != DlcTensors():
            tensors.write(work.folder / f"model{ENCODINGS_SUFFIX}")
        return _differences(work.info, dlc)


def _ends(info: GraphInfo) -> Iterator[str]:
    """What the converter must be told of inputs and outputs. It takes inputs of four dimensions for
    images with their channels first, and all for floats."""
    for name, tensor in zip(dlc_names(DLC_INPUT, len(info.inputs)), info.inputs, strict=True):
        if tensor.layout == "NHWC":
            yield from ("--input_layout", name, "NHWC")
        if not is_float(tensor):
            yield from ("--input_dtype", name, "int32")
    if len(info.outputs) > 1:
        for name in dlc_names(DLC_OUTPUT, len(info.outputs)):
            yield from ("--out_node", name)


def _batch_notes(info: GraphInfo, made: GraphInfo) -> list[str]:
    if info.batch == 1:
        return []
    if made.batch == 1:
        return [f"quantized for one sample at a time; latency is that of {info.batch} at once"]
    return [
        f"quantized for {info.batch} samples at a time, since its samples cannot be taken apart: "
        "the SDK's documentation asks for one"
    ]


def _options(precision: Precision, major: int) -> tuple[str, ...]:
    """Versions 1.x have `axis_quant` for what 2.x call per-channel quantization."""
    if precision == "fp16":
        reason = "fp16 models are not quantized: choose a8w8, a8w8-per-channel or a16w8"
        raise BadInput(reason=reason)
    per_channel = "--axis_quant" if major < 2 else "--use_per_channel_quantization"
    wide = precision == "a16w8"
    return (
        "--weights_bitwidth=8",
        f"--act_bitwidth={16 if wide else 8}",
        *(("--bias_bitwidth=32",) if wide else ()),
        *((per_channel,) if precision != "a8w8" else ()),
    )


def _check_made(tool: str, path: Path) -> None:
    if not path.is_file() or not path.stat().st_size:
        raise ModelFailed(reason=f"{tool} says that it succeeded, but it wrote no model")


def _differences(info: GraphInfo, dlc: DlcInfo) -> list[str]:
    """Where the tool counts otherwise than we do; both may be right, a person should know."""
    notes = []
    for what, ours, theirs in (
        ("MACs", info.macs, dlc.macs),
        ("parameters", info.params, dlc.params),
    ):
        if theirs is not None and abs(theirs - ours) > _TOLERATED * max(ours, theirs):
            notes.append(f"the SDK counts {theirs:.4g} {what}, Edgeloop {ours:.4g}")
    return notes


def _move(place: Path, folder: Path, stem: str) -> dict[str, Path]:
    """What was made, to its place and under the model's name."""
    ends = (".dlc", ".layers.csv", ENCODINGS_SUFFIX)
    made = sorted(path for path in place.glob("model.*") if path.name.endswith(ends))
    files = {}
    for path in made:
        name = stem + path.name.removeprefix("model")
        path.replace(folder / name)
        files[name] = folder / name
    return files
