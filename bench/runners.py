"""Two runners on two CPUs beside one runner on one CPU: the same models, from the start of the
first process to the end of the last.

The reference is the same work without runners, leases or a store: a plain loop over the models that
converts, estimates and runs them with the same tools, in two processes and in one. It says what the
machine itself gains from its second CPU. Every process is bound to its CPU from outside, so that a
container, where `--cpus` only counts, is measured like a machine.

Beside the clock's times stand those of a quiet machine: the processor time of a process tree, all
of it on one CPU, and the time in which nothing of it wanted a CPU, by samples. On a quiet machine
both are the same; other work on the machine makes the clock's times longer.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.tables import markdown
from edgeloop._util.system import process_fields
from edgeloop.testing.faces import make_faces
from edgeloop.testing.models import save_segmentation_model
from tests.nets_torch import export, mobilenet_v2

ROUNDS = 1
TINY_MODELS = 12
REAL_MODELS = 4
GOAL = 1.7
SAMPLE_S = 0.02
TREES_S = 0.5  # a look at all processes of the machine costs more than a sample
SIZES = ("--calibration-images", "32", "--quick-images", "24", "--thorough-images", "48")
REPOSITORY = Path(__file__).parents[1]
Start = Callable[[], subprocess.Popen[bytes]]


@dataclass(frozen=True)
class Work:
    """`images` is what the plain loop runs: about as many as the stages of a runner do."""

    title: str
    models: Path
    options: tuple[str, ...]
    images: int


@dataclass(frozen=True)
class Took:
    clock_s: float
    quiet_s: float


def run(rounds: str = str(ROUNDS)) -> str:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        return "This needs two CPUs."
    rows = []
    with TemporaryDirectory(prefix="edgeloop-bench-") as name:
        folder = Path(name)
        for work in (_tiny(folder / "tiny"), _real(folder / "real")):
            kinds: dict[str, Callable[[list[int]], Took]] = {
                "plain loop": lambda use, w=work: _plain(w, use),
                "runner": lambda use, w=work: _runners(w, folder, use),
            }
            for kind, measure in kinds.items():
                found = [(measure(cpus[:1]), measure(cpus)) for _ in range(int(rounds))]
                rows.append((work.title, kind, *_cells(found), f"≥ {GOAL}" * (kind == "runner")))
    headings = (
        *("models", "by", "one on 1 CPU, clock, s", "two on 2 CPUs, clock, s"),
        *("×", "one, quiet, s", "two, quiet, s", "×, quiet", "goal"),
    )
    return markdown(headings, rows)


def _cells(found: Sequence[tuple[Took, Took]]) -> list[str]:
    cells = []
    for times in ("clock_s", "quiet_s"):
        one, two = (statistics.median(getattr(p[n], times) for p in found) for n in (0, 1))
        cells += [f"{one:.1f}", f"{two:.1f}", f"{one / two:.2f}"]
    return cells


def _tiny(folder: Path) -> Work:
    (folder / "models").mkdir(parents=True)
    make_faces(folder / "faces", 100, 64, seed=5)
    for seed in range(TINY_MODELS):
        save_segmentation_model(folder / f"models/{seed}.onnx", 64, seed=seed)
    options = ("--dataset", str(folder / "faces"), *SIZES)
    return Work(f"{TINY_MODELS} tiny ones, 64²", folder / "models", options, 48)


def _real(folder: Path) -> Work:
    import torch

    (folder / "models").mkdir(parents=True)
    for seed in range(REAL_MODELS):
        torch.manual_seed(seed)
        export(mobilenet_v2(), folder / f"models/{seed}.onnx", 224)
    return Work(f"{REAL_MODELS} × MobileNetV2, 224²", folder / "models", (), 8)


def _runners(work: Work, folder: Path, cpus: Sequence[int]) -> Took:
    with TemporaryDirectory(dir=folder) as project:
        edgeloop = (sys.executable, "-m", "edgeloop")
        upload = (*edgeloop, "upload", str(work.models), "--no-check")
        subprocess.run(upload, cwd=project, env=_environ(project), check=True, capture_output=True)
        runner = (*edgeloop, "runner", "--device", "htp", "--drain", "--cpus", "1", *work.options)
        return _took([_bound(cpu, runner, Path(project)) for cpu in cpus])


def _plain(work: Work, cpus: Sequence[int]) -> Took:
    """Each process takes every n-th model."""
    with TemporaryDirectory(dir=work.models.parent) as scratch:
        command = (sys.executable, "-m", "bench.runners", str(work.models), str(work.images))
        parts = [(*command, str(n), str(len(cpus)), scratch) for n in range(len(cpus))]
        pairs = zip(cpus, parts, strict=True)
        return _took([_bound(cpu, part, REPOSITORY) for cpu, part in pairs])


def _bound(cpu: int, command: Sequence[str], folder: Path) -> Start:
    return lambda: subprocess.Popen(
        ["taskset", "-c", str(cpu), *command],
        cwd=folder,
        env=_environ(str(folder)),
        stdout=subprocess.DEVNULL,
    )


def _environ(folder: str) -> dict[str, str]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("EDGELOOP_")}
    return {**plain, "EDGELOOP_CACHE": f"{folder}/cache", "PYTHONPATH": str(REPOSITORY)}


def _took(starts: Sequence[Start]) -> Took:
    used_s, began = _processor_s(), time.perf_counter()
    processes = [start() for start in starts]
    idle_s = dict.fromkeys((process.pid for process in processes), 0.0)
    before = looked = began
    trees = _trees()
    while running := [p for p in processes if p.poll() is None]:
        if before - looked > TREES_S:
            trees, looked = _trees(), before
        resting = [p.pid for p in running if not _wants_cpu(p.pid, trees)]
        time.sleep(SAMPLE_S)
        now = time.perf_counter()
        for pid in resting:
            idle_s[pid] += min(now - before, 2 * SAMPLE_S)  # this sampler may have waited itself
        before = now
    codes = [process.returncode for process in processes]
    assert not any(codes), codes
    quiet_s = (_processor_s() - used_s) / len(processes) + max(idle_s.values())
    return Took(time.perf_counter() - began, quiet_s)


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _trees() -> dict[int, list[int]]:
    """The children of each process."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        fields = process_fields(int(folder.name))
        if len(fields) > 1:
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    return children


