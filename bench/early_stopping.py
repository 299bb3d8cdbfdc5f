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

`lost` counts seeds in which a member of the true front (of all that was proposed, trained in full)
was stopped. The rule was designed on synthetic curves, before the table was measured; nothing was
tuned on it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from bench.nas_table import NasTable, TableMember, read_table
from bench.tables import markdown
from edgeloop.pareto import hypervolume, non_dominated
from edgeloop.search.stopping import RungMember, Rungs, StoppingRule
from edgeloop.search.stopping.rule import pareto_ranks

BUDGET = 100
SEEDS = 20
WORKERS = 8
CHIPS = ("htp:qcs8550", "htp:x-elite")  # replaced by those of the table if it has others
PAUSES = {1: 3, 3: 2}  # the first pause, and the factor

Policy = Callable[[Sequence[RungMember], bool], list[str]]


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

    @property
    def epochs(self) -> int:
        return int(self.scores.shape[1])

    @property
    def costs(self) -> np.ndarray:
        return np.column_stack([1 - self.scores[:, -1], self.latency])


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
                members = [
                    RungMember(str(c), (None, problem.latency[c]), scores, c in waiting)
                    for c, scores in reached.items()
                ]
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


POLICIES: dict[str, Callable[[Rungs], Policy] | None] = {
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
    trained: int


def figures(problem: Problem, name: str, rungs: Rungs, workers: int) -> Figures:
    make = POLICIES[name]
    done = simulate(problem, make(rungs) if make else None, rungs, workers)
    costs, corner = problem.costs, problem.costs.max(axis=0) * 1.01
    front = set(np.flatnonzero(non_dominated(costs)))
    volume = hypervolume(costs[done.complete], corner) / hypervolume(costs, corner)
    whole = len(costs) * problem.epochs
    return Figures(done.epochs / whole, volume, len(front & set(done.stopped)), len(done.complete))


@cache
def _table() -> NasTable:
    return read_table()


def from_table(chip: str, seed: int, budget: int = BUDGET, score: str = "f1") -> Problem:
    table = _table()
    order = np.random.default_rng(seed).permutation(len(table.members))[:budget]
    chosen: list[TableMember] = [table.members[place] for place in order]
    scores = [[m.score(score, epoch) for epoch in range(1, table.epochs + 1)] for m in chosen]
    return Problem(np.array([m.latency_ms[chip] for m in chosen]), np.array(scores))


def summary(problems: Sequence[Problem], name: str, rungs: Rungs, workers: int) -> tuple[str, ...]:
    found = [figures(problem, name, rungs, workers) for problem in problems]
    share = np.array([one.share for one in found])
    volume = np.array([one.volume for one in found])
    lost = np.array([one.lost for one in found])
    return (
        f"{share.mean():.1%}",
        f"{share.max():.1%}",
        f"{volume.mean():.4f}",
        f"{volume.min():.4f}",
        f"{(lost == 0).mean():.0%}",
        f"{lost.mean():.2f}",
        f"{np.mean([one.trained for one in found]):.0f}",
    )


HEADINGS = (
    *("chip", "pauses", "rule", "epochs", "most", "hypervolume", "least", "no loss"),
    *("front members lost", "trained fully"),
)


def run() -> str:
    table = _table()
    chips = [chip for chip in CHIPS if chip in table.chips] or list(table.chips[:2])
    rows = []
    for chip in chips:
        problems = [from_table(chip, seed) for seed in range(SEEDS)]
        for first, factor in PAUSES.items():
            rungs = Rungs(table.epochs, first, factor)
            pauses = ", ".join(map(str, rungs.pauses))
            for name in POLICIES:
                rows.append((chip, pauses, name, *summary(problems, name, rungs, WORKERS)))
    kind = "SYNTHETIC curves" if table.is_synthetic else "measured curves"
    about = (
        f"{len(table.members)} networks with {kind} of {table.epochs} epochs; {BUDGET} candidates, "
        f"{SEEDS} seeds, {WORKERS} workers. Epochs and hypervolume are relative to no stopping; "
        "`no loss` is the share of seeds in which no member of the true front of the proposed "
        "candidates was stopped."
    )
    return f"{about}\n\n{markdown(HEADINGS, rows)}"
