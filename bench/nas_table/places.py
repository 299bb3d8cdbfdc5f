"""Where the work lies: what was measured, line by line, and what is needed on the way.

A line is written at once and whole, so that processes that end at any moment leave whole lines
behind; a torn one is left out. Work is claimed by making a folder, which only one process can.
"""

from __future__ import annotations

import json
import lzma
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.nas_table.space import all_params, architecture
from edgeloop.search.nets.architecture import Architecture, Value

TRAINED, TESTED, COMPILED = "trained.jsonl", "tested.jsonl", "compiled.jsonl"
FIRST_SEED, SECOND_SEED = 0, 1
REPEATED = 60
MEASURED = Path(__file__).parent / "measured"
_GROUPED_BY = ("stem_stride", "base_channels", "factor", "kernel")
_SHUFFLE = 19


@dataclass(frozen=True)
class TrainingTask:
    """A member and the seed it is trained with."""

    params: Mapping[str, Value]
    seed: int

    @property
    def arch(self) -> Architecture:
        return architecture(self.params)

    @property
    def name(self) -> str:
        return f"{self.arch.id}-{self.seed}"


@dataclass(frozen=True)
class Places:
    """`results` is what is kept; `scratch` has faces, models and claims of this run."""

    results: Path
    scratch: Path

    @property
    def faces(self) -> Path:
        return self.scratch / "faces"

    @property
    def models(self) -> Path:
        return self.scratch / "models"

    def begin(self, measured: Path = MEASURED) -> None:
        """A folder without lines begins with those that the table was made of."""
        self.results.mkdir(parents=True, exist_ok=True)
        for packed in sorted(measured.glob("*.jsonl.xz")):
            target = self.results / packed.stem
            if not target.exists():
                target.write_bytes(lzma.decompress(packed.read_bytes()))

    def write_plan(self, groups: Sequence[Sequence[TrainingTask]]) -> None:
        """What is to be trained, decided once: processes that start later than others would
        otherwise see less left."""
        plan = [[(dict(task.params), task.seed) for task in group] for group in groups]
        (self.scratch / "plan.json").write_text(json.dumps(plan), encoding="utf-8")

    def plan(self) -> list[list[TrainingTask]]:
        plan = json.loads((self.scratch / "plan.json").read_text(encoding="utf-8"))
        return [[TrainingTask(params, seed) for params, seed in group] for group in plan]

    def claim(self, name: str) -> bool:
        try:
            (self.scratch / "claims" / name).mkdir(parents=True)
        except FileExistsError:
            return False
        return True

    def add(self, name: str, line: Mapping[str, Any]) -> None:
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        descriptor = os.open(self.results / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def read(self, name: str) -> Iterator[dict[str, Any]]:
        path = self.results / name
        if not path.is_file():
            return
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                fields = json.loads(line)
            except ValueError:
                continue
            if isinstance(fields, dict):
                yield fields

    def done(self, name: str) -> set[str]:
        """The names of the trainings, or the ids of the networks, in a file."""
        if name == COMPILED:
            return {line["arch_id"] for line in self.read(name)}
        return {f"{line['arch_id']}-{line['seed']}" for line in self.read(name)}


def groups() -> list[list[TrainingTask]]:
    """All trainings, the second seed last. Members of a group have convolutions of the same
    shapes, for which a GPU's library searches its fastest algorithms once."""
    members = all_params()
    by_shape: dict[tuple[Value, ...], list[TrainingTask]] = {}
    for params in members:
        key = tuple(params[name] for name in _GROUPED_BY)
        by_shape.setdefault(key, []).append(TrainingTask(params, FIRST_SEED))
    first = list(by_shape.values())
    random.Random(_SHUFFLE).shuffle(first)
    again = [TrainingTask(members[place], SECOND_SEED) for place in repeated_places(len(members))]
    return first + [again[start : start + 12] for start in range(0, len(again), 12)]


def repeated_places(count: int) -> list[int]:
    """Which members have a second seed: any, but always the same."""
    return sorted(random.Random(_SHUFFLE).sample(range(count), min(REPEATED, count)))
