"""The process that trains: `python -m edgeloop.search.evaluators.trainer order.json …`, started
here by `LocalTraining` and on other machines by the jobs of `PartialTraining`.

What is wrong with a net itself is written down as its outcome and is no failure of the process: it
would be the same next time. Anything else ends the process with an error, so that whoever started
it may try again; it then goes on from the checkpoints and skips what has its outcome already.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeloop.architectures import Architecture
from edgeloop.errors import EdgeloopError
from edgeloop.search.evaluators.desk import failure
from edgeloop.search.evaluators.order import GIVES, Order, Outcome, read_outcome
from edgeloop.settings import cache_folder
from edgeloop.training import CHECKPOINT, TrainingItem, TrainingResult, train, train_many


@dataclass(frozen=True)
class Places:
    dataset: Path
    out: Path
    cache: Path
    project: Path


def main(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(arguments)
    if given.leash:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    places = Places(given.dataset, given.out, given.cache or _usual_cache(), given.project)
    try:
        return perform(Order.load(given.order), places)
    except EdgeloopError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def perform(order: Order, places: Places) -> int:
    """Train all that has no outcome yet; the exit code says whether all have one now."""
    code = 0
    for arch, result in _results(order, places):
        folder = order.folder(places.out, arch)
        if isinstance(result, TrainingResult):
            values = dict(zip(GIVES, (result.miou, result.f1, result.seconds), strict=True))
            Outcome(arch.id, order.conditions, values, "", result.seconds).save(folder)
            (folder / CHECKPOINT).unlink(missing_ok=True)  # as large as three nets, and done with
        elif (said := failure(arch.id, result)).is_final:
            Outcome(arch.id, order.conditions, error=said.error).save(folder)
        else:
            sys.stderr.write(f"{said.error}\n")
            code = 1
    return code


def _results(
    order: Order, places: Places
) -> Iterator[tuple[Architecture, TrainingResult | EdgeloopError]]:
    open_ones = [
        TrainingItem(arch, order.folder(places.out, arch))
        for arch in order.architectures
        if not read_outcome(order.folder(places.out, arch), arch.id, order.conditions)
    ]
    if len(open_ones) > 1 and order.at_once > 1:
        trained = train_many(
            open_ones,
            places.dataset,
            order.plan,
            at_once=order.at_once,
            cache=places.cache,
            project=places.project,
        )
        yield from ((candidate.arch, outcome) for candidate, outcome in trained)
        return
    for candidate in open_ones:
        yield candidate.arch, _trained(candidate, order, places)


def _trained(
    candidate: TrainingItem, order: Order, places: Places
) -> TrainingResult | EdgeloopError:
    try:
        return train(
            candidate.arch,
            places.dataset,
            order.plan,
            candidate.out,
            cache=places.cache,
            project=places.project,
        )
    except EdgeloopError as error:
        return error


def _end_with_parent() -> None:
    """The pipe on our standard input closes when the process at its other end is gone, however it
    went. All of our group goes then."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def _usual_cache() -> Path:
    """Of the machine: its next job on the same dataset finds the pictures decoded."""
    return cache_folder() / "prepared"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trainer", description="Trains the nets of an order.")
    parser.add_argument("order", type=Path)
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--project", type=Path, default=Path())
    parser.add_argument("--leash", action="store_true", help="end when standard input closes")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
