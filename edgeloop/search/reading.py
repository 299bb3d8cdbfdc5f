"""A search as its folder shows it, while it runs and afterwards, for the terminal, the portal and
the report: candidates with their parameters, fronts, hypervolume, learning curves.

`candidates.csv` grows while a search runs: its last line may be incomplete, and who is on the front
is worked out here. Folders of older versions have `search_state_<n>.csv` instead.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edgeloop._util.redact import redact
from edgeloop._util.yaml import NotYaml, parse_yaml
from edgeloop.errors import BadInput, EdgeloopError
from edgeloop.pareto import Floats
from edgeloop.search.base import on_device
from edgeloop.search.config import Objective, SearchConfig, config_of
from edgeloop.search.fronts import ReferencePoint, fronts_of, read_reference
from edgeloop.search.keys import CHIP, MINIMISED
from edgeloop.search.results import CURVE, PARAMETERS
from edgeloop.search.storage import CANDIDATES, KEPT_CONFIG, UTILISATION

LARGEST_BYTES = 32 << 20
LEARNING = "curves.csv"
_STATE = re.compile(r"search_state_(\d+)\.csv")
_NOT_VALUES = (
    *("number", "iteration", "arch_id", "state", "is_pareto", "fronts", PARAMETERS, "reason"),
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
    found = []
    for key, options in objectives.items():
        goal = options.get("goal") or ("min" if key in MINIMISED else "max")
        for device in devices if devices and key in CHIP else ("",):
            name_there = on_device(key, device)
            found.append(Objective(name_there, "min" if goal == "min" else "max"))
    return SearchConfig(name, tuple(found), devices=devices), False


def _without_variables(value: object) -> object:
    """Without the keys of a document whose values name a variable."""
    if isinstance(value, Mapping):
        kept = {key: item for key, item in value.items() if not _names_variable(item)}
        return {key: _without_variables(item) for key, item in kept.items()}
    return value


def _names_variable(value: object) -> bool:
    return isinstance(value, str) and "${" in value


def _utilisation(file: Path) -> dict[str, float]:
    try:
        found = json.loads(_text(file)) if file.is_file() else {}
    except ValueError:
        return {}
    shares = found.items() if isinstance(found, dict) else ()
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
        _whole(row.get("number", "")),
        _whole(row.get("iteration", "")),
        row["arch_id"],
        row.get("state", ""),
        {name: value for name, value in numbers.items() if not math.isnan(value)},
        _parameters(row.get(PARAMETERS, "")),
        row.get("reason", ""),
        trained=max((p.step if math.isnan(p.epoch) else p.epoch for p in points), default=None),
    )


def _with_fronts(
    config: SearchConfig, candidates: Sequence[SeenCandidate]
) -> tuple[list[SeenFront], tuple[SeenCandidate, ...]]:
    names = [objective.name for objective in config.objectives]
    if not names:
        return [SeenFront("", (), (), None)], tuple(candidates)
    complete = [item for item in candidates if all(name in item.values for name in names)]
    found = fronts_of(config, complete)
    on: dict[int, tuple[str, ...]] = {}  # by identity: numbers in a damaged table may repeat
    for name, members in found.items():
        for item in members:
            on[id(item)] = (*on.get(id(item), ()), name)
    seen = {id(item): replace(item, fronts=on.get(id(item), ())) for item in candidates}
    fronts = [
        SeenFront(
            front.name, front.objectives, tuple(seen[id(item)] for item in found[front.name]), None
        )
        for front in config.fronts
    ]
    return fronts, tuple(seen[id(item)] for item in candidates)


def _curve(rows: Rows, fronts: Sequence[str]) -> list[tuple[int, float, tuple[float, ...]]]:
    found = []
    for row in rows:
        count, volume = row.get("candidates", ""), _number(row.get("hypervolume", ""))
        if count.isdecimal() and math.isfinite(volume):
            parts = [_number(row.get(f"hypervolume@{name}", "")) for name in fronts]
            each = [volume if math.isnan(part) else part for part in parts]
            found.append((int(count), volume, tuple(each)))
    return found


def _learning(rows: Rows) -> dict[str, tuple[LearningPoint, ...]]:
    found: dict[str, list[LearningPoint]] = {}
    for row in rows:
        names = ("epoch", "step", "loss", "val_f1", "val_iou")
        point = LearningPoint(*(_number(row.get(name, "")) for name in names))
        found.setdefault(row.get("arch_id", ""), []).append(point)
    return {name: tuple(points) for name, points in found.items() if name}


def _parameters(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    plain = (str, int, float, bool)
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, plain)}


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
# Optuna's evaluators need either scikit-learn or parameters that every trial has.


FEWEST = 8  # candidates below which nothing can be said
_MOST_LEVELS = 5
_QUARTERS = 4


@dataclass(frozen=True)
class Importance:
    """`shares` by objective, each between 0 and 1."""

    parameter: str
    shares: Mapping[str, float]

    @property
    def most(self) -> float:
        return max(self.shares.values(), default=0.0)


def importances(
    parameters: Sequence[Mapping[str, object]], values: Mapping[str, Sequence[float]]
) -> tuple[Importance, ...]:
    """The most important first. `values` has a number per candidate for each objective, NaN where
    it is not known. Parameters that never differ are left out; empty if there are too few
    candidates."""
    names = sorted({name for params in parameters for name in params})
    known = {
        objective: np.asarray(numbers, dtype=np.float64) for objective, numbers in values.items()
    }
    found = []
    for name in names:
        shares = {
            objective: _explained([params.get(name) for params in parameters], numbers)
            for objective, numbers in known.items()
        }
        told = {objective: share for objective, share in shares.items() if share is not None}
        if told:
            found.append(Importance(name, told))
    return tuple(sorted(found, key=lambda item: (-item.most, item.parameter)))


def _explained(settings: Sequence[object], numbers: Floats) -> float | None:
    """None if nothing can be said."""
    is_known = np.isfinite(numbers)
    if is_known.sum() < FEWEST:
        return None
    ranks = _ranks(numbers[is_known])
    total = float(((ranks - ranks.mean()) ** 2).sum())
    kept = [setting for setting, known in zip(settings, is_known, strict=True) if known]
    has = np.array([setting is not None for setting in kept])
    levels = _levels([setting for setting in kept if setting is not None])
    groups = [ranks[has][np.array([level == one for level in levels])] for one in set(levels)]
    count, freedom = len(groups), int(has.sum()) - len(groups)
    if count < 2:
        return None
    if freedom < 1 or total == 0:
        return 0.0
    middle = ranks[has].mean()
    between = sum(len(group) * (group.mean() - middle) ** 2 for group in groups)
    within = sum(((group - group.mean()) ** 2).sum() for group in groups)
    corrected = between - (count - 1) * within / freedom
    return round(max(0.0, min(1.0, float(corrected) / total)), 4)


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
