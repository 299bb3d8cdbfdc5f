"""The pieces of the work, each of a few minutes: `python -m bench nas_table`.

Trainers (the GPU) and testers (a core each) run beside each other for as long as `--seconds` says;
what they measured lies in `--results` as lines of JSON, and the next call continues from there. An
empty folder begins with the lines of the shipped table, in `measured`.
`pack` makes the table of it.

    python -m bench nas_table --seconds 500 --results /somewhere
    python -m bench nas_table pack --results /somewhere
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.nas_table.places import COMPILED, FIRST_SEED, TESTED, TRAINED, Places, groups
from bench.nas_table.space import SIDE, all_params
from bench.nas_table.table import FOLDER, NasTable, TableMember, read_table, write_table
from bench.nas_table.trainer import wanted
from bench.tables import markdown
from edgeloop.tasks import Trainable, open_task
from edgeloop.testing.faces import make_faces

DIFFICULTY, SEED = 1.0, 7
TEST_PART = 10_000  # of the dataset's rule: the last of the files
_LAST_TRAINING_S, _LAST_TEST_S = 60, 6  # before the end
_KILLED_S = 30


def run(*options: str) -> str:
    given = _parsed(options)
    Places(given.results, given.results).begin()
    if given.step == "pack":
        pack(Places(given.results, given.results), given.table)
        return summary(given.table)
    with TemporaryDirectory(prefix="nas-table-", dir=_fast_folder()) as name:
        places = Places(given.results, Path(name))
        _work(places, given)
    return progress(places)


def _parsed(options: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench nas_table")
    parser.add_argument("step", nargs="?", choices=("work", "pack"), default="work")
    parser.add_argument("--results", type=Path, default=Path(".edgeloop/nas_table"))
    parser.add_argument("--table", type=Path, default=FOLDER)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--trainers", type=int, default=6, help="processes that share the GPU")
    parser.add_argument("--at-once", type=int, default=2, help="trainings in each of them")
    parser.add_argument("--testers", type=int, default=max(1, (os.cpu_count() or 2) - 8))
    parser.add_argument("--images", type=int, default=768)
    parser.add_argument("--validation", type=int, default=256)
    parser.add_argument("--calibration", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--members", type=int, help="only a few, to see that it works")
    parser.add_argument("--faces", type=int, default=TEST_PART + 2560, help="images drawn")
    return parser.parse_args(list(options))


def _fast_folder() -> str | None:
    """Checkpoints of models that are gone in a minute need no disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _work(places: Places, given: argparse.Namespace) -> None:
    began = time.time()
    places.models.mkdir()
    make_faces(places.faces, given.faces, SIDE, SEED, difficulty=DIFFICULTY)
    _prepare(places, given)
    print(f"faces ready after {time.time() - began:.0f} s", flush=True)
    end = began + given.seconds
    places.write_plan(wanted(places, given.members))
    shared = [str(places.results), str(places.scratch)]
    trainer = [*("--images", str(given.images), "--validation", str(given.validation))]
    trainer += ["--batch", str(given.batch), "--at-once", str(given.at_once)]
    trainer += ["--until", str(end - _LAST_TRAINING_S), "--end", str(end - _KILLED_S)]
    tester = ["--calibration", str(given.calibration), "--validation", str(given.validation)]
    tester += [] if given.members is None else ["--members", str(given.members)]
    tester += ["--end", str(end - _LAST_TEST_S)]
    trainers = [_started("trainer", *shared, *trainer) for _ in range(given.trainers)]
    testers = [_started("tester", *shared, *tester) for _ in range(given.testers)]
    try:
        _watched(places, trainers, end - _KILLED_S + 2, began)
        (places.scratch / "trainings ended").mkdir()
        _watched(places, testers, end - _LAST_TEST_S + 2, began)
    finally:
        for process in (*trainers, *testers):
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()


def _prepare(places: Places, given: argparse.Namespace) -> None:
    """Decoded once, not by every process."""
    task = open_task("segmentation", places.faces, places.scratch / "prepared")
    assert isinstance(task, Trainable)
    task.training(SIDE, SIDE)
    task.validation(SIDE, SIDE)
    task.calibration(SIDE, SIDE, given.calibration)


