"""Reading and writing the table, and problems for samplers made of it.

    table = read_table()
    member = table.find({"stem_stride": 2, "base_channels": 16, "factor": 1.5, "layers": 2, …})
    problem = table.problem("htp:qcs8550")
    error, latency_ms = problem.cost(member.params)

`table.csv.xz` has a row per training: the seven choices, counts, scores, a latency per chip, and
the learning curves. `table.json` says how it was made. docs/reference/nas-table.md describes both.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bench.nas_table.space import CHOICES, table_space
from edgeloop.pareto import hypervolume, non_dominated
from edgeloop.search.nets.architecture import Trial, Value

FOLDER = Path(__file__).parent
ROWS, ABOUT = "table.csv.xz", "table.json"
LATENCY = "latency_ms@"
TESTS = ("int8_f1", "int8_miou")
SCORES = ("f1", "miou", *TESTS)
COUNTS = ("weights", "macs", "memory_bytes")
EPOCHS = 27
BRANCH, CHANNELS = ("stem_stride", "kernel"), ("base_channels", "factor")

Params = Mapping[str, Value]


@dataclass(frozen=True)
class TableMember:
    """A training. Curves have a value per epoch, on the validation images. The weights of the best
    epoch were quantized and scored on the same images (`int8_…`)."""

    params: dict[str, Value]
    arch_id: str
    seed: int
    weights: int
    macs: int
    memory_bytes: int
    latency_ms: dict[str, float]
    f1_curve: tuple[float, ...]
    miou_curve: tuple[float, ...]
    int8_f1: float | None
    int8_miou: float | None
    seconds: float

    @property
    def key(self) -> tuple[Value, ...]:
        return key_of(self.params)

    @property
    def f1(self) -> float:
        """Of the best epoch."""
        return max(self.f1_curve)

    @property
    def miou(self) -> float:
        """Of the epoch with the best F1."""
        return self.score("miou", len(self.f1_curve))

    def score(self, name: str = "f1", epoch: int | None = None) -> float:
        """Of the best epoch of the whole training, or of the epochs up to one. Those of
        quantized models are known of the whole training only, and do not depend on `epoch`."""
        if epoch is not None and name in ("f1", "miou"):
            best = max(range(epoch), key=self.f1_curve.__getitem__)
            return (self.f1_curve if name == "f1" else self.miou_curve)[best]
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"{self.arch_id} has no {name}")
        return float(value)


@dataclass(frozen=True)
class NasTable:
    """`members` are those of the space that were trained, with the first seed; `repeats` some of
    them with another."""

    members: tuple[TableMember, ...]
    repeats: dict[str, TableMember]
    about: dict[str, Any]

    def space(self, trial: Trial) -> dict[str, Value]:
        """Suggests a member of the table. While some of the space are not trained, channels and
        factor are one choice, whose values depend on the stem and the kernel."""
        if self.is_complete:
            return table_space(trial)
        branch = {name: trial.suggest_categorical(name, list(CHOICES[name])) for name in BRANCH}
        channels = trial.suggest_categorical(
            _channels_name(branch), self._channels[_values(branch)]
        )
        rest = [name for name in CHOICES if name not in (*BRANCH, *CHANNELS)]
        others = {name: trial.suggest_categorical(name, list(CHOICES[name])) for name in rest}
        return _whole({**branch, _channels_name(branch): channels, **others})

    @property
    def is_complete(self) -> bool:
        """Whether every member of the space is there."""
        return len(self.members) == math.prod(map(len, CHOICES.values()))

    @property
    def is_synthetic(self) -> bool:
        return bool(self.about.get("synthetic"))

    @property
    def epochs(self) -> int:
        return len(self.members[0].f1_curve)

    @property
    def chips(self) -> tuple[str, ...]:
        return tuple(self.members[0].latency_ms)

    def find(self, params: Params) -> TableMember:
        return self._by_key[key_of(_whole(params))]

    def problem(self, chip: str = "htp:qcs8550", score: str = "f1") -> TableProblem:
        if chip not in self.chips or score not in SCORES:
            known = ", ".join((*self.chips, *SCORES))
            raise ValueError(f"the table has no {chip} or no {score}: choose from {known}")
        unknown = sum(getattr(member, score) is None for member in self.members)
        if unknown:
            raise ValueError(f"{unknown} of {len(self.members)} members have no {score}")
        return TableProblem(self, chip, score)

    @cached_property
    def _channels(self) -> dict[tuple[Value, ...], list[str]]:
        """By stem and kernel: what was trained of channels and factors."""
        found: dict[tuple[Value, ...], list[str]] = {}
        for member in self.members:
            text = "x".join(str(member.params[name]) for name in CHANNELS)
            known = found.setdefault(_values(member.params), [])
            if text not in known:
                known.append(text)
        return found

    @cached_property
    def _by_key(self) -> dict[tuple[Value, ...], TableMember]:
        return {member.key: member for member in self.members}


@dataclass(frozen=True)
class TableProblem:
    """A score to maximise and the latency of a chip to minimise, known of every member."""

    table: NasTable
    chip: str
    score_name: str

    @property
    def space(self) -> Callable[[Trial], object]:
        return self.table.space

    def cheap(self, params: Params) -> dict[str, float]:
        """What is known before a training, by the names of a search's values."""
        member = self.table.find(params)
        return {
            "params": float(member.weights),
            "macs": float(member.macs),
            "memory_bytes": float(member.memory_bytes),
            "chip_latency_ms": member.latency_ms[self.chip],
        }

    def score(self, params: Params, epoch: int | None = None) -> float:
        return self.table.find(params).score(self.score_name, epoch)

    def cost(self, params: Params, epoch: int | None = None) -> tuple[float, float]:
        """Both to minimise: 1 − score, and milliseconds."""
        return 1 - self.score(params, epoch), self.table.find(params).latency_ms[self.chip]

    @cached_property
    def costs(self) -> np.ndarray:
        """(members, 2), in the order of `table.members`."""
        return np.array([self.cost(member.params) for member in self.table.members])

    @cached_property
    def reference(self) -> tuple[float, float]:
        """The worst error and the longest latency of all members."""
        error, latency_ms = self.costs.max(axis=0)
        return float(error), float(latency_ms)

    @cached_property
    def hypervolume(self) -> float:
        return hypervolume(self.costs, self.reference)

    @cached_property
    def front(self) -> tuple[TableMember, ...]:
        """The true front, the fastest member first."""
        kept = [self.table.members[place] for place in np.flatnonzero(non_dominated(self.costs))]
        return tuple(sorted(kept, key=lambda member: member.latency_ms[self.chip]))


