"""Who gets how many runners, and whose turn it is on a board. Pure functions: no store, no clock.

Runners are shared by weighted max-min fairness. Nobody gets more than would help, or than its quota
allows; what one experiment does not need goes to the others in proportion to their weights. Of
equal claims, the one that has the runner keeps it, so nothing moves while nothing changes.

A board serves one experiment at a time. Experiments with work for it take turns, and over time each
gets board time in proportion to its weight.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from edgeloop.fleet.spec import Bounds

SLICE_S = 300.0  # of a board, before others may have it


@dataclass(frozen=True)
class Claim:
    """What an experiment asks for: `wanted` runners would help it, and it has `have`."""

    experiment: str
    wanted: int
    weight: float = 1.0
    quota: int | None = None
    have: int = 0

    @property
    def limit(self) -> int:
        """What it may have, whether that helps or not."""
        return 10**9 if self.quota is None else self.quota


def fair_shares(claims: Sequence[Claim], bounds: Bounds) -> dict[str, int]:
    """How many runners each experiment should have.

    As many runners as help are handed out, up to `bounds.most`. If fewer than `bounds.least` help,
    the others are kept as well, by those that have them.
    """
    shares = dict.fromkeys((claim.experiment for claim in claims), 0)
    helpful = {claim.experiment: min(claim.wanted, claim.limit) for claim in claims}
    _hand_out(claims, shares, helpful, bounds.most, keep_first=False)
    limits = {claim.experiment: claim.limit for claim in claims}
    _hand_out(claims, shares, limits, bounds.least, keep_first=True)
    return shares


def _hand_out(
    claims: Sequence[Claim],
    shares: dict[str, int],
    limits: Mapping[str, int],
    total: int,
    keep_first: bool,
) -> None:
    """One runner after the other, each to the claim that has the least of its weight (the method of
    D'Hondt, which never gives a claim less than its weight's share, rounded down)."""

    def rank(claim: Claim) -> tuple[object, ...]:
        next_share = shares[claim.experiment] + 1
        is_new = next_share > claim.have
        level = round(next_share / claim.weight, 9)
        order = (is_new, level) if keep_first else (level, is_new)
        return (*order, claim.experiment)

    left = total - sum(shares.values())
    heap = [(rank(claim), number) for number, claim in enumerate(claims)]
    heapq.heapify(heap)
    while left > 0 and heap:
        _, number = heapq.heappop(heap)
        claim = claims[number]
        if shares[claim.experiment] >= limits[claim.experiment]:
            continue
        shares[claim.experiment] += 1
        left -= 1
        heapq.heappush(heap, (rank(claim), number))


@dataclass
class BoardTurns:
    """Whose turn it is on each board. `served_s` is the board time of each experiment so far, over
    its weight; one that comes back after a pause is not owed the time of its absence."""

    slice_s: float = SLICE_S
    served_s: dict[str, float] = field(default_factory=dict)
    _active: frozenset[str] = frozenset()

    def account(
        self, holders: Iterable[str], weights: Mapping[str, float], passed_s: float
    ) -> None:
        """Note who had a board for the time that has passed, once per board."""
        for experiment in holders:
            weight = weights.get(experiment, 1.0)
            before = self.served_s.get(experiment, 0.0)
            self.served_s[experiment] = before + passed_s / weight

    def arrive(self, waiting: Iterable[str]) -> None:
        """Who has work for boards now."""
        now_active = frozenset(waiting)
        known = [self.served_s.get(name, 0.0) for name in self._active & now_active]
        for name in now_active - self._active:
            self.served_s[name] = max(self.served_s.get(name, 0.0), min(known, default=0.0))
        self._active = now_active

    def choose(
        self,
        current: str,
        held_s: float,
        weights: Mapping[str, float],
        others: Sequence[str],
    ) -> str:
        """The experiment that should have a board, which `current` has had for `held_s` seconds.

        `others` are those that have the other boards. Without work for it, a board stays where it
        is."""
        waiting = [name for name in weights if name in self._active]
        if not waiting:
            return current if current in weights else next(iter(weights), "")
        if current in waiting and held_s < self.slice_s:
            return current

        def level(name: str) -> tuple[float, bool, str]:
            soon_s = self.slice_s * others.count(name) / weights[name]
            served_s = round(self.served_s.get(name, 0.0) + soon_s, 6)
            return served_s, name != current, name

        return min(waiting, key=level)
