"""What is known of a model file before it is uploaded: its graph, the task that fits it, and what
the compilers of chips say. Needs neither a store nor a dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from edgeloop._util.system import available_cpus
from edgeloop.errors import (
    BadInput,
    BadModel,
    MissingExtra,
    ModelFailed,
    WorkerFailed,
)
from edgeloop.graph.info import GraphSummary, Shape, TaskFit, fitting_task
from edgeloop.graph.isolated import GraphProcess
from edgeloop.graph.read import check_file
from edgeloop.platforms import EstimatesIntervals, Estimator, platform_of
from edgeloop.settings import Settings

DEFAULT_DEVICES = ("htp",)
_LIMIT_S = 120.0
_AGREEMENT = "agreement of the quantized with the float model"


@dataclass(frozen=True)
class ChipAnswer:
    """The answer of a device's compiler, with placeholder scales, so that nothing has to be
    calibrated. `unknown`: it was not asked, and `text` says why. The interval of the latency
    is as in `Measurement`."""

    device: str
    answer: Literal["taken", "refused", "unknown"]
    latency_ms: float | None = None
    text: str = ""
    low_ms: float | None = None
    high_ms: float | None = None
    coverage: float | None = None
    basis: str = ""
    is_lower_bound: bool = False
    is_calibrated: bool = False


@dataclass(frozen=True)
class Inspection:
    """`not_asked` are devices that an operator list speaks for, and no compiler was asked."""

    summary: GraphSummary
    fit: TaskFit | None
    chips: tuple[ChipAnswer, ...]
    not_asked: tuple[str, ...]

    @property
    def problem(self) -> str:
        """Why a runner would not evaluate it; empty where it would."""
        if self.summary.problem:
            return self.summary.problem
        refusals = [chip for chip in self.chips if chip.answer == "refused"]
        if refusals and not any(chip.answer == "taken" for chip in self.chips):
            return refusals[0].text
        return ""

    @property
    def evaluated(self) -> tuple[str, ...]:
        return evaluated(self.fit)

    def to_fields(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        fields = self.summary.to_fields()
        info = fields.pop("info") or {}
        return {
            **fields,
            "inputs": info.get("inputs", fields["inputs"]),
            "outputs": info.get("outputs", fields["outputs"]),
            "macs": info.get("macs"),
            "params": info.get("params"),
            "task": self.fit.task if self.fit else None,
            "task_reason": self.fit.why if self.fit else None,
            "evaluated": list(self.evaluated),
            "chips": [asdict(chip) for chip in self.chips],
            "not_asked": list(self.not_asked),
            "problem": self.problem,
            "usable": not self.problem,
        }


def evaluated(fit: TaskFit | None) -> tuple[str, ...]:
    """What runners find out about a model that fits a task."""
    if fit is None:
        return ()
    if fit.task == "tensors":
        return ("latency", _AGREEMENT)
    scores = f"with a {fit.task} dataset: accuracy as float, quantized, fp16"
    return ("latency", scores, f"without one: {_AGREEMENT}")


def inspect_model(
    path: Path,
    devices: Sequence[str] = (),
    shapes: Mapping[str, Shape] | None = None,
    settings: Settings | None = None,
) -> Inspection:
    """Everything about one file. The compiler of each device is asked, all at once, while the graph
    is read. Raises BadInput where the file is not a model, or a device does not exist."""
    check_file(path)
    settings = settings or Settings.load()
    asked = tuple(dict.fromkeys(devices)) or DEFAULT_DEVICES
    with ExitStack() as stack:
        inquiries = [_Inquiry(device, settings) for device in asked]
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="edgeloop-inspect-")))
        graphs = stack.enter_context(closing(GraphProcess(_LIMIT_S)))
        pool = stack.enter_context(ThreadPoolExecutor(available_cpus()))
        for inquiry in inquiries:
            stack.callback(inquiry.close)
        model = graphs.prepare(path, shapes, folder) if shapes else path
        answers = [pool.submit(inquiry.ask, model) for inquiry in inquiries]
        summary = graphs.summarize(path, shapes, rewrites=True)
        chips = () if summary.problem else tuple(answer.result() for answer in answers)
    fit = fitting_task(summary.info) if summary.info else None
    names = [inquiry.device for inquiry in inquiries]
    return Inspection(summary, fit, chips, _others(names, settings))


class _Inquiry:
    """One question to the compiler of a device."""

    def __init__(self, device: str, settings: Settings) -> None:
        self._estimator: Estimator | None = None
        platform, self._why_not = platform_of(device), ""
        with closing(platform.open_device(device, settings)) as opened:
            self.device = opened.name
        try:
            self._estimator = platform.open_estimator(device, settings, _LIMIT_S)
        except BadInput:
            self._why_not = "no compiler to ask; 'edgeloop bench' runs the model there"

    def ask(self, model: Path) -> ChipAnswer:
        if self._estimator is None:
            return ChipAnswer(self.device, "unknown", text=self._why_not)
        try:
            return self._taken(self._estimator, model)
        except (MissingExtra, WorkerFailed) as error:
            return ChipAnswer(self.device, "unknown", text=str(error))
        except (ModelFailed, BadModel) as error:
            return ChipAnswer(self.device, "refused", text=str(error.fields["reason"]))

    def _taken(self, estimator: Estimator, model: Path) -> ChipAnswer:
        if not isinstance(estimator, EstimatesIntervals):
            return ChipAnswer(self.device, "taken", estimator.latency_ms(model))
        estimate = estimator.estimate(model)
        return ChipAnswer(
            self.device,
            "taken",
            1000 * estimate.seconds,
            low_ms=estimate.low_ms,
            high_ms=estimate.high_ms,
            coverage=estimate.coverage,
            basis=estimate.basis,
            is_lower_bound=estimate.missing_ops > 0,
            is_calibrated=estimate.is_calibrated,
        )

    def close(self) -> None:
        """Interrupts an answer that is no longer needed."""
        if self._estimator is not None:
            self._estimator.kill()
            self._estimator.close()


def _others(asked: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """Other chips of the platforms whose compilers were asked."""
    used = {platform.name: platform for platform in map(platform_of, asked)}
    listed = [device for one in used.values() for device in one.list_devices(settings)]
    return tuple(
        one.device for one in listed if one.state == "simulated" and one.device not in asked
    )
