"""Qualcomm's own compiler, from the package onnxruntime-qnn, as a toolchain."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from edgeloop._util.isolation import DEFAULT_LIMIT_S, WorkerProcess, register_calls
from edgeloop.errors import BadInput
from edgeloop.graph.bits import tunable_from
from edgeloop.graph.count import DeployedMemory
from edgeloop.graph.info import GraphInfo, info_from
from edgeloop.platforms.base import (
    DEFAULT_PRECISION,
    CalibratedModel,
    Converted,
    LatencyProfile,
    Measurement,
)
from edgeloop.platforms.batching import samples_as_files
from edgeloop.platforms.precision import Precision, PrecisionPlan
from edgeloop.platforms.qnn.chips import DEFAULT_CHIP, Chip, find_chip
from edgeloop.platforms.qnn.latency import constants_text, predict
from edgeloop.tasks import Samples

if TYPE_CHECKING:
    from edgeloop.platforms.qnn.quantize import OutputForm

register_calls("qnn", "edgeloop.platforms.qnn.native", what="Conversion for Qualcomm chips")

_SIMPLIFIED, _LAYERS = "simplified.onnx", "layers.csv"
_CALIBRATION_S_PER_SAMPLE = 2.0


@dataclass(frozen=True)
class Estimate:
    """What the compiler says of a graph on a chip, before any calibration. Bytes are traffic with
    the memory outside the chip's own; `caveats` are reasons to trust the number less;
    `cpu_operators` are those that the chip leaves to the CPU.

    `missing_ops` are steps that the compiler has no cost for, and `cpu_layers` those that the chip
    does not run: the time leaves them out. `form` is the number format (`w8a8`, `w8a16`, `float`,
    `mixed`), `wide_share` the share of activations with 16 bits, `kind` that of the network, and
    `features` are of the deployed graph; see `edgeloop.platforms.qnn.latency`."""

    soc: int
    raw_us: float
    low_us: float
    high_us: float
    input_fill_bytes: int
    fill_bytes: int
    spill_bytes: int
    output_spill_bytes: int
    caveats: tuple[str, ...] = ()
    cpu_operators: tuple[str, ...] = ()
    missing_ops: int = 0
    cpu_layers: int = 0
    form: str = "w8a8"
    wide_share: float = 0.0
    kind: str = ""
    features: Mapping[str, float] = field(default_factory=dict)

    @property
    def ddr_bytes(self) -> int:
        inner = self.fill_bytes + self.spill_bytes
        return self.input_fill_bytes + inner + self.output_spill_bytes


class QnnToolchain:
    """Keeps one warm process for native work; `limit_s` is the time one step of it may take."""

    name = "qnn"

    def __init__(
        self,
        limit_s: float = DEFAULT_LIMIT_S,
        process: WorkerProcess | None = None,
        may_split: bool = False,
    ) -> None:
        """`may_split` leaves operators that the compiler does not take to the CPU."""
        self._may_split = may_split
        self._limit_s = limit_s
        self._process = process or WorkerProcess()
        self.version = f"onnxruntime-qnn {_installed()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def warm(self) -> None:
        self._process.warm("qnn")

    def inspect(self, model: Path) -> GraphInfo:
        """Raises UnusableModel (a BadModel) with the reason in plain words."""
        answer = self._call("inspect", model=_text(model), may_split=self._may_split)
        return info_from(answer["info"])

    def convert(
        self,
        model: Path,
        calibration: Samples,
        folder: Path,
        precision: Precision = DEFAULT_PRECISION,
        chips: tuple[str, ...] = (),
    ) -> Converted:
        if precision == "fp16":
            reason = "fp16 models are not quantized: choose a8w8, a8w8-per-channel or a16w8"
            raise BadInput(reason=reason)
        targets = [find_chip(chip) for chip in chips]
        folder.mkdir(parents=True, exist_ok=True)
        quantized, table = (folder / f"{model.stem}{end}" for end in (".quant.onnx", ".layers.csv"))
        with tempfile.TemporaryDirectory(dir=folder, prefix=".convert-") as name:
            work = Path(name).resolve()
            made = self._call(
                "quantize",
                limit_s=self._limit_s + _CALIBRATION_S_PER_SAMPLE * len(calibration),
                model=_text(model),
                simplified=str(work / _SIMPLIFIED),
                target=_text(quantized),
                layers=_text(table),
                precision=precision,
                may_split=self._may_split,
                samples=samples_as_files(calibration, work),
            )
            info = info_from(made["info"])
            files = {path.name: path for path in (quantized, table)}
            notes, memory = tuple(made["caveats"]), _memory(made)
            converted = Converted(info, precision, files, quantized.name, notes, memory)
            return self._compiled(converted, work, targets)

    def convert_plan(
        self,
        model: Path,
        calibration: Samples,
        folder: Path,
        plan: PrecisionPlan,
        chips: tuple[str, ...] = (),
    ) -> Converted:
        targets = [find_chip(chip) for chip in chips]
        folder.mkdir(parents=True, exist_ok=True)
        quantized, table = (folder / f"{model.stem}{end}" for end in (".quant.onnx", ".layers.csv"))
        with tempfile.TemporaryDirectory(dir=folder, prefix=".convert-") as name:
            work = Path(name).resolve()
            calibrated = self.calibrate_tensors(model, calibration, work)
            (work / _LAYERS).replace(table)
            made = self._quantized(calibrated, plan, quantized, with_memory=True)
            files = {path.name: path for path in (quantized, table)}
            notes, memory = calibrated.notes, _memory(made)
            converted = Converted(calibrated.info, plan.name, files, quantized.name, notes, memory)
            return self._compiled(converted, work, targets)

    def calibrate_tensors(self, model: Path, calibration: Samples, folder: Path) -> CalibratedModel:
        folder.mkdir(parents=True, exist_ok=True)
        simplified = folder / _SIMPLIFIED
        with tempfile.TemporaryDirectory(dir=folder, prefix=".calibrate-") as name:
            made = self._call(
                "calibrate",
                limit_s=self._limit_s + _CALIBRATION_S_PER_SAMPLE * len(calibration),
                model=_text(model),
                simplified=_text(simplified),
                layers=_text(folder / _LAYERS),
                may_split=self._may_split,
                samples=samples_as_files(calibration, Path(name).resolve()),
            )
        return CalibratedModel(
            info=info_from(made["info"]),
            model=simplified,
            tensors=tuple(tunable_from(fields) for fields in made["tensors"]),
            ranges={name: (low, high) for name, (low, high) in made["ranges"].items()},
            pixels=tuple(made["pixels"]),
            notes=tuple(made["caveats"]),
        )

    def quantize_plan(
        self,
        calibrated: CalibratedModel,
        plan: PrecisionPlan,
        target: Path,
        outputs: Sequence[str] = (),
    ) -> Sequence[str]:
        return list(self._quantized(calibrated, plan, target, outputs)["outputs"])

    def _quantized(
        self,
        calibrated: CalibratedModel,
        plan: PrecisionPlan,
        target: Path,
        outputs: Sequence[str] = (),
        with_memory: bool = False,
    ) -> dict[str, Any]:
        return self._call(
            "quantize_plan",
            model=_text(calibrated.model),
            calibrated={
                "ranges": dict(calibrated.ranges),
                "pixels": list(calibrated.pixels),
                "tensors": [tensor.to_fields() for tensor in calibrated.tensors],
            },
            plan=plan.to_fields(),
            target=_text(target),
            outputs=list(outputs),
            with_memory=with_memory,
        )

    def _compiled(self, converted: Converted, work: Path, chips: list[Chip]) -> Converted:
        """With what the chips need; `work` has the simplified float model."""
        quantized = converted.files[converted.quantized]
        made, note = self._for_chips(quantized, work, chips)
        if note:
            return replace(converted, notes=(*converted.notes, note))
        plain = quantized.with_name(f"{converted.quantized.removesuffix('.quant.onnx')}.dlc")
        self._call("dlc", model=str(work / _SIMPLIFIED), target=_text(plain))
        return replace(converted, files={**converted.files, plain.name: plain, **made})

    def _for_chips(
        self, quantized: Path, work: Path, chips: list[Chip]
    ) -> tuple[dict[str, Path], str]:
        """What is compiled of a quantized model, beside it; or a note that it cannot be whole."""
        stem = quantized.name.removesuffix(".quant.onnx")
        deployed = str(work / "deployed.onnx")
        self._call("deploy", quantized=_text(quantized), target=deployed)
        if note := self._divide(deployed, chips):
            return {}, note
        dlc = quantized.with_name(f"{stem}.quant.dlc")
        self._call("dlc", model=deployed, target=_text(dlc))
        files = {dlc.name: dlc}
        for chip in chips:
            files |= self._context(deployed, quantized.parent, stem, chip)
        return files, ""

    def estimate(self, quantized: Path, chip: Chip, output: OutputForm = "logits") -> Estimate:
        """Of the graph that would be deployed; deterministic. The chip must have an estimate."""
        soc = chip.require_estimate()
        answer = self._call(
            "estimate",
            quantized=_text(quantized),
            soc=soc,
            output=output,
            may_split=self._may_split,
        )
        return _estimate(soc, answer)

    def screen(self, model: Path, chip: Chip, output: OutputForm = "logits") -> Estimate:
        """Nearly the same number for a float model, trained or not: no calibration, no files.
        Graphs with Concat can be off by 17 % (see `fixed_scales`)."""
        soc = chip.require_estimate()
        return self.screen_all(model, [soc], output)[soc]

    def screen_all(
        self, model: Path, socs: Sequence[int], output: OutputForm = "logits"
    ) -> dict[int, Estimate]:
        """As `screen`, by the numbers of chips; the model is quantized once."""
        limit_s = self._limit_s * len(socs)
        fields = {"model": _text(model), "socs": list(socs), "output": output}
        answers = self._call("screen", limit_s=limit_s, **fields)["estimates"]
        return {soc: _estimate(soc, one) for soc, one in zip(socs, answers, strict=True)}

    def measure(self, model: Path, chip: Chip, profile: LatencyProfile | None) -> Measurement:
        """The predicted time of a quantized model on a chip, with its interval. A chip without a
        profile costs one more compile: it gets a time relative to the default chip's."""
        return _measured(lambda asked: self.estimate(model, asked), chip, profile)

    def simplify(self, model: Path, target: Path) -> None:
        """The float graph as it is quantized."""
        self._call("simplify", model=_text(model), target=_text(target), may_split=self._may_split)

    def compile(
        self, quantized: Path, name: str, folder: Path, chips: tuple[str, ...] = ()
    ) -> dict[str, Path]:
        """What `convert` makes of a quantized model, for this one; `name` is that of the model."""
        targets = [find_chip(chip) for chip in chips]
        folder.mkdir(parents=True, exist_ok=True)
        copy = folder / f"{Path(name).stem}.quant.onnx"
        shutil.copyfile(quantized, copy)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".compile-") as scratch:
            made, _ = self._for_chips(copy, Path(scratch).resolve(), targets)
        return {copy.name: copy, **made}

    def close(self) -> None:
        self._process.close()

    def _divide(self, deployed: str, chips: list[Chip]) -> str:
        """Which part of a graph runs where, in a sentence; empty where the chip runs all of it.
        Only a whole graph is written as a DLC and as a binary."""
        if not self._may_split:
            return ""
        options = target_options(chips[0]) if chips else {}
        return str(self._call("divide", model=deployed, options=options)["note"])

    def _context(self, deployed: str, folder: Path, stem: str, chip: Chip) -> dict[str, Path]:
        binary, wrapper = f"{stem}.{chip.name}.bin", f"{stem}.{chip.name}.ctx.onnx"
        self._call(
            "context",
            model=deployed,
            target=_text(folder / binary),
            wrapper=_text(folder / wrapper),
            options=target_options(chip),
        )
        return {binary: folder / binary, wrapper: folder / wrapper}

    def _call(self, work: str, limit_s: float | None = None, **fields: Any) -> dict[str, Any]:
        return self._process.call(f"qnn.{work}", limit_s=limit_s or self._limit_s, **fields)[0]


