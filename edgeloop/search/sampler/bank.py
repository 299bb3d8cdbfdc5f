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

from edgeloop.pareto import Floats, Mask, non_dominated
from edgeloop.search.base import Observation, ScreenedMember
from edgeloop.search.nets.architecture import Value
from edgeloop.search.sampler.members import (
    Draft,
    Drafts,
    Groups,
    NewMembers,
    Params,
    Policy,
    Space,
    SpaceEncoding,
    at_corner,
    at_random,
    children_of,
    key_of,
    knows_enough,
    mutated,
    parents_of,
    replayed,
)
from edgeloop.search.sampler.surrogate import (
    Improvement,
    Kernel,
    KernelCache,
    Scale,
    Surrogate,
    exact_improvement,
    fit_kernel,
    fitted_results,
    spread_normals,
    telling,
)

# A bank of screened members as arrays.
#
# A bank has thousands of members and grows by a few for every choice, so what is computed of a
# member is cached by its identity. Equal members that are other objects give the same answer, only
# more slowly.


# What is known of members without training, as columns for a surrogate.
#
# Beside its parameters a member may have features: parameters and MACs counted, latencies compiled,
# proxies computed. The values of cheap objectives are features too. A feature that varies by
# factors is taken by its logarithm, and all are put on the scale of a first sample of the bank,
# which stays the same while the bank grows. A member without a feature is taken to be average.


_SAMPLE = 128  # members of the bank that give features their scale
_SHARE = 0.5  # two members are at a mean squared distance of ½, as with numbers in a range
_FARTHEST = 6.0  # beyond so many times the spread, how far does not matter
_ALIKE = 1 - 1e-9  # correlation of two features that say the same thing

Member = Observation | ScreenedMember


