"""Recover accuracy that quantization lost: equalization, ranges, rounding, biases.

A step takes the float graph and its quantized form, and writes better versions of both
(`worker.py`). The steps run one after the other, each on the best model so far. The result of a
step is scored on the device, on images that no step has seen, and kept only if the score rises by
more than the paired interval of both: good numbers of a simulation on the CPU are not enough. Once
the loss against the float model lies within its interval, nothing is left to recover, and the
remaining steps are not tried.
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
            hint = suggestion(name, STEP_NAMES, "the steps are")
            raise BadInput(reason=f"there is no recovery step {name!r}: {hint}")
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
    """Try steps on a model that was quantized; return the best model and what was tried.

    `model` is the float graph as it was quantized. Steps look at `calibration`, which should share
    no image with the judge. `adaround` rounds weights of 4 bits, or all weights if it is the only
    step. No step begins after `limit_s`.
    """
    deadline = time.monotonic() + limit_s
    folder.mkdir(parents=True, exist_ok=True)
    reference = judge.reference()
    first = judge.score(quantized)
    best = _Candidate(model, quantized, first)
    is_recovered = _is_recovered(judge, reference, first)
    tried: list[TriedStep] = []
    outcome = "every step was tried"
    with tuning_worker() as process:
        trial = _Trial(process, judge, samples_as_files(calibration, folder))
        for number, name in enumerate(steps):
            if is_recovered:
                break
            if time.monotonic() > deadline:
                outcome = f"stopped before {name}: {limit_s:.0f} s are over"
                break
            show_progress()
            rounds_all = tuple(steps) == ("adaround",)
            step, candidate = trial.run(name, best, folder / str(number), rounds_all)
            tried.append(step)
            if candidate is not None:
                best = candidate
                is_recovered = _is_recovered(judge, reference, best.score)
    if is_recovered:
        outcome = "nothing to recover: the loss against float is within its interval"
    return Recovery(
        best.quantized,
        before=first.value,
        after=best.score.value,
        reference=None if reference is None else reference.value,
        steps=tuple(tried),
        outcome=outcome,
    )


@dataclass(frozen=True)
class _Candidate:
    """The float graph, its quantized form, and the score of that on the device."""

    model: Path
    quantized: Path
    score: Judged


@dataclass(frozen=True)
class _Trial:
    """What every step needs: the process that runs it, the judge, and samples to look at."""

    process: WorkerProcess
    judge: Judge
    samples: dict[str, Any]

    def run(
        self, name: str, best: _Candidate, target: Path, rounds_all: bool
    ) -> tuple[TriedStep, _Candidate | None]:
        """Run a step on the best model so far; the candidate is None unless it is better.

        A step that fails, or whose model the device refuses, changes nothing: the best model is as
        good as it was. Failures of the machine are raised.
        """
        began = time.monotonic()
        model, quantized = target.with_suffix(".onnx"), target.with_suffix(".quant.onnx")
        before = best.score.value
        try:
            made, _ = self.process.call(
                "tuning.step",
                limit_s=_STEP_LIMIT_S,
                name=name,
                model=str(best.model.resolve()),
                quantized=str(best.quantized.resolve()),
                target_model=str(model.resolve()),
                target=str(quantized.resolve()),
                samples=self.samples,
                rounds_all=rounds_all,
            )
            if not made["is_done"]:
                note = "nothing to change"
                return TriedStep(name, before, seconds=_since(began), note=note), None
            score = self.judge.score(quantized)
        except (ModelFailed, MemoryExceeded) as error:
            note = f"not possible: {error}"
            return TriedStep(name, before, seconds=_since(began), note=note), None
        gain = self.judge.difference(score, best.score)
        # A gain within the interval may be chance, and steps build on each other.
        is_better = gain.low > 0
        step = TriedStep(
            name,
            before,
            after=score.value,
            low=gain.low,
            high=gain.high,
            kept=is_better,
            variant=str(made["variant"]),
            seconds=_since(began),
        )
        return step, _Candidate(model, quantized, score) if is_better else None


def _is_recovered(judge: Judge, reference: Judged | None, score: Judged) -> bool:
    """Whether the loss against the float model is within its interval."""
    return reference is not None and judge.difference(reference, score).low <= 0


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)


def _plain(value: object) -> object:
    """JSON has no infinity."""
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
