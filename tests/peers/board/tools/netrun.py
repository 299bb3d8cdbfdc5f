"""snpe-net-run: every input of a list through the model, outputs as raw files, and a profile."""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from tests.peers.board.tools.dlc import Dlc, NoContainer, Tensor, read_dlc
from tests.peers.board.tools.inputs import InputList, as_taken, load

NAME = "snpe-net-run"
PERF_PROFILES = (
    *("balanced", "default", "high_performance", "sustained_high_performance", "burst"),
    *("low_power_saver", "power_saver", "high_power_saver", "extreme_power_saver"),
    *("low_balanced", "system_settings"),
)
PROFILING_LEVELS = ("off", "basic", "moderate", "detailed", "linting")
_CYCLES_IN_US = 1_500  # of the DSP that is not there
_RULE = "-" * 79


@dataclass(frozen=True)
class Faults:
    delay_s: float = 0.0
    fail: bool = False
    hang: bool = False
    until_full: bool = False
    fewer: int = 0
    nan: bool = False
    lacks: int = 0
    short: int = 0


class Streams(Protocol):
    def say(self, text: str) -> None: ...
    def complain(self, text: str) -> None: ...


class _Gone(Exception):
    """The caller was killed."""


class _Refused(Exception):
    """What the tool prints before it ends with 1."""


class _Usage(Exception):
    """A flag that the tool does not know."""


@dataclass(frozen=True)
class Run:
    version: str
    dsp_folders: str
    folder: Path
    argv: list[str]
    caller: socket.socket
    streams: Streams

    def execute(self, faults: Faults) -> int:
        try:
            options = _parse(self.argv, self.version)
            if options.version:
                self.streams.say(f"SNPE v{self.version}")
                return 0
            self._run(options, faults)
        except _Gone:
            return 137
        except (_Usage, _Refused, NoContainer, OSError, ValueError) as error:
            self.streams.complain(str(error))
            return 1
        return 0

    def _run(self, options: argparse.Namespace, faults: Faults) -> None:
        if faults.hang:
            while True:
                self._pause(60)
        if faults.fail:
            raise _Refused("error_code=1000; error_message=Layer execution failed; component=DSP")
        began = time.perf_counter()
        dlc = read_dlc(self.folder / options.container)
        self._check_runtime(options, dlc)
        listed = InputList.read(self.folder / options.input_list, self.folder)
        outputs = _asked(dlc, options, listed)
        dlc = _resized(dlc, options)
        session = _session(dlc)
        loaded_us = round((time.perf_counter() - began) * 1e6)
        target = self.folder / options.output_dir
        target.mkdir(parents=True, exist_ok=True)
        self.streams.say(f"{_RULE}\nModel String: N/A\nSNPE v{self.version}\n{_RULE}")
        while faults.until_full and os.statvfs(target).f_bfree:
            self._pause(0.05)
        times_us = []
        for number, line in enumerate(listed.lines):
            names = "\n".join(str(path) for path in line.values())
            self.streams.say(f"Processing DNN input(s):\n{names}")
            fed = as_taken(session, load(dlc.inputs, line, options.use_native_input_files))
            started = time.perf_counter()
            values = _computed(session, [tensor.name for tensor in outputs], fed)
            self._pause(faults.delay_s)
            times_us.append((time.perf_counter() - started) * 1e6)
            if number < len(listed.lines) - faults.fewer:
                _write(target / f"Result_{number}", outputs, values, options, faults)
        if options.profiling_level != "off":
            sizes = [layer.macs + 1 for layer in dlc.layers]
            if self.version.startswith("1."):  # inputs are layers there
                sizes = [1] * len(dlc.inputs) + sizes
            _profile(target / "SNPEDiag_0.log", sizes, options, times_us, loaded_us)
        self.streams.say("Successfully executed!")

    def _pause(self, seconds: float) -> None:
        """The caller says nothing more; what can be read from it is that it has gone."""
        if select.select([self.caller], [], [], seconds)[0]:
            raise _Gone

    def _check_runtime(self, options: argparse.Namespace, dlc: Dlc) -> None:
        if not options.use_dsp:
            return
        folders = [Path(folder) for folder in self.dsp_folders.split(";") if folder]
        if not any(list(folder.glob("*[sS]kel.so")) for folder in folders):
            raise _Refused(
                "error_code=500; error_message=Target runtime is not available. "
                "Selected runtime: DSP; component=System Configuration"
            )
        if not dlc.quantized:
            raise _Refused(
                "error_code=305; error_message=Model is not quantized. The DSP runtime runs "
                "quantized models; component=DSP Runtime"
            )