@dataclass(frozen=True)
class FeatureScale:
    """Where the values of one feature lie."""

    name: str
    centre: float
    spread: float
    is_log: bool

    @classmethod
    def of(cls, name: str, values: Floats) -> FeatureScale | None:
        """None if the values say nothing: there are none, or they are all the same."""
        finite = values[np.isfinite(values)]
        if len(finite) < 2:
            return None
        is_log = bool(finite.min() > 0)
        plain = np.log(finite) if is_log else finite
        low, centre, high = np.quantile(plain, [0.16, 0.5, 0.84])
        spread = float(high - low) / 2 or float(np.std(plain))
        if spread <= 1e-9 * max(1.0, abs(float(centre))):
            return None
        return cls(name, float(centre), spread, is_log)

    def column(self, values: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            plain = np.log(values) if self.is_log else values
            scaled = (plain - self.centre) / self.spread
        bounded = np.clip(np.nan_to_num(scaled, nan=0.0), -_FARTHEST, _FARTHEST)
        return np.asarray(_SHARE * bounded)

    def inverse(self, column: Floats) -> Floats:
        plain = self.centre + self.spread * column / _SHARE
        return np.asarray(np.exp(np.minimum(plain, 700.0)) if self.is_log else plain)


@dataclass(frozen=True)
class MemberEncoding:
    """Parameters and features as columns, each with a weight of its own in a kernel."""

    space: SpaceEncoding
    names_of_raw: tuple[str, ...]
    objectives: tuple[tuple[int, FeatureScale], ...]
    features: tuple[tuple[int, FeatureScale], ...]  # by the index of the raw feature
    cheap: tuple[int, ...]  # objectives whose values are known before a training

    @classmethod
    def of(
        cls,
        space: SpaceEncoding,
        names: tuple[str, ...],
        raw: Floats,
        values: Floats,
        cheap: tuple[int, ...],
    ) -> MemberEncoding:
        """From the raw features and the values of a bank."""
        has_values = np.isfinite(np.hstack([values[:, cheap], raw])).any(axis=1)
        sample = np.flatnonzero(has_values)[:_SAMPLE]
        columns: list[Floats] = []
        scales: list[list[tuple[int, FeatureScale]]] = [[], []]
        sources = [(0, index, f"objective {index}", values[sample, index]) for index in cheap]
        sources += [(1, index, name, raw[sample, index]) for index, name in enumerate(names)]
        for kind, index, name, numbers in sources:
            scale = FeatureScale.of(name, numbers)
            if scale is None:
                continue
            column = scale.column(numbers)
            if not any(_are_alike(column, other) for other in columns):
                scales[kind].append((index, scale))
                columns.append(column)
        return cls(space, names, tuple(scales[0]), tuple(scales[1]), cheap)

    @property
    def names(self) -> list[str]:
        scales = (scale for _, scale in (*self.objectives, *self.features))
        return [*self.space.names, *(f"feature {scale.name}" for scale in scales)]

    @property
    def groups(self) -> Groups:
        count, more = len(self.space.names), len(self.objectives) + len(self.features)
        return np.concatenate([self.space.groups, np.arange(count, count + more)])

    def encode(self, members: Sequence[Member]) -> Floats:
        columns = self.space.encode([member.params for member in members])
        raw = raw_features(members, self.names_of_raw)
        count = 1 + max(self.cheap, default=-1)
        return np.hstack([columns, self.feature_columns(raw, all_values(members, count))])

    def feature_columns(self, raw: Floats, values: Floats) -> Floats:
        columns = [scale.column(values[:, index]) for index, scale in self.objectives]
        columns += [scale.column(raw[:, index]) for index, scale in self.features]
        return np.stack(columns, axis=1) if columns else np.zeros((len(raw), 0))


def raw_features(members: Sequence[Member], names: Sequence[str]) -> Floats:
    """One row per member; NaN where it lacks a feature."""
    rows = [[member.features.get(name, np.nan) for name in names] for member in members]
    return np.array(rows, dtype=np.float64).reshape(len(members), len(names))


def all_values(members: Sequence[Member], count: int) -> Floats:
    """One row per member and one column per objective; NaN where a member has no such value."""
    nothing = (np.nan,) * count
    rows = [nothing if member.values is None else member.values[:count] for member in members]
    return np.array(rows, dtype=np.float64).reshape(len(members), count)


def barred_fronts(members: Sequence[Member], count: int) -> Mask:
    """One row per member and one column per front: whether it may not be on it."""
    rows = [[place in member.barred for place in range(count)] for member in members]
    return np.array(rows, dtype=np.bool_).reshape(len(members), count)


def _are_alike(column: Floats, other: Floats) -> bool:
    if np.std(column) == 0 or np.std(other) == 0:
        return False
    return abs(float(np.corrcoef(column, other)[0, 1])) > _ALIKE


_NEWEST = 6_000  # members in a view: an older one was passed over hundreds of times
_FORGOTTEN = 4  # the memory is cleared when it holds so many times more members than the bank


@dataclass(frozen=True)
class MemberArrays:
    """Members as columns for a surrogate, their values, NaN where only a training can tell, and
    the fronts that they may not be on."""

    encoded: Floats
    values: Floats
    barred: Mask  # (members, fronts)

    def of(self, chosen: Mask | NDArray[np.intp]) -> MemberArrays:
        return MemberArrays(self.encoded[chosen], self.values[chosen], self.barred[chosen])

    def __len__(self) -> int:
        return len(self.encoded)


@dataclass(frozen=True)
class BankView:
    """The newest members of a bank, in its order, and the keys of all."""

    members: Sequence[ScreenedMember]
    keys: Sequence[str]
    every_key: Sequence[str]
    feasible: Mask
    encoding: MemberEncoding
    arrays: MemberArrays

    @property
    def objectives(self) -> int:
        return int(self.arrays.values.shape[1])


class BankTable:
    """The memory behind views of a bank."""

    def __init__(self, drafts: Drafts, fronts: int) -> None:
        self._drafts = drafts
        self._fronts = fronts
        self._clear()

    def view(self, bank: Sequence[ScreenedMember], history: Sequence[Observation]) -> BankView:
        if len(self._members) > _FORGOTTEN * (len(bank) + 100):
            self._clear()
        self._remember([member for member in bank if id(member) not in self._rows])
        every_row = np.fromiter(map(self._rows.__getitem__, map(id, bank)), np.intp, len(bank))
        every_key = list(map(self._keys.__getitem__, every_row.tolist()))
        bank, rows, keys = bank[-_NEWEST:], every_row[-_NEWEST:], every_key[-_NEWEST:]
        self._encode(self._space_encoding(rows, history))
        values, raw = _stacked(self._values, rows), _stacked(self._raw, rows)
        feasible = self._feasible[rows]
        is_known = ~np.isnan(values[feasible])
        cheap = tuple(int(index) for index in np.flatnonzero(is_known.any(axis=0)))
        encoding = MemberEncoding.of(self._space, self._names, raw, values, cheap)
        columns = encoding.feature_columns(raw, values)
        encoded = np.hstack([_stacked(self._encoded, rows), columns])
        arrays = MemberArrays(encoded, values, self._barred[rows])
        return BankView(bank, keys, every_key, feasible, encoding, arrays)

    def _clear(self) -> None:
        self._members: list[ScreenedMember] = []  # held, so that an id means one of them
        self._rows: dict[int, int] = {}
        self._keys: list[str] = []
        self._shapes: dict[frozenset[str], int] = {}
        self._shape_of = np.zeros(0, dtype=np.intp)
        self._feasible = np.zeros(0, dtype=np.bool_)
        self._barred: Mask = np.zeros((0, self._fronts), dtype=np.bool_)
        self._names: tuple[str, ...] = ()
        self._space = SpaceEncoding({})
        self._values: list[Floats] = []  # a row for each member
        self._raw: list[Floats] = []
        self._encoded: list[Floats] = []

    def _remember(self, members: Sequence[ScreenedMember]) -> None:
        if not members:
            return
        for member in members:
            self._rows[id(member)] = len(self._members)
            self._members.append(member)
            self._keys.append(key_of(member.params))
        shapes = [self._shape(member) for member in members]
        self._shape_of = np.append(self._shape_of, np.array(shapes, dtype=np.intp))
        self._feasible = np.append(self._feasible, [member.feasible for member in members])
        self._barred = np.vstack([self._barred, barred_fronts(members, self._fronts)])
        names = dict.fromkeys(self._names)
        names |= dict.fromkeys(name for member in members for name in member.features)
        if len(names) > len(self._names):
            self._names, self._raw = tuple(names), []
        self._values += list(all_values(members, len(members[0].values)))
        self._raw += list(raw_features(self._members[len(self._raw) :], self._names))

    def _space_encoding(
        self, rows: NDArray[np.intp], history: Sequence[Observation]
    ) -> SpaceEncoding:
        """One member of each shape is asked for its distributions, the first of the bank."""
        _, first = np.unique(self._shape_of[rows], return_index=True)
        members = [self._members[row].params for row in rows[np.sort(first)]]
        every_params = [*members, *(result.params for result in history)]
        return self._drafts.encoding(every_params, totals=True)

    def _shape(self, member: ScreenedMember) -> int:
        return self._shapes.setdefault(frozenset(member.params), len(self._shapes))

    def _encode(self, space: SpaceEncoding) -> None:
        if space != self._space:
            self._space, self._encoded = space, []
        rest = self._members[len(self._encoded) :]
        self._encoded += list(self._space.encode([member.params for member in rest]))


def _stacked(rows: Sequence[Floats], chosen: NDArray[np.intp]) -> Floats:
    return np.array([rows[place] for place in chosen.tolist()])


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
            return self.choose(history, pending, bank[:-_NEWEST], rng)
        is_complete = ~np.isnan(view.arrays.values[:, view.encoding.cheap]).any(axis=1)
        if (is_open & is_complete).any():
            is_open &= is_complete
        places = np.flatnonzero(is_open)
        members = view.arrays.of(places)
        if knows_enough(history, pending, self._start):
            scores = self._acquisition(view, history, pending, rng).of(members)
        else:
            scores = _distances(members, view, history, pending)
        return dict(view.members[places[int(scores.argmax())]].params)

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
        fresh = NewMembers(self._space, keys=taken.union(view.every_key if view else ()))
        members: list[Draft] = []
        if view and view.encoding.cheap and knows_enough(history, pending, self._start):
            ranked = self._ranked(fresh, view, history, pending, rng)
            ranked_count = count - count // _RANDOM_SHARE
            members = fresh.taken_from(_replays(ranked, rng), ranked_count)
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
    ) -> ExpensiveKernels:
        values = all_values(history, objectives)
        kernels = {}
        for index in range(objectives):
            if index in encoding.cheap:
                continue
            places = np.flatnonzero(np.isfinite(values[:, index])).tolist()
            used = fitted_results([history[place] for place in places], self._start)
            column = all_values(used, objectives)[:, index]
            scaled = Scale.of(column).forward(column)
            kernels[index] = self._fit(f"objective {index}", encoding, used, scaled)
        if (outcomes(history) > 0).all():
            return ExpensiveKernels(kernels, None)
        used = fitted_results(history, self._start)
        return ExpensiveKernels(kernels, self._fit("feasibility", encoding, used, outcomes(used)))

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
    places = [place for place, key in enumerate(view.keys) if key in waiting] if waiting else []
    return np.array(places, dtype=np.intp)


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
        screened_rows = _spread(_known(view))
        self._typical = np.median(view.arrays.values[screened_rows], axis=0)
        self._columns = self._surrogate(
            screened_rows, view.arrays.encoded[screened_rows, self._width :]
        )
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
        weighted = []
        for many, weight in _DEVIATIONS:
            shifted = columns.copy()
            values = np.repeat(self._typical[None], len(members), axis=0)
            for place, (index, scale) in enumerate(encoding.objectives):
                shifted[:, place] += many * deviation
                values[:, index] = scale.inverse(shifted[:, place])
            arrays = MemberArrays(np.hstack([encoded, shifted]), values, nowhere)
            weighted.append((arrays, weight))
        return weighted

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
class ExpensiveKernels:
    """A kernel for each expensive objective, by index, and that of feasibility."""

    objectives: Mapping[int, Kernel]
    feasibility: Kernel | None


