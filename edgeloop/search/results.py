"""What a search leaves behind: its tables, its fronts and its hypervolume."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, fields, replace
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from edgeloop._util.files import replacing, write_atomic
from edgeloop._util.redact import redact
from edgeloop._util.values import plural
from edgeloop._util.yaml import NotYaml, parse_yaml
from edgeloop.errors import BadInput, EdgeloopError, ModelBusy, NameTaken
from edgeloop.models.catalog import Candidates
from edgeloop.models.columns import Column, readable, search_measure
from edgeloop.pareto import FIRST_RESULTS, Floats, ObjectiveScale, non_dominated, scale_of, share
from edgeloop.search.base import Evaluator, barred_devices, columns_of, is_result, on_device
from edgeloop.search.config import CHIP, MINIMISED, Objective, SearchConfig, SearchFront, config_of
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.export import export_onnx
from edgeloop.search.nets.plan import HISTORY, METRICS, MODEL
from edgeloop.search.nets.spaces import build
from edgeloop.search.study import CANDIDATES, KEPT_CONFIG, PARETO, UTILISATION, Candidate, patiently
from edgeloop.store import Value
from edgeloop.workspace import Workspace

# Which candidates are on which front: one of all objectives or, in a search for several chips,
# one per chip.


class WithResult(Protocol):
    """A candidate of a study, or one that was read from a table."""

    @property
    def number(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def values(self) -> Mapping[str, float]: ...


Item = TypeVar("Item", bound=WithResult)


def fronts_of(config: SearchConfig, candidates: Iterable[Item]) -> dict[str, list[Item]]:
    """The Pareto front of every chip by its name, best first in the first objective; one front
    without a name where there are not several chips."""
    every = list(candidates)
    return {front.name: _front(config, front, every) for front in config.fronts}


def front_of(config: SearchConfig, candidates: Iterable[Item]) -> list[Item]:
    """The candidates that are on any front, best first in the first objective."""
    fronts = fronts_of(config, candidates)
    joined = {item.number: item for front in fronts.values() for item in front}
    return sorted(joined.values(), key=lambda item: minimised(config.objectives, item))


def front_names(fronts: Mapping[str, Sequence[Item]], item: Item) -> list[str]:
    """The fronts that a candidate is on."""
    return [name for name, front in fronts.items() if any(item.number == o.number for o in front)]


def minimised(objectives: Sequence[Objective], item: WithResult) -> tuple[float, ...]:
    return tuple(o.minimised(item.values[o.name]) for o in objectives)


def is_eligible(config: SearchConfig, front: SearchFront, item: WithResult) -> bool:
    """Whether it may be on a front: complete, finite, and within the limits of the chip."""
    if item.state != "complete" or front.name in barred_devices(item.values, config.constraints):
        return False
    return all(map(math.isfinite, minimised(front.objectives, item)))


def _front(config: SearchConfig, front: SearchFront, candidates: Sequence[Item]) -> list[Item]:
    eligible = [item for item in candidates if is_eligible(config, front, item)]
    points = [minimised(front.objectives, item) for item in eligible]
    is_on_front = non_dominated(points)
    members = [
        (point, item)
        for point, item, stays in zip(points, eligible, is_on_front, strict=True)
        if stays
    ]
    return [item for _, item in sorted(members, key=lambda pair: pair[0])]


# The hypervolume of a search: one definition, with a reference point that is fixed once.
#
# The reference point has the worst value that counts of each objective: `objectives.NAME.worst`, or
# the worst of the first ten results and a tenth of their range beyond it. It is chosen with the
# tenth result, or at the end of a search that has fewer, is kept in `reference.json` and with the
# study, and then stays. The hypervolume is the share of the box between it and the ideal point
# (`objectives.NAME.best`; by default 0 for what is minimised and 1 for a score) that the front
# dominates: it never falls, and searches with the same reference point can be compared. In a search
# for several chips every chip has a hypervolume, and that of the search is their mean.


REFERENCE = "reference.json"
_PLACES = 6  # as in tables: all views show the same number


@dataclass(frozen=True)
class ReferencePoint:
    """The scale of each objective by its name, and the number of results it follows from."""

    scales: Mapping[str, ObjectiveScale]
    results: int = 0

    def share(self, names: Sequence[str], points: Floats) -> float:
        """The hypervolume of points that have the values of these objectives."""
        return round(share(points, [self.scales[name] for name in names]), _PLACES)

    def as_json(self) -> dict[str, object]:
        scales = {name: {"worst": s.worst, "best": s.best} for name, s in self.scales.items()}
        return {"objectives": scales, "results": self.results}

    def __str__(self) -> str:
        return ", ".join(f"{name} {scale.worst:.4g}" for name, scale in self.scales.items())


def reference_from(document: object) -> ReferencePoint | None:
    """What `as_json` returned; None for anything else."""
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        scales = {
            str(name): ObjectiveScale(float(ends["worst"]), float(ends["best"]))
            for name, ends in document["objectives"].items()  # type: ignore[index]
        }
        every = [end for scale in scales.values() for end in (scale.worst, scale.best)]
        if all(map(math.isfinite, every)) and all(s.worst != s.best for s in scales.values()):
            return ReferencePoint(scales, int(document.get("results", 0)))  # type: ignore[attr-defined]
    return None


def read_reference(folder: Path) -> ReferencePoint | None:
    """The reference point of a search, if it has one yet."""
    with suppress(OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        return reference_from(json.loads((folder / REFERENCE).read_text(encoding="utf-8")))
    return None


def write_reference(folder: Path, reference: ReferencePoint) -> None:
    write_atomic(folder / REFERENCE, json.dumps(reference.as_json(), indent=1) + "\n")


def reference_of(
    config: SearchConfig,
    results: Iterable[Mapping[str, float]] = (),
    known: ReferencePoint | None = None,
) -> ReferencePoint | None:
    """From what the configuration says, what is `known` already, and results, in this order. None
    if that is not enough."""
    every = list(results)
    scales: dict[str, ObjectiveScale] = {}
    for objective in config.objectives:
        worst, best = objective.limit("worst"), objective.limit("best")
        earlier_scale = known.scales.get(objective.name) if known is not None else None
        if earlier_scale is not None:
            worst = earlier_scale.worst if worst is None else worst
            best = earlier_scale.best if best is None else best
        values = [values[objective.name] for values in every]
        if worst is None and not values:
            return None
        if best is None and not values and objective.ideal is None:
            return None
        scales[objective.name] = scale_of(
            values, objective.goal, ideal=objective.ideal, worst=worst, best=best
        )
    return ReferencePoint(scales, known.results if known is not None else len(every))


class VolumeCurve:
    """The hypervolume after each candidate that ended: `shares` has a line per candidate, with the
    share of each front, or is empty while there is no reference point. `fixed` is called when there
    is one."""

    def __init__(
        self,
        config: SearchConfig,
        known: ReferencePoint | None = None,
        fixed: Callable[[ReferencePoint], None] = lambda _: None,
    ) -> None:
        self._config, self._fixed = config, fixed
        self._known = known
        self._ended: list[Candidate] = []  # until there is a reference point
        self._results: list[Mapping[str, float]] = []
        self._growing: list[_GrowingFront] = []
        self.shares: list[tuple[float, ...]] = []
        self.reference: ReferencePoint | None = None
        reference = reference_of(config, (), known)
        if reference is not None:
            self._fix(reference)

    @property
    def volumes(self) -> list[float]:
        """That of the search after each candidate: the mean of its fronts."""
        return [mean_of(shares) for shares in self.shares]

    @property
    def latest(self) -> float | None:
        return mean_of(self.shares[-1]) if self.shares else None

    def add(self, candidate: Candidate) -> None:
        if self.reference is not None:
            self._grow(candidate)
            return
        self._ended.append(candidate)
        if _is_result(self._config, candidate):
            self._results.append(candidate.values)
        if len(self._results) >= FIRST_RESULTS:
            self.settle()

    def settle(self) -> None:
        """Choose the reference point from the results there are, if none is chosen yet."""
        if self.reference is None and self._results:
            reference = reference_of(self._config, self._results, self._known)
            assert reference is not None
            self._fix(reference)

    def _fix(self, reference: ReferencePoint) -> None:
        self.reference = reference
        self._growing = [_GrowingFront() for _ in self._config.fronts]
        for candidate in self._ended:
            self._grow(candidate)
        self._ended = []
        self._fixed(reference)

    def _grow(self, candidate: Candidate) -> None:
        assert self.reference is not None
        for front, growing in zip(self._config.fronts, self._growing, strict=True):
            if is_eligible(self._config, front, candidate):
                names = [objective.name for objective in front.objectives]
                growing.add([candidate.values[name] for name in names], names, self.reference)
        self.shares.append(tuple(growing.share for growing in self._growing))


class _GrowingFront:
    """A point that others dominate changes nothing and costs nothing."""

    def __init__(self) -> None:
        self._points: Floats = np.empty((0, 0))
        self._placed: Floats = np.empty((0, 0))
        self.share = 0.0

    def add(self, values: Sequence[float], names: Sequence[str], reference: ReferencePoint) -> None:
        scales = [reference.scales[name] for name in names]
        placed = np.array([float(s.position(v)) for s, v in zip(scales, values, strict=True)])
        if not len(self._points):
            self._points = self._placed = np.empty((0, len(names)))
        if (placed >= 1).any() or (self._placed <= placed).all(axis=1).any():
            return
        stays = ~(placed <= self._placed).all(axis=1)
        self._placed = np.vstack([self._placed[stays], placed])
        self._points = np.vstack([self._points[stays], values])
        self.share = reference.share(names, self._points)


def mean_of(shares: Sequence[float]) -> float:
    return round(sum(shares) / len(shares), _PLACES)


def _is_result(config: SearchConfig, candidate: Candidate) -> bool:
    values = [candidate.values.get(objective.name, math.nan) for objective in config.objectives]
    return candidate.state == "complete" and all(map(math.isfinite, values))


# What a search leaves behind, for people and for other programs: files in its folder, and models in
# the status table.
#
# While it runs, a line is appended for every candidate that ended:
#
# `candidates.csv` all candidates, in the order in which they ended `hypervolume.csv` the
# hypervolume after so many candidates, and that of each chip's front `curves.csv` the learning
# curves of all candidates `reference.json` the reference point and the ideal point of the
# hypervolume, once chosen
#
# When it ends:
#
# `search_state_<n>.csv`  all candidates up to iteration n, in the order of their proposal
# `front.csv`             the Pareto front; with several chips, all that are on the front of one, wi
#                         the names of these chips in the column `fronts`
# `pareto/<id>.json`      its architectures; `edgeloop arch train` builds them again
# `pareto/<id>.onnx`      their models, trained if the search trained them


CURVE, FRONT = "hypervolume.csv", "front.csv"
HEADS = ("number", "iteration", "name", "arch_id", "state")  # of a candidate, in every table
PARAMETERS = "parameters"  # what was suggested to the space, as JSON
_CURVE_COLUMNS = ("candidates", "hypervolume")


class RunningTables:
    """`candidates.csv` and `hypervolume.csv` of a search that runs.

    Both are rewritten from the study when a search starts or resumes, which removes a line that
    a kill cut off, and `hypervolume.csv` once more when the reference point is chosen, since only
    then is the hypervolume of the first candidates known. Otherwise lines are only appended. A
    reader may see an incomplete last line.
    """

    def __init__(
        self,
        folder: Path,
        config: SearchConfig,
        columns: Iterable[str],
        ended: Iterable[Candidate],
        known: ReferencePoint | None = None,
        keep: Callable[[ReferencePoint], None] = lambda _: None,
        name_of: Callable[[str], str] = str,
    ) -> None:
        self._folder, self._config, self._keep = folder, config, keep
        self._name_of = name_of
        self._columns = tuple(dict.fromkeys([*config.wanted, *columns]))
        self._count = 0
        heads = (*HEADS, *self._columns, PARAMETERS, "reason")
        every = list(ended)
        rows = [heads, *(self._row(candidate) for candidate in every)]
        write_atomic(folder / CANDIDATES, csv_text(rows))
        (folder / CURVE).unlink(missing_ok=True)
        self.curve = VolumeCurve(config, known, self._fixed)
        for candidate in every:
            self.curve.add(candidate)
            self._count += 1
        self._write_curve()

    def append(self, candidate: Candidate) -> None:
        self._add_lines(CANDIDATES, [self._row(candidate)])
        before = self.curve.reference
        self._count += 1
        self.curve.add(candidate)
        if self.curve.reference is not before:
            self._write_curve()
        else:
            self._add_lines(CURVE, [self._point(self._count)])

    def finish(self) -> None:
        """When the search has ended: its reference point is chosen, however few results it has."""
        before = self.curve.reference
        self.curve.settle()
        if self.curve.reference is not before:
            self._write_curve()

    def _fixed(self, reference: ReferencePoint) -> None:
        write_reference(self._folder, reference)
        self._keep(reference)

    def _row(self, candidate: Candidate) -> Sequence[object]:
        return (
            candidate.number,
            candidate.place // self._config.iteration,
            self._name_of(candidate.arch.id),
            candidate.arch.id,
            candidate.state,
            *(candidate.values.get(name, "") for name in self._columns),
            _parameters_text(candidate),
            " ".join(candidate.reason.split()),  # a row is one line
        )

    def _write_curve(self) -> None:
        fronts = self._config.fronts
        several = [f"hypervolume@{front.name}" for front in fronts] if len(fronts) > 1 else []
        points = [self._point(count) for count in range(1, self._count + 1)]
        write_atomic(self._folder / CURVE, csv_text([(*_CURVE_COLUMNS, *several), *points]))

    def _point(self, count: int) -> Sequence[object]:
        """Empty until there is a reference point."""
        width = len(self._config.fronts)
        if self.curve.reference is None:
            return (count, "", *([""] * width if width > 1 else []))
        shares = self.curve.shares[count - 1]
        return (count, *(f"{s:.6f}" for s in (mean_of(shares), *(shares if width > 1 else ()))))

    def _add_lines(self, name: str, lines: Iterable[Sequence[object]]) -> None:
        with (self._folder / name).open("ab") as file:
            file.write(csv_text(lines).encode())


def write_tables(
    folder: Path,
    config: SearchConfig,
    candidates: Sequence[Candidate],
    name_of: Callable[[str], str] = str,
) -> None:
    """The final tables, from the study. `name_of` gives the names of ids."""
    ended = [item for item in candidates if item.state != "running"]
    if not ended:
        return
    for iteration in range(max(item.place for item in ended) // config.iteration + 1):
        until = [item for item in ended if item.place // config.iteration <= iteration]
        write_atomic(folder / f"search_state_{iteration}.csv", _state_table(config, until, name_of))
    front = front_of(config, ended)
    write_atomic(folder / FRONT, _state_table(config, front, name_of))


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
    *,
    kind: str,
    model: Path,
    values: Mapping[str, float],
    columns: Mapping[str, Value],
    tag: str,
) -> str:
    """Upload a trained model, so that runners measure it; returns its name in the status table. If
    another training or an interrupted upload has taken `NAME.KIND`, a digest of the file is
    added."""
    experiment = workspace.experiment
    table = Candidates(workspace.store.models(experiment), experiment)
    name = f"{patiently(lambda: table.name_of(arch.id))}.{kind}"
    upload = partial(workspace.upload, model, tags=[tag], architecture=arch.canonical, check=False)
    try:
        patiently(lambda: upload(name=name))
    except (NameTaken, ModelBusy):
        name = f"{name}.{sha256(model.read_bytes()).hexdigest()[:12]}"
        patiently(lambda: upload(name=name))
    patiently(lambda: table.note_model(name, arch.canonical, {kind: values}, columns))
    return name


def copy_atomic(source: Path, target: Path) -> None:
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)


def _state_table(
    config: SearchConfig, candidates: Sequence[Candidate], name_of: Callable[[str], str]
) -> str:
    measured = (name for item in candidates for name in item.values if is_result(name))
    names = list(dict.fromkeys([*config.wanted, *measured]))
    fronts = fronts_of(config, candidates)
    several = ("fronts",) if config.devices else ()
    heads = (*HEADS, *names, PARAMETERS, "is_pareto")
    rows: list[Sequence[object]] = [(*heads, *several, "reason")]
    for item in candidates:
        values = [item.values.get(name, "") for name in names]
        iteration = item.place // config.iteration
        on = front_names(fronts, item)
        ending = (_parameters_text(item), int(bool(on)), *([" ".join(on)] if several else ()))
        place = (item.number, iteration, name_of(item.arch.id), item.arch.id, item.state)
        rows.append((*place, *values, *ending, item.reason))
    return csv_text(rows)


def _parameters_text(candidate: Candidate) -> str:
    return json.dumps(dict(candidate.params), sort_keys=True)


# `curves.csv`: the learning curves of all candidates, a line per validation.
#
# Lines are appended as trainings pause and end; a candidate that continues adds what is new. A
# reader may see an incomplete last line, which is left out and written again when the search
# resumes.


CURVES = "curves.csv"
_LARGEST_BYTES = 1 << 28


@dataclass(frozen=True)
class CurvePoint:
    """A validation of a training. `loss` is the mean since the epoch began; `seconds` count from
    the start of the training."""

    epoch: int
    step: int
    loss: float
    val_f1: float
    val_iou: float
    seconds: float


_COLUMNS = ("arch_id", *(each.name for each in fields(CurvePoint)))


class LearningCurves:
    """Writes `curves.csv` of a search that runs."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / CURVES
        curves = read_curves(folder)
        self._steps = {name: {point.step for point in curve} for name, curve in curves.items()}
        if curves:
            rows = ((name, *astuple(point)) for name, curve in curves.items() for point in curve)
            write_atomic(self._file, csv_text([_COLUMNS, *rows]))

    def add(self, arch_id: str, history: Path) -> None:
        """What is new in the `metrics.jsonl` of a training."""
        known_steps = self._steps.setdefault(arch_id, set())
        new = [point for point in _points(history) if point.step not in known_steps]
        if not new:
            return
        is_first = not self._file.exists()
        rows = [(arch_id, *astuple(point)) for point in new]
        with self._file.open("ab") as file:
            file.write(csv_text([_COLUMNS, *rows] if is_first else rows).encode())
        known_steps.update(point.step for point in new)


