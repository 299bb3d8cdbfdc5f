"""The chip's neural processor without the chip: Qualcomm's simulator and compiler.

Outputs are those of the simulator, the nearest to the chip there is without one. Latency is
the compiler's estimate of the graph that would be deployed, corrected by the device's profile: an
estimate, never called a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from edgeloop._util.isolation import DEFAULT_LIMIT_S, LendingPool, WorkerProcess
from edgeloop._util.system import available_cpus
from edgeloop.errors import BadInput, ModelFailed, NoSuchPrecision
from edgeloop.graph.info import GraphInfo
from edgeloop.platforms.base import Artefacts, Kind, LatencyProfile, LayerCosts, Measurement
from edgeloop.platforms.batching import infer_in_order, sample_count
from edgeloop.platforms.qnn.chips import Chip, named_chip
from edgeloop.platforms.qnn.layers import Workshop, model_costs
from edgeloop.platforms.qnn.toolchain import QnnToolchain, target_options
from edgeloop.tasks import Tensors

_ARTEFACTS: Artefacts = {"quantized": ".quant.onnx"}


class HtpDevice:
    """`workers` processes simulate at once, by default one a core: the simulator uses one each."""

    float_kind: Kind = "fp16"
    artefacts = _ARTEFACTS

    def __init__(
        self,
        chip: Chip,
        profile: LatencyProfile | None = None,
        name: str = "",
        workers: int | None = None,
        limit_s: float = DEFAULT_LIMIT_S,
        may_split: bool = False,
    ) -> None:
        self._may_split = may_split
        self.name = name or f"htp:{chip.name}"
        self.chip = chip.name
        self._chip = chip
        self._profile = profile
        self._limit_s = limit_s
        count = workers or available_cpus()
        self._processes = LendingPool(WorkerProcess() for _ in range(count))

    def probe(self) -> str:
        with self._processes.borrow() as process:
            version = process.call("qnn.hello", warm=True)[0]["onnxruntime"]
        chip, profile = self._chip, self._profile
        line = f"simulator of {chip.title} (HTP v{chip.arch}), ONNX Runtime {version}; "
        if chip.estimate_soc is None:
            return line + f"no latency estimate, the nearest chip with one is {chip.nearest}"
        if profile is None:
            return line + "latency is the compiler's estimate, not calibrated"
        return line + f"latency is an estimate, calibrated by {profile.name} ({profile.source})"

    def measure(self, model: Path, info: GraphInfo) -> Measurement:
        """The compiler's estimate; the same for the same model, so one sample says it all."""
        with self._processes.borrow() as process:
            toolchain = QnnToolchain(self._limit_s, process, self._may_split)
            return toolchain.measure(model, self._chip, self._profile)

    def attribute(
        self,
        model: Path,
        workers: int | None = None,
        cache: Path | None = None,
        limit_s: float = 60.0,
        progress: Callable[[int, int], None] | None = None,
    ) -> LayerCosts:
        """The compiler's estimate of prefixes of the deployed graph; calibrated in proportion."""
        shop = Workshop(
            self.name,
            self._chip.require_estimate(),
            self._profile is not None,
            self._processes.borrow,
            workers=min(workers or len(self._processes.items), len(self._processes.items)),
            call_limit_s=self._limit_s,
        )
        return model_costs(model, shop, self._times, cache, limit_s, progress)

    def _times(self, quantized: Path) -> Measurement:
        with self._processes.borrow() as process:
            toolchain = QnnToolchain(self._limit_s, process)
            return toolchain.measure(quantized, self._chip, self._profile)

    def infer(
        self, model: Path, info: GraphInfo, kind: Kind, batches: Iterator[Tensors]
    ) -> Iterator[Tensors]:
        options = self._options(kind)
        path = str(model.resolve())

        def work(piece: Tensors) -> Tensors:
            limit_s = self._limit_s + self._limit_s * sample_count(piece)
            with self._processes.borrow() as process, _refusals(kind):
                _, outputs = process.call(
                    "qnn.infer",
                    tuple(piece.values()),
                    limit_s=limit_s,
                    names=list(piece),
                    model=path,
                    info=info.to_fields(),
                    options=dict(options),
                    may_split=self._may_split,
                )
            return {one.name: array for one, array in zip(info.outputs, outputs, strict=True)}

        return infer_in_order(batches, info, len(self._processes.items), work)

    def close(self) -> None:
        for process in self._processes.items:
            process.kill()  # all at once: closing one of them would wait for its call
        for process in self._processes.items:
            process.close()

    def _options(self, kind: Kind) -> Mapping[str, str]:
        if kind == "quantized":
            return target_options(self._chip)
        if kind == "float":
            reason = "the chip's neural processor has no 32-bit floats: use fp16, or device host"
            raise BadInput(reason=reason)
        return {**target_options(named_chip(self._chip)), "enable_htp_fp16_precision": "1"}


@contextmanager
def _refusals(kind: Kind) -> Iterator[None]:
    """Some graphs that run quantized cannot be compiled for fp16. The compiler says so with an
    error of memory, however small they are."""
    try:
        yield
    except ModelFailed as error:
        if kind == "fp16" and "Failed to finalize QNN graph" in str(error):
            reason = "its fp16 simulator refused to finalize it"
            raise NoSuchPrecision(precision=kind, reason=reason) from None
        raise
