"""The process that builds nets: `python -m edgeloop.search.evaluators.builder FOLDER`.

It keeps PyTorch and ONNX Runtime loaded, which takes seconds, and runs users' spaces: whatever
those do to it is the candidate's error and not the search's end.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

from edgeloop.architectures import Architecture, build, export_onnx
from edgeloop.errors import EdgeloopError, OutOfMemory
from edgeloop.isolation import Answer, NativeProcess, Work, serve

_MODULE = "edgeloop.search.evaluators.builder"
_OOM_SCORE = 1000  # where memory runs out, a process that can be started again goes first


class Builder:
    """Our side of it. One call at a time; started by the first, and again after a crash."""

    def __init__(self, limit_s: float, project: Path | None = None) -> None:
        self._process = NativeProcess(_MODULE)
        self._limit_s = limit_s
        self._project = str((project or Path.cwd()).resolve())

    def warm(self) -> None:
        self._process.warm()

    def build(self, arch: Architecture, target: Path) -> Path:
        """The net with its first weights, the same each time, as an ONNX file."""
        self._process.call(
            "build",
            limit_s=self._limit_s,
            arch=arch.canonical,
            target=str(target.resolve()),
            project=self._project,
        )
        return target

    def host_latency_ms(self, model: Path, warm_up: int, repeats: int) -> float:
        """The median of single-threaded runs in ONNX Runtime."""
        answer, _ = self._process.call(
            "run",
            limit_s=self._limit_s,
            model=str(model.resolve()),
            warm_up=warm_up,
            repeats=repeats,
        )
        return float(answer["median_ms"])

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.close()


def main() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    serve(_table)


def _table() -> Mapping[str, Work]:
    return {"hello": _hello, "build": _build, "run": _run}


def _hello(warm: bool = True) -> Answer:
    """Said when the process starts: the time to load is none of the first net's."""
    import onnxruntime
    import torch

    torch.set_num_threads(1)
    return {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__}, ()


def _build(arch: str, target: str, project: str) -> Answer:
    found = Architecture.from_json(arch)
    try:
        export_onnx(build(found, project=Path(project)), found, Path(target))
    except (MemoryError, RuntimeError, EdgeloopError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        raise OutOfMemory(arch=found.id, device="this machine", batch=1) from None
    return {}, ()


def _run(model: str, warm_up: int, repeats: int) -> Answer:
    import numpy as np
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    source = session.get_inputs()[0]
    feeds = {source.name: np.random.default_rng(0).random(source.shape, dtype=np.float32)}
    times = []
    for number in range(warm_up + repeats):
        began = time.perf_counter()
        session.run(None, feeds)
        if number >= warm_up:
            times.append(time.perf_counter() - began)
    return {"median_ms": 1000 * statistics.median(times)}, ()


if __name__ == "__main__":
    main()