def read_curves(folder: Path) -> dict[str, list[CurvePoint]]:
    """The learning curve of each candidate, by the id of its architecture, in order of steps."""
    curves: dict[str, dict[int, CurvePoint]] = {}
    for row in _lines(folder / CURVES):
        point = _point(row)
        if point is not None and row.get("arch_id"):
            curves.setdefault(row["arch_id"], {})[point.step] = point
    return {name: [curve[step] for step in sorted(curve)] for name, curve in curves.items()}


def _lines(file: Path) -> list[dict[str, str]]:
    """Without one that a kill cut off."""
    try:
        if file.stat().st_size > _LARGEST_BYTES:
            return []
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    whole = text[: text.rfind("\n") + 1]
    return list(csv.DictReader(io.StringIO(whole)))


def _points(history: Path) -> list[CurvePoint]:
    points = []
    try:
        lines = history.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            entry = json.loads(line)
            renamed = {**entry, "val_f1": entry["f1"], "val_iou": entry["miou"]}
        except (ValueError, TypeError, KeyError):
            continue
        point = _point(renamed)
        if point is not None:
            points.append(point)
    return points


def _point(row: Mapping[str, object]) -> CurvePoint | None:
    try:
        epoch, step = int(str(row["epoch"])), int(str(row["step"]))
        others = [float(str(row[name])) for name in _COLUMNS[3:]]
    except (ValueError, KeyError):
        return None
    return CurvePoint(epoch, step, *others) if all(map(math.isfinite, others)) else None


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


