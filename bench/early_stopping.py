"""Early stopping on our own table of learning curves (bench/nas_table): what it saves, what it
loses.

A search proposes members of the table in random order, and trainings take as long as their epochs.
Score (F1 after the best epoch so far) and latency on a chip are the objectives. Every seed is
another set of candidates in another order. The reference points:

- no stopping: every candidate is trained to its end
- scalarised ASHA: promotion by the mean of the normalised score and latency
- median rule: continue with a score that is not below the median of those at the same pause
- Pareto ASHA: promotion of the first front of a pause and of the best share by Pareto rank
- Edgeloop: edgeloop.search.stopping.StoppingRule, as searches use it

`no loss` is the share of seeds in which no member of the true front (of all that was proposed,
trained in full) was stopped. `beyond noise` leaves out losses of members that beat the best
completed one of at most their latency by less than two trainings of one network differ.

The rule's forecasts and its numbers were chosen with the latencies of one chip and seeds from 1000.
What is reported are other chips and other seeds; the networks and their curves are the same.
`python -m bench early-stopping [SEEDS [PART]]`, where a part is `chips`, `rules`, `pauses` or
`margins`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from bench.nas_table import NasTable, TableMember, read_table
from bench.tables import markdown
from edgeloop.pareto import hypervolume, non_dominated
from edgeloop.search.config import Rungs
from edgeloop.search.stopping import RungMember, StoppingRule

BUDGET = 100
SEEDS = 20
FIRST_SEED = 200  # those before were looked at while the rule was chosen
WORKERS = 8
CHIP = "htp:rb3-gen-2"
CHIPS = (CHIP, "htp:sa8295p", "htp:snapdragon-8-elite", "htp:x-elite")  # none is htp:qcs8550
NOISE = 0.0059  # standard deviation of F1 between two trainings of a network (docs/reference)
MARGINS = (2.0, 3.0)

Policy = Callable[[Sequence[RungMember], bool], list[str]]
Maker = Callable[[Rungs], Policy]
Row = tuple[str, ...]


@dataclass
class Simulated:
    """What a search with a policy did."""

    epochs: int = 0
    complete: list[int] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Problem:
    """Candidates in the order of proposal: exact latency, and the score at each epoch."""

    latency: np.ndarray
    scores: np.ndarray  # (candidates, epochs), higher is better
    params: tuple[Mapping[str, Any], ...] = ()
    features: tuple[Mapping[str, float], ...] = ()

    @property
    def epochs(self) -> int:
        return int(self.scores.shape[1])

    @property
    def costs(self) -> np.ndarray:
        return np.column_stack([1 - self.scores[:, -1], self.latency])

    def member(
        self, place: int, reached: Mapping[int, tuple[float, ...]], waits: bool
    ) -> RungMember:
        return RungMember(
            str(place),
            (None, float(self.latency[place])),
            reached,
            waits,
            params=self.params[place],
            features=self.features[place],
        )


def simulate(problem: Problem, policy: Policy | None, rungs: Rungs, workers: int) -> Simulated:
    """Candidates and promotions as in the loop of a search: promotions first."""
    done = Simulated()
    reached: dict[int, dict[int, tuple[float, ...]]] = {}
    waiting: set[int] = set()
    running: list[tuple[float, int, int]] = []
    now, begun = 0.0, 0
    count = len(problem.latency)

    def start(candidate: int, origin: int) -> None:
        until = rungs.after(origin) if policy else problem.epochs
        done.epochs += until - origin
        heapq.heappush(running, (now + until - origin, candidate, until))

    while True:
        while len(running) < workers:
            chosen = None
            if policy and waiting:
                members = [problem.member(c, scores, c in waiting) for c, scores in reached.items()]
                promoted = policy(members, begun >= count)
                chosen = int(promoted[0]) if promoted else None
            if chosen is not None:
                waiting.discard(chosen)
                start(chosen, max(reached[chosen]))
            elif begun < count:
                begun += 1
                start(begun - 1, 0)
            else:
                break
        if not running:
            break
        now, candidate, until = heapq.heappop(running)
        score = problem.scores[candidate, until - 1]
        reached.setdefault(candidate, {})[until] = (1 - score,)
        if until >= problem.epochs:
            done.complete.append(candidate)
        else:
            waiting.add(candidate)
    done.stopped = sorted(waiting)
    return done


def edgeloops(rungs: Rungs) -> Policy:
    return StoppingRule(rungs).promotable


def pareto_asha(rungs: Rungs) -> Policy:
    def promotable(members: Sequence[RungMember], is_last: bool) -> list[str]:
        for pause in reversed(rungs.pauses):
            arrived = [m for m in members if pause in m.scores]
            points = np.array([(m.scores[pause][0], m.values[1]) for m in arrived])
            if not len(points):
                continue
            ranks = pareto_ranks(points)
            best = set(np.argsort(ranks, kind="stable")[: len(arrived) // rungs.factor])
            for place in np.argsort(ranks, kind="stable"):
                is_good = ranks[place] == 0 or place in best
                if is_good and arrived[place].waits and arrived[place].reached == pause:
                    return [arrived[place].key]
        return []

    return promotable


def pareto_ranks(points: np.ndarray) -> np.ndarray:
    """0 for the front, 1 for the front without it, and so on. NaN ranks last."""
    ranks = np.full(len(points), len(points), dtype=np.int64)
    left = np.flatnonzero(~np.isnan(points).any(axis=1))
    rank = 0
    while len(left):
        is_front = non_dominated(points[left])
        ranks[left[is_front]] = rank
        left, rank = left[~is_front], rank + 1
    return ranks


def scalarised_asha(rungs: Rungs) -> Policy:
    def promotable(members: Sequence[RungMember], is_last: bool) -> list[str]:
        for pause in reversed(rungs.pauses):
            arrived = [m for m in members if pause in m.scores]
            if len(arrived) < rungs.factor:
                continue
            points = np.array([(m.scores[pause][0], m.values[1]) for m in arrived], dtype=float)
            low, high = points.min(axis=0), points.max(axis=0)
            merit = ((points - low) / np.where(high > low, high - low, 1.0)).mean(axis=1)
            for place in np.argsort(merit, kind="stable")[: len(arrived) // rungs.factor]:
                if arrived[place].waits and arrived[place].reached == pause:
                    return [arrived[place].key]
        return []

    return promotable


def median_rule(rungs: Rungs) -> Policy:
    judged: dict[tuple[str, int], bool] = {}

    def promotable(members: Sequence[RungMember], is_last: bool) -> list[str]:
        for pause in reversed(rungs.pauses):
            errors = [m.scores[pause][0] for m in members if pause in m.scores]
            for member in members:
                if member.waits and member.reached == pause:
                    key = (member.key, pause)
                    error = member.scores[pause][0]
                    if judged.setdefault(key, error <= float(np.median(errors))):
                        return [member.key]
        return []

    return promotable


POLICIES: dict[str, Maker | None] = {
    "no stopping": None,
    "scalarised ASHA": scalarised_asha,
    "median rule": median_rule,
    "Pareto ASHA": pareto_asha,
    "Edgeloop": edgeloops,
}


@dataclass(frozen=True)
class Figures:
    share: float  # of all epochs
    volume: float  # relative to that of full trainings
    lost: int  # members of the true front that were stopped
    clearly_lost: int  # by more than the noise of a training
    trained: int


def figures(problem: Problem, make: Maker | None, rungs: Rungs, workers: int) -> Figures:
    done = simulate(problem, make(rungs) if make else None, rungs, workers)
    costs, corner = problem.costs, problem.costs.max(axis=0) * 1.01
    lost = set(np.flatnonzero(non_dominated(costs))) & set(done.stopped)
    complete = costs[done.complete]
    volume = hypervolume(complete, corner) / hypervolume(costs, corner)
    clearly = 0
    for place in lost:
        rivals = complete[complete[:, 1] <= costs[place, 1], 0]
        clearly += not len(rivals) or rivals.min() - costs[place, 0] > NOISE
    share = done.epochs / (len(costs) * problem.epochs)
    return Figures(share, volume, len(lost), clearly, len(done.complete))


@cache
def _table() -> NasTable:
    return read_table()


def from_table(chip: str, seed: int, budget: int = BUDGET, score: str = "f1") -> Problem:
    table = _table()
    order = np.random.default_rng(seed).permutation(len(table.members))[:budget]
    chosen: list[TableMember] = [table.members[place] for place in order]
    scores = [[m.score(score, epoch) for epoch in range(1, table.epochs + 1)] for m in chosen]
    latency = np.array([m.latency_ms[chip] for m in chosen])
    features = tuple({"params": float(m.weights), "macs": float(m.macs)} for m in chosen)
    return Problem(latency, np.array(scores), tuple(m.params for m in chosen), features)


def summary(problems: Sequence[Problem], make: Maker | None, rungs: Rungs, workers: int) -> Row:
    found = [figures(problem, make, rungs, workers) for problem in problems]
    share = np.array([one.share for one in found])
    volume = np.array([one.volume for one in found])
    lost = np.array([one.lost for one in found])
    return (
        f"{share.mean():.1%}",
        f"{share.max():.1%}",
        f"{volume.mean():.4f}",
        f"{volume.min():.4f}",
        f"{(lost == 0).mean():.0%}",
        f"{np.mean([one.clearly_lost == 0 for one in found]):.0%}",
        f"{lost.mean():.2f}",
        f"{np.mean([one.trained for one in found]):.0f}",
    )


HEADINGS = (
    *("chip", "pauses", "rule", "epochs", "most", "hypervolume", "least", "no loss"),
    *("beyond noise", "front members lost", "trained fully"),
)


def rows_of(part: str, seeds: int) -> list[Row]:
    epochs = _table().epochs
    usual, coarse = Rungs(epochs), Rungs(epochs, longest=epochs)

    def row(chip: str, rungs: Rungs, name: str, make: Maker | None, workers: int = WORKERS) -> Row:
        problems = [from_table(chip, seed) for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
        pauses = ", ".join(map(str, rungs.pauses))
        return chip, pauses, name, *summary(problems, make, rungs, workers)

    if part == "chips":
        return [row(chip, usual, "Edgeloop", edgeloops) for chip in CHIPS]
    if part == "rules":
        others = {name: make for name, make in POLICIES.items() if make is not edgeloops}
        return [row(CHIP, rungs, *one) for rungs in (coarse, usual) for one in others.items()]
    if part == "pauses":
        doubled = Rungs(epochs, 3, 2, longest=epochs)
        rows = [row(CHIP, rungs, "Edgeloop", edgeloops) for rungs in (coarse, doubled)]
        return [*rows, row(CHIP, usual, "Edgeloop, one worker", edgeloops, workers=1)]

    def with_margin(sure: float) -> Maker:
        return lambda rungs: StoppingRule(rungs, sure=sure).promotable

    return [row(CHIP, usual, f"Edgeloop, margin {m:g}", with_margin(m)) for m in MARGINS]


def run(*options: str) -> str:
    seeds, part = (*options, *(str(SEEDS), "")[len(options) :])
    table = _table()
    parts = (part,) if part else ("chips", "rules", "pauses", "margins")
    rows = [row for one in parts for row in rows_of(one, int(seeds))]
    kind = "SYNTHETIC curves" if table.is_synthetic else "measured curves"
    about = (
        f"{len(table.members)} networks with {kind} of {table.epochs} epochs; {BUDGET} candidates, "
        f"{seeds} seeds, {WORKERS} workers. Epochs and hypervolume are relative to no stopping; "
        "`no loss` is the share of seeds in which no member of the true front of the proposed "
        f"candidates was stopped, `beyond noise` that in which none was that is better by {NOISE}."
    )
    return f"{about}\n\n{markdown(HEADINGS, rows)}"
