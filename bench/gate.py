"""How often the gate is wrong: alarms on models that are as good, and models it lets through.

    python -m bench gate [--repeats 100] [--jobs N] [--images 200]

False alarms: the example networks are quantized again and again, each time on other calibration
images, and go through the gate against a baseline of the same network. Every figure is judged: a
score that fell by chance, an estimate that moved with the scales.

Catches: the same networks with a fault. Scores: noise on the weights, in steps that cost from a
twentieth of a point to several. Latency: more channels or one more layer, in steps from a tenth of
a percent. What fell by 0.3 points or more, or grew by 3 % or more, must be caught.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.tables import markdown
from edgeloop.testing.faces import make_faces
from edgeloop.tuning.gate import (
    Baseline,
    GateCheck,
    GateLimits,
    GateOptions,
    compare_figures,
    measure_model,
)

NETS = Path(__file__).parents[1] / "examples" / "nets"
NAMES = ("unet-w8", "unet-w16", "unet-w24")
SIDE = 64
POOL = 4  # calibration images to choose from, for each that is used
CALIBRATION = 100
NOISES = (0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.07)
WIDER = (4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
LARGE = 256  # side of the networks of the latency part: theirs is not just overhead
DROP, SLOWER = 0.3, 3.0  # what must be caught: points, percent


@dataclass(frozen=True)
class Outcome:
    net: str
    kind: str
    checks: tuple[GateCheck, ...]

    def check(self, name: str) -> GateCheck:
        return next(check for check in self.checks if check.name == name)


def run(*arguments: str) -> str:
    parser = argparse.ArgumentParser(prog="python -m bench gate")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    with TemporaryDirectory(prefix="bench-gate-") as name:
        return _run(Path(name), options.repeats, options.images, options.jobs)


def _run(folder: Path, repeats: int, images: int, jobs: int) -> str:
    pool = folder / "pool"
    make_faces(pool, POOL * CALIBRATION + images, SIDE, seed=11)
    numbers = multiprocessing.Value("i", 0)
    with ProcessPoolExecutor(jobs, initializer=_bind, initargs=(numbers,)) as workers:
        sets = [folder / f"faces-{number}" for number in range(repeats + 1)]
        for number, target in enumerate(sets):
            _choose(pool, target, number, images)
        writing = {net: workers.submit(_write, net, folder, images) for net in NAMES}
        large = workers.submit(_write_large, folder / "large.json", folder)
        baselines = {net: writing[net].result() for net in NAMES}
        again = []
        for number, faces in enumerate(sets[1:]):
            net = NAMES[number % len(NAMES)]
            again.append(workers.submit(_again, net, baselines[net], faces, images))
        noisy = [
            workers.submit(_noisy, net, baselines[net], noise, seed, folder, images)
            for net in NAMES
            for noise in NOISES
            for seed in range(1, 1 + max(1, repeats // 50))
        ]
        plain = large.result()
        wider = [workers.submit(_wider, extra, plain, folder) for extra in WIDER]
        groups = [[one.result() for one in group] for group in (again, noisy, wider)]
    return _report(*groups, images)


def _bind(numbers: Any) -> None:
    """One core per worker: the simulator starts as many processes as it may use."""
    with numbers.get_lock():
        number = numbers.value
        numbers.value += 1
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


def _choose(pool: Path, target: Path, number: int, images: int) -> None:
    """A dataset with the same test images as all others, and calibration images of its own."""
    target.mkdir()
    every = sorted(path for path in pool.glob("*.png") if not path.stem.endswith("_seg"))
    dice = np.random.default_rng(number)
    chosen = sorted(dice.choice(len(every) - images, CALIBRATION, replace=False).tolist())
    for source in [*(every[index] for index in chosen), *every[-images:]]:
        for path in (source, source.with_name(f"{source.stem}_seg.png")):
            os.link(path, target / path.name)


def _options(faces: Path, images: int) -> GateOptions:
    return GateOptions("htp:qcs8550", faces, "segmentation", images, calibration_images=CALIBRATION)


def _write(net: str, folder: Path, images: int) -> Path:
    target = folder / f"{net}.json"
    figures = measure_model(NETS / f"{net}.onnx", _options(folder / "faces-0", images))
    Baseline.of(figures).write(target)
    return target


def _again(net: str, baseline: Path, faces: Path, images: int) -> Outcome:
    return _judged(NETS / f"{net}.onnx", baseline, faces, images, net, "requantized")


def _noisy(net: str, baseline: Path, noise: float, seed: int, folder: Path, images: int) -> Outcome:
    model = folder / f"{net}-{noise}-{seed}.onnx"
    _spoil(NETS / f"{net}.onnx", model, noise, seed)
    return _judged(model, baseline, folder / "faces-0", images, net, f"weights ± {noise:.1%}")


def _judged(model: Path, baseline: Path, faces: Path, images: int, net: str, kind: str) -> Outcome:
    figures = measure_model(model, _options(faces, images))
    report = compare_figures(Baseline.read(baseline), figures, GateLimits())
    return Outcome(net, kind, report.checks)


def _spoil(source: Path, target: Path, noise: float, seed: int) -> None:
    """Noise on the weights, relative to the spread of each tensor."""
    import onnx
    from onnx import numpy_helper

    model, dice = onnx.load_model(source), np.random.default_rng(seed)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.ndim > 1:
            moved = values + noise * values.std() * dice.standard_normal(values.shape)
            tensor.CopyFrom(numpy_helper.from_array(moved.astype(np.float32), tensor.name))
    onnx.save_model(model, target)


def _write_large(target: Path, folder: Path) -> Path:
    model = _large(folder / "large.onnx", 0)
    Baseline.of(measure_model(model, GateOptions("htp:qcs8550"))).write(target)
    return target


def _wider(extra: int, baseline: Path, folder: Path) -> Outcome:
    model = _large(folder / f"large-{extra}.onnx", extra)
    figures = measure_model(model, GateOptions("htp:qcs8550"))
    report = compare_figures(Baseline.read(baseline), figures, GateLimits())
    return Outcome("convnet", f"{extra} channels more", report.checks)


def _large(path: Path, extra: int) -> Path:
    """Convolutions at 256²; `extra` channels in one of them."""
    from onnx import TensorProto, helper, numpy_helper, save_model

    widths = [3, 32, 64, 128, 128 + extra, 128, 64, 19]
    strides = [2, 2, 1, 1, 1, 1, 1]
    dice = np.random.default_rng(5)
    nodes, weights, source = [], [], "image"
    for number, (before, after, stride) in enumerate(
        zip(widths[:-1], widths[1:], strides, strict=True)
    ):
        kernel = dice.normal(0, math.sqrt(2 / (9 * before)), (after, before, 3, 3))
        weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"w{number}"))
        made = f"conv{number}"
        shape = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [stride, stride]}
        nodes.append(helper.make_node("Conv", [source, f"w{number}"], [made], made, **shape))
        source = made
        if number < len(strides) - 1:
            nodes.append(helper.make_node("Relu", [made], [f"relu{number}"], f"relu{number}"))
            source = f"relu{number}"
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, LARGE, LARGE])
    side = LARGE // 4
    out = helper.make_tensor_value_info(source, TensorProto.FLOAT, [1, 19, side, side])
    graph = helper.make_graph(nodes, "large", [image], [out], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    save_model(model, path)
    return path


def _report(again: list[Outcome], noisy: list[Outcome], wider: list[Outcome], images: int) -> str:
    alarms = [one for one in again if any(c.verdict == "regression" for c in one.checks)]
    drops = [-(one.check("f1").change or 0.0) for one in again]
    widths = [(one.check("f1").high or 0.0) - (one.check("f1").low or 0.0) for one in again]
    moves = [abs(one.check("latency").change or 0.0) for one in again]
    worse = [one for one in noisy if -(one.check("f1").change or 0.0) >= DROP]
    missed = [one for one in worse if one.check("f1").verdict != "regression"]
    slower = [one for one in wider if (one.check("latency").change or 0.0) >= SLOWER]
    late = [one for one in slower if one.check("latency").verdict != "regression"]
    rows = [
        ("false alarms", f"{len(alarms)} of {len(again)}", "0 of 100"),
        ("F1 moved by requantizing, points", f"{np.std(drops):.3f} (σ), {max(drops):.2f} most", ""),
        ("half of the paired interval, points", f"{np.median(widths) / 2:.2f}", ""),
        ("latency moved by requantizing, %", f"{np.mean(moves):.2f}, {max(moves):.2f} most", ""),
        (f"F1 −{DROP} and worse: caught", _of(worse, missed), "all"),
        (f"latency +{SLOWER:g} % or more: caught", _of(slower, late), "all"),
    ]
    lines = [_line(one, "f1") for one in noisy] + [_line(one, "latency") for one in wider]
    wrong = [f"alarm: {one.net} {one.checks}" for one in alarms]
    head = f"{images} test images at {SIDE}², htp:qcs8550, limits +2 % and −0.25 points"
    tables = (
        markdown(("", "measured", "goal"), rows),
        markdown(("network", "fault", "change [95 %]", "verdict"), lines),
    )
    return "\n\n".join((head, *tables, *wrong))


def _of(all_of_them: list[Outcome], missed: list[Outcome]) -> str:
    return f"{len(all_of_them) - len(missed)} of {len(all_of_them)}"


def _line(one: Outcome, name: str) -> tuple[str, str, str, str]:
    check = one.check(name)
    return one.net, one.kind, f"{name} {check.change_text}", check.verdict