def _values(params: Params) -> tuple[Value, ...]:
    return tuple(params[name] for name in BRANCH)


def _channels_name(params: Params) -> str:
    return "_".join(("channels", *map(str, _values(params))))


def _whole(params: Params) -> dict[str, Value]:
    """With channels and factor apart."""
    name = "" if CHANNELS[0] in params else _channels_name(params)
    if not name:
        return dict(params)
    texts = str(params[name]).split("x")
    both = {
        key: next(one for one in CHOICES[key] if str(one) == text)
        for key, text in zip(CHANNELS, texts, strict=True)
    }
    return {**{key: value for key, value in params.items() if key != name}, **both}


def key_of(params: Params) -> tuple[Value, ...]:
    return tuple(params[name] for name in CHOICES)


def read_table(folder: Path = FOLDER) -> NasTable:
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    text = lzma.decompress((folder / ROWS).read_bytes()).decode()
    trainings = [_member(row) for row in csv.DictReader(io.StringIO(text))]
    first = min(member.seed for member in trainings)
    return NasTable(
        tuple(member for member in trainings if member.seed == first),
        {member.arch_id: member for member in trainings if member.seed != first},
        about,
    )


def write_table(
    trainings: Iterable[TableMember], about: Mapping[str, Any], folder: Path = FOLDER
) -> None:
    """The same bytes for the same trainings, whatever their order."""
    order = {tuple(map(str, key)): place for place, key in enumerate(_all_keys())}
    ordered = sorted(trainings, key=lambda one: (one.seed, order[tuple(map(str, one.key))]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for place, member in enumerate(ordered):
        row = _row(member)
        if not place:
            writer.writerow(row)
        writer.writerow(row.values())
    packed = lzma.compress(text.getvalue().encode(), preset=9 | lzma.PRESET_EXTREME)
    (folder / ROWS).write_bytes(packed)
    (folder / ABOUT).write_text(json.dumps(dict(about), indent=1) + "\n", encoding="utf-8")


def _all_keys() -> list[tuple[Value, ...]]:
    from bench.nas_table.space import all_params

    return [key_of(params) for params in all_params()]


def _row(member: TableMember) -> dict[str, object]:
    row: dict[str, object] = {**member.params, "arch_id": member.arch_id, "seed": member.seed}
    row |= {name: getattr(member, name) for name in COUNTS}
    row |= {name: _text(getattr(member, name), 4) for name in TESTS}
    row["seconds"] = _text(member.seconds, 1)
    row |= {LATENCY + chip: _text(ms, 5) for chip, ms in member.latency_ms.items()}
    for name, curve in (("f1", member.f1_curve), ("miou", member.miou_curve)):
        row |= {f"{name}_{epoch}": _text(value, 4) for epoch, value in enumerate(curve, 1)}
    return row


def _member(row: Mapping[str, str]) -> TableMember:
    scores = {name: float(row[name]) if row[name] else None for name in TESTS}
    choices = {name: {str(one): one for one in kinds} for name, kinds in CHOICES.items()}
    return TableMember(
        params={name: choices[name][row[name]] for name in CHOICES},
        arch_id=row["arch_id"],
        seed=int(row["seed"]),
        **{name: int(row[name]) for name in COUNTS},
        latency_ms={
            name.removeprefix(LATENCY): float(value)
            for name, value in row.items()
            if name.startswith(LATENCY)
        },
        f1_curve=_curve(row, "f1"),
        miou_curve=_curve(row, "miou"),
        **scores,  # type: ignore[arg-type]
        seconds=float(row["seconds"]),
    )


def _curve(row: Mapping[str, str], name: str) -> tuple[float, ...]:
    epochs = range(1, EPOCHS + 1)
    return tuple(float(row[f"{name}_{epoch}"]) for epoch in epochs)


def _text(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