# The models of a search: kept when they are trained, complete for the front, and published.
#
# `nets/<id>.onnx` is the trained model of a candidate, kept before its result is stored.


MODELS = "nets"
TRAINED = "trained"
_LOOK_S = 1.0


class FoundModels:
    """Those of the search in `folder`."""

    def __init__(self, folder: Path, workspace: Workspace) -> None:
        self._folder, self._workspace = folder, workspace
        self._curves = LearningCurves(folder)
        self._is_trained = False  # whether models of the front are trained ones
        self._gpu: list[float] = []  # utilisation of the GPU in each training, from 0 to 1

    def keep(self, arch: Architecture, files: Mapping[str, Path]) -> None:
        """Copied out of the training folder before its result is stored, like its curve."""
        if HISTORY in files:
            self._curves.add(arch.id, files[HISTORY])
        if METRICS in files:
            self._note_gpu(files[METRICS])
        if MODEL in files:
            (self._folder / MODELS).mkdir(exist_ok=True)
            copy_atomic(files[MODEL], self._file(arch))

    @property
    def gpu_utilisation(self) -> float | None:
        """The mean of what trainings reported, wherever they ran; None if none did."""
        return sum(self._gpu) / len(self._gpu) if self._gpu else None

    def _note_gpu(self, metrics: Path) -> None:
        with suppress(OSError, ValueError, AttributeError):
            share = json.loads(metrics.read_text(encoding="utf-8")).get("gpu_utilisation")
            if isinstance(share, int | float) and 0 <= share <= 1:
                self._gpu.append(float(share))

    def complete(
        self,
        front: Sequence[Candidate],
        taken: Mapping[str, Any],
        training: Evaluator | None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """A result reused from another search has no model here: those of the front are copied from
        the search that this one started from (`taken` says where that is), or trained. One that
        cannot be trained is left out: its place is not taken by an untrained model."""
        for item in front:
            about = taken.get(item.earlier, {})
            model = Path(str(about.get("folder", ""))) / MODELS / f"{item.arch.id}.onnx"
            if item.earlier and model.is_file():
                self.keep(item.arch, {MODEL: model})
        self._is_trained = training is not None
        archs = {item.arch.id: item.arch for item in front}
        lacking = {i: a for i, a in archs.items() if not self._file(a).is_file()}
        if training is None or not lacking:
            return
        models = plural(len(lacking), "model")
        tell(f"Training {models} of the front, whose results other searches had.")
        for arch in lacking.values():
            training.send(arch)
        waiting = set(lacking)
        while waiting:
            for evaluation in training.collect(_LOOK_S):
                if evaluation.arch_id not in waiting:
                    continue
                waiting.discard(evaluation.arch_id)
                self.keep(lacking[evaluation.arch_id], evaluation.files)
                if evaluation.error:
                    error = evaluation.error.rstrip(".")
                    tell(f"The model of {evaluation.arch_id} is left out: {error}.")

    def save(self, item: Candidate, target: Path) -> None:
        """Copy the trained model of a candidate; build an untrained one if the search trains
        none."""
        trained = self._file(item.arch)
        if trained.is_file():
            copy_atomic(trained, target)
        elif not self._is_trained and not target.is_file():
            project = self._workspace.settings.project
            export_onnx(build(item.arch, project=project), item.arch, target)

    def publish(self, front: Sequence[Candidate], tag: str, iteration: int) -> list[str]:
        """Trained models of the front join the status table, so that runners measure them."""
        names = []
        for item in front:
            model = self._file(item.arch)
            if model.is_file():
                columns = columns_of(item.values, item.place // iteration)
                name = publish(
                    self._workspace,
                    item.arch,
                    kind=TRAINED,
                    model=model,
                    values=item.values,
                    columns=columns,
                    tag=tag,
                )
                names.append(name)
        return names

    def _file(self, arch: Architecture) -> Path:
        return self._folder / MODELS / f"{arch.id}.onnx"


# A search as its folder shows it, while it runs and afterwards, for the terminal, the portal and
# the report: candidates with their parameters, fronts, hypervolume, learning curves.
#
# `candidates.csv` grows while a search runs: its last line may be incomplete, and who is on the
# front is worked out here. Folders of older versions have `search_state_<n>.csv` instead.


LARGEST_BYTES = 32 << 20
LEARNING = "curves.csv"
_STATE = re.compile(r"search_state_(\d+)\.csv")
_NOT_VALUES = (
    *HEADS,
    "is_pareto",
    "fronts",
    PARAMETERS,
    "reason",
)

Rows = list[dict[str, str]]


@dataclass(frozen=True)
class SeenCandidate:
    """`fronts` are the names of those that it is on; the only front of a search has an empty one.
    A result of an earlier search is of iteration -1. `trained` is how far its training got, in
    epochs, or in steps where it has none."""

    number: int
    iteration: int
    arch_id: str
    state: str
    values: Mapping[str, float] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    fronts: tuple[str, ...] = ()
    trained: float | None = None
    name: str = ""  # in the status table of its search; its id in files of older versions

    @property
    def is_front(self) -> bool:
        return bool(self.fronts)


@dataclass(frozen=True)
class SeenFront:
    """The front of one chip, or the only one; best first in its first objective."""

    name: str
    objectives: tuple[Objective, ...]
    candidates: tuple[SeenCandidate, ...]
    hypervolume: float | None


@dataclass(frozen=True)
class LearningPoint:
    """The state of a training after an epoch; what is not known is NaN."""

    epoch: float
    step: float
    loss: float
    val_f1: float
    val_iou: float


@dataclass(frozen=True)
class SeenSearch:
    """`candidates` are in the order in which they ended. `curve` is the hypervolume after so many
    of them, and that of each front; empty while there is no reference point."""

    name: str
    folder: Path
    experiment: str
    objectives: tuple[Objective, ...]
    budget: int | None
    candidates: tuple[SeenCandidate, ...]
    fronts: tuple[SeenFront, ...]
    curve: tuple[tuple[int, float, tuple[float, ...]], ...]
    reference: ReferencePoint | None
    learning: Mapping[str, tuple[LearningPoint, ...]]
    updated: float
    utilisation: Mapping[str, float] = field(default_factory=dict)  # of `trainers` and `gpu`

    @property
    def hypervolume(self) -> float | None:
        return self.curve[-1][1] if self.curve else None

    def column(self, name: str) -> Column:
        """A value as people read it; a latency in the unit that suits all candidates."""
        measure = search_measure(name)
        values = [item.values[name] for item in self.candidates if name in item.values]
        return readable(measure, [measure.factor * value for value in values])[0]

    @cached_property
    def front(self) -> tuple[SeenCandidate, ...]:
        """All that are on any front, best first."""
        every = {id(item): item for front in self.fronts for item in front.candidates}
        return tuple(every.values())

    @cached_property
    def own(self) -> tuple[SeenCandidate, ...]:
        """The candidates of this search: without results that were taken over from others."""
        return tuple(item for item in self.candidates if item.iteration >= 0)

    @property
    def taken_over(self) -> int:
        """How many results are those of earlier searches."""
        return len(self.candidates) - len(self.own)

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many candidates of its own are in each state."""
        return dict(Counter(item.state for item in self.own))

    @cached_property
    def value_names(self) -> tuple[str, ...]:
        """Those that a candidate has, the objectives first."""
        names = [objective.name for objective in self.objectives]
        return tuple(dict.fromkeys([*names, *(n for item in self.candidates for n in item.values)]))

    @cached_property
    def importances(self) -> tuple[Importance, ...]:
        """Of complete candidates: the score of a training that was stopped tells who was."""
        complete = [item for item in self.candidates if item.state == "complete"]
        return importances(
            [item.parameters for item in complete],
            {
                objective.name: [item.values.get(objective.name, math.nan) for item in complete]
                for objective in self.objectives
            },
        )


def share_reference(searches: Iterable[SeenSearch]) -> bool:
    """Whether the hypervolumes of searches can stand side by side: measured from one point."""
    points = [seen.reference.scales for seen in searches if seen.reference is not None]
    return all(point == points[0] for point in points)


def read_search(folder: Path, name: str = "") -> SeenSearch:
    """BadInput says what cannot be read."""
    try:
        return _read(folder, name or folder.name)
    except (OSError, ValueError, csv.Error) as error:
        reason = redact(str(error)).rstrip(".")
        raise BadInput(
            reason=f"the search {name or folder.name!r} cannot be read: {reason}"
        ) from None


def _read(folder: Path, name: str) -> SeenSearch:
    try:
        document = parse_yaml(_text(folder / KEPT_CONFIG)).value
    except NotYaml as error:
        raise ValueError(f"{KEPT_CONFIG} {error}") from None
    written = document if isinstance(document, dict) else {}
    config, is_whole = _config(written, name)
    curves = folder / LEARNING
    is_readable = curves.is_file() and curves.stat().st_size <= LARGEST_BYTES
    learning = _learning(_table(curves)) if is_readable else {}
    rows = [row for row in _rows(folder) if row.get("arch_id")]
    fronts, candidates = _with_fronts(config, [_candidate(row, learning) for row in rows])
    curve = _curve(_table(folder / CURVE), [front.name for front in fronts])
    latest = curve[-1] if curve else None
    reference = read_reference(folder)
    last = folder / CURVE
    return SeenSearch(
        name=name,
        folder=folder,
        experiment=str(written.get("experiment") or ""),
        objectives=config.objectives,
        budget=config.budget if is_whole else None,
        candidates=candidates,
        fronts=tuple(
            replace(front, hypervolume=latest[2][place] if latest else None)
            for place, front in enumerate(fronts)
        ),
        curve=tuple(curve),
        reference=reference,
        learning=learning,
        updated=(last if last.is_file() else folder / KEPT_CONFIG).stat().st_mtime,
        utilisation=_utilisation(folder / UTILISATION),
    )


def _config(document: Mapping[str, object], name: str) -> tuple[SearchConfig, bool]:
    """The configuration, and whether it is whole. A variable of the machine that ran the search may
    not be set here: what it stands for is left out. Of what this version would not accept, there
    are the objectives and their chips."""
    for is_whole, attempt in ((True, document), (False, _without_variables(document))):
        with suppress(EdgeloopError):
            assert isinstance(attempt, dict)
            return config_of(attempt, KEPT_CONFIG, name), is_whole
    written = document.get("objectives")
    objectives = {
        str(key): options if isinstance(options, dict) else {}
        for key, options in (written.items() if isinstance(written, dict) else ())
    }
    named = [objectives[value].get("devices") for value in CHIP if value in objectives]
    devices = tuple(map(str, next((one for one in named if isinstance(one, list)), ())))
    listed = []
    for key, options in objectives.items():
        goal = options.get("goal") or ("min" if key in MINIMISED else "max")
        for device in devices if devices and key in CHIP else ("",):
            name_there = on_device(key, device)
            listed.append(Objective(name_there, "min" if goal == "min" else "max"))
    return SearchConfig(name, tuple(listed), devices=devices), False


def _without_variables(value: object) -> object:
    """Without the keys of a document whose values name a variable."""
    if isinstance(value, Mapping):
        plain_items = {key: item for key, item in value.items() if not _names_variable(item)}
        return {key: _without_variables(item) for key, item in plain_items.items()}
    return value


def _names_variable(value: object) -> bool:
    return isinstance(value, str) and "${" in value


def _utilisation(file: Path) -> dict[str, float]:
    try:
        content = json.loads(_text(file)) if file.is_file() else {}
    except ValueError:
        return {}
    shares = content.items() if isinstance(content, dict) else ()
    return {str(name): float(share) for name, share in shares if isinstance(share, int | float)}


def _rows(folder: Path) -> Rows:
    if (folder / CANDIDATES).is_file():
        return _table(folder / CANDIDATES)
    matches = ((_STATE.fullmatch(file.name), file) for file in folder.iterdir())
    numbered = [(int(match[1]), file) for match, file in matches if match]
    return _table(max(numbered)[1]) if numbered else []  # the last one has all candidates


def _candidate(
    row: Mapping[str, str], learning: Mapping[str, Sequence[LearningPoint]]
) -> SeenCandidate:
    numbers = {name: _number(text) for name, text in row.items() if name not in _NOT_VALUES}
    points = learning.get(row["arch_id"], ())
    return SeenCandidate(
        number=_whole(row.get("number", "")),
        iteration=_whole(row.get("iteration", "")),
        arch_id=row["arch_id"],
        state=row.get("state", ""),
        name=row.get("name") or row["arch_id"],
        values={name: value for name, value in numbers.items() if not math.isnan(value)},
        parameters=_parameters(row.get(PARAMETERS, "")),
        reason=row.get("reason", ""),
        trained=max((p.step if math.isnan(p.epoch) else p.epoch for p in points), default=None),
    )


def _with_fronts(
    config: SearchConfig, candidates: Sequence[SeenCandidate]
) -> tuple[list[SeenFront], tuple[SeenCandidate, ...]]:
    names = [objective.name for objective in config.objectives]
    if not names:
        return [SeenFront("", (), (), None)], tuple(candidates)
    complete = [item for item in candidates if all(name in item.values for name in names)]
    fronts_by_name = fronts_of(config, complete)
    on: dict[int, tuple[str, ...]] = {}  # by identity: numbers in a damaged table may repeat
    for name, members in fronts_by_name.items():
        for item in members:
            on[id(item)] = (*on.get(id(item), ()), name)
    seen = {id(item): replace(item, fronts=on.get(id(item), ())) for item in candidates}
    fronts = [
        SeenFront(
            front.name,
            front.objectives,
            tuple(seen[id(item)] for item in fronts_by_name[front.name]),
            None,
        )
        for front in config.fronts
    ]
    return fronts, tuple(seen[id(item)] for item in candidates)


def _curve(rows: Rows, fronts: Sequence[str]) -> list[tuple[int, float, tuple[float, ...]]]:
    points = []
    for row in rows:
        count, volume = row.get("candidates", ""), _number(row.get("hypervolume", ""))
        if count.isdecimal() and math.isfinite(volume):
            parts = [_number(row.get(f"hypervolume@{name}", "")) for name in fronts]
            each = [volume if math.isnan(part) else part for part in parts]
            points.append((int(count), volume, tuple(each)))
    return points


def _learning(rows: Rows) -> dict[str, tuple[LearningPoint, ...]]:
    curves: dict[str, list[LearningPoint]] = {}
    for row in rows:
        names = ("epoch", "step", "loss", "val_f1", "val_iou")
        point = LearningPoint(*(_number(row.get(name, "")) for name in names))
        curves.setdefault(row.get("arch_id", ""), []).append(point)
    return {name: tuple(points) for name, points in curves.items() if name}


def _parameters(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    plain = (str, int, float, bool)
    if not isinstance(content, dict):
        return {}
    return {name: value for name, value in content.items() if isinstance(value, plain)}


def _table(file: Path) -> Rows:
    """Complete lines only: a search may be about to write the rest of the last one."""
    if not file.is_file():
        return []
    rows = csv.DictReader(_text(file).rpartition("\n")[0].splitlines())
    return [{str(key): redact(str(value or "")) for key, value in row.items()} for row in rows]


def _text(file: Path) -> str:
    if file.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"{file.name} is larger than {LARGEST_BYTES >> 20} MB")
    return file.read_text(encoding="utf-8", errors="replace")


def _whole(text: str) -> int:
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 10 else 0


def _number(text: str) -> float:
    """NaN where there is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


# How much each parameter of a space mattered in a search, for each objective.
#
# The importance of a parameter is the share of the variation of an objective that its values
# explain among the candidates of this search (an analysis of variance of ranks, corrected for the
# number of values). Ranks, so that one bad outlier does not decide, and latency and accuracy are
# alike. A parameter that only some candidates have is judged among these: that the others lack it
# counts for the parameter that decided it. Numbers with many values are compared in quarters.
#
# With many parameters and few candidates, some parameter always seems to explain a lot. Only shares
# beyond chance are kept: the objective is shuffled, and a share must exceed what the best of all
# parameters reaches in nineteen of twenty shuffles.
#
# Optuna's evaluators need either scikit-learn or parameters that every trial has.


FEWEST = 8  # candidates below which nothing can be said
SHUFFLES, CHANCE = 200, 0.05
_AT_ONCE = 50  # shuffles, so that memory does not grow with the table
_MOST_LEVELS = 5
_QUARTERS = 4


@dataclass(frozen=True)
class Importance:
    """`shares` by objective, each between 0 and 1 and beyond chance."""

    parameter: str
    shares: Mapping[str, float]

    @property
    def most(self) -> float:
        return max(self.shares.values(), default=0.0)


def importances(
    parameters: Sequence[Mapping[str, object]], values: Mapping[str, Sequence[float]]
) -> tuple[Importance, ...]:
    """The most important first. `values` has a number per candidate for each objective, NaN where
    it is not known. Parameters whose share could be chance are left out; empty if there are too
    few candidates to say more."""
    shares: dict[str, dict[str, float]] = {}
    for objective, numbers in values.items():
        for name, part in _beyond_chance(parameters, np.asarray(numbers, np.float64)).items():
            shares.setdefault(name, {})[objective] = part
    ranked = [Importance(name, told) for name, told in shares.items()]
    return tuple(sorted(ranked, key=lambda item: (-item.most, item.parameter)))


def _beyond_chance(parameters: Sequence[Mapping[str, object]], numbers: Floats) -> dict[str, float]:
    """The share of each parameter that explains one objective."""
    is_known = np.isfinite(numbers)
    if is_known.sum() < FEWEST:
        return {}
    ranks = _ranks(numbers[is_known])
    known = [params for params, has in zip(parameters, is_known, strict=True) if has]
    names = sorted({name for params in known for name in params})
    groups = {name: _groups([params.get(name) for params in known]) for name in names}
    groups = {name: group for name, group in groups.items() if group.shape[1] > 1}
    if not groups or np.ptp(ranks) == 0:
        return {}
    chance = np.random.default_rng(0)
    best = np.concatenate(
        [
            np.max([_explained(group, shuffled) for group in groups.values()], axis=0)
            for _ in range(SHUFFLES // _AT_ONCE)
            for shuffled in [chance.permuted(np.tile(ranks, (_AT_ONCE, 1)), axis=1)]
        ]
    )
    threshold = float(np.quantile(best, 1 - CHANCE))
    shares = {name: float(_explained(group, ranks[None])[0]) for name, group in groups.items()}
    return {name: round(share, 4) for name, share in shares.items() if share > threshold}


def _groups(settings: Sequence[object]) -> Floats:
    """A column of ones and zeros for each group of candidates that have the same value."""
    has = [place for place, setting in enumerate(settings) if setting is not None]
    levels = _levels([settings[place] for place in has])
    columns = {level: number for number, level in enumerate(dict.fromkeys(levels))}
    members = np.zeros((len(settings), len(columns)))
    members[has, [columns[level] for level in levels]] = 1
    return members


def _explained(groups: Floats, ranks: Floats) -> Floats:
    """The share of the variation that the groups explain, for each line of ranks."""
    counts, has = groups.sum(axis=0), groups.sum(axis=1)
    freedom = int(has.sum()) - len(counts)
    if freedom < 1:
        return np.zeros(len(ranks))
    means = ranks @ groups / counts
    middle = ranks @ has / has.sum()
    between = ((means - middle[:, None]) ** 2 * counts).sum(axis=1)
    within = ranks**2 @ has - (means**2 * counts).sum(axis=1)
    total = ((ranks - ranks.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    corrected = between - (len(counts) - 1) * within / freedom
    return np.asarray(np.clip(corrected / total, 0.0, 1.0))


def _levels(settings: Sequence[object]) -> list[Hashable]:
    """The values as groups; many numbers in quarters."""
    numbers = [_importance_number(setting) for setting in settings]
    if len(set(map(str, settings))) <= _MOST_LEVELS or any(map(math.isnan, numbers)):
        return [str(setting) for setting in settings]
    edges = np.quantile(numbers, [place / _QUARTERS for place in range(1, _QUARTERS)])
    return [int(quarter) for quarter in np.searchsorted(edges, numbers)]


def _importance_number(setting: object) -> float:
    is_number = isinstance(setting, int | float) and not isinstance(setting, bool)
    return float(setting) if is_number else math.nan  # type: ignore[arg-type]


def _ranks(numbers: Floats) -> Floats:
    """Equal numbers share their mean rank."""
    _, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[place], dtype=np.float64)
