"""What a search leaves behind, for people and for other programs: files in its folder, and models
in the status table.

While it runs, a line is appended for every candidate that ended:

`candidates.csv`        all candidates, in the order in which they ended
`hypervolume.csv`       the hypervolume of the front after so many candidates

When it ends:

`search_state_<n>.csv`  all candidates up to iteration n, in the order of their proposal
`hypervolume.csv`       once more, now relative to the final range of each objective
`front.csv`             the Pareto front
`pareto/<id>.json`      its architectures; `edgeloop train` builds them again
`pareto/<id>.onnx`      their models, trained if the search trained them
"""

from __future__ import annotations

import csv
import io
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from edgeloop._util.files import replacing, write_atomic
from edgeloop.architectures import Architecture
from edgeloop.errors import ModelBusy, NameTaken
from edgeloop.models import Candidates
from edgeloop.pareto import Floats, hypervolume, non_dominated
from edgeloop.search.config import SearchConfig
from edgeloop.search.folders import CANDIDATES, PARETO
from edgeloop.search.loop import patiently
from edgeloop.search.study import Candidate
from edgeloop.store import Value
from edgeloop.workspace import Workspace

CURVE, FRONT = "hypervolume.csv", "front.csv"
_CURVE_COLUMNS = ("candidates", "hypervolume")


