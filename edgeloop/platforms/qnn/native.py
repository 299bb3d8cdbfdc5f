"""What a worker process does with Qualcomm's libraries. Nothing else talks to them.

Every function takes and gives plain values (JSON) and arrays, and works in a folder that is swept
after each call, since the libraries drop files where they stand. Only documented options of the
provider are used. ONNX Runtime would go on with the CPU, without a word, when the provider cannot
be made or fails; that is switched off everywhere here, in both places.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edgeloop._util.isolation import Answer, Array, WorkerCall
from edgeloop._util.system import thread_limit
from edgeloop.errors import MissingLibrary, ModelFailed, ModelRefused, WorkerFailed
from edgeloop.graph.bits import tunable_from, tunable_tensors
from edgeloop.graph.check import estimate_caveats, read_graph, refusal
from edgeloop.graph.count import count_layers, deployed_memory, graph_info, write_layers
from edgeloop.graph.info import Layout, info_from, layout_of
from edgeloop.graph.read import shapes_of
from edgeloop.graph.rewrites.apply import apply_rewrites, rewrite_notes
from edgeloop.platforms.batching import calibration_batch, run_samples, samples_from_files
from edgeloop.platforms.precision import Precision, PrecisionPlan
from edgeloop.platforms.qnn import quantize
from edgeloop.platforms.qnn.chips import PROVIDER_LIBRARY, library, missing_library
from edgeloop.platforms.qnn.latency import features_of, form_of, kind_of, wide_share
from edgeloop.platforms.qnn.layers import PrefixFiles, cuttable, name_layers
from edgeloop.platforms.qnn.quantize import (
    OutputForm,
    deployed,
    division,
    events_of,
    quantize_model,
    quantize_with_fixed_scales,
)

if TYPE_CHECKING:
    from onnx import ModelProto

_PROVIDER = "QNNExecutionProvider"
_KEPT_SESSIONS = 2
_LEFT_OVER = "assigned to the default CPU EP"
_TIME = "Simulated (Accelerator exec time us)"
_CYCLES = "Simulated (Accelerator exec cycles)"
_LOW = "Simulated (Accelerator exec time us (lower estimate))"
_HIGH = "Simulated (Accelerator exec time us (upper estimate))"
_UNKNOWN = "Missing Ops (Number of Ops with no Costs associated)"
_TRAFFIC = {
    "input_fill_bytes": "Input Fill",
    "fill_bytes": "Intermediate Fill",
    "spill_bytes": "Intermediate Spill",
    "output_spill_bytes": "Output Spill",
}


class NativeWork:
    """One a process; keeps the sessions used last, since compiling costs more than running."""

    def __init__(self) -> None:
        self._devices: list[Any] = []
        self._sessions: dict[tuple[object, ...], Any] = {}
        self._prefixes = PrefixFiles()

    def table(self) -> Mapping[str, WorkerCall]:
        return {
            "hello": self.hello,
            "wait": self.wait,
            "inspect": self.inspect,
            "quantize": self.quantize,
            "calibrate": self.calibrate,
            "quantize_plan": self.quantize_plan,
            "simplify": self.simplify,
            "deploy": self.deploy,
            "dlc": self.dlc,
            "context": self.context,
            "divide": self.divide,
            "estimate": self.estimate,
            "screen": self.screen,
            "layers": self.layers,
            "prefix": self.prefix,
            "infer": self.infer,
        }

    def hello(self, warm: bool = False) -> Answer:
        """What is installed; `warm` loads everything that the first real call would wait for."""
        import onnxruntime

        with _without_torch():
            import onnxruntime.quantization.execution_providers.qnn
        if warm:
            self._provider()
        return {"onnxruntime": onnxruntime.__version__}, ()

    def wait(self, seconds: float) -> Answer:
        """A compiler that hangs, for tests."""
        time.sleep(seconds)
        return {}, ()

    def inspect(self, model: str, may_split: bool = False) -> Answer:
        path = Path(model)
        graph = read_graph(path, any_operator=may_split)
        return {"info": graph_info(path.name, graph).to_fields()}, ()

    def quantize(
        self,
        model: str,
        simplified: str,
        target: str,
        layers: str,
        precision: str,
        samples: Mapping[str, Any],
        may_split: bool = False,
    ) -> Answer:
        """The simplified float model, the quantized one and the layer table, from one reading.
        Calibrated with images, for a model that takes one, or with tensors by name."""
        import onnx

        path = Path(model)
        graph = read_graph(path, any_operator=may_split)
        info = graph_info(path.name, graph)
        apply_rewrites(graph)
        calibration = samples_from_files(samples)
        calibration_batch(info, calibration)
        write_layers(Path(layers), count_layers(graph))
        onnx.save_model(graph, simplified)
        quantize_model(graph, info, calibration, Path(target), cast(Precision, precision))
        notes = [*estimate_caveats(graph), *rewrite_notes(graph)]
        return {"info": info.to_fields(), "caveats": notes, "memory": _memory(target, graph)}, ()

    def calibrate(
        self,
        model: str,
        simplified: str,
        layers: str,
        samples: Mapping[str, Any],
        may_split: bool = False,
    ) -> Answer:
        """The simplified float model, the layer table, and the ranges that any plan needs."""
        import onnx

        path = Path(model)
        graph = read_graph(path, any_operator=may_split)
        info = graph_info(path.name, graph)
        apply_rewrites(graph)
        calibration = samples_from_files(samples)
        pixels = quantize.pixel_inputs(info, calibration)
        write_layers(Path(layers), count_layers(graph))
        ranges = quantize.calibrate(graph, info, calibration)
        onnx.save_model(graph, simplified)
        inferred = onnx.shape_inference.infer_shapes(graph)
        notes = [*estimate_caveats(graph), *rewrite_notes(graph)]
        tensors = [tensor.to_fields() for tensor in tunable_tensors(inferred, pixels)]
        fields = {"info": info.to_fields(), "ranges": ranges, "tensors": tensors}
        return {**fields, "pixels": pixels, "caveats": notes}, ()

    def quantize_plan(
        self,
        model: str,
        calibrated: Mapping[str, Any],
        plan: Mapping[str, Any],
        target: str,
        outputs: list[str],
        with_memory: bool = False,
    ) -> Answer:
        """The quantized model of a plan, from the simplified one that `calibrate` wrote and the
        ranges, pixels and tensors that it returned."""
        import onnx

        graph = onnx.load_model(model)
        added = quantize.quantize_plan(
            graph,
            calibrated["ranges"],
            calibrated["pixels"],
            [tunable_from(fields) for fields in calibrated["tensors"]],
            PrecisionPlan.from_fields(plan),
            target=Path(target),
            outputs=outputs,
        )
        memory = _memory(target, onnx.load_model(model)) if with_memory else None
        return {"memory": memory, "outputs": added}, ()

    def simplify(self, model: str, target: str, may_split: bool = False) -> Answer:
        """The float graph that `quantize` would quantize."""
        import onnx

        graph = read_graph(Path(model), any_operator=may_split)
        apply_rewrites(graph)
        onnx.save_model(graph, target)
        return {}, ()

    def deploy(self, quantized: str, target: str, output: str = "logits") -> Answer:
        import onnx

        model = onnx.load_model(quantized)
        onnx.save_model(deployed(model, _layouts(model), cast(OutputForm, output)), target)
        return {}, ()

    def dlc(self, model: str, target: str) -> Answer:
        """The graph as Qualcomm's tools read it, through the library made for that."""
        folder = Path("dlc")
        folder.mkdir()
        self._session(
            model,
            {
                "dump_qnn_ir_dlc": "1",
                "dump_qnn_ir_dlc_dir": str(folder.resolve()),
                "qnn_ir_backend_path": str(library("libQnnIr.so")),
            },
        )
        files = sorted(folder.glob("*.dlc"))
        if len(files) != 1:
            raise _split_graph(len(files))
        _keep(files[0], Path(target))
        return {}, ()

    def context(self, model: str, target: str, wrapper: str, options: Mapping[str, str]) -> Answer:
        """The compiled binary, and the small ONNX model by which ONNX Runtime loads it."""
        import onnx

        config = {
            "ep.context_enable": "1",
            "ep.context_file_path": str(Path("context.onnx").resolve()),
            "ep.context_embed_mode": "0",
        }
        self._session(model, options, config)
        binaries = sorted(Path().glob("*.bin"))
        if len(binaries) != 1:
            raise _split_graph(len(binaries))
        shell = onnx.load_model("context.onnx", load_external_data=False)
        for node in shell.graph.node:
            for attribute in node.attribute:
                if attribute.name == "ep_cache_context":
                    attribute.s = Path(target).name.encode()
        _keep(binaries[0], Path(target))
        onnx.save_model(shell, wrapper)
        return {}, ()

    def divide(self, model: str, options: Mapping[str, str]) -> Answer:
        """Which layers of a deployed model the CPU would run; empty where the chip runs all."""
        import onnx

        session = self._session(model, options, may_split=True)
        divided = division(session, onnx.load_model(model), _PROVIDER)
        return {"note": str(divided) if divided.layers else ""}, ()

    def estimate(
        self, quantized: str, soc: int, output: str = "logits", may_split: bool = False
    ) -> Answer:
        """What the compiler thinks of the deployed graph's time, without running it."""
        import onnx

        model = onnx.load_model(quantized)
        graph = deployed(model, _layouts(model), cast(OutputForm, output))
        onnx.save_model(graph, "deployed.onnx")
        profile = Path("profile.csv")
        settings = {
            "soc_model": str(soc),
            "profiling_level": "detailed",
            "profiling_file_path": str(profile.resolve()),
        }
        session = self._session("deployed.onnx", settings, may_split=may_split)
        divided = None
        if may_split:
            divided = division(session, graph, _PROVIDER)
        event_names = (_TIME, _LOW, _HIGH, _UNKNOWN, *_TRAFFIC.values())
        events = events_of(profile, divided.parts if divided else 1, event_names)
        if _TIME not in events:
            raise ModelFailed(reason=f"the compiler gives no estimate for chip number {soc}")
        traffic = {name: int(events.get(event, 0)) for name, event in _TRAFFIC.items()}
        times = {"raw_us": _TIME, "low_us": _LOW, "high_us": _HIGH}
        estimates = {name: float(events[event]) for name, event in times.items()}
        caveats = estimate_caveats(model)
        left_out = {"missing_ops": int(events.get(_UNKNOWN, 0)), "cpu_layers": 0}
        if divided and divided.layers:
            caveats.append(str(divided))
            left_out["cpu_layers"] = len(divided.layers)
        features = {**features_of(graph), **traffic}
        about = {"form": form_of(model), "kind": kind_of(features), "features": features}
        left = sorted({kind for kind, _ in divided.layers}) if divided else []
        texts = {"caveats": caveats, "cpu_operators": left}
        share = wide_share(model) or 0.0
        return {**estimates, **traffic, **left_out, **about, **texts, "wide_share": share}, ()

    def screen(self, model: str, socs: list[int], output: str = "logits") -> Answer:
        """Estimates of a model that is not trained yet: scales are made up."""
        graph = read_graph(Path(model))
        apply_rewrites(graph)
        quantize_with_fixed_scales(graph, _layouts(graph), Path("fixed.onnx"))
        return {"estimates": [self.estimate("fixed.onnx", soc, output)[0] for soc in socs]}, ()

    def layers(self, model: str, quantized: str, deployed_as: str) -> Answer:
        """The layers of the deployed graph and where it can be cut; writes that graph, and the
        quantized one: the model itself, or one with made-up scales."""
        import onnx

        made = onnx.load_model(model)
        if not any(node.op_type == "QuantizeLinear" for node in made.graph.node):
            graph = read_graph(Path(model))
            apply_rewrites(graph)
            quantize_with_fixed_scales(graph, _layouts(graph), Path(quantized))
            made = onnx.load_model(quantized)
        name_layers(made)
        onnx.save_model(made, quantized)
        return cuttable(made, deployed(made, _layouts(made)), deployed_as), ()

    def prefix(self, model: str, names: list[str], soc: int, count: int, copies: int) -> Answer:
        """What the compiler thinks of the first layers of a deployed graph; of no layers: of the
        whole."""
        part, profile = self._prefixes.file(model, names, count, copies), Path("profile.csv")
        settings = {
            "soc_model": str(soc),
            "profiling_level": "detailed",
            "profiling_file_path": str(profile.resolve()),
        }
        self._session(part, settings)
        events = events_of(profile, 1, (_CYCLES,))
        if _CYCLES not in events:
            raise ModelFailed(reason=f"the compiler gives no estimate for chip number {soc}")
        return {"cycles": events[_CYCLES]}, ()

    def infer(
        self,
        *inputs: Array,
        names: list[str],
        model: str,
        info: Mapping[str, Any],
        options: Mapping[str, str],
        may_split: bool = False,
    ) -> Answer:
        """Outputs of samples, one run after the other, on the simulator."""
        path = Path(model)
        state = path.stat()
        key = (model, state.st_mtime_ns, state.st_size, *sorted(options.items()))
        session = self._sessions.pop(key, None)
        if session is None:
            simplified = _simplified(path, options, may_split)
            session = self._session(simplified, options, may_split=may_split)
            session.disable_fallback()
        self._sessions[key] = session
        while len(self._sessions) > _KEPT_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        graph = info_from(info)
        output_names = [tensor.name for tensor in graph.outputs]
        batch = dict(zip(names, inputs, strict=True))
        outputs = run_samples(batch, graph, lambda feeds: session.run(output_names, feeds))
        return {}, tuple(outputs[name] for name in output_names)

    def _session(
        self,
        model: str,
        options: Mapping[str, str],
        config: Mapping[str, str] | None = None,
        may_split: bool = False,
    ) -> Any:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = thread_limit()
        entry = "record_ep_graph_assignment_info" if may_split else "disable_cpu_ep_fallback"
        settings.add_session_config_entry(f"session.{entry}", "1")
        for name, value in (config or {}).items():
            settings.add_session_config_entry(name, value)
        chosen = {"backend_path": str(library("libQnnHtp.so")), **options}
        settings.add_provider_for_devices(self._provider(), chosen)
        try:
            return onnxruntime.InferenceSession(model, sess_options=settings)
        except Exception as error:
            if _LEFT_OVER in str(error):
                raise ModelRefused(reason=self._refusal(model, chosen)) from None
            raise

    def _refusal(self, model: str, options: Mapping[str, str]) -> str:
        """Which layers the chip would leave to the CPU: its own refusal names none."""
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = thread_limit()
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        settings.add_provider_for_devices(self._provider(), dict(options))
        session = onnxruntime.InferenceSession(model, sess_options=settings)
        layers = [
            (node.op_type, node.name)
            for part in session.get_provider_graph_assignment_info()
            if part.ep_name != _PROVIDER
            for node in part.get_nodes()
            if node.op_type not in ("QuantizeLinear", "DequantizeLinear")
        ]
        if not layers:
            return "the chip's compiler does not take its inputs or outputs as they are quantized"
        return refusal(layers)

    def _provider(self) -> list[Any]:
        """Registered once a process."""
        import onnxruntime

        if not self._devices:
            if problem := missing_library():
                raise MissingLibrary(reason=problem)
            provider = str(library(PROVIDER_LIBRARY))
            onnxruntime.register_execution_provider_library(_PROVIDER, provider)
            offered = onnxruntime.get_ep_devices()
            self._devices = [device for device in offered if device.ep_name == _PROVIDER]
            if not self._devices:
                raise WorkerFailed(reason="onnxruntime-qnn offers no device on this machine")
        return self._devices


