"""Choosing from a bank of screened members, and which members to screen next.

A member is chosen for training by its acquisition, with its cheap values exact (see `screened`).
Those to screen next are ranked by the same acquisition, with their cheap values predicted from the
bank: a latency is easy to predict roughly, and only those that seem worth it are compiled. Some are
random, so that every branch of a space stays in play.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from edgeloop.pareto import Floats, non_dominated
from edgeloop.search.base import Observation, ScreenedMember
from edgeloop.search.sampler.acquisition import (
    Improvement,
    Scale,
    exact_improvement,
    spread_normals,
)
from edgeloop.search.sampler.members import (
    Draft,
    Drafts,
    NewMembers,
    at_corner,
    at_random,
    children_of,
    knows_enough,
    mutated,
    parents_of,
    replayed,
)
from edgeloop.search.sampler.surrogate import (
    Kernel,
    KernelCache,
    Surrogate,
    fit_kernel,
    fitted_results,
)
from edgeloop.search.sampler.table import (
    BankTable,
    BankView,
    MemberArrays,
    MemberEncoding,
    all_values,
    barred_fronts,
)
from edgeloop.search.sampler.trial import Params, Policy, Space, Value, key_of

_RANDOM_SHARE = 8  # one in so many members to screen is random
_LEADERS = 10  # members of the bank whose neighbours are looked at, too
_CHILDREN = 20  # of each of them
# In a space of many parameters the best children have children, too; in a small one, children
# reach everything that is near, and the variety of what is screened is worth more.
_ROUNDS, _GRANDCHILDREN, _PARAMETERS = 2, 100, 20
_CORNERS = 5
_TRIES = 20


class BankSampler:
    """Both questions, with what is remembered between them."""

    def __init__(
        self, space: Space, drafts: Drafts, start: int, fronts: Sequence[tuple[int, ...]]
    ) -> None:
        self._space = space
        self._drafts = drafts
        self._start = start
        self._fronts = tuple(tuple(front) for front in fronts)
        self._kernels = KernelCache()
        self._screening = ScreeningKernel()
        self._table = BankTable(drafts, max(1, len(self._fronts)))

    def choose(
        self,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        bank: Sequence[ScreenedMember],
        rng: Random,
    ) -> Params | None:
        if not bank:
            return None
        view = self._table.view(bank, history)
        taken = {key_of(params) for params in (*(r.params for r in history), *pending)}
        is_open = view.feasible & np.array([key not in taken for key in view.keys])
        if not is_open.any():
            return None
        is_complete = ~np.isnan(view.arrays.values[:, view.encoding.cheap]).any(axis=1)
        if (is_open & is_complete).any():
            is_open &= is_complete
        places = np.flatnonzero(is_open)
        members = view.arrays.of(places)
        if knows_enough(history, pending, self._start):
            scores = self._acquisition(view, history, pending, rng).of(members)
        else:
            scores = _distances(members, view, history, pending)
        return dict(bank[places[int(scores.argmax())]].params)

    def batch(
        self,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        bank: Sequence[ScreenedMember],
        count: int,
        rng: Random,
    ) -> list[Params]:
        view = self._table.view(bank, history) if bank else None
        taken = {key_of(params) for params in (*(r.params for r in history), *pending)}
        fresh = NewMembers(self._space, keys=taken.union(view.keys if view else ()))
        members: list[Draft] = []
        if view and view.encoding.cheap and knows_enough(history, pending, self._start):
            ranked = self._ranked(fresh, view, history, pending, rng)
            wanted = count - count // _RANDOM_SHARE
            members = fresh.taken_from(_replays(ranked, rng), wanted)
        elif not bank:
            corners = (at_corner(index / (_CORNERS - 1)) for index in range(_CORNERS))
            members = fresh.taken_from(corners, count)
        tries = _TRIES * count
        members += fresh.taken_from((at_random(rng) for _ in range(tries)), count - len(members))
        members += fresh.everyone(rng, count - len(members))
        return [member.params for member in members]

    def _ranked(
        self,
        fresh: NewMembers,
        view: BankView,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        rng: Random,
    ) -> list[Draft]:
        """Children of the front and of the most promising members of the bank, the best first."""
        acquisition = self._acquisition(view, history, pending, rng)
        parents = [self._drafts.of(result.params) for result in parents_of(history)]
        feasible = np.flatnonzero(view.feasible)
        scores = acquisition.of(view.arrays.of(feasible))
        leaders = feasible[np.argsort(-scores, kind="stable")[:_LEADERS]]
        turns = [self._drafts.of(view.members[place].params) for place in leaders] * _CHILDREN
        drafts = fresh.unseen(children_of(parents, 1.0, rng))
        drafts += fresh.unseen(mutated(leader, 1, rng) for leader in turns)
        if not drafts:
            return []
        model = ScreeningModel(view, self._screening.of(view))
        scores = _expected(model, acquisition, drafts)
        is_large = max(len(draft.params) for draft in drafts) > _PARAMETERS
        for _ in range(_ROUNDS if is_large else 0):
            best = [drafts[i] for i in np.argsort(-scores, kind="stable")[:_LEADERS]]
            turns = [best[i % len(best)] for i in range(_GRANDCHILDREN)]
            children = fresh.unseen(mutated(leader, 1, rng) for leader in turns)
            drafts += children
            scores = np.append(scores, _expected(model, acquisition, children))
        return [drafts[index] for index in np.argsort(-scores, kind="stable")]

    def _acquisition(
        self,
        view: BankView,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        rng: Random,
    ) -> ScreenedAcquisition:
        fronts = self._fronts or (tuple(range(view.objectives)),)
        kernels = self._fitted(view.encoding, history, view.objectives)
        waiting = view.arrays.of(_places(view, pending))
        seed = rng.getrandbits(32)
        return ScreenedAcquisition(view.encoding, kernels, history, waiting, fronts, seed)

    def _fitted(
        self, encoding: MemberEncoding, history: Sequence[Observation], objectives: int
    ) -> DearKernels:
        values = all_values(history, objectives)
        kernels = {}
        for index in range(objectives):
            if index in encoding.cheap:
                continue
            known = np.flatnonzero(np.isfinite(values[:, index])).tolist()
            used = fitted_results([history[place] for place in known], self._start)
            column = all_values(used, objectives)[:, index]
            scaled = Scale.of(column).forward(column)
            kernels[index] = self._fit(f"objective {index}", encoding, used, scaled)
        if (outcomes(history) > 0).all():
            return DearKernels(kernels, None)
        used = fitted_results(history, self._start)
        return DearKernels(kernels, self._fit("feasibility", encoding, used, outcomes(used)))

    def _fit(
        self, what: str, encoding: MemberEncoding, used: Sequence[Observation], targets: Floats
    ) -> Kernel:
        def fit() -> Sequence[Kernel]:
            encoded = encoding.encode(used)
            names, groups = encoding.names, encoding.groups
            return [fit_kernel(names, encoded, groups, targets, doubts(used))]

        (kernel,) = self._kernels.get(what, used, encoding, fit)
        return kernel


def _expected(
    model: ScreeningModel, acquisition: ScreenedAcquisition, drafts: Sequence[Draft]
) -> Floats:
    """The mean acquisition over the ways in which screening may turn out."""
    if not drafts:
        return np.zeros(0)
    params = [draft.params for draft in drafts]
    outcomes = ((weight, acquisition.of(arrays)) for arrays, weight in model.outcomes(params))
    scores: Floats = np.sum([weight * scores for weight, scores in outcomes], axis=0)
    return scores * model.feasibility(params)


def _distances(
    members: MemberArrays,
    view: BankView,
    history: Sequence[Observation],
    pending: Sequence[Mapping[str, Value]],
) -> Floats:
    """How far members are from all that was chosen: in their parameters, and in what is known of
    them."""
    waiting = view.arrays.encoded[_places(view, pending)]
    chosen = np.vstack([view.encoding.encode(history), waiting])
    if not len(chosen):
        centre = np.median(members.encoded, axis=0)
        return np.asarray(-((members.encoded - centre) ** 2).sum(axis=1))
    gaps = [((members.encoded - one) ** 2).sum(axis=1) for one in chosen]
    return np.asarray(np.min(gaps, axis=0))


def _places(view: BankView, pending: Sequence[Mapping[str, Value]]) -> NDArray[np.intp]:
    """Where pending members are in the bank."""
    waiting = {key_of(params) for params in pending}
    found = [place for place, key in enumerate(view.keys) if key in waiting] if waiting else []
    return np.array(found, dtype=np.intp)


def _replays(drafts: Sequence[Draft], rng: Random) -> Iterable[Policy]:
    return (replayed(draft.params, rng) for draft in drafts)


# What screening would say of members that are not screened yet, learnt from those that are.


_LEARNT_FROM = 256  # members of the bank; more cost time and change little
_FITTED_TO = 100
_GROWTH = 1.5  # the kernel is fitted again when the bank is so many times larger
_FIRST = 64
_LEAST_FEASIBILITY = 0.02
# A cheap value may be lower or higher than predicted, by so many deviations with such a weight.
_DEVIATIONS = ((-2.0, 0.06), (-1.0, 0.24), (0.0, 0.4), (1.0, 0.3))


class ScreeningModel:
    """Predicts cheap values, features, and whether a member is feasible."""

    def __init__(self, view: BankView, kernel: Kernel) -> None:
        self._view = view
        self._kernel = kernel
        encoding = view.encoding
        self._width = len(encoding.space.groups)
        known = _spread(_known(view))
        self._typical = np.median(view.arrays.values[known], axis=0)
        self._columns = self._surrogate(known, view.arrays.encoded[known, self._width :])
        self._feasibility: Surrogate | None = None
        if not view.feasible.all():
            some = _spread(np.arange(len(view.members)))
            self._feasibility = self._surrogate(some, np.where(view.feasible[some], 0.5, -0.5))

    def feasibility(self, members: Sequence[Mapping[str, Value]]) -> Floats:
        """The probability of each member to be feasible."""
        if self._feasibility is None:
            return np.ones(len(members))
        mean, _ = self._feasibility.predict(self._view.encoding.space.encode(members))
        return np.clip(mean + 0.5, _LEAST_FEASIBILITY, 1.0)

    def outcomes(self, members: Sequence[Mapping[str, Value]]) -> list[tuple[MemberArrays, float]]:
        """Ways in which screening may turn out, each with its probability."""
        encoding = self._view.encoding
        encoded = encoding.space.encode(members)
        columns, variance = self._columns.predict(encoded)
        deviation = np.sqrt(variance + self._columns.noise_variance)
        nowhere = np.zeros((len(members), self._view.arrays.barred.shape[1]), dtype=np.bool_)
        found = []
        for many, weight in _DEVIATIONS:
            shifted = columns.copy()
            values = np.repeat(self._typical[None], len(members), axis=0)
            for place, (index, scale) in enumerate(encoding.objectives):
                shifted[:, place] += many * deviation
                values[:, index] = scale.inverse(shifted[:, place])
            arrays = MemberArrays(np.hstack([encoded, shifted]), values, nowhere)
            found.append((arrays, weight))
        return found

    def _surrogate(self, places: NDArray[np.intp], targets: Floats) -> Surrogate:
        space = self._view.encoding.space
        encoded = self._view.arrays.encoded[places, : self._width]
        return Surrogate(self._kernel, space.names, space.groups, encoded, targets)


class ScreeningKernel:
    """The kernel of the first cheap objective, which serves for all that screening gives."""

    def __init__(self) -> None:
        self._kept: tuple[object, Kernel] | None = None

    def of(self, view: BankView) -> Kernel:
        places = _known(view)
        count = _FIRST
        while (following := int(count * _GROWTH)) <= len(places):
            count = following
        places = places[:count]
        chosen = np.linspace(0, len(places) - 1, min(len(places), _FITTED_TO)).astype(np.intp)
        places = places[chosen]
        identity = view.encoding, [view.keys[place] for place in places]
        if self._kept is None or self._kept[0] != identity:
            self._kept = identity, self._fitted(view, places)
        return self._kept[1]

    def _fitted(self, view: BankView, places: NDArray[np.intp]) -> Kernel:
        space = view.encoding.space
        width = len(space.groups)
        encoded = view.arrays.encoded[places]
        if encoded.shape[1] == width:  # all members have the same values
            return Kernel({})
        return fit_kernel(space.names, encoded[:, :width], space.groups, encoded[:, width])


def _known(view: BankView) -> NDArray[np.intp]:
    cheap = view.arrays.values[:, view.encoding.cheap]
    return np.flatnonzero(np.isfinite(cheap).all(axis=1))


def _spread(places: NDArray[np.intp]) -> NDArray[np.intp]:
    """A sample from the whole length of the bank, with the newest member."""
    step = max(1, len(places) // _LEARNT_FROM)
    return places[::-step][:_LEARNT_FROM]


# The acquisition of screened members: exact in what is known, modelled in what is not.
#
# A member whose latency is known cannot disappoint there: it is worth a training if what may be
# learnt about its accuracy pushes the front out *at that latency*. A slow member must promise more.
# With several fronts (one per chip) the acquisition is the mean of the improvements of all of them.


_SAMPLES = 32
_COARSE_SAMPLES, _COARSE_DIRECTIONS = 8, 24
_FINALISTS = 256  # members that are compared with all samples and directions
_DOUBT = 0.1  # variance of what a stopped training was heading for, on the scale of the targets


@dataclass(frozen=True)
class DearKernels:
    """A kernel for each dear objective, by index, and that of feasibility."""

    objectives: Mapping[int, Kernel]
    feasibility: Kernel | None


@dataclass(frozen=True)
class _Dear:
    scale: Scale
    surrogate: Surrogate

    def predict(self, encoded: Floats) -> tuple[Floats, Floats]:
        """Mean and deviation of what would be measured, on the scale."""
        mean, variance = self.surrogate.predict(encoded)
        return mean, np.sqrt(variance + self.surrogate.noise_variance)


@dataclass(frozen=True)
class _Front:
    place: int
    objectives: tuple[int, ...]
    points: Floats
    worst: Floats


class ScreenedAcquisition:
    """Made for every choice from all results; each front has at least one of them."""

    def __init__(
        self,
        encoding: MemberEncoding,
        kernels: DearKernels,
        history: Sequence[Observation],
        waiting: MemberArrays,
        fronts: Sequence[tuple[int, ...]],
        seed: int,
    ) -> None:
        count = 1 + max(index for front in fronts for index in front)
        values = all_values(history, count)
        encoded = encoding.encode(history)
        self._dear: dict[int, _Dear] = {}
        for index, kernel in kernels.objectives.items():
            self._dear[index] = _fitted(
                encoding, kernel, encoded, values[:, index], doubts(history), waiting
            )
        self._seed = seed
        eligible = np.array([r.feasible and not r.is_partial for r in history], dtype=np.bool_)
        expected = self._expected(waiting)
        barred = barred_fronts(history, len(fronts))
        found = (
            _front(place, front, values[eligible & ~barred[:, place]], expected)
            for place, front in enumerate(fronts)
        )
        self._fronts = [front for front in found if front]
        self._feasibility: Surrogate | None = None
        if kernels.feasibility:
            self._feasibility = Surrogate(
                kernels.feasibility, encoding.names, encoding.groups, encoded, outcomes(history)
            )

    def of(self, candidates: MemberArrays) -> Floats:
        predicted = {index: dear.predict(candidates.encoded) for index, dear in self._dear.items()}
        gains = [self._gain(front, candidates, predicted) for front in self._fronts]
        gain = np.mean(gains, axis=0) if gains else np.ones(len(candidates))
        if self._feasibility is None:
            return np.asarray(gain)
        mean, _ = self._feasibility.predict(candidates.encoded)
        return np.asarray(gain * np.clip(mean + 0.5, _LEAST_FEASIBILITY, 1.0))

    def _gain(
        self,
        front: _Front,
        candidates: MemberArrays,
        predicted: Mapping[int, tuple[Floats, Floats]],
    ) -> Floats:
        """Members that are barred from this front, or lack a value of it, add nothing to it."""
        known = [index for index in front.objectives if index not in self._dear]
        usable = np.isfinite(candidates.values[:, known]).all(axis=1)
        usable &= ~candidates.barred[:, front.place]
        gain = np.zeros(len(candidates))
        if not usable.any():
            return gain
        here = {index: (m[usable], d[usable]) for index, (m, d) in predicted.items()}
        values = candidates.values[usable]
        if len(front.objectives) == 2 and len(known) == 1:
            gain[usable] = self._exact(front, known[0], values, here)
            return gain
        coarse = self._sampled(front, values, here, _COARSE_SAMPLES, _COARSE_DIRECTIONS)
        best = np.argsort(-coarse, kind="stable")[:_FINALISTS]
        finalists = {index: (m[best], d[best]) for index, (m, d) in here.items()}
        fine = self._sampled(front, values[best], finalists, _SAMPLES)
        rest = coarse * min(1.0, fine.min() / max(coarse[best].min(), 1e-300))
        rest[best] = fine
        gain[usable] = rest
        return gain

    def _exact(
        self,
        front: _Front,
        known: int,
        values: Floats,
        predicted: Mapping[int, tuple[Floats, Floats]],
    ) -> Floats:
        (dear,) = (index for index in front.objectives if index != known)
        order = [front.objectives.index(dear), front.objectives.index(known)]
        scale = self._dear[dear].scale
        return exact_improvement(
            *predicted[dear],
            values[:, known],
            front.points[:, order],
            front.worst[order],
            scale.forward,
            scale.inverse,
        )

    def _sampled(
        self,
        front: _Front,
        values: Floats,
        predicted: Mapping[int, tuple[Floats, Floats]],
        count: int,
        directions: int | None = None,
    ) -> Floats:
        normals = spread_normals(len(predicted), count, self._seed)
        samples = []
        for index in front.objectives:
            if index in predicted:
                mean, deviation = predicted[index]
                own = normals[list(predicted).index(index)]
                drawn = mean[:, None] + deviation[:, None] * own
                samples.append(self._dear[index].scale.inverse(drawn))
            else:
                samples.append(np.repeat(values[:, [index]], count, axis=1))
        more = {} if directions is None else {"directions": directions}
        improvement = Improvement(front.points, front.worst, **more)
        return improvement.of(np.stack(samples, axis=-1))

    def _expected(self, waiting: MemberArrays) -> Floats:
        values = waiting.values.copy()
        for index, dear in self._dear.items():
            if len(waiting):
                values[:, index] = dear.scale.inverse(dear.predict(waiting.encoded)[0])
        return values


def outcomes(results: Sequence[Observation]) -> Floats:
    """½ for what succeeded or was stopped early and −½ for what failed or broke a constraint: far
    from all of them, nothing is known."""
    return np.array([0.5 if r.feasible and r.values is not None else -0.5 for r in results])


def doubts(results: Sequence[Observation]) -> Floats:
    return np.array([_DOUBT if result.is_partial else 0.0 for result in results])


def _fitted(
    encoding: MemberEncoding,
    kernel: Kernel,
    encoded: Floats,
    values: Floats,
    doubt: Floats,
    waiting: MemberArrays,
) -> _Dear:
    """Pending candidates are taken to turn out as predicted, so that others look elsewhere."""
    known = np.isfinite(values)
    scale = Scale.of(values[known])
    encoded, targets, doubt = encoded[known], scale.forward(values[known]), doubt[known]
    surrogate = Surrogate(kernel, encoding.names, encoding.groups, encoded, targets, doubt)
    if len(waiting):
        means, _ = surrogate.predict(waiting.encoded)
        encoded, targets = np.vstack([encoded, waiting.encoded]), np.append(targets, means)
        doubt = np.append(doubt, np.zeros(len(waiting)))
        surrogate = Surrogate(kernel, encoding.names, encoding.groups, encoded, targets, doubt)
    return _Dear(scale, surrogate)


def _front(
    place: int, objectives: tuple[int, ...], eligible: Floats, expected: Floats
) -> _Front | None:
    """The front of results and of what is expected of pending candidates."""
    results = eligible[:, objectives]
    results = results[np.isfinite(results).all(axis=1)]
    if not len(results):
        return None
    points = np.vstack([results, expected[:, objectives]])
    points = points[np.isfinite(points).all(axis=1)]
    return _Front(place, objectives, points[non_dominated(points)], results.max(axis=0))
