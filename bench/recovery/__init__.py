"""What recovery wins back: models that lose more than 2 points in int8, or 10 with 4-bit weights.

    python -m bench recovery [NETS [MATCH]]

NETS is a folder with segmentation models for the drawn faces at 64² (`*.onnx`), beside those of
`tests/data/nets`; without it a MobileNet-like one is trained first, which needs PyTorch and
about two minutes. MATCH is a part of the names of cases.

Each model is made hard to quantize without changing what it computes, and goes through the convert
stage of a runner twice, without and with `--recover`. Scores are F1 in points on the HTP simulator,
on test images that neither calibration nor recovery saw.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.recovery.hard import outlier_channels, unequal_channels
from bench.tables import markdown
from edgeloop.platforms import (
    DEFAULT_PRECISION,
    Precision,
    PrecisionPlan,
    open_device,
    open_toolchain,
)
from edgeloop.platforms.batching import run_test, scorer_of
from edgeloop.runner.stages.base import Assignment, Equipment, Sizes
from edgeloop.runner.stages.convert import convert
from edgeloop.settings import Settings
from edgeloop.tasks import Score, Task, open_task, paired_interval
from edgeloop.testing.faces import make_faces
from edgeloop.tuning.recovery import STEP_NAMES

NETS = Path(__file__).parents[2] / "tests/data/nets"
FACES, SIDE, SEED = 700, 64, 5
TESTED = int(os.environ.get("BENCH_RECOVERY_IMAGES", "100"))
SIZES = Sizes(calibration=2 * TESTED, recovery=max(16, TESTED // 2))
W4 = PrecisionPlan.of_bits({}, weights=4)


@dataclass(frozen=True)
class Case:
    """`goal` is how many points of the float score may be lost after recovery; `counts` how many
    the plain conversion must lose for the goal to apply."""

    name: str
    model: Path
    precision: Precision | PrecisionPlan
    counts: float = 2.0
    goal: float = 0.5


def run(folder: str = "", match: str = "") -> str:
    with TemporaryDirectory() as name, ExitStack() as opened:
        place = Path(name)
        make_faces(place / "faces", FACES, SIDE, SEED)
        nets = Path(folder) if folder else _trained(place)
        settings = Settings.load()
        task = open_task("segmentation", place / "faces", place / "cache")
        devices = (open_device(each, settings) for each in ("host", "htp:qcs8550"))
        host, chip = (opened.enter_context(closing(device)) for device in devices)
        toolchain = opened.enter_context(closing(open_toolchain("qnn", settings)))
        plain = Equipment(toolchain, host, task, chip, ("qcs8550",), sizes=SIZES, judge=chip)
        rows = []
        for case in _cases(nets, place):
            if match in f"{case.name} {_named(case)}":
                rows.append(_row(case, plain, task, place))
                print("|", " | ".join(rows[-1]), "|", flush=True)
    headings = ("model", "precision", "float", "nearest", "recovered", "kept", "s", "goal", "met")
    return markdown(headings, rows)


def _trained(place: Path) -> Path:
    from edgeloop.search.nets.architecture import Architecture
    from edgeloop.search.nets.plan import TrainingPaths, TrainingPlan
    from edgeloop.search.nets.train import train

    space = f"{Path(__file__).with_name('nets.py')}:build"
    arch = Architecture(space, {"width": 16}, (1, 3, SIDE, SIDE), 19)
    paths = TrainingPaths(place / "faces", place / "trained")
    train(arch, TrainingPlan(epochs=40, threads=2), paths)
    nets = place / "nets"
    nets.mkdir()
    (place / "trained" / "model.onnx").rename(nets / "mobile-w16.onnx")
    return nets


def _cases(nets: Path, place: Path) -> Iterator[Case]:
    for net in sorted(nets.glob("*.onnx")):
        spread = unequal_channels(net, place / f"{net.stem}-unequal.onnx", 8.0)
        yield Case(f"{net.stem}, unequal channels", spread, "a8w8")
        wild = unequal_channels(net, place / f"{net.stem}-wild.onnx", 32.0)
        yield Case(f"{net.stem}, very unequal channels", wild, DEFAULT_PRECISION)
        yield Case(f"{net.stem}", net, W4, 10.0, 1.5)
        yield Case(f"{net.stem}, unequal channels", spread, W4, 10.0, 1.5)
    for net in sorted(NETS.glob("*.onnx")):
        spread = unequal_channels(net, place / f"{net.stem}-unequal.onnx", 32.0)
        yield Case(f"{net.stem}, unequal channels", spread, "a8w8")
        yield Case(f"{net.stem}, unequal channels", spread, W4, 10.0, 1.5)
        rare = outlier_channels(net, place / f"{net.stem}-outliers.onnx", 300.0)
        yield Case(f"{net.stem}, an outlier channel", rare, DEFAULT_PRECISION)


def _row(case: Case, plain: Equipment, task: Task, place: Path) -> list[str]:
    from dataclasses import replace

    scores: dict[str, Score] = {}
    kept, seconds = "", 0.0
    for steps in ((), STEP_NAMES):
        folder = place / f"work-{time.monotonic_ns()}"
        folder.mkdir()
        row = {"model_name": case.model.name}
        work = Assignment(case.model.stem, "convert", row, {case.model.name: case.model}, folder)
        equipment = replace(plain, precision=case.precision, recover=tuple(steps))
        began = time.monotonic()
        made = convert(work, equipment)
        seconds = time.monotonic() - began
        if steps:
            told = json.loads(str(made.columns["recovery"]))
            kept = ", ".join(step["step"] for step in told["steps"] if step["kept"]) or "none"
        info = plain.toolchain.inspect(case.model)
        samples = task.test(SIDE, SIDE, TESTED)
        quantized = made.files[f"{case.model.stem}.quant.onnx"]
        scores["recovered" if steps else "nearest"] = run_test(
            task, plain.device, quantized, info, "quantized", samples, scorer_of(task, curves=False)
        )
        if not steps:
            scores["float"] = run_test(
                task, plain.host, case.model, info, "float", samples, scorer_of(task, curves=False)
            )
    return [case.name, _named(case), *_figures(case, task, scores, kept, seconds)]


def _named(case: Case) -> str:
    return case.precision if isinstance(case.precision, str) else "a8w4"


def _figures(
    case: Case, task: Task, scores: dict[str, Score], kept: str, seconds: float
) -> list[str]:
    reference = scores["float"]
    cells = [f"{100 * reference.headline:.2f}"]
    losses = {}
    for name in ("nearest", "recovered"):
        found = paired_interval(task, scores[name].counts, reference.counts)
        losses[name] = -100 * found.value
        ends = f"{100 * found.low:+.2f} to {100 * found.high:+.2f}"
        cells.append(f"{100 * found.value:+.2f} [{ends}]")
    if losses["nearest"] <= case.counts:
        goal, met = f"(loses {case.counts:g} or less)", "–"
    else:
        goal, met = f"−{case.goal:g}", "yes" if losses["recovered"] <= case.goal else "no"
    return [*cells, kept, f"{seconds:.0f}", goal, met]
