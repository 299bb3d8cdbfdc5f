"""A project as a farm leaves it: models in every state, files, use of devices, a search. All of it
from a seed, but for the times, which are relative to now so that pages read naturally."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from edgeloop.models.runners import CurrentStage, RunnerDevice, RunnerEntry, columns_of
from edgeloop.node.ticket import log_key, outputs_folder
from edgeloop.runner.presence import record_use
from edgeloop.settings import Settings
from edgeloop.workspace import Workspace
from tests.portal.pictures import examples

NASTY = "<script>alert(1)<b>"
NASTY_TAG = "\"><img src=x onerror='alert(2)'>"
SHOWN = "calm-heron"  # the model with files
CLASSES = (
    "background",
    "skin",
    "nose",
    "eyes",
    "brows",
    "ears",
    "mouth",
    "neck",
    "hair",
    "glasses",
)
_FIRST = ("calm", "brisk", "amber", "quiet", "bold", "lucid", "mellow", "swift", "tidy", "vivid")
_SECOND = ("heron", "otter", "lynx", "wren", "ibis", "tapir", "gecko", "marten", "finch", "newt")
_ORDER = ("convert", "benchmark", "f1_onnx", "f1_1k", "f1_1k_f", "f1_10k")
_DEVICES = ("htp:snapdragon-888", "htp:snapdragon-8-gen-2", "adb:3f9a21")
HOT = "a benchmark waits until it is below 75 °C"
WAITS = "2 waiting for benchmark, which this runner does not do"
_FILES = {"benchmark": "perf_results_5.csv", "f1_10k": "test_results_f1_10k.csv"}


def fill(folder: Path, environ: dict[str, str] | None = None, count: int = 120) -> None:
    """`count` models in the project at `folder`; two names and a tag are hostile."""
    with Workspace(Settings.load(folder, environ or {})) as workspace:
        models = workspace.store.models(workspace.experiment)
        for row in rows(count):
            models.insert(str(row["name"]), row)
        prefix = f"{workspace.experiment}/{SHOWN}"
        for name, content in files().items():
            workspace.store.blobs.put(f"{prefix}/{name}", content)
        for device, start, end, model, stage in uses():
            record_use(workspace.store.usage(), device, start, end, model=model, stage=stage)
        fill_registry(workspace)
    write_search(folder / "searches" / "faces")


def fill_registry(workspace: Workspace) -> None:
    """Three machines: one with boards in every state, one that converts, one that died."""
    now, registry = workspace.store.now(), workspace.store.runners()
    on_board, on_host = ("device", "device-accuracy", "device-float"), ("onnx", "quantize")
    boards = (
        RunnerDevice("", "busy", can=on_host, doing=(CurrentStage("convert", NASTY, now - 40),)),
        RunnerDevice(
            *("adb:3f9a21", "idle", "", "snapdragon-888", on_board, (), now - 300, 41.0),
            *(f"benchmark {NASTY}: the board's tool left no profile", now - 7000),
        ),
        RunnerDevice("adb:77c1", "hot", HOT, can=on_board, since=now - 90, celsius=81.4),
        RunnerDevice("adb:90de", "unplugged", "plug it in again", can=on_board, since=now - 4000),
        RunnerDevice("adb:a001", "unauthorized", "accept the dialog", since=now - 700),
        RunnerDevice("adb:b002", "plugged", since=now - 7_000),
    )
    machine = (RunnerDevice("", can=on_host, since=now - 30),)
    for node, devices, age_s in (
        ("lab-1", boards, -9e5),
        ("quant", machine, -9e5),
        (NASTY, machine, 99),
    ):
        entry = RunnerEntry(
            f"{node}|1", node, "default", node, 1, "0.1.0", waits_for=WAITS, devices=devices
        )
        registry.insert(f"{node[:3]}|1", {**columns_of(entry), "beat": now - age_s})


def write_jobs(workspace: Workspace) -> None:
    """One that completed, with files and curves; one that failed; one that runs on a compute that
    does not answer; one that waits."""
    now, rng = time.time(), Random(4)
    took = {"started": now - 7000, "ended": now - 4000, "node": "gpu-3"}
    done = {"state": "completed", "exit_code": 0, **took, "published": {"faces-net": 3}}
    _write_job(workspace, "faces-small", done | {"metrics": {"val_iou": 0.7213, "loss": 0.081}})
    bad = {"state": "failed", "exit_code": 1, "reason": "the script ended with exit code 1", **took}
    _write_job(workspace, "faces-large", bad)
    _write_job(
        workspace, "faces-night", {"state": "running", "started": now - 900}, compute="cluster"
    )
    _write_job(workspace, "sweep-7", {"state": "queued"}, compute="cluster")
    blobs, job = workspace.store.blobs, _job_id("faces-small")
    log = [f"epoch {n}: loss {1 / n:.4f}, val_iou {0.72 - 0.5 / n:.4f}" for n in range(1, 61)]
    blobs.put(log_key(job, 0), "\n".join(log).encode())
    blobs.put(log_key(_job_id("faces-large"), 0), b"Traceback: CUDA out of memory\n" * 3)
    curve = [
        {"epoch": n, "loss": 1 / n + rng.uniform(0, 0.02), "val_iou": 0.72 - 0.5 / n, "lr": 1e-3}
        for n in range(1, 61)
    ]
    blobs.put(f"{outputs_folder(job)}metrics.jsonl", "\n".join(map(json.dumps, curve)).encode())
    short = [{"epoch": n, "loss": 1.3 / n + 0.05, "val_iou": 0.68 - 0.5 / n} for n in range(1, 24)]
    large = f"{outputs_folder(_job_id('faces-large'))}metrics.jsonl"
    blobs.put(large, "\n".join(map(json.dumps, short)).encode())
    blobs.put(f"{outputs_folder(job)}checkpoints/best-of-the-whole-training.pt", bytes(70_000))


def _write_job(
    workspace: Workspace, name: str, status: dict[str, Any], compute: str = "local"
) -> None:
    record = {
        "id": _job_id(name),
        "name": name,
        "created": _utc(time.time() - 7200),
        "experiment": "default",
        "spec": {"code": ".", "script": "train.py", "compute": compute},
        "compute": compute,
        "kind": "local",
        "config": {"kind": "local"},
        "code": "d11a0bd7727d6f320499c04d24c21093fd6a284b",
        "command": ["python", "train.py", "--epochs", "60", "--data", "data/working/faces"],
        "params": {"epochs": "60", "width": name.partition("-")[2]},
        "tags": ["faces", "first try"],
    }
    folder = Path(workspace.settings.project) / "runs" / name
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(record))
    (folder / "state.json").write_text(json.dumps({"status": status, "cancel_asked": False}))


def _job_id(name: str) -> str:
    return f"{name}-1-qmwz4sk2tt"


def rows(count: int) -> Iterator[dict[str, Any]]:
    rng, now = Random(5), time.time()
    for number in range(count):
        row = _row(rng, number, now)
        if number == 3:
            row |= {"name": NASTY, "tags": json.dumps([NASTY_TAG])}
        yield row


def _row(rng: Random, number: int, now: float) -> dict[str, Any]:
    name = f"{_FIRST[number % 10]}-{_SECOND[number // 10 % 10]}"
    latency_ms = math.exp(rng.gauss(1.2, 0.5))
    f1 = 0.93 - 0.35 * math.exp(-latency_ms / 2.5) - abs(rng.gauss(0, 0.04))
    row: dict[str, Any] = {
        "name": name if number < 100 else f"{name}-{number // 100 + 1}",
        "status": "complete",
        "model_name": f"{name}.onnx",
        "model_date": _utc(now - 4e5 + 900 * number),
        "since": _utc(now - rng.uniform(60, 3e5)),
        "iteration": number * 6 // 120,
        "quantized": True,
        "macs": int(latency_ms * 1.1e8),
        "params": int(latency_ms * 2e5),
        "shape": "[1, 3, 256, 256]",
        "output_shape": "[1, 19, 256, 256]",
        "device": _DEVICES[number % 3],
        "precision": "a8w8",
        "latency_kind": "measured" if number % 3 == 2 else "estimate",
        "total_inference_avg": json.dumps([latency_ms / 1e3] * 5),
        "mean": latency_ms / 1e3,
        "stdev": abs(rng.gauss(2.5, 1.5)),
        "f1_onnx": f1 + 0.012,
        "f1_1k": f1,
        "f1_1k_f": f1 + 0.01,
        "f1_10k": f1 - 0.002,
        "stages": json.dumps({}),
    }
    if number % 7 == 0:
        row["tags"] = json.dumps(["baseline"])
    return row | _state(number, now)


def _state(number: int, now: float) -> dict[str, Any]:
    """One in ten is at work, one in twelve waits, a few failed."""
    if number == 0:
        return {}
    if number % 10 == 4:
        held = {
            "token": "t",
            "owner": f"bench-{number % 4}/{_DEVICES[number % 3]}",
            "since": now - 7 * number,
        }
        record = {"f1_10k": {**held, "expires": now + 86_400}}
        running = {
            "status": "running f1_10k",
            "node": held["owner"],
            "since": _utc(now - 7 * number),
        }
        return {**running, "stages": json.dumps(record), "f1_10k": None}
    if number % 12 == 5:
        empty = dict.fromkeys(("mean", "stdev", "total_inference_avg", "f1_1k", "f1_10k"))
        return {"status": "new", **empty, "quantized": None, "f1_onnx": None, "f1_1k_f": None}
    if number % 31 == 9:
        reason = "Converting failed: the operator GridSample has no counterpart on the chip."
        return {"status": "error", "error": reason, "mean": None, "f1_1k": None, "f1_10k": None}
    return {}


def files() -> dict[str, bytes]:
    rng = Random(9)
    layers = [("condition", "chip", "", "snapdragon-888", "estimate")]
    for number in range(48):
        kind = rng.choice(("Conv", "Conv", "Conv", "Relu", "Add", "Resize"))
        time_us = f"{rng.lognormvariate(3.5, 1):.1f}"
        layers.append(
            ("layer", f"/down.{number // 8}/{kind.lower()}_{number}", kind, time_us, "estimate")
        )
    scores = [("metric", *CLASSES, "overall")]
    for metric, level in (("iou", 0.74), ("f1", 0.84), ("AP", 0.88)):
        values = [min(0.995, max(0.2, rng.gauss(level, 0.09))) for _ in CLASSES]
        scores.append((metric, *map(str, values), str(sum(values) / len(values))))
    return {
        "calm-heron.onnx": rng.randbytes(31_000),
        "calm-heron.quant.dlc": rng.randbytes(8_500),
        "perf_results_5.csv": _csv([("what", "name", "operator", "time_us", "kind"), *layers]),
        "test_results_f1_10k.csv": _csv(scores),
        **examples("f1_onnx"),
        **examples("f1_1k"),
    }


def uses() -> Iterator[tuple[str, datetime, datetime, str, str]]:
    rng, now = Random(2), datetime.now(UTC)
    for day in range(9):
        for device in _DEVICES:
            for _ in range(rng.randrange(4, 12)):
                start = now - timedelta(days=day, hours=rng.uniform(1, 9))
                length = timedelta(minutes=rng.uniform(4, 45))
                yield device, start, start + length, "brisk-otter", "f1_10k"
    start = now - timedelta(minutes=50)
    for place, stage in enumerate(_ORDER):
        length = timedelta(seconds=(95, 240, 60, 400, 300, 1300)[place])
        yield _DEVICES[0], start, start + length, SHOWN, stage
        start += length + timedelta(seconds=30)


def write_search(folder: Path) -> None:
    """The tables that a search leaves."""
    rng = Random(3)
    folder.mkdir(parents=True)
    (folder / "search.yaml").write_text(
        "experiment: default\nobjectives:\n  chip_latency_ms: {goal: min}\n  val_iou: {goal: max}\n"
    )
    head = (
        "number",
        "iteration",
        "arch_id",
        "state",
        "chip_latency_ms",
        "val_iou",
        "is_pareto",
        "reason",
    )
    lines, curve, share = [], [("candidates", "hypervolume")], 0.2
    for number in range(1, 49):
        state = "failed" if number % 17 == 0 else "complete"
        share += rng.uniform(0, 0.5 / number)
        arch = f"id_{rng.randbytes(8).hex()}"
        values = (
            (f"{rng.uniform(0.4, 3):.3f}", f"{rng.uniform(0.4, 0.72):.4f}")
            if state == "complete"
            else ("", "")
        )
        lines.append((number, number // 9, arch, state, *values, int(number % 6 == 0), ""))
        curve.append((number, f"{share:.6f}"))
    for iteration in sorted({line[1] for line in lines}):
        shown = [line for line in lines if line[1] <= iteration]
        (folder / f"search_state_{iteration}.csv").write_bytes(_csv([head, *shown]))
    (folder / "front.csv").write_bytes(_csv([head, *(line for line in lines if line[6])]))
    (folder / "hypervolume.csv").write_bytes(_csv(curve))


def _csv(lines: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(lines)
    return text.getvalue().encode()


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