def _parse(argv: list[str], version: str) -> argparse.Namespace:
    is_first = version.startswith("1.")
    parser = _Parser(NAME, allow_abbrev=False, add_help=False)
    parser.add_argument("--container", default="")
    parser.add_argument("--input_list", default="")
    parser.add_argument("--output_dir", default="./output")
    for flag in ("use_gpu", "use_dsp", "use_aip", "debug", "version", "enable_cpu_fallback"):
        parser.add_argument(f"--{flag}", action="store_true")
    newer = ("use_native_input_files", "use_native_output_files", "userbuffer_auto")
    for flag in ("enable_init_cache", "userbuffer_float", "userbuffer_tf8", "userbuffer_floatN"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.set_defaults(**dict.fromkeys(newer, False))
    for flag in () if is_first else newer:
        parser.add_argument(f"--{flag}", action="store_true")
    for option in ("--input_name", "--input_dimensions"):
        parser.add_argument(option, action="append", default=[])
    parser.add_argument("--userbuffer_tfN", type=int, choices=(8, 16))
    parser.add_argument("--perf_profile", choices=PERF_PROFILES, default="default")
    parser.add_argument("--profiling_level", choices=PROFILING_LEVELS, default="detailed")
    parser.add_argument("--set_output_tensors", default="")
    parser.add_argument("--platform_options", default="")
    parser.add_argument("--runtime_order", default="")
    options = parser.parse_args(argv)
    if not options.version and not (options.container and options.input_list):
        raise _Usage("Error: --container and --input_list are required")
    native = options.use_native_input_files or options.use_native_output_files
    buffers = (options.userbuffer_auto, options.userbuffer_float, options.userbuffer_tf8)
    if native and not any(buffers):
        raise _Usage("Error: native files must be used with --userbuffer_xxx")
    return options


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise _Usage(f"Error: {message}")


def _asked(dlc: Dlc, options: argparse.Namespace, listed: InputList) -> list[Tensor]:
    """Without a word those of the last layer, however many the model has."""
    known = {tensor.name: tensor for tensor in dlc.outputs}
    names = [name for name in options.set_output_tensors.split(",") if name] or listed.outputs
    layers = {layer.name: name for layer in dlc.layers for name in layer.outputs}
    if not names:
        names = [name for name in dlc.layers[-1].outputs if name in known]
    chosen = [known.get(name) or known.get(layers.get(name, "")) for name in names or known]
    if None in chosen:
        raise _Refused(f"error_code=310; error_message=Unknown output tensors: {', '.join(names)}")
    return [tensor for tensor in chosen if tensor is not None]


def _resized(dlc: Dlc, options: argparse.Namespace) -> Dlc:
    """With the dimensions that were given for inputs, as the container has them."""
    given = dict(zip(options.input_name, options.input_dimensions, strict=True))
    if not given:
        return dlc
    model = onnx.load_model_from_string(dlc.model)
    inputs = []
    for tensor in dlc.inputs:
        outside = tuple(int(side) for side in given.pop(tensor.name, "").split(",") if side)
        if outside and outside[1:] != tensor.outside[1:]:
            raise _Refused(f"error_code=311; error_message=Cannot resize {tensor.name}")
        count = outside[0] if outside else tensor.shape[0]
        inputs.append(replace(tensor, shape=(count, *tensor.shape[1:])))
        value = next(value for value in model.graph.input if value.name == tensor.name)
        value.type.tensor_type.shape.dim[0].dim_value = count
    if given:
        raise _Refused(f"error_code=310; error_message=Unknown inputs: {', '.join(given)}")
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return replace(dlc, model=model.SerializeToString(), inputs=tuple(inputs))


def _session(dlc: Dlc) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    return onnxruntime.InferenceSession(dlc.model, settings, providers=["CPUExecutionProvider"])


def _computed(session: Any, names: list[str], fed: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    try:
        found: list[NDArray[Any]] = session.run(names, fed)
    except Exception as error:
        raise _Refused(f"error_code=1000; error_message={str(error).splitlines()[0]}") from None
    return found


def _write(
    folder: Path,
    outputs: list[Tensor],
    values: list[NDArray[Any]],
    options: argparse.Namespace,
    faults: Faults,
) -> None:
    written = list(zip(outputs, values, strict=True))
    for tensor, value in written[: len(written) - faults.lacks]:
        turned = np.moveaxis(value, 1, -1) if tensor.turned else value
        if options.use_native_output_files:
            turned = _native(tensor, turned)
        else:
            turned = turned.astype(np.float32)
        if faults.nan and turned.dtype == np.float32:
            turned = np.full_like(turned, np.nan)
        file = folder / f"{tensor.name}.raw"
        file.parent.mkdir(parents=True, exist_ok=True)
        content = np.ascontiguousarray(turned).tobytes()
        file.write_bytes(content[: len(content) - faults.short])


def _native(tensor: Tensor, value: NDArray[Any]) -> NDArray[Any]:
    code = tensor.encoding
    if code is None:
        return value.astype(tensor.native)
    numbers = np.rint(value / np.float32(code.scale)) - code.offset
    return numbers.clip(0, (1 << code.bits) - 1).astype(code.dtype)


def _profile(
    path: Path,
    weights: list[int],
    options: argparse.Namespace,
    times_us: list[float],
    loaded_us: int,
) -> None:
    """Layers have no clocks of their own here: each gets the share that its MACs are."""
    average_us = round(sum(times_us) / max(len(times_us), 1))
    share = average_us / sum(weights) * (_CYCLES_IN_US if options.use_dsp else 1)
    is_detailed = options.profiling_level in ("detailed", "linting")
    life = {"Load": loaded_us // 3, "Deserialize": loaded_us // 3, "Create": loaded_us // 3}
    known = {
        "timestamp_us": round(time.time() * 1e6),
        "life_us": {**life, "Init": loaded_us, "De-Init": 1_000},
        "average_us": average_us,
        "runtime": "DSP" if options.use_dsp else "CPU",
        "layer_unit": "cycles" if options.use_dsp else "us",
        "layers": [round(weight * share) for weight in weights] if is_detailed else [],
    }
    path.write_bytes(json.dumps(known).encode())
