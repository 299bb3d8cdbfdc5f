"""This machine's CPU through ONNX Runtime: the float reference, and a proxy for a chip."""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop._util.health import HealthCheck, package_check
from edgeloop._util.isolation import DEFAULT_LIMIT_S, NO_MEMORY, memory_exceeded
from edgeloop._util.system import FairLimit, available_cpus
from edgeloop.errors import BadInput, MissingExtra, ModelFailed, ModelRefused, WorkerFailed
from edgeloop.graph.info import GraphInfo
from edgeloop.platforms.base import Artefacts, Kind, LayerTime, ListedDevice, Measurement, Platform
from edgeloop.platforms.batching import infer_in_order, model_inputs, random_batch, run_samples
from edgeloop.tasks import Tensors

if TYPE_CHECKING:
    from edgeloop.settings import Settings


class HostPlatform(Platform):
    """Runs what the toolchain qnn makes: its quantized models are ONNX files."""

    name = "host"
    device_names = ("host",)
    has_toolchain = False
    converter = "qnn"

    def open_device(self, name: str, settings: Settings) -> HostDevice:

        return HostDevice()

    def list_devices(self, settings: Settings) -> Iterable[ListedDevice]:
        return (ListedDevice("host"),)

    def health(self, settings: Settings) -> Iterable[HealthCheck]:
        purpose = "F1 of float models, and measuring this CPU"
        return (package_check("onnxruntime", "pip install 'edgeloop[qnn]'", purpose),)


# This machine's CPU through ONNX Runtime: the float reference, and a proxy for the chip.


_ARTEFACTS: Artefacts = {"quantized": ".quant.onnx"}
EXACT_PRODUCTS = "session.x64quantprecision"
_WARM_UP = 5
_SAMPLES = 50
_FEWEST_SAMPLES = 5
_SAMPLING_S = 2.0
_PROFILED_RUNS = 3
_REFUSALS = ("InvalidGraph", "InvalidProtobuf", "InvalidArgument", "NotImplemented")


class HostDevice:
    """`threads` are those of one measured run; inference for accuracy uses every core."""

    name = "host"
    chip = ""
    float_kind: Kind = "float"
    artefacts = _ARTEFACTS

    def __init__(self, threads: int = 1, limit_s: float = DEFAULT_LIMIT_S) -> None:
        if threads < 1:
            raise BadInput(reason=f"a device cannot run with {threads} threads")
        self._threads = threads
        self._limit_s = limit_s

    def probe(self) -> str:
        version = _onnxruntime().__version__
        cores = available_cpus()
        return f"ONNX Runtime {version} on {platform.machine()}, {cores} cores"

    def measure(self, model: Path, info: GraphInfo) -> Measurement:
        """Warm-up, then every sample kept; the median is the result, being robust to the load
        of a shared machine."""
        session = self._session(model, self._threads)
        feeds = model_inputs(random_batch(info, info.batch), info)
        samples: list[float] = []
        with self._limited(model) as run_options:
            for _ in range(_WARM_UP):
                session.run(None, feeds, run_options)
            ends = time.perf_counter() + _SAMPLING_S
            while len(samples) < _SAMPLES:
                began = time.perf_counter()
                session.run(None, feeds, run_options)
                samples.append(time.perf_counter() - began)
                if len(samples) >= _FEWEST_SAMPLES and time.perf_counter() > ends:
                    break
            layers = self._layers(model, feeds, run_options)
        median = statistics.median(samples)
        return Measurement(
            seconds=median,
            samples_s=tuple(samples),
            layers=layers,
            conditions={
                "threads": self._threads,
                "warm_up_runs": _WARM_UP,
                "spread_percent": 100 * statistics.pstdev(samples) / median,
                "cpu": platform.processor() or platform.machine(),
                "load": round(os.getloadavg()[0], 2),
            },
        )

    def infer(
        self, model: Path, info: GraphInfo, kind: Kind, batches: Iterator[Tensors]
    ) -> Iterator[Tensors]:
        if kind == "fp16":
            reason = "the host runs float and quantized models; fp16 is for the device htp"
            raise BadInput(reason=reason)
        session = self._session(model, 1)
        names = [tensor.name for tensor in info.outputs]

        def work(piece: Tensors) -> Tensors:
            with self._limited(model) as run_options:
                return run_samples(
                    piece, info, lambda feeds: session.run(names, feeds, run_options)
                )

        return infer_in_order(batches, info, available_cpus(), work)

    def close(self) -> None:
        """Sessions end with their iterators."""

    def _session(self, model: Path, threads: int, profile: Path | None = None) -> Any:
        """CPUs without VNNI cut off sums of 8-bit products unless told not to, and quantized models
        would score less on them than elsewhere. It costs them up to half their speed, so what is
        timed is what is scored; on others the entry changes nothing."""
        onnxruntime = _onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry(EXACT_PRODUCTS, "1")
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        try:
            return onnxruntime.InferenceSession(
                str(model), sess_options=options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its errors share no base class of their own
            if not type(error).__module__.startswith("onnxruntime"):
                raise
            if NO_MEMORY.search(str(error)):
                raise memory_exceeded(f"{model.name} on the host") from None
            is_final = type(error).__name__ in _REFUSALS
            kind = ModelRefused if is_final else ModelFailed
            raise kind(reason=f"ONNX Runtime refused {model.name}: {error}") from None

    @contextmanager
    def _limited(self, model: Path) -> Iterator[Any]:
        """Run options that end a run when the time is over; ONNX Runtime raises then. Time that
        the run had to wait for a CPU does not count."""
        options = _onnxruntime().RunOptions()
        is_over, overdue = threading.Event(), threading.Event()
        limit = FairLimit(self._limit_s)

        def watch() -> None:
            while (pause_s := limit.pause_s()) > 0:
                if is_over.wait(pause_s):
                    return
            overdue.set()
            options.terminate = True

        threading.Thread(target=watch, name="host-limit", daemon=True).start()
        try:
            yield options
        except Exception as error:
            if not type(error).__module__.startswith("onnxruntime"):
                raise
            if NO_MEMORY.search(str(error)):
                raise memory_exceeded(f"{model.name} on the host") from None
            reason = f"did not end within {self._limit_s:g} s" if overdue.is_set() else str(error)
            if overdue.is_set() and limit.is_unfair:
                reason = f"{model.name} on the host {reason}: this machine is too busy"
                raise WorkerFailed(reason=reason) from None
            raise ModelFailed(reason=f"{model.name} on the host: {reason}") from None
        finally:
            is_over.set()

    def _layers(
        self, model: Path, feeds: dict[str, Any], run_options: Any
    ) -> tuple[LayerTime, ...]:
        """Times a layer from ONNX Runtime's own profile, in runs that are not measured."""
        with tempfile.TemporaryDirectory(prefix="edgeloop-profile-") as folder:
            session = self._session(model, self._threads, Path(folder) / "profile")
            for _ in range(_PROFILED_RUNS + 1):
                session.run(None, feeds, run_options)
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        times: dict[tuple[str, str], list[float]] = defaultdict(list)
        for event in events:
            name = event.get("name", "")
            if event.get("cat") == "Node" and name.endswith("_kernel_time"):
                operator = event.get("args", {}).get("op_name", "")
                times[name.removesuffix("_kernel_time"), operator].append(float(event["dur"]))
        return tuple(
            LayerTime(name, operator, statistics.median(durations[1:] or durations))
            for (name, operator), durations in times.items()
        )


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra(what="The device host", extra="qnn") from None
    return onnxruntime
