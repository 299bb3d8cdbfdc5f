"""Advice for one model on one chip: which exact rewrites make it faster, found by compiling.

Every rewrite is tried alone. The best one that saves at least one percent and changes no output is
kept, the others are tried again on top of it, until none saves that much. Where a rewrite of all
layers does not pay, it is tried layer by layer, and those that pay are kept together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeloop.graph import EXACT_REWRITES, ExactRewrite, RewriteStep, find_rewrite
from edgeloop.tuning.advice.trials import GraphEstimate, RewriteTrial, Steps, TrialRoom

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
        wanted = [find_rewrite(name) for name in dict.fromkeys(names)]
        chosen: Sequence[ExactRewrite] = wanted or EXACT_REWRITES
        self._equal = [one.name for one in chosen if one.is_equal]
        self._other = [one.name for one in chosen if not one.is_equal]
        self._applies_others = bool(wanted)
        self._room, self._samples, self._progress = room, samples, progress
        self._done = self._planned = 0
        self._tried: dict[str, None] = {}
        self._rejected = dict(refused or {})
        self._weak: set[tuple[str, tuple[str, ...]]] = set()

    def run(self, before: GraphEstimate) -> FoundRewrites:
        steps: Steps = ()
        now, paths, advised = before, [self._room.base], list[AdvisedRewrite]()
        while (found := self._best(steps, now)) is not None:
            trial, difference = found
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
            before,
            now,
            tuple(advised),
            tuple(others),
            steps,
            tuple(paths),
            tuple(self._tried),
            self._rejected,
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
        found = self._room.compare(trial.path, self._samples)
        if found.is_equal:
            return found.difference
        reason = found.problem or f"the outputs differ by {found.difference:.2g} of their spread"
        self._rejected[name] = reason
        return None

    def _trials(self, wanted: Sequence[Steps]) -> list[RewriteTrial]:
        self._planned += len(wanted)

        def done() -> None:
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._planned)

        trials = self._room.run(wanted, done)
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