def _started(module: str, *options: str) -> subprocess.Popen[bytes]:
    """With one thread each: libraries would otherwise start as many as there are cores."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"bench.nas_table.{module}", *options]
    if module == "tester":
        command = ["nice", "-n", "4", *command]  # what keeps the GPU busy goes first
    return subprocess.Popen(command, env=environment)


def _watched(
    places: Places, processes: Sequence[subprocess.Popen[bytes]], until: float, began: float
) -> None:
    said = time.time()
    while any(process.poll() is None for process in processes) and time.time() < until:
        time.sleep(0.5)
        if time.time() - said >= 20:
            said = time.time()
            print(f"{said - began:.0f} s: {progress(places)}", flush=True)


def progress(places: Places) -> str:
    every = [task.name for group in groups() for task in group]
    trained, tested = places.done(TRAINED), places.done(TESTED)
    compiled = places.done(COMPILED)
    return (
        f"{len(trained)} of {len(every)} trainings, {len(tested)} tested, "
        f"{len(compiled)} of {len(all_params())} compiled"
    )


def pack(places: Places, folder: Path) -> None:
    """The table of all members with a training and latencies; a later line replaces an earlier."""
    compiled = {line["arch_id"]: line for line in places.read(COMPILED)}
    tested = {(line["arch_id"], line["seed"]): line for line in places.read(TESTED)}
    trained = {(line["arch_id"], line["seed"]): line for line in places.read(TRAINED)}
    members = [
        _member(line, compiled[key[0]], tested.get(key))
        for key, line in trained.items()
        if key[0] in compiled
    ]
    devices = sorted({line["device"] for line in trained.values()})
    about = _about(members, next(iter(trained.values())), devices)
    write_table(members, about | _reruns(places.read(TRAINED)), folder)


def _member(
    line: dict[str, Any], compiled: dict[str, Any], tested: dict[str, Any] | None
) -> TableMember:
    return TableMember(
        params=line["params"],
        arch_id=line["arch_id"],
        seed=line["seed"],
        weights=compiled["weights"],
        macs=compiled["macs"],
        memory_bytes=compiled["memory_bytes"],
        latency_ms=compiled["latency_ms"],
        f1_curve=tuple(round(value, 4) for value in line["f1"]),
        miou_curve=tuple(round(value, 4) for value in line["miou"]),
        int8_f1=tested["f1"] if tested else None,
        int8_miou=tested["miou"] if tested else None,
        seconds=line["seconds"],
    )


def _about(
    members: Sequence[TableMember], line: dict[str, Any], devices: Sequence[str]
) -> dict[str, Any]:
    first = [member for member in members if member.seed == FIRST_SEED]
    return {
        "members": len(first),
        "repeats": len(members) - len(first),
        "tested": sum(member.int8_f1 is not None for member in first),
        "epochs": len(line["f1"]),
        "steps": line["steps"],
        "devices": list(devices),
    }


def _reruns(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Trainings that were run again with the same seed, since their models were lost: how much a
    score varies although nothing was changed. A GPU does not add in a fixed order."""
    scores: dict[tuple[str, int], list[float]] = {}
    for line in lines:
        scores.setdefault((line["arch_id"], line["seed"]), []).append(max(line["f1"]))
    pairs = np.array([found[:2] for found in scores.values() if len(found) > 1])
    if not len(pairs):
        return {"reruns": 0}
    deviation = float(np.sqrt(((pairs[:, 0] - pairs[:, 1]) ** 2).mean() / 2))
    return {"reruns": len(pairs), "rerun_f1_deviation": round(deviation, 4)}


def summary(folder: Path = FOLDER) -> str:
    """What a search can find in the table, and how sure it can be of it."""
    table = read_table(folder)
    rows = []
    for chip in table.chips:
        problem = table.problem(chip)
        fastest, best = problem.front[0], problem.front[-1]
        latency = problem.costs[:, 1]
        ends = f"{latency.min():.3f} to {latency.max():.3f}"
        rows.append((chip, ends, len(problem.front), f"{fastest.f1:.3f}", f"{best.f1:.3f}"))
    head = ("chip", "latency, ms", "networks on the front", "F1 of its fastest", "of its best")
    return "\n\n".join([markdown(head, rows), _by_size(table), _by_epoch(table), _noise(table)])


def _by_size(table: NasTable) -> str:
    """Larger networks score better, but not all of them."""
    ordered = sorted(table.members, key=lambda member: member.macs)
    quarter = len(ordered) // 4
    rows = []
    for start in range(0, 4 * quarter, quarter):
        part = ordered[start : start + quarter]
        scores = np.array([member.f1 for member in part])
        lost = [member.f1 - member.int8_f1 for member in part if member.int8_f1 is not None]
        ends = f"{part[0].macs / 1e6:.0f} to {part[-1].macs / 1e6:.0f}"
        cells = (f"{np.median(scores):.3f}", f"{scores.min():.3f} to {scores.max():.3f}")
        rows.append((ends, *cells, f"{np.median(lost):.4f}" if lost else ""))
    head = ("million MACs", "F1, median", "F1, all", "lost by quantization, median")
    return markdown(head, rows)


def _by_epoch(table: NasTable) -> str:
    """How well an early score foretells the last one."""
    last = _ranks([member.f1 for member in table.members])
    rows = []
    for epoch in (1, 3, 9, 27):
        early = [member.score("f1", epoch) for member in table.members]
        agreement = np.corrcoef(_ranks(early), last)[0, 1]
        rows.append((epoch, f"{np.median(early):.3f}", f"{agreement:.3f}"))
    return markdown(("epochs", "F1, median", "rank correlation with 27 epochs"), rows)


def _noise(table: NasTable) -> str:
    by_id = {member.arch_id: member for member in table.members}
    pairs = [(by_id[arch_id].f1, again.f1) for arch_id, again in table.repeats.items()]
    if not pairs:
        again = f"{table.about['reruns']} were trained twice with the same seed: standard deviation"
        return f"no member has a second seed; {again} {table.about.get('rerun_f1_deviation')}"
    one, other = np.array(pairs).T
    deviation = np.sqrt(((one - other) ** 2).mean() / 2)
    return (
        f"{len(pairs)} members with two seeds: standard deviation of F1 {deviation:.4f}, of F1 "
        f"between members {np.std([member.f1 for member in table.members]):.4f}"
    )


def _ranks(values: Sequence[float]) -> NDArray[np.int64]:
    return np.argsort(np.argsort(values))
