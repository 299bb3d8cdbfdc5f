"""The tables of the samplers' benchmark, from the outcomes of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from bench.samplers.problems import problem
from bench.samplers.runs import AT, Key, Outcome
from bench.samplers.samplers import KNOW_LATENCY
from bench.tables import markdown
from edgeloop.pareto import hypervolume

GOALS = (0.960, 0.982, 0.992)
OURS = "ours"

Shares = dict[Key, list[float]]


def report(outcomes: Mapping[Key, Outcome]) -> str:
    """Held-out problems first; by device; then each development problem."""
    shares = shares_of(outcomes.values())
    held_out = sorted({name for _, name, _ in shares if "@" in name and name[:6] != "table@"})
    others = sorted({name for _, name, _ in shares} - set(held_out))
    parts = []
    if held_out:
        devices = sorted({name.partition("@")[2] for name in held_out})
        datasets = sorted({name.partition("@")[0] for name in held_out})
        parts.append(
            f"Held out: {', '.join(devices)}; datasets {', '.join(datasets)} "
            f"({len(held_out)} problems). Hypervolume ÷ true after so many trainings, mean ± "
            f"standard error; goals {'/'.join(f'{goal:.3f}' for goal in GOALS)}."
        )
        parts.append(overall(shares, outcomes, held_out))
        parts.append("Ours less each rival, paired by problem and seed:")
        parts.append(leads(shares, held_out))
        parts.append("By device, ours and (lead over the best rival there):")
        parts.append(by_group(shares, held_out, lambda name: name.partition("@")[2]))
        parts.append("By dataset:")
        parts.append(by_group(shares, held_out, lambda name: name.partition("@")[0]))
    if others:
        parts.append("Development problems, ours and (lead over the best rival there):")
        parts.append(by_group(shares, others, str))
        for name in others:
            parts.append(f"{name}:")
            parts.append(overall(shares, outcomes, [name]))
    return "\n\n".join(parts)


def shares_of(outcomes: Iterable[Outcome]) -> Shares:
    """Hypervolume as a share of the true one, or of that of all runs' fronts together."""
    kept = list(outcomes)
    best: dict[str, float] = {}
    for name in {outcome.problem for outcome in kept}:
        task = problem(name)
        points = [point for one in kept if one.problem == name for point in one.front]
        best[name] = task.best or hypervolume(points, task.corner)
    return {one.key: [volume / best[one.problem] for volume in one.volumes] for one in kept}


def overall(shares: Shares, outcomes: Mapping[Key, Outcome], problems: Sequence[str]) -> str:
    rows = []
    for sampler in _samplers(shares, problems):
        keys = [key for key in shares if key[0] == sampler and key[1] in problems]
        runs = [outcomes[key] for key in keys]
        trained = [AT[len(one.volumes) - 1] for one in runs if one.volumes]
        proposal = sum(one.seconds for one in runs) / max(1, sum(trained))
        cells = [_cell(*_mean(shares, keys, place)) for place in range(len(AT))]
        about = "yes" if sampler in KNOW_LATENCY else "no"
        seeds = len({seed for _, _, seed in keys})
        repeats = sum(one.repeats for one in runs) / len(runs)
        rows.append((sampler, about, seeds, *cells, f"{repeats:.1f}", f"{proposal:.3f}"))
    headings = ("sampler", "knows latency", "seeds", *map(str, AT), "repeats", "s per proposal")
    return markdown(headings, rows)


def leads(shares: Shares, problems: Sequence[str]) -> str:
    rows = []
    for rival in _samplers(shares, problems):
        if rival != OURS:
            found = [lead(shares, problems, rival, place) for place in range(len(AT))]
            rows.append((rival, *(_cell(*one, signed=True) for one in found)))
    return markdown(("ours less", *map(str, AT)), rows)


def lead(
    shares: Shares, problems: Sequence[str], rival: str, place: int
) -> tuple[float | None, float | None]:
    """The mean of paired differences, with its standard error."""
    found: dict[str, list[float]] = {}
    for (sampler, name, seed), values in shares.items():
        mine = shares.get((OURS, name, seed))
        if sampler == rival and name in problems and mine and len(values) > place < len(mine):
            found.setdefault(name, []).append(mine[place] - values[place])
    return _stratified(found)


def by_group(shares: Shares, problems: Sequence[str], group_of: Callable[[str], str]) -> str:
    rows = []
    for group in sorted({group_of(name) for name in problems}):
        members = [name for name in problems if group_of(name) == group]
        keys = [key for key in shares if key[0] == OURS and key[1] in members]
        cells = []
        for place in range(len(AT)):
            mean, _ = _mean(shares, keys, place)
            rivals = [one for one in _samplers(shares, members) if one != OURS]
            scored = {one: lead(shares, members, one, place) for one in rivals}
            known = {one: (low, error) for one, (low, error) in scored.items() if low is not None}
            if mean is None or not known:
                cells.append("")
                continue
            closest = min(known, key=lambda one: known[one][0])
            cells.append(f"{mean:.4f} ({_cell(*known[closest], signed=True)}, {closest})")
        rows.append((group, *cells))
    return markdown(("", *map(str, AT)), rows)


def _samplers(shares: Shares, problems: Sequence[str]) -> list[str]:
    from bench.samplers.samplers import SAMPLERS

    found = {sampler for sampler, name, _ in shares if name in problems}
    return [sampler for sampler in SAMPLERS if sampler in found]


def _mean(shares: Shares, keys: Iterable[Key], place: int) -> tuple[float | None, float | None]:
    found: dict[str, list[float]] = {}
    for key in keys:
        if len(shares[key]) > place:
            found.setdefault(key[1], []).append(shares[key][place])
    return _stratified(found)


def _stratified(found: Mapping[str, Sequence[float]]) -> tuple[float | None, float | None]:
    """The mean over problems of the means over seeds, and its standard error for these problems:
    seeds are a sample, problems are not."""
    if not found:
        return None, None
    groups = [np.array(values) for values in found.values()]
    mean = float(np.mean([group.mean() for group in groups]))
    freedom = sum(map(len, groups)) - len(groups)
    if not freedom:
        return mean, None
    variance = sum(((group - group.mean()) ** 2).sum() for group in groups) / freedom
    return mean, float(np.sqrt(variance * sum(1 / len(group) for group in groups)) / len(groups))


def _cell(mean: float | None, error: float | None, *, signed: bool = False) -> str:
    if mean is None:
        return "not run"
    text = f"{mean:+.4f}" if signed else f"{mean:.4f}"
    return text if error is None else f"{text} ± {error:.4f}"
