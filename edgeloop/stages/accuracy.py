"""f1_onnx, f1_1k, f1_1k_f, f1_10k: run a test set through a model and score it as it comes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeloop.devices import Device, Kind
from edgeloop.errors import ModelFailed, NoSuchPrecision
from edgeloop.stages.base import Assignment, Equipment, Result, Sizes
from edgeloop.tasks import Images, Output, Samples, Score, Task, write_pr_curve, write_results_csv
from edgeloop.toolchains import GraphInfo

BATCH = 8
AHEAD = 4


@dataclass(frozen=True)
class Test:
    """Which model, on what, on how many images."""

    kind: Kind
    on_host: bool
    thorough: bool


NOT_AVAILABLE = "n/a"  # as old tables say it where a device has no such result

TESTS = {
    "f1_onnx": Test("float", on_host=True, thorough=True),
    "f1_1k": Test("quantized", on_host=False, thorough=False),
    "f1_1k_f": Test("float", on_host=False, thorough=False),
    "f1_10k": Test("quantized", on_host=False, thorough=True),
}


def accuracy(work: Assignment, equipment: Equipment) -> Result:
    test = TESTS[work.stage]
    info = equipment.toolchain.inspect(work.onnx)
    equipment.task.check_output(info.output_shape)
    device = equipment.host if test.on_host else equipment.device
    samples = equipment.task.test(info.height, info.width, _count(test, equipment.sizes))
    kind = device.float_kind if test.kind == "float" else test.kind
    model = work.quantized if kind == "quantized" else work.onnx
    try:
        score = run_test(equipment.task, device, model, info, kind, samples)
    except NoSuchPrecision as error:
        return Result({work.stage: NOT_AVAILABLE}, {}, f"{work.stage} n/a: {error}")
    results = work.folder / f"test_results_{work.stage}.csv"
    curve = work.folder / f"pr_curve_{work.stage}.png"
    write_results_csv(score, results)
    write_pr_curve(score, curve)
    files = {path.name: path for path in (results, curve)}
    summary = f"{work.stage} {score.headline:.4f} on {len(samples)} images, {device.name} ({kind})"
    return Result({work.stage: score.headline}, files, summary)


def run_test(
    task: Task, device: Device, model: Path, info: GraphInfo, kind: Kind, samples: Samples
) -> Score:
    """Inference and scoring overlap: outputs are scored while the next are computed, and no more
    than a few batches of outputs exist at any time."""
    scorer = task.scorer()
    seen = 0
    for outputs in ahead(device.infer(model, info, kind, batches(samples))):
        scorer.add(outputs, samples.labels[seen : seen + len(outputs)])
        seen += len(outputs)
    if seen != len(samples):
        raise ModelFailed(reason=f"{device.name} gave {seen} results for {len(samples)} images")
    return scorer.score()


def batches(samples: Samples, size: int = BATCH) -> Iterator[Images]:
    for start in range(0, len(samples), size):
        yield samples.images[start : start + size]


def ahead(outputs: Iterable[Output]) -> Iterator[Output]:
    """Draws from `outputs` in a thread of its own, a few items ahead of whoever consumes them."""
    ready: queue.Queue[Output | BaseException | None] = queue.Queue(AHEAD)
    stopped = threading.Event()

    def draw() -> None:
        last: BaseException | None = None
        try:
            for output in outputs:
                while not stopped.is_set():
                    try:
                        ready.put(output, timeout=0.2)
                        break
                    except queue.Full:
                        continue
                if stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - carried over and raised by the consumer
            last = error
        ready.put(last)

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()


def _count(test: Test, sizes: Sizes) -> int:
    return sizes.thorough if test.thorough else sizes.quick
