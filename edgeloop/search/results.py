"""What a search leaves behind: its tables, its fronts and its hypervolume."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from edgeloop._util.files import replacing, write_atomic
from edgeloop.errors import ModelBusy, NameTaken
from edgeloop.models.catalog import Candidates
from edgeloop.search.base import Evaluator, columns_of, is_result
from edgeloop.search.config import SearchConfig
from edgeloop.search.fronts import (
    ReferencePoint,
    VolumeCurve,
    front_names,
    front_of,
    fronts_of,
    mean_of,
    write_reference,
)
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.checkpoint import HISTORY, METRICS, MODEL
from edgeloop.search.nets.export import export_onnx
from edgeloop.search.nets.spaces import build
from edgeloop.search.storage import CANDIDATES, PARETO, patiently
from edgeloop.search.study import Candidate
from edgeloop.store import Value
from edgeloop.workspace import Workspace

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
# `pareto/<id>.json`      its architectures; `edgeloop train` builds them again
# `pareto/<id>.onnx`      their models, trained if the search trained them


CURVE, FRONT = "hypervolume.csv", "front.csv"
PARAMETERS = "parameters"  # what was suggested to the space, as JSON
_CURVE_COLUMNS = ("candidates", "hypervolume")


class RunningTables:
    """`candidates.csv` and `hypervolume.csv` of a search that runs.

    Both are written anew from the study when a search starts or resumes, which removes a line that
    a kill cut off, and `hypervolume.csv` once more when the reference point is chosen, since only
    then is the hypervolume of the first candidates known. Otherwise lines are only appended. A
    reader may see an incomplete last line.
    """

    def __init__(
        self,
        folder: Path,
        config: SearchConfig,
        names: Iterable[str],
        ended: Iterable[Candidate],
        known: ReferencePoint | None = None,
        keep: Callable[[ReferencePoint], None] = lambda _: None,
    ) -> None:
        self._folder, self._config, self._keep = folder, config, keep
        self._names = tuple(dict.fromkeys([*config.wanted, *names]))
        self._count = 0
        columns = ("number", "iteration", "arch_id", "state", *self._names, PARAMETERS, "reason")
        every = list(ended)
        rows = [columns, *(self._row(candidate) for candidate in every)]
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
            *(candidate.number, candidate.place // self._config.iteration, candidate.arch.id),
            *(candidate.state, *(candidate.values.get(name, "") for name in self._names)),
            *(_parameters(candidate), " ".join(candidate.reason.split())),  # a row is one line
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


def write_tables(folder: Path, config: SearchConfig, candidates: Sequence[Candidate]) -> None:
    """The final tables, from the study."""
    ended = [item for item in candidates if item.state != "running"]
    if not ended:
        return
    for iteration in range(max(item.place for item in ended) // config.iteration + 1):
        until = [item for item in ended if item.place // config.iteration <= iteration]
        write_atomic(folder / f"search_state_{iteration}.csv", _state_table(config, until))
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
    known = (name for item in candidates for name in item.values if is_result(name))
    names = list(dict.fromkeys([*config.wanted, *known]))
    fronts = fronts_of(config, candidates)
    several = ("fronts",) if config.devices else ()
    heads = ("number", "iteration", "arch_id", "state", *names, PARAMETERS, "is_pareto")
    rows: list[Sequence[object]] = [(*heads, *several, "reason")]
    for item in candidates:
        values = [item.values.get(name, "") for name in names]
        iteration = item.place // config.iteration
        on = front_names(fronts, item)
        ending = (_parameters(item), int(bool(on)), *([" ".join(on)] if several else ()))
        place = (item.number, iteration, item.arch.id, item.state)
        rows.append((*place, *values, *ending, item.reason))
    return csv_text(rows)


def _parameters(candidate: Candidate) -> str:
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
        known = read_curves(folder)
        self._steps = {name: {point.step for point in curve} for name, curve in known.items()}
        if known:
            rows = ((name, *astuple(point)) for name, curve in known.items() for point in curve)
            write_atomic(self._file, csv_text([_COLUMNS, *rows]))

    def add(self, arch_id: str, history: Path) -> None:
        """What is new in the `metrics.jsonl` of a training."""
        known = self._steps.setdefault(arch_id, set())
        new = [point for point in _points(history) if point.step not in known]
        if not new:
            return
        is_first = not self._file.exists()
        rows = [(arch_id, *astuple(point)) for point in new]
        with self._file.open("ab") as file:
            file.write(csv_text([_COLUMNS, *rows] if is_first else rows).encode())
        known.update(point.step for point in new)


def read_curves(folder: Path) -> dict[str, list[CurvePoint]]:
    """The learning curve of each candidate, by the id of its architecture, in order of steps."""
    found: dict[str, dict[int, CurvePoint]] = {}
    for row in _lines(folder / CURVES):
        point = _point(row)
        if point is not None and row.get("arch_id"):
            found.setdefault(row["arch_id"], {})[point.step] = point
    return {name: [curve[step] for step in sorted(curve)] for name, curve in found.items()}


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
    found = []
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
            found.append(point)
    return found


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
        models = "1 model" if len(lacking) == 1 else f"{len(lacking)} models"
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
                names.append(
                    publish(self._workspace, item.arch, TRAINED, model, item.values, columns, tag)
                )
        return names

    def _file(self, arch: Architecture) -> Path:
        return self._folder / MODELS / f"{arch.id}.onnx"