def _wants_cpu(pid: int, children: dict[int, list[int]]) -> bool:
    """Whether a thread of the process or of those below it runs, or waits for a CPU."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        fields = process_fields(int(task.name))  # threads can be asked like processes
        if fields and fields[0] == "R":
            return True
    return any(_wants_cpu(child, children) for child in children.get(pid, ()))


def loop(models: Path, images: int, first: int, step: int, scratch: Path) -> None:
    """What the stages of the models compute, and nothing around it."""
    from edgeloop.platforms import open_device
    from edgeloop.platforms.batching import random_batch
    from edgeloop.platforms.qnn.toolchain import QnnToolchain
    from edgeloop.settings import Settings
    from edgeloop.tasks.base import Samples

    htp = open_device("htp", Settings.load(scratch))
    host = open_device("host", Settings.load(scratch))
    with QnnToolchain() as toolchain:
        for number, model in enumerate(sorted(models.glob("*.onnx"))):
            if number % step != first:
                continue
            info = toolchain.inspect(model)
            pixels = next(iter(random_batch(info, images).values()))
            samples = Samples(pixels, np.zeros((images, 1, 1), np.uint8), "bench")
            out = scratch / f"{number}"
            files = toolchain.convert(model, samples, out, "a8w8-per-channel", ("snapdragon-888",))
            quantized = files.files[f"{model.stem}.quant.onnx"]
            for _ in range(5):
                htp.measure(quantized, info)
            batches = [{info.input_name: pixels[n : n + 8]} for n in range(0, images, 8)]
            runs = ((htp, "quantized", quantized), (htp, "fp16", model), (host, "float", model))
            for device, kind, file in runs:
                for _ in device.infer(file, info, kind, iter(batches)):
                    pass
    htp.close()


if __name__ == "__main__":
    loop(Path(sys.argv[1]), *(int(word) for word in sys.argv[2:5]), Path(sys.argv[5]))
