"""Several chips in one search, and searches that start from earlier ones, on our own table
(bench/nas_table): real scores after 27 epochs, and the compiler's latencies.

Six chips: a search for all of them trains so many networks; six searches for one chip each train
as many each. For every chip, the hypervolume of (1 − F1, latency) that it has reached, as a share
of that of the true front; both scaled to the range of all members. The six order the networks
differently; the table's other four chips order them as one of these does.

Warm starts: how many trainings a search for one chip needs for 99 % of the hypervolume, by itself,
with the scores of a search for another chip (`--from`, same training), and with a model of the
scores that such a search saw after 9 epochs (`--from`, another training).

Every seed has a space of its own, a random half of the table. All of it is in the bank from the
start, as after a few dozen batches of a pool.
`python -m bench many-chips SEEDS [FIRST]`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from bench.nas_table import TableMember, read_table
from bench.tables import markdown
from edgeloop.pareto import Floats, hypervolume
from edgeloop.search.base import Observation, ScreenedMember
from edgeloop.search.sampler.members import ProposalTrial, ask
from edgeloop.search.sampler.proposer import Proposer
from edgeloop.search.study import ScoreModel

CHIPS = (
    *("htp:qcs8550", "htp:x-elite", "htp:snapdragon-7-gen-4"),
    *("htp:snapdragon-8-elite", "htp:sa8295p", "htp:rb3-gen-2"),
)
BUDGETS = (12, 24)
WARM, SHARE, EARLY = 24, 0.99, 9  # trainings of the earlier search; share reached; its epochs

Hints = Callable[[Mapping[str, Any]], Mapping[str, float]]


def suggested(member: TableMember) -> ProposalTrial:
    """A member as the space of the table suggests it, where two of its values may be one choice."""
    return _suggested()[member.key]


@cache
def _suggested() -> dict[tuple[Any, ...], ProposalTrial]:
    table = read_table()

    def trial(member: TableMember) -> ProposalTrial:
        channels = "x".join(str(member.params[name]) for name in ("base_channels", "factor"))
        return ask(table.space, lambda name, _: member.params.get(name, channels))

    return {member.key: trial(member) for member in table.members}


@cache
def half(seed: int) -> tuple[TableMember, ...]:
    members = read_table().members
    chosen = np.random.default_rng(seed).permutation(len(members))[: len(members) // 2]
    return tuple(members[place] for place in sorted(chosen))


class Searched:
    """A search over half of the table: which members it trained, in order."""

    def __init__(self, chips: Sequence[str], seed: int, hints: Hints = lambda _: {}) -> None:
        self._chips = chips
        fronts = [(0, 1 + place) for place in range(len(chips))]
        self._proposer = Proposer(read_table().space, seed, fronts=fronts)
        self._hints = hints
        self.bank = [self._screened(member) for member in half(seed)]
        self.history: list[Observation] = []
        self.trained: list[TableMember] = []

    def know(self, members: Sequence[TableMember]) -> None:
        """What an earlier search found under the same conditions."""
        self.history += [self._observed(member) for member in members]

    def train(self, count: int) -> list[TableMember]:
        for _ in range(count):
            params = self._proposer.choose(len(self.trained), self.history, (), self.bank)
            assert params is not None
            self.trained.append(read_table().find(params))
            self.history.append(self._observed(self.trained[-1]))
        return self.trained

    def _cheap(self, member: TableMember) -> tuple[float, ...]:
        return tuple(member.latency_ms[chip] for chip in self._chips)

    def _features(self, member: TableMember) -> dict[str, float]:
        counted = {"params": float(member.weights), "macs": float(member.macs)}
        return {**counted, **self._hints(suggested(member).params)}

    def _screened(self, member: TableMember) -> ScreenedMember:
        values = (None, *self._cheap(member))
        return ScreenedMember(suggested(member).params, values, True, self._features(member))

    def _observed(self, member: TableMember) -> Observation:
        values = (1 - member.f1, *self._cheap(member))
        return Observation(suggested(member).params, values, True, self._features(member))


@cache
def scaled(chip: str, seed: int) -> tuple[dict[Any, int], Floats, float]:
    """All members as points between 0 and 1, with the hypervolume of the true front."""
    points = np.array([(1 - member.f1, member.latency_ms[chip]) for member in half(seed)])
    points = (points - points.min(axis=0)) / np.ptp(points, axis=0)
    places = {member.key: place for place, member in enumerate(half(seed))}
    return places, points, hypervolume(points, [1.0, 1.0])


def share(members: Sequence[TableMember], chip: str, seed: int) -> float:
    places, points, whole = scaled(chip, seed)
    return hypervolume(points[[places[member.key] for member in members]], [1.0, 1.0]) / whole


def six_chips(seeds: Sequence[int]) -> str:
    most = max(BUDGETS)
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for seed in seeds:
        together = Searched(CHIPS, seed).train(most)
        for chip in CHIPS:
            alone = Searched([chip], seed).train(most)
            for budget in BUDGETS:
                pair = (share(together[:budget], chip, seed), share(alone[:budget], chip, seed))
                found.setdefault((chip, budget), []).append(pair)
    rows = []
    for chip in CHIPS:
        cells = [chip]
        for budget in BUDGETS:
            pairs = np.array(found[chip, budget])
            together_share, alone_share = pairs.mean(axis=0)
            losses = 100 * (pairs[:, 0] / pairs[:, 1] - 1)
            error = f" ± {losses.std(ddof=1) / len(losses) ** 0.5:.2f}" if len(losses) > 1 else ""
            difference = f"{losses.mean():+.2f}{error} %"
            cells += [f"{together_share:.4f}", f"{alone_share:.4f}", difference]
        rows.append(cells)
    heads = ["chip"]
    for budget in BUDGETS:
        heads += [f"one search, {budget}", f"own search, {budget} each", "difference"]
    return markdown(heads, rows)


def needed(search: Searched, chip: str, seed: int, before: Sequence[TableMember] = ()) -> int:
    """Trainings until the share is reached; those of the earlier search count as members."""
    for count in range(100):
        found = [*before, *search.trained]
        if found and share(found, chip, seed) >= SHARE:
            return count
        search.train(1)
    return 100


def warm_starts(seeds: Sequence[int]) -> str:
    rows: list[tuple[int, int, int]] = []
    target = "htp:rb3-gen-2"
    for seed in seeds:
        earlier = list(Searched(["htp:qcs8550"], seed).train(WARM))
        warm = Searched([target], seed)
        warm.know(earlier)
        model = early_model(earlier)
        other = Searched([target], seed, lambda params, model=model: model(params))
        cold = needed(Searched([target], seed), target, seed)
        rows.append((cold, needed(warm, target, seed, earlier), needed(other, target, seed)))
    means = [f"{value:.1f}" for value in np.mean(rows, axis=0)]
    heads = [
        *("nothing", f"{WARM} results for another chip"),
        f"{WARM} scores after {EARLY} of {read_table().epochs} epochs",
    ]
    return markdown(heads, [means])


def early_model(members: Sequence[TableMember]) -> Hints:
    """As `edgeloop.search.study.EarlierScores` makes a feature of scores of other trainings."""
    trials = [suggested(member) for member in members]
    model = ScoreModel(trials, [float(member.f1_curve[EARLY - 1]) for member in members])
    known: dict[str, float] = {}

    def hints(params: Mapping[str, Any]) -> Mapping[str, float]:
        key = repr(sorted(params.items()))
        if key not in known:
            known[key] = model.predict(params)
        return {"earlier val_f1": known[key]}

    return hints


def run(*options: str) -> str:
    count, first = (int(word) for word in (*options, "5", "0")[:2]) if options else (5, 0)
    seeds = range(first, first + count)
    began = time.monotonic()
    table = read_table()
    chips = six_chips(seeds)
    warm = warm_starts(seeds)
    seconds = time.monotonic() - began
    return "\n".join(
        [
            f"Six chips, half of {len(table.members)} networks, {count} seeds from {first}: share "
            "of the true hypervolume, and the relative difference (mean ± standard error).\n",
            chips,
            f"\nTrainings of a search for htp:rb3-gen-2 until {100 * SHARE:.0f} % of the true "
            "hypervolume (mean), starting from:\n",
            warm,
            f"\n{seconds:.0f} s.",
        ]
    )