def _memory(quantized: str, graph: ModelProto) -> dict[str, Any] | None:
    import onnx

    memory = deployed_memory(onnx.load_model(quantized), shapes_of(graph.graph))
    return asdict(memory) if memory else None


def _split_graph(parts: int) -> ModelRefused:
    reason = f"the graph was split into {parts} parts: the chip does not support all of it"
    return ModelRefused(reason=reason)


def _simplified(path: Path, options: Mapping[str, str], may_split: bool) -> str:
    """A float model as uploaded has to be simplified before the compiler accepts it."""
    import onnx

    if "enable_htp_fp16_precision" not in options:
        return str(path)
    graph = read_graph(path, any_operator=may_split)
    apply_rewrites(graph)
    onnx.save_model(graph, "simplified.onnx")
    return "simplified.onnx"


def _layouts(model: ModelProto) -> dict[str, Layout]:
    """Of the inputs that are images."""
    from onnx import helper

    shapes = shapes_of(model.graph)
    return {
        source.name: layout_of(
            shapes[source.name],
            helper.tensor_dtype_to_np_dtype(source.type.tensor_type.elem_type).name,
        )
        for source in model.graph.input
    }


def _keep(file: Path, target: Path) -> None:
    """Copied, since the target may be on another disk; readable as other files are."""
    import shutil

    shutil.copyfile(file, target)


@contextmanager
def _without_torch() -> Iterator[None]:
    """ONNX Runtime's quantizer imports PyTorch where it is installed and uses nothing of it here.
    That takes seconds, so PyTorch is hidden while the quantizer is imported."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


CALLS = NativeWork().table()
