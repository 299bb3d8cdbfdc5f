"""What a search leaves in its folder, for people and for other programs.

`search_state_<n>.csv`  every candidate up to iteration n, one row each
`hypervolume.csv`       how much the front had won after so many candidates
`front.csv`             the front
`pareto/<id>.json`      its architectures; `edgeloop train` builds them again
`pareto/<id>.onnx`      their nets, trained where the search trained them
"""

from __future__ import annotations

import csv
import io
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from edgeloop.search.config import SearchConfig
from edgeloop.search.sampler.hypervolume import hypervolume, non_dominated
from edgeloop.search.study import Candidate

PARETO = "pareto"


def front_of(config: SearchConfig, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Complete candidates that no other beats, by the first objective."""
    complete = [item for item in candidates if item.state == "complete"]
    if not complete:
        return []
    kept = non_dominated([_minimised(config, item) for item in complete])
    front = [item for item, stays in zip(complete, kept, strict=True) if stays]
    return sorted(front, key=lambda item: _minimised(config, item))


def volumes(config: SearchConfig, candidates: Sequence[Candidate]) -> list[float]:
    """The hypervolume after each candidate, between 0 and 1: of the box from the best to the worst
    value that this search has seen of each objective."""
    complete = [item for item in candidates if item.state == "complete"]
    if not complete:
        return [0.0 for _ in candidates]
    points = np.array([_minimised(config, item) for item in complete])
    best, worst = points.min(axis=0), points.max(axis=0)
    width = np.where(worst > best, worst - best, 1.0)
    corner = np.full(points.shape[1], 1.0 + 1e-9)
    found: list[float] = []
    front, won = np.empty((0, points.shape[1])), 0.0
    for item in candidates:
        if item.state == "complete":
            point = (np.array(_minimised(config, item)) - best) / width
            if not (front <= point).all(axis=1).any():  # else nothing is won: most win nothing
                front = np.vstack([front[~(point <= front).all(axis=1)], point])
                won = min(1.0, hypervolume(front, corner))
        found.append(won)
    return found


def write_state(folder: Path, config: SearchConfig, candidates: Sequence[Candidate]) -> None:
    """The tables, anew from the record: what was written before a kill is not trusted."""
    folder.mkdir(parents=True, exist_ok=True)
    ended = [item for item in candidates if item.state != "running"]
    if not ended:
        return
    for iteration in range(max(item.place for item in ended) // config.iteration + 1):
        file = folder / f"search_state_{iteration}.csv"
        until = [item for item in ended if item.place // config.iteration <= iteration]
        write_whole(file, _state_table(config, until).encode())
    curve = [("candidates", "hypervolume")]
    curve += [(str(n), f"{v:.6f}") for n, v in enumerate(volumes(config, ended), start=1)]
    write_whole(folder / "hypervolume.csv", _csv(curve).encode())
    write_whole(folder / "front.csv", _state_table(config, front_of(config, ended)).encode())


def write_front(
    folder: Path,
    front: Sequence[Candidate],
    net_of: Callable[[Candidate, Path], None],
) -> list[Path]:
    """The front's architectures and nets; those of a front that is no longer one go."""
    target = folder / PARETO
    target.mkdir(parents=True, exist_ok=True)
    names = {item.arch.id for item in front}
    for old in target.iterdir():
        if old.name.startswith("id_") and old.name.partition(".")[0] not in names:
            old.unlink()
    for item in front:
        item.arch.save(target / f"{item.arch.id}.json")
        net_of(item, target / f"{item.arch.id}.onnx")
    return [target / f"{item.arch.id}.json" for item in front]


def copy_whole(source: Path, target: Path) -> None:
    """The file appears whole or not at all."""
    partial = target.with_name(f".{secrets.token_hex(6)}.part")
    try:
        shutil.copyfile(source, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(target: Path, content: bytes) -> None:
    partial = target.with_name(f".{secrets.token_hex(6)}.part")
    try:
        partial.write_bytes(content)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _state_table(config: SearchConfig, candidates: Sequence[Candidate]) -> str:
    names = list(dict.fromkeys([*config.wanted, *(n for item in candidates for n in item.values)]))
    front = {item.number for item in front_of(config, candidates)}
    rows: list[Sequence[object]] = [
        ("number", "iteration", "arch_id", "state", *names, "is_pareto", "reason")
    ]
    for item in candidates:
        values = [item.values.get(name, "") for name in names]
        iteration = item.place // config.iteration
        where = int(item.number in front)
        rows.append((item.number, iteration, item.arch.id, item.state, *values, where, item.reason))
    return _csv(rows)


def _csv(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _minimised(config: SearchConfig, item: Candidate) -> tuple[float, ...]:
    return tuple(o.minimised(item.values[o.name]) for o in config.objectives)
