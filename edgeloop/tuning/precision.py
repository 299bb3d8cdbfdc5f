"""Precision: which tensors deserve 16 bits and which weights can do with 4, on the simulator."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgeloop._util.system import announced_memory
from edgeloop.errors import BadInput, MemoryExceeded, ModelFailed
from edgeloop.graph.bits import TunableTensor
from edgeloop.graph.info import GraphInfo
from edgeloop.pareto import non_dominated
from edgeloop.platforms import PrecisionPlan, converter_of, open_toolchain
from edgeloop.settings import Settings, cache_folder
from edgeloop.tasks import (
    Interval,
    Samples,
    TakesOutputs,
    Task,
    TensorsTask,
    metric_of,
    open_task,
    reading_data,
    score_unit,
    task_for,
)
from edgeloop.tuning.lab import LabOptions, Latency, PrecisionLab, Progress, opened_lab
from edgeloop.tuning.quantized import MOST_DB

# `edgeloop precision` as a function: sensitive tensors, a front of plans, the first layer that
# diverges; and which point of the front to take.


DEFAULT_IMAGES = 16
_CALIBRATION_IMAGES = 64
_LITTLE = 0.3  # of the time that all tensors at 16 bits cost
_SIMULATION_S = 200.0  # what all simulations may take together, unless images are asked for


@dataclass(frozen=True)
class PrecisionOptions:
    """`images` 0: as many as some minutes allow, up to 16. `inputs` are what to use in place of a
    dataset. Without either, inputs are random."""

    device: str = "htp"
    dataset: Path | None = None
    task: str = ""
    images: int = 0
    inputs: Path | None = None
    workers: int = 0
    points: int = 6
    cache: Path | None = None


@dataclass(frozen=True)
class PrecisionPoint:
    """One plan. `latency_us` is an estimate, with its interval where one is supported by data.
    `score` is the task's, `difference` the paired one to float, both only with a dataset. With
    `missing_ops`, steps that the compiler has no cost for, the latency is a lower bound."""

    plan: PrecisionPlan
    latency_us: float
    sqnr_db: float
    low_us: float | None = None
    high_us: float | None = None
    score: float | None = None
    difference: Interval | None = None
    missing_ops: int = 0

    @property
    def label(self) -> str:
        """`a8w8`, `a16w8`, or what differs from the first."""
        bits = list(self.plan.bits.values())
        if not bits:
            default = self.plan.default
            return f"a{default.activations}w{default.weights}"
        wide, narrow = bits.count(16), bits.count(4)
        words = [f"{wide} at 16 bit"] if wide else []
        words += [f"{narrow} weights at 4 bit"] if narrow else []
        return ", ".join(words)

    def to_fields(self) -> dict[str, Any]:
        fields = asdict(self)
        plan = self.plan.to_fields()
        return {"name": self.label, **fields, "plan": plan, "precision": self.plan.name}


@dataclass(frozen=True)
class TensorSensitivity:
    """What one tensor does to the outputs. `error_share` is the power of the error that its 8 bits
    (4 for weights) make, of the power of the outputs, computed on this machine. `latency_us` and
    `sqnr_db` are those of the whole model with this tensor alone at 16 bits (weights at 4): by the
    compiler, and on the simulator; None where that was not tried."""

    tensor: TunableTensor
    error_share: float
    latency_us: float | None = None
    sqnr_db: float | None = None
    score: float | None = None

    @property
    def error_db(self) -> float:
        return 10 * math.log10(self.error_share) if self.error_share > 0 else -200.0

    def to_fields(self) -> dict[str, Any]:
        tensor = self.tensor
        about = {"name": tensor.name, "kind": tensor.kind, "layer": tensor.layer}
        fields = {name: value for name, value in asdict(self).items() if name != "tensor"}
        return {**about, "operator": tensor.operator, **fields, "error_db": self.error_db}


@dataclass(frozen=True)
class LayerAgreement:
    """How well a tensor on the chip agrees with the float one: `sqnr_db` with that of the float
    model, `own_db` with what its layer gives in float from what it read on the chip. The second is
    the error of this layer alone."""

    tensor: str
    layer: str
    operator: str
    sqnr_db: float
    own_db: float


@dataclass(frozen=True)
class Divergence:
    """All tensors in the order of the graph. `first` is the first layer whose own error is much
    larger than that of the others, which is `usual_db`; None where there is none."""

    layers: tuple[LayerAgreement, ...]
    first: LayerAgreement | None = None
    usual_db: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class PrecisionReport:
    """`points` go from the fastest to the most accurate; `base` and `full` are a8w8 and a16w8."""

    model: str
    device: str
    images: int
    metric: str
    points: tuple[PrecisionPoint, ...]
    tensors: tuple[TensorSensitivity, ...]
    divergence: Divergence
    notes: tuple[str, ...] = ()

    @property
    def base(self) -> PrecisionPoint | None:
        return self._uniform(8)

    @property
    def full(self) -> PrecisionPoint | None:
        return self._uniform(16)

    def _uniform(self, activations: int) -> PrecisionPoint | None:
        plain = [point for point in self.points if not point.plan.bits]
        return next((p for p in plain if p.plan.default.activations == activations), None)

    def shares(self, point: PrecisionPoint) -> tuple[float, float] | None:
        """Of what all tensors at 16 bits gain in SQNR and cost in time: this point's part. None
        where that is not known, as with steps that the compiler has no cost for."""
        base, full = self.base, self.full
        if base is None or full is None or base.missing_ops or full.missing_ops:
            return None
        gain, premium = full.sqnr_db - base.sqnr_db, full.latency_us - base.latency_us
        if gain <= 0 or premium <= 0:
            return None
        gained = point.sqnr_db - base.sqnr_db
        return gained / gain, (point.latency_us - base.latency_us) / premium

    def is_bound(self, point: PrecisionPoint) -> bool:
        """Whether its latency leaves out more than that of a8w8 does."""
        return point.missing_ops > (self.base.missing_ops if self.base else 0)

    def to_fields(self) -> dict[str, Any]:
        first = self.divergence.first
        return {
            "model": self.model,
            "device": self.device,
            "images": self.images,
            "metric": self.metric,
            "points": [point.to_fields() for point in self.points],
            "tensors": [tensor.to_fields() for tensor in self.tensors],
            "first_diverging_layer": first.layer if first else None,
            "layers": [vars(layer) for layer in self.divergence.layers],
            "notes": list(self.notes),
        }


def tune_precision(
    model: Path,
    name: str,
    digest: str,
    options: PrecisionOptions,
    settings: Settings,
    progress: Progress,
) -> PrecisionReport:
    """`model` is a float ONNX file with fixed sizes, `digest` the sha256 of the file that plans
    belong to."""
    with announced_memory(settings.native_memory):
        toolchain = open_toolchain(converter_of(options.device), settings)
        try:
            info = toolchain.inspect(model)
        finally:
            toolchain.close()
        task, calibration, samples = _data(model, info, options, settings)
        cache = options.cache or cache_folder() / "precision"
        lab_options = LabOptions(options.device, samples, calibration, task, options.workers, cache)
        with opened_lab(model, lab_options, settings, progress) as lab:
            runs = options.points + 6
            images = options.images and min(options.images, len(samples))
            images = images or lab.affordable(DEFAULT_IMAGES, runs, _SIMULATION_S)
            points, tensors = PrecisionSearch(lab, digest, images, options.points).run()
            if not points:
                reason = f"no plan for {options.device} could be compiled and simulated"
                raise ModelFailed(reason=reason)
            progress("comparing layers", 0, 1)
            divergence = _divergence(lab, points[0].plan.model_copy(update={"tensors": {}}))
            progress("comparing layers", 1, 1)
            notes = (*lab.calibrated.notes, _note(samples), divergence.note)
    metric = metric_of(task) if task else ""
    return PrecisionReport(
        model=name,
        device=options.device,
        images=images,
        metric=metric,
        points=tuple(points),
        tensors=tuple(tensors),
        divergence=divergence,
        notes=notes,
    )


def _divergence(lab: PrecisionLab, plan: PrecisionPlan) -> Divergence:
    """What was found before is worth showing also where this fails."""
    try:
        return find_divergence(lab, plan)
    except (ModelFailed, MemoryExceeded) as error:
        return Divergence((), note=f"layers were not compared: {error}")


def choose_point(
    report: PrecisionReport,
    number: int | None = None,
    budget_ms: float | None = None,
    within: float | None = None,
) -> PrecisionPoint:
    """By its number (from 1); the most accurate within a latency; the fastest that loses at most so
    many points of the score (hundredths of a share, else its own unit, such as dB); else the knee:
    what gains most of those that cost little, which is at most 30 % of what all tensors at 16 bits
    would."""
    points = report.points
    if number is not None:
        if not 1 <= number <= len(points):
            raise BadInput(reason=f"there is no point {number}: the front has 1 to {len(points)}")
        return points[number - 1]
    if budget_ms is not None:
        exact = [point for point in points if not report.is_bound(point)] or points
        allowed = [point for point in exact if point.latency_us <= 1000 * budget_ms]
        if not allowed:
            fastest = min(point.latency_us for point in exact) / 1000
            reason = f"no plan takes at most {budget_ms:g} ms: the fastest takes {fastest:.3g} ms"
            raise BadInput(reason=reason)
        return max(allowed, key=lambda point: point.sqnr_db)
    if within is not None:
        return _within(report, within)
    return max(points, key=lambda point: _advantage(report, point))


def _within(report: PrecisionReport, within: float) -> PrecisionPoint:
    scored = [point for point in report.points if point.difference is not None]
    if not scored:
        reason = "--within compares scores, which need a dataset: give --dataset FOLDER"
        raise BadInput(reason=reason)
    factor, unit = score_unit(max(abs(p.score or 0.0) for p in scored), report.metric)
    close = [p for p in scored if p.difference and factor * p.difference.value >= -within]
    if not close:
        best = max(factor * p.difference.value for p in scored if p.difference)
        reason = f"no plan is within {within:g} {unit} of float: the best loses {-best:.2f}"
        raise BadInput(reason=reason)
    return min(close, key=lambda point: (report.is_bound(point), point.latency_us))


def _advantage(report: PrecisionReport, point: PrecisionPoint) -> float:
    shares = report.shares(point) or _guessed_shares(report, point)
    if shares is None:
        return point.sqnr_db
    gain, premium = shares
    if premium <= _LITTLE:
        return 1.0 + gain - 0.1 * premium if gain > 0 else gain - premium
    return min(1.0, gain - premium)


def _guessed_shares(report: PrecisionReport, point: PrecisionPoint) -> tuple[float, float] | None:
    """Where the time of a16w8 is known only from below, as if it took twice that of a8w8."""
    base, full = report.base, report.full
    if base is None or full is None or not (base.missing_ops or full.missing_ops):
        return None
    gain = full.sqnr_db - base.sqnr_db
    if gain <= 0:
        return None
    premium = 1.0 if report.is_bound(point) else point.latency_us / base.latency_us - 1
    return (point.sqnr_db - base.sqnr_db) / gain, premium


def _note(samples: Samples) -> str:
    if samples.origin == "random":
        return "on random inputs, which are no measure of accuracy: give --dataset or --calibration"
    return samples.note


def _data(
    model: Path, info: GraphInfo, options: PrecisionOptions, settings: Settings
) -> tuple[Task | None, Samples, Samples]:
    """The task that scores, what to calibrate on, and what to compare on."""
    count = options.images or DEFAULT_IMAGES
    if options.dataset is None or options.task == TensorsTask.name:
        if options.task not in ("", TensorsTask.name):
            reason = f"the task {options.task} needs a dataset: give --dataset FOLDER"
            raise BadInput(reason=reason)
        tensors = TensorsTask(options.inputs or options.dataset)
        calibration = tensors.inputs(info, _CALIBRATION_IMAGES, "calibration", model)
        return None, calibration, tensors.inputs(info, count, "test", model)
    task = open_task(
        options.task or settings.task, options.dataset, settings.project / ".edgeloop/work/data"
    )
    if info.image is None:
        inputs = ", ".join(one.name for one in info.inputs)
        reason = (
            f"the task {task.name} takes one RGB image; the model takes {inputs}: use --calibration"
        )
        raise BadInput(reason=reason)
    task = task_for(task, info)
    with reading_data():
        if isinstance(task, TakesOutputs):
            task.check_outputs({one.name: one.shape for one in info.outputs})
        else:
            task.check_output(info.output_shape)
        calibration = task.calibration(info.height, info.width, _CALIBRATION_IMAGES)
        return task, calibration, task.test(info.height, info.width, count)


# Which tensors deserve more bits, and which weights can do with fewer: a front of plans.
#
# First every tensor alone, in float: how much error do its 8 bits make? Then the compiler: what
# does it cost to give a tensor 16 bits? A layer computes with 16 bits if any tensor around it has
# them, so neighbours cost less together than alone. Plans are grown by error saved per microsecond,
# and from the outputs backwards, and compiled for their true latency. What is best by these numbers
# goes to the simulator, whose word is final.


RANKING_SAMPLES = 4
_COMPILING_S = 180.0
_FEWEST_COMPILES, _MOST_COMPILES = 60, 240
_PRICED = 0.25  # of all compilations: tensors alone
_BLOCKS = 0.3  # … and blocks of neighbours
_GROWN_SIZES = (1, 2, 4, 7, 12, 20, 34, 56, 90)
_BLOCK_SIZES = (2, 3, 5, 8, 12)
_GREEDY_STEPS = 10
_GREEDY_SHARE = 0.35  # of the premium of all tensors at 16 bits
_NARROW_SHARES = (0.03, 0.1, 0.3)  # of the error, for weights at 4 bits
_WORTH = 0.005  # of the latency: what 4-bit weights must save

Names = frozenset[str]


@dataclass(frozen=True)
class PricedPlan:
    plan: PrecisionPlan
    latency: Latency
    error_share: float


@dataclass
class PrecisionSearch:
    """One model. `points` is how many plans the simulator may see besides a8w8 and a16w8."""

    lab: PrecisionLab
    model: str
    images: int
    points: int = 6
    simulated_tensors: int = 4
    _found: dict[str, PricedPlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tensors = self.lab.calibrated.tensors
        self.activations = [t for t in tensors if t.kind == "activation"]
        self.weights = [t for t in tensors if t.kind == "weights"]
        self._errors: dict[str, float] = {}
        self._rest = 0.0
        self._costs: dict[str, float] = {}
        self._base = self._full = Latency(0, 0)
        self._left = 0

    def run(self) -> tuple[list[PrecisionPoint], list[TensorSensitivity]]:
        """The front by what the simulator says, a8w8 and a16w8 among its points; and all tensors,
        the most sensitive first."""
        self._rank()
        base, full = self._plan(()), self._plan((), default=16)
        ends = self.lab.latencies([base, full], "compiling")
        self._base, self._full = (end or Latency(math.inf, math.inf) for end in ends)
        self._keep(base, self._base)
        self._keep(full, self._full)
        compiles = self.lab.affordable_compiles(_COMPILING_S)
        compiles = self._left = min(_MOST_COMPILES, max(_FEWEST_COMPILES, compiles))
        self._price(int(_PRICED * compiles))
        self._block(int(_BLOCKS * compiles))
        self._grow()
        self._climb()
        self._narrow()
        points = self._simulated(self._chosen(base, full), "simulating plans")
        sensitivities, alone = self._sensitivities()
        points += self._simulated(self._promising(points, alone), "simulating tensors on all")
        return self._kept_points(points, {base.digest, full.digest}), sensitivities

    def _rank(self) -> None:
        count = min(RANKING_SAMPLES, self.images)
        everything = {tensor.name: 8 for tensor in self.weights}
        asked: list[tuple[tuple[str, ...], Mapping[str, int]]] = [((), everything)]
        asked += [((tensor.name,), {}) for tensor in self.activations]
        asked += [((), {tensor.name: 4}) for tensor in self.weights]
        self._rest, *errors = self.lab.noises(asked, count, "ranking tensors")
        names = [tensor.name for tensor in (*self.activations, *self.weights)]
        self._errors = dict(zip(names, errors, strict=True))

    def _price(self, most: int) -> None:
        """What each tensor costs alone; those that make little error are guessed by their size."""
        ranked = sorted(self.activations, key=lambda t: -self._errors[t.name])[:most]
        self._measure([frozenset((tensor.name,)) for tensor in ranked], "compiling tensors")
        for tensor in ranked:
            latency = self._latency_of(frozenset((tensor.name,)))
            self._costs[tensor.name] = math.inf if latency is None else self._extra(latency)
        priced = [t for t in ranked if math.isfinite(self._costs[t.name])]
        size = sum(t.size for t in priced)
        per_number = sum(self._costs[t.name] for t in priced) / size if size else 0.0
        for tensor in self.activations:
            self._costs.setdefault(tensor.name, per_number * tensor.size)

    def _block(self, most: int) -> None:
        """Neighbours in the order of the graph: alone each may cost more than it gains, together
        they need conversions at their ends only. Then the best blocks together."""
        names = [t.name for t in self.activations if math.isfinite(self._costs[t.name])]
        windows = [
            frozenset(names[start : start + size])
            for size in _BLOCK_SIZES
            for start in range(0, len(names) - size + 1, max(1, size // 2))
            if size < len(names)
        ]
        windows.sort(key=lambda one: -sum(self._errors[n] / self._cost(n) for n in one) / len(one))
        chosen = windows[: most * 3 // 4]
        self._measure(chosen, "compiling blocks")
        priced = [(one, self._latency_of(one)) for one in chosen]
        floor = 0.002 * self._base.raw_us
        ranked = sorted(
            (
                (self._saved(one) / max(self._extra(cost), floor), one)
                for one, cost in priced
                if cost
            ),
            key=lambda pair: -pair[0],
        )
        union: Names = frozenset()
        unions: list[Names] = []
        for _, one in ranked:
            if not one <= union:
                union = union | one
                unions.append(union)
        self._measure(unions[1 : 1 + most // 4], "joining blocks")

    def _saved(self, wide: Names) -> float:
        return sum(self._errors[name] for name in wide)

    def _cost(self, name: str) -> float:
        return max(self._costs[name], 0.002 * self._base.raw_us)

    def _grow(self) -> None:
        """Sets of growing size: by error per cost, by error alone, and from the outputs back; each
        also with the tensors between them."""
        floor = 0.002 * self._base.raw_us
        usable = [t for t in self.activations if math.isfinite(self._costs[t.name])]
        orders = (
            sorted(usable, key=lambda t: -self._errors[t.name] / max(self._costs[t.name], floor)),
            sorted(usable, key=lambda t: -self._errors[t.name]),
            list(reversed(usable)),
        )
        sets: dict[Names, None] = {}
        for order in orders:
            for size in (size for size in _GROWN_SIZES if size < len(order)):
                chosen = frozenset(tensor.name for tensor in order[:size])
                sets[chosen] = sets[self._closed(chosen)] = None
        self._measure(list(sets), "compiling plans")

    def _climb(self) -> None:
        """From the best plan of moderate cost: one more tensor, or one less, while it pays."""
        limit = self._moderate_us()
        current = self._best_below(limit)
        for _ in range(_GREEDY_STEPS):
            moves = self._moves(current)
            self._measure(moves, "improving plans")
            best = self._best_below(limit)
            if best == current:
                break
            current = best

    def _moderate_us(self) -> float:
        """Where a16w8 is known only from below, it is taken to need twice the time of a8w8."""
        premium = self._full.raw_us - self._base.raw_us
        if self._is_bound(self._full):
            premium = max(premium, self._base.raw_us)
        return self._base.raw_us + _GREEDY_SHARE * premium

    def _is_bound(self, latency: Latency) -> bool:
        """Of more steps than of a8w8 the compiler does not know the cost: no gain is one then."""
        return latency.missing_ops > self._base.missing_ops

    def _known(self) -> list[PricedPlan]:
        return [c for c in self._found.values() if not self._is_bound(c.latency)]

    def _moves(self, current: Names) -> list[Names]:
        floor = 0.002 * self._base.raw_us
        near = {
            other for t in self.activations if t.name in current for other in t.neighbours
        } - current

        def gain(name: str) -> float:
            cost = self._costs[name] * (0.5 if name in near else 1.0)
            return self._errors[name] / max(cost, floor)

        outside = [t.name for t in self.activations if t.name not in current]
        outside = [name for name in outside if math.isfinite(self._costs[name])]
        added = sorted(outside, key=gain, reverse=True)[: 2 + self.lab.workers]
        removed = sorted(current, key=gain)[:2]
        return [*(current | {name} for name in added), *(current - {name} for name in removed)]

    def _narrow(self) -> None:
        """Weights at 4 bits, where that makes the model faster: with a8w8 and the best plans."""
        total = self._error_of(frozenset(), frozenset())
        ranked = sorted(self.weights, key=lambda t: self._errors[t.name])
        sets: list[Names] = []
        for share in _NARROW_SHARES:
            chosen, spent = set(), 0.0
            for tensor in ranked:
                spent += self._errors[tensor.name]
                if spent > share * total:
                    break
                chosen.add(tensor.name)
            if chosen and frozenset(chosen) not in sets:
                sets.append(frozenset(chosen))
        alone = [(frozenset[str](), names) for names in sets]
        self._measure_both(alone, "compiling 4-bit weights")
        useful = [names for wide, names in alone if self._saves(wide, names)]
        best = [names for names in self._best_wide(3) if names]
        self._measure_both([(wide, names) for names in useful for wide in best], "combining")

    def _saves(self, wide: Names, narrow: Names) -> bool:
        latency = self._latency_of(wide, narrow)
        return latency is not None and latency.raw_us < (1 - _WORTH) * self._base.raw_us

    def _chosen(self, base: PrecisionPlan, full: PrecisionPlan) -> list[PrecisionPlan]:
        """What the simulator sees: the ends, and some of the front by the errors of tensors."""
        front = _front((c.latency.raw_us, c.error_share, c) for c in self._known())
        middle = [c for c in front if c.plan.digest not in (base.digest, full.digest)]
        limit = self._moderate_us()
        cheap = [c for c in middle if c.latency.raw_us <= limit]
        dear = [c for c in middle if c.latency.raw_us > limit]
        few = _spread(dear, self.points // 3)
        return [base, full, *(c.plan for c in (*_last(cheap, self.points - len(few)), *few))]

    def _promising(
        self, points: Sequence[PrecisionPoint], alone: Mapping[str, float]
    ) -> list[PrecisionPlan]:
        """Plans with one tensor, by their digests, that no point is better than: seen on a few
        samples, so they are simulated again."""
        seen = {point.plan.digest for point in points}
        plans = []
        for digest, sqnr_db in alone.items():
            priced = self._found.get(digest)
            if priced is None or digest in seen or self._is_bound(priced.latency):
                continue
            us = self._shown(priced.latency).us
            if not any(p.latency_us <= us and p.sqnr_db >= sqnr_db for p in points):
                plans.append(priced.plan)
        return plans

    def _simulated(self, chosen: Sequence[PrecisionPlan], about: str) -> list[PrecisionPoint]:
        if not chosen:
            return []
        simulations = self.lab.simulations(chosen, self.images, about)
        points = []
        for plan, simulated in zip(chosen, simulations, strict=True):
            latency = self._shown(self._found[plan.digest].latency)
            if simulated is not None and math.isfinite(latency.us):
                values = (plan, latency.us, simulated.sqnr_db, latency.low_us, latency.high_us)
                more = (simulated.score, simulated.difference, latency.missing_ops)
                points.append(PrecisionPoint(*values, *more))
        return points

    def _kept_points(
        self, points: Sequence[PrecisionPoint], ends: set[str]
    ) -> list[PrecisionPoint]:
        """The front, and the ends; an end whose time is known only from below is the last one."""
        most = self._base.missing_ops
        timed = [p for p in points if p.missing_ops <= most]
        on_front = {id(p) for p in _front((p.latency_us, -p.sqnr_db, p) for p in timed)}
        shown = [p for p in points if id(p) in on_front or p.plan.digest in ends]
        return sorted(shown, key=lambda p: (p.missing_ops > most, p.latency_us, p.sqnr_db))

    def _shown(self, latency: Latency) -> Latency:
        """Profiles of chips are fitted to a8w8 and to a16w8, and jump from one to the other. Plans
        between them are placed by the compiler's own estimate, without an interval: there are no
        published figures of such models."""
        base, full = self._base, self._full
        if latency in (base, full) or not math.isfinite(full.raw_us - base.raw_us):
            return latency
        plain = replace(latency, low_us=None, high_us=None)
        is_outside = latency.raw_us < base.raw_us or full.raw_us <= base.raw_us
        if is_outside or self._is_bound(full):
            return replace(plain, us=base.us * latency.raw_us / base.raw_us)
        part = (latency.raw_us - base.raw_us) / (full.raw_us - base.raw_us)
        return replace(plain, us=base.us + part * (full.us - base.us))

    def _sensitivities(self) -> tuple[list[TensorSensitivity], dict[str, float]]:
        """All tensors, and the SQNR of the plans that were simulated for them, by their digests."""
        wide = sorted(self.activations, key=lambda t: -self._errors[t.name])
        narrow = sorted(self.weights, key=lambda t: -self._errors[t.name])
        few = [*wide[: self.simulated_tensors], *narrow[: self.simulated_tensors // 2]]
        plans = {tensor.name: self._alone(tensor) for tensor in few}
        count = min(RANKING_SAMPLES, self.images)
        simulations = self.lab.simulations(list(plans.values()), count, "simulating tensors")
        simulated = dict(zip(plans, simulations, strict=True))
        rows = []
        for tensor in (*wide, *narrow):
            seen = simulated.get(tensor.name)
            priced = self._found.get(self._alone(tensor).digest)
            rows.append(
                TensorSensitivity(
                    tensor,
                    self._errors[tensor.name],
                    None if priced is None else self._shown(priced.latency).us,
                    None if seen is None else seen.sqnr_db,
                    None if seen is None else seen.score,
                )
            )
        alone = {
            plan.digest: seen.sqnr_db
            for plan, seen in zip(plans.values(), simulations, strict=True)
            if seen is not None
        }
        return rows, alone

    def _alone(self, tensor: TunableTensor) -> PrecisionPlan:
        names = frozenset((tensor.name,))
        none: Names = frozenset()
        return self._plan(*((names, none) if tensor.kind == "activation" else (none, names)))

    def _measure(self, sets: Sequence[Names], about: str) -> None:
        self._measure_both([(names, frozenset()) for names in sets], about)

    def _measure_both(self, sets: Sequence[tuple[Names, Names]], about: str) -> None:
        plans = {plan.digest: plan for plan in (self._plan(*one) for one in sets)}
        new = [plan for digest, plan in plans.items() if digest not in self._found][: self._left]
        self._left -= len(new)
        if not new:
            return
        for plan, latency in zip(new, self.lab.latencies(new, about), strict=True):
            if latency is not None and not self._is_bound(latency):
                self._keep(plan, latency)

    def _keep(self, plan: PrecisionPlan, latency: Latency) -> None:
        bits = plan.bits
        narrow = frozenset(name for name, count in bits.items() if count == 4)
        wide = frozenset(name for name, count in bits.items() if count == 16)
        if plan.default.activations == 16:
            wide = frozenset(tensor.name for tensor in self.activations)
        self._found[plan.digest] = PricedPlan(plan, latency, self._error_of(wide, narrow))

    def _latency_of(self, wide: Names, narrow: Names = frozenset()) -> Latency | None:
        priced = self._found.get(self._plan(wide, narrow).digest)
        return None if priced is None else priced.latency

    def _extra(self, latency: Latency) -> float:
        return max(0.0, latency.raw_us - self._base.raw_us)

    def _error_of(self, wide: Names, narrow: Names) -> float:
        """Errors of tensors add up: they have little to do with each other."""
        left = sum(self._errors[t.name] for t in self.activations if t.name not in wide)
        return self._rest + left + sum(self._errors[name] for name in narrow)

    def _best_below(self, limit: float) -> Names:
        allowed = [
            c for c in self._known() if c.latency.raw_us <= limit and 4 not in c.plan.bits.values()
        ]
        if not allowed:
            return frozenset()
        return frozenset(min(allowed, key=lambda c: (c.error_share, c.latency.raw_us)).plan.bits)

    def _best_wide(self, count: int) -> list[Names]:
        plain = [c for c in self._found.values() if 4 not in c.plan.bits.values()]
        plain = [c for c in plain if c.plan.bits]
        front = _front((c.latency.raw_us, c.error_share, c) for c in plain)
        return [frozenset(c.plan.bits) for c in _spread(front, count)]

    def _closed(self, names: Names) -> Names:
        """With every tensor between two of them: its layers compute with 16 bits anyway."""
        between = [
            t.name
            for t in self.activations
            if t.name not in names and len(names & set(t.neighbours)) >= 2
        ]
        return names | {name for name in between if math.isfinite(self._costs[name])}

    def _plan(
        self, wide: Iterable[str], narrow: Iterable[str] = (), default: int = 8
    ) -> PrecisionPlan:
        bits = {**dict.fromkeys(wide, 16), **dict.fromkeys(narrow, 4)}
        return PrecisionPlan.of_bits(bits, self.model, activations=default)


def _front(points: Iterable[tuple[float, float, object]]) -> list:  # type: ignore[type-arg]
    """The last of each triple whose first two are not dominated, by the first."""
    ordered = sorted(points, key=lambda point: point[:2])
    if not ordered:
        return []
    mask = non_dominated(np.array([point[:2] for point in ordered]))
    seen: set[tuple[float, float]] = set()
    front = []
    for point, is_kept in zip(ordered, mask, strict=True):
        if is_kept and point[:2] not in seen:
            seen.add(point[:2])
            front.append(point[2])
    return front


def _last(front: Sequence[PricedPlan], count: int) -> list[PricedPlan]:
    """Spread, with the last one, which has the least error, and the one before it."""
    if len(front) <= count:
        return list(front)
    return [*_spread(front[:-2], count - 2), *front[-2:]]


def _spread(front: Sequence[PricedPlan], count: int) -> list[PricedPlan]:
    """Of many candidates those that are far apart, by the logarithm of their error."""
    if len(front) <= count:
        return list(front)
    if count <= 1:
        return list(front[:count])
    places = [math.log(max(c.error_share, 1e-30)) for c in front]
    targets = np.linspace(places[0], places[-1], count)
    chosen = {int(np.argmin(np.abs(np.array(places) - place))) for place in targets}
    return [front[index] for index in sorted(chosen)]


# The first layer whose output on the chip is far from what it would be in float.
#
# Errors of quantized layers add up on the way, so the layer with the worst output is usually just
# the deepest. Here every layer is judged by itself: it is computed in float from what it read on
# the chip, and compared with what it gave there. Channels are compared one by one, since a loud
# channel would hide that all others are lost. A layer that is much worse than layers of this model
# are is named.


_SHARP_DB = 10.0  # healthy layers differ by up to 9: those without an activation function are lower
_SPREADS = 3.0
_LARGEST_DB = 15.0  # half of the layers may suffer from the first one
_PROBED_BYTES = 128 << 20
_KEPT_BYTES = 1 << 30
_MOST_PROBES = 24


def find_divergence(
    lab: PrecisionLab, plan: PrecisionPlan, count: int = 2, sharp_db: float = _SHARP_DB
) -> Divergence:
    """Float against the chip, layer by layer, on a few samples."""
    everything = [t for t in lab.calibrated.tensors if t.kind == "activation"]
    if _bytes(everything, count) > _KEPT_BYTES:
        count = 1
    tensors = _first(everything, count)
    note = ""
    if len(tensors) < len(everything):
        note = f"only the first {len(tensors)} of {len(everything)} tensors were compared with "
        note += "those of the chip: the others do not fit into memory"
    whole, alone = lab.inside(plan, _parts(tensors, count), count)
    layers = tuple(
        LayerAgreement(
            tensor.name,
            tensor.layer or tensor.name,
            tensor.operator,
            whole[tensor.name],
            alone.get(tensor.name, MOST_DB),
        )
        for tensor in tensors
        if tensor.name in whole
    )
    return replace(_judged(layers, sharp_db), note=note)


def _bytes(tensors: Sequence[TunableTensor], count: int) -> int:
    return sum(4 * tensor.size * count for tensor in tensors)


def _first(tensors: Sequence[TunableTensor], count: int) -> list[TunableTensor]:
    """As many as can be kept at once: each is needed for the layers that read it."""
    ends = itertools.accumulate(4 * tensor.size * count for tensor in tensors)
    return [tensor for tensor, end in zip(tensors, ends, strict=True) if end <= _KEPT_BYTES]


def _judged(layers: tuple[LayerAgreement, ...], sharp_db: float) -> Divergence:
    if not layers:
        return Divergence(layers)
    values = [layer.own_db for layer in layers]
    usual = statistics.median(values)
    spread = statistics.median(abs(value - usual) for value in values)
    limit = usual - min(max(sharp_db, _SPREADS * spread), _LARGEST_DB)
    first = next((layer for layer in layers if layer.own_db < limit), None)
    return Divergence(layers, first, usual)


def _parts(tensors: Sequence[TunableTensor], count: int) -> list[list[str]]:
    """As many tensors at a time as fit into some memory."""
    parts: list[list[str]] = [[]]
    size = 0
    for tensor in tensors:
        tensor_bytes = 8 * tensor.size * count
        if parts[-1] and (size + tensor_bytes > _PROBED_BYTES or len(parts[-1]) >= _MOST_PROBES):
            parts.append([])
            size = 0
        parts[-1].append(tensor.name)
        size += tensor_bytes
    return [part for part in parts if part]
