"""Advice: exact rewrites that make a model faster on a chip, each proven by its compiler."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from edgeloop._util.files import replacing
from edgeloop._util.isolation import as_file
from edgeloop._util.system import announced_memory, available_cpus
from edgeloop.errors import BadInput, ModelFailed
from edgeloop.graph.info import GraphInfo
from edgeloop.graph.rewrites.registry import (
    SPEED_REWRITES,
    Rewrite,
    RewriteStep,
    find_rewrite,
)
from edgeloop.platforms import (
    platform_of,
)
from edgeloop.platforms.batching import calibration_runs
from edgeloop.settings import Settings, cache_folder
from edgeloop.tasks import Samples, TensorsTask
from edgeloop.tuning.lab import (
    GraphEstimate,
    QuantizedAgreement,
    QuantizedCheck,
    RewriteTrial,
    Steps,
    TrialRoom,
)

# Advice for one model on one chip: which exact rewrites make it faster, found by compiling.
#
# Every rewrite is tried alone. The best one that saves at least one percent and changes no output
# is kept, the others are tried again on top of it, until none saves that much. Where a rewrite of
# all layers does not pay, it is tried layer by layer, and those that pay are kept together.


SMALLEST_GAIN = 0.01
_PART_OF_GAIN = 0.002  # of one layer, before it is tried together with others
_MOST_LAYERS_APART = 6

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class AdvisedRewrite:
    """A rewrite that pays, on top of those before it. `difference` is how far the outputs are from
    the original model's, as a part of their spread."""

    name: str
    text: str
    layers: tuple[str, ...]
    before_ms: float
    after_ms: float
    difference: float

    @property
    def gain_percent(self) -> float:
        return 100 * (1 - self.after_ms / self.before_ms)


@dataclass(frozen=True)
class FoundRewrites:
    """`rewrites` are in the order in which they are applied, and `paths` are the models with the
    first of them, the first two and so on, behind the original one. `others` change what the model
    returns, and are applied behind them only where they were named. `rejected` says of rewrites
    that would pay why they are not offered."""

    before: GraphEstimate
    after: GraphEstimate
    rewrites: tuple[AdvisedRewrite, ...]
    others: tuple[AdvisedRewrite, ...]
    steps: Steps
    paths: tuple[Path, ...]
    tried: tuple[str, ...] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)

    @property
    def equal_paths(self) -> tuple[Path, ...]:
        """Those of `paths` that return what the original model returns."""
        return self.paths[: 1 + len(self.rewrites)]

    @property
    def applies_others(self) -> bool:
        return len(self.paths) > len(self.equal_paths)


