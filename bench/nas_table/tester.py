"""Tests trained models as they come, and compiles networks in between, until the time is up:
`python -m bench.nas_table.tester`, started by `python -m bench nas_table`. A core each, no GPU.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any

from bench.nas_table.places import COMPILED, TESTED, Places, TrainingTask, groups
from bench.nas_table.space import CLASSES, SIDE
from edgeloop.errors import EdgeloopError
from edgeloop.graph.check import read_graph
from edgeloop.graph.count import graph_info
from edgeloop.graph.info import GraphInfo
from edgeloop.graph.rewrites.apply import apply_rewrites
from edgeloop.platforms import DEFAULT_PRECISION
from edgeloop.platforms.batching import model_inputs
from edgeloop.platforms.qnn.chips import find_chip
from edgeloop.platforms.qnn.latency import built_in_profiles
from edgeloop.platforms.qnn.quantize import quantize_model
from edgeloop.platforms.qnn.toolchain import QnnToolchain, measurement
from edgeloop.search.nets.export import export_onnx
from edgeloop.search.nets.plan import MODEL
from edgeloop.search.nets.spaces import build
from edgeloop.search.nets.train import mean_iou
from edgeloop.tasks import Samples, Task, Trainable, open_task

_IDLE_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--calibration", type=int, required=True)
    parser.add_argument("--validation", type=int, required=True)
    parser.add_argument("--members", type=int)
    parser.add_argument("--end", type=float, required=True)
    given = parser.parse_args()
    watchdog = Timer(max(0.1, given.end - time.time()), os._exit, (0,))
    watchdog.daemon = True
    watchdog.start()
    import torch

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # ONNX Runtime's advice on every model
    places = Places(given.results, given.scratch)
    task = open_task("segmentation", places.faces, places.scratch / "prepared")
    with QnnToolchain(limit_s=60) as toolchain:
        worker = _Worker(
            places, task, toolchain, given.calibration, given.validation, given.members
        )
        while worker.next():
            pass
    watchdog.cancel()


class _Worker:
    def __init__(
        self,
        places: Places,
        task: Task,
        toolchain: QnnToolchain,
        calibration: int,
        validation: int,
        members: int | None,
    ) -> None:
        self._places, self._toolchain = places, toolchain
        self._task = task
        self._calibration = task.calibration(SIDE, SIDE, calibration)
        assert isinstance(task, Trainable)
        self._validation, self._count = task.validation(SIDE, SIDE), validation
        known = places.done(COMPILED)
        every = [one for group in groups() for one in group if one.arch.id not in known]
        self._to_compile = [] if members is not None else every

    def next(self) -> bool:
        """Something to test before something to compile; False when the trainings have ended and
        there is neither."""
        is_ended = (self._places.scratch / "trainings ended").exists()
        ready = self._places.models.glob("*/ready")
        for folder in (path.parent for path in ready):
            if self._places.claim(f"test {folder.name}"):
                self._tested(folder)
                return True
        while self._to_compile:
            one = self._to_compile.pop()
            if self._places.claim(f"compile {one.arch.id}"):
                self._compiled(one)
                return True
        time.sleep(0 if is_ended else _IDLE_S)
        return not is_ended

    def _tested(self, folder: Path) -> None:
        """Quantized, on the images on which the float model was validated."""
        model, quantized = folder / MODEL, folder / "quantized.onnx"
        began = time.monotonic()
        try:
            graph = read_graph(model)
            info = graph_info(model.name, graph)
            apply_rewrites(graph)
            quantize_model(graph, info, self._calibration, quantized, DEFAULT_PRECISION)
            f1, miou = score(quantized, info, self._validation, self._count, self._task)
        except (EdgeloopError, RuntimeError, ValueError) as error:
            print(f"{folder.name}: {error}", file=sys.stderr, flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            return
        arch_id, _, seed = folder.name.rpartition("-")
        line = {"arch_id": arch_id, "seed": int(seed), "f1": f1, "miou": miou}
        self._places.add(TESTED, {**line, "seconds": round(time.monotonic() - began, 1)})
        shutil.rmtree(folder, ignore_errors=True)

    def _compiled(self, one: TrainingTask) -> None:
        with TemporaryDirectory(prefix="nas-table-") as name:
            model = Path(name) / "untrained.onnx"
            try:
                export_onnx(build(one.arch), one.arch, model)
                line = compiled(self._toolchain, model)
            except EdgeloopError as error:
                print(f"{one.arch.id}: {error}", file=sys.stderr, flush=True)
                return
        self._places.add(COMPILED, {"arch_id": one.arch.id, **line})


def compiled(toolchain: QnnToolchain, model: Path) -> dict[str, Any]:
    """Counts, and the latency on every calibrated chip: one compile for each of the compiler's
    latency models, from which the chips' profiles differ."""
    info = toolchain.inspect(model)
    assert info.memory is not None
    profiles = built_in_profiles()
    estimates, latency_ms = {}, {}
    for name in sorted(profiles):
        chip = find_chip(name)
        soc = chip.require_estimate()
        if soc not in estimates:
            estimates[soc] = toolchain.screen(model, chip)
        found = measurement(estimates[soc], chip, profiles[name])
        assert not found.missing_ops, f"{name}: {found.basis}"
        latency_ms[f"htp:{name}"] = round(1000 * found.seconds, 6)
    return {
        "weights": info.params,
        "macs": info.macs,
        "memory_bytes": info.memory.weights_8bit + info.memory.activations_8bit,
        "raw_us": {str(soc): round(one.raw_us, 3) for soc, one in estimates.items()},
        "ddr_bytes": {str(soc): one.ddr_bytes for soc, one in estimates.items()},
        "latency_ms": latency_ms,
    }


def score(
    model: Path, info: GraphInfo, samples: Samples, count: int, task: Task
) -> tuple[float, float]:
    """F1 and mean IoU in ONNX Runtime on one core."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])
    scorer = task.scorer(curves=False)
    for place in range(min(count, len(samples))):
        images = samples.images[place : place + 1]
        answer = session.run(None, model_inputs({info.input_name: images}, info))[0]
        scorer.add(answer.argmax(1).astype("int32"), samples.labels[place : place + 1])
    found = scorer.score()
    assert found.counts.shape[-1] == CLASSES
    return round(found.headline, 5), round(mean_iou(found.counts.sum(axis=0)), 5)


if __name__ == "__main__":
    main()