class ScreenedModel:
    """What the compiler says of the model that is being screened, for all chips that are asked
    about it: quantized once, and compiled once for each number that they are estimated by."""

    def __init__(
        self, targets: Iterable[tuple[Chip, LatencyProfile | None]], limit_s: float
    ) -> None:
        self.process = WorkerProcess()
        self.toolchain = QnnToolchain(limit_s, self.process)
        chips = [chip for target, profile in targets for chip in _needed(target, profile)]
        self._socs = list(dict.fromkeys(chip.require_estimate() for chip in chips))
        self._key: tuple[str, int, int] | None = None
        self._found: dict[int, Estimate] = {}

    def estimate(self, model: Path, chip: Chip) -> Estimate:
        status = model.stat()
        key = (_text(model), status.st_mtime_ns, status.st_size)
        if key != self._key:
            self._key, self._found = None, self.toolchain.screen_all(model, self._socs)
            self._key = key
        return self._found[chip.require_estimate()]


class QnnEstimator:
    """Estimates of graphs that are not trained yet, for searches."""

    def __init__(self, chip: Chip, profile: LatencyProfile | None, screened: ScreenedModel) -> None:
        soc = chip.require_estimate()
        self._chip, self._profile, self._screened = chip, profile, screened
        fit = _fit_text(profile) if profile else "none"
        self.conditions = (
            f"estimate of soc {soc} for {chip.name}, profile {fit}, fixed scales, "
            f"onnxruntime-qnn {_installed()}"
        )

    def warm(self) -> None:
        self._screened.process.warm("qnn")

    def inspect(self, model: Path) -> GraphInfo:
        return self._screened.toolchain.inspect(model)

    def latency_ms(self, model: Path) -> float:
        return 1000 * self.estimate(model).seconds

    def estimate(self, model: Path) -> Measurement:
        ask = self._screened.estimate
        return _measured(lambda chip: ask(model, chip), self._chip, self._profile)

    def kill(self) -> None:
        self._screened.process.kill()

    def close(self) -> None:
        self._screened.toolchain.close()