class AdviceSearch:
    """`names` restricts the rewrites; one that changes what a model returns is applied only where
    it is named. `samples` are inputs, by name, on which outputs are compared as well. `refused` are
    rewrites that are not tried, with the reason."""

    def __init__(
        self,
        room: TrialRoom,
        names: Iterable[str] = (),
        samples: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        refused: Mapping[str, str] | None = None,
    ) -> None:
        named = [find_rewrite(name) for name in dict.fromkeys(names)]
        chosen: Sequence[Rewrite] = named or SPEED_REWRITES
        self._equal = [one.name for one in chosen if one.is_equal]
        self._other = [one.name for one in chosen if not one.is_equal]
        self._applies_others = bool(named)
        self._room, self._samples, self._progress = room, samples, progress
        self._done = self._planned = 0
        self._tried: dict[str, None] = {}
        self._rejected = dict(refused or {})
        self._weak: set[tuple[str, tuple[str, ...]]] = set()

    def run(self, before: GraphEstimate) -> FoundRewrites:
        steps: Steps = ()
        now, paths, advised = before, [self._room.base], list[AdvisedRewrite]()
        while (best := self._best(steps, now)) is not None:
            trial, difference = best
            advised.append(_advised(trial, now, difference))
            steps, now = trial.steps, trial.estimate
            paths.append(trial.path)
        others = []
        for name in self._other:
            for trial in self._trials([(*steps, RewriteStep(name))]):
                off = self._difference(trial)
                if off is None or trial.gain_over(now) < SMALLEST_GAIN:
                    continue
                others.append(_advised(trial, now, off))
                if self._applies_others:
                    steps, now = trial.steps, trial.estimate
                    paths.append(trial.path)
        return FoundRewrites(
            before=before,
            after=now,
            rewrites=tuple(advised),
            others=tuple(others),
            steps=steps,
            paths=tuple(paths),
            tried=tuple(self._tried),
            rejected=self._rejected,
        )

    def _best(self, steps: Steps, now: GraphEstimate) -> tuple[RewriteTrial, float] | None:
        """The best rewrite on top of others, and how far its outputs are off."""
        names = [name for name in self._equal if name not in self._rejected]
        trials = self._trials([(*steps, RewriteStep(name)) for name in names])
        ranked = sorted(trials, key=lambda trial: -trial.gain_over(now))
        for trial in ranked:
            if trial.gain_over(now) < SMALLEST_GAIN:
                break
            difference = self._difference(trial)
            if difference is not None:
                self._forget(ranked, now)
                return trial, difference
        return self._best_of_layers(steps, now, ranked)

    def _best_of_layers(
        self, steps: Steps, now: GraphEstimate, ranked: Sequence[RewriteTrial]
    ) -> tuple[RewriteTrial, float] | None:
        """Rewrites that do not pay for all layers together, with the layers for which they do."""
        for whole in ranked:
            name, layers = whole.steps[-1].name, whole.layers
            if name in self._rejected or not 1 < len(layers) <= _MOST_LAYERS_APART:
                continue
            if (name, layers) in self._weak:
                continue
            self._weak.add((name, layers))
            apart = self._trials([(*steps, RewriteStep(name, (layer,))) for layer in layers])
            paying = tuple(
                layer
                for trial in apart
                for layer in trial.layers
                if trial.gain_over(now) > _PART_OF_GAIN
            )
            if not paying:
                continue
            for trial in self._trials([(*steps, RewriteStep(name, paying))]):
                difference = self._difference(trial)
                if difference is not None and trial.gain_over(now) >= SMALLEST_GAIN:
                    return trial, difference
        return None

    def _forget(self, ranked: Sequence[RewriteTrial], now: GraphEstimate) -> None:
        """What made a model slower is not tried again on top of what made it faster."""
        slower = {t.steps[-1].name for t in ranked if t.gain_over(now) < -SMALLEST_GAIN}
        self._equal = [name for name in self._equal if name not in slower]

    def _difference(self, trial: RewriteTrial) -> float | None:
        """None where outputs are not those of the original model."""
        name = trial.steps[-1].name
        comparison = self._room.compare(trial.path, self._samples)
        if comparison.is_equal:
            return comparison.difference
        reason = (
            comparison.problem
            or f"the outputs differ by {comparison.difference:.2g} of their spread"
        )
        self._rejected[name] = reason
        return None

    def _trials(self, candidates: Sequence[Steps]) -> list[RewriteTrial]:
        self._planned += len(candidates)

        def done() -> None:
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._planned)

        trials = self._room.run(candidates, done)
        self._rejected.update(self._room.failures)
        self._tried.update(dict.fromkeys(trial.steps[-1].name for trial in trials))
        return trials


def _advised(trial: RewriteTrial, now: GraphEstimate, difference: float) -> AdvisedRewrite:
    rewrite = find_rewrite(trial.steps[-1].name)
    return AdvisedRewrite(
        rewrite.name,
        rewrite.text,
        trial.layers,
        now.latency_ms,
        trial.estimate.latency_ms,
        difference,
    )


# Advice for a model file: what would make it faster on a device, and the file with all of that.


_COMPARED_SAMPLES = 4
_SAME = 1e-6


@dataclass(frozen=True)
class AdviceOptions:
    """`names` restricts the rewrites. `dataset` has inputs, on which outputs are compared and a
    quantized model is calibrated and simulated, `images` of them; what costs it more than a decibel
    is not offered then. The search begins nothing new
    after `limit_s` or `most_compiles`; one compile may take `call_limit_s`."""

    names: Sequence[str] = ()
    dataset: Path | None = None
    images: int = 16
    workers: int | None = None
    limit_s: float = 900.0
    most_compiles: int = 120
    call_limit_s: float = 300.0
    uses_cache: bool = True


