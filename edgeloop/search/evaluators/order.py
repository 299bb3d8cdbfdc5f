"""What a training process is told and what it leaves behind: two small files.

The order has the plan and the architectures; the outcome of each lies in the folder of its training
and names the conditions it holds for, so that whoever comes later knows whether it is the answer.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

from edgeloop.architectures import Architecture
from edgeloop.errors import BadInput, LocalFileError
from edgeloop.search.base import Answer
from edgeloop.training import METRICS, MODEL, TrainingPlan

ORDER, OUTCOME = "order.json", "outcome.json"
GIVES = ("val_iou", "val_f1", "training_time")


@dataclass(frozen=True)
class Order:
    """Nets to train. `at_once` of them share the machine."""

    plan: TrainingPlan
    architectures: tuple[Architecture, ...]
    conditions: str
    at_once: int = 1

    def folder(self, out: Path, arch: Architecture) -> Path:
        """A single net has all of `out`, where a job's metrics are looked for."""
        return out if len(self.architectures) == 1 else out / arch.id

    def save(self, path: Path) -> None:
        content = {
            "plan": asdict(self.plan),
            "architectures": [arch.canonical for arch in self.architectures],
            "conditions": self.conditions,
            "at_once": self.at_once,
        }
        _write(path, json.dumps(content, indent=2))

    @classmethod
    def load(cls, path: Path) -> Order:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                TrainingPlan(**content["plan"]),
                tuple(Architecture.from_json(text) for text in content["architectures"]),
                str(content["conditions"]),
                int(content["at_once"]),
            )
        except OSError as error:
            raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
        except (ValueError, TypeError, KeyError) as error:
            raise BadInput(reason=f"{path.name} is no order for training: {error}") from None


@dataclass(frozen=True)
class Outcome:
    """What came of one net: values, or an error that asking again would not change."""

    arch_id: str
    conditions: str
    values: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    seconds: float = 0.0

    def save(self, folder: Path) -> None:
        _write(folder / OUTCOME, json.dumps(asdict(self), indent=2))

    def answer(self, folder: Path) -> Answer:
        if self.error:
            return Answer(self.arch_id, seconds=self.seconds, error=self.error, is_final=True)
        files = {name: folder / name for name in (MODEL, METRICS)}
        return Answer(self.arch_id, dict(self.values), files, self.seconds)


def read_outcome(folder: Path, arch_id: str, conditions: str) -> Outcome | None:
    """None where there is none, or one of something else, or one whose net is gone."""
    try:
        content = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
        found = Outcome(**content)
        values = {str(name): float(value) for name, value in found.values.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    if (found.arch_id, found.conditions) != (arch_id, conditions):
        return None
    is_whole = set(values) == set(GIVES) and all(map(math.isfinite, values.values()))
    has_files = all((folder / name).is_file() for name in (MODEL, METRICS))
    return found if found.error or (is_whole and has_files) else None


def plan_text(plan: TrainingPlan) -> str:
    """All of a plan that a result depends on. Where the batch is left open, so is the number: it
    follows the device."""
    decides = {**plan.decides(plan.batch or 0), "batch": plan.batch, "task": plan.task}
    how = {"device": plan.device, "precision": plan.precision}
    said = {name: value for name, value in {**decides, **how}.items() if value is not None}
    return ", ".join(f"{name} {value}" for name, value in said.items())


def source_of(arch: Architecture, project: Path) -> Path | None:
    """The file of a user's space, relative to the project; None for a space that is built in."""
    file, colon, _ = arch.space.rpartition(":")
    if not colon:
        return None
    path = (project / file).resolve()
    root = project.resolve()
    return path.relative_to(root) if path.is_relative_to(root) and path.is_file() else None


def digest(*parts: str | bytes) -> str:
    total = sha256()
    for part in parts:
        total.update(sha256(part.encode() if isinstance(part, str) else part).digest())
    return total.hexdigest()[:16]


def dataset_digest(folder: Path, memory: Path) -> str:
    """Of what the files hold. The bytes are read again only where a name, a size or a time is
    another than the one in `memory`, a small file that is kept for that."""
    files = _files(folder)
    marks = [(str(path.relative_to(folder)), path.stat()) for path in files]
    listing = digest(*(f"{name}|{s.st_size}|{s.st_mtime_ns}" for name, s in marks), str(folder))
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
        if known["listing"] == listing:
            return str(known["content"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # made anew below
    content = digest(*(f"{path.relative_to(folder)}|{_content(path)}" for path in files))
    _write(memory, json.dumps({"listing": listing, "content": content}))
    return content


def _files(folder: Path) -> Sequence[Path]:
    if not folder.is_dir():
        raise LocalFileError(path=folder, reason="there is no such folder of pictures")
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")


def _content(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
    finally:
        temporary.unlink(missing_ok=True)
