"""What a search leaves behind, for people and for other programs: files in its folder, and models
in the status table.

While it runs, a line is appended for every candidate that ended:

`candidates.csv`        all candidates, in the order in which they ended
`hypervolume.csv`       the hypervolume after so many candidates, and that of each chip's front
`curves.csv`            the learning curves of all candidates
`reference.json`        the reference point and the ideal point of the hypervolume, once chosen

When it ends:

`search_state_<n>.csv`  all candidates up to iteration n, in the order of their proposal
`front.csv`             the Pareto front; with several chips, all that are on the front of one, with
                        the names of these chips in the column `fronts`
`pareto/<id>.json`      its architectures; `edgeloop train` builds them again
`pareto/<id>.onnx`      their models, trained if the search trained them
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from edgeloop._util.files import replacing, write_atomic
from edgeloop.architectures import Architecture
from edgeloop.errors import ModelBusy, NameTaken
from edgeloop.models import Candidates
from edgeloop.search.base import is_result
from edgeloop.search.config import SearchConfig
from edgeloop.search.folders import CANDIDATES, PARETO
from edgeloop.search.results.curves import csv_text
from edgeloop.search.results.fronts import front_names, front_of, fronts_of
from edgeloop.search.results.volume import ReferencePoint, VolumeCurve, mean_of, write_reference
from edgeloop.search.storage import patiently
from edgeloop.search.study import Candidate
from edgeloop.store import Value
from edgeloop.workspace import Workspace

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
