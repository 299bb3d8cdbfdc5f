"""Recovery of accuracy that quantization lost: equalization, ranges, rounding, biases.

Works on the quantized ONNX model that a toolchain made and on the float graph it was made of. Each
step is kept only if the score on the device rises by more than its paired interval.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from edgeloop._util.isolation import WorkerProcess
from edgeloop._util.system import show_progress
from edgeloop._util.values import suggestion
from edgeloop.errors import BadInput, MemoryExceeded, ModelFailed
from edgeloop.platforms.batching import samples_as_files
from edgeloop.tasks import Interval, Samples
from edgeloop.tuning.lab import tuning_worker

# Recovery: one step after the other, each kept only if the score on the device says so.
#
# A step starts from the best model so far. What it makes is run on the device, on images that no
# step has seen, and kept if its score is higher by more than the paired interval of both: good
# numbers of a simulation on the CPU are not enough. Where the loss against the float model lies
# within its interval, nothing is left to recover, and the rest is not tried.


STEP_NAMES = ("equalize", "ranges", "adaround", "bias")
_STEP_LIMIT_S = 900.0
LIMIT_S = 3600.0


@dataclass(frozen=True)
class Judged:
    """A score on the images of recovery; `counts` are per image, for paired differences."""

    value: float
    counts: Any


class Judge(Protocol):
    """Scores models on a device, always on the same images."""

    def score(self, quantized: Path) -> Judged: ...

    def reference(self) -> Judged | None:
        """Of the float model; None where scores are differences from it."""

    def difference(self, first: Judged, second: Judged) -> Interval:
        """Paired, first − second."""


@dataclass(frozen=True)
class TriedStep:
    """`low` and `high` are the paired interval of after − before. Without them the step could not
    be tried, and `note` says why."""

    step: str
    before: float
    after: float | None = None
    low: float | None = None
    high: float | None = None
    kept: bool = False
    variant: str = ""
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Recovery:
    """`quantized` is the best model: the one that was given, if no step was kept."""

    quantized: Path
    before: float
    after: float
    reference: float | None
    steps: tuple[TriedStep, ...] = field(default=())
    outcome: str = ""

    @property
    def is_better(self) -> bool:
        return any(step.kept for step in self.steps)

    def to_fields(self) -> dict[str, object]:
        """Plain values, for a column of a row."""
        steps = [
            {k: _plain(v) for k, v in asdict(step).items() if v not in (None, "")}
            for step in self.steps
        ]
        ends = {"before": self.before, "after": self.after, "float": self.reference}
        numbers = {name: _plain(value) for name, value in ends.items() if value is not None}
        return {**numbers, "outcome": self.outcome, "steps": steps}


def parse_steps(text: str) -> tuple[str, ...]:
    """`all`, or names with commas between; always in the order in which they are tried."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return STEP_NAMES
    for name in names:
        if name not in STEP_NAMES:
            known = suggestion(name, STEP_NAMES, "the steps are")
            raise BadInput(reason=f"there is no recovery step {name!r}: {known}")
    if not names:
        raise BadInput(reason=f"name recovery steps: {', '.join(STEP_NAMES)}, or all")
    return tuple(name for name in STEP_NAMES if name in names)


def recover(
    model: Path,
    quantized: Path,
    calibration: Samples,
    judge: Judge,
    folder: Path,
    steps: Sequence[str] = STEP_NAMES,
    limit_s: float = LIMIT_S,
) -> Recovery:
    """`model` is the float graph as it was quantized, `calibration` what steps look at: none of it
    should be among the images of the judge. `adaround` rounds weights of 4 bits, or all weights if
    it is the only step asked for."""
    deadline = time.monotonic() + limit_s
    folder.mkdir(parents=True, exist_ok=True)
    reference, best = judge.reference(), judge.score(quantized)
    value = None if reference is None else reference.value
    first, tried = best, list[TriedStep]()
    outcome = _outcome(judge, reference, best)
    with tuning_worker() as process:
        samples = samples_as_files(calibration, folder)
        for number, name in enumerate(steps):
            if outcome:
                break
            if time.monotonic() > deadline:
                outcome = f"stopped before {name}: {limit_s:.0f} s are over"
                break
            show_progress()
            targets = folder / f"{number}.onnx", folder / f"{number}.quant.onnx"
            began = time.monotonic()
            step, judged = _tried(
                process, name, model, quantized, targets, samples, judge, best,
                rounds_all=tuple(steps) == ("adaround",),
            )  # fmt: skip
            tried.append(_timed(step, time.monotonic() - began))
            if step.kept and judged is not None:
                model, quantized, best = *targets, judged
                outcome = _outcome(judge, reference, best)
    if not outcome:
        outcome = "every step was tried"
    return Recovery(quantized, first.value, best.value, value, tuple(tried), outcome)


def _tried(
    process: WorkerProcess,
    name: str,
    model: Path,
    quantized: Path,
    targets: tuple[Path, Path],
    samples: dict[str, Any],
    judge: Judge,
    best: Judged,
    rounds_all: bool,
) -> tuple[TriedStep, Judged | None]:
    """A step that cannot be done, or whose model the device does not take, is not kept: the model
    from before is as good as it was. Failures of the machine are raised."""
    try:
        made, _ = process.call(
            "tuning.step",
            limit_s=_STEP_LIMIT_S,
            name=name,
            model=str(model.resolve()),
            quantized=str(quantized.resolve()),
            target_model=str(targets[0].resolve()),
            target=str(targets[1].resolve()),
            samples=samples,
            rounds_all=rounds_all,
        )
        if not made["is_done"]:
            return TriedStep(name, best.value, note="nothing to change"), None
        judged = judge.score(targets[1])
    except (ModelFailed, MemoryExceeded) as error:
        return TriedStep(name, best.value, note=f"not possible: {error}"), None
    gain = judge.difference(judged, best)
    kept = gain.low > 0
    step = TriedStep(
        *(name, best.value, judged.value, gain.low, gain.high, kept, str(made["variant"]))
    )
    return step, judged


def _timed(step: TriedStep, seconds: float) -> TriedStep:
    from dataclasses import replace

    return replace(step, seconds=round(seconds, 1))


def _outcome(judge: Judge, reference: Judged | None, best: Judged) -> str:
    """Empty where something may be left to recover."""
    if reference is None:
        return ""
    loss = judge.difference(reference, best)
    if loss.low > 0:
        return ""
    return "nothing to recover: the loss against float is within its interval"


def _plain(value: object) -> object:
    """JSON has no infinity."""
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