class RunningTables:
    """`candidates.csv` and `hypervolume.csv` of a search that runs.

    Both are written anew from the study when a search starts or resumes, which removes a line that
    a kill cut off; from then on lines are only appended. A reader may see an incomplete last line.
    A hypervolume is relative to the range that each objective had at that time.
    """

    def __init__(
        self, folder: Path, config: SearchConfig, names: Iterable[str], ended: Iterable[Candidate]
    ) -> None:
        self._folder, self._config = folder, config
        self._names = tuple(dict.fromkeys([*config.wanted, *names]))
        self._volume = _RunningVolume(len(config.objectives))
        self._count = 0
        columns = ("number", "iteration", "arch_id", "state", *self._names, "reason")
        lines = [self._lines(candidate) for candidate in ended]
        write_atomic(folder / CANDIDATES, _csv([columns, *(row for row, _ in lines)]))
        write_atomic(folder / CURVE, _csv([_CURVE_COLUMNS, *(point for _, point in lines)]))

    def append(self, candidate: Candidate) -> None:
        for name, line in zip((CANDIDATES, CURVE), self._lines(candidate), strict=True):
            with (self._folder / name).open("ab") as file:
                file.write(_csv([line]).encode())

    def _lines(self, candidate: Candidate) -> tuple[Sequence[object], Sequence[object]]:
        self._count += 1
        if _is_eligible(self._config, candidate):
            self._volume.add(np.array(_minimised(self._config, candidate)))
        row = (
            *(candidate.number, candidate.place // self._config.iteration, candidate.arch.id),
            *(candidate.state, *(candidate.values.get(name, "") for name in self._names)),
            " ".join(candidate.reason.split()),  # a row is one line
        )
        return row, (self._count, f"{self._volume.share:.6f}")


class _RunningVolume:
    """The hypervolume of a growing front. A point that changes neither front nor range is free."""

    def __init__(self, objectives: int) -> None:
        self._front = np.empty((0, objectives))
        self._best = np.full(objectives, math.inf)
        self._worst = np.full(objectives, -math.inf)
        self.share = 0.0

    def add(self, point: Floats) -> None:
        is_dominated = bool((self._front <= point).all(axis=1).any())
        if is_dominated and (point <= self._worst).all():
            return
        self._best = np.minimum(self._best, point)
        self._worst = np.maximum(self._worst, point)
        if not is_dominated:
            self._front = np.vstack([self._front[~(point <= self._front).all(axis=1)], point])
        self.share = _share(self._front, self._best, self._worst)


def front_of(config: SearchConfig, candidates: Iterable[Candidate]) -> list[Candidate]:
    """The Pareto front, best first in the first objective."""
    eligible = [item for item in candidates if _is_eligible(config, item)]
    kept = non_dominated([_minimised(config, item) for item in eligible])
    front = [item for item, stays in zip(eligible, kept, strict=True) if stays]
    return sorted(front, key=lambda item: _minimised(config, item))


def volumes(config: SearchConfig, candidates: Sequence[Candidate]) -> list[float]:
    """The hypervolume after each candidate, between 0 and 1: relative to the box from the best to
    the worst value that this search has seen of each objective."""
    points = {
        place: np.array(_minimised(config, item))
        for place, item in enumerate(candidates)
        if _is_eligible(config, item)
    }
    if not points:
        return [0.0 for _ in candidates]
    every = np.array(list(points.values()))
    best, worst = every.min(axis=0), every.max(axis=0)
    found: list[float] = []
    front, share = np.empty((0, every.shape[1])), 0.0
    for place in range(len(candidates)):
        point = points.get(place)
        if point is not None and not (front <= point).all(axis=1).any():
            front = np.vstack([front[~(point <= front).all(axis=1)], point])
            share = _share(front, best, worst)
        found.append(share)
    return found


def write_tables(folder: Path, config: SearchConfig, candidates: Sequence[Candidate]) -> None:
    """The final tables, from the study."""
    ended = [item for item in candidates if item.state != "running"]
    if not ended:
        return
    for iteration in range(max(item.place for item in ended) // config.iteration + 1):
        until = [item for item in ended if item.place // config.iteration <= iteration]
        write_atomic(folder / f"search_state_{iteration}.csv", _state_table(config, until))
    curve = [(n, f"{share:.6f}") for n, share in enumerate(volumes(config, ended), start=1)]
    write_atomic(folder / CURVE, _csv([_CURVE_COLUMNS, *curve]))
    write_atomic(folder / FRONT, _state_table(config, front_of(config, ended)))


def write_front(
    folder: Path, front: Sequence[Candidate], save_model: Callable[[Candidate, Path], None]
) -> list[Path]:
    """The architectures and models of the front; those of an earlier front are removed."""
    target = folder / PARETO
    target.mkdir(parents=True, exist_ok=True)
    names = {item.arch.id for item in front}
    for old in target.iterdir():
        if old.name.startswith("id_") and old.name.partition(".")[0] not in names:
            old.unlink()
    for item in front:
        item.arch.save(target / f"{item.arch.id}.json")
        save_model(item, target / f"{item.arch.id}.onnx")
    return [target / f"{item.arch.id}.json" for item in front]


def publish(
    workspace: Workspace,
    arch: Architecture,
    kind: str,
    model: Path,
    values: Mapping[str, float],
    columns: Mapping[str, Value],
    tag: str,
) -> str:
    """Upload a trained model, so that runners measure it; returns its name in the status table. If
    another training or an interrupted upload has taken `ID.KIND`, a digest of the file is added."""
    name = f"{arch.id}.{kind}"
    try:
        patiently(
            lambda: workspace.upload(
                model, name, tags=[tag], architecture=arch.canonical, check=False
            )
        )
    except (NameTaken, ModelBusy):
        name = f"{name}.{sha256(model.read_bytes()).hexdigest()[:12]}"
        patiently(
            lambda: workspace.upload(
                model, name, tags=[tag], architecture=arch.canonical, check=False
            )
        )
    experiment = workspace.experiment
    table = Candidates(workspace.store.models(experiment), experiment)
    patiently(lambda: table.note(name, arch.canonical, kind, values, columns))
    return name


def copy_atomic(source: Path, target: Path) -> None:
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)


def _state_table(config: SearchConfig, candidates: Sequence[Candidate]) -> str:
    names = list(dict.fromkeys([*config.wanted, *(n for item in candidates for n in item.values)]))
    front = {item.number for item in front_of(config, candidates)}
    rows: list[Sequence[object]] = [
        ("number", "iteration", "arch_id", "state", *names, "is_pareto", "reason")
    ]
    for item in candidates:
        values = [item.values.get(name, "") for name in names]
        iteration = item.place // config.iteration
        is_pareto = int(item.number in front)
        rows.append(
            (item.number, iteration, item.arch.id, item.state, *values, is_pareto, item.reason)
        )
    return _csv(rows)


def _csv(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _minimised(config: SearchConfig, item: Candidate) -> tuple[float, ...]:
    return tuple(o.minimised(item.values[o.name]) for o in config.objectives)


def _is_eligible(config: SearchConfig, item: Candidate) -> bool:
    """Whether it may be on the front: complete, and finite in every objective."""
    return item.state == "complete" and all(map(math.isfinite, _minimised(config, item)))


def _share(front: Floats, best: Floats, worst: Floats) -> float:
    scaled = (front - best) / np.where(worst > best, worst - best, 1.0)
    return min(1.0, hypervolume(scaled, np.full(len(best), 1.0 + 1e-9)))