@dataclass(frozen=True)
class Advice:
    """What was found. `written` is the file that `apply` asked for; `quantized` is None where no
    dataset was given. `others` change what the model returns; with `applies_others` they were
    named, and are part of `after_ms` and of the file. `before` and `after` are the estimates with
    their intervals."""

    device: str
    before_ms: float
    after_ms: float
    rewrites: tuple[AdvisedRewrite, ...]
    others: tuple[AdvisedRewrite, ...]
    tried: tuple[str, ...]
    rejected: Mapping[str, str]
    compiles: int
    is_cut_short: bool
    missing_ops: int
    quantized: QuantizedAgreement | None = None
    written: Path | None = None
    applies_others: bool = False
    before: GraphEstimate | None = None
    after: GraphEstimate | None = None

    @property
    def gain_percent(self) -> float:
        return 100 * (1 - self.after_ms / self.before_ms)

    def to_fields(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        fields = asdict(self)
        for name in ("rewrites", "others"):
            fields[name] = [
                {**asdict(one), "gain_percent": one.gain_percent} for one in getattr(self, name)
            ]
        fields["gain_percent"] = self.gain_percent
        fields["written"] = str(self.written) if self.written else None
        return fields


def advise_model(
    path: Path,
    device: str,
    options: AdviceOptions | None = None,
    settings: Settings | None = None,
    apply: Path | None = None,
    progress: Progress | None = None,
) -> Advice:
    """Raises UnusableModel or ModelFailed where the compiler does not take the model as it is, and
    BadInput where the device has no estimate. `apply` is where the rewritten model is written."""
    options = options or AdviceOptions()
    settings = settings or Settings.load()
    for name in options.names:
        find_rewrite(name)
    platform = platform_of(device)
    with closing(platform.open_device(device, settings)) as opened:
        device = opened.name
    platform.check_benchmark(device, settings)
    with ExitStack() as stack:
        stack.enter_context(announced_memory(settings.native_memory))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="edgeloop-advise-")))
        room = stack.enter_context(
            closing(
                TrialRoom(
                    lambda: platform.open_estimator(device, settings, options.call_limit_s),
                    folder,
                    workers=options.workers or max(1, available_cpus()),
                    limit_s=options.limit_s,
                    most_compiles=options.most_compiles,
                    call_limit_s=options.call_limit_s,
                    cache=cache_folder() / "estimates" if options.uses_cache else None,
                )
            )
        )
        info, before = room.begin(path)
        samples = _samples(info, options, path)
        compared = _arrays(info, samples, folder) if samples is not None else None
        check = None
        if samples is not None:
            check = QuantizedCheck(room.base, info, samples, device, settings, folder)
            stack.callback(check.close)
        refused: dict[str, str] = {}
        while True:
            outcome = AdviceSearch(room, options.names, compared, progress, refused).run(before)
            lossy = check.first_loss(outcome.equal_paths) if check is not None else None
            if lossy is None:
                break
            place, lost_db = lossy
            name = outcome.steps[place].name
            refused[name] = f"it costs {lost_db:.1f} dB of the quantized model's SQNR"
        if apply is not None and outcome.steps:
            _write(room, outcome, apply, compared)
        quantized = check.agreement(outcome.equal_paths[-1]) if check is not None else None
        return Advice(
            device=device,
            before_ms=outcome.before.latency_ms,
            after_ms=outcome.after.latency_ms,
            rewrites=outcome.rewrites,
            others=outcome.others,
            tried=outcome.tried,
            rejected=outcome.rejected,
            compiles=room.compiles,
            is_cut_short=room.is_cut_short,
            missing_ops=outcome.after.missing_ops,
            quantized=quantized,
            written=apply if apply is not None and outcome.steps else None,
            applies_others=outcome.applies_others,
            before=outcome.before,
            after=outcome.after,
        )


def _samples(info: GraphInfo, options: AdviceOptions, model: Path) -> Samples | None:
    if options.dataset is None:
        return None
    if options.images < 1:
        raise BadInput(reason="the number of images must be 1 or more")
    task = TensorsTask(options.dataset)
    return task.inputs(info, options.images * info.batch, "calibration", model)


def _arrays(info: GraphInfo, samples: Samples, folder: Path) -> dict[str, Any]:
    """A few samples as the model takes them, one in each row, in files."""
    import numpy as np

    rows: dict[str, list[Any]] = {}
    for index, feeds in enumerate(calibration_runs(info, samples)):
        if index == _COMPARED_SAMPLES:
            break
        for name, values in feeds.items():
            rows.setdefault(name, []).append(values)
    return {
        name: as_file(np.ascontiguousarray(np.concatenate(values)), folder, f"sample-{number}.bin")
        for number, (name, values) in enumerate(rows.items())
    }


def _write(
    room: TrialRoom, outcome: FoundRewrites, target: Path, samples: Mapping[str, Any] | None
) -> None:
    """The file as it lies there afterwards is read, compared and estimated again."""
    with replacing(target) as draft:
        shutil.copyfile(outcome.paths[-1], draft)
        compared = room.compare(draft, samples)
        estimate = room.estimate_file(draft)
        if not compared.is_equal:
            reason = compared.problem or f"outputs differ by {compared.difference:.2g}"
            raise ModelFailed(reason=f"the rewritten model is not the same model: {reason}")
        if abs(estimate.latency_ms - outcome.after.latency_ms) > _SAME * outcome.after.latency_ms:
            reason = f"{estimate.latency_ms:.4g} ms and not {outcome.after.latency_ms:.4g} ms"
            raise ModelFailed(reason=f"the estimate of the written model is {reason}")
