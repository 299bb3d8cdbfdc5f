"""The Neural Processing SDK's tools as a toolchain: DLC files for boards.

    model.onnx → simplified graph → snpe-onnx-to-dlc → .dlc → snpe-dlc-quantize → .quant.dlc
                            └ + ArgMax → .classes.dlc → .classes.quant.dlc

The tools see names of ours only, in a folder that is gone afterwards; what they made is moved to
its place when all of it is there.

Calibration images as the quantizer reads them: a raw float file each, and a list of them.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from edgeloop.errors import BadInput, LocalFileError, ModelFailed
from edgeloop.graph import DLC_INPUT, GraphInfo, GraphProcess, class_axis, write_layers
from edgeloop.platforms.base import DEFAULT_PRECISION, Converted, Precision
from edgeloop.platforms.batching import as_input
from edgeloop.platforms.snpe.dlc import ENCODINGS_SUFFIX, DlcInfo, read_info, write_encoding
from edgeloop.platforms.snpe.sdk import Sdk
from edgeloop.platforms.snpe.tools import run_tool
from edgeloop.tasks import Samples

LARGEST_BYTES = 2 << 30
_KEPT_FREE = 1 << 30


def write_calibration(
    samples: Samples, info: GraphInfo, folder: Path, largest: int = LARGEST_BYTES
) -> tuple[Path, int, str]:
    """The list, how many images it has, and a note where not all of them fit below `largest`
    bytes: then every n-th is taken. Written one at a time: memory does not grow with them.

    A line of the list is cut at spaces, so it has plain names: the tool must stand in `folder`."""
    images = samples.images
    if not len(images):
        raise BadInput(reason="quantization needs at least one calibration image")
    if images.shape[1:] != (info.height, info.width, 3):
        size = "×".join(str(side) for side in images.shape[1:])
        reason = f"calibration images are {size}, the model takes {info.height}×{info.width}×3"
        raise BadInput(reason=reason)
    each = 4 * info.height * info.width * 3
    step = -(-len(images) * each // largest)
    chosen = range(0, len(images), step)
    _check_space(folder, each * len(chosen))
    listed = folder / "calibration.txt"
    with listed.open("w", encoding="utf-8") as file:
        for index in chosen:
            path = folder / f"{index:06d}.raw"
            as_input(images[index : index + 1], "NHWC").tofile(path)  # DLC models take NHWC
            file.write(f"{path.name}\n")
    note = f"calibrated on {len(chosen)} of {len(images)} images, to save disk space"
    return listed, len(chosen), note if step > 1 else ""


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
    calibration: Path
    options: tuple[str, ...]
    limit_s: float


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
        if chips:
            reason = "the toolchain snpe makes no context binaries for chips: use qnn for those"
            raise BadInput(reason=reason)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".convert-") as name:
            place = Path(name).resolve()
            info, caveats = self._graphs.write_variants(model, place)
            listed, used, note = write_calibration(calibration, info, place)
            limit_s = self._limit_s + _S_PER_IMAGE * used
            work = _Conversion(place, listed, options, limit_s)
            notes = [*caveats, *([note] if note else [])]
            self._make(work, place / "model.onnx", "model", info)
            notes += self._class_maps(work, info)
            notes += self._describe(place, info)
            files = _move(place, folder, model.stem)
        return Converted(info, precision, files, f"{model.stem}.quant.dlc", tuple(notes))

    def close(self) -> None:
        self._graphs.close()

    def _make(self, work: _Conversion, source: Path, stem: str, info: GraphInfo) -> None:
        """STEM.dlc and STEM.quant.dlc."""
        target, quantized = work.folder / f"{stem}.dlc", work.folder / f"{stem}.quant.dlc"
        layout = ("--input_layout", DLC_INPUT, "NHWC") if info.layout == "NHWC" else ()
        network = ("--input_network", str(source), "--output_path", str(target), *layout)
        run_tool(self._sdk, "snpe-onnx-to-dlc", network, self._limit_s, _CONVERTED, work.folder)
        _check_made("snpe-onnx-to-dlc", target)
        dlc = ("--input_dlc", str(target), "--input_list", str(work.calibration))
        written = (*dlc, "--output_dlc", str(quantized), *work.options)
        run_tool(self._sdk, "snpe-dlc-quantize", written, work.limit_s, _QUANTIZED, work.folder)
        _check_made("snpe-dlc-quantize", quantized)

    def _class_maps(self, work: _Conversion, info: GraphInfo) -> list[str]:
        """The graphs that F1 runs. A model is not refused for want of them: F1 then comes from
        its full outputs, which only takes longer."""
        if class_axis(info) is None:
            return []
        reason = ""
        for source in ("bytes.onnx", "classes.onnx"):
            if not (work.folder / source).exists():
                continue
            try:
                self._make(work, work.folder / source, "model.classes", info)
            except ModelFailed as error:
                reason = str(error)
                for path in work.folder.glob("model.classes*"):
                    path.unlink()
            else:
                return []
        return [f"F1 runs on full outputs, since the graph with class maps was refused ({reason})"]

    def _describe(self, place: Path, info: GraphInfo) -> list[str]:
        """The layer table and the encoding of the output, as the tool tells them."""
        quantized = str(place / "model.quant.dlc")
        text = run_tool(self._sdk, "snpe-dlc-info", ("-i", quantized), self._limit_s)
        found = read_info(text)
        if found.layers:
            write_layers(place / "model.layers.csv", found.layers)
        if found.output is not None:
            write_encoding(place / f"model{ENCODINGS_SUFFIX}", found.output)
        return _differences(info, found)


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


def _differences(info: GraphInfo, found: DlcInfo) -> list[str]:
    """Where the tool counts otherwise than we do; both may be right, a person should know."""
    notes = []
    for what, ours, theirs in (
        ("MACs", info.macs, found.macs),
        ("parameters", info.params, found.params),
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