def measurement(
    estimate: Estimate,
    chip: Chip,
    profile: LatencyProfile | None,
    reference: Estimate | None = None,
) -> Measurement:
    """The same for the same model, so one sample says it all."""
    predicted = predict(estimate, chip, profile, reference=reference)
    conditions: dict[str, str | float] = {
        "chip": chip.name,
        "estimated_as_soc": estimate.soc,
        "format": estimate.form,
        "input_fill_bytes": estimate.input_fill_bytes,
        "fill_bytes": estimate.fill_bytes,
        "spill_bytes": estimate.spill_bytes,
        "output_spill_bytes": estimate.output_spill_bytes,
    }
    if estimate.cpu_operators:
        conditions["cpu_operators"] = ", ".join(estimate.cpu_operators)
    if predicted.caveats:
        conditions["note"] = "; ".join(predicted.caveats)
    if profile is not None:
        conditions["profile_constants"] = constants_text(profile, estimate.form)
    seconds = predicted.time_us / 1e6
    return Measurement(
        seconds=seconds,
        samples_s=(seconds,),
        is_estimate=True,
        raw_us=estimate.raw_us,
        low_us=estimate.low_us,
        high_us=estimate.high_us,
        low_s=None if predicted.low_us is None else predicted.low_us / 1e6,
        high_s=None if predicted.high_us is None else predicted.high_us / 1e6,
        coverage=predicted.coverage,
        basis=predicted.basis,
        missing_ops=estimate.missing_ops + estimate.cpu_layers,
        is_deterministic=True,
        profile="" if profile is None else profile.name,
        is_calibrated=predicted.is_calibrated,
        conditions=conditions,
        ddr_bytes=estimate.ddr_bytes,
    )


