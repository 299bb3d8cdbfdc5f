"""Which tensors deserve more bits, and which weights can do with fewer: a front of plans.

First every tensor alone, in float: how much error do its 8 bits make? Then the compiler: what does
it cost to give a tensor 16 bits? A layer computes with 16 bits if any tensor around it has them, so
neighbours cost less together than alone. Plans are grown by error saved per microsecond, and from
the outputs backwards, and compiled for their true latency. What is best by these numbers goes to
the simulator, whose word is final.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgeloop.graph import TunableTensor
from edgeloop.pareto import non_dominated
from edgeloop.platforms import PrecisionPlan
from edgeloop.tuning.precision.lab import Latency, PrecisionLab
from edgeloop.tuning.precision.results import PrecisionPoint, TensorSensitivity

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
        points = self._simulated(base, full)
        return points, self._sensitivities(base)

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
        known = [t for t in ranked if math.isfinite(self._costs[t.name])]
        size = sum(t.size for t in known)
        per_number = sum(self._costs[t.name] for t in known) / size if size else 0.0
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

    def _simulated(self, base: PrecisionPlan, full: PrecisionPlan) -> list[PrecisionPoint]:
        front = _front((c.latency.raw_us, c.error_share, c) for c in self._known())
        middle = [c for c in front if c.plan.digest not in (base.digest, full.digest)]
        limit = self._moderate_us()
        cheap = [c for c in middle if c.latency.raw_us <= limit]
        dear = [c for c in middle if c.latency.raw_us > limit]
        few = _spread(dear, self.points // 3)
        chosen = [base, full, *(c.plan for c in (*_last(cheap, self.points - len(few)), *few))]
        found = self.lab.simulations(chosen, self.images, "simulating plans")
        points = []
        for plan, simulated in zip(chosen, found, strict=True):
            latency = self._shown(self._found[plan.digest].latency)
            if simulated is not None and math.isfinite(latency.us):
                values = (plan, latency.us, simulated.sqnr_db, latency.low_us, latency.high_us)
                more = (simulated.score, simulated.difference, latency.missing_ops)
                points.append(PrecisionPoint(*values, *more))
        return self._kept_points(points, {base.digest, full.digest})

    def _kept_points(
        self, points: Sequence[PrecisionPoint], ends: set[str]
    ) -> list[PrecisionPoint]:
        """The front, and the ends; an end whose time is known only from below is the last one."""
        most = self._base.missing_ops
        known = [p for p in points if p.missing_ops <= most]
        kept = {id(p) for p in _front((p.latency_us, -p.sqnr_db, p) for p in known)}
        shown = [p for p in points if id(p) in kept or p.plan.digest in ends]
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

    def _sensitivities(self, base: PrecisionPlan) -> list[TensorSensitivity]:
        wide = sorted(self.activations, key=lambda t: -self._errors[t.name])
        narrow = sorted(self.weights, key=lambda t: -self._errors[t.name])
        few = [*wide[: self.simulated_tensors], *narrow[: self.simulated_tensors // 2]]
        plans = {tensor.name: self._alone(tensor) for tensor in few}
        count = min(RANKING_SAMPLES, self.images)
        found = self.lab.simulations(list(plans.values()), count, "simulating tensors")
        simulated = dict(zip(plans, found, strict=True))
        rows = []
        for tensor in (*wide, *narrow):
            seen = simulated.get(tensor.name)
            known = self._found.get(self._alone(tensor).digest)
            rows.append(
                TensorSensitivity(
                    tensor,
                    self._errors[tensor.name],
                    None if known is None else self._shown(known.latency).us,
                    None if seen is None else seen.sqnr_db,
                    None if seen is None else seen.score,
                )
            )
        return rows

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
        found = self._found.get(self._plan(wide, narrow).digest)
        return None if found is None else found.latency

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
    given = sorted(points, key=lambda point: point[:2])
    if not given:
        return []
    mask = non_dominated(np.array([point[:2] for point in given]))
    seen: set[tuple[float, float]] = set()
    front = []
    for point, is_kept in zip(given, mask, strict=True):
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
    wanted = np.linspace(places[0], places[-1], count)
    chosen = {int(np.argmin(np.abs(np.array(places) - place))) for place in wanted}
    return [front[index] for index in sorted(chosen)]
