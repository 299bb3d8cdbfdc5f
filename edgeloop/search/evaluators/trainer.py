"""Training as a process: `python -m edgeloop.search.evaluators.trainer order.json …`, started here
by `LocalTraining` and on other machines by the jobs of `PartialTraining`.

`order.json` has the training plan and the architectures. The result of each, `outcome.json`, lies
in the folder of its training and names the conditions it was obtained under, so that a later search
knows whether it can use it. A training that paused has one, too, and keeps its checkpoint.

What is wrong with a model itself is an outcome and not a failure of the process: the next attempt
would end the same way. Anything else ends the process with an error, so that it may be started
again; it then continues from the checkpoints and skips what already has an outcome.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from edgeloop._util.files import write_atomic
from edgeloop._util.processes import end_with_leash
from edgeloop.errors import BadInput, EdgeloopError, LocalFileError
from edgeloop.search.base import Evaluation
from edgeloop.search.evaluators.threads import failure
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.plan import (
    CHECKPOINT,
    HISTORY,
    METRICS,
    MODEL,
    TrainingPaths,
    TrainingPlan,
    TrainingProgress,
    TrainingResult,
)
from edgeloop.search.nets.spaces import digest
from edgeloop.search.nets.train import SharedTraining, TrainingItem, train, train_item, train_many
from edgeloop.settings import cache_folder

ORDER, OUTCOME = "order.json", "outcome.json"
GIVES = ("val_iou", "val_f1", "training_time")


@dataclass(frozen=True)
class TrainingOrder:
    """Architectures to train, `at_once` of them at a time; `until` says where some of them pause,
    by their ids."""

    plan: TrainingPlan
    architectures: tuple[Architecture, ...]
    conditions: str
    at_once: int = 1
    until: Mapping[str, int] = field(default_factory=dict)

    def folder(self, out: Path, arch: Architecture) -> Path:
        """A single architecture is trained in `out` itself, where the metrics of a job belong."""
        return out if len(self.architectures) == 1 else out / arch.id

    def parts(self, out: Path) -> Iterator[tuple[Architecture, Path, int | None]]:
        """Each architecture, its folder, and where it pauses."""
        for arch in self.architectures:
            yield arch, self.folder(out, arch), self.until.get(arch.id)

    def save(self, path: Path) -> None:
        content = {
            "plan": asdict(self.plan),
            "architectures": [arch.canonical for arch in self.architectures],
            "conditions": self.conditions,
            "at_once": self.at_once,
            "until": dict(self.until),
        }
        _write(path, json.dumps(content, indent=2))

    @classmethod
    def load(cls, path: Path) -> TrainingOrder:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                TrainingPlan(**content["plan"]),
                tuple(Architecture.from_json(text) for text in content["architectures"]),
                str(content["conditions"]),
                int(content["at_once"]),
                {str(name): int(at) for name, at in content.get("until", {}).items()},
            )
        except OSError as error:
            raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
        except (ValueError, TypeError, KeyError) as error:
            raise BadInput(reason=f"{path.name} is not a training order: {error}") from None


@dataclass(frozen=True)
class TrainingOutcome:
    """The result of one training: values, or an error that another attempt would not change. One
    that is `paused_at` so many epochs or steps has no model yet."""

    arch_id: str
    conditions: str
    values: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    seconds: float = 0.0
    paused_at: int = 0

    def save(self, folder: Path) -> None:
        _write(folder / OUTCOME, json.dumps(asdict(self), indent=2))

    def evaluation(self, folder: Path) -> Evaluation:
        if self.error:
            return Evaluation(self.arch_id, seconds=self.seconds, error=self.error, is_final=True)
        names = (METRICS,) if self.paused_at else (MODEL, METRICS)
        present = (*names, HISTORY) if (folder / HISTORY).is_file() else names
        files = {name: folder / name for name in present}
        values = dict(self.values)
        return Evaluation(self.arch_id, values, files, self.seconds, paused_at=self.paused_at)


def read_outcome(
    folder: Path, arch_id: str, conditions: str, until: int | None = None
) -> TrainingOutcome | None:
    """None if there is none, if it is of something else, if its model is gone, or if the training
    paused before `until` (its end, without one)."""
    try:
        content = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
        outcome = TrainingOutcome(**content)
        values = {str(name): float(value) for name, value in outcome.values.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    if (outcome.arch_id, outcome.conditions) != (arch_id, conditions):
        return None
    is_whole = set(values) == set(GIVES) and all(map(math.isfinite, values.values()))
    if outcome.paused_at:
        return outcome if is_whole and until is not None and outcome.paused_at >= until else None
    has_files = all((folder / name).is_file() for name in (MODEL, METRICS))
    return outcome if outcome.error or (is_whole and has_files) else None


def plan_text(plan: TrainingPlan) -> str:
    """All of a plan that a result depends on. An open batch size depends on the device."""
    decides = {**plan.decides(plan.batch or 0), "batch": plan.batch, "task": plan.task}
    how = {"device": plan.device, "precision": plan.precision}
    said = {name: value for name, value in {**decides, **how}.items() if value is not None}
    return ", ".join(f"{name} {value}" for name, value in said.items())


def dataset_digest(folder: Path, cache: Path) -> str:
    """Of the content of all files. They are read again only if a name, size or time differs from
    the listing in `cache`, a small file."""
    if not folder.is_dir():
        raise LocalFileError(path=folder, reason="there is no such folder of images")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")
    marks = [(str(path.relative_to(folder)), path.stat()) for path in files]
    listing = digest(*(f"{name}|{s.st_size}|{s.st_mtime_ns}" for name, s in marks), str(folder))
    try:
        cached = json.loads(cache.read_text(encoding="utf-8"))
        if cached["listing"] == listing:
            return str(cached["content"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    content = digest(
        *(f"{path.relative_to(folder)}|{sha256(path.read_bytes()).hexdigest()}" for path in files)
    )
    _write(cache, json.dumps({"listing": listing, "content": content}))
    return content


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text + "\n")
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["serve"]:
        return serve_card(arguments[1:])
    parser = argparse.ArgumentParser(prog="trainer", description="Train the models of an order.")
    parser.add_argument("order", type=Path)
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--project", type=Path, default=Path())
    parser.add_argument("--leash", action="store_true", help="end when standard input closes")
    options = parser.parse_args(arguments)
    if options.leash:
        threading.Thread(target=end_with_leash, daemon=True).start()
    # Per machine: its next job on the same dataset finds the images decoded.
    cache = options.cache or cache_folder() / "prepared"
    try:
        paths = TrainingPaths(options.dataset, options.out, cache, options.project)
        return perform(TrainingOrder.load(options.order), paths)
    except EdgeloopError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def perform(
    order: TrainingOrder,
    paths: TrainingPaths,
    one: Callable[..., TrainingResult] = train,
    say: Callable[[str], object] = sys.stderr.write,
) -> int:
    """Train all that has no outcome yet, `one` by one or several at a time; the exit code says
    whether all have one now."""
    code = 0
    for arch, result in _results(order, paths, one):
        folder = order.folder(paths.out, arch)
        if isinstance(result, TrainingResult):
            values = dict(zip(GIVES, (result.miou, result.f1, result.seconds), strict=True))
            paused_at = order.until[arch.id] if result.is_paused else 0
            TrainingOutcome(arch.id, order.conditions, values, "", result.seconds, paused_at).save(
                folder
            )
            if not paused_at:
                (folder / CHECKPOINT).unlink(missing_ok=True)  # as large as three models
        elif (failed := failure(arch.id, result)).is_final:
            TrainingOutcome(arch.id, order.conditions, error=failed.error).save(folder)
        else:
            say(f"{failed.error}\n")
            code = 1
    return code


def _results(
    order: TrainingOrder, paths: TrainingPaths, one: Callable[..., TrainingResult]
) -> Iterator[tuple[Architecture, TrainingResult | EdgeloopError]]:
    remaining = [
        TrainingItem(arch, replace(paths, out=folder), until)
        for arch, folder, until in order.parts(paths.out)
        if not read_outcome(folder, arch.id, order.conditions, until)
    ]
    if len(remaining) > 1 and order.at_once > 1:
        many = train_many(remaining, order.plan, at_once=order.at_once)
        yield from ((item.arch, result) for item, result in many)
        return
    for item in remaining:
        yield item.arch, train_item(item, order.plan, one)


# The process in which candidates share a GPU: `python -m edgeloop.search.evaluators.trainer serve
# …`, started by `SharedTrainers` and kept as long as the search runs.
#
# It reads one JSON line per call from its standard input ({"train": 7, "folder": …} or {"stop":
# 7}) and answers on its standard output when a candidate begins and when it ends. A candidate is
# trained in its own folder, by its own order, in a thread. After an error that leaves the GPU
# unusable for all of them, such as an illegal memory access, the process ends. Its
# parent then tries those that were in training one by one, to find the one to blame.


LOG = "train.log"
BROKEN = 70  # the exit code when the GPU cannot be used by this process any more
_BREAKS = ("CUDA error", "CUDNN_STATUS", "CUBLAS_STATUS", "device-side assert")


class TrainingCanceled(Exception):
    """It was over its time limit."""


class CardServer:
    """Threads that train, one per candidate, on a device that they share."""

    def __init__(self, device: SharedTraining, paths: TrainingPaths, answers: int) -> None:
        self._device, self._paths, self._answers = device, paths, answers
        self._lock = threading.Lock()
        self._stopped: set[int] = set()

    def serve(self, calls: int) -> None:
        """Until our side is gone: then whatever runs ends, however busy it is."""
        self._answer(0, "ready")
        with os.fdopen(calls, encoding="utf-8") as lines:
            for line in lines:
                call = json.loads(line)
                if "stop" in call:
                    self._stopped.add(call["stop"])
                    continue
                arguments = (call["train"], Path(call["folder"]))
                threading.Thread(target=self._train, args=arguments, daemon=True).start()
            end_with_leash(calls)

    def _train(self, number: int, folder: Path) -> None:
        code, text = 1, ""
        with (folder / LOG).open("w", encoding="utf-8") as log:
            try:
                code = perform(
                    TrainingOrder.load(folder / ORDER),
                    replace(self._paths, out=folder),
                    partial(
                        self._device.train,
                        begun=partial(self._answer, number, "begun"),
                        progress=partial(self._check, number),
                    ),
                    log.write,
                )
            except TrainingCanceled:
                text = "it was stopped"
            except EdgeloopError as error:
                text = str(error)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it has an answer
                traceback.print_exc(file=log)
                log.flush()
                text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                if any(sign in str(error) for sign in _BREAKS):
                    sys.stderr.write(f"{folder.parent.name}: {text}\n")
                    os._exit(BROKEN)
        self._answer(number, "ended", code=code, text=text)

    def _check(self, number: int, _: TrainingProgress) -> None:
        if number in self._stopped:
            raise TrainingCanceled

    def _answer(self, number: int, what: str, **more: object) -> None:
        used = self._device.shared.usage.mean()
        line = json.dumps({"number": number, "what": what, "gpu": used, **more}) + "\n"
        with self._lock:
            os.write(self._answers, line.encode())


def serve_card(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="trainer serve", description="Train candidates on one device."
    )
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=0, help="0: as many as there is room for")
    options = parser.parse_args(arguments)
    # Whatever libraries print goes to the log, not between the answers.
    calls, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    try:
        plan = TrainingPlan(device=options.device, threads=options.threads)
        shared = SharedTraining(plan, options.at_once or None)
        with shared.opened():
            paths = TrainingPaths(options.dataset, Path(), options.cache, options.project)
            CardServer(shared, paths, answers).serve(calls)
    except EdgeloopError as error:
        sys.stderr.write(f"{error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
