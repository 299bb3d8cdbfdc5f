"""Export to ONNX: fixed shape, constants folded, batch norms fused.

Constant nodes and zero biases shared through Identity are refused by the chip's compiler or
quantize badly, so they are removed before the file is written. The file is checked, and its
outputs are compared with those of the torch module.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import warnings
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from edgeloop._util.files import write_atomic
from edgeloop._util.isolation import Answer, LendingPool, WorkerProcess, register_calls
from edgeloop.errors import (
    LocalFileError,
    MemoryExceeded,
    MissingExtra,
    ModelFailed,
    TrainingFailed,
    WorkerFailed,
)
from edgeloop.search.nets.architecture import Architecture

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto
    from torch import Tensor, nn

_LIMIT_S = 600.0
_EXPORTING = Lock()  # PyTorch's exporter has process-wide state
OPSET = 18
INPUT, OUTPUT = "image", "logits"
ARCHITECTURE, IDENTITY = "edgeloop.architecture", "edgeloop.id"
TOLERANCE = 1e-3  # of the largest output: float32 sums in another order


def export_onnx(net: nn.Module, arch: Architecture, path: Path) -> Path:
    """Write the model, which is not modified; the file is written atomically."""
    import onnx
    import torch

    check_exporter()
    still = copy.deepcopy(net).to("cpu").float().eval()
    image = torch.rand(arch.shape, generator=torch.Generator().manual_seed(0))
    expected = _answer(still, image, arch)
    model = _exported(still, image, arch)
    fold_constants(model.graph)
    onnx.helper.set_model_props(model, {ARCHITECTURE: arch.canonical, IDENTITY: arch.id})
    onnx.checker.check_model(model, full_check=True)
    data = model.SerializeToString()
    _compare(data, image, expected, arch)
    _write(path, data)
    return path


def architecture_in(path: Path) -> Architecture | None:
    """The architecture in an exported file; None if the file comes from elsewhere."""
    import onnx

    model = onnx.load_model(str(path), load_external_data=False)
    for prop in model.metadata_props:
        if prop.key == ARCHITECTURE:
            return Architecture.from_json(prop.value, str(path))
    return None


def check_exporter() -> None:
    """Checked before hours of training, not after."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise MissingExtra(what="Exporting models", extra="qnn")


def _answer(net: nn.Module, image: Tensor, arch: Architecture) -> Tensor:
    import torch

    with torch.no_grad():
        try:
            answer: Tensor = net(image)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            first = str(error).partition("\n")[0]
            reason = f"the model does not accept an image of shape {list(arch.shape)}: {first}"
            raise TrainingFailed(arch=arch.id, reason=reason) from error
    fits = isinstance(answer, torch.Tensor) and tuple(answer.shape[:2]) == (1, arch.classes)
    if not fits:
        shape = list(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        reason = f"the output of the model is {shape}, not [1, {arch.classes}, …]"
        raise TrainingFailed(arch=arch.id, reason=reason)
    if not torch.isfinite(answer).all():
        raise TrainingFailed(arch=arch.id, reason="the model outputs NaN or infinite values")
    return answer


def _exported(net: nn.Module, image: Tensor, arch: Architecture) -> ModelProto:
    """Uses the TorchScript exporter: the dynamo one needs another package."""
    import onnx
    import torch

    buffer = io.BytesIO()
    with _EXPORTING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                net,
                (image,),
                buffer,  # type: ignore[arg-type]  # it takes any file
                dynamo=False,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=[OUTPUT],
                do_constant_folding=True,
            )
        except (RuntimeError, torch.onnx.OnnxExporterError, ValueError, TypeError) as error:
            first = str(error).strip().partition("\n")[0]
            raise TrainingFailed(arch=arch.id, reason=f"it cannot be exported: {first}") from error
    return onnx.load_model_from_string(buffer.getvalue())


def fold_constants(graph: GraphProto) -> None:
    """Turn constant nodes into initializers, and initializers behind Identity into copies."""
    import onnx

    weights = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        source = weights.get(node.input[0]) if node.op_type == "Identity" else None
        if node.op_type == "Constant" and value is not None:
            source = value
        if source is None:
            nodes.append(node)
            continue
        weight = onnx.TensorProto()
        weight.CopyFrom(source)
        weight.name = node.output[0]
        weights[weight.name] = weight
    used = {name for node in nodes for name in node.input}
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(tensor for name, tensor in weights.items() if name in used)


def _compare(data: bytes, image: Tensor, model_output: Tensor, arch: Architecture) -> None:
    import numpy as np
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])
    output = session.run(None, {INPUT: image.numpy()})[0]
    expected = model_output.numpy()
    scale = max(1e-6, float(np.abs(expected).max()))
    off = float(np.abs(output - expected).max()) / scale if output.shape == expected.shape else 1.0
    if not off <= TOLERANCE:
        reason = f"the exported file disagrees with the model ({100 * off:.2g} % off)"
        raise TrainingFailed(arch=arch.id, reason=reason)


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None


# Exports beside trainings that share a process: the exporter keeps Python's lock for seconds, and
# the threads that train would wait for it with the GPU idle.


class ExportProcesses:
    """Worker processes that export checkpoints; each is started when it is first needed."""

    def __init__(self, count: int) -> None:
        self._processes = LendingPool(WorkerProcess() for _ in range(count))

    def export(
        self, arch: Architecture, seed: int, checkpoint: Path, path: Path, project: Path
    ) -> bool:
        """Whether it is done. What a process cannot do here may still be done by the caller; what
        is wrong with the model itself is raised."""
        with self._processes.borrow() as process:
            try:
                process.call(
                    "export.checkpoint",
                    limit_s=_LIMIT_S,
                    arch=arch.canonical,
                    seed=seed,
                    checkpoint=str(checkpoint.resolve()),
                    path=str(path.resolve()),
                    project=str(project.resolve()),
                )
            except (ModelFailed, MemoryExceeded, WorkerFailed):
                return False
        return True

    def close(self) -> None:
        for process in self._processes.items:
            process.close()


def _hello(warm: bool = False) -> Answer:
    import torch

    torch.set_num_threads(1)
    return {"torch": torch.__version__}, ()


def _checkpoint(arch: str, seed: int, checkpoint: str, path: str, project: str) -> Answer:
    from edgeloop.search.nets.plan import load_weights
    from edgeloop.search.nets.spaces import build

    architecture = Architecture.from_json(arch)
    net = build(architecture, seed, Path(project))
    load_weights(net, architecture, Path(checkpoint))
    export_onnx(net, architecture, Path(path))
    return {}, ()


CALLS = {"hello": _hello, "checkpoint": _checkpoint}
register_calls("export", __name__, what="Exporting models", extra="train")
