"""Latencies of every NAS-Bench-201 cell: `python -m bench sampler measure FOLDER --jobs N`.

The network of each distinct cell is compiled by Qualcomm's compiler, whose simulated cycles are
kept, and run by ONNX Runtime on one core of this machine, as float32 and quantized to 8 bits. The
quantizer's scales are made up, since nothing is trained and no latency depends on them. With
`--devices` only some of them are measured, and `pack` leaves the others as they are.

Worker processes write a row as soon as they have it, and a run that is started again continues. One
that dies of a network counts it as failed and continues behind it. With `--workers-from C`, workers
are bound to a core each, from core C on, since a latency on a shared core says little.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from bench.samplers.cells import REPEATS, network, representatives
from bench.samplers.tables import DEVICES, read_rows, write_table

if TYPE_CHECKING:
    from onnx import ModelProto

SOCS = {"qcs8550": 77, "snapdragon-8-elite": 72, "sa8295p": 62}
HOST = {"x86_float32": "float.onnx", "x86_int8": "fixed.onnx"}
DEVICE_NAMES = (*SOCS, *HOST)

_CYCLES = "Simulated (Accelerator exec cycles)"
_WARM_UP, _RUNS = 5, 25
_LIMIT_S = 60.0  # a network that takes longer is given up


def run(*options: str) -> str:
    given = _parsed(options)
    given.folder.mkdir(parents=True, exist_ok=True)
    _choose_devices(given.folder, given.devices.split(",") if given.devices else DEVICE_NAMES)
    for begun in given.folder.glob("begun*"):  # of a run that was ended
        begun.unlink()
    deadline = time.monotonic() + given.seconds
    cells = _order()[: given.cells]
    workers = {number: _start(given, number) for number in range(given.jobs)}
    while workers and time.monotonic() < deadline:
        for number, worker in list(workers.items()):
            code = worker.poll()
            if code == 0:
                del workers[number]
            elif code is not None or _is_stuck(given.folder, number):
                _end(worker)
                _give_up(given.folder, number)
                workers[number] = _start(given, number)
        time.sleep(0.2)
    for worker in workers.values():
        _end(worker)
    rows = read_parts(given.folder)
    taken = [float(row["seconds"]) for row in rows.values() if row["seconds"]]
    each = statistics.mean(taken) if taken else math.nan
    return f"{len(rows)} of {len(cells)} networks measured, {each:.3f} s each"


def read_parts(folder: Path) -> dict[str, dict[str, str]]:
    """The rows of all workers by cell; a line that was being written when its worker ended is left
    out. A network that failed has empty values."""
    rows: dict[str, dict[str, str]] = {}
    columns = ("cell", *map(column_of, devices_of(folder)), "seconds")
    for part in sorted(folder.glob("part*.csv")):
        with part.open(newline="", encoding="utf-8") as file:
            found = [row for row in csv.DictReader(file, columns) if row["seconds"] is not None]
        rows |= {row["cell"]: row for row in found if row["cell"] in representatives()}
    return rows


def devices_of(folder: Path) -> tuple[str, ...]:
    """Those that are measured in this folder."""
    return tuple((folder / "devices.txt").read_text(encoding="utf-8").split())


def column_of(device: str) -> str:
    return f"{device}_us" if device in HOST else f"{device}_cycles"


def _choose_devices(folder: Path, devices: Sequence[str]) -> None:
    if unknown := set(devices) - set(DEVICE_NAMES):
        raise SystemExit(f"no such device: {', '.join(sorted(unknown))}")
    if (folder / "devices.txt").exists() and devices_of(folder) != tuple(devices):
        raise SystemExit(f"{folder} has latencies of other devices; use a new folder")
    (folder / "devices.txt").write_text("\n".join(devices), encoding="utf-8")


def pack(folder: Path, table: Path = DEVICES) -> str:
    """The shipped table, with the columns of the devices that were measured in this folder."""
    rows = read_parts(folder)
    measured = {cell for cell, row in rows.items() if row["seconds"]}
    if missing := sorted(set(representatives().values()) - measured):
        raise ValueError(f"{len(missing)} networks are missing, {missing[0]} among them")
    known = {row["cell"]: row for row in read_rows(table)} if table.is_file() else {}
    columns = [column_of(device) for device in devices_of(folder)]
    merged = (
        {"cell": cell} | known.get(cell, {}) | {name: rows[cell][name] for name in columns}
        for cell in sorted(rows)
    )
    write_table(merged, table)
    return f"{len(rows)} rows in {table}"


def _parsed(options: Iterable[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench sampler measure")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--devices", help=f"some of {', '.join(DEVICE_NAMES)}; default: all")
    parser.add_argument("--cells", type=int, default=None, help="only so many of the cells")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="cells of a stage")
    parser.add_argument("--workers-from", type=int, default=None, help="first core to bind to")
    return parser.parse_args(list(options))


def _order() -> list[str]:
    """Shuffled, so that a run that is cut short is a fair sample."""
    cells = sorted(set(representatives().values()))
    Random(0).shuffle(cells)
    return cells


def _start(given: argparse.Namespace, number: int) -> subprocess.Popen[bytes]:
    count = str(given.cells or len(_order()))
    command = [sys.executable, "-m", "bench.samplers.measure", str(given.folder.resolve())]
    command += [str(number), str(given.jobs), count, str(given.repeats)]
    if given.workers_from is not None:
        command.append(str(given.workers_from + number))
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=(given.folder / f"worker{number}.log").open("ab"),
    )


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()


def _is_stuck(folder: Path, number: int) -> bool:
    begun = folder / f"begun{number}"
    return begun.is_file() and time.time() - begun.stat().st_mtime > _LIMIT_S


def _give_up(folder: Path, number: int) -> None:
    """The network that a worker was busy with has a row without values."""
    begun = folder / f"begun{number}"
    if begun.is_file():
        row = [begun.read_text(encoding="utf-8"), *[""] * (len(devices_of(folder)) + 1)]
        _append(folder / f"part{number}.csv", row)
        begun.unlink()


def _append(part: Path, row: Sequence[Any]) -> None:
    whole = not part.is_file() or part.read_bytes()[-1:] in (b"", b"\n")
    with part.open("a", newline="", encoding="utf-8") as file:
        file.write("" if whole else "\n")
        csv.writer(file, lineterminator="\n").writerow(row)


def work(folder: Path, number: int, jobs: int, count: int, repeats: int, *core: int) -> None:
    if core:
        os.sched_setaffinity(0, core)
    done, compiler, devices = read_parts(folder), _Compiler(), devices_of(folder)
    begun, part = folder / f"begun{number}", folder / f"part{number}.csv"
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        for cell in _order()[:count][number::jobs]:
            if cell in done:
                continue
            began = time.monotonic()
            begun.write_text(cell, encoding="utf-8")
            compiler.prepare(network(cell, repeats), quantizes=devices != ("x86_float32",))
            latencies = [_latency(device, compiler) for device in devices]
            _append(part, [cell, *latencies, f"{time.monotonic() - began:.2f}"])
            begun.unlink()
        os.chdir("/")


def _latency(device: str, compiler: _Compiler) -> str:
    if device in HOST:
        return f"{host_latency_us(Path(HOST[device])):.1f}"
    return f"{compiler.cycles(SOCS[device]):.0f}"


class _Compiler:
    """In the current folder: float.onnx, fixed.onnx (quantized) and deployed.onnx of a cell."""

    def __init__(self) -> None:
        from edgeloop.platforms.qnn.native import NativeWork

        self._work = NativeWork()

    def prepare(self, model: ModelProto, quantizes: bool) -> None:
        import onnx

        from edgeloop.graph.check import read_graph
        from edgeloop.graph.rewrites.apply import apply_rewrites
        from edgeloop.platforms.qnn.quantize import deployed, quantize_with_fixed_scales

        onnx.save_model(model, "float.onnx")
        if not quantizes:
            return
        model = read_graph(Path("float.onnx"))
        apply_rewrites(model)
        quantize_with_fixed_scales(model, {"image": "NCHW"}, Path("fixed.onnx"))
        target = deployed(onnx.load_model("fixed.onnx"), {"image": "NCHW"})
        onnx.save_model(target, "deployed.onnx")

    def cycles(self, soc: int) -> float:
        from edgeloop.platforms.qnn.quantize import events_of

        profile = Path("profile.csv")
        profile.unlink(missing_ok=True)
        options = {
            "soc_model": str(soc),
            "profiling_level": "detailed",
            "profiling_file_path": str(profile.resolve()),
        }
        self._work._session("deployed.onnx", options)
        return events_of(profile, 1, (_CYCLES,))[_CYCLES]


def host_latency_us(model: Path) -> float:
    """The fastest of some single-threaded runs: other work on the machine only adds to a time."""
    import numpy as np
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])
    source = session.get_inputs()[0]
    feeds = {source.name: np.random.default_rng(0).random(source.shape, dtype=np.float32)}
    times = []
    for number in range(_WARM_UP + _RUNS):
        began = time.perf_counter()
        session.run(None, feeds)
        if number >= _WARM_UP:
            times.append(time.perf_counter() - began)
    return 1e6 * min(times)


if __name__ == "__main__":
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    work(Path(sys.argv[1]), *map(int, sys.argv[2:]))