def _measured(
    ask: Callable[[Chip], Estimate], chip: Chip, profile: LatencyProfile | None
) -> Measurement:
    by_soc = {one.estimate_soc: ask(one) for one in _needed(chip, profile)}
    reference = by_soc.get(find_chip(DEFAULT_CHIP).estimate_soc) if profile is None else None
    return measurement(by_soc[chip.estimate_soc], chip, profile, reference)


def _needed(chip: Chip, profile: LatencyProfile | None) -> list[Chip]:
    """Chips to compile for: a chip without a profile gets a time relative to the default one's."""
    default = find_chip(DEFAULT_CHIP)
    is_known = profile is not None or chip.estimate_soc == default.estimate_soc
    return [chip] if is_known else [chip, default]


@cache
def _installed() -> str:
    try:
        return version("onnxruntime-qnn")
    except PackageNotFoundError:
        return "unknown"


def target_options(chip: Chip) -> Mapping[str, str]:
    """The provider ignores an unknown architecture without a word; ours come from the table."""
    if chip.soc is None:
        return {"htp_arch": str(chip.arch)}
    return {"soc_model": str(chip.soc)}


def _memory(made: Mapping[str, Any]) -> DeployedMemory | None:
    return DeployedMemory(**made["memory"]) if made["memory"] else None


def _fit_text(profile: LatencyProfile) -> str:
    """All that a predicted time and its interval depend on, in a few words."""
    intervals = [
        f"{kind} {one.low:g}-{one.high:g} at {one.coverage}"
        for kind, one in profile.intervals.items()
    ]
    terms = [f"{weight:+g}*{feature}" for feature, weight in profile.terms.items()]
    line = f"{profile.name} {profile.a_us:g}+{profile.b:g}x"
    formats = {form: _fit_text(one) for form, one in profile.formats.items() if not one.formats}
    digest = hashlib.sha256(repr(sorted(formats.items())).encode()).hexdigest()[:8]
    others = [f"formats {digest}"] if formats else []
    return " ".join((line, *terms, *intervals, *others))


def _text(path: Path) -> str:
    """Absolute, because the worker process has another current folder."""
    return str(path.resolve())


def _estimate(soc: int, fields: dict[str, Any]) -> Estimate:
    caveats, left = tuple(fields.pop("caveats")), tuple(fields.pop("cpu_operators"))
    return Estimate(soc=soc, caveats=caveats, cpu_operators=left, **fields)