@dataclass(frozen=True)
class _Expensive:
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
        kernels: ExpensiveKernels,
        history: Sequence[Observation],
        waiting: MemberArrays,
        fronts: Sequence[tuple[int, ...]],
        seed: int,
    ) -> None:
        count = 1 + max(index for front in fronts for index in front)
        values = all_values(history, count)
        results = telling(history)
        encoded, known = encoding.encode(results), all_values(results, count)
        self._expensive: dict[int, _Expensive] = {}
        for index, kernel in kernels.objectives.items():
            self._expensive[index] = _fitted(
                encoding, kernel, encoded, known[:, index], doubts(results), waiting
            )
        self._seed = seed
        eligible = np.array([r.feasible and not r.is_partial for r in history], dtype=np.bool_)
        expected = self._expected(waiting)
        barred = barred_fronts(history, len(fronts))
        fitted_fronts = (
            _front(place, front, values[eligible & ~barred[:, place]], expected)
            for place, front in enumerate(fronts)
        )
        self._fronts = [front for front in fitted_fronts if front]
        self._feasibility: Surrogate | None = None
        if kernels.feasibility:
            self._feasibility = Surrogate(
                kernels.feasibility, encoding.names, encoding.groups, encoded, outcomes(results)
            )

    def of(self, candidates: MemberArrays) -> Floats:
        predicted = {
            index: expensive.predict(candidates.encoded)
            for index, expensive in self._expensive.items()
        }
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
        exact_objectives = [index for index in front.objectives if index not in self._expensive]
        usable = np.isfinite(candidates.values[:, exact_objectives]).all(axis=1)
        usable &= ~candidates.barred[:, front.place]
        gain = np.zeros(len(candidates))
        if not usable.any():
            return gain
        here = {index: (m[usable], d[usable]) for index, (m, d) in predicted.items()}
        values = candidates.values[usable]
        if len(front.objectives) == 2 and len(exact_objectives) == 1:
            gain[usable] = self._exact(front, exact_objectives[0], values, here)
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
        cheap: int,
        values: Floats,
        predicted: Mapping[int, tuple[Floats, Floats]],
    ) -> Floats:
        (expensive,) = (index for index in front.objectives if index != cheap)
        order = [front.objectives.index(expensive), front.objectives.index(cheap)]
        mean, deviation = predicted[expensive]
        front_points, worst = front.points[:, order], front.worst[order]
        scale = self._expensive[expensive].scale
        return exact_improvement(mean, deviation, values[:, cheap], front_points, worst, scale)

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
                objective_normals = normals[list(predicted).index(index)]
                drawn = mean[:, None] + deviation[:, None] * objective_normals
                samples.append(self._expensive[index].scale.inverse(drawn))
            else:
                samples.append(np.repeat(values[:, [index]], count, axis=1))
        more = {} if directions is None else {"directions": directions}
        improvement = Improvement(front.points, front.worst, **more)
        return improvement.of(np.stack(samples, axis=-1))

    def _expected(self, waiting: MemberArrays) -> Floats:
        values = waiting.values.copy()
        for index, expensive in self._expensive.items():
            if len(waiting):
                values[:, index] = expensive.scale.inverse(expensive.predict(waiting.encoded)[0])
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
) -> _Expensive:
    """Pending candidates are taken to turn out as predicted, so that others look elsewhere."""
    is_known = np.isfinite(values)
    scale = Scale.of(values[is_known])
    encoded, targets, doubt = encoded[is_known], scale.forward(values[is_known]), doubt[is_known]
    surrogate = Surrogate(kernel, encoding.names, encoding.groups, encoded, targets, doubt)
    if len(waiting):
        means, _ = surrogate.predict(waiting.encoded)
        encoded, targets = np.vstack([encoded, waiting.encoded]), np.append(targets, means)
        doubt = np.append(doubt, np.zeros(len(waiting)))
        surrogate = Surrogate(kernel, encoding.names, encoding.groups, encoded, targets, doubt)
    return _Expensive(scale, surrogate)


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
