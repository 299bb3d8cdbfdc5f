"""ONNX Runtime with one thread, as a platform: a toolchain that quantizes, and a device.

Everything runs in this process. A platform whose libraries may crash puts them into a process of
their own, as Edgeloop's own ones do.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from edgeloop.errors import BadInput, ModelFailed
from edgeloop.graph.check import read_graph
from edgeloop.graph.count import graph_info
from edgeloop.graph.info import GraphInfo
from edgeloop.platforms import (
    DEFAULT_PRECISION,
    Artefacts,
    Converted,
    HealthCheck,
    Kind,
    ListedDevice,
    Measurement,
    Platform,
    Precision,
    calibration_runs,
    check_batch,
    model_inputs,
    package_check,
    random_batch,
    run_samples,
)
from edgeloop.settings import Settings
from edgeloop.tasks import Samples, Tensors

SUFFIX = ".ort1.onnx"
WARM_UP = 5
SAMPLES = 30


class Ort1Platform(Platform):
    name = "ort1"
    device_names = ("ort1",)
    file_suffixes = (SUFFIX,)

    def open_toolchain(self, settings: Settings) -> Ort1Toolchain:
        return Ort1Toolchain()

    def open_device(self, name: str, settings: Settings) -> Ort1Device:
        return Ort1Device()

    def list_devices(self, settings: Settings) -> Iterable[ListedDevice]:
        return (ListedDevice("ort1"),)

    def health(self, settings: Settings) -> Iterable[HealthCheck]:
        return (package_check("onnxruntime", "pip install edgeloop-ort1", "the device ort1"),)


class Ort1Toolchain:
    name = "ort1"

    def inspect(self, model: Path) -> GraphInfo:
        return graph_info(model.name, read_graph(model))

    def convert(
        self,
        model: Path,
        calibration: Samples,
        folder: Path,
        precision: Precision = DEFAULT_PRECISION,
        chips: tuple[str, ...] = (),
    ) -> Converted:
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

        if precision not in ("a8w8", "a8w8-per-channel"):
            raise BadInput(reason=f"ort1 quantizes to a8w8 and a8w8-per-channel, not {precision}")
        graph = read_graph(model)  # with the shapes of all tensors, as the quantizer wants it
        graph.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
        info = graph_info(model.name, graph)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{model.stem}{SUFFIX}"
        quantize_static(
            graph,
            folder / name,
            _reader(info, calibration),
            quant_format=QuantFormat.QDQ,
            per_channel=precision == "a8w8-per-channel",
            weight_type=QuantType.QInt8,
        )
        return Converted(info, precision, {name: folder / name}, name)

    def close(self) -> None:
        """Nothing stays open."""


class Ort1Device:
    name = "ort1"
    chip = ""
    float_kind: Kind = "float"

    def __init__(self) -> None:
        self.artefacts: Artefacts = {"quantized": SUFFIX}

    def probe(self) -> str:
        import onnxruntime

        return f"ONNX Runtime {onnxruntime.__version__} on {platform.machine()}, one thread"

    def measure(self, model: Path, info: GraphInfo) -> Measurement:
        run = _open(model)
        names, inputs = _names(info), model_inputs(random_batch(info, info.batch), info)
        samples = []
        for _ in range(WARM_UP + SAMPLES):
            began = time.perf_counter()
            run(names, inputs)
            samples.append(time.perf_counter() - began)
        kept = tuple(samples[WARM_UP:])
        return Measurement(statistics.median(kept), kept, conditions={"threads": 1})

    def infer(
        self, model: Path, info: GraphInfo, kind: Kind, batches: Iterator[Tensors]
    ) -> Iterator[Tensors]:
        if kind not in ("float", "quantized"):
            raise BadInput(reason=f"ort1 runs float and quantized models, not {kind}")
        run, names = _open(model), _names(info)
        for batch in batches:
            check_batch(batch, info)
            yield run_samples(batch, info, lambda inputs: run(names, inputs))

    def close(self) -> None:
        """Sessions end with their last use."""


def _open(model: Path) -> Any:
    """A function from the names of outputs, and inputs by name, to those outputs; ONNX Runtime's
    errors become ours."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3

    def guarded(call: Any, *arguments: Any, **more: Any) -> Any:
        try:
            return call(*arguments, **more)
        except Exception as error:  # its errors share no base class
            if not type(error).__module__.startswith("onnxruntime"):
                raise
            raise ModelFailed(reason=f"ONNX Runtime refused {model.name}: {error}") from None

    providers = ["CPUExecutionProvider"]
    session = guarded(onnxruntime.InferenceSession, str(model), options, providers=providers)
    return lambda names, inputs: guarded(session.run, names, inputs)


def _names(info: GraphInfo) -> list[str]:
    return [tensor.name for tensor in info.outputs]


def _reader(info: GraphInfo, calibration: Samples) -> Any:
    """Calibration samples, run by run, as ONNX Runtime wants to be given them."""
    from onnxruntime.quantization import CalibrationDataReader

    runs = calibration_runs(info, calibration)

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Any] | None:
            return next(runs, None)

    return Reader()
